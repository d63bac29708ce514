//! Runs the command `leasehold` as a person would.

#[cfg(target_os = "linux")]
mod contract;
