//! The recipe of a lock: the nodes that this process has, and how a name is acquired, renewed, converted and inspected.

pub(super) mod acquire;
mod convert;
pub(super) mod holds;
pub(super) mod inspect;
pub(super) mod list;
pub(super) mod metadata;
pub(super) mod recipe;
pub(super) mod renew;
mod size;
pub(super) mod waiter;
