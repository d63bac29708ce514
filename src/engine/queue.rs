//! The queue of local waiters. Each name has a FIFO queue, so that only a waiter that may be
//! granted the name asks the store.
//!
//! # Invariants
//!
//! 1. A name has an entry exactly as long as it has a turn, an offered turn or a seat.
//! 2. [`Members::may_ask`](super::name_entry::Members::may_ask) alone decides which waiter asks next. The
//!    end of a turn or seat admits the waiters that it blocked, in FIFO order. A turn that was
//!    reclaimed ends without effect.
//! 3. Nothing is dropped, woken or sent while the map is locked.
//! 4. No waiter waits for a future that is not polled. Each turn sets the time of its next step.
//!    After that time, any waiter that checks in reclaims the turn, and passes over waiters that
//!    have not checked in lately.
//! 5. A waiter keeps its place until it has a hold. While it does not check in, it is out of the
//!    queue; at its next check-in it is back at its place.

use super::heirs::Heirs;
use super::hold::Hold;
use super::name_entry::{HandedOff, NameEntry, Offer, Removed, Stage};
use super::pause::{Heard, Pauses};
use super::timing::Timing;
use super::wake::wake_waiter;
use crate::clock::{Clock, Instant};
use crate::store::{HolderId, Mode, Name, NameMap};
use crate::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::sync::oneshot;

pub(crate) struct Queue {
    state: Mutex<QueueState>,
    pub(super) clock: Clock,
    /// The time in which a waiter must take up its offer.
    pub(super) attempt: Duration,
    /// A waiter that has not checked in for this long is passed over.
    patience: Duration,
    /// Set with the first waiter of a fair lock.
    pub(super) is_fair: AtomicBool,
}

pub(super) struct QueueState {
    pub(super) names: NameMap<NameEntry>,
    /// The last number drawn for a waiter, a turn or a seat.
    pub(super) numbers: u64,
    pub(super) pauses: Pauses,
    /// The last time that this process forced a name open, whichever it was: a turn that was reclaimed has no place
    /// where its own name could be remembered.
    pub(super) forced: Option<Instant>,
    /// The places that releases took for the first local waiter, until that one asks: see [`place`](super::place).
    pub(super) places: NameMap<HolderId>,
}

impl QueueState {
    /// Draws a number.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Records that the store answered a request for a name.
    fn answered(&mut self, name: &Name) {
        if let Some(entry) = self.names.get_mut(name) {
            entry.silent_since = None;
        }
    }

    /// Admits the waiters that may ask now, and removes an entry without members. Returns the waiters
    /// to wake.
    fn advance(&mut self, name: &Name, times: (Instant, Instant)) -> Vec<oneshot::Sender<()>> {
        let Some(entry) = self.names.get_mut(name) else { return Vec::new() };
        let woken = entry.advance(&mut self.numbers, times);
        if entry.members.all().is_empty() {
            self.names.remove(name);
        }
        woken
    }
}

/// The remains of a turn or a seat that ended: waiters to wake, and members to drop with no lock
/// held.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) woken: Vec<oneshot::Sender<()>>,
    _removed: Removed,
}

impl Ended {
    /// Returns whether no waiter is to be woken.
    pub(super) fn is_empty(&self) -> bool {
        self.woken.is_empty()
    }

    /// Wakes the waiters. Call it with no lock held.
    pub(super) fn wake_all(self) {
        self.woken.into_iter().for_each(wake_waiter);
    }
}

