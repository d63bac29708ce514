//! One name in this process: who holds it, who asks for it, who waits and who is offered what.
//!
//! A pure state machine. The time comes in as a value, and what is to be done with no lock held goes out as [`Effects`]. It
//! knows a waiter by its number, and a hold as an opaque `H`, which it carries and compares. The shell around
//! it is the [`Queue`](crate::engine::shared::queue::Queue). Only a waiter that may be granted the name asks the store.
//!
//! # Invariants
//!
//! 1. **[`Occupants::may_ask`] alone decides which waiter asks next.** The end of an occupant admits the waiters that it
//!    blocked, in the order of their numbers.
//! 2. **A waiter keeps its place until it has a hold.** While it gives no pulse, it is out of the queue; at its next pulse it
//!    is back at its place, before turns behind it that are not taken up.
//! 3. **No waiter waits for a call that is not polled.** Each turn has the last pulse of its call. After its end, the pulse of
//!    any waiter reclaims it, and passes over the waiters that have given no pulse lately. If none has, none is passed over.
//! 4. **A late grant counts.** A call whose turn was reclaimed keeps the grant of its request, unless another hold excludes
//!    it or the name was forced open meanwhile. The turns that it excludes end, and their calls are woken.
//! 5. **A turn that was reclaimed ends without effect.** Numbers are never drawn twice, so it cannot end another one.
//! 6. **A hold is never lost on the way.** One that was offered is accepted, or it is an [`Effect::Return`]. One that is
//!    removed from the name is an [`Effect::Drop`].
//! 7. **A hold is handed off in its slot**, to the first waiter that is polled, if its mode, its `lock_delay` and its place in
//!    the line allow it. Otherwise it is handed off to no waiter: none is overtaken.
//! 8. **Readers join in order.** A waiter joins the youngest read hold when all before it have been admitted. Until it has
//!    joined, its place is kept: it is back in the queue if that hold ends first.
//! 9. **A hold that rests blocks no call**: [`NameState::resting`] shows it to the call that finds nothing else, which ends the
//!    rest.
//! 10. **An idle name remembers nothing.** Without an occupant there is no waiter, no offer, no last request and no silence.

use super::chain::Chain;
use super::contention::{
    Contention, Demand, LastAsk, Occupant, Occupants, Offer, ReadHold, Seeker, Waiter, Waiters,
};
use super::effects::{Effect, Effects, Step, Times};
use super::mode;
use super::pulse::Pulse;
use crate::clock::Instant;
use crate::store::Mode;
use crate::util::reached::Rare;
use std::mem::take;
use std::time::Duration;

/// A time without an answer of the store about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silence {
    /// The time of the first request that it has not answered.
    pub(crate) since: Instant,
    /// The time of its last answer to a request for this name before that.
    pub(crate) heard: Option<Instant>,
}

/// What a waiter gets at a pulse.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) enum Admitted<H> {
    /// The permission to ask the store: the turn of this number, with the last request of the call before, if it goes on from
    /// there.
    Turn(u64, Option<LastAsk>),
    /// A read hold that it may join.
    Join(H),
    /// A hold that was handed off to it. It must still accept it.
    Hold(H),
}

/// A grant of the store for the turn of a number.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Granted {
    pub(in crate::engine) number: u64,
    pub(in crate::engine) mode: Mode,
    /// Whether the request was sent in this turn, and not in one before it.
    pub(in crate::engine) is_own: bool,
    /// Whether this process forced a name open after the request was sent, whichever name it was.
    pub(in crate::engine) was_forced: bool,
    /// While waiters elsewhere listen: the last number drawn.
    pub(in crate::engine) served_at: Option<u64>,
}

/// The outcome of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnOutcome {
    /// The turn becomes the slot of a hold.
    Kept,
    /// Another hold exists that cannot share the name with this one.
    Excluded,
    /// The name was forced open after the request was sent; the grant may be gone.
    Forced,
}

/// The local waiter that a hold is handed off to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Recipient {
    pub(in crate::engine) waiter_no: u64,
    /// Whether it asks the store, and so is not in the queue any more.
    pub(in crate::engine) is_asking: bool,
}

/// A hold to put into a slot.
pub(in crate::engine) struct SlottedHold<H> {
    pub(in crate::engine) number: u64,
    pub(in crate::engine) mode: Mode,
    pub(in crate::engine) hold: H,
    /// The time until which readers join it, if its mode has that.
    pub(in crate::engine) joined_until: Instant,
}

/// A name that this process asks for or holds. `H` is a hold.
pub(in crate::engine) struct NameState<H> {
    occupants: Occupants<H>,
    /// The time of the first request for this name that the store has not answered.
    silent_since: Option<Instant>,
    /// The time of the last answer of the store to a request for this name.
    heard: Option<Instant>,
    /// `None` for a name that only one call at a time locks, as most names are.
    contention: Option<Box<Contention<H>>>,
}

impl<H> Default for NameState<H> {
    fn default() -> Self {
        Self { occupants: Occupants::None, silent_since: None, heard: None, contention: None }
    }
}

/// What is asked about a name.
impl<H: Clone + PartialEq> NameState<H> {
    /// Returns whether it has no occupant, and so nothing at all.
    pub(in crate::engine) fn is_idle(&self) -> bool {
        self.occupants.is_empty()
    }

    pub(in crate::engine) fn holds(&self) -> impl Iterator<Item = &H> {
        self.occupants.iter().filter_map(Occupant::hold)
    }

    /// Returns whether a call asks for it, or has a grant that is not installed yet.
    pub(in crate::engine) fn is_asked_for(&self) -> bool {
        self.occupants.open().next().is_some()
    }

    /// Returns whether a hold of it may have a waiter, or a call that asks for permits, to which it is handed off.
    pub(in crate::engine) fn is_contended(&self) -> bool {
        self.contention.is_some()
    }

    pub(in crate::engine) fn has_waiters(&self) -> bool {
        self.waiters().is_some_and(|waiters| !waiters.is_empty())
    }

    /// Returns the number of waiters.
    pub(in crate::engine) fn waiting(&self) -> usize {
        self.waiters().map_or(0, Waiters::len)
    }

    /// Returns the number of waiters before that of this number.
    pub(in crate::engine) fn ahead(&self, waiter_no: Option<u64>) -> usize {
        let Some(waiter_no) = waiter_no else { return self.waiting() };
        let before =
            |waiters: &Waiters| waiters.iter().take_while(|(own, _)| *own < waiter_no).count();
        self.waiters().map_or(0, before)
    }

    fn waiters(&self) -> Option<&Waiters> {
        self.contention.as_deref().map(|contention| &contention.waiters)
    }

    /// Returns the first waiter that is polled.
    fn first_waiter(&self, now: Instant) -> Option<(u64, &Waiter)> {
        self.waiters()?.iter().find(|(_, waiter)| !waiter.pulse.is_over(now))
    }

    /// Returns whether this waiter is the first of those that are polled.
    pub(in crate::engine) fn is_first(&self, waiter_no: u64, now: Instant) -> bool {
        self.first_waiter(now).is_some_and(|(first, _)| first == waiter_no)
    }

    /// Returns the arrival of the waiter that asks next, if it takes part in the line of the name.
    pub(in crate::engine) fn next_arrival(&self, now: Instant) -> Option<Instant> {
        let (_, first) = self.first_waiter(now)?;
        first.demand.fair.then_some(first.demand.arrived)
    }

    /// Returns the occupants of another kind of lock than that of `mode`: the holds, and the turns that wait after an answer
    /// of the store.
    pub(in crate::engine) fn used_otherwise(
        &self,
        mode: Mode,
    ) -> impl Iterator<Item = &Occupant<H>> {
        self.occupants.iter().filter(move |occupant| {
            occupant.mode.kind() != mode.kind()
                && (occupant.is_refused() || occupant.hold().is_some())
        })
    }

    /// Returns whether an occupant uses the name as another kind of lock than that of `mode`.
    pub(in crate::engine) fn is_mixed(&self, mode: Mode) -> bool {
        self.occupants.is_mixed(mode)
    }

    /// Returns the hold that a reader joins that has not waited.
    pub(in crate::engine) fn read_hold(&self, now: Instant) -> Option<&H> {
        if self.has_waiters() { None } else { self.joinable(now) }
    }

    /// Returns the hold that a reader may join.
    fn joinable(&self, now: Instant) -> Option<&H> {
        let read_hold =
            self.contention.as_ref()?.read_hold.filter(|read_hold| now < read_hold.until)?;
        let occupant = self.occupants.get(read_hold.number)?;
        occupant.hold().filter(|_| mode::is_joined(occupant.mode))
    }

    /// Returns the silence of the store; `None` if it has answered all requests.
    pub(in crate::engine) fn silence(&self) -> Option<Silence> {
        self.silent_since.map(|since| Silence { since, heard: self.heard })
    }

    /// Returns the hold that rests. The first call that asks for the name ends its rest.
    pub(in crate::engine) fn resting(&self) -> Option<&H> {
        let number = self.contention.as_ref()?.resting?;
        self.occupants.get(number)?.hold()
    }

    /// Returns whether a call that makes one attempt may ask now.
    fn may_try(&self, mode: Mode) -> bool {
        // Those that wait for a hold to join are no contention.
        let excluded =
            |waiter: &Waiter| !(mode::is_joined(mode) && mode::can_share(mode, waiter.demand.mode));
        let waits = self
            .waiters()
            .is_some_and(|waiters| waiters.iter().any(|(_, waiter)| excluded(waiter)));
        !waits && self.occupants.may_try(mode)
    }
}

/// Waiters and turns.
impl<H: Clone + PartialEq> NameState<H> {
    /// Begins a turn at once, whatever else asks for the name, holds it or waits. Returns its number.
    pub(in crate::engine) fn seize(&mut self, mode: Mode, step: &mut Step<'_, H>) -> u64 {
        let number = step.numbers.draw();
        self.occupants.push(Occupant::asking(number, mode, step.times.offer));
        number
    }

    /// Begins a turn for a call that makes one attempt, unless another call waits for the name or blocks it. Returns its
    /// number.
    pub(in crate::engine) fn try_enter(
        &mut self,
        mode: Mode,
        step: &mut Step<'_, H>,
    ) -> Option<u64> {
        if !self.may_try(mode) && self.occupants.is_overdue(step.times.now) {
            // Only once: a turn that is offered now is not overdue.
            self.reclaim(step);
        }
        self.may_try(mode).then(|| self.seize(mode, step))
    }

