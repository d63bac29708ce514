//! What an operator or the end of a manager does: it takes a name, forces it open, or ends all leases.

pub(crate) mod close;
pub(crate) mod revoke;
pub(super) mod steal;
