//! Sends the requests for a name to a node one at a time, and records the holder ids that this process may have left there.
//!
//! Readers share a name, so each holder of a read-write lock has a queue of its own: readers of one process ask side by
//! side. Were they in one queue, of which each waits for its decision at the head, two of them could wait for each other at
//! two nodes.

use super::admission::{Admission, Permit};
use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::contract::mode::Kind;
use crate::store::quorum::node_modes::either;
use crate::store::{
    Acquire, Acquired, HolderId, Keep, Mode, Name, Release, Released, Store, StoreFuture, Target,
};
use crate::util::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::timeout;

/// The queues of requests to a node, by name.
pub(in crate::store::quorum) struct NameQueues {
    store: Arc<dyn Store>,
    clock: Clock,
    admission: Arc<Admission>,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    by_name: HashMap<Name, HashMap<Lane, Queue>>,
    /// Whether a request has left a holder id to be swept.
    left: bool,
    /// Whether a task sweeps.
    swept: bool,
}

type Queue = Arc<AsyncMutex<Vec<Orphan>>>;

/// A queue among those of a name: of one holder of a read-write lock, or `None` for all of an exclusive lock.
pub(super) type Lane = Option<HolderId>;

fn lane(mode: Mode, holder: HolderId) -> Lane {
    // A holder may change its mode, and each of its attempts may be left.
    (mode.kind() == Kind::ReadWrite).then(|| holder.in_attempt(0).at_node(0))
}

/// A holder id of this process that may be at the node without a hold that relies on it.
pub(in crate::store::quorum) struct Orphan {
    holder: HolderId,
    mode: Mode,
    /// The number of acquires without an answer. Each may still run.
    unanswered: u32,
    /// Whether it must be released. The holder id of a living hold must not, though an acquire of it may still run.
    pub(in crate::store::quorum) owed: bool,
    /// When it has surely expired, unless an acquire without an answer runs later than that.
    until: Instant,
    /// The time to live of the last acquire.
    ttl: Duration,
    /// Keeps the acquire open.
    permit: Option<Permit>,
    /// The mark that its release leaves.
    keep: Option<Keep>,
}

/// Returns whether some of them must be released and exclude a mode.
fn exclude(orphans: &[Orphan], mode: Mode) -> bool {
    let shares = |other: Mode| (mode, other) == (Mode::Read, Mode::Read);
    orphans.iter().any(|orphan| orphan.owed && !shares(orphan.mode))
}

impl Orphan {
    /// Returns whether it may still be at the node. A node that is silent may run an acquire when it answers again.
    fn remains(&mut self, now: Instant, is_silent: bool) -> bool {
        if is_silent && self.unanswered > 0 {
            self.until = self.until.max(now + self.ttl);
        }
        self.until > now
    }
}

/// Bounds the time of a call. Returns a call that has not answered in time as well, for its late answer.
pub(in crate::store::quorum) async fn bounded<T>(
    limit: Duration,
    mut call: StoreFuture<T>,
) -> (Result<T>, Option<StoreFuture<T>>) {
    match timeout(limit, &mut call).await {
        Ok(verdict) => (verdict, None),
        Err(_) => (Err(timed_out()), Some(call)),
    }
}

pub(in crate::store::quorum) fn timed_out() -> Error {
    Error::new(ErrorKind::Unavailable, "no answer in time")
}

