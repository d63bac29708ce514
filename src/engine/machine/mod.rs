//! The rules of the engine as state machines and arithmetic: who may ask for a name, how long a hold is valid, when to
//! look at it again. Nothing here does I/O.

mod count;
mod end;
pub(super) mod handed_off;
pub(super) mod heirs;
pub(super) mod hold;
pub(super) mod members;
mod mode;
pub(super) mod name;
pub(super) mod offers;
mod owed;
pub(super) mod pause;
mod policy;
pub(super) mod pulse;
pub(super) mod queue;
pub(super) mod schedule;
pub(super) mod seat;
pub(super) mod seen;
pub(super) mod share;
pub(super) mod timing;
pub(super) mod waiters;
