//! Observers, and the thread that calls each of them.

use super::event::Event;
#[cfg(doc)]
use super::event::EventKind;
use super::queues::{Backlog, EventQueues, drop_each};
use crate::error::{Error, Result};
use crate::util::panics::quietly;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// The number of events that wait for an observer at most.
const CAPACITY: usize = 65_536;

/// The time for which events gather after some were taken, so that a busy manager wakes the thread rarely: each time it takes
/// a processor from those that lock.
const GATHER: Duration = Duration::from_millis(10);

/// Receives the events of a manager: see [`Builder::observer`](crate::Builder::observer).
///
/// An observer that owns a clone of the manager keeps that manager running until it is closed.
///
/// A thread of its own calls it, with one event after the other. So it may block, be slow or panic without harm to any
/// lease. While it is behind by more than 65 536 events, the oldest ones are dropped, and [`dropped`](Observer::dropped)
/// reports how many.
///
/// ```
/// use leasehold::{Event, EventKind, LeaseManager, Observer};
/// use std::sync::mpsc;
///
/// struct Losses(mpsc::Sender<String>);
///
/// impl Observer for Losses {
///     fn event(&self, event: &Event) {
///         if let EventKind::Lost { cause, .. } = event.kind() {
///             let name = event.name().unwrap_or_default();
///             let _ = self.0.send(format!("{name}: {cause}"));
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (losses, report) = mpsc::channel();
/// let leases = LeaseManager::builder().observer(Losses(losses)).connect("memory:").await?;
/// let lease = leases.lock("orders:42").lock().await?;
/// leases.force_unlock("orders:42", "it hangs").await?;
/// assert!(report.recv()?.starts_with("orders:42: "));
/// # drop(lease);
/// # Ok(())
/// # }
/// ```
// One implementor: users have others, and `Metrics` needs a feature.
pub trait Observer: Send + Sync + 'static {
    /// Receives an event.
    fn event(&self, event: &Event);

    /// Returns whether it also gets [measurements](EventKind::is_measurement), which come with each request to the store.
    /// False by default.
    fn measures(&self) -> bool {
        false
    }

    /// Reports that `count` events were dropped before the next one, because this observer was behind. Does nothing by
    /// default.
    fn dropped(&self, count: u64) {
        let _ = count;
    }
}

/// The observers that a builder has.
#[derive(Clone, Default)]
pub(crate) struct Observers(Vec<Arc<dyn Observer>>);

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}

impl Observers {
    pub(crate) fn add(&mut self, observer: impl Observer) {
        self.0.push(Arc::new(observer));
    }

    /// Starts a thread for each.
    pub(crate) fn start(self, queues: &Arc<EventQueues>) -> Result<()> {
        for observer in self.0 {
            let measures = observer.measures();
            let Some(id) = queues.add(CAPACITY, Some(measures)) else { return Ok(()) };
            let queues = Arc::clone(queues);
            let thread = thread::Builder::new().name("leasehold-events".into());
            thread.spawn(move || watch(&queues, id, &*observer)).map_err(|error| {
                Error::no_thread("failed to start the thread of an observer", error)
            })?;
        }
        Ok(())
    }
}

/// Unparks a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Passes the events of a queue to an observer, until they end.
fn watch(queues: &EventQueues, id: u64, observer: &dyn Observer) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut empty = VecDeque::new();
    loop {
        match queues.take(id, std::mem::take(&mut empty), &waker) {
            Poll::Pending => thread::park(),
            Poll::Ready(None) => break,
            Poll::Ready(Some(Backlog { mut events, dropped })) => {
                if dropped > 0 {
                    quietly(|| observer.dropped(dropped));
                }
                // One call for many: a panic ends only the event that it comes from.
                let mut rest = events.iter();
                while rest.len() > 0 {
                    quietly(|| rest.by_ref().for_each(|event| observer.event(event)));
                }
                drop_each(&mut events);
                empty = events;
                thread::sleep(GATHER);
            }
        }
    }
    queues.remove(id);
}
