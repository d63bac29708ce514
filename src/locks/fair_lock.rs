//! A lock whose waiters are served in the order of arrival.

use crate::engine::{Engine, Options, WaitLimit, Wanted, setters};
use crate::error::Result;
use crate::locks::handle::Handle;
use crate::locks::lease::{Lease, finish};
use crate::store::Name;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// A handle on one name, for one flow of control, whose waiters are served in the order of arrival, across all processes.
///
/// [`LeaseManager::fair_lock`](crate::LeaseManager::fair_lock) creates it without I/O. It is the same lock as that of a
/// [`Lock`](crate::Lock) of the same name, and of Redisson's `RLock`: all of them exclude each other. Re-entry is that of a
/// `Lock`, too.
///
/// # The order
///
/// - The lock goes to the fair handle that has waited longest, whichever process it is in. Each waiter reports to the
///   store for how long it has waited, so no wall clock of a client counts. Two waiters that arrive within the time of
///   one request can be served in either order.
/// - A process whose waiters stall or die delays the others by three [poll
///   intervals](crate::Builder::max_poll_interval) at most, or two
///   [attempts](crate::guide::settings#what-follows-from-the-ttl) if that is longer: 6 s by default. A waiter that stalled keeps the time of
///   its arrival.
/// - A manager hands the lock off in memory among its own waiters, as a `Lock` does. If no other manager waited at the
///   grant, it does so for 20 ms, and after that for those that waited at the grant. Otherwise it hands the lock off
///   only to waiters that came before the oldest one elsewhere.
/// - Handles that are not fair, and Redisson, take the lock whenever it is free. While they do, the wait of a fair
///   handle has no bound. Where the order counts, use fair handles only, above all in one manager: a fair handle that
///   waits behind a plain one of its manager has no place in the order yet.
/// - [`try_lock`](FairLock::try_lock) has no place either, and overtakes no waiter that has one.
///
/// Each grant costs a little more than that of a `Lock`, and each release wakes all processes that wait. Use a `Lock`
/// where the order does not matter.
///
/// # Stores
///
/// Memory and Redis, also with Sentinel or Cluster. On ZooKeeper this is a `Lock`: processes take turns in
/// [the order in which each began to wait](crate::guide::zookeeper#the-order-of-waiters), which is not that of all handles. A
/// quorum returns [`Unsupported`](crate::ErrorKind::Unsupported), because its majorities would disagree about who is first.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let mut printer = leases.fair_lock("printer");
/// let lease = printer.lock().await?;
/// // ... print ...
/// lease.unlock().await
/// # }
/// ```
#[must_use = "a lock acquires nothing until `lock`, `try_lock`, `lock_timeout` or `with` is called"]
#[doc(alias = "RFairLock")]
#[doc(alias = "fifo")]
#[doc(alias = "ticket lock")]
#[doc(alias = "queue lock")]
pub struct FairLock {
    handle: Handle,
    options: Options,
}

impl FairLock {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        Self { handle: Handle::new(engine, Name::new(name)), options: Options::default() }
    }

    /// Returns the name; empty if the one that was given is invalid.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Waits until this handle holds the lock.
    ///
    /// Re-enters at once, one level deeper, while a lease of this handle is alive.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock), and [`Unsupported`](crate::ErrorKind::Unsupported) if the store has no order.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the call gives up its place in the background, and a lease that the store grants to it
    /// is released.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.fair_lock("printer").lock().await?;
    /// lease.unlock().await
    /// # }
    /// ```
    #[doc(alias = "acquire")]
    #[track_caller]
    pub fn lock(&mut self) -> impl Future<Output = Result<Lease>> + use<'_> {
        let wanted = Wanted::fair().with(&self.options).at(Location::caller());
        self.handle.lock(wanted)
    }

    /// Locks if the name is free now and no fair handle waits for it; returns `None` otherwise.
    ///
    /// Otherwise as [`Lock::try_lock`](crate::Lock::try_lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](FairLock::lock), but [`Unavailable`](crate::ErrorKind::Unavailable) after an attempt, or two.
    ///
    /// # Panics
    ///
    /// As [`lock`](FairLock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, a lease that the store grants to it is released in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// if let Some(lease) = leases.fair_lock("printer").try_lock().await? {
    ///     // ... print ...
    ///     lease.unlock().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "try_acquire")]
    #[track_caller]
    pub fn try_lock(&mut self) -> impl Future<Output = Result<Option<Lease>>> + use<'_> {
        let wanted = Wanted::fair().with(&self.options).at(Location::caller());
        self.handle.acquire(wanted, WaitLimit::Once)
    }

    /// Waits until this handle holds the lock, for at most `timeout`; returns `None` if its turn does not come until
    /// then.
    ///
    /// With a zero `timeout` it makes one attempt, as [`try_lock`](FairLock::try_lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](FairLock::lock); [`Unavailable`](crate::ErrorKind::Unavailable) if the time passes without an answer
    /// of the store.
    ///
    /// # Panics
    ///
    /// As [`lock`](FairLock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the call loses its place in the queue, and a lease that the store grants to it is
    /// released in the background.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.fair_lock("printer").lock().await?;
    /// let other = leases.fair_lock("printer").lock_timeout(Duration::from_millis(20)).await?;
    /// assert!(other.is_none());
    /// # drop(lease);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "try_lock_for")]
    #[track_caller]
    pub fn lock_timeout(
        &mut self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<Lease>>> + use<'_> {
        let wanted = Wanted::fair().with(&self.options).at(Location::caller());
        self.handle.acquire(wanted, WaitLimit::For(timeout))
    }

    /// Locks, runs `body` while the lease is held, and releases it, as [`Lock::with`](crate::Lock::with) does.
    ///
    /// # Errors
    ///
    /// As [`lock`](FairLock::lock), and [`Lost`](crate::ErrorKind::Lost) if the lease was lost before `body` ended.
    ///
    /// # Panics
    ///
    /// As [`lock`](FairLock::lock). A panic of `body` passes through, and the lease is released.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, `body` is dropped at its current await, and the lease is released in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let pages = leases.fair_lock("printer").with(async |_lock, _lease| 3).await?;
    /// assert_eq!(pages, 3);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn with<R, F>(&mut self, body: F) -> impl Future<Output = Result<R>>
    where
        F: AsyncFnOnce(&mut FairLock, &Lease) -> R,
    {
        let caller = Location::caller();
        async move {
            let wanted = Wanted::fair().with(&self.options).at(caller);
            let lease = self.handle.lock(wanted).await?;
            let result = lease.run(body(self, &lease)).await;
            finish(result, lease.unlock().await, self.name())
        }
    }
}

// After the calls, which a reader looks for first.
impl FairLock {
    setters!(class label min_hold lock_delay stall_after warn_held);
}

impl fmt::Debug for FairLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairLock").field("name", &self.handle.name).finish_non_exhaustive()
    }
}
