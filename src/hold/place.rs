//! A place in the line of a name, and the turn that comes to it.

use super::handoff::Passed;
use super::queue::{Ended, Line, Offer, Queue, Slot, Waiter};
use crate::clock::Instant;
use crate::store::Name;
use std::fmt;
use std::sync::Arc;
use tokio::sync::Notify;

/// What the first in line gets.
pub(crate) enum Admission {
    /// The permission to ask the store.
    Turn(Turn),
    /// What the one before it had; to be accepted.
    Hold(Passed),
}

impl Queue {
    /// Takes the turn of a name that nobody in this process has or waits for.
    pub(crate) fn try_enter(self: &Arc<Self>, name: &Name, now: Instant) -> Option<Turn> {
        let mut line = self.lock();
        let mut ended = Ended::default();
        let turn = loop {
            match line.enter(name, now + self.attempt) {
                (number, None) => break Some(self.turn(&line, name, number, now)),
                (_, Some(slot)) if slot.is_overdue(now) => {}
                (_, Some(_)) => break None,
            }
            ended = self.take_away(&mut line, name, now);
        };
        drop(line);
        ended.tell();
        turn
    }

    fn turn(self: &Arc<Self>, line: &Line, name: &Name, number: u64, now: Instant) -> Turn {
        let not_before = line.pauses.not_before(name, now);
        Turn { queue: Arc::clone(self), name: name.clone(), number, not_before }
    }

    /// A place in the line of a name, from the first [`Place::next`] on.
    pub(crate) fn place(self: &Arc<Self>, name: &Name) -> Place {
        Place { queue: Arc::clone(self), name: name.clone(), ticket: None, told: None }
    }
}

/// Whether a turn is kept for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Yes,
    /// There is a hold already.
    Not,
    /// The name was forced open since the store was asked for it; the grant may be gone.
    Forced,
}

/// The permission to talk to the store about a name, alone in this process.
pub(crate) struct Turn {
    queue: Arc<Queue>,
    name: Name,
    number: u64,
    not_before: Option<Instant>,
}

impl Turn {
    /// When to ask the store at the earliest, if others are to go first.
    pub(crate) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    /// Tells by when the next step follows.
    pub(crate) fn moves_by(&self, time: Instant) {
        self.with_slot(|slot| slot.due = Some(time));
    }

    /// The store is asked at `now`; returns since when it has not answered, or `None` when the turn is over.
    pub(crate) fn asks(&self, now: Instant) -> Option<Instant> {
        self.with_slot(|slot| *slot.silent_since.get_or_insert(now))
    }

    fn with_slot<R>(&self, change: impl FnOnce(&mut Slot) -> R) -> Option<R> {
        let mut line = self.queue.lock();
        line.slots.get_mut(&self.name).filter(|slot| slot.turn == self.number).map(change)
    }

    /// Keeps the turn for a hold: the store was asked at `sent`, and has granted the name. If the turn was taken away
    /// since, it comes back, for whoever has it now can be granted nothing.
    pub(crate) fn keep(&self, sent: Instant, now: Instant) -> Kept {
        let mut line = self.queue.lock();
        let served_at = line.pauses.is_heard(&self.name).then_some(line.numbers);
        let slot =
            line.slots.entry(self.name.clone()).or_insert_with(|| Slot::new(self.number, now));
        if slot.turn != self.number && slot.due.is_none() {
            return Kept::Not;
        }
        if slot.rivals().is_some_and(|rivals| rivals.forced.take_if(|at| *at >= sent).is_some()) {
            return Kept::Forced;
        }
        (slot.turn, slot.due) = (self.number, None);
        if served_at.is_some() || slot.see_rivals().is_some() {
            slot.make_rivals().served_at = served_at;
        }
        let offer = slot.take_offer();
        drop(line);
        drop(offer);
        Kept::Yes
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.queue.pass(&self.name, self.number);
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(&self.name).finish()
    }
}

/// A place in the line; leaving is O(log n). Dropping it gives up what was offered there.
pub(crate) struct Place {
    queue: Arc<Queue>,
    name: Name,
    ticket: Option<u64>,
    /// Made when it has to wait.
    told: Option<Arc<Notify>>,
}

