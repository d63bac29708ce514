//! The manager, which creates locks.

use crate::builder::Builder;
use crate::engine::{Closed, Engine};
use crate::error::{Error, Result};
use crate::lock::{Holder, Lock};
use crate::store::{Holding, Name};
use std::fmt;
use std::sync::Arc;
use tokio::task::coop::consume_budget;

/// Creates locks: one connection to a store and one watchdog, shared by all clones.
///
/// # What is promised
///
/// While the [cancellation token](crate::Lease::cancellation_token) of a lease has not fired, no other holder can believe
/// it has the name. This holds if the store keeps a key for its TTL by a clock that runs within 1 % of ours and is never
/// stepped. The token fires before the TTL can have passed.
///
/// # What is not promised
///
/// - A key that an operator deletes, or that the server evicts or loses in a failover or a restart without persistence,
///   is gone before its holder can know. The token fires at the next renewal (a third of the [TTL](Builder::ttl)) or
///   reconnect. Until then the lock is also handed off between waiters of this manager, for a tenth of the TTL at most.
/// - A process that is paused between [`check`](crate::Lease::check) and its write can write late.
/// - [`force_unlock`](LeaseManager::force_unlock) lets the next holder in while the old one still works.
///
/// In these cases only the [fencing token](crate::Lease::fence) protects, if the resource compares it. See
/// [`guarantees`](crate::guide::guarantees) for more.
///
/// # Ending
///
/// Dropping the last manager, lock and lease disconnects in the background. Call [`close`](LeaseManager::close) before
/// the process ends, so that its leases do not outlive it.
///
/// ```
/// use leasehold::LeaseManager;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// let leases = LeaseManager::in_memory();
/// let mut lock = leases.lock("orders:42");
/// let lease = lock.lock().await?;
/// // ... alone here ...
/// lease.unlock().await?;
/// leases.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "distributed lock")]
#[doc(alias = "redlock")]
#[doc(alias = "RedissonClient")]
pub struct LeaseManager {
    engine: Arc<Engine>,
}

