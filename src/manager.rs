//! Where locks come from.

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
/// While a lease's token has not fired, no other holder can believe it has the name, provided that the store keeps
/// a key for its TTL, by a clock that runs within 1 % of the local clock and is not stepped. The token fires before
/// that time can have passed.
///
/// # What is not promised
///
/// - A key can be deleted by an operator, evicted, or lost when a server restarts without persistence or fails over.
///   The token then fires at the next renewal (T/3) or reconnect. Until then the lock is also handed off between
///   waiters of this manager, for T/10 at most.
/// - A process that is paused between [`check`](crate::Lease::check) and its write can write late.
/// - [`force_unlock`](LeaseManager::force_unlock) overlaps by design.
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
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use leasehold::LeaseManager;
///
/// let leases = LeaseManager::in_memory();
/// let mut lock = leases.lock("orders:42");
/// let lease = lock.lock().await?;
/// // ... alone here ...
/// lease.unlock().await?;
/// leases.close().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
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
    /// - [`Invalid`](crate::ErrorKind::Invalid): the URL is not valid.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): it needs a feature or a later version.
    /// - [`Unavailable`](crate::ErrorKind::Unavailable): no server answers.
    /// - [`Denied`](crate::ErrorKind::Denied): the password is wrong, or a permission is missing.
    /// - [`Rejected`](crate::ErrorKind::Rejected): the server refuses writes.
    ///
    /// The URL never appears in them.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was connected is disconnected.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use leasehold::{ErrorKind, LeaseManager};
    ///
    /// let leases = LeaseManager::connect("memory:").await?;
    /// # drop(leases);
    /// let error = LeaseManager::connect("localhost:6379").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Invalid);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Keeps leases in the memory of this process, for tests, tools and one-process services.
    ///
    /// It follows tokio's clock. It runs on the runtime that first uses it, which must keep running, and moves to
    /// another caller's runtime if that one shuts down (see [`own_thread`](Builder::own_thread)). Runtimes that share
    /// it must share a clock too: none of them, or the only one, may pause its time.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::new(Builder::default_in_memory())
    }

    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// Settings other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A handle on `name` for one flow of control; no I/O.
    ///
    /// A name that is refused is told by the first attempt to lock it.
    #[must_use]
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.engine), name.as_ref())
    }

    /// A handle for one flow of control that takes many names; no I/O.
    #[must_use]
    pub fn holder(&self) -> Holder {
        Holder::new(Arc::clone(&self.engine))
    }

    /// Who holds `name`, in this process or any other.
    ///
    /// What it tells may have changed by the time it is read: for people and dashboards, not for decisions.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock`], and [`Unsupported`](crate::ErrorKind::Unsupported) if the store cannot tell.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// let holding = leases.inspect("orders:42").await?.expect("held");
    /// assert_eq!(holding.hold_count, 1);
    /// # drop(lease);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Option<Holding>> {
        let core = &self.engine.core;
        core.check_open()?;
        consume_budget().await;
        core.inspect(&Name::new(name.as_ref())?).await
    }

    /// Takes `name` away from whoever holds it, and wakes a waiter; whether somebody held it.
    ///
    /// The tokens of a holder in this manager fire first, with [`Loss::Revoked`](crate::Loss::Revoked). A holder elsewhere learns
    /// it at its next renewal. A lease that a waiter of this manager was granted in the meantime is verified before
    /// this returns, and lost with the same cause if the store does not confirm it. **The next holder can be granted while the old one still works**: this is for
    /// operators who know that the old one is dead or must be stopped.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock`]. The local tokens have fired even then.
    ///
    /// # Cancel safety
    ///
    /// Not known whether it was taken away; call it again.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// assert!(leases.force_unlock("orders:42").await?);
    /// assert_eq!(lease.check().unwrap_err().loss(), Some(leasehold::Loss::Revoked));
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn force_unlock(&self, name: impl AsRef<str>) -> Result<bool> {
        let core = &self.engine.core;
        core.check_open()?;
        consume_budget().await;
        core.revoke(&Name::new(name.as_ref())?).await
    }

    /// Ends everything: no new locks, all leases given back, connections closed.
    ///
    /// Waiters get [`Closed`](crate::ErrorKind::Closed). The tokens of all leases fire first, with
    /// [`Loss::Closed`](crate::Loss::Closed); each name is released when its leases are dropped, or after the grace (T/10, 10 ms to
    /// 2 s), never before. It takes at most that and four attempts (T/10 each), in which it also waits for the
    /// traces that are to be written. All clones are closed.
    ///
    /// # Errors
    ///
    /// [`CloseError`] lists the names that could not be released; they expire by themselves.
    ///
    /// # Cancel safety
    ///
    /// The manager is closed all the same, and the releases go on in the background; only the report is
    /// lost.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// leases.close().await?;
    /// let error = leases.lock("orders:42").lock().await.unwrap_err();
    /// assert_eq!(error.kind(), leasehold::ErrorKind::Closed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
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

/// What [`LeaseManager::close`] could not release.
#[derive(Debug)]
pub struct CloseError {
    released: usize,
    failed: Vec<(String, Error)>,
}

impl CloseError {
    /// How many names were released.
    pub fn released(&self) -> usize {
        self.released
    }

    /// The names that were not, and why; they expire by themselves within the time to live.
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