impl NameQueues {
    pub(in crate::store::quorum) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        admission: Arc<Admission>,
    ) -> Self {
        Self { store, clock, admission, queues: Mutex::default() }
    }

    /// Waits until no other request for the name is under way; of a read-write lock, no other of this holder.
    pub(in crate::store::quorum) async fn head(
        self: &Arc<Self>,
        target: &Target,
        holder: HolderId,
    ) -> QueueHead {
        self.head_of(&target.name, lane(target.mode, holder)).await
    }

    pub(super) async fn head_of(self: &Arc<Self>, name: &Name, lane: Lane) -> QueueHead {
        let queue = {
            let mut queues = self.lock();
            let lanes = queues.by_name.entry(name.clone()).or_default();
            Arc::clone(lanes.entry(lane).or_default())
        };
        let queue = Some(queue.lock_owned().await);
        QueueHead { queues: Arc::clone(self), name: name.clone(), lane, queue }
    }

    /// Releases what other holders of this process have left under the name and what excludes the mode of `target`. Returns
    /// whether some of it is still unconfirmed.
    ///
    /// It waits for no request of theirs: that may wait for this one at another node.
    pub(super) async fn flush_others(
        self: &Arc<Self>,
        target: &Target,
        holder: HolderId,
        limit: Duration,
    ) -> bool {
        let own = lane(target.mode, holder);
        let left_by = |lane: &Lane, queue: &Queue| {
            let idle = (*lane != own).then(|| queue.try_lock().ok()).flatten();
            idle.is_some_and(|orphans| exclude(&orphans, target.mode))
        };
        let others: Vec<Lane> = {
            let queues = self.lock();
            let lanes = queues.by_name.get(&target.name).into_iter().flatten();
            lanes.filter(|(lane, queue)| left_by(lane, queue)).map(|(lane, _)| *lane).collect()
        };
        let mut left = false;
        for lane in others {
            let Some(mut head) = self.idle_head(&target.name, lane) else { continue };
            head.flush(limit).await;
            left |= exclude(head.orphans(), target.mode);
        }
        left
    }

    /// Returns the head of a queue in which nothing is under way.
    fn idle_head(self: &Arc<Self>, name: &Name, lane: Lane) -> Option<QueueHead> {
        let queues = self.lock();
        let queue = Arc::clone(queues.by_name.get(name)?.get(&lane)?);
        let queue = Some(queue.try_lock_owned().ok()?);
        Some(QueueHead { queues: Arc::clone(self), name: name.clone(), lane, queue })
    }

    /// Begins to sweep, unless a task does already or nothing is left.
    pub(in crate::store::quorum) fn begin_sweep(self: &Arc<Self>) -> Option<Sweeping> {
        let mut queues = self.lock();
        if queues.swept || !queues.left {
            return None;
        }
        queues.swept = true;
        Some(Sweeping { queues: Arc::clone(self), over: false })
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock()
    }
}

/// Held by the task that sweeps. When it is dropped, another may begin.
pub(in crate::store::quorum) struct Sweeping {
    queues: Arc<NameQueues>,
    over: bool,
}

impl Sweeping {
    /// Ends if nothing is left but what requests under way have, which begin again when they end.
    pub(in crate::store::quorum) fn is_over(&mut self) -> bool {
        let mut queues = self.queues.lock();
        let left = |queue: &Queue| queue.try_lock().is_ok_and(|orphans| !orphans.is_empty());
        self.over = !queues.by_name.values().flat_map(HashMap::values).any(left);
        if self.over {
            (queues.left, queues.swept) = (false, false);
        }
        self.over
    }

    /// Forgets the holder ids that have expired. Returns the queues of those that must be released and have no request
    /// under way.
    pub(super) fn owed(&self, limit: Duration) -> Vec<(Name, Lane)> {
        let now = self.queues.clock.now();
        let is_silent = self.queues.admission.is_silent(now, limit);
        let mut owed = Vec::new();
        self.queues.lock().by_name.retain(|name, lanes| {
            lanes.retain(|lane, queue| {
                // Each waiting request has a clone.
                let waits = Arc::strong_count(queue) > 1;
                let Ok(mut orphans) = queue.try_lock() else { return true };
                orphans.retain_mut(|orphan| orphan.remains(now, is_silent));
                if orphans.iter().any(|orphan| orphan.owed) {
                    owed.push((name.clone(), *lane));
                }
                waits || !orphans.is_empty()
            });
            !lanes.is_empty()
        });
        owed
    }
}

impl Drop for Sweeping {
    fn drop(&mut self) {
        if !self.over {
            self.queues.lock().swept = false;
        }
    }
}

