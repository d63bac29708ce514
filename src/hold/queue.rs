//! Waiters queue at home: per name a FIFO, so that only its head talks to the store.
//!
//! # Invariants
//!
//! 1. A name has a slot exactly as long as a waiter or a hold has its [`Turn`], or was offered it.
//! 2. At most one turn of a name is current: that of the last number. Dropping it offers the next one to the first
//!    waiter, or ends the slot. Dropping another one does nothing.
//! 3. Nothing is dropped, woken or sent while the map is locked.
//! 4. No waiter waits for a future that is not polled. Whoever has the turn tells by when it moves again. After
//!    that, each waiter that looks takes the turn away, and passes over those that have not looked lately.
//! 5. A waiter keeps its place until it has a hold. It is out of the line while it does not look, and back at its
//!    place when it does.

use super::Hold;
use super::alarm::wake;
use super::handoff::Passed;
use super::pause::{Heard, Pauses};
use super::timing::Timing;
use crate::clock::{Clock, Instant};
use crate::store::Name;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

pub(crate) struct Queue {
    line: Mutex<Line>,
    pub(super) clock: Clock,
    /// How long a waiter may take to accept what it is offered.
    pub(super) attempt: Duration,
    /// A waiter that has not looked for this long is out of the line.
    patience: Duration,
}

pub(super) struct Line {
    pub(super) slots: HashMap<Name, Slot>,
    /// The last ticket of a waiter, or number of a turn.
    pub(super) numbers: u64,
    pub(super) pauses: Pauses,
}

impl Line {
    /// Opens the slot of a name, with a turn of the number that is returned; or returns the slot that there is, with a
    /// number that is free.
    pub(super) fn enter(&mut self, name: &Name, due: Instant) -> (u64, Option<&mut Slot>) {
        self.numbers += 1;
        let number = self.numbers;
        match self.slots.entry(name.clone()) {
            Entry::Occupied(place) => (number, Some(place.into_mut())),
            Entry::Vacant(place) => {
                place.insert(Slot::new(number, due));
                (number, None)
            }
        }
    }

    /// The store has answered a request for a name.
    fn answered(&mut self, name: &Name) {
        if let Some(slot) = self.slots.get_mut(name) {
            slot.silent_since = None;
        }
    }
}

pub(super) struct Slot {
    pub(super) hold: Option<Arc<Hold>>,
    /// The number of the current turn.
    pub(super) turn: u64,
    /// By when whoever has the current turn moves, if it is polled. `None`: a hold has it.
    pub(super) due: Option<Instant>,
    /// Since when the store has not answered a request for this name.
    pub(super) silent_since: Option<Instant>,
    /// What a name that one flow of control locks does not need: most names are such.
    rivals: Option<Box<Rivals>>,
}

/// What others do about a name.
#[derive(Default)]
pub(super) struct Rivals {
    /// Those in line, by their tickets.
    pub(super) waiters: BTreeMap<u64, Waiter>,
    /// What the waiter of this ticket is to have when it looks.
    pub(super) offer: Option<(u64, Offer)>,
    /// When the name was last forced open from here.
    pub(super) forced: Option<Instant>,
    /// While waiters elsewhere listen: the last ticket that there was when the store granted the name.
    pub(super) served_at: Option<u64>,
}

impl Slot {
    pub(super) fn new(turn: u64, due: Instant) -> Self {
        Self { hold: None, turn, due: Some(due), silent_since: None, rivals: None }
    }

    /// What there is to change of the rivals.
    pub(super) fn rivals(&mut self) -> Option<&mut Rivals> {
        self.rivals.as_deref_mut()
    }

    /// What there is to see of the rivals.
    pub(super) fn see_rivals(&self) -> Option<&Rivals> {
        self.rivals.as_deref()
    }

    pub(super) fn make_rivals(&mut self) -> &mut Rivals {
        self.rivals.get_or_insert_default()
    }

    /// Voids what was offered.
    pub(super) fn take_offer(&mut self) -> Option<(u64, Offer)> {
        self.rivals()?.offer.take()
    }

    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due < now)
    }

    /// The first waiter that has looked since `since`. Those before it are out of the line.
    pub(super) fn first(&mut self, since: Instant) -> Option<(u64, Arc<Notify>)> {
        let waiters = &mut self.rivals()?.waiters;
        while let Some(first) = waiters.first_entry() {
            if first.get().looked >= since {
                return Some((*first.key(), Arc::clone(&first.get().told)));
            }
            first.remove();
        }
        None
    }
}

/// A place in the line, as the queue has it.
pub(super) struct Waiter {
    pub(super) told: Arc<Notify>,
    pub(super) looked: Instant,
}

pub(super) enum Offer {
    Turn,
    Hold(Passed),
}

/// What is left of a turn that has ended: a waiter to wake, and what is dropped with no lock held.
#[derive(Default)]
pub(super) struct Ended {
    told: Option<Arc<Notify>>,
    _hold: Option<Arc<Hold>>,
    _offer: Option<(u64, Offer)>,
}

impl Ended {
    pub(super) fn tell(self) {
        if let Some(told) = &self.told {
            wake(|| told.notify_one());
        }
    }
}

impl Queue {
    pub(crate) fn new(clock: Clock, timing: &Timing) -> Self {
        let (attempt, patience) = (timing.attempt, timing.ttl / 4);
        let line = Line { slots: HashMap::new(), numbers: 0, pauses: Pauses::new(timing.ttl) };
        Self { line: Mutex::new(line), clock, attempt, patience }
    }

