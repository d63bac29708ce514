//! Runs the command `leasehold` as a person would.

mod look;
