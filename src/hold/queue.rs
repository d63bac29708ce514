//! Waiters queue at home: per name a FIFO, so that only its head talks to the store.
//!
//! # Invariants
//!
//! 1. A name has a slot exactly as long as somebody has its [`Turn`], or was offered it.
//! 2. A turn is with one waiter or one hold; dropping it offers it to the first waiter that looks,
//!    or ends the slot.
//! 3. Nothing is dropped, woken or sent while the map is locked.
//! 4. A waiter keeps its place until it has a turn or a hold. What it does not look at in time goes to
//!    the next, and it is passed over until it looks again.

use super::Hold;
use super::alarm::wake;
use super::handoff::Passed;
use crate::clock::Instant;
use crate::store::Name;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Queue {
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    slots: HashMap<Name, Slot>,
    tickets: u64,
    /// Until when the next turn of a name is to wait, so that other processes can go first.
    giving_way: HashMap<Name, Instant>,
    /// At how many of these the past ones are swept out next.
    sweep_at: usize,
}

impl Line {
    fn not_before(&mut self, name: &Name) -> Option<Instant> {
        if self.giving_way.is_empty() { None } else { self.giving_way.remove(name) }
    }
}

#[derive(Default)]
struct Slot {
    hold: Option<Arc<Hold>>,
    waiters: BTreeMap<u64, Waiter>,
    /// Since when the store has not answered who asked it for this name.
    silent_since: Option<Instant>,
}

/// A place in the line, as the queue has it.
struct Waiter {
    told: Arc<Notify>,
    offer: Option<Offer>,
}

/// What a waiter finds when it looks.
enum Offer {
    Turn {
        not_before: Option<Instant>,
        /// When another waiter first saw that it lay there.
        seen: Option<Instant>,
    },
    Hold(Passed),
    /// It did not look in time.
    Missed,
}

/// What the first in line gets.
pub(crate) enum Admission {
    /// The right to ask the store.
    Turn(Turn),
    /// What the one before it had; to be accepted.
    Hold(Passed),
}

