//! The queue of local waiters. Each name has a FIFO queue, so that only a waiter that may be
//! granted the name asks the store.
//!
//! # Invariants
//!
//! 1. A name has an entry exactly as long as it has a turn, an offered turn or a seat.
//! 2. [`Members::may_ask`](super::members::Members::may_ask) alone decides which waiter asks next. The
//!    end of a turn or seat admits the waiters that it blocked, in FIFO order. A turn that was
//!    reclaimed ends without effect.
//! 3. Nothing is dropped, woken or sent while the map is locked.
//! 4. No waiter waits for a future that is not polled. Each turn sets the time of its next step.
//!    After that time, any waiter that checks in reclaims the turn, and passes over waiters that
//!    have not checked in lately.
//! 5. A waiter keeps its place until it has a hold. While it does not check in, it is out of the
//!    queue; at its next check-in it is back at its place.

use super::handed_off::{HandedOff, Wake, wake_waiter};
use super::heirs::Heirs;
use super::members::{Member, Stage};
use super::name::{Cohort, Delivery, NameEntry, Removed, Silence, Times};
use super::offers::Offer;
use super::pause::{Heard, Pauses};
use super::timing::Timing;
use crate::clock::{Clock, Instant};
use crate::engine::shared::hold::Hold;
use crate::engine::shared::options::Options;
use crate::store::{HolderId, Mode, Name, NameMap};
use crate::util::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

pub(crate) struct Queue {
    state: Mutex<QueueState>,
    pub(in crate::engine) clock: Clock,
    /// The time in which a waiter must take up its offer.
    pub(in crate::engine) attempt: Duration,
    /// A waiter that has not checked in for this long is passed over.
    patience: Duration,
    /// The time for which readers join a read hold.
    joins: Duration,
    /// Set with the first waiter of a fair lock.
    pub(in crate::engine) is_fair: AtomicBool,
}

/// The chain of hand-offs that a hold belongs to.
pub(in crate::engine) struct Chain {
    /// The time of the request that the store granted.
    pub(in crate::engine) began: Instant,
    /// True if it is so short that it costs waiters elsewhere little.
    pub(in crate::engine) is_young: bool,
    /// To whom the hold may be handed off.
    pub(in crate::engine) heirs: Heirs,
    /// The time for which the store keeps the name closed beyond T.
    pub(in crate::engine) delay: Duration,
}

pub(in crate::engine) struct QueueState {
    pub(in crate::engine) names: NameMap<NameEntry>,
    /// The last number drawn for a waiter, a turn or a seat.
    pub(in crate::engine) numbers: u64,
    pub(in crate::engine) pauses: Pauses,
    /// The last time that this process forced a name open, whichever it was: a turn that was reclaimed has no place
    /// where its own name could be remembered.
    pub(in crate::engine) forced: Option<Instant>,
    /// The open places: the holder ids that took them, and the arrival of the first local waiter, until that one asks. See
    /// [`line`](crate::engine::acquire::line).
    pub(in crate::engine) places: NameMap<(HolderId, Instant)>,
}

impl QueueState {
    /// Draws a number.
    pub(in crate::engine) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Admits the waiters that may ask now, and removes an entry without members.
    fn advance(&mut self, name: &Name, times: Times) -> Ended {
        let Some(entry) = self.names.get_mut(name) else { return Ended::default() };
        let (woken, traces) = entry.advance(&mut self.numbers, times);
        let entry = if entry.members.is_empty() { self.names.remove(name) } else { None };
        Ended { woken, _removed: traces, _entry: entry }
    }
}

/// The remains of a turn or a seat that ended: waiters to wake, and members to drop with no lock
/// held.
#[derive(Default)]
pub(in crate::engine) struct Ended {
    pub(in crate::engine) woken: Vec<Wake>,
    _removed: Removed,
    _entry: Option<NameEntry>,
}

impl Ended {
    /// Returns whether no waiter is to be woken.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.woken.is_empty()
    }

    /// Wakes the waiters. Call it with no lock held.
    pub(in crate::engine) fn wake_all(self) {
        self.woken.into_iter().for_each(|wake| wake_waiter(wake, None));
    }
}

impl Queue {
    pub(crate) fn new(clock: Clock, timing: &Timing) -> Self {
        let (attempt, patience) = (timing.attempt, timing.ttl / 4);
        let (names, pauses) = (NameMap::default(), Pauses::new(timing.ttl));
        let places = NameMap::default();
        let state = Mutex::new(QueueState { names, numbers: 0, pauses, forced: None, places });
        let (joins, is_fair) = (timing.longest_chain, AtomicBool::new(false));
        Self { state, clock, attempt, patience, joins, is_fair }
    }

