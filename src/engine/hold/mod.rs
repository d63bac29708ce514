//! What happens to a hold between its grant and its end. The watchdog renews it; the rest is here.
//!
//! - Each end of a lease begins in `handoff::leave`: the hold goes to a waiter, rests, or is to be released. Then `release` sends.
//! - `readers` has the holds that readers share, and the changes between reading and writing.
//! - `record` has the hold count written, `describe` the label and what else is kept beside a hold.
//! - `renew` renews a hold at once for a call that must be sure of it.

pub(crate) mod describe;
pub(crate) mod handoff;
pub(crate) mod readers;
pub(super) mod record;
pub(crate) mod release;
pub(crate) mod renew;
