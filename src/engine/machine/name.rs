//! One name in this process: who holds it, who asks for it, who waits and who is offered what.
//!
//! A pure state machine. The time comes in as a value, and what is to be done with no lock held goes out as [`Effects`]. It
//! knows a waiter by its number, the *ticket*, and a hold as an opaque `H`, which it carries and compares. The shell around
//! it is the [`Queue`](crate::engine::shared::queue::Queue). Only a waiter that may be granted the name asks the store.
//!
//! # Invariants
//!
//! 1. **[`Occupants::may_ask`] alone decides which waiter asks next.** The end of an occupant admits the waiters that it
//!    blocked, in the order of their tickets.
//! 2. **A waiter keeps its place until it has a hold.** While it gives no pulse, it is out of the queue; at its next pulse it
//!    is back at its place.
//! 3. **No waiter waits for a call that is not polled.** Each turn has the time of its next step. After that, the pulse of any
//!    waiter reclaims it, and passes over the waiters that have given no pulse lately. If none has, none is passed over.
//! 4. **A late grant counts.** A call whose turn was reclaimed keeps the grant of its request, unless another hold excludes
//!    it or the name was forced open meanwhile. The turns that it excludes end, and their calls are woken.
//! 5. **A turn that was reclaimed ends without effect.** Numbers are never drawn twice, so it cannot end another one.
//! 6. **A hold is never lost on the way.** One that was offered is accepted, or it is in [`Effects::returned`]. One that is
//!    removed from the name is in [`Effects::dropped`].
//! 7. **A hold is handed off in its slot**, to the first waiter that is polled, if its mode, its `lock_delay` and its place in
//!    the line allow it. Otherwise it is handed off to no waiter: none is overtaken.
//! 8. **Readers join in order.** A waiter joins the youngest read hold when all before it have been admitted. Until it has
//!    joined, its place is kept: it is back in the queue if that hold ends first.
//! 9. **An idle name remembers nothing.** Without an occupant there is no waiter, no offer and no silence.

use super::effects::{Effects, HandOff, Numbers};
use super::occupants::{Occupant, Occupants};
use super::offers::{Offer, Offers};
use super::scope::Chain;
use super::waiters::{Demand, Waiter, Waiters};
use crate::clock::Instant;
use crate::store::Mode;
use std::mem::take;
use std::time::Duration;

/// The times by which the queue acts.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Limits {
    /// The time in which a waiter must take up its offer.
    pub(in crate::engine) attempt: Duration,
    /// A waiter that has given no pulse for this long is passed over.
    pub(in crate::engine) patience: Duration,
    /// The time for which readers join a read hold.
    pub(in crate::engine) joins: Duration,
}

impl Limits {
    pub(in crate::engine) fn at(&self, now: Instant) -> Times {
        Times { now, since: self.polled_since(now), due: now + self.attempt }
    }

    /// Returns the time since which a waiter that is polled has given a pulse.
    pub(in crate::engine) fn polled_since(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_duration_since(Instant::ZERO + self.patience)
    }
}

/// The time of a transition.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Times {
    pub(in crate::engine) now: Instant,
    /// The time since which a waiter that is polled has given a pulse.
    pub(in crate::engine) since: Instant,
    /// The time by which an offer that is made now is taken up.
    pub(in crate::engine) due: Instant,
}

/// What a transition works with.
pub(in crate::engine) struct Step<'a, H> {
    pub(in crate::engine) times: Times,
    pub(in crate::engine) numbers: &'a mut Numbers,
    pub(in crate::engine) effects: &'a mut Effects<H>,
}

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
    /// The permission to ask the store: the turn of this number.
    Turn(u64),
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
pub(crate) enum Kept {
    /// The turn becomes the slot of a hold.
    Yes,
    /// Another hold exists that cannot share the name with this one.
    Excluded,
    /// The name was forced open after the request was sent; the grant may be gone.
    Forced,
}

/// The local waiter that a hold is handed off to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Recipient {
    pub(in crate::engine) ticket: u64,
    /// Whether it asks the store, and so is not in the queue any more.
    pub(in crate::engine) is_asking: bool,
}

