//! A connection to one server: its address, its TLS, its login, and the errors of the client.

pub(super) mod address;
pub(super) mod command;
pub(super) mod errors;
pub(super) mod health;
#[cfg(feature = "testing")]
pub(super) mod in_process;
pub(super) mod inquiry;
mod keeper;
pub(super) mod login;
pub(super) mod node;
pub(super) mod script;
pub(super) mod subscription;
mod tls;
pub(super) mod url;
