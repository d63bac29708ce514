//! The types of the contract between the engine and a store: requests, verdicts, modes, names, capabilities and
//! signals.

pub(super) mod capabilities;
pub(super) mod keep;
pub(super) mod list;
pub(crate) mod metadata;
pub(super) mod mode;
pub(super) mod name;
pub(super) mod note;
pub(super) mod request;
pub(super) mod signal;
pub(super) mod target;
pub(super) mod verdict;