/// A hold to put into a slot.
pub(in crate::engine) struct Seated<H> {
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

/// The waiters of a name, and facts that only matter with waiters or other holders.
struct Contention<H> {
    waiters: Waiters,
    /// The offers that waiters find at their next pulse.
    offers: Offers<H>,
    /// While waiters elsewhere listen: the last number drawn before the store granted the name.
    served_at: Option<u64>,
    /// When this process made the semaphore smaller: what the store had granted by then is released to it.
    shrunk: Option<Instant>,
    /// The read hold that readers of other handles join.
    cohort: Option<Cohort>,
    /// The call that asks for permits, if a hold can be handed off to it.
    seeker: Option<Seeker>,
}

/// The youngest read hold of a name, by the number of its slot.
#[derive(Clone, Copy)]
struct Cohort {
    number: u64,
    /// The time from which on readers ask the store again.
    until: Instant,
}

/// A call with a turn. It is no longer in the queue, but comes before all that are.
#[derive(Clone, Copy)]
struct Seeker {
    /// That of its turn.
    number: u64,
    ticket: u64,
    mode: Mode,
    lock_delay: Duration,
}

impl<H> Default for Contention<H> {
    fn default() -> Self {
        Self {
            waiters: Waiters::default(),
            offers: Offers::default(),
            served_at: None,
            shrunk: None,
            cohort: None,
            seeker: None,
        }
    }
}

impl<H> Contention<H> {
    /// Takes a turn in this mode that was offered to a waiter behind this ticket, and not taken up yet: a waiter that comes
    /// back is at its place again.
    fn take_turn_behind(&mut self, ticket: u64, mode: Mode) -> Option<Offer<H>> {
        let behind = self.offers.first_turn_behind(ticket)?;
        let is_alike = self.waiters.get(behind).is_some_and(|waiter| waiter.demand.mode == mode);
        if is_alike { self.offers.take(behind) } else { None }
    }

    /// Returns whether a chain of hand-offs may go on with this waiter, as far as others are concerned that the store serves.
    fn may_continue(&self, ticket: u64, chain: &Chain) -> bool {
        let is_late = !chain.is_young && self.served_at.is_some_and(|last| ticket > last);
        let is_too_many = self.shrunk.is_some_and(|shrunk| chain.began <= shrunk);
        !is_late && !is_too_many
    }
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

    pub(in crate::engine) fn has_waiters(&self) -> bool {
        self.waiters().is_some_and(|waiters| !waiters.is_empty())
    }

    /// Returns the number of waiters.
    pub(in crate::engine) fn waiting(&self) -> usize {
        self.waiters().map_or(0, Waiters::len)
    }

    /// Returns the number of waiters before that of this ticket.
    pub(in crate::engine) fn ahead(&self, ticket: Option<u64>) -> usize {
        let Some(ticket) = ticket else { return self.waiting() };
        let before =
            |waiters: &Waiters| waiters.iter().take_while(|(own, _)| *own < ticket).count();
        self.waiters().map_or(0, before)
    }

    fn waiters(&self) -> Option<&Waiters> {
        self.contention.as_deref().map(|contention| &contention.waiters)
    }

    /// Returns the first waiter that has given a pulse since `since`.
    fn first_waiter(&self, since: Instant) -> Option<(u64, &Waiter)> {
        self.waiters()?.iter().find(|(_, waiter)| waiter.pulse >= since)
    }

    /// Returns whether this waiter is the first of those that have given a pulse since `since`.
    pub(in crate::engine) fn is_first(&self, ticket: u64, since: Instant) -> bool {
        self.first_waiter(since).is_some_and(|(first, _)| first == ticket)
    }

