//! The embedded store: leases of one process, in maps.

mod keep;
mod line;
mod metadata;
mod modes;
mod notes;
mod requests;
mod store;
mod waiter;
mod wake;

use super::contract::mode::Kind;
use super::{
    Absence, Acquire, Acquired, Fencing, HolderId, InboxSender, Mark, Metadata, Mode, Name,
    NameMap, Owner, SetVerdicts, Signal, StoreFuture,
};
use crate::clock::{Clock, Instant};
use crate::error::Result;
use crate::util::sync::{Mutex, MutexGuard};
use modes::Shared;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// Keeps leases in the memory of this process.
///
/// It behaves like a server, with times to live, wake-ups and fencing tokens, so that tests and one-process services
/// run the same code as with Redis. Clones share the leases: managers that get clones of one store exclude each other, as
/// processes are. It follows tokio's clock, so a test with paused time needs no real waiting.
///
/// ```
/// use leasehold::{LeaseManager, store::MemoryStore};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = MemoryStore::new();
/// let here = LeaseManager::builder().build(store.clone())?;
/// let there = LeaseManager::builder().build(store)?;
///
/// let lease = here.lock("job").lock().await?;
/// assert!(there.lock("job").try_lock().await?.is_none());
/// lease.unlock().await?;
/// # Ok::<(), leasehold::Error>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore {
    clock: Clock,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The microseconds from 1970 to the origin of the clock, so that fencing tokens also grow from process to process.
    epoch: u64,
    /// The exclusive holds.
    holds: NameMap<Entry>,
    /// The names that several holders share. A name is in one of these maps at most, but for what has expired.
    shared: NameMap<Shared>,
    /// The managers that wait for a name in the order of arrival.
    lines: NameMap<line::Queue>,
    /// The last reserved fencing token of each name, until the clock has passed it.
    fences: NameMap<u64>,
    /// The last one that was forgotten before its time.
    forgotten: u64,
    waiters: NameMap<Vec<wake::Listener>>,
    /// Who listens to what the holders tell about themselves.
    observers: NameMap<Vec<wake::Listener>>,
    /// The last note about each name.
    notes: NameMap<notes::Left>,
    /// The descriptions of managers, each with the time until which it is kept.
    managers: HashMap<String, (Owner, Instant)>,
    /// The inboxes of managers.
    inboxes: HashMap<Uuid, InboxSender>,
    to_wake: Vec<Signal>,
    /// When it last forgot everything.
    restarted: Option<Instant>,
    /// When each name was last taken from its holder by force, if that is to be known.
    taken: Option<NameMap<Instant>>,
    /// At how many names the dead ones are swept out next; doubles, so that a grant costs O(1).
    sweep_at: usize,
}

#[derive(Debug)]
struct Entry {
    holder: HolderId,
    count: u32,
    /// The first of the fencing tokens reserved at the grant.
    fence: Option<u64>,
    expires: Instant,
    /// The description of the holder, and until when it is kept.
    metadata: Option<(Box<Metadata>, Instant)>,
    /// The mark that has taken the place of the holder, and when.
    closed: Option<(Mark, Instant)>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// Creates an empty store on tokio's clock.
    #[must_use]
    pub fn new() -> Self {
        let clock = Clock::tokio();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = whole_micros(since_1970).saturating_sub(micros(clock.now()));
        let state = State { epoch, ..State::default() };
        Self { clock, state: Arc::new(Mutex::new(state)) }
    }

