//! The bounded queues of events, one for each observer.

use super::class_counts::Classes;
use super::event::Event;
use crate::util::sync::Mutex;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use tokio::sync::Notify;

/// The queues of a manager.
#[derive(Default)]
pub(crate) struct EventQueues {
    /// Whether there is a queue. The only thing that an event reads while there is none.
    observed: AtomicBool,
    /// Whether there is a queue for measurements.
    measured: AtomicBool,
    /// Notifies when a queue is removed.
    removed: Notify,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    all: Vec<Queue>,
    classes: Classes,
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
    /// Whether an observer reads it, which `close` waits for.
    awaited: bool,
    /// Whether it is for measurements too.
    measures: bool,
    /// Wakes the observer. `None` while it is not waiting.
    waker: Option<Waker>,
}

/// Events for an observer.
#[derive(Default)]
pub(super) struct Backlog {
    pub(super) events: VecDeque<Event>,
    /// The number of older events that were dropped.
    pub(super) dropped: u64,
}

/// What is left to do with no lock held: observers to wake, and events to drop.
#[derive(Default)]
#[must_use = "observers sleep until it is finished"]
pub(crate) struct Recorded(Vec<Rest>);

enum Rest {
    Wake(Waker),
    Drop { event: Event },
}

impl Recorded {
    /// Wakes the observers. Call it with no lock held.
    #[inline]
    pub(crate) fn finish(self) {
        // Most of the time there is nothing.
        if !self.0.is_empty() {
            self.finish_each();
        }
    }

    fn finish_each(self) {
        for rest in self.0 {
            // The panic hook has reported a panic already.
            let _ = catch_unwind(AssertUnwindSafe(|| match rest {
                Rest::Wake(waker) => waker.wake(),
                Rest::Drop { event } => drop(event),
            }));
        }
    }
}

/// Drops events, each by itself: a user's error in one may panic, and a second panic of one unwinding ends the process.
pub(super) fn drop_each(events: &mut VecDeque<Event>) {
    while !events.is_empty() {
        // The panic hook has reported a panic already.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            while let Some(event) = events.pop_front() {
                drop(event);
            }
        }));
    }
}

impl EventQueues {
    /// Returns whether an observer may want an event.
    pub(crate) fn is_observed(&self) -> bool {
        self.observed.load(Ordering::Relaxed)
    }

    /// Returns whether an observer may want a measurement.
    pub(crate) fn is_measured(&self) -> bool {
        self.measured.load(Ordering::Relaxed)
    }

    /// Queues an event. May be called with the state of a hold locked.
    pub(crate) fn record(&self, mut event: Event) -> Recorded {
        let mut recorded = Recorded::default();
        let mut queues = self.queues.lock();
        if queues.ended {
            return recorded;
        }
        queues.classes.count(&mut event);
        let is_measurement = event.kind().is_measurement();
        let mut event = Some(event);
        let count = queues.all.len();
        for (index, queue) in queues.all.iter_mut().enumerate() {
            if is_measurement && !queue.measures {
                continue;
            }
            let own = if index + 1 == count { event.take() } else { event.clone() };
            let Some(own) = own else { continue };
            if queue.events.len() >= queue.capacity {
                // Most events are dropped here: to keep them for later costs an allocation each.
                let oldest = queue.events.pop_front().filter(Event::has_error);
                recorded.0.extend(oldest.map(|event| Rest::Drop { event }));
                queue.dropped += 1;
            }
            queue.events.push_back(own);
            recorded.0.extend(queue.waker.take().map(Rest::Wake));
        }
        drop(queues);
        recorded
    }

    /// Adds a queue. Returns its number; `None` if no event will come any more. An observer, which `close` waits for, is
    /// `awaited`, and says whether it measures.
    pub(super) fn add(&self, capacity: usize, awaited: Option<bool>) -> Option<u64> {
        let mut queues = self.queues.lock();
        if queues.ended {
            return None;
        }
        queues.last_id += 1;
        let id = queues.last_id;
        let measures = awaited == Some(true);
        queues.all.push(Queue {
            id,
            capacity,
            events: VecDeque::new(),
            dropped: 0,
            awaited: awaited.is_some(),
            measures,
            waker: None,
        });
        self.measured.fetch_or(measures, Ordering::Relaxed);
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
            self.measured.store(false, Ordering::Relaxed);
        }
        drop(queues);
        if let Some(mut queue) = removed {
            drop_each(&mut queue.events);
        }
        self.removed.notify_waiters();
    }

    /// Takes all events of a queue, in exchange for an empty buffer; `None` after the last event. If there are none, `waker`
    /// wakes.
    pub(super) fn take(
        &self,
        id: u64,
        empty: VecDeque<Event>,
        waker: &Waker,
    ) -> Poll<Option<Backlog>> {
        self.read(id, waker, |queue| Backlog {
            events: std::mem::replace(&mut queue.events, empty),
            dropped: std::mem::take(&mut queue.dropped),
        })
    }

    /// Takes the oldest event of a queue, with the number of those that were dropped before it, as [`take`](Self::take)
    /// takes all.
    pub(super) fn pop(&self, id: u64, waker: &Waker) -> Poll<Option<(Event, u64)>> {
        let popped = self.read(id, waker, |queue| {
            let event = queue.events.pop_front()?;
            Some((event, std::mem::take(&mut queue.dropped)))
        });
        popped.map(Option::flatten)
    }

    fn read<R>(
        &self,
        id: u64,
        waker: &Waker,
        read: impl FnOnce(&mut Queue) -> R,
    ) -> Poll<Option<R>> {
        // To clone or drop a waker may run code of a user.
        let waker = waker.clone();
        let mut replaced = None;
        let mut queues = self.queues.lock();
        let ended = queues.ended;
        let Some(queue) = queues.all.iter_mut().find(|queue| queue.id == id) else {
            return Poll::Ready(None);
        };
        let poll = if !queue.events.is_empty() {
            Poll::Ready(Some(read(queue)))
        } else if ended {
            Poll::Ready(None)
        } else {
            replaced = queue.waker.replace(waker);
            Poll::Pending
        };
        drop(queues);
        drop(replaced);
        poll
    }

    /// Waits until all observers have seen all events, after [`end`](Self::end).
    pub(crate) async fn until_seen(&self) {
        loop {
            let mut removed = pin!(self.removed.notified());
            removed.as_mut().enable();
            if !self.queues.lock().all.iter().any(|queue| queue.awaited) {
                return;
            }
            removed.await;
        }
    }

    /// Ends all queues: no event comes any more.
    pub(crate) fn end(&self) {
        let mut queues = self.queues.lock();
        queues.ended = true;
        let wakers = queues.all.iter_mut().filter_map(|queue| queue.waker.take());
        let recorded = Recorded(wakers.map(Rest::Wake).collect());
        self.observed.store(false, Ordering::Relaxed);
        self.measured.store(false, Ordering::Relaxed);
        drop(queues);
        recorded.finish();
    }
}
