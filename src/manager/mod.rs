//! The manager, which creates locks. `builder.rs` has its settings, `connect.rs` the ways to make its engine.

mod builder;
mod close_error;
mod connect;
mod holding;
mod listing;

pub use builder::Builder;
pub use close_error::CloseError;
pub use holding::Holding;
pub use listing::Listing;

use crate::engine::{CloseOutcome, Engine, calls, close, describe, presence, report, revoke};
use crate::error::Result;
use crate::locks::election::Election;
use crate::locks::lock::{Holder, Lock};
use crate::locks::multi_lock::MultiLock;
use crate::locks::once::Job;
use crate::locks::rw_lock::RwLock;
use crate::locks::semaphore::Semaphore;
use crate::locks::slots::Slots;
use crate::observe::{Events, Health, Stats};
use crate::store::{HolderInfo, Name, Owner, Reason, WaitingManager};
use std::fmt;
use std::sync::Arc;
use tokio::task::coop::consume_budget;

/// A handle on a store and on the watchdog of its leases, shared by all clones. It makes locks.
///
/// # What is promised
///
/// While the [cancellation token](crate::Lease::cancellation_token) of a lease has not fired and
/// [`check`](crate::Lease::check) returns `Ok`, no other holder can believe that it has the name in a mode that
/// excludes this one. This holds as long as the store keeps a key for its whole TTL, by a clock that runs within 1 % of
/// the local clock and is not stepped. The token fires before the TTL can have passed.
///
/// # What is not promised
///
/// - A key that an operator deletes, or that the server evicts or loses in a failover or a restart without persistence,
///   is gone before its holder can know. The token fires at the next renewal (a third of the [TTL](Builder::ttl)) or
///   reconnect. Until then the lock is also handed off between waiters of this manager, for a tenth of the TTL at most.
/// - A process that is paused between [`check`](crate::Lease::check) and its write can write late.
/// - [`force_unlock`](LeaseManager::force_unlock) and [`steal`](crate::Lock::steal) let the next holder in while the
///   old one may still work.
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
    #[cfg(feature = "testing")]
    pub(crate) fn core(&self) -> &Arc<crate::engine::Core> {
        &self.engine.core
    }

    /// Connects to the store at `url` with the default settings.
    ///
    /// | URL | connects to |
    /// |---|---|
    /// | `memory:` | a new store in this process, as [`in_memory`](LeaseManager::in_memory) |
    /// | `redis://user:password@host:6379/0` | one Redis server; `rediss://` with TLS, `redis+unix://` for a socket |
    /// | `redis-sentinel://..`, `redis-cluster://..` | Redis with Sentinel, Redis Cluster |
    /// | `redis://a,redis://b,redis://c` | a [`Quorum`](crate::store::Quorum) of independent servers |
    /// | `zookeeper://host:2181,host:2181/path` | ZooKeeper, with the feature `zookeeper` |
    ///
    /// [`stores`](crate::guide::stores#urls) has all parts of these URLs. Use the [builder](LeaseManager::builder) for
    /// settings that do not fit in a URL. [`redis`](crate::guide::redis) lists the permissions that a Redis user needs,
    /// and what happens in a failover.
    ///
    /// Connecting runs a probe on a temporary key, so bad credentials or a command that is not allowed fail here rather
    /// than at the first lock. A missing permission for keys does not fail here, because the user may be meant for
    /// other names: check that the prefix fits the permissions.
    ///
    /// # Errors
    ///
    /// - [`Invalid`](crate::ErrorKind::Invalid): the URL, or a certificate that was given, cannot be read.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the URL needs a feature that is off, or the server does not know a
    ///   command.
    /// - [`Unavailable`](crate::ErrorKind::Unavailable): no server answers, or the file of a certificate cannot be read. Also if
    ///   the server wants TLS and the URL does not, or the reverse; the message says so, but other causes look the same.
    /// - [`Denied`](crate::ErrorKind::Denied): the password is wrong, a permission is missing, or a TLS certificate is not
    ///   trusted.
    /// - [`Rejected`](crate::ErrorKind::Rejected): the server refuses writes.
    /// - [`Unfit`](crate::ErrorKind::Unfit): a setting of the server may cost leases, and
    ///   [`Preflight::refuse`](crate::Preflight::refuse) is set.
    /// - [`Protocol`](crate::ErrorKind::Protocol): the reply is not that of the expected server.
    ///
    /// An error names the host and the port that failed. Nothing else of the URL ever appears in one.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the connections are closed.
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
    /// It uses tokio's clock. Its watchdog runs on the runtime on which the manager is made, or, if it is made outside
    /// of one, on that of the first call. That runtime must keep running; if it shuts down, the work moves to the
    /// runtime of the next caller (see [`dedicated_thread`](Builder::dedicated_thread)). A runtime that pauses its time
    /// must not share the manager with another one.
    #[must_use]
    pub fn in_memory() -> Self {
        Self { engine: connect::in_memory() }
    }

    /// Returns a builder, for settings other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Creates a handle on `name` for one flow of control, without I/O.
    ///
    /// A name has 1 to 512 bytes, and its braces are balanced and not empty. An invalid name is reported by the first
    /// attempt to lock it.
    #[doc(alias = "getLock")]
    #[doc(alias = "mutex")]
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.engine), name.as_ref())
    }

    /// Creates a fair handle on `name` for one flow of control, without I/O: waiters are served in the order of
    /// arrival, across all processes.
    ///
    /// It is the lock that [`lock`](LeaseManager::lock) creates, with an order, and takes the same names. Both exclude each
    /// other, and Redisson's `RLock`. The first attempt to lock it returns an error if the name is invalid, or if the store
    /// keeps no order.
    ///
    /// # The order
    ///
    /// - The lock goes to the fair handle that has waited longest, whichever process it is in. Each waiter reports to the
    ///   store for how long it has waited, so no wall clock of a client counts. Two waiters that arrive within the time of
    ///   one request can be served in either order.
    /// - A process whose waiters stall or die delays the others by three [poll intervals](Builder::max_poll_interval) at
    ///   most, or two [attempts](crate::guide::settings#what-follows-from-the-ttl) if that is longer: 6 s by default. A
    ///   waiter that stalled keeps the time of its arrival. While the oldest waiter of a manager is not polled, the others
    ///   of that manager wait behind it for at most three attempts, and waiters of other managers may overtake them.
    /// - A manager hands the lock off in memory among its own waiters, as that of a handle that is not fair. If no other manager waited
    ///   at the grant, it does so for 20 ms, and after that for those that waited at the grant. Otherwise it hands the lock
    ///   off only to waiters that came before the oldest one elsewhere.
    /// - Handles that are not fair, and Redisson, take the lock whenever it is free. While they do, the wait of a fair
    ///   handle has no bound. Where the order counts, use fair handles only, above all in one manager: a fair handle that
    ///   waits behind one that is not fair, of its own manager, has no arrival yet.
    /// - [`try_lock`](Lock::try_lock) has no place either, and overtakes no waiter that has one. [`steal`](Lock::steal)
    ///   overtakes them all. After [`force_unlock`](LeaseManager::force_unlock), a waiter behind a holder of its own manager may
    ///   be overtaken by later ones of other managers.
    ///
    /// Each grant costs a little more than that of a handle that is not fair, and each release wakes all processes that wait. Use
    /// [`lock`](LeaseManager::lock) where the order does not matter.
    ///
    /// # Stores
    ///
    /// Memory and Redis, also with Sentinel or Cluster. On ZooKeeper every lock is fair: processes take turns in [the order
    /// in which each began to wait](crate::guide::zookeeper#the-order-of-waiters), which is not that of all handles. On a
    /// quorum each call of the handle returns [`Unsupported`](crate::ErrorKind::Unsupported), because its majorities would
    /// disagree about who is first.
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
    #[doc(alias = "getFairLock")]
    #[doc(alias = "RFairLock")]
    #[doc(alias = "fifo")]
    #[doc(alias = "queue lock")]
    #[doc(alias = "ticket lock")]
    pub fn fair_lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::fair(Arc::clone(&self.engine), name.as_ref())
    }

    /// Creates a handle for one flow of control that locks many names, without I/O.
    pub fn holder(&self) -> Holder {
        Holder::new(Arc::clone(&self.engine))
    }

    /// Creates a handle on a set of names for one flow of control, without I/O. It locks all of them or none.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): the set is empty or has more than 64 names, or a name is invalid or given
    /// twice.
    pub fn multi_lock<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<MultiLock> {
        MultiLock::new(Arc::clone(&self.engine), names)
    }

    /// Creates a handle on the read-write lock `name` for one flow of control, without I/O.
    ///
    /// The first attempt to lock it reports an invalid name.
    #[doc(alias = "getReadWriteLock")]
    #[doc(alias = "RReadWriteLock")]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(Arc::clone(&self.engine), name.as_ref())
    }

    /// Creates the semaphore `name` with `size` permits, without I/O.
    ///
    /// The first attempt to acquire a permit reports an invalid name, a `size` of 0, and one that differs from the size that
    /// other processes use.
    #[doc(alias = "getPermitExpirableSemaphore")]
    #[doc(alias = "RPermitExpirableSemaphore")]
    pub fn semaphore(&self, name: impl AsRef<str>, size: u32) -> Semaphore {
        Semaphore::new(Arc::clone(&self.engine), name.as_ref(), size)
    }

    /// Creates a set of `size` numbered slots under `name`, without I/O.
    ///
    /// Slot `i` is the lock `name#i`. The first attempt to take a slot reports an invalid name, one that is too long with
    /// the largest index, and a `size` of 0.
    #[doc(alias = "semaphore")]
    pub fn slots(&self, name: impl AsRef<str>, size: u32) -> Slots {
        Slots::new(Arc::clone(&self.engine), name.as_ref(), size)
    }

    /// Creates the election `name`, without I/O.
    ///
    /// The leader holds the exclusive lock of that name. Names are those of [`lock`](LeaseManager::lock); the first campaign
    /// reports an invalid one.
    #[doc(alias = "leader election")]
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(Arc::clone(&self.engine), name.as_ref())
    }

    /// Creates a job under `key` that runs on one of many replicas, without I/O.
    ///
    /// The key names the job and its occasion, such as the time for which it is scheduled. Takes the same names as
    /// [`lock`](LeaseManager::lock). [`run`](Job::run) returns an error if the key is invalid, or if the store cannot
    /// keep a key closed.
    #[doc(alias = "cron")]
    #[doc(alias = "run once")]
    pub fn once(&self, key: impl AsRef<str>) -> Job {
        Job::new(Arc::clone(&self.engine), key.as_ref())
    }

    /// Returns the holder of `name`, in this process or any other; `None` if the name is free.
    ///
    /// A name that a mark keeps closed has no holder: [`closed`](crate::HolderInfo::closed) says why, and `hold_count`
    /// is 0.
    ///
    /// The answer can be out of date when it arrives: use it for people and dashboards, not for decisions.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock`], and [`Unsupported`](crate::ErrorKind::Unsupported) if the store does not know the holder.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, and in one without timers.
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
    /// let holder = leases.inspect("orders:42").await?.expect("held");
    /// assert_eq!(holder.hold_count, 1);
    /// # drop(lease);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Option<HolderInfo>> {
        let core = &self.engine.core;
        consume_budget().await;
        core.life.check()?;
        let inspection = calls::inspect(core, &Name::new(name.as_ref())?).await?;
        let mut holder = inspection.into_holder();
        presence::resolve(core, holder.as_mut_slice()).await;
        Ok(holder)
    }

    /// Returns all holders of `name`: of a read-write lock the readers, or of a semaphore those of its permits.
    ///
    /// As [`inspect`](LeaseManager::inspect), which returns the first of them. Their order has no meaning. Readers of
    /// one manager that [share a hold](crate::RwLock#readers-of-one-process) are one holder.
    ///
    /// # Errors
    ///
    /// As [`inspect`](LeaseManager::inspect).
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, and in one without timers.
    ///
    /// # Cancel safety
    ///
    /// Safe. It changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let gpus = leases.semaphore("gpu", 4);
    /// let (one, other) = (gpus.acquire().await?, gpus.acquire_many(2).await?);
    /// assert_eq!(leases.holders("gpu").await?.len(), 2);
    /// # drop((one, other));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn holders(&self, name: impl AsRef<str>) -> Result<Vec<HolderInfo>> {
        let core = &self.engine.core;
        consume_budget().await;
        core.life.check()?;
        let mut holders = calls::inspect(core, &Name::new(name.as_ref())?).await?.into_holders();
        presence::resolve(core, &mut holders).await;
        Ok(holders)
    }

    /// Returns a stream of the names that are in use and begin with `prefix`, in this process or any other. An empty text asks
    /// for all names below the [prefix of the manager](Builder::prefix).
    ///
    /// It sends nothing before it is polled, and then one small request after the other, so that neither the store nor this
    /// process is busy with it for long: see [`page_size`](Listing::page_size). Ask about each name by
    /// [`holders`](LeaseManager::holders) to learn more. [`Listing`] says what the answer is worth: use it for people and
    /// dashboards, not for decisions. On Redis the user needs the [permissions for
    /// listing](crate::guide::redis#permissions).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// let mut names = leases.list("orders:");
    /// while let Some(listed) = names.next().await {
    ///     let name = listed?.name;
    ///     if let Some(holder) = leases.inspect(name.as_str()).await? {
    ///         println!("{name} is held by {}", holder.holder);
    ///     }
    /// }
    /// # drop(lease);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "scan")]
    #[doc(alias = "keys")]
    pub fn list(&self, prefix: impl Into<String>) -> Listing {
        Listing::new(Arc::clone(&self.engine), prefix.into())
    }

    /// Returns the managers that wait for `name` by [`fair_lock`](LeaseManager::fair_lock), the oldest first.
    ///
    /// Each manager is listed once, with the time of its oldest waiter. A waiter behind a lease of its own manager does
    /// not ask the store, so it does not count. A manager that died stays listed for a few seconds. The answer can be
    /// out of date when it arrives: use it for people and dashboards, not for decisions.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock`], and [`Unsupported`](crate::ErrorKind::Unsupported) on a quorum and on ZooKeeper.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, and in one without timers.
    ///
    /// # Cancel safety
    ///
    /// Safe. It changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// for waiting in leases.waiters("printer").await? {
    ///     println!("{} has waited for {:?}", waiting.manager, waiting.waited);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "queue")]
    #[doc(alias = "line")]
    pub async fn waiters(&self, name: impl AsRef<str>) -> Result<Vec<WaitingManager>> {
        let core = &self.engine.core;
        consume_budget().await;
        core.life.check()?;
        let mut line = calls::waiters(core, &Name::new(name.as_ref())?).await?;
        presence::resolve_waiting(core, &mut line).await;
        Ok(line)
    }

    /// Returns the process behind the id of a holder or of a manager, such as [`Closed::by`](crate::store::Closed::by).
    ///
    /// `None` if its manager has ended for a while, does not [describe](Builder::describe) itself, or is not leasehold's.
    ///
    /// # Errors
    ///
    /// As [`inspect`](LeaseManager::inspect). [`Unsupported`](crate::ErrorKind::Unsupported) if the store keeps no
    /// descriptions of managers.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, and in one without timers.
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
    /// let owner = leases.owner_of(lease.holder_id().to_string()).await?.expect("this process");
    /// assert_eq!(owner.pid, std::process::id());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn owner_of(&self, id: impl AsRef<str>) -> Result<Option<Owner>> {
        let core = &self.engine.core;
        consume_budget().await;
        core.life.check()?;
        presence::owner_of(core, id.as_ref()).await
    }

    /// Force-releases `name` and wakes a waiter. Returns whether it was held.
    ///
    /// `why` is the reason, for operators and for the old holder, which can [read it](crate::Lease::note). It is as
    /// public as the name.
    ///
    /// The cancellation tokens of a holder in this manager fire first, with [`Loss::Revoked`](crate::Loss::Revoked). A
    /// holder elsewhere learns of it at once, through the inbox of its manager. Without an inbox (on ZooKeeper, in
    /// another language, for permits) or if the message is lost, it learns of it at its next renewal. A lease that a
    /// waiter of this manager was granted in the meantime is verified before this returns, and lost with the same
    /// reason if the store does not confirm it. **The next holder can be granted the name while the old one still
    /// works.** Until the old manager learns of the call, it can also hand the hold off to its own waiters. So use it
    /// only if you know that the old holder is dead or must be stopped.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock`]. The tokens in this manager have fired even then. [`Invalid`](crate::ErrorKind::Invalid)
    /// if `why` is empty or has more than 1024 bytes; nothing is done then.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, and in one without timers.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the tokens in this manager may have fired, and the name may or may not have been released. Call it
    /// again; that does no harm.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// assert!(leases.force_unlock("orders:42", "its host is gone").await?);
    /// assert_eq!(lease.check().unwrap_err().loss(), Some(leasehold::Loss::Revoked));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn force_unlock(&self, name: impl AsRef<str>, why: impl AsRef<str>) -> Result<bool> {
        let core = &self.engine.core;
        consume_budget().await;
        core.life.check()?;
        let reason = Reason::new(&core.author(), why.as_ref())?;
        revoke::revoke(core, &Name::new(name.as_ref())?, &reason).await
    }

    /// Returns a stream of what happens to the leases of this manager from now on. It keeps the last `capacity` events that
    /// were not taken, at least one.
    ///
    /// [`Events::dropped`] counts those that were dropped. The stream ends when the manager is closed.
    ///
    /// ```
    /// use leasehold::EventKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let mut events = leases.events(1_000);
    /// let lease = leases.lock("orders:42").lock().await?;
    /// let event = events.next().await.expect("open");
    /// assert_eq!(event.name(), Some("orders:42"));
    /// assert!(matches!(event.kind(), EventKind::Granted { .. }));
    /// # drop(lease);
    /// # Ok(())
    /// # }
    /// ```
    pub fn events(&self, capacity: usize) -> Events {
        Events::new(&self.engine.core.events, capacity)
    }

    /// Returns what this manager has counted since it was made, without I/O.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// lease.unlock().await?;
    /// let stats = leases.stats();
    /// assert_eq!((stats.granted, stats.released, stats.lost), (1, 1, 0));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.core.counters.stats()
    }

    /// Returns whether this manager and its store work, without I/O.
    ///
    /// [`operations`](crate::guide::operations#health-checks) says how to use it in health checks.
    ///
    /// ```
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let health = leases.health();
    /// assert!(health.is_live() && health.is_ready());
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        report::health(&self.engine.core, describe::leading(&self.engine.core))
    }

    /// Returns what this manager holds now, without I/O: the oldest grant first.
    ///
    /// It copies an entry for each hold, so with very many leases call it for people, not in a loop. To ask the store who
    /// holds a name in any process, use [`inspect`](LeaseManager::inspect).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// for holding in leases.holdings() {
    ///     println!("{} for {:?}, {} wait", holding.name, holding.age, holding.waiters);
    /// }
    /// assert_eq!(leases.holdings()[0].holder, lease.holder_id());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn holdings(&self) -> Vec<Holding> {
        let core = &self.engine.core;
        let held = core.queue.held().into_iter();
        held.filter_map(|(hold, waiters)| Holding::of(core, &hold, waiters)).collect()
    }

    /// Closes the manager and all its clones: refuses new locks, releases all leases, and disconnects.
    ///
    /// The cancellation tokens of all leases fire first, with [`Loss::Closed`](crate::Loss::Closed), and waiters get
    /// [`Closed`](crate::ErrorKind::Closed). Each name is released when its leases are dropped, or after the
    /// [grace](Builder::grace) (by default a tenth of the [TTL](Builder::ttl), from 10 ms to 2 s), never before. The
    /// call takes at most the grace and four [attempts](crate::guide::settings#what-follows-from-the-ttl). That
    /// includes the time in which it waits for the log.
    ///
    /// # Errors
    ///
    /// [`CloseError`] lists the names that could not be released. They expire within one TTL, or after the TTL and the
    /// [`lock_delay`](crate::Lock::lock_delay) of their handle.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, and in one without timers.
    ///
    /// # Cancel safety
    ///
    /// Once it has been polled, the manager is closed: if the call is dropped, all tokens have fired, and the releases
    /// continue in the background. Only the report is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// leases.close().await?;
    /// let error = leases.lock("orders:42").lock().await.unwrap_err();
    /// assert_eq!(error.kind(), leasehold::ErrorKind::Closed);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(&self) -> Result<(), CloseError> {
        let CloseOutcome { released, failed } = close::close(&self.engine.core).await;
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
