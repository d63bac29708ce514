//! Counts permits of a name across processes.

use crate::engine::{AcquireSpec, Engine, Options, WaitLimit, acquire, calls, setters};
use crate::error::{Error, Result};
use crate::locks::lease::Lease;
use crate::store::{Mode, Name};
use crate::util::runtime;
use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::coop::consume_budget;

/// Limits how many permits are held at one time, across processes and hosts.
///
/// [`LeaseManager::semaphore`](crate::LeaseManager::semaphore) creates it without I/O. Use it to limit how many work at
/// once: connections to a partner, jobs on a cluster, renders on a pool of GPUs. Each [`Permit`] is a lease of its own: the
/// watchdog renews it, its token fires when it is lost, and the permits of a process that crashed are free again one
/// [TTL](crate::Builder::ttl) later.
///
/// A semaphore is not reentrant: each call asks for more permits. So it is `Clone`, and its methods take `&self`. A caller
/// that holds permits and waits for more of the same semaphore can wait forever; acquire them in one call.
///
/// # The size
///
/// All processes must use the same size. The store refuses a request with another size as
/// [`Invalid`](crate::ErrorKind::Invalid). A call behind others of its manager learns that when its turn comes; a
/// `try_` call there returns `None`. [`resize`](Semaphore::resize) changes it for all of them. An idle semaphore keeps
/// its size for 24 hours, for the [`fence_retention`](crate::Builder::fence_retention) if that is longer, or
/// until a [`force_unlock`](crate::LeaseManager::force_unlock), which also takes all its permits away. On ZooKeeper it
/// keeps its size for 5 to 10 s, or for a minute if the process that used it last has ended.
///
/// # Order
///
/// The calls of one manager get their permits in the order of arrival; one that asks for many is not overtaken. If the
/// first of them wants as many permits as another caller unlocks, the permits are handed off in memory, without
/// contacting the store, as often in a row as [`max_local_handoffs`](crate::Builder::max_local_handoffs) allows. A
/// manager that hands off its permits releases them from time to time, and lets waiters of other managers go first.
///
/// Between managers there is no order and no bound, also for single permits. A manager makes no pause for the others if
/// none of its own calls waits. Of two managers that each acquire and release the one permit of a semaphore in a loop, one
/// can get all grants (in a measurement 12 020 to 1 in a minute); locks share evenly. Use a [lock](crate::Lock) in place
/// of a single permit, a [`fair_lock`](crate::LeaseManager::fair_lock) where the order counts, or pause between two
/// acquires.
///
/// A call for many permits can wait forever while other managers take single ones in turn, because so many may never be
/// free at once. If that can happen, let all calls ask for the same number.
///
/// On ZooKeeper processes take turns in [the order in which each began to
/// wait](crate::guide::zookeeper#the-order-of-waiters), and a call for many permits is not overtaken.
///
/// # Which stores
///
/// Memory, Redis (one server, Sentinel, Cluster), and ZooKeeper. On a quorum it is
/// [`Unsupported`](crate::ErrorKind::Unsupported), because majorities cannot count: of three nodes with two permits,
/// three holders can have two nodes each. Use [`slots`](crate::LeaseManager::slots) there. On Redis it has the layout
/// of Redisson's `RPermitExpirableSemaphore`, and both count the permits of each other.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let gpus = leases.semaphore("gpu", 4);
/// let one = gpus.acquire().await?;
/// let three = gpus.acquire_many(3).await?;
/// assert!(gpus.try_acquire().await?.is_none());
///
/// one.unlock().await?;
/// assert_eq!(gpus.usage().await?.free(), 1);
/// # drop(three);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a semaphore acquires nothing until `acquire`, `acquire_many` or one of their forms is called"]
#[doc(alias = "RPermitExpirableSemaphore")]
#[doc(alias = "RSemaphore")]
pub struct Semaphore {
    engine: Arc<Engine>,
    /// The first attempt reports an invalid name.
    name: Result<Name>,
    /// Clones share it, so that they all know of a resize.
    size: Arc<AtomicU32>,
    options: Options,
}

/// The guard of one or several permits, which are renewed, lost and released together.
///
/// It dereferences to its [`Lease`]. Dropping it releases its permits in the background. It has no
/// [fencing token](Lease::fence), because several holders are valid at the same time: use
/// [`slots`](crate::LeaseManager::slots) where each holder needs one.
#[derive(Debug)]
#[must_use = "a permit that is not kept is released at once; bind it: `let _permit = ..`, not `let _ = ..`"]
#[clippy::has_significant_drop]
pub struct Permit {
    count: u32,
    lease: Lease,
}

