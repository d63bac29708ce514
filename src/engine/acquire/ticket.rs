//! A place in the queue of a name, and the offers made to it.

use super::turn::Turn;
use crate::clock::Instant;
use crate::engine::machine::handed_off::HandedOff;
use crate::engine::machine::members::Member;
use crate::engine::machine::name::NameEntry;
use crate::engine::machine::offers::Offer;
use crate::engine::machine::queue::{Ended, Queue};
use crate::engine::machine::waiters::Waiter;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::options::{NO_OPTIONS, Options};
use crate::store::{Mode, Name};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// An offer that a waiter took up.
pub(crate) enum Admission {
    /// The permission to ask the store.
    Turn(Turn),
    /// A read hold that it may join.
    Join(Arc<Hold>),
    /// A hold that another flow of this process handed off. The waiter must still accept it.
    Hold(HandedOff),
}

/// The waiter has no offer.
pub(crate) struct Waits {
    /// When the oldest request of this name left that the store has not answered.
    pub(crate) silent_since: Option<Instant>,
    /// Whether this process may use the name as another kind of lock.
    pub(crate) mixed: bool,
}

/// A place in the queue. Leaving is O(log n), but O(n) in the middle of n offers. Dropping it gives up its offer.
pub(crate) struct Ticket<'a> {
    queue: &'a Arc<Queue>,
    name: &'a Name,
    mode: Mode,
    options: &'a Options,
    number: Option<u64>,
    arrived: Instant,
    fair: bool,
    /// Whether it may be in the queue.
    queued: bool,
    /// Is sent to when an offer comes. Created when it has to wait.
    woken: Option<oneshot::Receiver<Option<HandedOff>>>,
    /// A hold that came with the wake-up, for the next check-in.
    handed_off: Option<HandedOff>,
}

impl Queue {
    /// Returns a ticket for a name. It enters the queue at its first [`Ticket::check_in`].
    pub(crate) fn ticket<'a>(self: &'a Arc<Self>, name: &'a Name, mode: Mode) -> Ticket<'a> {
        Ticket {
            queue: self,
            name,
            mode,
            options: &NO_OPTIONS,
            number: None,
            arrived: Instant::ZERO,
            fair: false,
            queued: false,
            woken: None,
            handed_off: None,
        }
    }
}

impl<'a> Ticket<'a> {
    /// Sets the time of its arrival, and whether it takes part in the line of the name.
    pub(crate) fn arrived(mut self, time: Instant, fair: bool) -> Self {
        (self.arrived, self.fair) = (time, fair);
        if fair {
            self.queue.is_fair.store(true, Ordering::Relaxed);
        }
        self
    }

    /// Sets the options of the handle that waits.
    pub(crate) fn with(mut self, options: &'a Options) -> Self {
        self.options = options;
        self
    }

    /// Returns its number, by which waiters are in order, once it has checked in.
    pub(in crate::engine) fn number(&self) -> Option<u64> {
        self.number
    }

    /// Waits until it is woken for an offer, after a check-in that found none.
    pub(crate) async fn woken(&mut self) {
        if let Some(woken) = &mut self.woken {
            // It is dropped without a message when the waiter is passed over. A check-in is due then as well.
            self.handed_off = woken.await.ok().flatten();
            self.woken = None;
        }
    }

    /// Returns whether it waits for the end of a hold of this process and is the first waiter that is
    /// polled.
    pub(crate) fn is_first_behind_a_hold(&self, now: Instant) -> bool {
        let since = self.queue.checked_in_since(now);
        let state = self.queue.lock();
        let excludes = |hold: &Arc<Hold>| !hold.mode.can_share(self.mode);
        let entry = state.names.get(self.name);
        let entry = entry.filter(|entry| entry.holds().next().is_some_and(excludes));
        let first = entry.and_then(|entry| entry.first_waiter(since));
        first.is_some_and(|(ticket, _)| Some(ticket) == self.number)
    }

    /// Takes the hold that came with the last wake-up, if one did.
    fn take_handed_off(&mut self) -> Option<HandedOff> {
        if let Some(Ok(offered)) = self.woken.as_mut().map(oneshot::Receiver::try_recv) {
            (self.woken, self.handed_off) = (None, offered);
        }
        self.handed_off.take()
    }