    /// Records a pulse of a waiter. Returns its offer, if there is one; otherwise it is in the queue, and listens.
    pub(in crate::engine) fn pulse(
        &mut self,
        waiter_no: u64,
        demand: Demand,
        step: &mut Step<'_, H>,
    ) -> Option<Admitted<H>> {
        loop {
            if self.is_idle() {
                return Some(Admitted::Turn(self.seize(demand.mode, step), None));
            }
            match self.find_offer(waiter_no, demand, step) {
                Some(Offer::Turn(number)) => {
                    let contention = self.contention.as_deref_mut();
                    let last_ask = contention.and_then(|own| own.last_ask.take());
                    return Some(Admitted::Turn(number, last_ask));
                }
                Some(Offer::Join(hold, _)) => return Some(Admitted::Join(hold)),
                Some(Offer::Hold(hold)) => return Some(Admitted::Hold(hold)),
                // Only once: an offer made after that is not overdue.
                None if !step.effects.wakes() && self.occupants.is_overdue(step.times.now) => {
                    self.reclaim(step);
                }
                None => break,
            }
        }
        let contention = self.contention.as_deref_mut();
        if let Some(waiter) = contention.and_then(|own| own.waiters.get_mut(waiter_no)) {
            waiter.listens = true;
        }
        None
    }

    /// Takes the offer of a waiter, and the waiter out of the queue. Without one, it enters the queue at its place.
    fn find_offer(
        &mut self,
        waiter_no: u64,
        demand: Demand,
        step: &mut Step<'_, H>,
    ) -> Option<Offer<H>> {
        let pulse = step.times.pulse;
        let contention = self.contention.get_or_insert_default();
        let mut offer = contention.offers.take(waiter_no);
        if offer.is_none() {
            let new = || Waiter { demand, pulse, listens: false };
            let waiter = contention.waiters.get_or_insert_with(waiter_no, new);
            waiter.pulse = pulse;
            waiter.listens = false;
            // A waiter that comes back is at its place again: turns behind it that are not taken up are offered once more.
            let behind = contention.offers.remove_turns_behind(waiter_no);
            Rare::CameBackInOrder.reached_if(|| !behind.is_empty());
            for number in &behind {
                self.occupants.take(*number);
            }
            if !behind.is_empty() || self.occupants.can_all_share(demand.mode) {
                self.advance(step);
                offer = self.contention.get_or_insert_default().offers.take(waiter_no);
            }
        }
        if offer.is_some() {
            // If the offer brings no hold, the next pulse is at the same place.
            self.contention.get_or_insert_default().waiters.remove(waiter_no);
        }
        offer
    }

    /// Removes a waiter that goes. Its offer goes to the next one, and the waiters that it blocked are admitted.
    pub(in crate::engine) fn withdraw(&mut self, waiter_no: u64, step: &mut Step<'_, H>) {
        let Some(contention) = self.contention.as_deref_mut() else { return };
        let has_waited = contention.waiters.remove(waiter_no).is_some();
        match contention.offers.take(waiter_no) {
            Some(Offer::Turn(number)) => {
                Rare::OfferedTurnLeft.reached();
                self.leave(number, step);
            }
            Some(Offer::Hold(hold)) => {
                Rare::HandedOffToDropped.reached();
                step.effects.push(Effect::Return(hold));
            }
            Some(Offer::Join(hold, _)) => step.effects.push(Effect::Drop(hold)),
            // Beside a hold that can be shared, it may have blocked those behind it, as a writer blocks readers.
            None if has_waited && self.occupants.iter().all(|own| mode::is_shared(own.mode)) => {
                self.advance(step);
            }
            None => {}
        }
    }

    /// Takes all waiters out of their sleep.
    pub(in crate::engine) fn wake_all(&mut self, effects: &mut Effects<H>) {
        let contention = self.contention.as_deref_mut();
        let waiters = contention.into_iter().flat_map(|own| own.waiters.iter_mut());
        for (waiter_no, waiter) in waiters {
            if take(&mut waiter.listens) {
                effects.push(Effect::Wake(waiter_no));
            }
        }
    }

    /// Records a pulse of the call that has a turn. From its end on, waiters may reclaim the turn.
    pub(in crate::engine) fn record_pulse(&mut self, number: u64, pulse: Pulse) {
        self.occupants.record_pulse(number, pulse);
    }

    /// Records a request of a turn at `now`, with the pulse of its call. Returns the time of the first unanswered request, or
    /// `None` if the turn was reclaimed.
    pub(in crate::engine) fn asks(
        &mut self,
        number: u64,
        now: Instant,
        pulse: Pulse,
    ) -> Option<Instant> {
        self.occupants.asks(number, pulse)?;
        Some(*self.silent_since.get_or_insert(now))
    }

    /// Records that the store has refused the request of a turn: its call waits, and others have the name.
    pub(in crate::engine) fn refuse(&mut self, number: u64) {
        self.occupants.refuse(number);
    }

    /// Returns whether a turn or a slot has this number. It has not if the turn was reclaimed, or if a grant took it.
    pub(in crate::engine) fn has(&self, number: u64) -> bool {
        self.occupants.get(number).is_some()
    }

    /// Lets holds be handed off to the call that has this turn. Returns whether it still has it.
    pub(in crate::engine) fn seek(
        &mut self,
        number: u64,
        waiter_no: u64,
        lock_delay: Duration,
        effects: &mut Effects<H>,
    ) -> bool {
        let Some(occupant) = self.occupants.get(number) else { return false };
        let seeker = Seeker { number, waiter_no, mode: occupant.mode, lock_delay, last_ask: None };
        let before = self.contention.get_or_insert_default().seeker.replace(seeker);
        if let Some(before) = before {
            if before.waiter_no != waiter_no {
                effects.push(Effect::Wake(before.waiter_no));
            }
            effects.forget(before.last_ask);
        }
        true
    }

    /// Records the last request of the turn that has its number, for the next turn, if a hold is handed off to its call.
    /// Returns whether one can be.
    pub(in crate::engine) fn note_ask(&mut self, last: LastAsk) -> bool {
        let seeker = self.contention.as_deref_mut().and_then(|own| own.seeker.as_mut());
        let Some(seeker) = seeker.filter(|seeker| seeker.number == last.by) else { return false };
        seeker.last_ask = Some(last);
        true
    }

    /// Ends the turn or the slot of this number, and admits the waiters that it blocked. Returns false if it was reclaimed.
    pub(in crate::engine) fn leave(&mut self, number: u64, step: &mut Step<'_, H>) -> bool {
        let Some(occupant) = self.occupants.take(number) else { return false };
        self.forget(std::slice::from_ref(&occupant), step.effects);
        step.effects.drop(occupant.into_hold());
        self.advance(step);
        // The request without an answer was that of an occupant that has left, and the others hold the name beside it. A
        // release of theirs that gets no answer begins another silence.
        if self.silent_since.is_some() && !self.is_asked_for() {
            self.silent_since = None;
        }
        true
    }

    /// Offers turns, and holds that can be joined, to waiters in the order of their numbers, up to the first that must wait.
    /// It passes over those that have given no pulse lately, unless none has.
    fn offer_in_order(&mut self, step: &mut Step<'_, H>) {
        let Times { now, offer, .. } = step.times;
        let read_hold = self.joinable(now).cloned();
        let Some(contention) = self.contention.as_deref_mut() else { return };
        let mut joining = Vec::new();
        let polled = contention.waiters.iter().any(|(_, waiter)| !waiter.pulse.is_over(now));
        for (waiter_no, waiter) in contention.waiters.iter_mut() {
            let passed_over = polled && waiter.pulse.is_over(now);
            if passed_over || contention.offers.contains(waiter_no) {
                continue;
            }
            let mode = waiter.demand.mode;
            let joins = read_hold.as_ref().filter(|_| self.occupants.can_all_share(mode));
            if let Some(hold) = joins {
                joining.push((waiter_no, hold.clone()));
            } else if self.occupants.may_ask(mode) {
                let number = step.numbers.draw();
                self.occupants.push(Occupant::asking(number, mode, offer));
                contention.offers.insert(waiter_no, Offer::Turn(number));
            } else {
                break;
            }
            if take(&mut waiter.listens) {
                step.effects.push(Effect::Wake(waiter_no));
            }
        }
        for (waiter_no, hold) in joining {
            // It blocks no waiter behind it, unless the hold ends before it joins.
            if let Some(waiter) = contention.waiters.remove(waiter_no) {
                contention.offers.insert(waiter_no, Offer::Join(hold, waiter));
            }
        }
    }

    /// Admits the waiters that may ask or join now. A name that is idle then is reset.
    pub(in crate::engine) fn advance(&mut self, step: &mut Step<'_, H>) {
        self.offer_in_order(step);
        if !self.is_asked_for()
            && let Some(contention) = self.contention.as_deref_mut()
        {
            // Without a call that asks next, nothing listens.
            step.effects.forget(contention.last_ask.take());
        }
        if self.is_idle() {
            self.reset(step.effects);
        }
    }

    /// Forgets all about a name without an occupant.
    fn reset(&mut self, effects: &mut Effects<H>) {
        let Self { contention, .. } = take(self);
        // An offer to join a hold that has become one of another mode is left.
        let Some(mut contention) = contention else { return };
        for (_, offer) in contention.offers.remove_all(|_| true) {
            match offer {
                Offer::Turn(_) => {}
                Offer::Join(hold, _) => effects.push(Effect::Drop(hold)),
                Offer::Hold(hold) => effects.push(Effect::Return(hold)),
            }
        }
    }

    /// Reclaims turns from calls that are not polled. A waiter that was offered a turn and has not taken it up in time leaves
    /// the queue until its next pulse. So does each waiter at the head of the queue that is not polled.
    fn reclaim(&mut self, step: &mut Step<'_, H>) {
        Rare::TurnReclaimed.reached();
        let now = step.times.now;
        if let Some(Contention { waiters, offers, .. }) = self.contention.as_deref_mut() {
            let effects = &mut *step.effects;
            let mut remove = |waiters: &mut Waiters, waiter_no: u64| {
                if waiters.remove(waiter_no).is_some_and(|waiter| waiter.listens) {
                    effects.push(Effect::Wake(waiter_no));
                }
            };
            let overdue = offers.numbers(|offer| {
                let Offer::Turn(number) = offer else { return false };
                self.occupants.get(*number).is_some_and(|occupant| occupant.is_overdue(now))
            });
            for waiter_no in overdue {
                remove(waiters, waiter_no);
            }
            // Remove all of them at once: otherwise each would be waited for in turn.
            while let Some((first, waiter)) = waiters.first()
                && waiter.pulse.is_over(now)
                && !offers.contains(first)
            {
                remove(waiters, first);
            }
        }
        self.remove_all(|occupant| occupant.is_overdue(now), step.effects);
        self.advance(step);
    }

