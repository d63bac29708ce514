//! What happens to a hold between its grant and its end: it is handed off, shared by readers, converted, described and
//! released. The watchdog renews it.

pub(super) mod convert;
pub(super) mod describe;
mod handoff;
mod readers;
pub(super) mod release;