    /// Shows that the waiter is polled, and takes its offer, if there is one. A waiter calls this again whenever it is
    /// [`woken`](Ticket::woken), each
    /// [`Timing::check_in_period`](crate::engine::machine::timing::Timing::check_in_period), and after a turn or an
    /// offered hold that brought no hold: it keeps its place.
    pub(crate) fn check_in(&mut self, now: Instant) -> Result<Admission, Waits> {
        if let Some(offered) = self.take_handed_off() {
            // The hand-off took it out of the queue.
            self.queued = false;
            return Ok(Admission::Hold(offered));
        }
        let (queue, name, mode) = (self.queue, self.name, self.mode);
        let (arrived, fair) = (self.arrived, self.fair);
        let (mut replaced, mut removed, mut passed) = (None, None, Vec::new());
        let mut guard = queue.lock();
        let state = &mut *guard;
        let mut ended = Ended::default();
        let admission = loop {
            let number = state.number();
            let Some(entry) = state.names.get_mut(name) else {
                let member = Member::asking(number, mode, now + queue.attempt);
                state.names.insert(name.clone(), NameEntry::new(member));
                let place = *self.number.get_or_insert(number);
                let turn = queue.turn(state, (name, mode), (number, place), now);
                break Ok(Admission::Turn(turn));
            };
            let ticket = *self.number.get_or_insert(number);
            let rivals = entry.rivals_or_default();
            let mut offer = rivals.offers.take(ticket);
            if offer.is_none() {
                let new = || {
                    let options = self.options.clone();
                    Waiter { mode, options, wake: None, checked_in: now, arrived, fair }
                };
                let waiter = rivals.waiters.get_or_insert_with(ticket, new);
                waiter.checked_in = now;
                if waiter.wake.is_none() {
                    let (wake, woken) = oneshot::channel();
                    waiter.wake = Some(wake);
                    replaced = self.woken.replace(woken);
                }
                self.queued = true;
                offer = rivals.take_turn_behind(ticket, mode);
                if offer.is_none() && entry.members.can_all_share(mode) {
                    let (woken, traces) = entry.advance(&mut state.numbers, queue.times(now));
                    ended.woken.extend(woken);
                    passed.push(traces);
                    offer = entry.rivals_or_default().offers.take(ticket);
                }
            }
            if offer.is_some() {
                // If the offer brings no hold, the next check-in is at the same place.
                removed = entry.rivals_or_default().waiters.remove(ticket);
                self.queued = false;
            }
            match offer {
                Some(Offer::Hold(offered)) => break Ok(Admission::Hold(offered)),
                Some(Offer::Join(hold, _)) => break Ok(Admission::Join(hold)),
                Some(Offer::Turn(number)) => {
                    let seen = entry.rivals_or_default().seen.take();
                    let mut turn = queue.turn(state, (name, mode), (number, ticket), now);
                    turn.seen = seen;
                    break Ok(Admission::Turn(turn));
                }
                // Only once: an offer made after that is not overdue.
                None if ended.is_empty() && entry.is_overdue(now) => {}
                None => {
                    let mixed = entry.members.is_mixed(mode);
                    break Err(Waits { silent_since: entry.silent_since, mixed });
                }
            }
            ended = queue.reclaim(state, name, now);
        };
        drop(guard);
        drop((replaced, removed, passed));
        ended.wake_all();
        admission
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.number.filter(|_| self.queued) else { return };
        let mut state = self.queue.lock();
        let Some(entry) = state.names.get_mut(self.name) else { return };
        let Some(rivals) = entry.rivals_mut() else { return };
        let waiter = rivals.waiters.remove(ticket);
        let offer = rivals.offers.take(ticket);
        drop(state);
        drop(waiter);
        match offer {
            Some(Offer::Turn(number)) => self.queue.leave(self.name, number),
            Some(Offer::Hold(offered)) => drop(offered),
            Some(Offer::Join(..)) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::engine::acquire::turn::Kept;
    use crate::engine::machine::timing::Timing;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    async fn enter(queue: &Arc<Queue>, name: &Name) -> Admission {
        let mut ticket = queue.ticket(name, Mode::Exclusive);
        loop {
            match ticket.check_in(queue.clock.now()) {
                Ok(admission) => return admission,
                Err(_) => ticket.woken().await,
            }
        }
    }

    fn try_enter(queue: &Arc<Queue>, name: &Name) -> Option<Turn> {
        queue.try_turn(name, Mode::Exclusive, queue.clock.now())
    }

    fn queue() -> (Arc<Queue>, Name) {
        (Arc::new(Queue::new(Clock::system(), &Timing::DEFAULT)), Name::new("n").unwrap())
    }

    fn turn(admission: Result<Admission, Waits>) -> Turn {
        let Ok(Admission::Turn(turn)) = admission else { panic!("no turn") };
        turn
    }

    #[test]
    fn turns_are_offered_in_the_order_of_arrival() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        assert!(try_enter(&queue, &name).is_none());
        let mut second = pin!(enter(&queue, &name));
        let mut third = pin!(enter(&queue, &name));
        assert!(poll(second.as_mut()).is_pending());
        assert!(poll(third.as_mut()).is_pending());
        drop(first);
        assert!(poll(third.as_mut()).is_pending());
        let Poll::Ready(Admission::Turn(turn)) = poll(second.as_mut()) else {
            panic!("second is first now")
        };
        drop(turn);
        assert!(poll(third.as_mut()).is_ready());
    }

    #[test]
    fn waiters_dropped_are_passed_over_even_when_offered_a_turn() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let mut gone = Box::pin(enter(&queue, &name));
        let mut offered = Box::pin(enter(&queue, &name));
        let mut last = pin!(enter(&queue, &name));
        assert!(poll(gone.as_mut()).is_pending());
        assert!(poll(offered.as_mut()).is_pending());
        assert!(poll(last.as_mut()).is_pending());
        drop(gone);
        drop(first);
        // The turn is offered to `offered`, which has not been polled since.
        assert!(poll(last.as_mut()).is_pending());
        drop(offered);
        assert!(poll(last.as_mut()).is_ready());
    }