    /// Removes occupants. The calls that have their turns are woken.
    fn remove_all(&mut self, reject: impl Fn(&Occupant<H>) -> bool, effects: &mut Effects<H>) {
        let rejected = self.occupants.iter().filter(|occupant| reject(occupant));
        let numbers: Vec<_> = rejected.map(|occupant| occupant.number).collect();
        if numbers.is_empty() {
            return;
        }
        let taken = numbers.into_iter().filter_map(|number| self.occupants.take(number));
        let taken: Vec<_> = taken.collect();
        self.forget(&taken, effects);
        for occupant in taken {
            if occupant.is_asking() {
                effects.push(Effect::Wake(occupant.number));
            }
            effects.drop(occupant.into_hold());
        }
    }

    /// Removes what the name has about occupants that are gone.
    fn forget(&mut self, gone: &[Occupant<H>], effects: &mut Effects<H>) {
        let Some(contention) = self.contention.as_deref_mut() else { return };
        let is = |number: u64| gone.iter().any(|occupant| occupant.number == number);
        contention.read_hold.take_if(|read_hold| is(read_hold.number));
        contention.resting.take_if(|number| is(*number));
        let seeker = contention.seeker.take_if(|seeker| is(seeker.number));
        let has_ended =
            |hold: &H| gone.iter().filter_map(Occupant::hold).any(|ended| ended == hold);
        // Those that have not joined wait at their places again.
        let joins = |offer: &Offer<H>| matches!(offer, Offer::Join(hold, _) if has_ended(hold));
        for (waiter_no, offer) in contention.offers.remove_all(joins) {
            if let Offer::Join(hold, waiter) = offer {
                Rare::JoinEnded.reached();
                contention.waiters.get_or_insert_with(waiter_no, || waiter);
                effects.push(Effect::Drop(hold));
            }
        }
        let offered = contention.offers.remove_all(|offer| match offer {
            Offer::Turn(number) => is(*number),
            Offer::Join(..) => false,
            Offer::Hold(hold) => has_ended(hold),
        });
        for (_, offer) in offered {
            if let Offer::Hold(hold) = offer {
                effects.push(Effect::Return(hold));
            }
        }
        if let Some(seeker) = seeker {
            effects.push(Effect::Wake(seeker.waiter_no));
            effects.forget(seeker.last_ask);
        }
    }
}

/// Grants and holds.
impl<H: Clone + PartialEq> NameState<H> {
    /// Keeps the turn after a grant, for a hold that is to be installed. It keeps it even if the turn was reclaimed meanwhile:
    /// the store cannot grant the name to the turns that replaced it and that exclude this mode.
    pub(in crate::engine) fn keep(
        &mut self,
        granted: Granted,
        effects: &mut Effects<H>,
    ) -> TurnOutcome {
        let Granted { number, mode, is_own, was_forced, served_at } = granted;
        let occupant = self.occupants.get(number);
        // An occupant does not know what came before its own request.
        if (occupant.is_none() || !is_own) && was_forced {
            Rare::GrantForced.reached();
            return TurnOutcome::Forced;
        }
        let forced = occupant.is_some_and(|occupant| occupant.forced);
        let excludes =
            |other: &Occupant<H>| other.number != number && !mode::can_share(other.mode, mode);
        let is_shared = self.occupants.can_all_share(mode);
        if !is_shared && self.occupants.iter().any(|other| other.is_slot() && excludes(other)) {
            Rare::GrantExcluded.reached();
            return TurnOutcome::Excluded;
        }
        if forced {
            Rare::GrantForced.reached();
            return TurnOutcome::Forced;
        }
        if !is_shared {
            Rare::LateGrantEndedTurns.reached_if(|| self.occupants.iter().any(excludes));
            self.remove_all(excludes, effects);
        }
        if self.occupants.change(number, |occupant| occupant.occupy(None)).is_none() {
            Rare::LateGrantKept.reached();
            let mut late = Occupant::asking(number, mode, Pulse::until(Instant::ZERO));
            late.occupy(None);
            self.occupants.push(late);
        }
        if served_at.is_some() || self.contention.is_some() {
            let contention = self.contention.get_or_insert_default();
            contention.served_at = served_at;
            // A hold that was handed off to it now would end the slot of its own.
            let seeker = contention.seeker.take_if(|seeker| seeker.number == number);
            effects.forget(seeker.and_then(|seeker| seeker.last_ask));
        }
        TurnOutcome::Kept
    }

    /// Puts the hold of a grant into its slot. The store has answered at `now`. Returns whether the name may have been forced
    /// open or taken after the request. If the name [is shared with waiters](Self::shares_with_waiters), an
    /// [`advance`](Self::advance) must follow.
    pub(in crate::engine) fn install(&mut self, slotted: SlottedHold<H>, now: Instant) -> bool {
        let SlottedHold { number, mode, hold, joined_until } = slotted;
        let doubted = self.occupants.change(number, |occupant| {
            occupant.occupy(Some(hold));
            occupant.forced || occupant.doubted
        });
        self.answered(now);
        self.gather(number, mode, joined_until);
        doubted.unwrap_or(false)
    }

    /// Returns whether waiters may ask beside a hold of this mode: its turn ends with the grant.
    pub(in crate::engine) fn shares_with_waiters(&self, mode: Mode) -> bool {
        mode::is_shared(mode) && self.has_waiters()
    }

    /// Lets readers of other handles join the hold of this slot, if its mode has that.
    fn gather(&mut self, number: u64, mode: Mode, until: Instant) {
        if mode::is_joined(mode) {
            self.contention.get_or_insert_default().read_hold = Some(ReadHold { number, until });
        }
    }

    /// Lets no further reader join this hold.
    pub(in crate::engine) fn disband(&mut self, hold: &H) {
        let Some(contention) = self.contention.as_deref_mut() else { return };
        let occupant =
            contention.read_hold.and_then(|read_hold| self.occupants.get(read_hold.number));
        if occupant.and_then(Occupant::hold) == Some(hold) {
            contention.read_hold = None;
        }
    }

    /// Returns the waiter that the hold of this slot is handed off to: the first one that is polled, if the hold suits it.
    /// While waiters elsewhere listen and the chain of hand-offs is not young any more, only a waiter that was there when the
    /// store granted the name gets the hold.
    pub(in crate::engine) fn recipient(
        &self,
        slot: u64,
        chain: &Chain,
        times: Times,
    ) -> Option<Recipient> {
        let contention = self.contention.as_deref()?;
        let mode = self.occupants.get(slot)?.mode;
        if !mode::can_hand_off(mode) {
            return None;
        }
        let mut open = self.occupants.open();
        let (waiter_no, waiter) = match (open.next(), open.next()) {
            // A mode that is not shared has no other occupant beside the slot.
            (None, _) if self.occupants.only().is_some() || mode::is_shared(mode) => {
                self.first_waiter(times.now)?
            }
            (Some(asks), None) if mode::is_shared(mode) && !asks.is_overdue(times.now) => {
                if let Some(seeker) = contention.seeker.filter(|own| own.number == asks.number) {
                    let recipient = Recipient { waiter_no: seeker.waiter_no, is_asking: true };
                    let suits = seeker.mode == mode && seeker.lock_delay == chain.delay;
                    return (suits && contention.may_continue(seeker.waiter_no, chain))
                        .then_some(recipient);
                }
                // It has not taken up its turn yet. The last of the offers, if there are others.
                let is_turn =
                    |offer: &Offer<H>| matches!(offer, Offer::Turn(turn) if *turn == asks.number);
                let waiter_no = contention.offers.last(is_turn)?;
                (waiter_no, contention.waiters.get(waiter_no)?)
            }
            _ => return None,
        };
        let Demand { arrived, fair, lock_delay, .. } = waiter.demand;
        let suits = waiter.demand.mode == mode
            && chain.scope.admits(fair, arrived)
            && lock_delay == chain.delay;
        (suits && contention.may_continue(waiter_no, chain))
            .then_some(Recipient { waiter_no, is_asking: false })
    }

    /// Puts the next hold of a chain into its slot, and offers it to the recipient.
    pub(in crate::engine) fn hand_off(
        &mut self,
        slot: u64,
        recipient: Recipient,
        next: H,
        step: &mut Step<'_, H>,
    ) {
        let Recipient { waiter_no, is_asking } = recipient;
        let before = self.occupants.change(slot, |occupant| occupant.occupy(Some(next.clone())));
        step.effects.drop(before.flatten());
        let contention = self.contention.get_or_insert_default();
        contention.resting = None;
        let waiter = if is_asking { None } else { contention.waiters.remove(waiter_no) };
        let turn = if is_asking {
            Rare::HandedOffWhileAsking.reached();
            step.effects.push(Effect::HandOff { to: waiter_no, hold: next });
            contention.seeker.take().map(|seeker| {
                let before = std::mem::replace(&mut contention.last_ask, seeker.last_ask);
                step.effects.forget(before);
                seeker.number
            })
        } else if waiter.is_some_and(|waiter| waiter.listens) {
            step.effects.push(Effect::HandOff { to: waiter_no, hold: next });
            None
        } else {
            // It has been woken already, maybe for an offer that is void now.
            match contention.offers.insert(waiter_no, Offer::Hold(next)) {
                Some(Offer::Turn(number)) => {
                    Rare::HandedOffAfterOffer.reached();
                    Some(number)
                }
                Some(Offer::Join(hold, _)) => {
                    step.effects.push(Effect::Drop(hold));
                    None
                }
                Some(Offer::Hold(hold)) => {
                    step.effects.push(Effect::Return(hold));
                    None
                }
                None => None,
            }
        };
        if let Some(number) = turn {
            // It asks no more, so the next one does.
            self.occupants.take(number);
            self.advance(step);
        }
    }

    /// Returns whether the hold of this slot may rest: nothing else of this process asks for the name or waits, and none is
    /// known to wait elsewhere.
    pub(in crate::engine) fn may_rest(&self, slot: u64) -> bool {
        let is_only = |occupant: &Occupant<H>| occupant.number == slot;
        let is_alone = self.occupants.only().is_some_and(is_only) && !self.has_waiters();
        is_alone && self.contention.as_ref().is_none_or(|own| own.served_at.is_none())
    }

    /// Puts the next hold of a chain into its slot, where it rests.
    pub(in crate::engine) fn rest(&mut self, slot: u64, next: H, effects: &mut Effects<H>) {
        let before = self.occupants.change(slot, |occupant| occupant.occupy(Some(next)));
        effects.drop(before.flatten());
        self.contention.get_or_insert_default().resting = Some(slot);
    }