/// The head of a queue. Its owner alone sends the requests of this queue.
pub(in crate::store::quorum) struct QueueHead {
    queues: Arc<NameQueues>,
    name: Name,
    lane: Lane,
    /// `None` only while it is dropped.
    queue: Option<OwnedMutexGuard<Vec<Orphan>>>,
}

impl Drop for QueueHead {
    fn drop(&mut self) {
        let empty = self.queue.take().is_none_or(|queue| queue.is_empty());
        let mut queues = self.queues.lock();
        // Each waiting request has a clone.
        queues.left |= !empty;
        let Some(lanes) = queues.by_name.get_mut(&self.name) else { return };
        let queue = lanes.get(&self.lane);
        if empty && queue.is_some_and(|queue| Arc::strong_count(queue) == 1) {
            lanes.remove(&self.lane);
            if lanes.is_empty() {
                queues.by_name.remove(&self.name);
            }
        }
    }
}

impl QueueHead {
    fn orphans(&mut self) -> &mut Vec<Orphan> {
        match &mut self.queue {
            Some(queue) => queue,
            None => unreachable!("a head has its queue until it is dropped"),
        }
    }

    pub(in crate::store::quorum) fn find(&mut self, holder: HolderId) -> Option<&mut Orphan> {
        self.orphans().iter_mut().find(|orphan| orphan.holder == holder)
    }

    pub(super) fn forget(&mut self, holder: HolderId) {
        self.orphans().retain(|orphan| orphan.holder != holder);
    }

    /// Returns whether a release is still unconfirmed.
    pub(super) fn owes(&mut self) -> bool {
        self.orphans().iter().any(|orphan| orphan.owed)
    }

    /// Records that a holder id must be released; at `until` it has expired.
    pub(super) fn owe(&mut self, holder: HolderId, mode: Mode, until: Instant) {
        match self.find(holder) {
            Some(orphan) => {
                (orphan.owed, orphan.mode) = (true, mode);
                orphan.until = orphan.until.max(until);
            }
            None => self.orphans().push(Orphan {
                holder,
                mode,
                unanswered: 0,
                owed: true,
                until,
                ttl: Duration::ZERO,
                permit: None,
                keep: None,
            }),
        }
    }

    /// Sets the mark that the release of a holder id leaves.
    pub(in crate::store::quorum) fn mark(&mut self, holder: HolderId, keep: Option<Keep>) {
        if let Some(orphan) = self.find(holder) {
            orphan.keep = keep;
        }
    }

    /// Records that the holder ids of all attempts of a hold must be released.
    pub(super) fn owe_all(&mut self, holder: HolderId) {
        for orphan in self.orphans() {
            orphan.owed |= orphan.holder.in_attempt(0) == holder.in_attempt(0);
        }
    }

    /// Records that an acquire is about to be sent. Its holder id must be released unless it is [kept](Self::keep).
    pub(super) fn sending(&mut self, request: &Acquire, sent: Instant) {
        let Acquire { holder, ttl, .. } = *request;
        self.owe(holder, request.target.mode, sent + ttl);
        if let Some(orphan) = self.find(holder) {
            orphan.unanswered += 1;
            orphan.ttl = ttl;
        }
    }

    /// Keeps an acquire that was [sent](Self::sending) open until its holder id is forgotten.
    pub(super) fn keep_open(&mut self, holder: HolderId, permit: Permit) {
        if let Some(orphan) = self.find(holder) {
            orphan.permit = Some(permit);
        }
    }

    /// Acquires a name as [`bounded`] does.
    pub(in crate::store::quorum) async fn acquire(
        &self,
        request: &Acquire,
    ) -> (Result<Acquired>, Option<StoreFuture<Acquired>>) {
        let NameQueues { store, clock, admission, .. } = &*self.queues;
        admission.sent(clock.now());
        let (verdict, late) = bounded(request.timeout, store.acquire(request.clone())).await;
        admission.answered(&verdict);
        (verdict, late)
    }

