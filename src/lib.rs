//! Distributed locks for tokio: leases that their holder knows to be lost before anyone else gets in.
//!
//! A [`LeaseManager`] connects to a store: a Redis server, ZooKeeper, or the memory of this process. It makes a
//! [`Lock`] for a name, locking that gives a [`Lease`], and while the lease is alive a watchdog renews it.
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
//!     // ... nobody else had it ...
//! } // a dropped lease is given back in the background
//!
//! leases.close().await?; // give back what is left, before the process ends
//! # Ok(())
//! # }
//! ```
//!
//! `Ok(None)` says that the name is taken; an [`Error`] says that it is not known. What else may
//! write at the same time, after a pause or a failover, is refused by its [fencing token](Lease::fence)
//! or by nobody: read [what is promised](LeaseManager#what-is-promised).
//!
//! # Call what locks the same name
//!
//! `&mut` is the proof of one flow of control. Pass the handle on, and the nested call enters at once; a
//! handle of its own would wait for its caller.
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
//! [`run`](Lease::run) drops a future at the loss. What that future spawns gets the
//! [`cancellation_token`](Lease::cancellation_token). Between steps that must not be cut, [`check`](Lease::check) costs nothing,
//! and [`ensure_remaining`](Lease::ensure_remaining) makes sure that there is time for the next one.
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
//! leases.force_unlock("report").await?; // an operator takes it away
//!
//! let error = lease.run(pending::<()>()).await.unwrap_err();
//! assert_eq!(error.loss(), Some(Loss::Revoked));
//! assert_eq!(helper.await?, None);
//! # Ok(())
//! # }
//! ```
//!
//! # Take many names
//!
//! In one order everywhere, or two flows may wait for each other for ever.
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
//! that is given back goes to the next of them in memory, with no word to the server; after
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
//! In memory, time is tokio's: `#[tokio::test(start_paused = true)]` waits for nothing. Two managers on one
//! [`MemoryStore`](store::MemoryStore) are rivals, as two processes are. A paused clock belongs to one runtime: share neither a
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
//! - [`LeaseManager`]: one connection to a store, and the source of locks; its clones are the same manager.
//! - [`Builder`]: its settings.
//! - [`Lock`]: a handle on one name for one flow of control.
//! - [`Holder`]: the same for many names.
//! - [`Lease`]: what is held; given back on drop.
//! - [`LeaseState`]: held, at risk or lost.
//! - [`Loss`]: why a lease was lost.
//! - [`Error`], [`ErrorKind`], [`Fate`]: what failed, what to do about it, and whether it happened all the same.
//! - [`CloseError`]: what could not be given back at the end.
//! - [`Holding`]: who holds a name, for people who look.
//! - [`store::Store`]: what a lock needs of a server; implement it for one of your own.
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