    #[test]
    fn waiters_of_all_names_are_woken_at_once() {
        let (queue, name) = queue();
        let names = [name, Name::new("m").unwrap()];
        let turns = names.each_ref().map(|name| try_enter(&queue, name).unwrap());
        let mut waiting = names.each_ref().map(|name| queue.ticket(name, Mode::Exclusive));
        for ticket in &mut waiting {
            assert!(ticket.check_in(queue.clock.now()).is_err());
            assert!(poll(pin!(ticket.woken())).is_pending());
        }
        queue.wake_all();
        for ticket in &mut waiting {
            assert!(poll(pin!(ticket.woken())).is_ready());
            assert!(ticket.check_in(queue.clock.now()).is_err(), "it waits on");
        }
        drop(turns);
    }

    #[test]
    fn entry_is_removed_with_its_last_waiter_and_turn() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let mut waiters: Vec<_> = (0..10_000).map(|_| Box::pin(enter(&queue, &name))).collect();
        for waiter in &mut waiters {
            assert!(poll(waiter.as_mut()).is_pending());
        }
        drop(waiters);
        drop(first);
        assert!(queue.lock().names.is_empty());
        assert!(try_enter(&queue, &name).is_some());
    }

    /// Returns three tickets behind a turn, and the time at which all have checked in.
    fn three_in_line<'a>(
        queue: &'a Arc<Queue>,
        name: &'a Name,
    ) -> (Turn, [Ticket<'a>; 3], Instant) {
        let first = try_enter(queue, name).unwrap();
        let mut places = [(); 3].map(|()| queue.ticket(name, Mode::Exclusive));
        let now = queue.clock.now();
        for place in &mut places {
            assert!(place.check_in(now).is_err());
        }
        (first, places, now)
    }

    #[test]
    fn turn_not_taken_up_goes_on_and_its_waiter_keeps_its_place() {
        let (queue, name) = queue();
        let (first, [mut late, mut second, mut third], now) = three_in_line(&queue, &name);
        drop(first);
        assert!(second.check_in(now).is_err());
        let due = queue.clock.now() + Timing::DEFAULT.attempt;
        let taken = turn(second.check_in(due + Duration::from_nanos(1)));
        // It checks in again, in time to be the first of the two.
        assert!(late.check_in(due).is_err());
        drop(taken);
        assert!(third.check_in(due).is_err());
        drop(turn(late.check_in(due)));
        drop(turn(third.check_in(due)));
    }

    #[test]
    fn waiter_that_comes_back_is_before_a_turn_not_taken_up() {
        let (queue, name) = queue();
        let (first, [mut second, mut third, mut fourth], _) = three_in_line(&queue, &name);
        drop(first);
        let due = queue.clock.now() + Timing::DEFAULT.attempt + Duration::from_nanos(1);
        assert!(fourth.check_in(due).is_err(), "the turn of the second is the third's now");
        let taken = turn(second.check_in(due));
        assert!(third.check_in(due).is_err());
        assert!(fourth.check_in(due).is_err());
        drop(taken);
        assert!(fourth.check_in(due).is_err());
        drop(turn(third.check_in(due)));
        drop(turn(fourth.check_in(due)));
    }

    #[test]
    fn turn_that_is_overdue_is_reclaimed() {
        let (queue, name) = queue();
        let (first, [mut second, mut third, _fourth], now) = three_in_line(&queue, &name);
        let due = now + Duration::from_secs(60);
        assert_eq!(first.asked(now, due), Some(now));
        assert!(second.check_in(due).is_err(), "it is not overdue yet");
        let late = due + Duration::from_nanos(1);
        let taken = turn(second.check_in(late));
        assert_eq!(first.asked(late, late), None);
        first.set_due(now);
        drop(first);
        assert!(third.check_in(late).is_err(), "the second has it");
        drop(taken);
        drop(turn(third.check_in(late)));
    }

    #[test]
    fn waiters_not_checked_in_lately_are_passed_over_at_once() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let now = queue.clock.now();
        let mut aside: Vec<Ticket> =
            (0..100).map(|_| queue.ticket(&name, Mode::Exclusive)).collect();
        for place in &mut aside {
            assert!(place.check_in(now).is_err());
        }
        let late = now + Timing::DEFAULT.ttl;
        let mut last = queue.ticket(&name, Mode::Exclusive);
        let taken = turn(last.check_in(late));
        taken.set_due(late);
        drop(first);
        // They check in again, and are back in the queue.
        assert!(aside.iter_mut().all(|place| place.check_in(late).is_err()));
        drop(taken);
        drop(turn(aside[0].check_in(late)));
        drop(turn(aside[1].check_in(late)));
    }

    #[test]
    fn turn_comes_back_with_a_grant_unless_there_is_a_hold() {
        let (queue, name) = queue();
        let (first, [mut second, mut third, _fourth], now) = three_in_line(&queue, &name);
        let late = now + Timing::DEFAULT.attempt * 2;
        let taken = turn(second.check_in(late));
        assert_eq!(first.keep(late, true), Kept::Yes);
        assert_eq!(taken.asked(late, late), None);
        assert_eq!(taken.keep(late, true), Kept::Excluded, "the first has a hold");
        drop(taken);
        assert!(third.check_in(late + Timing::DEFAULT.ttl).is_err(), "a hold is never overdue");
        assert!(queue.try_turn(&name, Mode::Exclusive, late + Timing::DEFAULT.ttl).is_none());
        drop(first);
        drop(turn(third.check_in(late)));
    }

    #[test]
    fn grant_voids_the_offer_of_a_reclaimed_turn() {
        let (queue, name) = queue();
        let (first, [mut second, mut third, mut fourth], now) = three_in_line(&queue, &name);
        let late = now + Timing::DEFAULT.attempt * 2;
        let taken = turn(second.check_in(late));
        drop(second);
        drop(taken);
        assert_eq!(first.keep(late, true), Kept::Yes);
        assert!(third.check_in(late).is_err());
        assert!(fourth.check_in(late).is_err());
        drop(first);
        drop(turn(third.check_in(late)));
    }

    #[test]
    fn turn_is_kept_even_when_its_entry_is_gone() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let late = queue.clock.now() + Timing::DEFAULT.ttl;
        drop(queue.try_turn(&name, Mode::Exclusive, late).unwrap());
        assert_eq!(first.keep(late, true), Kept::Yes);
        assert!(queue.try_turn(&name, Mode::Exclusive, late + Timing::DEFAULT.ttl).is_none());
        drop(first);
        assert!(queue.lock().names.is_empty());
    }

    #[test]
    fn waiters_are_not_overtaken_after_a_stall() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let mut places = [(); 3].map(|()| queue.ticket(&name, Mode::Exclusive));
        for place in &mut places {
            // Long ago.
            assert!(place.check_in(Instant::ZERO).is_err());
        }
        drop(first);
        assert!(try_enter(&queue, &name).is_none());
        drop(turn(places[0].check_in(queue.clock.now())));
        assert!(try_enter(&queue, &name).is_none());
    }

    #[test]
    fn name_is_free_when_no_waiter_of_it_checks_in() {
        let (queue, name) = queue();
        let (first, mut places, now) = three_in_line(&queue, &name);
        drop(first);
        let late = now + Timing::DEFAULT.ttl;
        let taken = queue.try_turn(&name, Mode::Exclusive, late).unwrap();
        assert!(places.iter_mut().all(|place| place.check_in(late).is_err()));
        drop(taken);
        drop(turn(places[0].check_in(late)));
    }
}