impl Queue {
    /// Takes the turn of a name that nobody in this process has or waits for.
    pub(crate) fn try_enter(self: &Arc<Self>, name: &Name) -> Option<Turn> {
        let mut line = self.lock();
        match line.slots.entry(name.clone()) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(place) => place.insert(Slot::default()),
        };
        let not_before = line.not_before(name);
        drop(line);
        Some(self.turn(name, not_before))
    }

    fn turn(self: &Arc<Self>, name: &Name, not_before: Option<Instant>) -> Turn {
        Turn { queue: Some(Arc::clone(self)), name: name.clone(), not_before }
    }

    /// A place in the line of a name, from the first [`Place::next`] on.
    pub(crate) fn place(self: &Arc<Self>, name: &Name) -> Place {
        let (queue, told) = (Arc::clone(self), Arc::new(Notify::new()));
        Place { queue, name: name.clone(), ticket: None, told }
    }

    /// The next turn of a name is to wait until `until`, for other processes want it too.
    pub(crate) fn give_way(&self, name: &Name, now: Instant, until: Instant) {
        let mut line = self.lock();
        if line.giving_way.len() >= line.sweep_at.max(64) {
            line.giving_way.retain(|_, until| *until > now);
            line.sweep_at = 2 * line.giving_way.len();
        }
        line.giving_way.insert(name.clone(), until);
    }

    /// Puts the hold in place that the first waiter who looks is to have, if there is one, and tells how to wake
    /// that.
    pub(crate) fn hand_over(
        &self,
        name: &Name,
        next: impl FnOnce() -> (Arc<Hold>, Passed),
    ) -> Option<(Arc<Notify>, Arc<Hold>)> {
        let mut line = self.lock();
        let slot = line.slots.get_mut(name)?;
        let waiter = slot.waiters.values_mut().find(|waiter| waiter.offer.is_none())?;
        let (next, passed) = next();
        waiter.offer = Some(Offer::Hold(passed));
        // What was there is alive in the hands of whoever passes it on.
        slot.hold = Some(Arc::clone(&next));
        Some((Arc::clone(&waiter.told), next))
    }

    /// The waiter that was offered `hold` has not looked in time.
    pub(crate) fn missed(&self, hold: &Arc<Hold>) {
        let mut line = self.lock();
        let Some(slot) = line.slots.get_mut(&hold.name) else { return };
        let missed = slot
            .waiters
            .values_mut()
            .find(|waiter| matches!(&waiter.offer, Some(Offer::Hold(passed)) if passed.is(hold)));
        let offer = missed.and_then(|waiter| waiter.offer.replace(Offer::Missed));
        drop(line);
        drop(offer);
    }

    /// Looks whether the turn of a name lies unseen; what has done so for `limit` goes to the next.
    pub(crate) fn hurry(self: &Arc<Self>, name: &Name, now: Instant, limit: Duration) {
        let mut line = self.lock();
        let Some(slot) = line.slots.get_mut(name) else { return };
        let mut offers = slot.waiters.values_mut().map(|waiter| &mut waiter.offer);
        let Some(offer) = offers.find(|offer| matches!(offer, Some(Offer::Turn { .. }))) else {
            return;
        };
        if let Some(Offer::Turn { seen, .. }) = offer
            && now < *seen.get_or_insert(now) + limit
        {
            return;
        }
        *offer = Some(Offer::Missed);
        drop(line);
        self.pass(name);
    }

    /// Makes a hold known under its name, for as long as it keeps the turn.
    pub(crate) fn install(&self, hold: &Arc<Hold>) {
        if let Some(slot) = self.lock().slots.get_mut(&hold.name) {
            slot.hold = Some(Arc::clone(hold));
            slot.silent_since = None;
        }
    }

    /// The store is asked for a name at `now`; returns since when it has not answered.
    pub(crate) fn asked(&self, name: &Name, now: Instant) -> Instant {
        let mut line = self.lock();
        line.slots.get_mut(name).map_or(now, |slot| *slot.silent_since.get_or_insert(now))
    }

    /// The store has answered.
    pub(crate) fn answered(&self, name: &Name) {
        if let Some(slot) = self.lock().slots.get_mut(name) {
            slot.silent_since = None;
        }
    }

    /// Since when the store has not answered who asked it for this name.
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

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers the turn to the first waiter that looks. What that was offered before has come to nothing.
    fn pass(&self, name: &Name) {
        let mut line = self.lock();
        let Entry::Occupied(mut place) = line.slots.entry(name.clone()) else {
            return;
        };
        let hold = place.get_mut().hold.take();
        let first = place.get().waiters.iter().find_map(|(ticket, waiter)| {
            (!matches!(waiter.offer, Some(Offer::Missed))).then_some(*ticket)
        });
        let Some(ticket) = first else {
            let slot = place.remove();
            drop(line);
            drop((hold, slot));
            return;
        };
        let not_before = line.not_before(name);
        let waiter = line.slots.get_mut(name).and_then(|slot| slot.waiters.get_mut(&ticket));
        let offered = waiter.map(|waiter| {
            let offer = waiter.offer.replace(Offer::Turn { not_before, seen: None });
            (Arc::clone(&waiter.told), offer)
        });
        drop(line);
        drop(hold);
        if let Some((told, offer)) = offered {
            wake(|| told.notify_one());
            drop(offer);
        }
    }
}

/// The right to talk to the store about a name, alone in this process.
pub(crate) struct Turn {
    queue: Option<Arc<Queue>>,
    name: Name,
    not_before: Option<Instant>,
}

impl Turn {
    /// When to ask the store at the earliest, if others are to go first.
    pub(crate) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.pass(&self.name);
        }
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
    told: Arc<Notify>,
}

impl Place {
    /// Waits until it is first. Whoever does not accept a hold keeps the place.
    pub(crate) async fn next(&mut self) -> Admission {
        loop {
            if let Some(admission) = self.look() {
                return admission;
            }
            self.told.notified().await;
        }
    }