    /// Records a release in the store. If waiters elsewhere heard it, the next turn pauses before
    /// it asks; `None` means that no waiter elsewhere heard it.
    pub(crate) fn released(&self, name: &Name, now: Instant, heard: Option<Heard>) {
        let mut state = self.lock();
        match heard {
            Some(heard) => state.pauses.begin(name, heard),
            None => state.pauses.unheard(name, now),
        }
    }

    /// Returns the time until which waiters elsewhere go first, if that is to come.
    pub(crate) fn not_before(&self, name: &Name) -> Option<Instant> {
        self.lock().pauses.not_before(name, self.clock.now())
    }

    /// Returns the number of waiters for a name before that of this number.
    pub(in crate::engine) fn ahead(&self, name: &Name, number: Option<u64>) -> usize {
        let state = self.lock();
        let rivals = state.names.get(name).and_then(NameEntry::rivals);
        rivals.map_or(0, |rivals| match number {
            Some(number) => {
                rivals.waiters.iter().take_while(|(ticket, _)| *ticket < number).count()
            }
            None => rivals.waiters.len(),
        })
    }

    /// Returns whether a flow of this process asks or waits for a name.
    pub(crate) fn is_wanted(&self, name: &Name) -> bool {
        let state = self.lock();
        let entry = state.names.get(name);
        entry.is_some_and(|entry| entry.has_waiters() || entry.members.open().next().is_some())
    }

    /// Installs the hold of `next` in the seat of the hold before, and offers it to the first waiter that is polled, if
    /// there is one. While waiters elsewhere listen and the chain of hand-offs is not young any more, only a waiter
    /// that was there when the store granted the name gets the offer.
    pub(in crate::engine) fn hand_off(
        &self,
        (name, seat): (&Name, u64),
        now: Instant,
        chain: &Chain,
        next: impl FnOnce(Options) -> (Arc<Hold>, HandedOff),
    ) -> Option<(Delivery, Arc<Hold>)> {
        let times = self.times(now);
        let mut state = self.lock();
        let QueueState { names, numbers, .. } = &mut *state;
        let entry = names.get_mut(name)?;
        let (recipient, ticket) = entry.recipient(seat, chain.heirs, times)?;
        let rivals = entry.rivals()?;
        if !chain.is_young && rivals.served_at.is_some_and(|last| ticket > last)
            || rivals.shrunk.is_some_and(|shrunk| chain.began <= shrunk)
        {
            return None;
        }
        let options = entry.options_of(&recipient);
        if options.lock_delay() != chain.delay {
            return None;
        }
        let (next, offered) = next(options);
        let delivery = entry.hand_off((seat, recipient), (&next, offered), (numbers, times));
        Some((delivery, next))
    }

    /// Records that the store has made a semaphore smaller, if this process has permits of it. Only the store knows when enough
    /// of them are released, so no hold that it has granted is handed off any more.
    pub(in crate::engine) fn shrunk(&self, name: &Name) {
        let now = self.clock.now();
        if let Some(entry) = self.lock().names.get_mut(name) {
            entry.rivals_or_default().shrunk = Some(now);
        }
    }

    /// Withdraws the offer of `hold` from a waiter that did not accept it in time.
    pub(crate) fn missed(&self, hold: &Arc<Hold>) {
        let mut state = self.lock();
        let Some(rivals) = state.names.get_mut(&hold.name).and_then(NameEntry::rivals_mut) else {
            return;
        };
        let missed = rivals
            .offers
            .take_all(|offer| matches!(offer, Offer::Hold(offered) if offered.is(hold)));
        drop(state);
        drop(missed);
    }

    /// Puts a hold into the seat of this number, by a request that was sent at `sent`. Returns whether the name may have been
    /// forced open or taken after the request.
    pub(crate) fn install(&self, hold: &Arc<Hold>, number: u64, sent: Instant) -> bool {
        let mut state = self.lock();
        let Some(entry) = state.names.get_mut(&hold.name) else { return false };
        let mut forced = false;
        entry.members.change(number, |member| {
            member.stage = Stage::Holding(Some(Arc::clone(hold)));
            forced = member.forced || member.doubted;
        });
        entry.answered(hold.began);
        self.gather(entry, hold.mode, (number, sent));
        // The turn ends with the grant: in a shared mode the next waiters may enter.
        let shares = hold.mode.is_shared() && entry.has_waiters();
        let ended = match shares {
            true => state.advance(&hold.name, self.times(self.clock.now())),
            false => Ended::default(),
        };
        drop(state);
        ended.wake_all();
        forced
    }