impl LeaseManager {
    /// Connects to the store at `url` with the default settings.
    ///
    /// | URL | connects to |
    /// |---|---|
    /// | `memory:` | a new store in this process, as [`in_memory`](LeaseManager::in_memory) |
    /// | `redis://user:password@host:6379/0` | one Redis server; `rediss://` with TLS, `redis+unix://` for a socket |
    /// | `redis-sentinel://..`, `redis-cluster://..` | a fleet of Redis servers |
    /// | `redis://a,redis://b,redis://c` | a [`Quorum`](crate::store::Quorum) of independent servers |
    /// | `zookeeper://host:2181,host:2181/path` | ZooKeeper, with the feature `zookeeper` |
    ///
    /// [`stores`](crate::guide::stores#urls) has all parts of these URLs. Use the [builder](LeaseManager::builder) for
    /// settings that do not fit in a URL. [`redis`](crate::guide::redis) lists the permissions that a Redis user needs,
    /// and what happens in a failover.
    ///
    /// Connecting runs a probe on a temporary key, so bad credentials or a command that is not allowed fail here rather
    /// than at the first lock. A key that the user may not touch does not fail here, because other names may be
    /// allowed: check that the prefix fits the user's permissions.
    ///
    /// # Errors
    ///
    /// - [`Invalid`](crate::ErrorKind::Invalid): the URL cannot be read.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the URL needs a feature that is off.
    /// - [`Unavailable`](crate::ErrorKind::Unavailable): no server answers.
    /// - [`Denied`](crate::ErrorKind::Denied): the password is wrong, or a permission is missing.
    /// - [`Rejected`](crate::ErrorKind::Rejected): the server refuses writes.
    /// - [`Protocol`](crate::ErrorKind::Protocol): the reply is not that of the expected server.
    ///
    /// The URL never appears in an error.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, what was connected is disconnected.
    ///
    /// ```
    /// use leasehold::{ErrorKind, LeaseManager};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let leases = LeaseManager::connect("memory:").await?;
    /// let error = LeaseManager::connect("localhost:6379").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Invalid);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Creates a manager whose leases are in the memory of this process, for tests, tools and one-process services.
    ///
    /// It uses tokio's clock. It runs on the runtime that first uses it (which must keep running), and moves to the next
    /// caller's runtime if that one shuts down (see [`dedicated_thread`](Builder::dedicated_thread)). Runtimes that share
    /// it must share a clock too: if one of them pauses its time, it must be the only one.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::new(Builder::default_in_memory())
    }

    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// Returns a builder, for settings other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Creates a handle on `name` for one flow of control, without I/O.
    ///
    /// A name has 1 to 512 bytes, and its braces are balanced and not empty. An invalid name is reported by the first
    /// attempt to lock it.
    #[must_use]
    #[doc(alias = "getLock")]
    #[doc(alias = "mutex")]
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.engine), name.as_ref())
    }

    /// Creates a handle for one flow of control that locks many names, without I/O.
    #[must_use]
    pub fn holder(&self) -> Holder {
        Holder::new(Arc::clone(&self.engine))
    }

    /// Returns the holder of `name`, in this process or any other; `None` if it is free.
    ///
    /// The answer can be out of date when it arrives: use it for people and dashboards, not for decisions.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock`], and [`Unsupported`](crate::ErrorKind::Unsupported) if the store does not know the holder.
    ///
    /// # Cancel safety
    ///
    /// Safe. It changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// let holding = leases.inspect("orders:42").await?.expect("held");
    /// assert_eq!(holding.hold_count, 1);
    /// # drop(lease);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Option<Holding>> {
        let core = &self.engine.core;
        core.check_open()?;
        consume_budget().await;
        core.inspect(&Name::new(name.as_ref())?).await
    }

    /// Force-releases `name` and wakes a waiter. Returns whether it was held.
    ///
    /// The cancellation tokens of a holder in this manager fire first, with [`Loss::Revoked`](crate::Loss::Revoked). A holder elsewhere learns
    /// of it at its next renewal. A lease that a waiter of this manager was granted in the meantime is verified before
    /// this returns, and lost with the same reason if the store does not confirm it. **The next holder can be granted the
    /// name while the old one still works**: use it only if you know that the old one is dead or must be stopped.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock`]. The tokens in this manager have fired even then.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the outcome is unknown; call it again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// assert!(leases.force_unlock("orders:42").await?);
    /// assert_eq!(lease.check().unwrap_err().loss(), Some(leasehold::Loss::Revoked));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn force_unlock(&self, name: impl AsRef<str>) -> Result<bool> {
        let core = &self.engine.core;
        core.check_open()?;
        consume_budget().await;
        core.revoke(&Name::new(name.as_ref())?).await
    }

    /// Closes the manager and all its clones: refuses new locks, releases all leases, and disconnects.
    ///
    /// The cancellation tokens of all leases fire first, with [`Loss::Closed`](crate::Loss::Closed), and waiters get
    /// [`Closed`](crate::ErrorKind::Closed). Each name is released when its leases are dropped, or after the grace (a
    /// tenth of the [TTL](Builder::ttl), from 10 ms to 2 s), never before. The call takes at most the grace and four
    /// attempts (a tenth of the TTL each), in which it also waits until the log is written.
    ///
    /// # Errors
    ///
    /// [`CloseError`] lists the names that could not be released; they expire within one TTL.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the manager is closed nevertheless, and the releases continue in the background; only the report
    /// is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// leases.close().await?;
    /// let error = leases.lock("orders:42").lock().await.unwrap_err();
    /// assert_eq!(error.kind(), leasehold::ErrorKind::Closed);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(&self) -> Result<(), CloseError> {
        let Closed { released, failed } = self.engine.core.close().await;
        if failed.is_empty() { Ok(()) } else { Err(CloseError { released, failed }) }
    }
}

impl fmt::Debug for LeaseManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = &self.engine.core;
        f.debug_struct("LeaseManager")
            .field("store", &core.store)
            .field("ttl", &core.timing.ttl)
            .field("settings", &core.settings)
            .finish_non_exhaustive()
    }
}

/// The report of a [`LeaseManager::close`] that could not release every name.
#[derive(Debug)]
pub struct CloseError {
    released: usize,
    failed: Vec<(String, Error)>,
}

impl CloseError {
    /// Returns the number of names that were released.
    pub fn released(&self) -> usize {
        self.released
    }

    /// Returns the names that were not released, each with the reason; they expire within one
    /// [TTL](Builder::ttl).
    pub fn failed(&self) -> &[(String, Error)] {
        &self.failed
    }
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { released, failed } = self;
        write!(f, "{} of {} leases could not be released", failed.len(), released + failed.len())?;
        if let Some((name, error)) = failed.first() {
            write!(f, "; the first: {name:?}, {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for CloseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.failed.first().map(|(_, error)| error as _)
    }
}