impl Queue {
    pub(crate) fn new(clock: Clock, timing: &Timing) -> Self {
        let (attempt, patience) = (timing.attempt, timing.ttl / 4);
        let (names, pauses) = (NameMap::default(), Pauses::new(timing.ttl));
        let state = Mutex::new(QueueState {
            names,
            numbers: 0,
            pauses,
            forced: None,
            places: NameMap::default(),
        });
        Self { state, clock, attempt, patience, is_fair: AtomicBool::new(false) }
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

    /// Installs the hold of `next` and offers it to the first waiter that is polled, if there is one.
    /// Returns what wakes that waiter. While waiters elsewhere listen and the chain of hand-offs is
    /// not `early` any more, only a waiter that was queued when the store granted the name gets the
    /// offer.
    pub(crate) fn hand_off(
        &self,
        name: &Name,
        (now, early): (Instant, bool),
        heirs: Heirs,
        next: impl FnOnce() -> (Arc<Hold>, HandedOff),
    ) -> Option<(Option<oneshot::Sender<()>>, Arc<Hold>)> {
        let since = self.checked_in_since(now);
        let mut state = self.lock();
        let entry = state.names.get_mut(name)?;
        let ticket = entry.handoff_target(since, heirs)?;
        let rivals = entry.rivals_mut()?;
        if !early && rivals.served_at.is_some_and(|last| ticket > last) {
            return None;
        }
        let (next, offered) = next();
        // An earlier offer to this waiter is void. It is dropped without the lock.
        let offer = rivals.offers.insert(ticket, Offer::Hold(offered));
        let waiter = rivals.waiters.get_mut(&ticket).and_then(|waiter| waiter.wake.take());
        // Dropping the old hold here drops no seat: the caller still owns it.
        for member in entry.members.all_mut() {
            member.stage = Stage::Holding(Some(Arc::clone(&next)));
        }
        drop(state);
        drop(offer);
        Some((waiter, next))
    }

    /// Withdraws the offer of `hold` from a waiter that did not accept it in time.
    pub(crate) fn missed(&self, hold: &Arc<Hold>) {
        let mut state = self.lock();
        let Some(rivals) = state.names.get_mut(&hold.name).and_then(NameEntry::rivals_mut) else {
            return;
        };
        let missed =
            rivals.take_offers(|offer| matches!(offer, Offer::Hold(offered) if offered.is(hold)));
        let waiters: Vec<_> =
            missed.iter().filter_map(|(ticket, _)| rivals.waiters.remove(ticket)).collect();
        drop(state);
        drop((missed, waiters));
    }

    /// Puts a hold into the seat of this number. Returns whether the name was forced open after the
    /// request was sent at `sent`.
    pub(crate) fn install(&self, hold: &Arc<Hold>, number: u64, sent: Instant) -> bool {
        let mut state = self.lock();
        let Some(entry) = state.names.get_mut(&hold.name) else { return false };
        if let Some(member) = entry.members.get(number) {
            member.stage = Stage::Holding(Some(Arc::clone(hold)));
        }
        entry.silent_since = None;
        let forced = entry.rivals().is_some_and(|rivals| rivals.forced >= Some(sent));
        // The turn ends with the grant; the next waiter for permits may ask.
        let shares = matches!(hold.mode, Mode::Permits { .. }) && entry.has_waiters();
        let woken = match shares {
            true => state.advance(&hold.name, self.times(self.clock.now())),
            false => Vec::new(),
        };
        drop(state);
        Ended { woken, _removed: Removed::default() }.wake_all();
        forced
    }

    /// Marks a seat as one of [`Mode::Write`], if nothing else of this process holds the name, asks or waits for it.
    /// Returns whether it did.
    pub(super) fn begin_upgrade(&self, name: &Name, number: u64) -> bool {
        let mut state = self.lock();
        let Some(entry) = state.names.get_mut(name) else { return false };
        let alone = !entry.has_waiters();
        match entry.members.all_mut() {
            [member] if alone && member.number == number => member.mode = Mode::Write,
            _ => return false,
        }
        true
    }

    /// Sets the mode of a seat, and the hold in it if one is given. Admits the waiters that may ask now.
    pub(super) fn reseat(&self, name: &Name, number: u64, mode: Mode, hold: Option<Arc<Hold>>) {
        let now = self.clock.now();
        let mut state = self.lock();
        let Some(entry) = state.names.get_mut(name) else { return };
        let Some(member) = entry.members.get(number) else { return };
        member.mode = mode;
        // The caller still has the old hold, so none is dropped here.
        if let Some(hold) = hold {
            member.stage = Stage::Holding(Some(hold));
        }
        let woken = state.advance(name, self.times(now));
        drop(state);
        Ended { woken, _removed: Removed::default() }.wake_all();
    }

    /// Records that this process forced a name open, at the latest at `now`.
    pub(crate) fn forced(&self, name: &Name, now: Instant) {
        let mut state = self.lock();
        state.forced = Some(now);
        if let Some(entry) = state.names.get_mut(name) {
            entry.rivals_or_default().forced = Some(now);
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
        self.lock().answered(name);
    }

    /// Records that the store answered that a name is held elsewhere.
    pub(crate) fn saw_another(&self, name: &Name) {
        let mut state = self.lock();
        state.pauses.saw_another(name);
        state.answered(name);
    }

    /// Returns the time of the first request for this name that the store has not answered.
    pub(crate) fn silent_since(&self, name: &Name) -> Option<Instant> {
        self.lock().names.get(name).and_then(|entry| entry.silent_since)
    }

    /// Returns the holds that this process has of a name.
    pub(crate) fn holds_of(&self, name: &Name) -> Vec<Arc<Hold>> {
        let state = self.lock();
        state.names.get(name).into_iter().flat_map(NameEntry::holds).cloned().collect()
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

    /// Wakes all waiters.
    pub(crate) fn wake_all(&self) {
        let mut state = self.lock();
        let rivals = state.names.values_mut().filter_map(NameEntry::rivals_mut);
        let waiters = rivals.flat_map(|rivals| rivals.waiters.values_mut());
        let woken: Vec<_> = waiters.filter_map(|waiter| waiter.wake.take()).collect();
        drop(state);
        woken.into_iter().for_each(wake_waiter);
    }

    /// Ends the turn or the seat of this number: removes its member from the queue, and admits the waiters that
    /// it blocked.
    pub(super) fn leave(&self, name: &Name, number: u64) {
        let now = self.clock.now();
        let mut state = self.lock();
        let Some(entry) = state.names.get_mut(name) else { return };
        if entry.members.get(number).is_none() {
            // It was reclaimed.
            return;
        }
        let removed = entry.remove(|member| member.number != number);
        let woken = state.advance(name, self.times(now));
        drop(state);
        Ended { woken, _removed: removed }.wake_all();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }

    /// Returns the time since which a waiter that is polled has checked in.
    pub(super) fn checked_in_since(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_duration_since(Instant::ZERO + self.patience)
    }

    /// Returns the time since which a waiter that is polled has checked in, and the time by which it takes up an offer
    /// that is made now.
    pub(super) fn times(&self, now: Instant) -> (Instant, Instant) {
        (self.checked_in_since(now), now + self.attempt)
    }

    /// Reclaims turns from futures that are not polled.
    pub(super) fn reclaim(&self, state: &mut QueueState, name: &Name, now: Instant) -> Ended {
        let since = self.checked_in_since(now);
        let removed = state.names.get_mut(name).map(|entry| entry.reclaim(now, since));
        let woken = state.advance(name, self.times(now));
        Ended { woken, _removed: removed.unwrap_or_default() }
    }
}