    /// Lets other handles join the hold of this seat, granted by a request sent at `sent`, if its mode has that.
    fn gather(&self, entry: &mut NameEntry, mode: Mode, (number, sent): (u64, Instant)) {
        if mode.is_joined() {
            let until = sent + self.joins;
            entry.rivals_or_default().cohort = Some(Cohort { number, until });
        }
    }

    /// Returns the hold that a reader of another handle may join now: the youngest one, if none waits in the queue.
    pub(in crate::engine) fn cohort(&self, name: &Name) -> Option<Arc<Hold>> {
        let state = self.lock();
        state.names.get(name)?.cohort(self.clock.now()).cloned()
    }

    /// Lets no further reader join this hold.
    pub(in crate::engine) fn disband(&self, hold: &Arc<Hold>) {
        let mut state = self.lock();
        let Some(entry) = state.names.get_mut(&hold.name) else { return };
        let cohort = entry.rivals().and_then(|rivals| rivals.cohort);
        let member = cohort.and_then(|cohort| entry.members.get(cohort.number));
        let is_own = member.and_then(Member::hold).is_some_and(|own| Arc::ptr_eq(own, hold));
        if let (true, Some(rivals)) = (is_own, entry.rivals_mut()) {
            rivals.cohort = None;
        }
    }

    /// Marks a seat as one of [`Mode::Write`], if nothing else of this process holds the name, asks or waits for it.
    /// Returns whether it did.
    pub(in crate::engine) fn begin_upgrade(&self, name: &Name, number: u64) -> bool {
        let mut state = self.lock();
        let Some(entry) = state.names.get_mut(name) else { return false };
        let alone = !entry.has_waiters() && entry.members.only().is_some();
        alone && entry.members.change(number, |member| member.mode = Mode::Write)
    }

    /// Sets the mode of a seat, and the hold in it if one is given that was granted by a request of this time. Admits the
    /// waiters that may ask now.
    pub(in crate::engine) fn reseat(
        &self,
        name: &Name,
        number: u64,
        mode: Mode,
        hold: Option<(Arc<Hold>, Instant)>,
    ) {
        let now = self.clock.now();
        let mut state = self.lock();
        let Some(entry) = state.names.get_mut(name) else { return };
        let granted = hold.as_ref().map(|(_, sent)| (number, *sent));
        let changed = entry.members.change(number, |member| {
            member.mode = mode;
            // The caller still has the old hold, so none is dropped here.
            if let Some((hold, _)) = hold {
                member.stage = Stage::Holding(Some(hold));
            }
        });
        if !changed {
            return;
        }
        if let Some(granted) = granted {
            self.gather(entry, mode, granted);
        }
        let ended = state.advance(name, self.times(now));
        drop(state);
        ended.wake_all();
    }

    /// Records that this process forced a name open, at the latest at `now`, or takes it from its holder for the turn of the
    /// number `by`: each other request so far may have been granted before.
    pub(crate) fn forced(&self, name: &Name, now: Instant, by: Option<u64>) {
        let mut state = self.lock();
        state.forced = Some(now);
        if let Some(entry) = state.names.get_mut(name) {
            entry.members.mark_forced(by);
        }
    }

    /// Records that another manager says that it has taken a name. A grant that is on its way is verified when it arrives:
    /// it may have come before.
    pub(in crate::engine) fn doubted(&self, name: &Name) {
        if let Some(entry) = self.lock().names.get_mut(name) {
            entry.members.mark_doubted();
        }
    }

    /// Records a request at `now` that the store has not answered.
    pub(crate) fn asked(&self, name: &Name, now: Instant) {
        if let Some(entry) = self.lock().names.get_mut(name) {
            entry.silent_since.get_or_insert(now);
        }
    }

    /// Records that the store answered.
    pub(crate) fn answered(&self, name: &Name) {
        let now = self.clock.now();
        if let Some(entry) = self.lock().names.get_mut(name) {
            entry.answered(now);
        }
    }

    /// Records that the store answered that a name is held elsewhere.
    pub(crate) fn saw_another(&self, name: &Name) {
        let now = self.clock.now();
        let mut state = self.lock();
        state.pauses.saw_another(name);
        let Some(entry) = state.names.get_mut(name) else { return };
        entry.answered(now);
        if let Some(rivals) = entry.rivals_mut() {
            // A reader was refused beside readers, so a writer waits elsewhere.
            rivals.cohort = None;
        }
    }