    /// Withdraws the offer of a hold from a waiter that did not accept it in time.
    pub(in crate::engine) fn recall(&mut self, hold: &H, effects: &mut Effects<H>) {
        let Some(contention) = self.contention.as_deref_mut() else { return };
        let is_offered = |offer: &Offer<H>| matches!(offer, Offer::Hold(own) if own == hold);
        for (_, offer) in contention.offers.remove_all(is_offered) {
            if let Offer::Hold(hold) = offer {
                effects.push(Effect::Return(hold));
            }
        }
    }

    /// Makes the slot of a reader that of a writer, if nothing else of this process holds the name, asks or waits for it.
    /// Returns whether it did.
    pub(in crate::engine) fn begin_upgrade(&mut self, number: u64) -> bool {
        let alone = !self.has_waiters() && self.occupants.only().is_some();
        let upgrade = |occupant: &mut Occupant<H>| occupant.mode = Mode::Write;
        alone && self.occupants.change(number, upgrade).is_some()
    }

    /// Puts a hold of another mode into its slot, and admits the waiters that may ask now.
    pub(in crate::engine) fn replace_in_slot(
        &mut self,
        slotted: SlottedHold<H>,
        step: &mut Step<'_, H>,
    ) {
        let SlottedHold { number, mode, hold, joined_until } = slotted;
        let before = self.occupants.change(number, |occupant| {
            occupant.mode = mode;
            occupant.occupy(Some(hold))
        });
        let Some(before) = before else { return };
        step.effects.drop(before);
        self.gather(number, mode, joined_until);
        self.advance(step);
    }

    /// Sets the mode of a slot back after a change that was refused, and admits the waiters that may ask now.
    pub(in crate::engine) fn end_upgrade(
        &mut self,
        number: u64,
        mode: Mode,
        step: &mut Step<'_, H>,
    ) {
        if self.occupants.change(number, |occupant| occupant.mode = mode).is_some() {
            self.advance(step);
        }
    }
}

/// What is heard about a name.
impl<H: Clone + PartialEq> NameState<H> {
    /// Records a request at `now` that the store has not answered.
    pub(in crate::engine) fn unanswered(&mut self, now: Instant) {
        self.silent_since.get_or_insert(now);
    }

    /// Records that the store answered at `now`.
    pub(in crate::engine) fn answered(&mut self, now: Instant) {
        (self.silent_since, self.heard) = (None, Some(now));
    }

    /// Records that the store answered at `now` that the name is held elsewhere.
    pub(in crate::engine) fn saw_another(&mut self, now: Instant) {
        self.answered(now);
        if let Some(contention) = self.contention.as_deref_mut() {
            // A reader was refused beside readers, so a writer waits elsewhere.
            contention.read_hold = None;
        }
    }

    /// Records that the store has made a semaphore smaller at `now`. Only the store knows when enough permits are released, so
    /// no hold that it has granted by then is handed off any more.
    pub(in crate::engine) fn shrunk(&mut self, now: Instant) {
        self.contention.get_or_insert_default().shrunk = Some(now);
    }

    /// Records that this process forced the name open, or takes it from its holder for the turn of the number `by`: each
    /// other request so far may have been granted before.
    pub(in crate::engine) fn mark_forced(&mut self, by: Option<u64>) {
        self.occupants.mark_forced(by);
    }

    /// Records that another manager says that it has taken the name. A grant that is on its way may have come before.
    pub(in crate::engine) fn mark_doubted(&mut self) {
        self.occupants.mark_doubted();
    }
}

#[cfg(test)]
mod tests {
    //! One name, transition by transition: a state, an input, and the effects that are expected.
    //!
    //! # Rare states
    //!
    //! A simulation should reach each of these. The tests here have the exact effects; the other tests go through the engine.
    //!
    //! | state | tested in |
    //! |---|---|
    //! | a hold is handed off to a waiter that was dropped | `hold_of_a_waiter_that_goes_is_returned`; `handoff::hold_of_a_waiter_that_is_dropped_goes_to_the_next` |
    //! | a hold is handed off to a waiter that was woken just before | `hold_waits_for_a_waiter_that_was_woken_just_before`; `handoff::waiter_just_woken_finds_its_hold_at_the_next_pulse` |
    //! | a hold is offered to a waiter that is not polled, and recalled | `hold_that_is_not_accepted_in_time_is_returned`; `engine::unpolled::hold_handed_to_a_future_that_nobody_polls_is_recalled` |
    //! | a hold that was offered ends before its waiter accepts it | `hold_that_ends_on_its_way_is_returned`; `engine::wait::waiter_handed_a_hold_lost_on_the_way_keeps_its_place` |
    //! | a turn is offered to a waiter that is not polled | `turn_not_taken_up_goes_on_and_its_waiter_stays_first`; `engine::unpolled::turn_of_a_future_nobody_polls_goes_to_the_next_in_line` |
    //! | a turn is offered to a waiter that was dropped | `turn_of_a_waiter_that_goes_is_offered_to_the_next` |
    //! | a turn is reclaimed from a call that asks | `turn_that_is_overdue_is_reclaimed` |
    //! | a turn that was reclaimed ends | `turn_that_was_reclaimed_ends_without_effect` |
    //! | a grant comes for a turn that was reclaimed | `late_grant_takes_the_turn_of_a_waiter_and_wakes_it`; `engine::unpolled::grant_heard_of_late_by_an_unpolled_call_is_its_own` |
    //! | a late grant meets another hold | `grant_is_excluded_by_another_hold` |
    //! | a late grant of a name that is idle since | `grant_counts_when_the_name_is_idle` |
    //! | the name is forced open between a request and its grant | `grant_is_refused_after_a_forced_release` |
    //! | it is forced open, or taken elsewhere, between grant and hold | `hold_is_doubted_after_a_forced_release` |
    //! | a waiter comes back before a turn that was offered behind it | `waiter_that_comes_back_is_before_a_turn_not_taken_up` |
    //! | the same, where the turn is of another mode | `waiter_whose_hold_is_recalled_is_before_the_next_turn` |
    //! | no waiter is polled | `name_is_free_when_no_waiter_is_polled`, `waiters_are_not_overtaken_after_a_stall` |
    //! | a hundred waiters that are not polled are before one that is | `waiters_that_are_not_polled_are_passed_over_at_once` |
    //! | a hold is handed off to a call that asks for permits | `permit_is_handed_off_to_the_call_that_asks`; `engine::permit_handoff` |
    //! | the same before that call has taken up its turn | `permit_is_handed_off_to_a_waiter_with_a_turn` |
    //! | the same between the grant of that call and its hold | `call_that_has_a_grant_keeps_its_slot_at_a_hand_off` |
    //! | the last request of that call is of use to the next, or to none | `next_turn_goes_on_from_the_last_request`, `last_request_is_forgotten_without_a_next_turn` |
    //! | a read hold ends before a waiter has joined it | `reader_that_has_not_joined_waits_where_it_was` |
    //! | a reader becomes a writer while a waiter is about to join it | `reader_may_join_a_hold_that_has_become_a_writer` |
    //! | an upgrade is refused | `upgrade_that_is_refused_admits_readers` |
    //! | a hold rests, and is handed off or ends | `hold_that_rests_is_handed_off_to_the_next_waiter`, `end_of_a_hold_that_rests_admits_the_next_waiter`; `engine::linger` |
    //! | a silence ends with the last turn | `silence_ends_with_the_last_turn` |
    //! | a chain is not young, and waiters elsewhere listen | `old_chain_serves_those_that_were_there_at_its_grant` |
    //! | a semaphore has become smaller | `permit_granted_before_a_resize_is_not_handed_off` |
    //! | the next waiter has another mode, another `lock_delay` or came too late for the line | `hold_is_handed_off_to_the_first_waiter_if_it_suits` |

    use super::*;
    use crate::engine::machine::chain::HandoffScope;
    use crate::engine::machine::effects::{Limits, Numbers};
    use Effect::{Drop, Forget, HandOff, Return, Wake};

    const LIMITS: Limits = Limits {
        attempt: Duration::from_millis(10),
        patience: Duration::from_millis(100),
        joins: Duration::from_millis(50),
    };

    const X: Mode = Mode::Exclusive;
    const PERMIT: Mode = Mode::Permits { size: 3, take: 1 };
    const TWO_PERMITS: Mode = Mode::Permits { size: 3, take: 2 };

