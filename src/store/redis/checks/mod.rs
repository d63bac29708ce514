//! Checks of a server: the permissions of the user, and settings that may cost leases.

mod permissions;
pub(super) mod settings;
