//! Leases on real ZooKeeper servers: one, and an ensemble.

mod ensemble;
mod faults;
mod kinds;
mod leases;
mod store;
mod users;