    /// Creates an empty store whose fencing tokens begin at zero, so that a test can be repeated. It knows which names were
    /// taken by force.
    #[cfg(feature = "testing")]
    pub(crate) fn at_origin() -> Self {
        let state = State { taken: Some(NameMap::default()), ..State::default() };
        Self { clock: Clock::tokio(), state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the time since a name was last stolen, or released by force.
    #[cfg(feature = "testing")]
    pub(crate) fn taken_ago(&self, name: &str) -> Option<Duration> {
        let now = self.clock.now();
        let name = Name::new(name).ok()?;
        let at = self.lock().taken.as_ref()?.get(&name).copied()?;
        Some(now.saturating_duration_since(at))
    }

    /// Deletes what one holder has under `name`, and wakes no waiter. Returns whether it had it.
    #[cfg(feature = "testing")]
    pub(crate) fn forget(&self, name: &Name, holder: HolderId) -> bool {
        let now = self.clock.now();
        let mut state = self.lock();
        if state.own(name, holder, now).is_ok() {
            return state.holds.remove(name).is_some();
        }
        state.shared(name, now).is_some_and(|shared| shared.forget(holder))
    }

    /// Deletes what is under `name`, as an operator's `DEL` would, and wakes no waiter. Returns whether there was a hold.
    ///
    /// For tests of what happens when a lease is lost.
    pub fn delete(&self, name: &str) -> bool {
        let now = self.clock.now();
        let mut state = self.lock();
        state.holds.retain(|_, entry| entry.expires > now);
        Name::new(name).is_ok_and(|name| {
            let shared = state.shared.remove(&name).is_some_and(|shared| shared.len(now) > 0);
            state.holds.remove(&name).is_some() || shared
        })
    }

    /// Forgets everything, as a server without persistence does when it restarts, and wakes no waiter.
    ///
    /// For tests of a [`Quorum`](super::Quorum), which does not count it then for a time to live.
    pub fn restart(&self) {
        let now = self.clock.now();
        let mut state = self.lock();
        state.holds.clear();
        state.shared.clear();
        state.lines.clear();
        state.notes.clear();
        state.managers.clear();
        let forgotten = state.fences.drain().map(|(_, last)| last).max();
        state.forgotten = state.forgotten.max(forgotten.unwrap_or_default());
        state.restarted = Some(now);
    }

    /// Returns the number of holds that have not expired.
    pub fn len(&self) -> usize {
        let now = self.clock.now();
        let state = self.lock();
        let shared: usize = state.shared.values().map(|shared| shared.len(now)).sum();
        state.holds.values().filter(|entry| entry.expires > now).count() + shared
    }

    /// Returns whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Runs an operation at one instant.
    fn at_once<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut State, Instant) -> Result<T>,
    ) -> StoreFuture<T> {
        let now = self.clock.now();
        let (result, waiters) = {
            let mut state = self.lock();
            (operation(&mut state, now), std::mem::take(&mut state.to_wake))
        };
        waiters.iter().for_each(Signal::set);
        Box::pin(std::future::ready(result))
    }
}

impl State {
    /// Records that a name is taken from its holder by force.
    fn takes(&mut self, name: &Name, now: Instant) {
        if let Some(taken) = &mut self.taken {
            taken.insert(name.clone(), now);
        }
    }

    /// Returns the live entry of a name.
    fn entry(&mut self, name: &Name, now: Instant) -> Option<&mut Entry> {
        self.holds.get_mut(name).filter(|entry| entry.expires > now)
    }

    fn own(&mut self, name: &Name, holder: HolderId, now: Instant) -> Result<&mut Entry, Absence> {
        match self.entry(name, now) {
            None => Err(Absence::Gone),
            Some(entry) if entry.holder != holder || entry.closed.is_some() => Err(Absence::Taken),
            Some(entry) => Ok(entry),
        }
    }

    /// Returns a name that several holders share, if it is in use.
    fn shared(&mut self, name: &Name, now: Instant) -> Option<&mut Shared> {
        if self.shared.is_empty() {
            return None;
        }
        if self.shared.get_mut(name).is_some_and(|shared| !shared.is_live(now)) {
            self.shared.remove(name);
        }
        self.shared.get_mut(name)
    }

    /// Refuses a name that is in use as another kind. Returns it if several holders share it.
    fn shared_as(&mut self, name: &Name, kind: Kind, now: Instant) -> Result<Option<&mut Shared>> {
        if kind != Kind::Lock && self.entry(name, now).is_some() {
            return Err(Kind::Lock.wrong_type());
        }
        match self.shared(name, now) {
            Some(shared) if shared.kind != kind => Err(shared.kind.wrong_type()),
            shared => Ok(shared),
        }
    }

    fn acquire(&mut self, request: &Acquire, now: Instant) -> Result<Acquired> {
        let name = &request.target.name;
        let mode = request.target.mode;
        self.shared_as(name, mode.kind(), now)?;
        match mode {
            Mode::Exclusive => match request.arrival {
                Some(arrival) => Ok(line::acquire_in_line(self, request, arrival, now)),
                None => Ok(self.acquire_exclusive(request, now)),
            },
            Mode::Read | Mode::Write | Mode::Permits { .. } => {
                self.sweep(now);
                let shared = self.shared.remove(name);
                let mut shared = shared.unwrap_or_else(|| Shared::new(mode.kind()));
                let outcome =
                    shared.acquire(request, now, |fencing| self.fence(name, fencing, now));
                self.shared.insert(name.clone(), shared);
                let outcome = outcome?;
                if outcome.wakes {
                    wake::wake(self, name, None);
                }
                Ok(outcome.verdict)
            }
        }
    }

    /// Grants all or none.
    fn acquire_all(&mut self, requests: &[Acquire], now: Instant) -> SetVerdicts {
        let refusals: Vec<_> = requests.iter().map(|one| self.refusal(one, now)).collect();
        if refusals.iter().any(|refusal| !matches!(refusal, Ok(None))) {
            return refusals;
        }
        requests.iter().map(|request| self.acquire(request, now).map(Some)).collect()
    }

