//! A place in the line of a name, and what comes to it.

use super::queue::{Ended, Queue};
use super::seat::Seats;
use super::slot::{HandedOff, Member, Offer, Slot, Waiter};
use super::turn::Turn;
use crate::clock::Instant;
use crate::store::{Mode, Name};
use std::sync::Arc;
use tokio::sync::Notify;

/// What a waiter gets.
pub(crate) enum Admission {
    /// The permission to ask the store.
    Turn(Turn),
    /// The hold of another one of this process, handed off; to be accepted.
    Hold(HandedOff),
}

/// A place in the line; leaving is O(log n). Dropping it gives up what was offered there.
pub(crate) struct Ticket {
    queue: Arc<Queue>,
    name: Name,
    mode: Mode,
    number: Option<u64>,
    /// Made when it has to wait.
    notify: Option<Arc<Notify>>,
}

impl Queue {
    /// Returns a place in the line of a name, from the first [`Ticket::next`] on.
    pub(crate) fn ticket(self: &Arc<Self>, name: &Name, mode: Mode) -> Ticket {
        Ticket { queue: Arc::clone(self), name: name.clone(), mode, number: None, notify: None }
    }
}

impl Ticket {
    /// Waits for what comes to it, looking at `now` and whenever it is told. To be called again each
    /// [`Timing::check_in_period`](super::timing::Timing::check_in_period), and by a waiter that has not got a hold of what it
    /// was given: it keeps its place.
    pub(crate) async fn next(&mut self, now: Instant) -> Admission {
        loop {
            if let Some(admission) = self.check_in(now) {
                return admission;
            }
            self.notify.get_or_insert_default().notified().await;
        }
    }

    /// Returns whether it waits for a hold of this process, and all others in line are behind it.
    pub(crate) fn is_first_behind_a_hold(&self, now: Instant) -> bool {
        let since = self.queue.checked_in_since(now);
        let state = self.queue.lock();
        let slot = state.slots.get(&self.name).filter(|slot| slot.holds().next().is_some());
        let rivals = slot.and_then(Slot::rivals);
        let mut waiters = rivals.iter().flat_map(|rivals| &rivals.waiters);
        let first = waiters.find(|(_, waiter)| waiter.checked_in >= since);
        first.is_some_and(|(ticket, _)| Some(*ticket) == self.number)
    }