    /// A real release was heard by waiters elsewhere: the next turn is to wait for a while. `None`: by nobody.
    pub(crate) fn released(&self, name: &Name, now: Instant, heard: Option<Heard>) {
        let mut line = self.lock();
        match heard {
            Some(heard) => line.pauses.begin(name, heard),
            None => line.pauses.unheard(name, now),
        }
    }

    /// Puts the hold in place that the first waiter who looks is to have, if there is one, and tells how to wake
    /// that. While waiters elsewhere listen, and it is not `early` any more, only one that was in line when
    /// the store granted the name.
    pub(crate) fn hand_over(
        &self,
        name: &Name,
        early: bool,
        next: impl FnOnce() -> (Arc<Hold>, Passed),
    ) -> Option<(Arc<Notify>, Arc<Hold>)> {
        let mut line = self.lock();
        let slot = line.slots.get_mut(name)?;
        let (ticket, told) = slot.first(Instant::ZERO)?;
        let rivals = slot.rivals()?;
        if !early && rivals.served_at.is_some_and(|last| ticket > last) {
            return None;
        }
        let (next, passed) = next();
        // What was offered before has come to nothing.
        let offer = rivals.offer.replace((ticket, Offer::Hold(passed)));
        // What was there is alive in the hands of whoever passes it on.
        slot.hold = Some(Arc::clone(&next));
        drop(line);
        drop(offer);
        Some((told, next))
    }

    /// The waiter that was offered `hold` has not looked in time.
    pub(crate) fn missed(&self, hold: &Arc<Hold>) {
        let mut line = self.lock();
        let Some(rivals) = line.slots.get_mut(&hold.name).and_then(Slot::rivals) else { return };
        let missed = rivals
            .offer
            .take_if(|(_, offer)| matches!(offer, Offer::Hold(passed) if passed.is(hold)));
        if let Some((ticket, _)) = &missed {
            rivals.waiters.remove(ticket);
        }
        drop(line);
        drop(missed);
    }

    /// Makes a hold known under its name, for as long as it keeps the turn. Returns whether the name was forced open
    /// since the store was asked for it at `sent`.
    pub(crate) fn install(&self, hold: &Arc<Hold>, sent: Instant) -> bool {
        let mut line = self.lock();
        let Some(slot) = line.slots.get_mut(&hold.name) else { return false };
        slot.hold = Some(Arc::clone(hold));
        slot.silent_since = None;
        slot.see_rivals().is_some_and(|rivals| rivals.forced >= Some(sent))
    }

    /// A name was forced open from here, at the latest at `now`.
    pub(crate) fn forced(&self, name: &Name, now: Instant) {
        if let Some(slot) = self.lock().slots.get_mut(name) {
            slot.make_rivals().forced = Some(now);
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
        let mut line = self.lock();
        line.pauses.saw_another(name);
        line.answered(name);
    }

    /// Since when the store has not answered a request for this name.
    pub(crate) fn silent_since(&self, name: &Name) -> Option<Instant> {
        self.lock().slots.get(name).and_then(|slot| slot.silent_since)
    }

    /// The hold that this process has of a name.
    pub(crate) fn hold(&self, name: &Name) -> Option<Arc<Hold>> {
        self.lock().slots.get(name).and_then(|slot| slot.hold.clone())
    }

    /// All holds of this process, in the order in which they were asked for.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let mut holds: Vec<Arc<Hold>> =
            self.lock().slots.values().filter_map(|slot| slot.hold.clone()).collect();
        holds.sort_unstable_by_key(|hold| hold.token.number());
        holds
    }

    /// Forgets all names, with their holds and waiters.
    pub(crate) fn clear(&self) {
        let slots = std::mem::take(&mut self.lock().slots);
        // Not while the map is locked: their turns look into it.
        drop(slots);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when a waiter that is polled has looked.
    pub(super) fn looked_since(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_duration_since(Instant::ZERO + self.patience)
    }

    /// Takes the turn away from a future that is not polled.
    pub(super) fn take_away(&self, line: &mut Line, name: &Name, now: Instant) -> Ended {
        if let Some(slot) = line.slots.get_mut(name) {
            if let Some(rivals) = slot.rivals()
                && let Some((ticket, Offer::Turn)) = rivals.offer
            {
                rivals.waiters.remove(&ticket);
            }
            // All that have not looked lately at once, or each of them would have to be waited for.
            slot.first(self.looked_since(now));
        }
        self.end_turn(line, name, now)
    }

    /// Ends the current turn of a name, and offers the next one to the first waiter.
    fn end_turn(&self, line: &mut Line, name: &Name, now: Instant) -> Ended {
        let Some(slot) = line.slots.get_mut(name) else { return Ended::default() };
        let (hold, offer) = (slot.hold.take(), slot.take_offer());
        let mut told = None;
        if let Some((ticket, first)) = slot.first(Instant::ZERO) {
            line.numbers += 1;
            (slot.turn, slot.due) = (line.numbers, Some(now + self.attempt));
            slot.make_rivals().offer = Some((ticket, Offer::Turn));
            told = Some(first);
        } else {
            line.slots.remove(name);
        }
        Ended { told, _hold: hold, _offer: offer }
    }

    /// Ends a turn, if it is current.
    pub(super) fn pass(&self, name: &Name, number: u64) {
        let now = self.clock.now();
        let mut line = self.lock();
        if line.slots.get(name).is_none_or(|slot| slot.turn != number) {
            return;
        }
        let ended = self.end_turn(&mut line, name, now);
        drop(line);
        ended.tell();
    }
}