    /// Returns the silence of the store about a name; `None` if it has answered all requests.
    pub(crate) fn silence(&self, name: &Name) -> Option<Silence> {
        let state = self.lock();
        let NameEntry { silent_since, heard, .. } = state.names.get(name)?;
        silent_since.map(|since| Silence { since, heard: *heard })
    }

    /// Returns the hold of a name that has this holder id.
    pub(in crate::engine) fn hold_of(&self, name: &Name, holder: HolderId) -> Option<Arc<Hold>> {
        let state = self.lock();
        state.names.get(name)?.holds().find(|hold| hold.holder == holder).cloned()
    }

    /// Returns the holds that this process has of a name.
    pub(crate) fn holds_of(&self, name: &Name) -> Vec<Arc<Hold>> {
        let state = self.lock();
        state.names.get(name).into_iter().flat_map(NameEntry::holds).cloned().collect()
    }

    /// Returns the modes of another kind than `mode` in which this process has a name, or waits for it after an answer of
    /// the store, and the holds.
    pub(in crate::engine) fn used_otherwise(
        &self,
        name: &Name,
        mode: Mode,
    ) -> Vec<(Mode, Option<Arc<Hold>>)> {
        let state = self.lock();
        let members = state.names.get(name).into_iter().flat_map(|entry| entry.members.iter());
        let others = members.filter(|member| {
            member.mode.kind() != mode.kind() && (member.is_refused() || member.hold().is_some())
        });
        others.map(|member| (member.mode, member.hold().cloned())).collect()
    }

    /// Returns all holds of this process, in the order in which they were requested.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let state = self.lock();
        let mut holds: Vec<Arc<Hold>> =
            state.names.values().flat_map(NameEntry::holds).cloned().collect();
        drop(state);
        holds.sort_unstable_by_key(|hold| hold.holder.number());
        holds
    }

    /// Returns all holds of this process, each with the number of waiters for its name, in the order in which they were
    /// requested.
    pub(crate) fn held(&self) -> Vec<(Arc<Hold>, usize)> {
        let state = self.lock();
        let mut held = Vec::with_capacity(state.names.len());
        for entry in state.names.values() {
            let waiters = entry.rivals().map_or(0, |rivals| rivals.waiters.len());
            held.extend(entry.holds().map(|hold| (Arc::clone(hold), waiters)));
        }
        drop(state);
        held.sort_unstable_by_key(|(hold, _)| hold.holder.number());
        held
    }

    /// Wakes all waiters.
    pub(crate) fn wake_all(&self) {
        let mut state = self.lock();
        let rivals = state.names.values_mut().filter_map(NameEntry::rivals_mut);
        let waiters = rivals.flat_map(|rivals| rivals.waiters.iter_mut());
        let woken: Vec<_> = waiters.filter_map(|(_, waiter)| waiter.wake.take()).collect();
        drop(state);
        woken.into_iter().for_each(|wake| wake_waiter(wake, None));
    }

    /// Ends the turn of this number, as [`leave_at`](Self::leave_at) does.
    pub(in crate::engine) fn leave(&self, name: &Name, number: u64) {
        self.leave_at(self.clock.now(), name, number);
    }

    /// Ends the turn or the seat of this number: removes its member from the queue, and admits the waiters that
    /// it blocked.
    pub(in crate::engine) fn leave_at(&self, now: Instant, name: &Name, number: u64) {
        let mut state = self.lock();
        let Some(entry) = state.names.get_mut(name) else { return };
        // Otherwise it was reclaimed.
        let Some(removed) = entry.take(number) else { return };
        let ended = state.advance(name, self.times(now));
        if let Some(entry) = state.names.get_mut(name) {
            entry.end_silence();
        }
        drop(state);
        drop(removed);
        ended.wake_all();
    }

    pub(in crate::engine) fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }

    /// Returns the time since which a waiter that is polled has checked in.
    pub(in crate::engine) fn checked_in_since(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_duration_since(Instant::ZERO + self.patience)
    }

    pub(in crate::engine) fn times(&self, now: Instant) -> Times {
        Times { now, since: self.checked_in_since(now), due: now + self.attempt }
    }

    /// Reclaims turns from futures that are not polled.
    pub(in crate::engine) fn reclaim(
        &self,
        state: &mut QueueState,
        name: &Name,
        now: Instant,
    ) -> Ended {
        let times = self.times(now);
        let removed = state.names.get_mut(name).map(|entry| entry.reclaim(times));
        let mut ended = state.advance(name, times);
        ended._removed.extend(removed.into_iter().flatten());
        ended
    }
}