    fn check_in(&mut self, now: Instant) -> Option<Admission> {
        let (queue, name, mode) = (&self.queue, &self.name, self.mode);
        let mut guard = queue.lock();
        let state = &mut *guard;
        let mut ended = Ended::default();
        let admission = loop {
            let number = state.number();
            let Some(slot) = state.slots.get_mut(name) else {
                let member = Member::asking(number, mode, now + queue.attempt);
                state.slots.insert(name.clone(), Slot::new(member));
                break Some(Admission::Turn(queue.turn(state, name, mode, number, now)));
            };
            let ticket = *self.number.get_or_insert(number);
            let notify = self.notify.get_or_insert_default();
            let waiter = || Waiter { mode, notify: Arc::clone(notify), checked_in: now };
            slot.rivals_or_default().waiters.entry(ticket).or_insert_with(waiter).checked_in = now;
            // It may ask beside those that ask or hold already.
            ended.woken.extend(slot.advance(&mut state.numbers, now + queue.attempt));
            let rivals = slot.rivals_or_default();
            match rivals.offers.remove(&ticket) {
                Some(Offer::Hold(offered)) => break Some(Admission::Hold(offered)),
                Some(Offer::Turn(number)) => {
                    rivals.waiters.remove(&ticket);
                    break Some(Admission::Turn(queue.turn(state, name, mode, number, now)));
                }
                // Only once: what is offered then is not overdue.
                None if ended.is_empty() && slot.is_overdue(now) => {}
                None => break None,
            }
            ended = queue.reclaim(state, name, now);
        };
        drop(guard);
        ended.wake_all();
        admission
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(ticket) = self.number else { return };
        let mut state = self.queue.lock();
        let Some(slot) = state.slots.get_mut(&self.name) else { return };
        let Some(rivals) = slot.rivals_mut() else { return };
        let waiter = rivals.waiters.remove(&ticket);
        let offer = rivals.offers.remove(&ticket);
        drop(state);
        drop(waiter);
        match offer {
            Some(Offer::Turn(number)) => self.queue.leave(&self.name, number),
            Some(Offer::Hold(offered)) => drop(offered),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::timing::Timing;
    use super::super::turn::Kept;
    use super::*;
    use crate::clock::Clock;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    async fn enter(queue: &Arc<Queue>, name: &Name) -> Admission {
        queue.ticket(name, Mode::Exclusive).next(queue.clock.now()).await
    }

    fn try_enter(queue: &Arc<Queue>, name: &Name) -> Option<Turn> {
        queue.try_turn(name, Mode::Exclusive, queue.clock.now())
    }

    fn queue() -> (Arc<Queue>, Name) {
        (Arc::new(Queue::new(Clock::system(), &Timing::DEFAULT)), Name::new("n").unwrap())
    }

    fn turn(admission: Option<Admission>) -> Turn {
        let Some(Admission::Turn(turn)) = admission else { panic!("no turn") };
        turn
    }

    #[test]
    fn turns_go_round_in_the_order_of_arrival() {
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
    fn waiters_dropped_are_passed_over_even_when_their_turn_came() {
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
        // The turn is now in `told`'s hands, though it was not polled since.
        assert!(poll(last.as_mut()).is_pending());
        drop(offered);
        assert!(poll(last.as_mut()).is_ready());
    }

    #[test]
    fn nothing_is_left_when_all_are_gone() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let mut waiters: Vec<_> = (0..10_000).map(|_| Box::pin(enter(&queue, &name))).collect();
        for waiter in &mut waiters {
            assert!(poll(waiter.as_mut()).is_pending());
        }
        drop(waiters);
        drop(first);
        assert!(queue.lock().slots.is_empty());
        assert!(try_enter(&queue, &name).is_some());
    }

    /// Three in line behind a turn, all of which have looked at the time that is returned.
    fn three_in_line() -> (Arc<Queue>, Name, Turn, [Ticket; 3], Instant) {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let mut places = [(); 3].map(|()| queue.ticket(&name, Mode::Exclusive));
        let now = queue.clock.now();
        for place in &mut places {
            assert!(place.check_in(now).is_none());
        }
        (queue, name, first, places, now)
    }

    #[test]
    fn turn_not_looked_at_goes_on_and_its_waiter_keeps_its_place() {
        let (queue, _, first, [mut late, mut second, mut third], now) = three_in_line();
        drop(first);
        assert!(second.check_in(now).is_none());
        let due = queue.clock.now() + Timing::DEFAULT.attempt;
        let taken = turn(second.check_in(due + Duration::from_nanos(1)));
        // It looks again, in time to be the first of the two.
        assert!(late.check_in(due).is_none());
        drop(taken);
        assert!(third.check_in(due).is_none());
        drop(turn(late.check_in(due)));
        drop(turn(third.check_in(due)));
    }

    #[test]
    fn turn_that_does_not_move_in_time_is_taken_away() {
        let (_, _, first, [mut second, mut third, _fourth], now) = three_in_line();
        let due = now + Duration::from_secs(60);
        assert_eq!(first.asked(now), Some(now));
        first.set_due(due);
        assert!(second.check_in(due).is_none(), "it is not overdue yet");
        let late = due + Duration::from_nanos(1);
        let taken = turn(second.check_in(late));
        assert_eq!(first.asked(late), None);
        first.set_due(now);
        drop(first);
        assert!(third.check_in(late).is_none(), "the second has it");
        drop(taken);
        drop(turn(third.check_in(late)));
    }

    #[test]
    fn those_that_have_not_looked_lately_are_passed_over_at_once() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let now = queue.clock.now();
        let mut aside: Vec<Ticket> =
            (0..100).map(|_| queue.ticket(&name, Mode::Exclusive)).collect();
        for place in &mut aside {
            assert!(place.check_in(now).is_none());
        }
        let late = now + Timing::DEFAULT.ttl;
        let mut last = queue.ticket(&name, Mode::Exclusive);
        let taken = turn(last.check_in(late));
        taken.set_due(late);
        drop(first);
        // They look again, and are in line again.
        assert!(aside.iter_mut().all(|place| place.check_in(late).is_none()));
        drop(taken);
        drop(turn(aside[0].check_in(late)));
        drop(turn(aside[1].check_in(late)));
    }

    #[test]
    fn a_grant_brings_the_turn_back_unless_there_is_a_hold() {
        let (queue, name, first, [mut second, mut third, _fourth], now) = three_in_line();
        let late = now + Timing::DEFAULT.attempt * 2;
        let taken = turn(second.check_in(late));
        assert_eq!(first.keep(late), Kept::Yes);
        assert_eq!(taken.asked(late), None);
        assert_eq!(taken.keep(late), Kept::Excluded, "the first has a hold");
        drop(taken);
        assert!(third.check_in(late + Timing::DEFAULT.ttl).is_none(), "a hold is never overdue");
        assert!(queue.try_turn(&name, Mode::Exclusive, late + Timing::DEFAULT.ttl).is_none());
        drop(first);
        drop(turn(third.check_in(late)));
    }

    #[test]
    fn a_grant_voids_the_offer_of_the_turn_that_was_taken_away() {
        let (_, _, first, [mut second, mut third, mut fourth], now) = three_in_line();
        let late = now + Timing::DEFAULT.attempt * 2;
        let taken = turn(second.check_in(late));
        drop(second);
        drop(taken);
        assert_eq!(first.keep(late), Kept::Yes);
        assert!(third.check_in(late).is_none());
        assert!(fourth.check_in(late).is_none());
        drop(first);
        drop(turn(third.check_in(late)));
    }

    #[test]
    fn a_turn_is_kept_also_when_nothing_is_left_of_its_slot() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let late = queue.clock.now() + Timing::DEFAULT.ttl;
        drop(queue.try_turn(&name, Mode::Exclusive, late).unwrap());
        assert_eq!(first.keep(late), Kept::Yes);
        assert!(queue.try_turn(&name, Mode::Exclusive, late + Timing::DEFAULT.ttl).is_none());
        drop(first);
        assert!(queue.lock().slots.is_empty());
    }

    #[test]
    fn after_a_stall_no_one_overtakes_those_in_line() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let mut places = [(); 3].map(|()| queue.ticket(&name, Mode::Exclusive));
        for place in &mut places {
            // Long ago.
            assert!(place.check_in(Instant::ZERO).is_none());
        }
        drop(first);
        assert!(try_enter(&queue, &name).is_none());
        drop(turn(places[0].check_in(queue.clock.now())));
        assert!(try_enter(&queue, &name).is_none());
    }

    #[test]
    fn a_name_for_which_only_those_wait_that_do_not_look_is_free() {
        let (queue, name, first, mut places, now) = three_in_line();
        drop(first);
        let late = now + Timing::DEFAULT.ttl;
        let taken = queue.try_turn(&name, Mode::Exclusive, late).unwrap();
        assert!(places.iter_mut().all(|place| place.check_in(late).is_none()));
        drop(taken);
        drop(turn(places[0].check_in(late)));
    }
}