/// How many permits of a semaphore are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The size, as the store has it; that of the handle if the semaphore is not in use.
    pub size: u32,
    /// The number of permits that are held.
    pub held: u32,
    /// The number of holders.
    pub holders: usize,
    /// The number of processes that wait for permits, or have just waited, as far as the store knows. On Redis those that
    /// listen for permits, on ZooKeeper the calls in the queue. `None` if the store does not know it.
    pub waiting: Option<u64>,
}

impl Usage {
    /// Returns the number of permits that are free.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.size.saturating_sub(self.held)
    }
}

impl Semaphore {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, size: u32) -> Self {
        let size = Arc::new(AtomicU32::new(size));
        Self { engine, name: Name::new(name), size, options: Options::default() }
    }

    /// Returns the name; empty if the one that was given is invalid.
    pub fn name(&self) -> &str {
        Name::text_of(&self.name)
    }

    /// Returns the number of permits that this handle was made with, or that it or a clone of it set by
    /// [`resize`](Semaphore::resize). [`usage`](Semaphore::usage) asks the store.
    pub fn size(&self) -> u32 {
        self.size.load(Ordering::Relaxed)
    }

    /// Sets the number of permits, for all processes.
    ///
    /// Permits that are held stay held: after a resize below their number, none is granted until enough are released. In
    /// other managers, permits that are handed off in memory from one caller to the next count as held: they go on being
    /// handed off until a tenth of the TTL after their grant, or [`max_local_handoffs`](crate::Builder::max_local_handoffs)
    /// times, whichever comes first. Handles that were made with a former size, here and in other processes, go on with the new one. One call of such
    /// a handle can still ask for up to its own size. The store forgets a former size when no such handle has acquired
    /// permits for 24 hours, or for the [`fence_retention`](crate::Builder::fence_retention) if that is longer. So resize at
    /// run time, and start new processes with the new size.
    ///
    /// # Errors
    ///
    /// As [`usage`](Semaphore::usage), [`Invalid`](crate::ErrorKind::Invalid) for a size of 0, and
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on ZooKeeper. After
    /// [`Unavailable`](crate::ErrorKind::Unavailable) the size may or may not have changed; call it again.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, and in one without timers.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the size may or may not have changed; call it again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let (here, there) = (leases.semaphore("gpu", 1), leases.semaphore("gpu", 1));
    /// let permit = here.acquire().await?;
    /// assert!(there.try_acquire().await?.is_none());
    ///
    /// here.resize(2).await?;
    /// assert!(there.try_acquire().await?.is_some());
    /// # drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "setPermits")]
    #[doc(alias = "add_permits")]
    #[doc(alias = "forget_permits")]
    pub async fn resize(&self, size: u32) -> Result<()> {
        consume_budget().await;
        let name = self.name.as_ref().map_err(Error::clone)?;
        if size == 0 {
            return Err(no_permits());
        }
        let core = &self.engine.core;
        core.life.check()?;
        calls::resize(core, name, size).await?;
        self.size.store(size, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until a permit is free, and acquires it.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock); [`Invalid`](crate::ErrorKind::Invalid) also if other processes use another
    /// size, and [`Unsupported`](crate::ErrorKind::Unsupported) if the store has no semaphores.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::lock`](crate::Lock::lock), with a permit in place of the lease.
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<Permit>> + use<'_> {
        self.acquire_many(1)
    }

    /// Waits until `count` permits are free, and acquires them in one step.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire), and [`Invalid`](crate::ErrorKind::Invalid) if `count` is 0 or larger than the
    /// size, or on Redis larger than 1000: the server stores each permit as an entry of its own.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::lock`](crate::Lock::lock), with a permit in place of the lease.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let bundle = leases.semaphore("gpu", 4).acquire_many(3).await?;
    /// assert_eq!(bundle.count(), 3);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn acquire_many(&self, count: u32) -> impl Future<Output = Result<Permit>> + use<'_> {
        let caller = Location::caller();
        async move { self.permits(count, WaitLimit::Forever, caller).await?.ok_or_else(Error::silent) }
    }

    /// Acquires a permit if one is free now; returns `None` if none is.
    ///
    /// Makes one attempt, as [`Lock::try_lock`](crate::Lock::try_lock) does.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire), but [`Unavailable`](crate::ErrorKind::Unavailable) after an attempt, or two.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, a permit that the store grants to it is released in the background.
    #[track_caller]
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Permit>>> + use<'_> {
        self.try_acquire_many(1)
    }

    /// Acquires `count` permits if they are free now; returns `None` if they are not.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Semaphore::acquire_many), but [`Unavailable`](crate::ErrorKind::Unavailable) after an attempt, or two.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, permits that the store grants to it are released in the background.
    #[track_caller]
    pub fn try_acquire_many(
        &self,
        count: u32,
    ) -> impl Future<Output = Result<Option<Permit>>> + use<'_> {
        self.permits(count, WaitLimit::Once, Location::caller())
    }

    /// Waits for a permit, for at most `timeout`; returns `None` if none is free until then.
    ///
    /// With a zero `timeout` it makes one attempt.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire); [`Unavailable`](crate::ErrorKind::Unavailable) if the time passes without an
    /// answer of the store.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::lock`](crate::Lock::lock), with a permit in place of the lease.
    #[track_caller]
    pub fn acquire_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<Permit>>> + use<'_> {
        self.acquire_many_timeout(1, timeout)
    }

    /// Waits for `count` permits, for at most `timeout`; returns `None` if that many are never free at one time until
    /// then.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Semaphore::acquire_many) and [`acquire_timeout`](Semaphore::acquire_timeout).
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::lock`](crate::Lock::lock), with permits in place of the lease.
    #[track_caller]
    pub fn acquire_many_timeout(
        &self,
        count: u32,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<Permit>>> + use<'_> {
        self.permits(count, WaitLimit::For(timeout), Location::caller())
    }

    /// Returns how many permits are in use, in all processes.
    ///
    /// The answer can be out of date when it arrives: use it for people and dashboards, not for decisions.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Semaphore::try_acquire).
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, and in one without timers.
    ///
    /// # Cancel safety
    ///
    /// Safe. It changes nothing.
    pub async fn usage(&self) -> Result<Usage> {
        consume_budget().await;
        let name = self.name.as_ref().map_err(Error::clone)?;
        let core = &self.engine.core;
        core.life.check()?;
        let own = self.size();
        let mode = Mode::Permits { size: own, take: 1 };
        let inspection = calls::inspect_as(core, name, mode).await?;
        let held: u64 = inspection.holders.iter().map(|holder| holder.hold_count).sum();
        let held = u32::try_from(held).unwrap_or(u32::MAX);
        let size = inspection.size.unwrap_or(own);
        let holders = inspection.holders.len();
        Ok(Usage { size, held, holders, waiting: inspection.waiting })
    }

    async fn permits(
        &self,
        count: u32,
        limit: WaitLimit,
        caller: &'static Location<'static>,
    ) -> Result<Option<Permit>> {
        runtime::need_at(Some(caller));
        let name = Name::of_handle(&self.name).await?;
        let size = self.size();
        if size == 0 {
            return Err(no_permits());
        }
        if count == 0 || count > size {
            return Err(Error::invalid(format!(
                "{count} permits were asked for; the semaphore has {size}, so ask for 1 to {size}"
            )));
        }
        let mode = Mode::Permits { size, take: count };
        let spec = AcquireSpec::from(mode).with(&self.options).at(caller);
        let claim = acquire(&self.engine.core, name, spec, &mut None, limit).await?;
        Ok(claim.map(|claim| Permit { count, lease: Lease::new(&self.engine, claim) }))
    }
}

// After the calls, which a reader looks for first.
impl Semaphore {
    setters!(class label stall_after on_overrun warn_held);
}

fn no_permits() -> Error {
    Error::invalid("a semaphore has 0 permits; give it at least one")
}

impl Permit {
    /// Returns the number of permits.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Releases the permits and waits for the store's answer, as [`Lease::unlock`] does.
    ///
    /// # Errors
    ///
    /// As [`Lease::unlock`].
    ///
    /// # Panics
    ///
    /// As [`Lease::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the permit is released in the background; only the answer is lost.
    #[doc(alias = "release")]
    pub async fn unlock(self) -> Result<()> {
        self.lease.unlock().await
    }

    /// Converts the guard into its lease, which stays held.
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

impl Deref for Permit {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name)
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}
