//! Waiters of one process queue in process: per name a FIFO, so that only those talk to the store that may be granted it.
//!
//! # Invariants
//!
//! 1. A name has a slot exactly as long as a turn or a seat of it is there: somebody asks for it, was offered to ask, or
//!    holds it.
//! 2. [`Members::may_ask`](super::slot::Members::may_ask) decides alone who asks next. What ends lets those ask, in their
//!    order, that it has kept from asking. A turn that was taken away ends nothing.
//! 3. Nothing is dropped, woken or sent while the map is locked.
//! 4. No waiter waits for a future that is not polled. Each turn tells by when it moves again. After that, each
//!    waiter that looks takes it away, and passes over those that have not looked lately.
//! 5. A waiter keeps its place until it has a hold. It is out of the line while it does not look, and back at its
//!    place when it does.

use super::hold::Hold;
use super::pause::{Heard, Pauses};
use super::seat::Seats;
use super::slot::{HandedOff, Offer, Removed, Slot, Stage};
use super::timing::Timing;
use super::wake::wake;
use crate::clock::{Clock, Instant};
use crate::store::Name;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

pub(crate) struct Queue {
    state: Mutex<QueueState>,
    pub(super) clock: Clock,
    /// How long a waiter may take to accept what it is offered.
    pub(super) attempt: Duration,
    /// A waiter that has not looked for this long is out of the line.
    patience: Duration,
}

pub(super) struct QueueState {
    pub(super) slots: HashMap<Name, Slot>,
    /// The last number of a waiter, a turn or a seat.
    pub(super) numbers: u64,
    pub(super) pauses: Pauses,
}

impl QueueState {
    /// Draws a number.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The store has answered a request for a name.
    fn answered(&mut self, name: &Name) {
        if let Some(slot) = self.slots.get_mut(name) {
            slot.silent_since = None;
        }
    }

    /// Lets those in line ask that may now; `None` is left of a slot that nobody needs.
    fn advance(&mut self, name: &Name, due: Instant) -> Vec<Arc<Notify>> {
        let Some(slot) = self.slots.get_mut(name) else { return Vec::new() };
        let woken = slot.advance(&mut self.numbers, due);
        if slot.members.all().is_empty() {
            self.slots.remove(name);
        }
        woken
    }
}

/// What is left of a turn or a seat that has ended: waiters to wake, and what is dropped with no lock held.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) woken: Vec<Arc<Notify>>,
    _removed: Removed,
}

impl Ended {
    /// Returns whether nothing has ended yet.
    pub(super) fn is_empty(&self) -> bool {
        self.woken.is_empty()
    }

    pub(super) fn wake_all(self) {
        for waiter in &self.woken {
            wake(|| waiter.notify_one());
        }
    }
}

impl Queue {
    pub(crate) fn new(clock: Clock, timing: &Timing) -> Self {
        let (attempt, patience) = (timing.attempt, timing.ttl / 4);
        let (slots, pauses) = (HashMap::new(), Pauses::new(timing.ttl));
        let state = Mutex::new(QueueState { slots, numbers: 0, pauses });
        Self { state, clock, attempt, patience }
    }

    /// A real release was heard by waiters elsewhere: the next turn is to wait for a while. `None`: by nobody.
    pub(crate) fn released(&self, name: &Name, now: Instant, heard: Option<Heard>) {
        let mut state = self.lock();
        match heard {
            Some(heard) => state.pauses.begin(name, heard),
            None => state.pauses.unheard(name, now),
        }
    }

    /// Puts the hold in place that the first waiter who looks is to have, if there is one, and tells how to wake
    /// that. While waiters elsewhere listen, and it is not `early` any more, only one that was in line when
    /// the store granted the name.
    pub(crate) fn hand_off(
        &self,
        name: &Name,
        early: bool,
        next: impl FnOnce() -> (Arc<Hold>, HandedOff),
    ) -> Option<(Arc<Notify>, Arc<Hold>)> {
        let mut state = self.lock();
        let slot = state.slots.get_mut(name)?;
        let (ticket, notify) = slot.handoff_target()?;
        let rivals = slot.rivals_mut()?;
        if !early && rivals.served_at.is_some_and(|last| ticket > last) {
            return None;
        }
        let (next, offered) = next();
        // What was offered before has come to nothing.
        let offer = rivals.offers.insert(ticket, Offer::Hold(offered));
        // What was there is alive in the hands of the one that passes it on.
        for member in slot.members.all_mut() {
            member.stage = Stage::Holding(Some(Arc::clone(&next)));
        }
        drop(state);
        drop(offer);
        Some((notify, next))
    }

