//! Explains leasehold by topic: promises, stores, settings, performance, faults.
//!
//! 1. Start: [`guarantees`], [`family`] (which object for what), [`stores`] (which store).
//! 2. Correctness: [`fencing`], [`guarded_writes`], [`reentrancy`].
//! 3. Tasks: [`jobs`], [`leader_election`], [`services`].
//! 4. Running it: [`settings`], [`operations`], [`cli`] (the command), [`errors`], [`redis`], [`plain_locks`], [`servers`], [`quorum`], [`zookeeper`].
//! 5. Evidence: [`testing`], [`faults`], [`performance`], [`comparison`].
//! 6. Coming from Redisson, redsync or ShedLock: [`migrating`].
//!
//! Before you lock something that must never be written twice, read [`fencing`].
//!
//! Where a page speaks of waiters or holders of one *process*, it means those of one manager: most processes have one. Two managers
//! in one process exclude each other, and queue, as two processes do.
//!
//! This module exists only in the documentation. Its examples are tests.

#[doc = include_str!("guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("fencing.md")]
pub mod fencing {}

#[doc = include_str!("guarded-writes.md")]
pub mod guarded_writes {}

#[doc = include_str!("reentrancy.md")]
pub mod reentrancy {}

#[doc = include_str!("family.md")]
pub mod family {}

#[doc = include_str!("jobs.md")]
pub mod jobs {}

#[doc = include_str!("services.md")]
pub mod services {}

#[doc = include_str!("stores.md")]
pub mod stores {}

#[doc = include_str!("redis.md")]
pub mod redis {}

#[doc = include_str!("plain-locks.md")]
pub mod plain_locks {}

#[doc = include_str!("servers.md")]
pub mod servers {}

#[doc = include_str!("quorum.md")]
pub mod quorum {}

#[doc = include_str!("zookeeper.md")]
pub mod zookeeper {}

#[doc = include_str!("settings.md")]
pub mod settings {}

#[doc = include_str!("performance.md")]
pub mod performance {}

#[doc = include_str!("comparison.md")]
pub mod comparison {}

#[doc = include_str!("migrating.md")]
pub mod migrating {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("faults.md")]
pub mod faults {}

#[doc = include_str!("operations.md")]
pub mod operations {}

#[doc = include_str!("cli.md")]
pub mod cli {}

#[doc = include_str!("errors.md")]
pub mod errors {}

#[doc = include_str!("leader-election.md")]
pub mod leader_election {}
