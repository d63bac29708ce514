//! The rules of the engine as state machines and arithmetic: who may ask for a name, how long a hold is valid, when to
//! look at it again. Nothing here does I/O: times come in as values, and what follows goes out as values.
//!
//! - [`hold`] is the life of one hold, with its renewals and its release, the [`count`] of its leases, the [`chain`] of
//!   hand-offs and rests that it belongs to, and its [`policy`].
//! - [`name`] is one name in this process: its [`contention`], which is what holds it or asks for it and what waits, and the
//!   [`effects`] of a transition.
//! - Both read [`timing`], ask about a [`mode`] here, and take a call for polled by its [`pulse`]. [`timing`] also says when the
//!   process acts on work that does not stop.
//! - [`pause`] yields to waiters of other processes, and [`schedule`] is what the watchdog does when.

pub(super) mod chain;
pub(super) mod contention;
pub(super) mod count;
pub(super) mod effects;
pub(super) mod hold;
pub(super) mod mode;
pub(super) mod name;
pub(super) mod pause;
mod phase;
pub(super) mod policy;
pub(super) mod pulse;
mod release;
mod renewal;
pub(super) mod schedule;
pub(super) mod timing;
