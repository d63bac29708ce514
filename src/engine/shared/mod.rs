//! The data that the rooms of the engine share: the core of a manager, its holds, their options, the calls of the store
//! and the reports to observers.

pub(super) mod calls;
pub(super) mod core;
mod describer;
pub(super) mod description;
pub(super) mod hold;
pub(super) mod job;
pub(super) mod life;
pub(super) mod lifecycle;
pub(super) mod options;
pub(super) mod policy;
pub(super) mod pulse;
pub(super) mod queue;
pub(super) mod report;
pub(super) mod schedule;
pub(super) mod served;
pub(super) mod wakers;