    /// Returns the verdict on a name that cannot be granted.
    fn refusal(&mut self, request: &Acquire, now: Instant) -> Result<Option<Acquired>> {
        let name = &request.plain_name()?;
        self.shared_as(name, request.target.mode.kind(), now)?;
        match self.own(name, request.holder, now) {
            Ok(_) | Err(Absence::Gone) => Ok(None),
            Err(_) => Ok(Some(self.held(name, now))),
        }
    }

    fn acquire_exclusive(&mut self, request: &Acquire, now: Instant) -> Acquired {
        let expires = now + request.ttl;
        let name = &request.target.name;
        match self.own(name, request.holder, now) {
            Ok(entry) => {
                entry.expires = expires;
                let fence = entry.fence;
                Acquired::granted(now, self.proposal(request, now).or(fence))
            }
            Err(Absence::Taken | Absence::Stolen | Absence::Forced) => self.held(name, now),
            Err(Absence::Gone) => {
                self.sweep(now);
                let fence = request.fencing.map(|fencing| self.fence(name, fencing, now));
                let holder = request.holder;
                self.holds.insert(
                    name.clone(),
                    Entry { holder, count: 1, fence, expires, metadata: None, closed: None },
                );
                Acquired::granted(now, fence)
            }
        }
    }

    fn held(&mut self, name: &Name, now: Instant) -> Acquired {
        let holder = self.entry(name, now);
        let closed = holder.as_ref().and_then(|entry| entry.closed).map(|(mark, _)| mark);
        let lingers =
            closed.is_none() && holder.as_ref().is_some_and(|entry| entry.holder.lingers());
        Acquired::held(holder.map(|entry| entry.expires.saturating_duration_since(now)))
            .with_closed(closed)
            .with_lingering(lingers)
    }

    /// Returns the microseconds since 1970.
    fn time(&self, now: Instant) -> u64 {
        self.epoch + micros(now)
    }

    /// Reserves a block of fencing tokens, or proposes one, and returns the first.
    fn fence(&mut self, name: &Name, fencing: Fencing, now: Instant) -> u64 {
        let time = self.time(now);
        // Microseconds, as on a server: they grow even when the memory of the last is gone.
        let first = (self.last_fence(name) + 1).max(time);
        if !fencing.is_proposal() {
            self.fences.insert(name.clone(), first + u64::from(fencing.block) - 1);
        }
        first
    }

    /// Returns a proposal for a holder that has the name already, if it asks for one.
    fn proposal(&mut self, request: &Acquire, now: Instant) -> Option<u64> {
        let fencing = request.fencing.filter(Fencing::is_proposal)?;
        Some(self.fence(&request.target.name, fencing, now))
    }

    /// Returns the last fencing token of a name that is known.
    fn last_fence(&self, name: &Name) -> u64 {
        self.fences.get(name).copied().unwrap_or(self.forgotten)
    }

    fn sweep(&mut self, now: Instant) {
        let names = self.names();
        if names < self.sweep_at.max(1024) {
            return;
        }
        self.holds.retain(|_, entry| entry.expires > now);
        self.shared.retain(|_, shared| shared.is_live(now));
        self.lines.retain(|_, line| line.is_live(now));
        self.notes.retain(|_, note| note.is_live(now));
        // However long they are to be kept: from then on the clock does as well.
        let time = self.time(now);
        self.fences.retain(|_, last| *last >= time);
        self.sweep_at = 2 * self.names();
    }

    fn names(&self) -> usize {
        self.holds.len()
            + self.shared.len()
            + self.lines.len()
            + self.fences.len()
            + self.notes.len()
    }
}

fn micros(now: Instant) -> u64 {
    now.to_nanos() / 1000
}

