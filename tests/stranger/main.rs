//! Random programs over the whole family, judged by the sentences of the guide alone.
//!
//! `LEASEHOLD_STRANGER_SECONDS` says for how long each store is tried, `LEASEHOLD_STRANGER_SEED` repeats one run.

mod actor;
mod dice;
mod guards;
mod history;
mod judge;
mod plan;
mod promises;
mod trial;
mod world;

#[cfg(test)]
mod memory;
#[cfg(test)]
mod servers;