    /// Returns the arrival of the waiter that asks next, if it takes part in the line of the name.
    pub(in crate::engine) fn next_arrival(&self, since: Instant) -> Option<Instant> {
        let (_, first) = self.first_waiter(since)?;
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
    pub(in crate::engine) fn cohort(&self, now: Instant) -> Option<&H> {
        if self.has_waiters() { None } else { self.joinable(now) }
    }

    /// Returns the hold that a reader may join.
    fn joinable(&self, now: Instant) -> Option<&H> {
        let cohort = self.contention.as_ref()?.cohort.filter(|cohort| now < cohort.until)?;
        let occupant = self.occupants.get(cohort.number)?;
        occupant.hold().filter(|_| occupant.mode.is_joined())
    }

    /// Returns the silence of the store; `None` if it has answered all requests.
    pub(in crate::engine) fn silence(&self) -> Option<Silence> {
        self.silent_since.map(|since| Silence { since, heard: self.heard })
    }

    /// Returns whether a call that makes one attempt may ask now.
    fn may_try(&self, mode: Mode) -> bool {
        // Those that wait for a hold to join are no contention.
        let excluded = |waiter: &Waiter| !(mode.is_joined() && mode.can_share(waiter.demand.mode));
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
        self.occupants.push(Occupant::asking(number, mode, step.times.due));
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
        ticket: u64,
        demand: Demand,
        step: &mut Step<'_, H>,
    ) -> Option<Admitted<H>> {
        loop {
            if self.is_idle() {
                return Some(Admitted::Turn(self.seize(demand.mode, step)));
            }
            match self.find_offer(ticket, demand, step) {
                Some(Offer::Turn(number)) => return Some(Admitted::Turn(number)),
                Some(Offer::Join(hold, _)) => return Some(Admitted::Join(hold)),
                Some(Offer::Hold(hold)) => return Some(Admitted::Hold(hold)),
                // Only once: an offer made after that is not overdue.
                None if step.effects.woken.is_empty()
                    && self.occupants.is_overdue(step.times.now) =>
                {
                    self.reclaim(step);
                }
                None => break,
            }
        }
        let contention = self.contention.as_deref_mut();
        if let Some(waiter) = contention.and_then(|own| own.waiters.get_mut(ticket)) {
            waiter.listens = true;
        }
        None
    }

    /// Takes the offer of a waiter, and the waiter out of the queue. Without one, it enters the queue at its place.
    fn find_offer(
        &mut self,
        ticket: u64,
        demand: Demand,
        step: &mut Step<'_, H>,
    ) -> Option<Offer<H>> {
        let now = step.times.now;
        let contention = self.contention.get_or_insert_default();
        let mut offer = contention.offers.take(ticket);
        if offer.is_none() {
            let new = || Waiter { demand, pulse: now, listens: false };
            let waiter = contention.waiters.get_or_insert_with(ticket, new);
            (waiter.pulse, waiter.listens) = (now, false);
            offer = contention.take_turn_behind(ticket, demand.mode);
            if offer.is_none() && self.occupants.can_all_share(demand.mode) {
                self.advance(step);
                offer = self.contention.get_or_insert_default().offers.take(ticket);
            }
        }
        if offer.is_some() {
            // If the offer brings no hold, the next pulse is at the same place.
            self.contention.get_or_insert_default().waiters.remove(ticket);
        }
        offer
    }

    /// Removes a waiter that goes. Its offer goes to the next one.
    pub(in crate::engine) fn withdraw(&mut self, ticket: u64, step: &mut Step<'_, H>) {
        let Some(contention) = self.contention.as_deref_mut() else { return };
        contention.waiters.remove(ticket);
        match contention.offers.take(ticket) {
            Some(Offer::Turn(number)) => {
                self.leave(number, step);
            }
            Some(Offer::Hold(hold)) => step.effects.returned.push(hold),
            Some(Offer::Join(hold, _)) => step.effects.dropped.push(hold),
            None => {}
        }
    }

    /// Takes all waiters out of their sleep.
    pub(in crate::engine) fn wake_all(&mut self, effects: &mut Effects<H>) {
        let contention = self.contention.as_deref_mut();
        let waiters = contention.into_iter().flat_map(|own| own.waiters.iter_mut());
        let listening = waiters.filter_map(|(ticket, waiter)| {
            let listens = take(&mut waiter.listens);
            listens.then_some(ticket)
        });
        effects.woken.extend(listening);
    }

    /// Sets the time by which a turn takes its next step. After that, waiters may reclaim the turn.
    pub(in crate::engine) fn set_due(&mut self, number: u64, due: Instant) {
        self.occupants.set_due(number, due);
    }

    /// Records a request of a turn at `now`, and that its next step follows by `due`. Returns the time of the first
    /// unanswered request, or `None` if the turn was reclaimed.
    pub(in crate::engine) fn asks(
        &mut self,
        number: u64,
        now: Instant,
        due: Instant,
    ) -> Option<Instant> {
        self.occupants.asks(number, due)?;
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
        ticket: u64,
        lock_delay: Duration,
        effects: &mut Effects<H>,
    ) -> bool {
        let Some(occupant) = self.occupants.get(number) else { return false };
        let seeker = Seeker { number, ticket, mode: occupant.mode, lock_delay };
        let before = self.contention.get_or_insert_default().seeker.replace(seeker);
        effects.woken.extend(before.map(|before| before.ticket).filter(|before| *before != ticket));
        true
    }

    /// Returns whether holds can be handed off to the call that has this turn.
    pub(in crate::engine) fn is_seeker(&self, number: u64) -> bool {
        let seeker = self.contention.as_ref().and_then(|contention| contention.seeker);
        seeker.is_some_and(|seeker| seeker.number == number)
    }

    /// Ends the turn or the slot of this number, and admits the waiters that it blocked. Returns false if it was reclaimed.
    pub(in crate::engine) fn leave(&mut self, number: u64, step: &mut Step<'_, H>) -> bool {
        let Some(occupant) = self.occupants.take(number) else { return false };
        self.forget(std::slice::from_ref(&occupant), step.effects);
        step.effects.dropped.extend(occupant.into_hold());
        self.advance(step);
        // The request without an answer was that of an occupant that has left, and the others hold the name beside it. A
        // release of theirs that gets no answer begins another silence.
        if self.silent_since.is_some() && !self.is_asked_for() {
            self.silent_since = None;
        }
        true
    }

    /// Offers turns, and holds that can be joined, to waiters in the order of their tickets, up to the first that must wait.
    /// It passes over those that have given no pulse lately, unless none has.
    fn offer_in_order(&mut self, step: &mut Step<'_, H>) {
        let Times { now, since, due } = step.times;
        let cohort = self.joinable(now).cloned();
        let Some(contention) = self.contention.as_deref_mut() else { return };
        let mut joining = Vec::new();
        let polled = contention.waiters.iter().any(|(_, waiter)| waiter.pulse >= since);
        for (ticket, waiter) in contention.waiters.iter_mut() {
            let passed_over = polled && waiter.pulse < since;
            if passed_over || contention.offers.contains(ticket) {
                continue;
            }
            let mode = waiter.demand.mode;
            let joins = cohort.as_ref().filter(|_| self.occupants.can_all_share(mode));
            if let Some(hold) = joins {
                joining.push((ticket, hold.clone()));
            } else if self.occupants.may_ask(mode) {
                let number = step.numbers.draw();
                self.occupants.push(Occupant::asking(number, mode, due));
                contention.offers.insert(ticket, Offer::Turn(number));
            } else {
                break;
            }
            if take(&mut waiter.listens) {
                step.effects.woken.push(ticket);
            }
        }
        for (ticket, hold) in joining {
            // It blocks no waiter behind it, unless the hold ends before it joins.
            if let Some(waiter) = contention.waiters.remove(ticket) {
                contention.offers.insert(ticket, Offer::Join(hold, waiter));
            }
        }
    }

    /// Admits the waiters that may ask or join now. A name that is idle then is reset.
    pub(in crate::engine) fn advance(&mut self, step: &mut Step<'_, H>) {
        self.offer_in_order(step);
        if self.is_idle() {
            self.reset(step.effects);
        }
    }

    /// Forgets all about a name without an occupant.
    fn reset(&mut self, effects: &mut Effects<H>) {
        let Self { contention, .. } = take(self);
        // An offer to join a hold that has become one of another mode is left.
        let Some(mut contention) = contention else { return };
        for (_, offer) in contention.offers.take_all(|_| true) {
            match offer {
                Offer::Turn(_) => {}
                Offer::Join(hold, _) => effects.dropped.push(hold),
                Offer::Hold(hold) => effects.returned.push(hold),
            }
        }
    }

    /// Reclaims turns from calls that are not polled. A waiter that was offered a turn and has given no pulse by its due time
    /// leaves the queue until its next pulse. So does each waiter at the head of the queue that has given none since `since`.
    fn reclaim(&mut self, step: &mut Step<'_, H>) {
        let Times { now, since, .. } = step.times;
        if let Some(Contention { waiters, offers, .. }) = self.contention.as_deref_mut() {
            let woken = &mut step.effects.woken;
            let mut remove = |waiters: &mut Waiters, ticket: u64| {
                let waiter = waiters.remove(ticket);
                woken.extend(waiter.is_some_and(|waiter| waiter.listens).then_some(ticket));
            };
            let overdue = offers.tickets(|offer| {
                let Offer::Turn(number) = offer else { return false };
                self.occupants.get(*number).is_some_and(|occupant| occupant.is_overdue(now))
            });
            for ticket in overdue {
                remove(waiters, ticket);
            }
            // Remove all of them at once: otherwise each would be waited for in turn.
            while let Some((first, waiter)) = waiters.first()
                && waiter.pulse < since
                && !offers.contains(first)
            {
                remove(waiters, first);
            }
        }
        self.take_all(|occupant| occupant.is_overdue(now), step.effects);
        self.advance(step);
    }

    /// Removes occupants. The calls that have their turns are woken.
    fn take_all(&mut self, reject: impl Fn(&Occupant<H>) -> bool, effects: &mut Effects<H>) {
        let rejected = self.occupants.iter().filter(|occupant| reject(occupant));
        let numbers: Vec<_> = rejected.map(|occupant| occupant.number).collect();
        let taken = numbers.into_iter().filter_map(|number| self.occupants.take(number));
        let taken: Vec<_> = taken.collect();
        self.forget(&taken, effects);
        for occupant in taken {
            if occupant.is_asking() {
                effects.woken.push(occupant.number);
            }
            effects.dropped.extend(occupant.into_hold());
        }
    }

    /// Removes what the name has about occupants that are gone.
    fn forget(&mut self, gone: &[Occupant<H>], effects: &mut Effects<H>) {
        let Some(contention) = self.contention.as_deref_mut() else { return };
        let is = |number: u64| gone.iter().any(|occupant| occupant.number == number);
        contention.cohort.take_if(|cohort| is(cohort.number));
        let seeker = contention.seeker.take_if(|seeker| is(seeker.number));
        let has_ended =
            |hold: &H| gone.iter().filter_map(Occupant::hold).any(|ended| ended == hold);
        // Those that have not joined wait at their places again.
        let joins = |offer: &Offer<H>| matches!(offer, Offer::Join(hold, _) if has_ended(hold));
        for (ticket, offer) in contention.offers.take_all(joins) {
            if let Offer::Join(hold, waiter) = offer {
                contention.waiters.get_or_insert_with(ticket, || waiter);
                effects.dropped.push(hold);
            }
        }
        let offered = contention.offers.take_all(|offer| match offer {
            Offer::Turn(number) => is(*number),
            Offer::Join(..) => false,
            Offer::Hold(hold) => has_ended(hold),
        });
        for (_, offer) in offered {
            if let Offer::Hold(hold) = offer {
                effects.returned.push(hold);
            }
        }
        effects.woken.extend(seeker.map(|seeker| seeker.ticket));
    }
}

/// Grants and holds.
impl<H: Clone + PartialEq> NameState<H> {
    /// Keeps the turn after a grant, for a hold that is to be installed. It keeps it even if the turn was reclaimed meanwhile:
    /// the store cannot grant the name to the turns that replaced it and that exclude this mode.
    pub(in crate::engine) fn keep(&mut self, granted: Granted, effects: &mut Effects<H>) -> Kept {
        let Granted { number, mode, is_own, was_forced, served_at } = granted;
        let occupant = self.occupants.get(number);
        // An occupant does not know what came before its own request.
        if (occupant.is_none() || !is_own) && was_forced {
            return Kept::Forced;
        }
        let forced = occupant.is_some_and(|occupant| occupant.forced);
        let excludes = |other: &Occupant<H>| other.number != number && !other.mode.can_share(mode);
        let is_shared = self.occupants.can_all_share(mode);
        if !is_shared && self.occupants.iter().any(|other| other.is_slot() && excludes(other)) {
            return Kept::Excluded;
        }
        if forced {
            return Kept::Forced;
        }
        if !is_shared {
            self.take_all(excludes, effects);
        }
        if self.occupants.change(number, |occupant| occupant.seat(None)).is_none() {
            let mut late = Occupant::asking(number, mode, Instant::ZERO);
            late.seat(None);
            self.occupants.push(late);
        }
        if served_at.is_some() || self.contention.is_some() {
            let contention = self.contention.get_or_insert_default();
            contention.served_at = served_at;
            // A hold that was handed off to it now would end the slot of its own.
            contention.seeker.take_if(|seeker| seeker.number == number);
        }
        Kept::Yes
    }

