//! Leases on real ZooKeeper servers: one, and an ensemble.

mod election;
mod ensemble;
mod faults;
mod jobs;
mod kinds;
mod leases;
mod modes;
mod sessions;
mod shared;
mod store;
mod users;
