//! Checks of a server: the permissions of the user, and settings that may cost leases.

pub(super) mod permissions;
pub(super) mod settings;
