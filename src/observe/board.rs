//! The bounded queues of events, one for each observer.

use super::event::Event;
use crate::sync::Mutex;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

/// The queues of a manager.
#[derive(Default)]
pub(crate) struct Board {
    /// Whether there is a queue. The only thing that an event reads while there is none.
    observed: AtomicBool,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    all: Vec<Queue>,
    last_id: u64,
    ended: bool,
}

/// The queue of one observer.
struct Queue {
    id: u64,
    capacity: usize,
    events: VecDeque<Event>,
    /// The number of events that were dropped since the last ones were taken.
    dropped: u64,
    /// Wakes the observer. `None` while it is not waiting.
    waker: Option<Waker>,
}

/// Events for an observer.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) events: VecDeque<Event>,
    /// The number of older events that were dropped.
    pub(super) dropped: u64,
}

/// What is left to do with no lock held: observers to wake, and events to drop.
#[derive(Default)]
#[must_use = "observers sleep until it is finished"]
pub(crate) struct Told {
    wakers: Vec<Waker>,
    _dropped: Vec<Event>,
}

impl Told {
    /// Wakes the observers. Call it with no lock held.
    pub(crate) fn finish(self) {
        for waker in self.wakers {
            // The panic hook has reported a panic already.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

impl Board {
    /// Returns whether an observer may want an event.
    pub(crate) fn is_observed(&self) -> bool {
        self.observed.load(Ordering::Relaxed)
    }

    /// Queues an event. May be called with the state of a hold locked.
    pub(crate) fn tell(&self, event: Event) -> Told {
        let mut told = Told::default();
        let mut queues = self.queues.lock();
        let mut event = Some(event);
        let count = queues.all.len();
        for (index, queue) in queues.all.iter_mut().enumerate() {
            let own = if index + 1 == count { event.take() } else { event.clone() };
            let Some(own) = own else { continue };
            if queue.events.len() >= queue.capacity {
                told._dropped.extend(queue.events.pop_front());
                queue.dropped += 1;
            }
            queue.events.push_back(own);
            told.wakers.extend(queue.waker.take());
        }
        drop(queues);
        told
    }

    /// Adds a queue. Returns its number; `None` if no event will come any more.
    pub(super) fn add(&self, capacity: usize) -> Option<u64> {
        let mut queues = self.queues.lock();
        if queues.ended {
            return None;
        }
        queues.last_id += 1;
        let id = queues.last_id;
        let events = VecDeque::new();
        queues.all.push(Queue { id, capacity, events, dropped: 0, waker: None });
        self.observed.store(true, Ordering::Relaxed);
        Some(id)
    }

    /// Removes a queue.
    pub(super) fn remove(&self, id: u64) {
        let mut queues = self.queues.lock();
        let found = queues.all.iter().position(|queue| queue.id == id);
        let removed = found.map(|index| queues.all.remove(index));
        if queues.all.is_empty() {
            self.observed.store(false, Ordering::Relaxed);
        }
        drop(queues);
        drop(removed);
    }

    /// Takes all events of a queue, in exchange for an empty buffer; `None` after the last event. If there are none, `waker`
    /// wakes.
    pub(super) fn take(
        &self,
        id: u64,
        empty: VecDeque<Event>,
        waker: &Waker,
    ) -> Poll<Option<Taken>> {
        // Both are the code of a user, possibly.
        let waker = waker.clone();
        let mut replaced = None;
        let mut queues = self.queues.lock();
        let ended = queues.ended;
        let Some(queue) = queues.all.iter_mut().find(|queue| queue.id == id) else {
            return Poll::Ready(None);
        };
        let poll = match queue.events.is_empty() {
            false => Poll::Ready(Some(Taken {
                events: std::mem::replace(&mut queue.events, empty),
                dropped: std::mem::take(&mut queue.dropped),
            })),
            true if ended => Poll::Ready(None),
            true => {
                replaced = queue.waker.replace(waker);
                Poll::Pending
            }
        };
        drop(queues);
        drop(replaced);
        poll
    }

    /// Ends all queues: no event comes any more.
    pub(crate) fn end(&self) {
        let mut queues = self.queues.lock();
        queues.ended = true;
        let wakers = queues.all.iter_mut().filter_map(|queue| queue.waker.take()).collect();
        self.observed.store(false, Ordering::Relaxed);
        drop(queues);
        Told { wakers, ..Told::default() }.finish();
    }
}
