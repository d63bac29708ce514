//! Distributed locks for tokio: leases that tell their holder they are lost before anyone else can acquire them.
//!
//! A [`LeaseManager`] connects to a store: Redis, a quorum of Redis servers, ZooKeeper, or the memory of this process. It
//! creates a [`Lock`] for a name; locking it returns a [`Lease`], which a watchdog renews until it is released.
//!
//! # Lock
//!
//! ```
//! use leasehold::LeaseManager;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = LeaseManager::in_memory(); // or LeaseManager::connect("redis://..").await?
//!
//! let lease = leases.lock("orders:42").lock().await?;
//! // ... alone here ...
//! lease.unlock().await?;
//!
//! if let Some(_lease) = leases.lock("cron").try_lock().await? {
//!     // ... no other holder had it ...
//! } // a dropped lease is released in the background
//!
//! leases.close().await?; // release what is left, before the process ends
//! # Ok(())
//! # }
//! ```
//!
//! `Ok(None)`: the name is taken. An [`Error`]: it is unknown whether the name is taken, or the call is refused. After a
//! pause or a failover a stale holder may still write; only a [fencing token](Lease::fence) check stops it: read
//! [what is promised](LeaseManager#what-is-promised).
//!
//! # Nested locking
//!
//! `&mut` is the proof of one flow of control. Pass the handle to a nested call, which then re-enters at once; with a
//! handle of its own it would wait for its caller forever.
//!
//! ```
//! use leasehold::{Lock, Result};
//!
//! async fn ship(lock: &mut Lock) -> Result<()> {
//!     let lease = lock.lock().await?;
//!     restock(lock).await?;
//!     lease.unlock().await
//! }
//!
//! async fn restock(lock: &mut Lock) -> Result<()> {
//!     let lease = lock.lock().await?; // hold count 2 when called by `ship`
//!     lease.unlock().await
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! # ship(&mut leasehold::LeaseManager::in_memory().lock("orders:42")).await
//! # }
//! ```
//!
//! # Stop long work when the lease is lost
//!
//! [`run`](Lease::run) drops a future at the loss. Give tasks that it spawns the
//! [`cancellation_token`](Lease::cancellation_token). Between steps that must not be interrupted, call
//! [`check`](Lease::check) (no I/O), or [`ensure_remaining`](Lease::ensure_remaining) to wait until enough time remains.
//!
//! ```
//! use leasehold::{LeaseManager, Loss};
//! use std::future::pending;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = LeaseManager::in_memory();
//! let lease = leases.lock("report").lock().await?;
//!
//! let token = lease.cancellation_token();
//! let helper = tokio::spawn(async move { token.run_until_cancelled(pending::<()>()).await });
//!
//! leases.force_unlock("report").await?; // by an operator
//!
//! let error = lease.run(pending::<()>()).await.unwrap_err();
//! assert_eq!(error.loss(), Some(Loss::Revoked));
//! assert_eq!(helper.await?, None);
//! # Ok(())
//! # }
//! ```
//!
//! # Lock many names
//!
//! Always in the same order; otherwise two flows can deadlock.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! # let leases = leasehold::LeaseManager::in_memory();
//! let mut accounts = ["account:7", "account:3"];
//! accounts.sort();
//!
//! let mut holder = leases.holder();
//! let mut held = Vec::new();
//! for account in accounts {
//!     held.push(holder.lock(account).await?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Several processes
//!
//! Give each a manager on the same server, with the same settings. Within a process, share one manager by
//! cloning it: its waiters queue first come, first served, and only the first of them asks the server. A lease
//! that is released is handed off to the next of them in memory, without contacting the server; after
//! [a while](Builder::max_local_handoffs) the other processes get their turn.
//!
//! ```no_run
//! use leasehold::LeaseManager;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! let leases = LeaseManager::builder()
//!     .ttl(Duration::from_secs(10)) // how long others wait after a crash
//!     .max_hold(Duration::from_secs(3600)) // how long they wait for a worker that hangs
//!     .prefix("shop:")
//!     .connect("redis://127.0.0.1:6379")
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Test with paused time
//!
//! In memory, time is tokio's: tests with `#[tokio::test(start_paused = true)]` never wait in real time. Two managers on
//! one [`MemoryStore`](store::MemoryStore) are rivals, as two processes are. A paused clock belongs to one runtime: share neither a
//! manager nor a `MemoryStore` between a runtime that has paused its time and another.
//!
//! ```
//! use leasehold::{LeaseManager, store::MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> leasehold::Result<()> {
//! let store = MemoryStore::new();
//! let here = LeaseManager::builder().build(store.clone())?;
//! let there = LeaseManager::builder().build(store)?;
//!
//! here.lock("job").lock().await?.forget(); // as a crash would leave it
//!
//! let start = tokio::time::Instant::now();
//! let _lease = there.lock("job").lock().await?; // no real time passes
//! assert_eq!(start.elapsed().as_secs(), 30);
//! # Ok(())
//! # }
//! ```
//!
//! # The types
//!
//! - [`LeaseManager`]: one connection to a store, which creates locks; its clones are the same manager.
//! - [`Builder`]: its settings.
//! - [`Lock`]: a handle on one name for one flow of control.
//! - [`Holder`]: the same for many names.
//! - [`Lease`]: the guard of a held lock; released on drop.
//! - [`LeaseState`]: held, at risk or lost.
//! - [`Loss`]: why a lease was lost.
//! - [`Error`], [`ErrorKind`], [`Fate`]: what failed, what to do about it, and whether the operation took effect.
//! - [`CloseError`]: the names that could not be released by `close`.
//! - [`Holding`]: the holder of a name, for people and dashboards.
//! - [`store::Store`]: the contract of a store; implement it for one of your own.
//!
//! # Features
//!
//! `redis` (default): the Redis store. `rustls`: `rediss://` URLs. `zookeeper`: the
//! [ZooKeeper store](store#zookeeper). `testing`: a conformance suite for stores, and a store that fails
//! when told to.

#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub)]
#![warn(clippy::return_self_not_must_use, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod builder;
pub mod clock;
mod error;
#[doc = include_str!("faults.md")]
pub mod faults {}
mod hints;
mod hold;
mod lease;
mod lock;
mod manager;
mod runtime;
mod seek;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;

pub use builder::Builder;
pub use error::{Error, ErrorKind, Fate, Loss, Result};
pub use lease::{Lease, LeaseState};
pub use lock::{Holder, Lock};
pub use manager::{CloseError, LeaseManager};
pub use store::Holding;
pub use tokio_util::sync::CancellationToken;

/// The README's examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
