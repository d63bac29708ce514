//! Events as a stream.

use super::event::Event;
use super::queues::EventQueues;
use futures_core::Stream;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::task::coop::poll_proceed;

/// A stream of the events of a manager: see [`LeaseManager::events`](crate::LeaseManager::events).
///
/// It is lossy: while more events wait than its capacity, the oldest ones are dropped. It ends when the manager is
/// closed, after the last event. It does not keep the manager running.
#[must_use = "a stream does nothing until it is polled"]
pub struct Events {
    queues: Arc<EventQueues>,
    /// The number of its queue. `None` once it has ended.
    id: Option<u64>,
    dropped: u64,
}

impl Events {
    pub(crate) fn new(queues: &Arc<EventQueues>, capacity: usize) -> Self {
        Self { queues: Arc::clone(queues), id: queues.add(capacity.max(1), None), dropped: 0 }
    }

    /// Waits for the next event. Returns `None` after the last one.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, no event is lost.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Returns how many events were dropped before the one that [`next`](Self::next) returned last.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let Some(id) = self.id else { return Poll::Ready(None) };
        // A stream that is always ready must not starve other tasks.
        let budget = ready!(poll_proceed(cx));
        let next = ready!(self.queues.pop(id, cx.waker()));
        budget.made_progress();
        match next {
            Some((event, dropped)) => {
                self.dropped += dropped;
                Poll::Ready(Some(event))
            }
            None => {
                self.leave();
                Poll::Ready(None)
            }
        }
    }

    fn leave(&mut self) {
        if let Some(id) = self.id.take() {
            self.queues.remove(id);
        }
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.get_mut().poll(cx)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("dropped", &self.dropped).finish_non_exhaustive()
    }
}
