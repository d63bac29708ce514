//! Reports what happens to leases: events, and their observers.
//!
//! | file | what it has |
//! |---|---|
//! | `event.rs` | [`Event`]: what happened, to which hold |
//! | `observer.rs` | [`Observer`], and the thread that calls it |
//! | `stream.rs` | [`Events`]: a stream of events |
//! | `counters.rs`, `health.rs` | [`Stats`] and [`Health`]: numbers that are there without an observer |
//! | `queues.rs` | the bounded queues, one for each observer or stream |
//! | `class_counts.rs` | how many holds and waiters there are after each event |
//!
//! # Invariants
//!
//! 1. **The engine only queues.** What fires tokens, renews or releases never calls an observer, nor waits for one. An event
//!    costs one branch while nothing observes.
//! 2. **One queue and one thread for each observer.** A panic loses one event of one observer. An observer that blocks or is
//!    slow loses the oldest events of its own queue, which are counted.
//! 3. **In order.** The events of a hold are queued while its state is locked. The queues are locked last of all, and no
//!    code of a user runs then: wakers run, and events with an error are dropped, after both are unlocked.

mod class_counts;
mod counters;
mod event;
mod health;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
mod observer;
mod queues;
mod stream;

pub(crate) use counters::Counters;
pub use counters::Stats;
pub(crate) use event::DEFAULT_CLASS;
pub use event::{Event, EventKind, How, Operation, Outcome, Refusal};
pub use health::{Health, LeadershipHealth};
pub use observer::Observer;
pub(crate) use observer::Observers;
pub(crate) use queues::{EventQueues, Recorded};
pub use stream::Events;