    const CHAIN: Chain = Chain {
        began: Instant::ZERO,
        is_young: true,
        scope: HandoffScope::OutsideTheLine,
        delay: Duration::ZERO,
    };

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1) + Duration::from_millis(ms)
    }

    fn until(ms: u64) -> Pulse {
        Pulse::until(at(ms))
    }

    type Hold = &'static str;

    /// A name whose time is `ms`.
    #[derive(Default)]
    struct Rig {
        state: NameState<Hold>,
        numbers: Numbers,
        ms: u64,
        effects: Vec<Effect<Hold>>,
    }

    impl Rig {
        /// Runs a transition now, and keeps its effects for [`effects`](Self::effects).
        fn run<R>(
            &mut self,
            run: impl FnOnce(&mut NameState<Hold>, &mut Step<'_, Hold>) -> R,
        ) -> R {
            let mut effects = Effects::default();
            let times = LIMITS.at(at(self.ms));
            let mut step = Step { times, numbers: &mut self.numbers, effects: &mut effects };
            let result = run(&mut self.state, &mut step);
            effects.each(|effect| self.effects.push(effect));
            result
        }

        /// Returns the effects since the last look.
        fn effects(&mut self) -> Vec<Effect<Hold>> {
            std::mem::take(&mut self.effects)
        }

        fn pulse_of(&mut self, waiter_no: u64, demand: Demand) -> Option<Admitted<Hold>> {
            self.run(|state, step| state.pulse(waiter_no, demand, step))
        }

        fn pulse_in(&mut self, waiter_no: u64, mode: Mode) -> Option<Admitted<Hold>> {
            let lock_delay = Duration::ZERO;
            self.pulse_of(waiter_no, Demand { mode, arrived: at(0), fair: false, lock_delay })
        }

        fn pulse(&mut self, waiter_no: u64) -> Option<Admitted<Hold>> {
            self.pulse_in(waiter_no, X)
        }

        fn turn_of(&mut self, waiter_no: u64) -> u64 {
            match self.pulse(waiter_no) {
                Some(Admitted::Turn(number, _)) => number,
                other => panic!("no turn but {other:?}"),
            }
        }

        /// Puts new waiters into the queue.
        fn waiters<const N: usize>(&mut self, mode: Mode) -> [u64; N] {
            [(); N].map(|()| {
                let waiter_no = self.numbers.draw();
                assert_eq!(self.pulse_in(waiter_no, mode), None);
                waiter_no
            })
        }

        fn try_enter(&mut self, mode: Mode) -> Option<u64> {
            self.run(|state, step| state.try_enter(mode, step))
        }

        fn leave(&mut self, number: u64) -> bool {
            self.run(|state, step| state.leave(number, step))
        }

        fn withdraw(&mut self, waiter_no: u64) {
            self.run(|state, step| state.withdraw(waiter_no, step));
        }

        fn keep_in(&mut self, number: u64, mode: Mode, was_forced: bool) -> TurnOutcome {
            let granted = Granted { number, mode, is_own: true, was_forced, served_at: None };
            self.run(|state, step| state.keep(granted, step.effects))
        }

        fn keep(&mut self, number: u64) -> TurnOutcome {
            self.keep_in(number, X, false)
        }

        fn slotted(&self, number: u64, mode: Mode, hold: Hold) -> SlottedHold<Hold> {
            SlottedHold { number, mode, hold, joined_until: at(self.ms) + LIMITS.joins }
        }

        /// Installs a hold. Returns whether it is doubted.
        fn install(&mut self, number: u64, mode: Mode, hold: Hold) -> bool {
            let slotted = self.slotted(number, mode, hold);
            self.run(|state, step| {
                let doubted = state.install(slotted, step.times.now);
                if state.shares_with_waiters(mode) {
                    state.advance(step);
                }
                doubted
            })
        }

        /// Begins a hold. Returns the number of its slot.
        fn hold(&mut self, mode: Mode, hold: Hold) -> u64 {
            let number = self.try_enter(mode).expect("a turn");
            assert_eq!(self.keep_in(number, mode, false), TurnOutcome::Kept);
            assert!(!self.install(number, mode, hold));
            number
        }

        /// Hands the hold of a slot off. Returns whether there is a waiter for it.
        fn hand_off(&mut self, slot: u64, chain: &Chain, next: Hold) -> bool {
            let times = LIMITS.at(at(self.ms));
            let Some(recipient) = self.state.recipient(slot, chain, times) else { return false };
            self.run(|state, step| state.hand_off(slot, recipient, next, step));
            true
        }
    }

    /// Returns a turn, and three waiters behind it.
    fn three_behind_a_turn() -> (Rig, u64, [u64; 3]) {
        let mut rig = Rig::default();
        let first = rig.try_enter(X).expect("a turn");
        let waiters = rig.waiters(X);
        assert_eq!(rig.effects(), []);
        (rig, first, waiters)
    }

    /// Returns a hold, and three waiters behind it.
    fn three_behind_a_hold() -> (Rig, u64, [u64; 3]) {
        let mut rig = Rig::default();
        let slot = rig.hold(X, "a");
        let waiters = rig.waiters(X);
        (rig, slot, waiters)
    }

    #[test]
    fn turn_alone_and_its_hold_have_no_effect_but_the_end() {
        let mut rig = Rig::default();
        let slot = rig.hold(X, "a");
        assert_eq!(rig.effects(), []);
        assert!(rig.leave(slot));
        assert_eq!(rig.effects(), [Drop("a")]);
        assert!(rig.state.is_idle());
    }

    #[test]
    fn turns_are_offered_in_the_order_of_numbers() {
        let (mut rig, first, [second, third, _]) = three_behind_a_turn();
        assert_eq!(rig.try_enter(X), None);
        assert!(rig.leave(first));
        assert_eq!(rig.effects(), [Wake(second)]);
        assert_eq!(rig.pulse(third), None);
        let turn = rig.turn_of(second);
        assert_eq!(rig.effects(), []);
        assert!(rig.leave(turn));
        assert_eq!(rig.effects(), [Wake(third)]);
    }

    #[test]
    fn waiter_that_goes_is_passed_over() {
        let (mut rig, first, [second, third, _]) = three_behind_a_turn();
        rig.withdraw(second);
        assert_eq!(rig.effects(), []);
        rig.leave(first);
        assert_eq!(rig.effects(), [Wake(third)]);
    }

    #[test]
    fn turn_of_a_waiter_that_goes_is_offered_to_the_next() {
        let (mut rig, first, [second, third, _]) = three_behind_a_turn();
        rig.leave(first);
        assert_eq!(rig.effects(), [Wake(second)]);
        rig.withdraw(second);
        assert_eq!(rig.effects(), [Wake(third)]);
    }

    #[test]
    fn name_is_idle_after_its_last_turn_whatever_waited() {
        let (mut rig, first, waiters) = three_behind_a_turn();
        waiters.into_iter().for_each(|waiter| rig.withdraw(waiter));
        rig.leave(first);
        assert_eq!(rig.effects(), []);
        assert!(rig.state.is_idle() && rig.state.waiting() == 0);
    }

    #[test]
    fn waiters_are_woken_once_until_their_next_pulse() {
        let (mut rig, _, [second, third, fourth]) = three_behind_a_turn();
        rig.run(|state, step| state.wake_all(step.effects));
        assert_eq!(rig.effects(), [Wake(second), Wake(third), Wake(fourth)]);
        assert_eq!(rig.pulse(third), None, "it waits on");
        rig.run(|state, step| state.wake_all(step.effects));
        assert_eq!(rig.effects(), [Wake(third)]);
    }

    #[test]
    fn turn_not_taken_up_goes_on_and_its_waiter_stays_first() {
        let (mut rig, first, [late, second, third]) = three_behind_a_turn();
        rig.leave(first);
        assert_eq!(rig.effects(), [Wake(late)]);
        assert_eq!(rig.pulse(second), None, "it is not due yet");
        rig.ms = 11;
        let taken = rig.turn_of(second);
        // It comes back in time to be the first of the two.
        assert_eq!(rig.pulse(late), None);
        rig.effects();
        rig.leave(taken);
        assert_eq!(rig.effects(), [Wake(late)]);
        assert_eq!(rig.pulse(third), None);
        let turn = rig.turn_of(late);
        rig.leave(turn);
        rig.turn_of(third);
    }

    #[test]
    fn waiter_that_comes_back_is_before_a_turn_not_taken_up() {
        let (mut rig, first, [second, third, fourth]) = three_behind_a_turn();
        rig.leave(first);
        rig.ms = 11;
        rig.effects();
        assert_eq!(rig.pulse(fourth), None, "the turn of the second is the third's now");
        // The number of a turn stands for its call, which is none here.
        assert!(rig.effects().contains(&Wake(third)));
        let turn = rig.turn_of(second);
        assert_eq!((rig.pulse(third), rig.pulse(fourth)), (None, None));
        rig.leave(turn);
        assert_eq!(rig.pulse(fourth), None);
        let turn = rig.turn_of(third);
        rig.leave(turn);
        rig.turn_of(fourth);
    }

    #[test]
    fn waiter_whose_hold_is_recalled_is_before_the_next_turn() {
        let mut rig = Rig::default();
        let first = rig.try_enter(PERMIT).expect("a turn");
        let [second] = rig.waiters(PERMIT);
        let [third] = rig.waiters(TWO_PERMITS);
        assert_eq!(rig.keep_in(first, PERMIT, false), TurnOutcome::Kept);
        rig.install(first, PERMIT, "a");
        assert!(rig.hand_off(first, &CHAIN, "b"));
        assert_eq!(rig.effects(), [Wake(second), Drop("a"), Wake(third)]);
        rig.run(|state, step| state.recall(&"b", step.effects));
        assert_eq!(rig.effects(), [Return("b")]);
        let Some(Admitted::Turn(turn, None)) = rig.pulse_in(second, PERMIT) else {
            panic!("the third has its turn")
        };
        assert_eq!(rig.pulse_in(third, TWO_PERMITS), None);
        rig.leave(turn);
        let admitted = rig.pulse_in(third, TWO_PERMITS);
        assert!(matches!(admitted, Some(Admitted::Turn(..))), "{admitted:?}");
    }

    #[test]
    fn readers_behind_a_writer_that_goes_join() {
        let mut rig = Rig::default();
        rig.hold(Mode::Read, "a");
        let [writer] = rig.waiters(Mode::Write);
        let [reader] = rig.waiters(Mode::Read);
        rig.withdraw(writer);
        assert_eq!(rig.effects(), [Wake(reader)]);
        assert_eq!(rig.pulse_in(reader, Mode::Read), Some(Admitted::Join("a")));
    }

    #[test]
    fn turn_that_is_overdue_is_reclaimed() {
        let (mut rig, first, [second, third, _]) = three_behind_a_turn();
        assert_eq!(rig.state.asks(first, at(0), until(60)), Some(at(0)));
        rig.ms = 59;
        assert_eq!(rig.pulse(second), None, "it is not overdue yet");
        assert_eq!(rig.pulse(third), None);
        rig.ms = 60;
        let taken = rig.turn_of(second);
        assert_eq!(rig.effects(), [Wake(first)], "its call learns it, if it is polled");
        assert_eq!(rig.state.asks(first, at(60), until(99)), None);
        rig.state.record_pulse(first, until(0));
        assert_eq!(rig.pulse(third), None, "the second has it");
        rig.leave(taken);
        rig.turn_of(third);
    }

    #[test]
    fn turn_that_was_reclaimed_ends_without_effect() {
        let (mut rig, first, [second, third, _]) = three_behind_a_turn();
        rig.ms = 11;
        rig.turn_of(second);
        rig.effects();
        assert!(!rig.leave(first));
        assert_eq!(rig.effects(), []);
        assert_eq!(rig.pulse(third), None);
    }

    #[test]
    fn waiters_that_are_not_polled_are_passed_over_at_once() {
        let mut rig = Rig::default();
        rig.try_enter(X).expect("a turn");
        let unpolled: [u64; 100] = rig.waiters(X);
        rig.ms = 500;
        let last = rig.numbers.draw();
        let taken = rig.turn_of(last);
        let woken = rig.effects();
        assert!(
            unpolled.iter().all(|waiter_no| woken.contains(&Wake(*waiter_no))),
            "out of the queue"
        );
        rig.state.record_pulse(taken, until(600));
        // They give a pulse again, and are back in the queue.
        assert!(unpolled.iter().all(|waiter_no| rig.pulse(*waiter_no).is_none()));
        rig.leave(taken);
        let turn = rig.turn_of(unpolled[0]);
        rig.leave(turn);
        rig.turn_of(unpolled[1]);
    }

    #[test]
    fn late_grant_takes_the_turn_of_a_waiter_and_wakes_it() {
        let (mut rig, first, [second, third, _]) = three_behind_a_turn();
        rig.ms = 20;
        let taken = rig.turn_of(second);
        rig.effects();
        assert_eq!(rig.keep(first), TurnOutcome::Kept);
        assert_eq!(rig.effects(), [Wake(taken)], "its call need not wait for the poll interval");
        assert_eq!(rig.state.asks(taken, at(20), until(99)), None);
        assert_eq!(rig.keep(taken), TurnOutcome::Excluded, "the first has a hold");
        assert!(!rig.leave(taken));
        rig.ms = 900;
        assert_eq!(rig.pulse(third), None, "a hold is never overdue");
        assert_eq!(rig.try_enter(X), None);
        rig.leave(first);
        rig.turn_of(third);
    }

    #[test]
    fn late_grant_voids_an_offered_turn() {
        let (mut rig, first, [second, third, fourth]) = three_behind_a_turn();
        rig.ms = 20;
        let taken = rig.turn_of(second);
        rig.leave(taken);
        rig.effects();
        assert_eq!(rig.keep(first), TurnOutcome::Kept);
        assert_eq!((rig.pulse(third), rig.pulse(fourth)), (None, None));
        rig.effects();
        rig.leave(first);
        assert_eq!(rig.effects(), [Wake(third)]);
        rig.turn_of(third);
    }

    #[test]
    fn grant_is_excluded_by_another_hold() {
        let mut rig = Rig::default();
        let late = rig.try_enter(X).expect("a turn");
        rig.ms = 11;
        let slot = rig.hold(X, "b");
        let before = Rare::GrantExcluded.count();
        assert_eq!(rig.keep(late), TurnOutcome::Excluded);
        assert!(Rare::GrantExcluded.count() > before);
        assert_eq!(rig.effects(), [Wake(late)], "when it was reclaimed");
        assert_eq!(rig.state.holds().collect::<Vec<_>>(), [&"b"]);
        assert!(rig.state.has(slot) && !rig.state.has(late));
    }

    #[test]
    fn grant_counts_when_the_name_is_idle() {
        let mut rig = Rig::default();
        let late = rig.try_enter(X).expect("a turn");
        rig.ms = 11;
        let turn = rig.try_enter(X).expect("reclaimed");
        rig.leave(turn);
        assert!(rig.state.is_idle());
        assert_eq!(rig.keep(late), TurnOutcome::Kept);
        rig.ms = 900;
        assert_eq!(rig.try_enter(X), None);
        rig.leave(late);
        assert!(rig.state.is_idle());
    }

    #[test]
    fn grant_is_refused_after_a_forced_release() {
        // Marked, with whether the turn sent the request, and whether this process forced any name open since then.
        let cases = [
            (false, true, false, TurnOutcome::Kept),
            (false, true, true, TurnOutcome::Kept),
            (false, false, true, TurnOutcome::Forced),
            (true, true, false, TurnOutcome::Forced),
        ];
        for (is_marked, is_own, was_forced, kept) in cases {
            let mut rig = Rig::default();
            let number = rig.try_enter(X).expect("a turn");
            if is_marked {
                rig.state.mark_forced(None);
            }
            let granted = Granted { number, mode: X, is_own, was_forced, served_at: None };
            assert_eq!(rig.run(|state, step| state.keep(granted, step.effects)), kept);
        }
        let mut rig = Rig::default();
        assert_eq!(rig.keep_in(7, X, true), TurnOutcome::Forced, "a turn that was reclaimed");
        assert!(rig.state.is_idle());
    }

    #[test]
    fn hold_is_doubted_after_a_forced_release() {
        for (is_forced, by) in [(true, None), (true, Some(1)), (false, None)] {
            let mut rig = Rig::default();
            let number = rig.try_enter(X).expect("a turn");
            assert_eq!((number, rig.keep(number)), (1, TurnOutcome::Kept));
            match is_forced {
                true => rig.state.mark_forced(by),
                false => rig.state.mark_doubted(),
            }
            assert_eq!(rig.install(number, X, "a"), by.is_none(), "unless it forced it itself");
        }
    }

    #[test]
    fn request_forgets_what_was_forced_before_it() {
        let mut rig = Rig::default();
        let number = rig.try_enter(X).expect("a turn");
        rig.state.mark_forced(None);
        rig.state.mark_doubted();
        assert_eq!(rig.state.asks(number, at(0), until(9)), Some(at(0)));
        assert_eq!(rig.keep(number), TurnOutcome::Kept);
        assert!(!rig.install(number, X, "a"));
    }

    #[test]
    fn waiters_are_not_overtaken_after_a_stall() {
        let (mut rig, first, waiters) = three_behind_a_turn();
        rig.ms = 5_000;
        rig.leave(first);
        assert_eq!(rig.effects(), [Wake(waiters[0])], "none is polled, so none is passed over");
        assert_eq!(rig.try_enter(X), None);
        rig.turn_of(waiters[0]);
        assert_eq!(rig.try_enter(X), None);
    }

    #[test]
    fn name_is_free_when_no_waiter_is_polled() {
        let (mut rig, first, waiters) = three_behind_a_turn();
        rig.leave(first);
        rig.ms = 5_000;
        let taken = rig.try_enter(X).expect("a turn");
        assert!(waiters.iter().all(|waiter| rig.pulse(*waiter).is_none()));
        rig.leave(taken);
        rig.turn_of(waiters[0]);
    }

    #[test]
    fn hold_comes_with_the_wake_up_of_its_waiter() {
        let (mut rig, slot, [second, third, _]) = three_behind_a_hold();
        assert!(rig.hand_off(slot, &CHAIN, "b"));
        assert_eq!(rig.effects(), [Drop("a"), HandOff { to: second, hold: "b" }]);
        assert_eq!(rig.state.holds().collect::<Vec<_>>(), [&"b"]);
        assert_eq!(rig.pulse(third), None);
        rig.leave(slot);
        assert_eq!(rig.effects(), [Drop("b"), Wake(third)]);
    }

    #[test]
    fn hold_waits_for_a_waiter_that_was_woken_just_before() {
        let (mut rig, slot, [second, third, _]) = three_behind_a_hold();
        rig.run(|state, step| state.wake_all(step.effects));
        rig.effects();
        assert!(rig.hand_off(slot, &CHAIN, "b"));
        assert_eq!(rig.effects(), [Drop("a")]);
        assert_eq!(rig.pulse(third), None, "it is the second one's");
        assert_eq!(rig.pulse(second), Some(Admitted::Hold("b")));
        assert_eq!(rig.effects(), []);
    }

    /// Returns a hold that waits for a waiter that was woken just before.
    fn offered() -> (Rig, u64, [u64; 3]) {
        let (mut rig, slot, waiters) = three_behind_a_hold();
        rig.run(|state, step| state.wake_all(step.effects));
        assert!(rig.hand_off(slot, &CHAIN, "b"));
        rig.effects();
        (rig, slot, waiters)
    }

    #[test]
    fn hold_of_a_waiter_that_goes_is_returned() {
        let (mut rig, slot, [second, third, _]) = offered();
        rig.withdraw(second);
        assert_eq!(rig.effects(), [Return("b")]);
        // The shell hands it off again.
        rig.pulse(third);
        assert!(rig.hand_off(slot, &CHAIN, "c"));
        assert_eq!(rig.effects(), [Drop("b"), HandOff { to: third, hold: "c" }]);
    }

    #[test]
    fn hold_that_is_not_accepted_in_time_is_returned() {
        let (mut rig, _, [second, third, _]) = offered();
        rig.run(|state, step| state.recall(&"other", step.effects));
        assert_eq!(rig.effects(), []);
        rig.run(|state, step| state.recall(&"b", step.effects));
        assert_eq!(rig.effects(), [Return("b")]);
        assert_eq!(rig.pulse(third), None);
        assert_eq!(rig.pulse(second), None, "it keeps its place");
        assert!(rig.state.is_first(second, at(0)));
    }

    #[test]
    fn hold_that_ends_on_its_way_is_returned() {
        let (mut rig, slot, [second, third, _]) = offered();
        rig.pulse(third);
        rig.leave(slot);
        assert_eq!(rig.effects(), [Return("b"), Drop("b"), Wake(third)]);
        // It is first again as soon as it gives a pulse.
        rig.turn_of(second);
    }

    #[test]
    fn hold_is_handed_off_to_the_first_waiter_if_it_suits() {
        let fair = |ms| Demand { mode: X, arrived: at(ms), fair: true, lock_delay: Duration::ZERO };
        let plain = Demand { fair: false, ..fair(0) };
        let delayed = Demand { lock_delay: Duration::from_secs(1), ..plain };
        let scope = |scope| Chain { scope, ..CHAIN };
        let before = scope(HandoffScope::Before(at(50)));
        let cases = [
            (plain, CHAIN, true),
            (fair(0), CHAIN, false),
            (fair(0), scope(HandoffScope::All), true),
            (fair(49), before, true),
            (fair(50), before, false),
            (delayed, CHAIN, false),
            (delayed, Chain { delay: Duration::from_secs(1), ..CHAIN }, true),
            (Demand { mode: Mode::Write, ..plain }, CHAIN, false),
        ];
        for (demand, chain, suits) in cases {
            let mut rig = Rig::default();
            let slot = rig.hold(X, "a");
            assert_eq!(rig.pulse_of(90, demand), None);
            // One behind it suits, and overtakes none.
            assert_eq!(rig.pulse_of(91, Demand { arrived: at(0), ..plain }), None);
            assert_eq!(rig.hand_off(slot, &chain, "b"), suits, "{demand:?} {chain:?}");
            let expected = [Drop("a"), HandOff { to: 90, hold: "b" }];
            assert_eq!(rig.effects(), if suits { &expected[..] } else { &[] });
        }
    }

    #[test]
    fn hold_is_handed_off_to_the_first_waiter_that_is_polled() {
        let (mut rig, slot, [second, third, _]) = three_behind_a_hold();
        rig.ms = 150;
        assert_eq!(rig.pulse(third), None);
        assert!(!rig.state.is_first(second, at(150)));
        assert!(rig.hand_off(slot, &CHAIN, "b"));
        assert_eq!(rig.effects(), [Drop("a"), HandOff { to: third, hold: "b" }]);
    }

    #[test]
    fn old_chain_serves_those_that_were_there_at_its_grant() {
        for (is_young, served_at, serves) in [(false, 4, false), (false, 5, true), (true, 4, true)]
        {
            let mut rig = Rig::default();
            let number = rig.try_enter(X).expect("a turn");
            let served_at = Some(served_at);
            let granted = Granted { number, mode: X, is_own: true, was_forced: false, served_at };
            assert_eq!(rig.run(|state, step| state.keep(granted, step.effects)), TurnOutcome::Kept);
            rig.install(number, X, "a");
            assert_eq!(rig.pulse(5), None);
            assert_eq!(rig.hand_off(number, &Chain { is_young, ..CHAIN }, "b"), serves);
        }
    }

    #[test]
    fn grant_without_listeners_elsewhere_limits_no_chain() {
        let mut rig = Rig::default();
        for (served_at, serves) in [(Some(4), false), (None, true)] {
            let number = rig.try_enter(X).expect("a turn");
            let granted = Granted { number, mode: X, is_own: true, was_forced: false, served_at };
            assert_eq!(rig.run(|state, step| state.keep(granted, step.effects)), TurnOutcome::Kept);
            rig.install(number, X, "a");
            assert_eq!(rig.pulse(50), None);
            assert_eq!(rig.hand_off(number, &Chain { is_young: false, ..CHAIN }, "b"), serves);
            rig.withdraw(50);
            // Another turn keeps the name from being idle.
            let other = rig.run(|state, step| state.seize(X, step));
            rig.leave(number);
            assert_eq!(rig.keep(other), TurnOutcome::Kept);
            rig.leave(other);
        }
    }

    #[test]
    fn waiter_is_polled_until_its_patience_ends() {
        for (ms, is_passed_over) in [(99, false), (100, true)] {
            let mut rig = Rig::default();
            rig.try_enter(X).expect("a turn");
            let [first] = rig.waiters(X);
            rig.ms = ms;
            let second = rig.numbers.draw();
            assert_eq!(rig.pulse(second).is_some(), is_passed_over);
            assert_eq!(rig.state.is_first(first, at(ms)), !is_passed_over);
        }
    }

    #[test]
    fn idle_name_forgets_a_silence() {
        let mut rig = Rig::default();
        let turn = rig.try_enter(X).expect("a turn");
        rig.state.asks(turn, at(0), until(10));
        rig.ms = 11;
        rig.try_enter(X).expect("reclaimed");
        assert_eq!(rig.state.silence(), None);
    }

    #[test]
    fn permits_are_granted_side_by_side_and_asked_for_one_by_one() {
        let mut rig = Rig::default();
        let first = rig.try_enter(PERMIT).expect("a turn");
        let [second, third] = rig.waiters(PERMIT);
        assert_eq!(rig.keep_in(first, PERMIT, false), TurnOutcome::Kept);
        rig.install(first, PERMIT, "a");
        assert_eq!(rig.effects(), [Wake(second)]);
        assert_eq!(rig.pulse_in(third, PERMIT), None);
        let Some(Admitted::Turn(turn, _)) = rig.pulse_in(second, PERMIT) else { panic!("no turn") };
        rig.state.refuse(turn);
        assert_eq!(rig.try_enter(PERMIT), None, "one that was refused comes first");
    }

    /// Returns a permit, and a call that asks for another, with its number and the number of its turn.
    fn asking_for_permits(mode: Mode) -> (Rig, u64, u64, u64) {
        let mut rig = Rig::default();
        let slot = rig.hold(PERMIT, "a");
        let waiter_no = rig.numbers.draw();
        let Some(Admitted::Turn(turn, _)) = rig.pulse_in(waiter_no, mode) else {
            panic!("no turn")
        };
        (rig, slot, waiter_no, turn)
    }

    #[test]
    fn permit_is_handed_off_to_the_call_that_asks() {
        for (mode, suits) in [(PERMIT, true), (TWO_PERMITS, false)] {
            let (mut rig, slot, waiter_no, turn) = asking_for_permits(mode);
            assert!(!rig.hand_off(slot, &CHAIN, "b"), "it does not seek yet");
            assert!(rig.run(|state, step| state.seek(
                turn,
                waiter_no,
                Duration::ZERO,
                step.effects
            )));
            let [next] = rig.waiters(mode);
            assert_eq!(rig.hand_off(slot, &CHAIN, "b"), suits);
            let expected = [Drop("a"), HandOff { to: waiter_no, hold: "b" }, Wake(next)];
            assert_eq!(rig.effects(), if suits { &expected[..] } else { &[] });
            assert_eq!(rig.state.has(turn), !suits, "its turn ends in the same step");
        }
    }

    /// Lets permits be handed off to the call that asks, and notes its last request.
    fn note_ask(rig: &mut Rig, waiter_no: u64, turn: u64) -> LastAsk {
        let last = LastAsk { by: turn, mode: PERMIT, again_at: at(7) };
        assert!(rig.run(|state, step| state.seek(turn, waiter_no, Duration::ZERO, step.effects)));
        assert!(rig.state.note_ask(last));
        last
    }

    #[test]
    fn next_turn_goes_on_from_the_last_request() {
        for is_noted in [true, false] {
            let (mut rig, slot, waiter_no, turn) = asking_for_permits(PERMIT);
            let last = LastAsk { by: turn, mode: PERMIT, again_at: at(7) };
            assert!(!rig.state.note_ask(last), "no hold can be handed off to it");
            if is_noted {
                note_ask(&mut rig, waiter_no, turn);
            } else {
                rig.run(|state, step| state.seek(turn, waiter_no, Duration::ZERO, step.effects));
            }
            let [next] = rig.waiters(PERMIT);
            assert!(rig.hand_off(slot, &CHAIN, "b"));
            assert_eq!(
                rig.effects(),
                [Drop("a"), HandOff { to: waiter_no, hold: "b" }, Wake(next)]
            );
            let admitted = rig.pulse_in(next, PERMIT);
            let Some(Admitted::Turn(_, found)) = admitted else {
                panic!("no turn but {admitted:?}")
            };
            assert_eq!(found, is_noted.then_some(last));
            assert!(!rig.state.note_ask(last), "its turn is over");
        }
    }

    #[test]
    fn last_request_is_forgotten_without_a_next_turn() {
        let asking = || {
            let (mut rig, slot, waiter_no, turn) = asking_for_permits(PERMIT);
            note_ask(&mut rig, waiter_no, turn);
            (rig, slot, waiter_no, turn)
        };
        let (mut rig, slot, waiter_no, turn) = asking();
        assert!(rig.hand_off(slot, &CHAIN, "b"));
        assert_eq!(
            rig.effects(),
            [Drop("a"), HandOff { to: waiter_no, hold: "b" }, Forget(turn)],
            "none waits"
        );

        let (mut rig, slot, waiter_no, turn) = asking();
        let [next] = rig.waiters(PERMIT);
        assert!(rig.hand_off(slot, &CHAIN, "b"));
        rig.withdraw(next);
        let expected = [Drop("a"), HandOff { to: waiter_no, hold: "b" }, Wake(next), Forget(turn)];
        assert_eq!(rig.effects(), expected, "the next one goes");

        let (mut rig, _, waiter_no, turn) = asking();
        rig.leave(turn);
        assert_eq!(rig.effects(), [Wake(waiter_no), Forget(turn)], "its turn ends");

        let (mut rig, _, _, turn) = asking();
        assert_eq!(rig.keep_in(turn, PERMIT, false), TurnOutcome::Kept);
        assert_eq!(rig.effects(), [Forget(turn)], "the store grants it");

        let (mut rig, _, waiter_no, turn) = asking();
        rig.run(|state, step| state.seek(turn, waiter_no, Duration::ZERO, step.effects));
        assert_eq!(rig.effects(), [Forget(turn)], "it begins again");
    }

    #[test]
    fn permit_is_kept_from_a_call_that_is_not_polled_or_differs() {
        for (ms, delay, suits) in [(9, 0, true), (10, 0, false), (9, 1, false)] {
            let (mut rig, slot, waiter_no, turn) = asking_for_permits(PERMIT);
            let delay = Duration::from_millis(delay);
            rig.run(|state, step| state.seek(turn, waiter_no, delay, step.effects));
            rig.ms = ms;
            assert_eq!(rig.hand_off(slot, &CHAIN, "b"), suits);
        }
    }

    #[test]
    fn call_that_has_a_grant_keeps_its_slot_at_a_hand_off() {
        let (mut rig, slot, waiter_no, turn) = asking_for_permits(PERMIT);
        rig.run(|state, step| state.seek(turn, waiter_no, Duration::ZERO, step.effects));
        assert_eq!(rig.keep_in(turn, PERMIT, false), TurnOutcome::Kept);
        // Its hold is not installed yet.
        assert!(!rig.hand_off(slot, &CHAIN, "b"));
        assert_eq!(rig.effects(), []);
        assert!(!rig.install(turn, PERMIT, "c"));
        assert_eq!(rig.state.holds().collect::<Vec<_>>(), [&"a", &"c"]);
    }

    #[test]
    fn permit_is_handed_off_to_a_waiter_with_a_turn() {
        let (mut rig, slot, _, turn) = asking_for_permits(PERMIT);
        let [second, third] = rig.waiters(PERMIT);
        rig.leave(turn);
        assert_eq!(rig.effects(), [Wake(second)]);
        assert!(rig.hand_off(slot, &CHAIN, "b"));
        assert_eq!(rig.effects(), [Drop("a"), Wake(third)]);
        assert_eq!(rig.pulse_in(second, PERMIT), Some(Admitted::Hold("b")));
    }

    #[test]
    fn seeker_is_woken_when_its_turn_is_reclaimed() {
        let (mut rig, _, waiter_no, turn) = asking_for_permits(PERMIT);
        assert!(rig.run(|state, step| state.seek(turn, waiter_no, Duration::ZERO, step.effects)));
        let [next] = rig.waiters(PERMIT);
        rig.ms = 11;
        assert!(matches!(rig.pulse_in(next, PERMIT), Some(Admitted::Turn(..))));
        assert_eq!(rig.effects(), [Wake(waiter_no), Wake(turn)]);
        assert!(!rig.run(|state, step| state.seek(turn, waiter_no, Duration::ZERO, step.effects)));
    }

    #[test]
    fn permit_granted_before_a_resize_is_not_handed_off() {
        let mut rig = Rig::default();
        let slot = rig.hold(PERMIT, "a");
        let turn = rig.try_enter(PERMIT).expect("a turn");
        let [_] = rig.waiters(PERMIT);
        rig.leave(turn);
        rig.state.shrunk(at(5));
        for (began, may) in [(5, false), (6, true)] {
            let chain = Chain { began: at(began), ..CHAIN };
            let recipient = rig.state.recipient(slot, &chain, LIMITS.at(at(0)));
            assert_eq!(recipient.is_some(), may);
        }
    }

    #[test]
    fn readers_join_in_order_up_to_a_writer() {
        let mut rig = Rig::default();
        let turn = rig.try_enter(Mode::Read).expect("a turn");
        let [one, other] = rig.waiters(Mode::Read);
        let [writer] = rig.waiters(Mode::Write);
        let [last] = rig.waiters(Mode::Read);
        assert_eq!(rig.keep_in(turn, Mode::Read, false), TurnOutcome::Kept);
        rig.install(turn, Mode::Read, "a");
        assert_eq!(rig.effects(), [Wake(one), Wake(other)]);
        assert_eq!(rig.pulse_in(other, Mode::Read), Some(Admitted::Join("a")));
        assert_eq!(rig.pulse_in(one, Mode::Read), Some(Admitted::Join("a")));
        assert_eq!(rig.pulse_in(last, Mode::Read), None);
        assert_eq!(rig.state.read_hold(at(0)), None, "it would overtake the writer");
        rig.leave(turn);
        assert_eq!(rig.effects(), [Drop("a"), Wake(writer)]);
    }

    #[test]
    fn reader_with_an_offered_turn_does_not_join() {
        let mut rig = Rig::default();
        let turn = rig.try_enter(Mode::Read).expect("a turn");
        let [one, other] = rig.waiters(Mode::Read);
        rig.leave(turn);
        assert_eq!(rig.effects(), [Wake(one)]);
        // Readers that wait are no contention for one that makes one attempt.
        let turn = rig.try_enter(Mode::Read).expect("a turn");
        assert_eq!(rig.keep_in(turn, Mode::Read, false), TurnOutcome::Kept);
        rig.install(turn, Mode::Read, "a");
        assert_eq!(rig.effects(), [Wake(other)]);
        assert!(matches!(rig.pulse_in(one, Mode::Read), Some(Admitted::Turn(..))));
        assert_eq!(rig.pulse_in(other, Mode::Read), Some(Admitted::Join("a")));
    }

    #[test]
    fn readers_join_a_writer_that_has_become_a_reader() {
        let mut rig = Rig::default();
        let slot = rig.hold(Mode::Write, "w");
        let [reader] = rig.waiters(Mode::Read);
        let slotted = rig.slotted(slot, Mode::Read, "r");
        rig.run(|state, step| state.replace_in_slot(slotted, step));
        assert_eq!(rig.effects(), [Drop("w"), Wake(reader)]);
        assert_eq!(rig.pulse_in(reader, Mode::Read), Some(Admitted::Join("r")));
    }

    #[test]
    fn reader_that_has_not_waited_joins_for_a_while() {
        let mut rig = Rig::default();
        rig.hold(Mode::Read, "a");
        assert_eq!(rig.state.read_hold(at(49)), Some(&"a"));
        assert_eq!(rig.state.read_hold(at(50)), None);
        rig.state.disband(&"other");
        assert_eq!(rig.state.read_hold(at(0)), Some(&"a"));
        rig.state.saw_another(at(0));
        assert_eq!(rig.state.read_hold(at(0)), None, "a writer waits elsewhere");
    }

    #[test]
    fn reader_that_has_not_joined_waits_where_it_was() {
        let mut rig = Rig::default();
        let turn = rig.try_enter(Mode::Read).expect("a turn");
        let [reader] = rig.waiters(Mode::Read);
        let [writer] = rig.waiters(Mode::Write);
        assert_eq!(rig.keep_in(turn, Mode::Read, false), TurnOutcome::Kept);
        rig.install(turn, Mode::Read, "a");
        assert_eq!(rig.effects(), [Wake(reader)]);
        assert_eq!(rig.state.waiting(), 1, "the reader is about to join");
        rig.leave(turn);
        // The reader has been woken already. It finds a turn at its pulse.
        assert_eq!(rig.effects(), [Drop("a"), Drop("a")]);
        assert!(matches!(rig.pulse_in(reader, Mode::Read), Some(Admitted::Turn(..))));
        assert_eq!(rig.pulse_in(writer, Mode::Write), None);
    }

    #[test]
    fn reader_may_join_a_hold_that_has_become_a_writer() {
        let mut rig = Rig::default();
        let turn = rig.try_enter(Mode::Read).expect("a turn");
        let [reader] = rig.waiters(Mode::Read);
        assert_eq!(rig.keep_in(turn, Mode::Read, false), TurnOutcome::Kept);
        rig.install(turn, Mode::Read, "a");
        assert!(rig.state.begin_upgrade(turn));
        let slotted = rig.slotted(turn, Mode::Write, "w");
        rig.run(|state, step| state.replace_in_slot(slotted, step));
        assert_eq!(rig.effects(), [Wake(reader), Drop("a")]);
        // The join fails, because the hold is over, and the reader waits again.
        assert_eq!(rig.pulse_in(reader, Mode::Read), Some(Admitted::Join("a")));
        assert_eq!(rig.pulse_in(reader, Mode::Read), None);
        rig.leave(turn);
        assert_eq!(rig.effects(), [Drop("w"), Wake(reader)]);
    }

    #[test]
    fn upgrade_needs_a_reader_that_is_alone() {
        let mut rig = Rig::default();
        let slot = rig.hold(Mode::Read, "a");
        let other = rig.try_enter(Mode::Read).expect("a turn");
        assert!(!rig.state.begin_upgrade(slot));
        rig.leave(other);
        let [_] = rig.waiters(Mode::Write);
        assert!(!rig.state.begin_upgrade(slot));
    }

    #[test]
    fn upgrade_that_is_refused_admits_readers() {
        let mut rig = Rig::default();
        let slot = rig.hold(Mode::Read, "a");
        assert!(rig.state.begin_upgrade(slot));
        let [reader] = rig.waiters(Mode::Read);
        rig.run(|state, step| state.end_upgrade(slot, Mode::Read, step));
        assert_eq!(rig.effects(), [Wake(reader)]);
        assert_eq!(rig.pulse_in(reader, Mode::Read), Some(Admitted::Join("a")));
    }

    #[test]
    fn silence_begins_with_the_first_request_that_is_not_answered() {
        let mut rig = Rig::default();
        let turn = rig.try_enter(X).expect("a turn");
        rig.state.answered(at(1));
        assert_eq!(rig.state.silence(), None);
        assert_eq!(rig.state.asks(turn, at(2), until(9)), Some(at(2)));
        assert_eq!(rig.state.asks(turn, at(4), until(9)), Some(at(2)));
        rig.state.unanswered(at(5));
        assert_eq!(rig.state.silence(), Some(Silence { since: at(2), heard: Some(at(1)) }));
        rig.state.saw_another(at(6));
        assert_eq!(rig.state.silence(), None);
    }

    #[test]
    fn silence_ends_with_the_last_turn() {
        let mut rig = Rig::default();
        rig.hold(PERMIT, "a");
        let turn = rig.try_enter(PERMIT).expect("a turn");
        rig.state.asks(turn, at(2), until(9));
        rig.leave(turn);
        assert_eq!(rig.state.silence(), None, "the request was that of the turn");
        let (mut rig, first, [second, _, _]) = three_behind_a_turn();
        rig.state.asks(first, at(2), until(9));
        rig.leave(first);
        rig.turn_of(second);
        assert!(rig.state.silence().is_some(), "the next one asks, too");
    }

    #[test]
    fn name_is_asked_what_it_is_used_as() {
        let mut rig = Rig::default();
        let turn = rig.try_enter(X).expect("a turn");
        assert_eq!(rig.state.used_otherwise(PERMIT).count(), 0, "the store has not answered yet");
        assert!(rig.state.is_mixed(PERMIT) && !rig.state.is_mixed(X));
        rig.state.refuse(turn);
        assert_eq!(rig.state.used_otherwise(PERMIT).count(), 1);
        assert_eq!(rig.state.used_otherwise(X).count(), 0);
        let [waiter, other] = rig.waiters(X);
        assert_eq!((rig.state.ahead(Some(waiter)), rig.state.ahead(Some(other))), (0, 1));
        assert_eq!((rig.state.ahead(None), rig.state.next_arrival(at(0))), (2, None));
    }

    /// Returns a slot whose hold "a" has left it to "b", which rests.
    fn resting() -> (Rig, u64) {
        let mut rig = Rig::default();
        let slot = rig.hold(X, "a");
        assert!(rig.state.may_rest(slot) && rig.state.resting().is_none());
        rig.run(|state, step| state.rest(slot, "b", step.effects));
        assert_eq!((rig.effects(), rig.state.resting()), (vec![Drop("a")], Some(&"b")));
        (rig, slot)
    }

    #[test]
    fn hold_that_rests_is_handed_off_to_the_next_waiter() {
        let (mut rig, slot) = resting();
        assert_eq!(rig.try_enter(X), None);
        let [waiter] = rig.waiters(X);
        assert_eq!(rig.state.resting(), Some(&"b"));
        assert!(rig.hand_off(slot, &CHAIN, "c"));
        assert_eq!(rig.effects(), [Drop("b"), HandOff { to: waiter, hold: "c" }]);
        assert_eq!(rig.state.resting(), None);
        // And may rest again.
        assert!(rig.state.may_rest(slot));
    }

    #[test]
    fn end_of_a_hold_that_rests_admits_the_next_waiter() {
        let (mut rig, slot) = resting();
        let [waiter] = rig.waiters(Mode::Read);
        assert!(!rig.hand_off(slot, &CHAIN, "c"));
        assert!(rig.leave(slot));
        assert_eq!(rig.effects(), [Drop("b"), Wake(waiter)]);
        assert_eq!(rig.state.resting(), None);
    }

    #[test]
    fn hold_rests_only_if_nobody_is_known_to_wait() {
        let (rig, slot, _) = three_behind_a_hold();
        assert!(!rig.state.may_rest(slot));
        let mut rig = Rig::default();
        let slot = rig.try_enter(X).expect("a turn");
        let served_at = Some(slot);
        let granted = Granted { number: slot, mode: X, is_own: true, was_forced: false, served_at };
        rig.run(|state, step| state.keep(granted, step.effects));
        rig.install(slot, X, "a");
        assert!(!rig.state.may_rest(slot), "waiters elsewhere listen");
        let mut rig = Rig::default();
        let slot = rig.hold(X, "a");
        rig.run(|state, step| state.seize(X, step));
        assert!(!rig.state.may_rest(slot), "a steal asks");
    }
}