    /// Records the answer to an acquire.
    pub(super) fn answered(&mut self, holder: HolderId, verdict: &Result<Acquired>) {
        let Some(orphan) = self.find(holder) else { return };
        match verdict {
            Err(error) if error.fate() != Fate::NotExecuted => return,
            _ => orphan.unanswered = orphan.unanswered.saturating_sub(1),
        }
        if orphan.unanswered == 0 && !matches!(verdict, Ok(Acquired::Granted { .. })) {
            self.forget(holder);
        }
    }

    /// Records that a living hold relies on the holder id.
    pub(super) fn keep(&mut self, holder: HolderId) {
        if let Some(orphan) = self.find(holder) {
            orphan.owed = false;
            if orphan.unanswered == 0 {
                self.forget(holder);
            }
        }
    }

    /// Releases a holder id once. It stays an orphan if it may still be at the node, or arrive there later.
    pub(in crate::store::quorum) async fn release(
        &mut self,
        holder: HolderId,
        mode: Mode,
        limit: Duration,
    ) -> Result<Released> {
        let target = Target::new(self.name.clone(), either(mode));
        let keep = self.find(holder).and_then(|orphan| orphan.keep);
        let request = Release::new(target, holder, 0, limit).with_keep(keep);
        let NameQueues { store, clock, admission, .. } = &*self.queues;
        admission.sent(clock.now());
        let verdict = bounded(limit, store.release(request)).await.0;
        admission.answered(&verdict);
        let unanswered = self.find(holder).map_or(0, |orphan| orphan.unanswered);
        let over = match &verdict {
            // With several acquires in flight, it is unknown which of them the release undid.
            Ok(Released::Done { .. }) => unanswered <= 1,
            Ok(Released::NotYours(_)) => unanswered == 0,
            Err(_) => false,
        };
        if over {
            self.forget(holder);
        }
        verdict
    }

    /// Releases all holder ids that must be released, before the name is acquired again. Returns whether the node answered.
    pub(super) async fn flush(&mut self, limit: Duration) -> bool {
        let now = self.queues.clock.now();
        let is_silent = self.queues.admission.is_silent(now, limit);
        self.orphans().retain_mut(|orphan| orphan.remains(now, is_silent));
        let owed = self.orphans().iter().filter(|left| left.owed);
        let owed: Vec<(HolderId, Mode)> = owed.map(|left| (left.holder, left.mode)).collect();
        let mut answered = true;
        for (holder, mode) in owed {
            let verdict = self.release(holder, mode, limit).await;
            answered &= !verdict.is_err_and(|error| error.is_unavailable());
        }
        answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Inspect, MemoryStore};
    use uuid::Uuid;

    const T: Duration = Duration::from_secs(30);

    fn queues() -> (Arc<NameQueues>, Target) {
        let store = Arc::new(MemoryStore::new());
        let clock = store.clock();
        let queues = NameQueues::new(store, clock, Arc::default());
        (Arc::new(queues), Target::exclusive(Name::new("job").unwrap()))
    }

    /// Polls once.
    async fn waits<T>(future: impl Future<Output = T>) -> bool {
        timeout(Duration::ZERO, future).await.is_err()
    }

    fn holder(number: u64) -> HolderId {
        HolderId::new(Uuid::from_u128(7), number)
    }

    fn ask(holder: HolderId) -> Acquire {
        Acquire::new(Target::exclusive(Name::new("job").unwrap()), holder, T, T)
    }

    fn error(fate: Fate) -> Result<Acquired> {
        Err(Error::new(ErrorKind::Unavailable, "out of order").with_fate(fate))
    }

    fn granted(clock: &Clock) -> Result<Acquired> {
        Ok(Acquired::granted(clock.now(), None))
    }

