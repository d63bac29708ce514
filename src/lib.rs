//! Provides distributed locks for tokio. When a lease is lost, you learn of it before another holder can acquire the name, as
//! long as the store [keeps its keys](guide::guarantees).
//!
//! A [`LeaseManager`] connects to a store: Redis, ZooKeeper, or the memory of this process. It creates a [`Lock`] for a
//! name. Locking it returns a [`Lease`], which a watchdog renews until it is released.
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
//! // ... only this flow of control is here ...
//! lease.unlock().await?;
//!
//! if let Some(_lease) = leases.lock("cache:refresh").try_lock().await? {
//!     // ... the name was free ...
//! } // a dropped lease is released in the background
//!
//! leases.close().await?; // releases what is left, before the process ends
//! # Ok(())
//! # }
//! ```
//!
//! `Ok(None)` means that the name is taken. An [`Error`] means that the store refused the call or gave no answer; the
//! name may be free or taken.
//! Keep the lease in a variable: `let _lease = ..`, not `let _ = ..`, which [releases it at
//! once](guide::reentrancy#keep-the-lease-in-a-variable). A lock does not remember that work was done: see [a lock does
//! not remember](guide::guarantees#a-lock-does-not-remember), and [`once`](LeaseManager::once) for jobs that run once.
//!
//! Call the async functions in a tokio runtime with timers (and, for a store behind a network, I/O), such as that of
//! `#[tokio::main]`. Outside of one they may panic. [`LeaseManager::lock`], [`holder`](LeaseManager::holder),
//! [`check`](Lease::check), [`remaining`](Lease::remaining), [`forget`](Lease::forget) and dropping a lease work
//! anywhere.
//!
//! After a pause or a failover a stale holder may still write. Only a check of the [fencing token](guide::fencing)
//! stops it. [`guarantees`](guide::guarantees) lists what is promised and what is not.
//!
//! # Nested locking
//!
//! A handle belongs to one *flow of control*: code whose steps run one after the other, across calls and awaits. `&mut`
//! lets the compiler check it. Pass the handle to a nested call, and that call re-enters at once. A nested call that makes a handle
//! of its own [waits for its caller](guide::reentrancy#two-handles-wait-for-each-other) forever.
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
//! [`run`](Lease::run) drops a future when the lease is lost. Tasks that the future has spawned go on: give them the
//! [`cancellation_token`](Lease::cancellation_token). Between steps that must not be interrupted, call
//! [`check`](Lease::check) (no I/O), or [`ensure_remaining`](Lease::ensure_remaining) to wait until enough time
//! remains.
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
//! leases.force_unlock("report", "it hangs").await?; // by an operator
//!
//! let error = lease.run(pending::<()>()).await.unwrap_err();
//! assert_eq!(error.loss(), Some(Loss::Revoked));
//! assert_eq!(helper.await?, None);
//! # Ok(())
//! # }
//! ```
//!
//! # Several processes
//!
//! Give each process a manager on the same store, with the same [settings](guide::settings). Within a process, share one
//! manager by cloning it: its waiters queue in order, and only the first of them asks the store. A released lease is
//! handed off to the next of them in memory. After
//! [127 hand-offs or a tenth of the TTL](Builder::max_local_handoffs) the other processes get their turn.
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
//! # Test
//!
//! [`LeaseManager::in_memory`] runs the same engine without a server, also with paused time. With the feature `testing`,
//! [`World`](testing::World) runs your handler under seeds of faults, and [`FaultyStore`](testing::FaultyStore) fails on request. [`guide::testing`] shows how to cause each loss and each error.
//!
//! # Guide
//!
//! - [`guarantees`](guide::guarantees), [`fencing`](guide::fencing), [`reentrancy`](guide::reentrancy): what a lease
//!   promises, how a resource rejects stale writers, and who holds a lock.
//! - [`family`](guide::family): which object to use for what.
//! - [`guarded_writes`](guide::guarded_writes), [`jobs`](guide::jobs), [`leader_election`](guide::leader_election):
//!   writes that the resource can refuse, jobs that run once, one leader.
//! - [`services`](guide::services): leases in axum and tower, schedulers and workers.
//! - [`stores`](guide::stores), [`redis`](guide::redis), [`quorum`](guide::quorum), [`zookeeper`](guide::zookeeper):
//!   URLs, permissions, costs and limits of each store.
//! - [`settings`](guide::settings): all settings, and what follows from the TTL.
//! - [`errors`](guide::errors): what to do for each kind of error.
//! - [`operations`](guide::operations): events, metrics, alerts and health checks.
//! - [`cli`](guide::cli): the command `leasehold`.
//! - [`plain_locks`](guide::plain_locks): locks that are shared with redis-py, redsync and node-redlock.
//! - [`servers`](guide::servers): managed services, and servers other than Redis.
//! - [`performance`](guide::performance), [`comparison`](guide::comparison): measured, beside other crates.
//! - [`migrating`](guide::migrating): coming from Redisson, redsync or ShedLock.
//! - [`testing`](guide::testing), [`faults`](guide::faults): paused time, injected failures, and what can go wrong.
//!
//! # Types
//!
//! - [`LeaseManager`] is a handle on a store and on the watchdog of its leases, shared by all clones. It makes locks.
//! - [`Builder`] has its settings.
//! - [`Lock`] is a handle on one name for one flow of control, [`Holder`] a handle for many names. A
//!   [fair](LeaseManager::fair_lock) `Lock` serves the waiters of all processes in the order of arrival; [`WaitingManager`] is a
//!   manager that waits.
//! - [`MultiLock`] is a handle on several names: it locks all of them or none. [`MultiLease`] is its guard.
//! - [`RwLock`] is a handle on a read-write lock; [`ReadLease`] and [`WriteLease`] are its guards, [`Upgraded`] the
//!   outcome of an upgrade.
//! - [`Semaphore`] counts permits, [`Permit`] is the guard of some of them, and [`Usage`] says how many are out.
//! - [`Slots`] is a set of numbered leases, [`Slot`] one of them.
//! - [`Election`] has one leader among the [`Candidate`]s of all processes; [`Leadership`] is its guard,
//!   [`LeadershipHealth`] says whether its work goes on after it was lost, and a [`View`] shows the [`Leader`] to
//!   observers.
//! - [`Job`] runs on one of many replicas, once for each key; [`Once`] is its outcome.
//! - [`guard::Script`] refuses the writes of a holder that has lost its lease, on Redis.
//! - [`Lease`] is the guard; dropping it releases the name. [`LeaseState`] is held, at risk or lost.
//! - [`Loss`] is the reason why a lease was lost. An [`Overrun`] is what the process does if its work goes on; its hook gets an
//!   [`OverrunReport`].
//! - [`Error`], [`ErrorKind`] and [`Fate`] report what failed, what to do about it, and whether the operation took effect.
//! - A [`Note`] says which [`Act`] took a name from its holder, and why. A [`Mark`] keeps a name [`Closed`].
//! - A [`Layout`] is a choice of keys: those of Redisson, or of plain locks. [`Mode`] and [`HolderId`] are what a store knows of
//!   a holder.
//! - [`Preflight`] says what connecting does about a [`Finding`] of a [`Check`], which has a [`Severity`]; [`Unfit`] is the
//!   error.
//! - [`Credentials`], a [`CredentialsProvider`] and a [`PasswordFile`] are what connections log in with.
//! - [`CloseError`] lists the names that `close` could not release.
//! - [`HolderInfo`] describes the holder of a name, for people and dashboards; [`Metadata`] is its description of itself,
//!   [`Owner`] the process.
//! - An [`Observer`] (a callback) or [`Events`] (a stream) receives each [`Event`]; its [`EventKind`] says what happened, with
//!   [`How`], [`Operation`], [`Outcome`] and [`Refusal`].
//!   [`Stats`] has the counts, [`Health`] says whether a manager works, and a [`Holding`] is one hold of a manager.
//!   [`Metrics`] is an observer of the crate `metrics`.
//! - A [`Listing`] is a stream of the names that are in use, each [`Listed`] with its [`Kind`].
//! - [`store::Store`] is the interface to a store; implement it for a store of your own.
//!
//! # Features
//!
//! - `redis` (default): the Redis stores.
//! - `rustls`, `rustls-aws-lc`, `native-tls`: `rediss://` URLs, by one [`TlsLibrary`] or another. Each turns on `redis`. The
//!   [guide](guide::redis#tls) says what they need to build.
//! - `zookeeper`: the ZooKeeper store.
//! - `metrics`: [`Metrics`], an observer for the crate `metrics`.
//! - `tower`: layers for axum, tonic, hyper and tower, in [`tower`].
//! - `testing`: for your tests: worlds with faults, a store that fails on request, and a conformance suite for stores.
//! - `cli`: the [command](guide::cli) `leasehold`. Turns on `redis`, `zookeeper` and `rustls`.

