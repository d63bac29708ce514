//! The handles: what asks for a name.

use crate::error::{ErrorKind, Result};
use crate::hold::Hold;
use crate::hold::engine::Engine;
use crate::lease::Lease;
use crate::seek::{Patience, acquire, lock};
use crate::store::Name;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A handle on one name for one flow of control.
///
/// Made by [`LeaseManager::lock`](crate::LeaseManager::lock); making it does no I/O. Taking the lock
/// needs `&mut`: that is the proof that one flow of control is asking. While a lease of this handle
/// is alive, the same handle enters again at once (hold count 2, 3, ...); everyone else waits, other
/// handles of the same process and task included.
///
/// The compiler refuses two concurrent locks through one handle:
///
/// ```compile_fail,E0499
/// # async fn f(leases: leasehold::LeaseManager) {
/// let mut lock = leases.lock("a");
/// let _ = tokio::join!(lock.lock(), lock.lock());
/// # }
/// ```
///
/// ```
/// # async fn f(leases: leasehold::LeaseManager) {
/// let (mut here, mut there) = (leases.lock("a"), leases.lock("a"));
/// let _ = tokio::join!(here.lock(), there.lock());
/// # }
/// ```
///
/// It cannot see through a mutex: a handle in an `Arc<tokio::sync::Mutex<Lock>>` is *one* holder for all
/// who reach it, and a lease that outlives the mutex guard lets the next one in as the same holder.
/// Give each flow its own handle instead.
///
/// # Fairness
///
/// Handles of one manager wait in the order of arrival. Between processes there is no order; but a process
/// keeps a lock among its own waiters only for so long ([`Builder::max_local_handoffs`](crate::Builder::max_local_handoffs)),
/// and then lets those of others go first for about a round trip.
pub struct Lock {
    engine: Arc<Engine>,
    /// A bad name is told by the first attempt to lock it.
    name: Result<Name>,
    current: Option<Arc<Hold>>,
}

/// A flow of control that takes many names.
///
/// Made by [`LeaseManager::holder`](crate::LeaseManager::holder). A [`Lock`] is a holder with one name.
/// Take several names in one fixed order everywhere, or two holders may wait for each other for ever.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let mut holder = leases.holder();
/// let from = holder.lock("account:1").await?;
/// let to = holder.lock("account:2").await?;
/// let again = holder.lock("account:1").await?; // nested
/// assert_eq!(from.hold_count(), 2);
/// # drop((from, to, again));
/// # Ok::<(), leasehold::Error>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Holder {
    engine: Arc<Engine>,
    holds: HashMap<Name, Option<Arc<Hold>>>,
    /// At how many names the ended ones are swept out next.
    sweep_at: usize,
}

