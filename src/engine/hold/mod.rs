//! What happens to a hold between its grant and its end: it is handed off, shared by readers, converted, counted, described
//! and released. The watchdog renews it.

pub(super) mod convert;
pub(super) mod describe;
mod handoff;
mod readers;
pub(super) mod record;
pub(super) mod release;
