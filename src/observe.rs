//! Tells of what happens to leases: events, and their observers.
//!
//! | file | what it has |
//! |---|---|
//! | `event.rs` | [`Event`]: what happened, to which hold |
//! | `observer.rs` | [`Observer`], and the thread that calls it |
//! | `board.rs` | the bounded queues, one for each observer |
//!
//! # Invariants
//!
//! 1. **The engine only queues.** What fires tokens, renews or releases never calls an observer, nor waits for one. An event
//!    costs one branch while nothing observes.
//! 2. **One queue and one thread for each observer.** A panic loses one event of one observer. An observer that blocks or is
//!    slow loses the oldest events of its own queue, which are counted.
//! 3. **In order.** The events of a hold are queued while its state is locked. The queues are locked last of all, and no
//!    code of a user runs then: wakers run, and events are dropped, after both are unlocked.

mod board;
mod event;
mod observer;

pub(crate) use board::{Board, Told};
pub(crate) use event::DEFAULT_CLASS;
pub use event::{Event, EventKind, How, Refusal};
pub use observer::Observer;
pub(crate) use observer::Observers;
