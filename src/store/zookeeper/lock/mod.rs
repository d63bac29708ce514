//! The recipe of a lock: its queue, and how a name is acquired, renewed, converted and inspected.

mod acquire;
mod convert;
mod inspect;
mod metadata;
pub(super) mod queue;
pub(super) mod recipe;
mod renew;
mod size;
pub(super) mod waiter;
