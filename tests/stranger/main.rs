//! Random programs over the whole family, judged by the sentences of the guide alone.
//!
//! `LEASEHOLD_STRANGER_SECONDS` says for how long each store is tried, `LEASEHOLD_STRANGER_SEED` repeats one run.

mod actor;
mod bad;
mod dice;
mod guards;
mod history;
mod judge;
mod memory;
mod plan;
mod promises;
mod reached;
mod servers;
mod trial;
mod world;