// On docs.rs, each item shows the feature that it needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]
// Docs that are built without a feature name its items without a link.
#![cfg_attr(
    not(all(
        feature = "metrics",
        feature = "redis",
        feature = "testing",
        feature = "tower",
        feature = "zookeeper"
    )),
    allow(rustdoc::broken_intra_doc_links)
)]

pub mod clock;
mod engine;
mod error;
#[cfg(doc)]
pub mod guide;
mod locks;
mod manager;
mod observe;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tower")]
pub mod tower;
mod util;

pub use engine::{Overrun, OverrunHook, OverrunReport};
pub use error::{Error, ErrorKind, Fate, Loss, Result};
pub use locks::election::{Candidate, Election, Leader, Leadership, View};
pub use locks::guard;
pub use locks::lease::{Lease, LeaseState};
pub use locks::lock::{Holder, Lock};
pub use locks::multi_lock::{MultiLease, MultiLock};
pub use locks::once::{Job, Once};
pub use locks::rw_lock::{ReadLease, RwLock, Upgraded, WriteLease};
pub use locks::semaphore::{Permit, Semaphore, Usage};
pub use locks::slots::{Slot, Slots};
pub use manager::{Builder, CloseError, Holding, LeaseManager, Listing};
#[cfg(feature = "metrics")]
pub use observe::metrics::Metrics;
pub use observe::{
    Event, EventKind, Events, Health, How, LeadershipHealth, Observer, Operation, Outcome, Refusal,
    Stats,
};
pub use store::{
    Act, Check, Closed, Credentials, CredentialsProvider, CredentialsRequest, Finding, HolderId,
    HolderInfo, Kind, Layout, Listed, Mark, Metadata, Mode, Note, Owner, PasswordFile, Preflight,
    Severity, TlsLibrary, Unfit, WaitingManager,
};
pub use tokio_util::sync::CancellationToken;

/// Makes the README's examples tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
