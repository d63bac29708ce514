//! Tools for tests: worlds with faults, losses on request, a store that fails on request, and a conformance suite for stores.
//!
//! They need the feature `testing`, which is meant for `[dev-dependencies]`. [`guide::testing`](crate::guide::testing) shows
//! how to cause each loss and each error. leasehold's own tests of faults are in `tests/faults/`.
//!
//! For services:
//!
//! - [`World`] runs your code in several processes of a simulated world, with faults by hand or by seed, and judges what it does
//!   after a loss.
//! - [`lose`] ends the leases of a name with the cause that you choose.
//! - [`FaultyStore`] wraps a store. It hangs, fails, delays or loses calls by the rules of its [`Faults`], so that you can
//!   test your service against real failures.
//!
//! For stores: [`conformance`] checks the contract of [`Store`]. It has one function for each case, and
//! [`conformance_suite!`](crate::conformance_suite) makes each of them a test of its own.
//!
//! To check a store of your own, write a [`Harness`] and one line:
//!
//! ```
//! use leasehold::store::{MemoryStore, Name, Store};
//! use leasehold::testing::Harness;
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! struct Memory(MemoryStore);
//!
//! #[async_trait::async_trait]
//! impl Harness for Memory {
//!     async fn store(&self) -> Arc<dyn Store> {
//!         Arc::new(self.0.clone())
//!     }
//!     async fn lose(&self, name: &Name) {
//!         self.0.delete(name.as_str());
//!     }
//!     async fn occupy(&self, _: &Name) -> bool {
//!         false // it has nothing but locks
//!     }
//!     async fn elapse(&self, time: Duration) {
//!         tokio::time::advance(time).await; // its clock is tokio's, which the tests pause
//!     }
//!     fn ttl(&self) -> Duration {
//!         Duration::from_secs(1)
//!     }
//! }
//!
//! leasehold::conformance_suite! {
//!     #[tokio::test(start_paused = true)]
//!     Memory(MemoryStore::new())
//! }
//! # fn main() {}
//! ```

mod call;
pub mod conformance;
mod faulty;
mod rule;
mod world;

pub use call::Call;
pub use faulty::{Faults, FaultyStore};
pub use rule::{Fault, Rule};
pub use world::{Breach, Failure, Seeds, Strike, Work, World};

use crate::engine::revoke;
use crate::error::{Loss, Result};
use crate::manager::LeaseManager;
use crate::store::{Name, Store};
use crate::util::reached;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// Ends all leases that this manager has of a name, with this cause, in every mode. Returns whether it had any.
///
/// Their tokens have fired when it returns. The name is free once they are dropped, or after the
/// [grace](crate::Builder::grace). Nothing happens to leases of other managers: for a loss that goes through the store, see
/// [`guide::testing`](crate::guide::testing).
///
/// ```
/// use leasehold::{LeaseManager, Loss, testing};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> leasehold::Result<()> {
/// let leases = LeaseManager::in_memory();
/// let lease = leases.lock("report").lock().await?;
///
/// assert!(testing::lose(&leases, "report", Loss::Expired)?);
/// assert_eq!(lease.check().unwrap_err().loss(), Some(Loss::Expired));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`Invalid`](crate::ErrorKind::Invalid) if the name is not valid.
pub fn lose(leases: &LeaseManager, name: impl AsRef<str>, loss: Loss) -> Result<bool> {
    Ok(revoke::lose(leases.core(), &Name::new(name.as_ref())?, loss))
}

/// A rare state of the inside, for the tests of this crate: see `util/reached.rs`.
#[doc(hidden)]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reached {
    pub name: String,
    /// The sentence that says what it is.
    pub what: &'static str,
    /// How often it was reached in this process.
    pub count: u64,
}

/// Returns all rare states, in their order.
#[doc(hidden)]
#[must_use]
pub fn reached() -> Vec<Reached> {
    let listed = reached::LIST.iter();
    listed
        .map(|listed| Reached {
            name: listed.name.to_owned(),
            what: listed.what.trim(),
            count: listed.state.count(),
        })
        .collect()
}

/// Connects the conformance suite to a store and its backend.
///
/// The methods answer what differs between stores. Every case runs for every store.
// One implementor: the tests of each store have one, here and in crates of users.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Creates another handle on the same backend, with its own connections.
    async fn store(&self) -> Arc<dyn Store>;

    /// Deletes what is under `name`, as an operator would, and wakes no waiter.
    async fn lose(&self, name: &Name);

    /// Puts something under `name` that is not a lock. Returns true.
    ///
    /// Returns false, without an effect, if the backend has nothing but locks.
    async fn occupy(&self, name: &Name) -> bool;

    /// Lets time pass for the store. By default sleeps: in real time for a server, in virtual time on tokio's paused
    /// clock.
    async fn elapse(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Returns a time to live that is short enough for a test to wait for it a few times.
    ///
    /// In real time it must be longer than a handful of operations takes.
    fn ttl(&self) -> Duration;

    /// Returns whether the store keeps the arrival of a reader that waits, its [`Arrival`](crate::store::Arrival); by default it does.
    /// If not, it keeps those of writers alone.
    fn keeps_arrivals_of_readers(&self) -> bool {
        true
    }

    /// Returns how much longer than promised the store may keep a hold; 10 ms by default.
    fn slack(&self) -> Duration {
        Duration::from_millis(10)
    }
}

/// Connects to the Redis server at `url`, without a lease manager around it.
///
/// Works as [`RedisStore::connect_with`](crate::store::RedisStore::connect_with). `ttl` is the time to live that the test
/// requests.
///
/// # Errors
///
/// As [`LeaseManager::connect`](crate::LeaseManager::connect).
///
/// # Panics
///
/// Panics outside a tokio runtime.
///
/// # Cancel safety
///
/// Safe. If it is dropped, the connections are closed.
#[cfg(feature = "redis")]
pub async fn redis_store(url: &str, ttl: Duration) -> crate::Result<Arc<dyn Store>> {
    let options = crate::store::ConnectOptions::new().ttl(ttl);
    Ok(Arc::new(crate::store::RedisStore::connect_with(url, &options).await?))
}

/// Connects to the ZooKeeper servers at `url`, without a lease manager around it.
///
/// Works as [`ZooKeeperStore::connect_with`](crate::store::ZooKeeperStore::connect_with). `ttl` is the longest time to live
/// that the test requests.
///
/// # Errors
///
/// As [`LeaseManager::connect`](crate::LeaseManager::connect).
///
/// # Panics
///
/// Panics outside a tokio runtime.
///
/// # Cancel safety
///
/// Safe. If it is dropped, the connections are closed.
#[cfg(feature = "zookeeper")]
pub async fn zookeeper_store(url: &str, ttl: Duration) -> crate::Result<Arc<dyn Store>> {
    let options = crate::store::ConnectOptions::new().ttl(ttl);
    Ok(Arc::new(crate::store::ZooKeeperStore::connect_with(url, &options).await?))
}