    /// The waiter that was offered `hold` has not looked in time.
    pub(crate) fn missed(&self, hold: &Arc<Hold>) {
        let mut state = self.lock();
        let Some(rivals) = state.slots.get_mut(&hold.name).and_then(Slot::rivals_mut) else {
            return;
        };
        let missed =
            rivals.take_offers(|offer| matches!(offer, Offer::Hold(offered) if offered.is(hold)));
        for (ticket, _) in &missed {
            rivals.waiters.remove(ticket);
        }
        drop(state);
        drop(missed);
    }

    /// Makes a hold known under its name, in the seat of this number. Returns whether the name was forced open since the
    /// store was asked for it at `sent`.
    pub(crate) fn install(&self, hold: &Arc<Hold>, number: u64, sent: Instant) -> bool {
        let mut state = self.lock();
        let Some(slot) = state.slots.get_mut(&hold.name) else { return false };
        if let Some(member) = slot.members.get(number) {
            member.stage = Stage::Holding(Some(Arc::clone(hold)));
        }
        slot.silent_since = None;
        slot.rivals().is_some_and(|rivals| rivals.forced >= Some(sent))
    }

    /// A name was forced open from here, at the latest at `now`.
    pub(crate) fn forced(&self, name: &Name, now: Instant) {
        if let Some(slot) = self.lock().slots.get_mut(name) {
            slot.rivals_or_default().forced = Some(now);
        }
    }

    /// The store was asked at `now` about a name, and has not answered.
    pub(crate) fn asked(&self, name: &Name, now: Instant) {
        if let Some(slot) = self.lock().slots.get_mut(name) {
            slot.silent_since.get_or_insert(now);
        }
    }

    /// The store has answered.
    pub(crate) fn answered(&self, name: &Name) {
        self.lock().answered(name);
    }

    /// The store has answered that a name is held elsewhere.
    pub(crate) fn saw_another(&self, name: &Name) {
        let mut state = self.lock();
        state.pauses.saw_another(name);
        state.answered(name);
    }

    /// Since when the store has not answered a request for this name.
    pub(crate) fn silent_since(&self, name: &Name) -> Option<Instant> {
        self.lock().slots.get(name).and_then(|slot| slot.silent_since)
    }

    /// Returns the holds that this process has of a name.
    pub(crate) fn holds_of(&self, name: &Name) -> Vec<Arc<Hold>> {
        let state = self.lock();
        state.slots.get(name).into_iter().flat_map(Slot::holds).cloned().collect()
    }

    /// Returns all holds of this process, in the order in which they were asked for.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let state = self.lock();
        let mut holds: Vec<Arc<Hold>> =
            state.slots.values().flat_map(Slot::holds).cloned().collect();
        drop(state);
        holds.sort_unstable_by_key(|hold| hold.token.number());
        holds
    }

    /// Forgets all names, with their holds and waiters.
    pub(crate) fn clear(&self) {
        let slots = std::mem::take(&mut self.lock().slots);
        // Not while the map is locked: their turns look into it.
        drop(slots);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when a waiter that is polled has looked.
    pub(super) fn checked_in_since(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_duration_since(Instant::ZERO + self.patience)
    }

    /// Takes turns away from futures that are not polled.
    pub(super) fn reclaim(&self, state: &mut QueueState, name: &Name, now: Instant) -> Ended {
        let since = self.checked_in_since(now);
        let removed = state.slots.get_mut(name).map(|slot| slot.reclaim(now, since));
        let woken = state.advance(name, now + self.attempt);
        Ended { woken, _removed: removed.unwrap_or_default() }
    }
}

impl Seats for Queue {
    fn leave(&self, name: &Name, number: u64) {
        let now = self.clock.now();
        let mut state = self.lock();
        let Some(slot) = state.slots.get_mut(name) else { return };
        if slot.members.get(number).is_none() {
            // It was taken away.
            return;
        }
        let removed = slot.remove(|member| member.number != number);
        let woken = state.advance(name, now + self.attempt);
        drop(state);
        Ended { woken, _removed: removed }.wake_all();
    }
}
