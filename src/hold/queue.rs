//! Waiters queue at home: per name a FIFO, so that only its head talks to the store.
//!
//! # Invariants
//!
//! 1. A name has a slot exactly as long as somebody has its [`Turn`].
//! 2. A turn is with one waiter or one hold; dropping it passes it to the first waiter alive,
//!    or ends the slot. Passing over dropped waiters is a loop, never recursion.
//! 3. Nothing is dropped, woken or sent while the map is locked.

use super::Hold;
use super::handoff::Passed;
use crate::clock::Instant;
use crate::store::Name;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

#[derive(Default)]
pub(crate) struct Queue {
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    slots: HashMap<Name, Slot>,
    /// Until when the next turn of a name is to wait, so that other processes can go first.
    giving_way: HashMap<Name, Instant>,
    /// At how many of these the past ones are swept out next.
    sweep_at: usize,
}

impl Line {
    fn turn(&mut self, queue: &Arc<Queue>, name: &Name) -> Turn {
        let not_before =
            if self.giving_way.is_empty() { None } else { self.giving_way.remove(name) };
        Turn { queue: Some(Arc::clone(queue)), name: name.clone(), not_before }
    }
}

#[derive(Default)]
struct Slot {
    hold: Option<Arc<Hold>>,
    waiters: BTreeMap<u64, Waiter>,
    tickets: u64,
}

/// Where a waiter is told that it is first.
pub(crate) type Waiter = oneshot::Sender<Admission>;

/// What the first in line gets.
pub(crate) enum Admission {
    /// The right to ask the store.
    Turn(Turn),
    /// What the one before it had.
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
        Some(line.turn(self, name))
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

    /// Waits in line for a name.
    ///
    /// Dropping the future gives up the place, and what had just come.
    pub(crate) async fn enter(self: &Arc<Self>, name: &Name) -> Admission {
        loop {
            if let Some(turn) = self.try_enter(name) {
                return Admission::Turn(turn);
            }
            let Some(mut place) = Place::take(self, name) else {
                continue;
            };
            // The sender lives in the slot, which ends only when no waiter is left.
            if let Ok(admission) = (&mut place.admission).await {
                return admission;
            }
        }
    }

    /// Takes the first waiter out of the line, if there is one, and puts the hold in place that it is to
    /// have.
    pub(crate) fn hand_over(
        &self,
        name: &Name,
        next: impl FnOnce() -> Arc<Hold>,
    ) -> Option<(Waiter, Arc<Hold>)> {
        let mut line = self.lock();
        let slot = line.slots.get_mut(name)?;
        let (_, waiter) = slot.waiters.pop_first()?;
        let next = next();
        // What was there is alive in the hands of whoever passes it on.
        slot.hold = Some(Arc::clone(&next));
        Some((waiter, next))
    }

    /// Makes a hold known under its name, for as long as it keeps the turn.
    pub(crate) fn install(&self, hold: &Arc<Hold>) {
        if let Some(slot) = self.lock().slots.get_mut(&hold.name) {
            slot.hold = Some(Arc::clone(hold));
        }
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

    fn pass(self: &Arc<Self>, name: &Name) {
        loop {
            let (next, hold) = {
                let mut line = self.lock();
                let Entry::Occupied(mut place) = line.slots.entry(name.clone()) else {
                    return;
                };
                let hold = place.get_mut().hold.take();
                let next = match place.get_mut().waiters.pop_first() {
                    Some((_, waiter)) => Some((waiter, line.turn(self, name))),
                    None => {
                        place.remove();
                        None
                    }
                };
                (next, hold)
            };
            drop(hold);
            let Some((waiter, turn)) = next else { return };
            match waiter.send(Admission::Turn(turn)) {
                // The waiter went away in this moment; its turn must not pass on by itself.
                Err(Admission::Turn(mut turn)) => turn.queue = None,
                _ => return,
            }
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

/// A place in the line; leaving is O(log n).
struct Place {
    queue: Arc<Queue>,
    name: Name,
    ticket: u64,
    admission: oneshot::Receiver<Admission>,
}

impl Place {
    fn take(queue: &Arc<Queue>, name: &Name) -> Option<Self> {
        let (sender, admission) = oneshot::channel();
        let mut line = queue.lock();
        let slot = line.slots.get_mut(name)?;
        let ticket = slot.tickets;
        slot.tickets += 1;
        slot.waiters.insert(ticket, sender);
        drop(line);
        Some(Self { queue: Arc::clone(queue), name: name.clone(), ticket, admission })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let sender = self
            .queue
            .lock()
            .slots
            .get_mut(&self.name)
            .and_then(|slot| slot.waiters.remove(&self.ticket));
        drop(sender);
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

    fn queue() -> (Arc<Queue>, Name) {
        (Arc::default(), Name::new("n").unwrap())
    }

    #[test]
    fn turns_go_round_in_the_order_of_arrival() {
        let (queue, name) = queue();
        let first = queue.try_enter(&name).unwrap();
        assert!(queue.try_enter(&name).is_none());
        let mut second = pin!(queue.enter(&name));
        let mut third = pin!(queue.enter(&name));
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
        let mut gone = Box::pin(queue.enter(&name));
        let mut told = Box::pin(queue.enter(&name));
        let mut last = pin!(queue.enter(&name));
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
        let mut waiters: Vec<_> = (0..10_000).map(|_| Box::pin(queue.enter(&name))).collect();
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
}
