//! What leaves for a server, and in which call: acquires and releases in batches, and renewals.

pub(super) mod batch;
mod defer;
pub(super) mod renew;