impl Place {
    /// Waits until it is first, looking at `now` and whenever it is told. To be called again each
    /// [`Timing::look_period`], and by a waiter that has not got a hold of what it was given: it keeps its place.
    pub(crate) async fn next(&mut self, now: Instant) -> Admission {
        loop {
            if let Some(admission) = self.look(now) {
                return admission;
            }
            self.told.get_or_insert_default().notified().await;
        }
    }

    /// Whether it waits for a hold of this process, and all others in line are behind it.
    pub(crate) fn is_first_behind_a_hold(&self, now: Instant) -> bool {
        let since = self.queue.looked_since(now);
        let line = self.queue.lock();
        let slot = line.slots.get(&self.name).filter(|slot| slot.hold.is_some());
        let rivals = slot.and_then(Slot::see_rivals);
        let mut waiters = rivals.iter().flat_map(|rivals| &rivals.waiters);
        let first = waiters.find(|(_, waiter)| waiter.looked >= since);
        first.is_some_and(|(ticket, _)| Some(*ticket) == self.ticket)
    }

    fn look(&mut self, now: Instant) -> Option<Admission> {
        let queue = &self.queue;
        let mut line = queue.lock();
        let mut ended = Ended::default();
        let admission = loop {
            let (number, Some(slot)) = line.enter(&self.name, now + queue.attempt) else {
                let number = line.numbers;
                let turn = queue.turn(&line, &self.name, number, now);
                break Some(Admission::Turn(turn));
            };
            let ticket = *self.ticket.get_or_insert(number);
            let rivals = slot.make_rivals();
            let told = self.told.get_or_insert_default();
            let waiter = || Waiter { told: Arc::clone(told), looked: now };
            rivals.waiters.entry(ticket).or_insert_with(waiter).looked = now;
            match rivals.offer.take_if(|(to, _)| *to == ticket) {
                Some((_, Offer::Hold(passed))) => break Some(Admission::Hold(passed)),
                Some((_, Offer::Turn)) => {
                    rivals.waiters.remove(&ticket);
                    let number = slot.turn;
                    let turn = queue.turn(&line, &self.name, number, now);
                    break Some(Admission::Turn(turn));
                }
                None if slot.is_overdue(now) => {}
                None => break None,
            }
            ended = queue.take_away(&mut line, &self.name, now);
        };
        drop(line);
        ended.tell();
        admission
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut line = self.queue.lock();
        let Some(slot) = line.slots.get_mut(&self.name) else { return };
        let turn = slot.turn;
        let Some(rivals) = slot.rivals() else { return };
        rivals.waiters.remove(&ticket);
        let offer = rivals.offer.take_if(|(to, _)| *to == ticket);
        drop(line);
        match offer {
            Some((_, Offer::Turn)) => self.queue.pass(&self.name, turn),
            Some((_, Offer::Hold(passed))) => drop(passed),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::timing::Timing;
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
        queue.place(name).next(queue.clock.now()).await
    }

    fn try_enter(queue: &Arc<Queue>, name: &Name) -> Option<Turn> {
        queue.try_enter(name, queue.clock.now())
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
        let mut told = Box::pin(enter(&queue, &name));
        let mut last = pin!(enter(&queue, &name));
        assert!(poll(gone.as_mut()).is_pending());
        assert!(poll(told.as_mut()).is_pending());
        assert!(poll(last.as_mut()).is_pending());
        drop(gone);
        drop(first);
        // The turn is now in `told`'s hands, though it was not polled since.
        assert!(poll(last.as_mut()).is_pending());
        drop(told);
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
    fn three_in_line() -> (Arc<Queue>, Name, Turn, [Place; 3], Instant) {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let mut places = [(); 3].map(|()| queue.place(&name));
        let now = queue.clock.now();
        for place in &mut places {
            assert!(place.look(now).is_none());
        }
        (queue, name, first, places, now)
    }

    #[test]
    fn turn_not_looked_at_goes_on_and_its_waiter_keeps_its_place() {
        let (queue, _, first, [mut late, mut second, mut third], now) = three_in_line();
        drop(first);
        assert!(second.look(now).is_none());
        let due = queue.clock.now() + Timing::DEFAULT.attempt;
        let taken = turn(second.look(due + Duration::from_nanos(1)));
        // It looks again, in time to be the first of the two.
        assert!(late.look(due).is_none());
        drop(taken);
        assert!(third.look(due).is_none());
        drop(turn(late.look(due)));
        drop(turn(third.look(due)));
    }

    #[test]
    fn turn_that_does_not_move_in_time_is_taken_away() {
        let (_, _, first, [mut second, mut third, _fourth], now) = three_in_line();
        let due = now + Duration::from_secs(60);
        assert_eq!(first.asks(now), Some(now));
        first.moves_by(due);
        assert!(second.look(due).is_none(), "it is not overdue yet");
        let late = due + Duration::from_nanos(1);
        let taken = turn(second.look(late));
        assert_eq!(first.asks(late), None);
        first.moves_by(now);
        drop(first);
        assert!(third.look(late).is_none(), "the second has it");
        drop(taken);
        drop(turn(third.look(late)));
    }

    #[test]
    fn those_that_have_not_looked_lately_are_passed_over_at_once() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let now = queue.clock.now();
        let mut aside: Vec<Place> = (0..100).map(|_| queue.place(&name)).collect();
        for place in &mut aside {
            assert!(place.look(now).is_none());
        }
        let late = now + Timing::DEFAULT.ttl;
        let mut last = queue.place(&name);
        let taken = turn(last.look(late));
        taken.moves_by(late);
        drop(first);
        // They look again, and are in line again.
        assert!(aside.iter_mut().all(|place| place.look(late).is_none()));
        drop(taken);
        drop(turn(aside[0].look(late)));
        drop(turn(aside[1].look(late)));
    }

    #[test]
    fn a_grant_brings_the_turn_back_unless_there_is_a_hold() {
        let (queue, name, first, [mut second, mut third, _fourth], now) = three_in_line();
        let late = now + Timing::DEFAULT.attempt * 2;
        let taken = turn(second.look(late));
        assert_eq!(first.keep(late, late), Kept::Yes);
        assert_eq!(taken.asks(late), None);
        assert_eq!(taken.keep(late, late), Kept::Not, "the first has a hold");
        drop(taken);
        assert!(third.look(late + Timing::DEFAULT.ttl).is_none(), "a hold is never overdue");
        assert!(queue.try_enter(&name, late + Timing::DEFAULT.ttl).is_none());
        drop(first);
        drop(turn(third.look(late)));
    }

    #[test]
    fn a_grant_voids_the_offer_of_the_turn_that_was_taken_away() {
        let (_, _, first, [mut second, mut third, mut fourth], now) = three_in_line();
        let late = now + Timing::DEFAULT.attempt * 2;
        let taken = turn(second.look(late));
        drop(second);
        drop(taken);
        assert_eq!(first.keep(late, late), Kept::Yes);
        assert!(third.look(late).is_none());
        assert!(fourth.look(late).is_none());
        drop(first);
        drop(turn(third.look(late)));
    }

    #[test]
    fn a_turn_is_kept_also_when_nothing_is_left_of_its_slot() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let late = queue.clock.now() + Timing::DEFAULT.ttl;
        drop(queue.try_enter(&name, late).unwrap());
        assert_eq!(first.keep(late, late), Kept::Yes);
        assert!(queue.try_enter(&name, late + Timing::DEFAULT.ttl).is_none());
        drop(first);
        assert!(queue.lock().slots.is_empty());
    }

    #[test]
    fn after_a_stall_no_one_overtakes_those_in_line() {
        let (queue, name) = queue();
        let first = try_enter(&queue, &name).unwrap();
        let mut places = [(); 3].map(|()| queue.place(&name));
        for place in &mut places {
            // Long ago.
            assert!(place.look(Instant::ZERO).is_none());
        }
        drop(first);
        assert!(try_enter(&queue, &name).is_none());
        drop(turn(places[0].look(queue.clock.now())));
        assert!(try_enter(&queue, &name).is_none());
    }

    #[test]
    fn a_name_for_which_only_those_wait_that_do_not_look_is_free() {
        let (queue, name, first, mut places, now) = three_in_line();
        drop(first);
        let late = now + Timing::DEFAULT.ttl;
        let taken = queue.try_enter(&name, late).unwrap();
        assert!(places.iter_mut().all(|place| place.look(late).is_none()));
        drop(taken);
        drop(turn(places[0].look(late)));
    }
}