    async fn take(queues: &NameQueues, target: &Target, holder: HolderId) {
        let request = Acquire::new(target.clone(), holder, T, T);
        assert!(matches!(queues.store.acquire(request).await, Ok(Acquired::Granted { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_at_a_time_and_empty_queues_are_dropped() {
        let (queues, job) = queues();
        let first = queues.head(&job, holder(1)).await;
        let mut second = Box::pin(queues.head(&job, holder(1)));
        assert!(waits(&mut second).await);
        drop(first);
        assert_eq!(queues.lock().by_name.len(), 1, "a request is in it");
        let mut second = second.await;
        let mut third = Box::pin(queues.head(&job, holder(1)));
        assert!(waits(&mut third).await, "two requests at once");
        second.owe(holder(1), Mode::Exclusive, queues.clock.now() + T);
        drop(second);
        let mut third = third.await;
        assert!(third.owes());
        drop(third);
        assert_eq!(queues.lock().by_name.len(), 1, "something is owed");
        let mut last = queues.head(&job, holder(1)).await;
        last.forget(holder(1));
        assert!(!last.owes());
        drop(last);
        assert!(queues.lock().by_name.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn hold_that_may_be_at_the_node_is_owed_until_one_keeps_it() {
        let (queues, job) = queues();
        let now = queues.clock.now();
        let mut head = queues.head(&job, holder(1)).await;
        let held = Ok(Acquired::held(None));
        for answer in [error(Fate::NotExecuted), held] {
            head.sending(&ask(holder(1)), now);
            head.answered(holder(1), &answer);
            assert!(head.find(holder(1)).is_none(), "{answer:?}: nothing is there");
        }
        for answer in [error(Fate::Unknown), granted(&queues.clock)] {
            head.sending(&ask(holder(1)), now);
            head.answered(holder(1), &answer);
            assert!(head.owes(), "{answer:?}: it is there, perhaps");
            head.keep(holder(1));
            assert!(!head.owes());
            // An acquire without an answer may still run, even after a release.
            assert_eq!(head.find(holder(1)).is_some(), answer.is_err(), "{answer:?}");
            head.forget(holder(1));
        }
        // An answer to the second of two leaves the first.
        head.sending(&ask(holder(1)), now);
        head.sending(&ask(holder(1)), now);
        head.answered(holder(1), &error(Fate::NotExecuted));
        assert!(head.find(holder(1)).is_some());
        head.answered(holder(1), &error(Fate::NotExecuted));
        assert!(head.find(holder(1)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn all_attempts_of_one_hold_are_owed_together() {
        let (queues, job) = queues();
        let now = queues.clock.now();
        let until = now + T;
        let mut head = queues.head(&job, holder(1)).await;
        for kept in [holder(1), holder(1).in_attempt(1), holder(2)] {
            head.sending(&ask(kept), now);
            head.answered(kept, &error(Fate::Unknown));
            head.keep(kept);
        }
        head.owe(holder(3), Mode::Exclusive, until);
        head.owe_all(holder(1).in_attempt(2));
        let mut owed = |holder| head.find(holder).unwrap().owed;
        assert_eq!([1, 2, 3].map(|number| owed(holder(number))), [true, false, true]);
        assert!(owed(holder(1).in_attempt(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_release_undoes_one_acquire() {
        let (queues, job) = queues();
        let now = queues.clock.now();
        let until = now + T;
        for (sent, there, over) in [
            (0, true, true),
            (0, false, true),
            (1, true, true),
            (1, false, false),
            (2, true, false),
            (2, false, false),
        ] {
            let mut head = queues.head(&job, holder(1)).await;
            head.owe(holder(1), Mode::Exclusive, until);
            for _ in 0..sent {
                head.sending(&ask(holder(1)), now);
            }
            if there {
                take(&queues, &job, holder(1)).await;
            }
            let released = head.release(holder(1), Mode::Exclusive, T).await;
            assert_eq!(matches!(released, Ok(Released::Done { .. })), there, "{released:?}");
            assert_eq!(head.find(holder(1)).is_none(), over, "{sent} sent, there: {there}");
            head.forget(holder(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn owed_release_is_done_or_expired_before_the_next_acquire() {
        let (queues, job) = queues();
        let now = queues.clock.now();
        let mut head = queues.head(&job, holder(1)).await;
        take(&queues, &job, holder(1)).await;
        head.owe(holder(1), Mode::Exclusive, now + T);
        head.sending(&ask(holder(2)), now);
        head.sending(&Acquire { ttl: Duration::ZERO, ..ask(holder(3)) }, now);
        head.flush(T).await;
        assert!(queues.store.inspect(Inspect::new(job, T)).await.unwrap().holders.is_empty());
        assert!(head.find(holder(1)).is_none() && head.find(holder(3)).is_none());
        assert!(head.find(holder(2)).is_some(), "it may still come");
    }

    #[tokio::test(start_paused = true)]
    async fn one_task_sweeps_what_requests_have_left() {
        let (queues, job) = queues();
        let now = queues.clock.now();
        let until = now + T;
        drop(queues.head(&job, holder(1)).await);
        assert!(queues.begin_sweep().is_none(), "nothing is left");
        let mut head = queues.head(&job, holder(1)).await;
        head.owe(holder(1), Mode::Exclusive, until);
        assert!(queues.begin_sweep().is_none(), "the request is under way");
        drop(head);
        let mut sweeping = queues.begin_sweep().unwrap();
        assert!(queues.begin_sweep().is_none(), "one does");
        assert_eq!(sweeping.owed(T), [(job.name.clone(), None)]);
        drop(sweeping);
        sweeping = queues.begin_sweep().expect("its runtime has ended");
        let mut head = queues.head(&job, holder(1)).await;
        assert_eq!(sweeping.owed(T), [], "a request for it is under way");
        head.keep(holder(1));
        head.sending(&ask(holder(2)), now);
        head.keep(holder(2));
        drop(head);
        assert_eq!(sweeping.owed(T), [], "a hold relies on it");
        assert!(!sweeping.is_over(), "it may still arrive");
        tokio::time::advance(T).await;
        assert_eq!(sweeping.owed(T), []);
        assert!(sweeping.is_over() && queues.lock().by_name.is_empty(), "it has expired");
        drop(sweeping);
        assert!(queues.begin_sweep().is_none());
    }

    fn shared(mode: Mode) -> Target {
        Target::new(Name::new("job").unwrap(), mode)
    }

    #[tokio::test(start_paused = true)]
    async fn holders_of_a_read_write_lock_do_not_wait_for_each_other() {
        let (queues, _) = queues();
        let one = queues.head(&shared(Mode::Read), holder(1)).await;
        let other = timeout(Duration::ZERO, queues.head(&shared(Mode::Write), holder(2))).await;
        let other = other.expect("another holder");
        // In either mode, at any node and in any attempt, a holder is the same.
        for same in [holder(1), holder(1).in_attempt(3), holder(1).at_node(2)] {
            for mode in [Mode::Read, Mode::Write] {
                assert!(waits(queues.head(&shared(mode), same)).await, "{same:?}");
            }
        }
        drop((one, other));
        assert!(queues.lock().by_name.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn leftovers_of_others_are_released_unless_the_mode_shares() {
        let (queues, _) = queues();
        let until = queues.clock.now() + T;
        let read = shared(Mode::Read);
        for (left, asked, released) in [
            (Mode::Read, Mode::Read, false),
            (Mode::Read, Mode::Write, true),
            (Mode::Write, Mode::Read, true),
            (Mode::Write, Mode::Write, true),
        ] {
            take(&queues, &shared(left), holder(1)).await;
            let mut head = queues.head(&read, holder(1)).await;
            head.owe(holder(1), left, until);
            let target = shared(asked);
            let flush = || queues.flush_others(&target, holder(2), T);
            assert!(!flush().await, "a request is under way there");
            drop(head);
            assert!(!flush().await);
            let mut head = queues.head(&read, holder(1)).await;
            assert_eq!(head.find(holder(1)).is_none(), released, "{left:?}, then {asked:?}");
            head.release(holder(1), left, T).await.unwrap();
        }
    }
}
