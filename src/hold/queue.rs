//! Waiters queue at home: per name a FIFO, so that only its head talks to the store.
//!
//! # Invariants
//!
//! 1. A name has a slot exactly as long as somebody has its [`Turn`].
//! 2. A turn is with one waiter or one hold; dropping it passes it to the first waiter alive,
//!    or ends the slot. Passing over dropped waiters is a loop, never recursion.
//! 3. Nothing is dropped, woken or sent while the map is locked.

use super::Hold;
use crate::store::Name;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

#[derive(Default)]
pub(crate) struct Queue {
    slots: Mutex<HashMap<Name, Slot>>,
}

#[derive(Default)]
struct Slot {
    hold: Option<Arc<Hold>>,
    waiters: BTreeMap<u64, oneshot::Sender<Turn>>,
    tickets: u64,
}

impl Queue {
    /// Takes the turn of a name that nobody in this process has or waits for.
    pub(crate) fn try_enter(self: &Arc<Self>, name: &Name) -> Option<Turn> {
        let mut slots = self.lock();
        if slots.contains_key(name) {
            return None;
        }
        slots.insert(name.clone(), Slot::default());
        Some(Turn { queue: Some(Arc::clone(self)), name: name.clone() })
    }

    /// Waits in line for the turn of a name.
    ///
    /// Dropping the future gives up the place, and the turn if it had just come.
    pub(crate) async fn enter(self: &Arc<Self>, name: &Name) -> Turn {
        loop {
            if let Some(turn) = self.try_enter(name) {
                return turn;
            }
            let Some(mut place) = Place::take(self, name) else {
                continue;
            };
            // The sender lives in the slot, which ends only when no waiter is left.
            if let Ok(turn) = (&mut place.turn).await {
                return turn;
            }
        }
    }

    /// Makes a hold known under its name, for as long as it keeps the turn.
    pub(crate) fn install(&self, hold: &Arc<Hold>) {
        if let Some(slot) = self.lock().get_mut(&hold.name) {
            slot.hold = Some(Arc::clone(hold));
        }
    }

    /// The hold that this process has of a name.
    pub(crate) fn hold(&self, name: &Name) -> Option<Arc<Hold>> {
        self.lock().get(name).and_then(|slot| slot.hold.clone())
    }

    /// All holds of this process.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.lock().values().filter_map(|slot| slot.hold.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(self: &Arc<Self>, name: &Name) {
        loop {
            let (next, hold) = {
                let mut slots = self.lock();
                let Some(slot) = slots.get_mut(name) else {
                    return;
                };
                let hold = slot.hold.take();
                let next = slot.waiters.pop_first();
                if next.is_none() {
                    slots.remove(name);
                }
                (next, hold)
            };
            drop(hold);
            let Some((_, waiter)) = next else { return };
            let turn = Turn { queue: Some(Arc::clone(self)), name: name.clone() };
            match waiter.send(turn) {
                Ok(()) => return,
                // The waiter went away in this moment; its turn must not pass on by itself.
                Err(mut turn) => turn.queue = None,
            }
        }
    }
}

/// The right to talk to the store about a name, alone in this process.
pub(crate) struct Turn {
    queue: Option<Arc<Queue>>,
    name: Name,
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
    turn: oneshot::Receiver<Turn>,
}

impl Place {
    fn take(queue: &Arc<Queue>, name: &Name) -> Option<Self> {
        let (sender, turn) = oneshot::channel();
        let mut slots = queue.lock();
        let slot = slots.get_mut(name)?;
        let ticket = slot.tickets;
        slot.tickets += 1;
        slot.waiters.insert(ticket, sender);
        drop(slots);
        Some(Self { queue: Arc::clone(queue), name: name.clone(), ticket, turn })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let sender = self
            .queue
            .lock()
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
        let Poll::Ready(turn) = poll(second.as_mut()) else { panic!("second is first now") };
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
        assert!(queue.lock().is_empty());
        assert!(queue.try_enter(&name).is_some());
    }
}