    /// Puts the hold of a grant into its slot. The store has answered at `now`. Returns whether the name may have been forced
    /// open or taken after the request. If the name [is shared with waiters](Self::shares_with_waiters), an
    /// [`advance`](Self::advance) must follow.
    pub(in crate::engine) fn install(&mut self, seated: Seated<H>, now: Instant) -> bool {
        let Seated { number, mode, hold, joined_until } = seated;
        let doubted = self.occupants.change(number, |occupant| {
            occupant.seat(Some(hold));
            occupant.forced || occupant.doubted
        });
        self.answered(now);
        self.gather(number, mode, joined_until);
        doubted.unwrap_or(false)
    }

    /// Returns whether waiters may ask beside a hold of this mode: its turn ends with the grant.
    pub(in crate::engine) fn shares_with_waiters(&self, mode: Mode) -> bool {
        mode.is_shared() && self.has_waiters()
    }

    /// Lets readers of other handles join the hold of this slot, if its mode has that.
    fn gather(&mut self, number: u64, mode: Mode, until: Instant) {
        if mode.is_joined() {
            self.contention.get_or_insert_default().cohort = Some(Cohort { number, until });
        }
    }

    /// Lets no further reader join this hold.
    pub(in crate::engine) fn disband(&mut self, hold: &H) {
        let Some(contention) = self.contention.as_deref_mut() else { return };
        let occupant = contention.cohort.and_then(|cohort| self.occupants.get(cohort.number));
        if occupant.and_then(Occupant::hold) == Some(hold) {
            contention.cohort = None;
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
        if !mode.can_hand_off() {
            return None;
        }
        let mut open = self.occupants.open();
        let (ticket, waiter) = match (open.next(), open.next()) {
            // A mode that is not shared has no other occupant beside the slot.
            (None, _) if self.occupants.only().is_some() || mode.is_shared() => {
                self.first_waiter(times.since)?
            }
            (Some(asks), None) if mode.is_shared() && !asks.is_overdue(times.now) => {
                if let Some(seeker) = contention.seeker.filter(|own| own.number == asks.number) {
                    let recipient = Recipient { ticket: seeker.ticket, is_asking: true };
                    let suits = seeker.mode == mode && seeker.lock_delay == chain.delay;
                    return (suits && contention.may_continue(seeker.ticket, chain))
                        .then_some(recipient);
                }
                // It has not taken up its turn yet. The last of the offers, if there are others.
                let is_turn =
                    |offer: &Offer<H>| matches!(offer, Offer::Turn(turn) if *turn == asks.number);
                let ticket = contention.offers.last(is_turn)?;
                (ticket, contention.waiters.get(ticket)?)
            }
            _ => return None,
        };
        let Demand { arrived, fair, lock_delay, .. } = waiter.demand;
        let suits = waiter.demand.mode == mode
            && chain.scope.admits(fair, arrived)
            && lock_delay == chain.delay;
        (suits && contention.may_continue(ticket, chain))
            .then_some(Recipient { ticket, is_asking: false })
    }

    /// Puts the next hold of a chain into its slot, and offers it to the recipient.
    pub(in crate::engine) fn hand_off(
        &mut self,
        slot: u64,
        recipient: Recipient,
        next: H,
        step: &mut Step<'_, H>,
    ) {
        let Recipient { ticket, is_asking } = recipient;
        let before = self.occupants.change(slot, |occupant| occupant.seat(Some(next.clone())));
        step.effects.dropped.extend(before.flatten());
        let contention = self.contention.get_or_insert_default();
        let waiter = if is_asking { None } else { contention.waiters.remove(ticket) };
        let turn = if is_asking {
            step.effects.handed_off = Some(HandOff { to: ticket, hold: next });
            contention.seeker.take().map(|seeker| seeker.number)
        } else if waiter.is_some_and(|waiter| waiter.listens) {
            step.effects.handed_off = Some(HandOff { to: ticket, hold: next });
            None
        } else {
            // It has been woken already, maybe for an offer that is void now.
            match contention.offers.insert(ticket, Offer::Hold(next)) {
                Some(Offer::Turn(number)) => Some(number),
                Some(Offer::Join(hold, _)) => {
                    step.effects.dropped.push(hold);
                    None
                }
                Some(Offer::Hold(hold)) => {
                    step.effects.returned.push(hold);
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

    /// Withdraws the offer of a hold from a waiter that did not accept it in time.
    pub(in crate::engine) fn miss(&mut self, hold: &H, effects: &mut Effects<H>) {
        let Some(contention) = self.contention.as_deref_mut() else { return };
        let is_offered = |offer: &Offer<H>| matches!(offer, Offer::Hold(own) if own == hold);
        for (_, offer) in contention.offers.take_all(is_offered) {
            if let Offer::Hold(hold) = offer {
                effects.returned.push(hold);
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
    pub(in crate::engine) fn reseat(&mut self, seated: Seated<H>, step: &mut Step<'_, H>) {
        let Seated { number, mode, hold, joined_until } = seated;
        let before = self.occupants.change(number, |occupant| {
            occupant.mode = mode;
            occupant.seat(Some(hold))
        });
        let Some(before) = before else { return };
        step.effects.dropped.extend(before);
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
            contention.cohort = None;
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
