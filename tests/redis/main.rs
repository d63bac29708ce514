//! Leases on real Redis servers: alone, behind TLS, watched by sentinels, and in a cluster.

mod by_hand;
mod cluster;
mod commands;
mod drop;
mod election;
mod errors;
mod fair;
mod fences;
mod handoff;
mod jobs;
mod loss;
mod mixed;
mod moving;
mod new_addresses;
mod operator;
mod preflight;
mod resends;
mod runtimes;
mod scripts;
mod sentinel;
mod shared;
mod steal;
mod subscriptions;
mod tls;
mod wait;
mod wire;
