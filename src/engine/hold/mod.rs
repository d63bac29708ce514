//! What happens to a hold between its grant and its end: it is handed off, shared by readers, converted, counted, described,
//! renewed when a call asks for that, and released. The watchdog renews it otherwise.

pub(crate) mod describe;
pub(crate) mod handoff;
pub(crate) mod readers;
pub(super) mod record;
pub(crate) mod release;
pub(crate) mod renew;
