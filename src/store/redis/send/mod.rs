//! What leaves for a server, and in which call.
//!
//! - [`batch`] keeps a batcher for each runtime that locks, and decides what leaves together: a lone request by itself, others
//!   in batches, slot by slot.
//! - [`defer`] wakes the callers of a batch at once.
//! - [`renew`] renews: it has no batcher, because the watchdog sends whole batches.

pub(super) mod batch;
mod defer;
pub(super) mod renew;
