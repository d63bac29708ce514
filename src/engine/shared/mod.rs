//! The data that the rooms of the engine share: the core of a manager, its settings, its holds, their options, the calls of
//! the store and the reports to observers. What it calls in the rooms above it is handed in, as `core::Callbacks`.

pub(crate) mod answers;
pub(crate) mod calls;
pub(super) mod core;
pub(super) mod descriptions;
pub(super) mod hold;
pub(super) mod job;
pub(super) mod lifecycle;
pub(super) mod line;
pub(super) mod options;
pub(crate) mod overrun;
pub(super) mod pulse;
pub(super) mod queue;
pub(crate) mod report;
pub(super) mod schedule;
pub(super) mod wakers;
