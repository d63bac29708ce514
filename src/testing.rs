//! For tests: a conformance suite for stores, and a store that misbehaves when told to.
//!
//! Feature `testing`; meant for `[dev-dependencies]`.
//!
//! - [`conformance`] holds one function for each clause of the [`Store`] contract, and
//!   [`conformance_suite!`](crate::conformance_suite) makes each of them a test of its own.
//! - [`FaultyStore`] wraps a store and hangs, fails, delays or loses what its [`Faults`] say, so that
//!   a service can be tested against what it will meet one day.
//!
//! A store of your own is checked by one [`Harness`] and one line:
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

pub mod conformance;
mod faulty;

pub use faulty::{Call, Fault, Faults, FaultyStore, Rule};

use crate::store::{Name, Store};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// What the conformance suite needs of a store's surroundings.
///
/// Where stores differ, the harness answers; no case is left out for any of them.
#[async_trait]
pub trait Harness: Send + Sync {
    /// One more handle on the same backend, with connections of its own.
    async fn store(&self) -> Arc<dyn Store>;

    /// Deletes what is under `name`, as an operator would; nobody is told.
    async fn lose(&self, name: &Name);

    /// Puts something under `name` that is not a lock.
    ///
    /// False, and nothing done, if the backend has nothing but locks.
    async fn occupy(&self, name: &Name) -> bool;

    /// Lets time pass for the store: virtual if it is on tokio's paused clock, real for a server.
    async fn elapse(&self, time: Duration);

    /// A time to live that is short enough to be waited for a few times.
    ///
    /// With real time, not so short that a handful of operations could outlast it.
    fn ttl(&self) -> Duration;

    /// How much longer than promised the store may keep a hold; 10 ms unless told.
    fn slack(&self) -> Duration {
        Duration::from_millis(10)
    }
}

/// Connects to the Redis server at `url`, without a lease manager around it.
///
/// As [`RedisStore::connect_with`](crate::store::RedisStore::connect_with), with the time to live that will be asked
/// for.
///
/// # Errors
///
/// As [`LeaseManager::connect`](crate::LeaseManager::connect).
///
/// # Panics
///
/// Outside a tokio runtime.
#[cfg(feature = "redis")]
pub async fn redis_store(url: &str, ttl: Duration) -> crate::Result<Arc<dyn Store>> {
    let options = crate::store::ConnectOptions::new().ttl(ttl);
    Ok(Arc::new(crate::store::RedisStore::connect_with(url, &options).await?))
}

/// Connects to the ZooKeeper servers at `url`, without a lease manager around it.
///
/// As [`ZooKeeperStore::connect_with`](crate::store::ZooKeeperStore::connect_with), with the longest time to live that
/// will be asked for.
///
/// # Errors
///
/// As [`LeaseManager::connect`](crate::LeaseManager::connect).
///
/// # Panics
///
/// Outside a tokio runtime.
#[cfg(feature = "zookeeper")]
pub async fn zookeeper_store(url: &str, ttl: Duration) -> crate::Result<Arc<dyn Store>> {
    let options = crate::store::ConnectOptions::new().ttl(ttl);
    Ok(Arc::new(crate::store::ZooKeeperStore::connect_with(url, &options).await?))
}