    fn look(&mut self) -> Option<Admission> {
        let mut line = self.queue.lock();
        let Line { slots, tickets, .. } = &mut *line;
        let not_before = match slots.entry(self.name.clone()) {
            Entry::Vacant(place) => {
                place.insert(Slot::default());
                line.not_before(&self.name)
            }
            Entry::Occupied(mut place) => {
                let ticket = *self.ticket.get_or_insert_with(|| {
                    *tickets += 1;
                    *tickets
                });
                let waiters = &mut place.get_mut().waiters;
                let waiter = waiters
                    .entry(ticket)
                    .or_insert_with(|| Waiter { told: Arc::clone(&self.told), offer: None });
                match waiter.offer.take() {
                    None | Some(Offer::Missed) => return None,
                    Some(Offer::Hold(passed)) => return Some(Admission::Hold(passed)),
                    Some(Offer::Turn { not_before, .. }) => {
                        waiters.remove(&ticket);
                        not_before
                    }
                }
            }
        };
        drop(line);
        Some(Admission::Turn(self.queue.turn(&self.name, not_before)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut line = self.queue.lock();
        let waiter = line.slots.get_mut(&self.name).and_then(|slot| slot.waiters.remove(&ticket));
        drop(line);
        match waiter.and_then(|waiter| waiter.offer) {
            Some(Offer::Turn { .. }) => self.queue.pass(&self.name),
            Some(Offer::Hold(passed)) => drop(passed),
            Some(Offer::Missed) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    async fn enter(queue: &Arc<Queue>, name: &Name) -> Admission {
        queue.place(name).next().await
    }

    fn queue() -> (Arc<Queue>, Name) {
        (Arc::default(), Name::new("n").unwrap())
    }

    #[test]
    fn turns_go_round_in_the_order_of_arrival() {
        let (queue, name) = queue();
        let first = queue.try_enter(&name).unwrap();
        assert!(queue.try_enter(&name).is_none());
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
    fn dropped_waiters_are_passed_over_also_when_their_turn_has_just_come() {
        let (queue, name) = queue();
        let first = queue.try_enter(&name).unwrap();
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
        let first = queue.try_enter(&name).unwrap();
        let mut waiters: Vec<_> = (0..10_000).map(|_| Box::pin(enter(&queue, &name))).collect();
        for waiter in &mut waiters {
            assert!(poll(waiter.as_mut()).is_pending());
        }
        drop(waiters);
        drop(first);
        assert!(queue.lock().slots.is_empty());
        assert!(queue.try_enter(&name).is_some());
    }

    #[test]
    fn what_has_given_way_is_forgotten() {
        let (queue, _) = queue();
        let mut now = crate::clock::Clock::system().now();
        let wait = std::time::Duration::from_millis(1);
        for i in 0..10_000 {
            let name = Name::new(&format!("n:{i}")).unwrap();
            queue.give_way(&name, now, now + wait);
            // Some ten are still to wait at any time.
            now = now + wait / 10;
            assert!(queue.lock().giving_way.len() <= 64, "{i}");
        }
        // Those that are still to wait stay.
        let name = Name::new("last").unwrap();
        queue.give_way(&name, now, now + wait);
        for i in 0..200 {
            queue.give_way(&Name::new(&format!("more:{i}")).unwrap(), now, now + wait);
        }
        assert!(queue.try_enter(&name).unwrap().not_before() == Some(now + wait));
    }

    #[test]
    fn a_turn_that_nobody_looks_at_goes_to_the_next_and_its_waiter_keeps_its_place() {
        let (queue, name) = queue();
        let (now, limit) = (Instant::ZERO, Duration::from_secs(1));
        let first = queue.try_enter(&name).unwrap();
        let mut late = pin!(enter(&queue, &name));
        let mut second = pin!(enter(&queue, &name));
        let mut third = pin!(enter(&queue, &name));
        for waiting in [late.as_mut(), second.as_mut(), third.as_mut()] {
            assert!(poll(waiting).is_pending());
        }
        drop(first);
        queue.hurry(&name, now, limit);
        assert!(poll(second.as_mut()).is_pending());
        queue.hurry(&name, now + limit, limit);
        let Poll::Ready(Admission::Turn(turn)) = poll(second.as_mut()) else {
            panic!("the turn went on")
        };
        // It looks again, in time to be the first of the two.
        assert!(poll(late.as_mut()).is_pending());
        drop(turn);
        assert!(poll(third.as_mut()).is_pending());
        let Poll::Ready(Admission::Turn(turn)) = poll(late.as_mut()) else {
            panic!("it was there before the third")
        };
        drop(turn);
        assert!(poll(third.as_mut()).is_ready());
    }

    #[test]
    fn a_name_for_which_only_those_wait_that_do_not_look_is_free() {
        let (queue, name) = queue();
        let (now, limit) = (Instant::ZERO, Duration::from_secs(1));
        let first = queue.try_enter(&name).unwrap();
        let mut late = pin!(enter(&queue, &name));
        assert!(poll(late.as_mut()).is_pending());
        drop(first);
        queue.hurry(&name, now, limit);
        queue.hurry(&name, now + limit, limit);
        let turn = queue.try_enter(&name).unwrap();
        assert!(poll(late.as_mut()).is_pending());
        drop(turn);
        assert!(poll(late.as_mut()).is_ready());
    }
}