impl Lock {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        Self { engine, name: Name::new(name), current: None }
    }

    /// The name, as it was given; empty if it was refused.
    pub fn name(&self) -> &str {
        self.name.as_ref().map(Name::as_str).unwrap_or_default()
    }

    /// Waits until the lock is ours.
    ///
    /// Enters at once, one level deeper, while a lease of this handle is alive.
    ///
    /// # Errors
    ///
    /// - [`Lost`](ErrorKind::Lost): the hold of an older lease that is still alive was lost; drop that first.
    /// - [`Unavailable`](ErrorKind::Unavailable): no answer from the store for the time to live.
    /// - [`Denied`](ErrorKind::Denied), [`Rejected`](ErrorKind::Rejected),
    ///   [`WrongType`](ErrorKind::WrongType), [`Invalid`](ErrorKind::Invalid),
    ///   [`Closed`](ErrorKind::Closed): at once.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, or in one without timers (and, for Redis, without I/O).
    ///
    /// # Cancel safety
    ///
    /// Safe: if it is dropped, you lose your place in the queue, and a lease that was on its way is
    /// given back.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// # drop(lease);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn lock(&mut self) -> Result<Lease> {
        lock(&self.engine, &self.name, &mut self.current).await
    }

    /// Takes the lock if it is free now; `None` if it is not.
    ///
    /// One attempt. It never overtakes: when someone of this process holds the name or waits for it,
    /// the answer is `None` without asking the store. If a request of theirs has had no answer for an attempt, it waits for that
    /// first, for two attempts at most, for it may be this process that stood still. Just after this process has released a name for which waiters of
    /// other processes listen, the attempt comes up to 2 ms later, so that they can go first.
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock), but [`Unavailable`](ErrorKind::Unavailable) after one attempt.
    ///
    /// # Panics
    ///
    /// As [`lock`](Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe, as [`lock`](Lock::lock).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("cron").try_lock().await?;
    /// assert!(lease.is_some());
    /// assert!(leases.lock("cron").try_lock().await?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn try_lock(&mut self) -> Result<Option<Lease>> {
        acquire(&self.engine, &self.name, &mut self.current, Patience::Once).await
    }

    /// Waits until the lock is ours, at most for `timeout`; `None` if it was not by then.
    ///
    /// A zero `timeout` is one attempt.
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock); [`Unavailable`](ErrorKind::Unavailable) when the time passed and the
    /// store had not answered.
    ///
    /// # Panics
    ///
    /// As [`lock`](Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe, as [`lock`](Lock::lock).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use std::time::Duration;
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("cron").lock().await?;
    /// let other = leases.lock("cron").lock_timeout(Duration::from_millis(20)).await?;
    /// assert!(other.is_none());
    /// # drop(lease);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn lock_timeout(&mut self, timeout: Duration) -> Result<Option<Lease>> {
        acquire(&self.engine, &self.name, &mut self.current, Patience::For(timeout)).await
    }

    /// Takes the lock, runs `body` for as long as it is held, and gives it back.
    ///
    /// `body` gets the handle, to call what locks the same name again, and the lease. What it returns
    /// is returned unchanged, errors of its own included; a release that fails, but for a loss, is traced, and
    /// never replaces it. When the lease is lost, `body` is dropped at once.
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock), and [`Lost`](ErrorKind::Lost) when the lease was lost before `body` ended,
    /// also when only the release finds that out; what `body` returned is dropped then.
    ///
    /// # Panics
    ///
    /// As [`lock`](Lock::lock). A panic of `body` passes through; the lease is given back.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `body` and gives the lease back.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let sum = leases.lock("sum").with(async |_lock, lease| {
    ///     assert_eq!(lease.hold_count(), 1);
    ///     1 + 1
    /// }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn with<R, F>(&mut self, body: F) -> Result<R>
    where
        F: AsyncFnOnce(&mut Lock, &Lease) -> R,
    {
        let lease = self.lock().await?;
        let result = lease.run(body(self, &lease)).await;
        match lease.unlock().await {
            Err(error) if error.kind() == ErrorKind::Lost => return result.and(Err(error)),
            Err(error) => tracing::warn!(name = self.name(), %error, "release failed"),
            Ok(()) => {}
        }
        result
    }
}

/// What [`acquire`] needs of a holder for one name.
type Place<'a> = (&'a Arc<Engine>, Name, &'a mut Option<Arc<Hold>>);

impl Holder {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, holds: HashMap::new(), sweep_at: 16 }
    }

    /// Waits until `name` is ours, as [`Lock::lock`] does.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`].
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`].
    ///
    /// # Cancel safety
    ///
    /// Safe, as [`Lock::lock`].
    pub async fn lock(&mut self, name: &str) -> Result<Lease> {
        let (engine, name, current) = self.place(name)?;
        lock(engine, &Ok(name), current).await
    }

    /// Takes `name` if it is free now, as [`Lock::try_lock`] does.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock`].
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`].
    ///
    /// # Cancel safety
    ///
    /// Safe, as [`Lock::lock`].
    pub async fn try_lock(&mut self, name: &str) -> Result<Option<Lease>> {
        let (engine, name, current) = self.place(name)?;
        acquire(engine, &Ok(name), current, Patience::Once).await
    }

    /// Waits until `name` is ours, at most for `timeout`, as [`Lock::lock_timeout`] does.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock_timeout`].
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`].
    ///
    /// # Cancel safety
    ///
    /// Safe, as [`Lock::lock`].
    pub async fn lock_timeout(&mut self, name: &str, timeout: Duration) -> Result<Option<Lease>> {
        let (engine, name, current) = self.place(name)?;
        acquire(engine, &Ok(name), current, Patience::For(timeout)).await
    }

    fn place(&mut self, name: &str) -> Result<Place<'_>> {
        let name = Name::new(name)?;
        if self.holds.len() >= self.sweep_at {
            self.holds.retain(|_, hold| {
                hold.as_ref().is_some_and(|hold| !hold.is_over() || hold.count() > 0)
            });
            self.sweep_at = 16.max(2 * self.holds.len());
        }
        let current = self.holds.entry(name.clone()).or_default();
        Ok((&self.engine, name, current))
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder").field("names", &self.holds.len()).finish_non_exhaustive()
    }
}