fn whole_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::store::{Release, Released, Store, Target, Wait};
    use uuid::Uuid;

    const TTL: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn take(state: &mut State, name: &str, now: Instant) -> u64 {
        let target = Target::exclusive(Name::new(name).unwrap());
        let request = Acquire::new(target, HolderId::new(Uuid::from_u128(1), 1), TTL, TTL)
            .with_fencing(Some(Fencing::new(10, Some(TTL * 2))));
        match state.acquire(&request, now).unwrap() {
            Acquired::Granted { fence, .. } => fence.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn acquire_many(state: &mut State, names: std::ops::Range<usize>, now: Instant) {
        for i in names {
            take(state, &format!("n:{i}"), now);
        }
    }

    #[test]
    fn fencing_tokens_grow_by_blocks_and_with_the_time() {
        let mut state = State::default();
        assert_eq!(take(&mut state, "n", at(1000)), 1_000_000, "microseconds of the clock");
        state.holds.clear();
        assert_eq!(take(&mut state, "n", at(1000)), 1_000_010, "after the block");
        state.holds.clear();
        assert_eq!(take(&mut state, "n", at(2000)), 2_000_000);
    }

    #[tokio::test]
    async fn fences_are_larger_than_those_of_a_process_before() {
        let since_1970 = || UNIX_EPOCH.elapsed().expect("a time after 1970");
        let before = whole_micros(since_1970());
        let store = MemoryStore::new();
        let now = store.clock.now();
        let fence = take(&mut store.lock(), "n", now);
        assert!((before..=whole_micros(since_1970())).contains(&fence), "{before} {fence}");
    }

    #[test]
    fn fences_ahead_of_the_clock_grow_when_swept_or_forgotten_too() {
        let mut state = State::default();
        let mut last = 0;
        for _ in 0..100_000 {
            state.holds.clear();
            last = take(&mut state, "n", at(0));
        }
        assert_eq!(last, 999_991, "a second ahead");
        // Later than what is to be kept of it.
        acquire_many(&mut state, 0..2_000, at(990));
        state.holds.clear();
        assert_eq!(take(&mut state, "n", at(990)), 1_000_001);
        let store = MemoryStore { clock: Clock::tokio(), state: Arc::new(Mutex::new(state)) };
        store.restart();
        let after = take(&mut store.lock(), "n", at(991));
        assert_eq!(after, 1_000_011);
    }

    #[test]
    fn dead_entries_are_swept_out_each_time_they_double() {
        let count = |state: &State| (state.holds.len(), state.fences.len());
        let mut state = State::default();
        acquire_many(&mut state, 0..100, at(0));
        acquire_many(&mut state, 100..101, at(9_000));
        assert_eq!(count(&state), (101, 101), "few dead ones may stay");

        let mut state = State::default();
        acquire_many(&mut state, 0..513, at(0));
        assert_eq!(count(&state), (513, 513), "none of them is dead");
        acquire_many(&mut state, 513..520, at(1_500));
        assert_eq!(count(&state), (520, 520), "not before there are twice as many");
        acquire_many(&mut state, 520..1_024, at(1_500));
        assert_eq!(count(&state), (1_024, 1_024));
        acquire_many(&mut state, 1_024..1_025, at(1_500));
        // Those of 0 are dead; a fencing token is remembered until the clock has passed it.
        assert_eq!(count(&state), (512, 512));
        acquire_many(&mut state, 1_025..1_535, at(2_500));
        assert_eq!(count(&state), (1_022, 1_022), "not before there are twice as many");
        acquire_many(&mut state, 1_535..1_536, at(3_500));
        // What was to live until 3.5 s is dead at 3.5 s.
        assert_eq!(count(&state), (1, 1));
    }

    #[test]
    fn inbox_goes_with_its_manager_and_a_newer_one_stays() {
        let store = MemoryStore::new();
        let inboxes = || store.lock().inboxes.len();
        let manager = Uuid::from_u128(1);
        let first = store.inbox(manager);
        let second = store.inbox(manager);
        let other = store.inbox(Uuid::from_u128(2));
        assert_eq!(inboxes(), 2);
        drop(first);
        assert_eq!(inboxes(), 2);
        drop((second, other));
        assert_eq!(inboxes(), 0);
    }

    /// Several managers may be on one store, also without a clone of it.
    #[tokio::test(start_paused = true)]
    async fn release_counts_whoever_listens_on_the_same_store() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let target = Target::exclusive(Name::new("n").unwrap());
        let wait = Wait::new(target.clone(), None, TTL);
        let _wakeups = store.subscribe(wait).await.unwrap().unwrap();
        let holder = HolderId::new(Uuid::from_u128(1), 1);
        let acquire = Acquire::new(target.clone(), holder, TTL, TTL);
        assert!(matches!(store.acquire(acquire).await, Ok(Acquired::Granted { .. })));
        let released = store.release(Release::new(target, holder, 0, TTL)).await;
        assert_eq!(released.unwrap(), Released::done(1));
    }

    #[tokio::test(start_paused = true)]
    async fn hold_ends_with_its_time_to_live_for_whoever_looks() {
        let store = MemoryStore::new();
        assert!(store.is_empty());
        let now = store.clock.now();
        take(&mut store.lock(), "n", now);
        assert!(!store.is_empty());
        tokio::time::advance(TTL - Duration::from_millis(1)).await;
        assert_eq!(store.len(), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!store.delete("n"), "it is gone already");
        let now = store.clock.now();
        take(&mut store.lock(), "n", now);
        tokio::time::advance(TTL).await;
        assert_eq!(store.len(), 0);
        let now = store.clock.now();
        take(&mut store.lock(), "n", now);
        assert!(store.delete("n"));
        assert!(store.is_empty());
    }
}
