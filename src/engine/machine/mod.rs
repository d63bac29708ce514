//! The rules of the engine as state machines and arithmetic: who may ask for a name, how long a hold is valid, when to
//! look at it again. Nothing here does I/O.

mod count;
pub(super) mod effects;
mod end;
pub(super) mod hold;
mod mode;
pub(super) mod name;
pub(super) mod occupants;
mod offers;
mod owed;
pub(super) mod pause;
mod policy;
pub(super) mod pulse;
pub(super) mod schedule;
pub(super) mod scope;
pub(super) mod share;
pub(super) mod slot;
pub(super) mod timing;
pub(super) mod waiters;
