//! Where locks come from, and what is decided once for all of them.

use crate::Loss;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::engine::{Core, Engine, Settings};
use crate::hold::timing::Timing;
use crate::lock::{Holder, Lock};
use crate::store::{Fencing, Holding, MemoryStore, Name, Store};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// 30 s, as Redisson's watchdog: long enough for a failover, short enough for a crash.
const DEFAULT_TTL: Duration = Timing::DEFAULT.ttl;
const DEFAULT_FENCE_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
const DEFAULT_POLL_BOUND: Duration = Duration::from_secs(1);
const POLL_BOUNDS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(60));
const SHORTEST_MAX_HOLD: Duration = Duration::from_millis(10);

/// The source of locks: one connection to a store, one watchdog, shared by all clones.
///
/// # What is promised
///
/// While a lease's token has not fired, no other holder believes to have the name, provided that
/// the store keeps a key for its time to live by a clock that runs within 1 % of ours and is not
/// stepped. The token fires before that time can have passed.
///
/// # What is not
///
/// - A key that an operator deletes or the server evicts, or that is lost with a server that restarts
///   without persistence or fails over, is gone before anyone can know. The token fires at the next
///   renewal (T/3) or reconnect.
/// - A process that is paused between [`check`](crate::Lease::check) and its write can write late.
/// - [`force_unlock`](LeaseManager::force_unlock) overlaps by design.
///
/// In these cases only the [fencing token](crate::Lease::fence) protects, if the resource compares it.
///
/// # Ending
///
/// Dropping the last manager, lock and lease disconnects in the background. Call
/// [`close`](LeaseManager::close) before the process ends, so that its leases do not outlive it.
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
    /// - `memory:` - leases of this process, as [`in_memory`](LeaseManager::in_memory);
    /// - `redis://user:password@host:6379/0` - one Redis server (every part but the host is optional);
    /// - `rediss://…` - the same over TLS, with the feature `rustls`;
    /// - `redis+unix:///path/to/socket` - a Unix socket.
    ///
    /// The connection is tried out with a key of its own, so that a wrong password or a missing right
    /// shows here and not at the first lock.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a URL that makes no sense,
    /// [`Unsupported`](ErrorKind::Unsupported) for one that needs a feature or a later version,
    /// [`Unavailable`](ErrorKind::Unavailable) if nobody answers, [`Denied`](ErrorKind::Denied) for a
    /// wrong password or a missing right, [`Rejected`](ErrorKind::Rejected) if the server refuses writes.
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

    /// Leases in the memory of this process, for tests, tools and one-process services.
    ///
    /// Follows tokio's clock, and works on the runtime of whoever locks.
    #[must_use]
    pub fn in_memory() -> Self {
        let timing = Timing::DEFAULT;
        let settings = Builder::default().settings(&timing);
        let core = Core::new(Arc::new(MemoryStore::new()), timing, settings);
        Self { engine: Engine::on_caller(core) }
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
    /// As [`Lock::try_lock`], and [`Unsupported`](ErrorKind::Unsupported) if the store cannot tell.
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
        core.store.inspect(&Name::new(name.as_ref())?).await
    }

    /// Takes `name` away from whoever holds it, and wakes a waiter; whether somebody held it.
    ///
    /// The tokens of a holder in this manager fire first, with [`Loss::Revoked`]. A holder elsewhere learns
    /// it at its next renewal. **The next holder can be granted while the old one still works**: this is for
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
        let name = Name::new(name.as_ref())?;
        if let Some(hold) = core.queue.hold(&name) {
            hold.lose(core, Loss::Revoked);
        }
        core.store.force_release(&name).await
    }

    /// Ends everything: no new locks, all leases given back, connections closed.
    ///
    /// Waiters get [`Closed`](ErrorKind::Closed). The tokens of all leases fire first, with
    /// [`Loss::Closed`]; each name is released when its leases are dropped, or after the grace (T/10, 10 ms to
    /// 2 s), never before. It takes at most that and two attempts (T/10 each). All clones are closed.
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
        let core = &self.engine.core;
        self.engine.ensure_running();
        core.closed.cancel();
        let until = core.now() + core.timing.grace + core.timing.attempt * 2;
        let until = *core.closing_until.get_or_init(|| until);
        let holds = core.queue.holds();
        for hold in &holds {
            hold.lose(core, Loss::Closed);
        }
        let mut failed = Vec::new();
        let mut released = 0;
        for hold in holds {
            let in_time = tokio::select! {
                () = hold.until_over() => true,
                () = core.clock().sleep_until(until) => hold.is_over(),
            };
            match hold.release_error() {
                Some(error) => failed.push((hold.name.to_string(), error)),
                None if in_time => released += 1,
                None => {
                    let error =
                        Error::new(ErrorKind::Unavailable, "the store did not answer in time");
                    failed.push((hold.name.to_string(), error));
                }
            }
        }
        core.stop.cancel();
        tokio::select! {
            () = core.stopped.cancelled() => {}
            () = core.clock().sleep_until(core.now() + core.timing.attempt * 2) => {}
        }
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

/// Settings of a [`LeaseManager`].
///
/// All processes that share names should use the same.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use leasehold::LeaseManager;
/// use std::time::Duration;
///
/// let leases = LeaseManager::builder()
///     .ttl(Duration::from_secs(10))
///     .max_hold(Duration::from_secs(3600))
///     .connect("memory:")
///     .await?;
/// # drop(leases);
/// # Ok::<(), leasehold::Error>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    ttl: Duration,
    poll_bound: Option<Duration>,
    max_hold: Option<Duration>,
    fencing: bool,
    fence_retention: Option<Duration>,
    prefix: String,
    own_thread: Option<bool>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            ttl: DEFAULT_TTL,
            poll_bound: None,
            max_hold: None,
            fencing: true,
            fence_retention: Some(DEFAULT_FENCE_RETENTION),
            prefix: String::new(),
            own_thread: None,
        }
    }
}

impl Builder {
    /// T, the time to live of a lease: after a crash others wait for as long. 100 ms to 365 days; default 30 s.
    ///
    /// Renewals go out every third of it (at most every 60 s). Below 2 s a short stall of the network or the
    /// machine costs leases. To ride out a failover of F seconds, choose T ≥ F / 0.55.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long a waiter sleeps at most without asking the store again. 1 ms to 60 s; default 1 s, or T/3 if
    /// that is less.
    ///
    /// Waiters are woken by messages; this bounds the wait when a message is lost.
    pub fn poll_bound(mut self, bound: Duration) -> Self {
        self.poll_bound = Some(bound);
        self
    }

    /// How long one holder may hold; after it the lease is lost, with [`Loss::MaxHold`]. At least 10 ms;
    /// default: no bound.
    ///
    /// Against a worker that hangs while its process lives on, and is renewed for ever.
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.max_hold = Some(max);
        self
    }

    /// Whether grants carry [fencing tokens](crate::Lease::fence); default true.
    ///
    /// Without them a grant costs the server two fifths less time.
    pub fn fencing(mut self, on: bool) -> Self {
        self.fencing = on;
        self
    }

    /// How long the store remembers the last fencing token of a name that nobody locks. At least 2 T; default
    /// 24 h; `None` for ever, which leaves one key for each name behind.
    ///
    /// Choose `None` where Java services use `RFencedLock` on the same names: it would start again at 1.
    pub fn fence_retention(mut self, retention: Option<Duration>) -> Self {
        self.fence_retention = retention;
        self
    }

    /// What goes before each name to make the key; default nothing. Redis only.
    ///
    /// Redisson calls it a name mapper.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Whether watchdog and connections live on a thread of their own; default true for Redis.
    ///
    /// There, blocked workers of your runtime cannot lose leases. Without it they run on the runtime of whoever
    /// connects, by tokio's clock, which a test can pause; that is the default in memory.
    pub fn own_thread(mut self, own: bool) -> Self {
        self.own_thread = Some(own);
        self
    }

    /// Connects to the store at `url`; see [`LeaseManager::connect`].
    ///
    /// # Errors
    ///
    /// As [`LeaseManager::connect`], and [`Invalid`](ErrorKind::Invalid) for a setting out of range.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was connected is disconnected.
    pub async fn connect(self, url: &str) -> Result<LeaseManager> {
        if url == "memory:" {
            return self.store(MemoryStore::new());
        }
        self.connect_redis(url).await
    }

    #[cfg(feature = "redis")]
    async fn connect_redis(self, url: &str) -> Result<LeaseManager> {
        use crate::clock::Clock;
        use crate::store::redis::{Address, RedisStore};

        let (timing, settings) = self.checked()?;
        let address = Address::parse(url, &self.prefix, timing.ttl, timing.attempt)?;
        let engine = if self.own_thread.unwrap_or(true) {
            Engine::on_own_thread(async move || {
                let store = RedisStore::connect(address, Clock::system()).await?;
                Ok(Core::new(Arc::new(store), timing, settings))
            })
            .await?
        } else {
            let store = RedisStore::connect(address, Clock::tokio()).await?;
            Engine::on_caller(Core::new(Arc::new(store), timing, settings))
        };
        Ok(LeaseManager { engine })
    }

    #[cfg(not(feature = "redis"))]
    async fn connect_redis(self, _url: &str) -> Result<LeaseManager> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "only memory: is compiled in; turn on leasehold's feature \"redis\" for Redis",
        ))
    }

    /// Uses a store of your own, or shares a [`MemoryStore`] between managers.
    ///
    /// The work runs on the caller's runtime if the store is on tokio's clock, else on a thread of its own.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a setting out of range.
    pub fn store(self, store: impl Store) -> Result<LeaseManager> {
        let (timing, settings) = self.checked()?;
        let own_thread = self.own_thread.unwrap_or(!store.clock().is_tokio());
        let core = Core::new(Arc::new(store), timing, settings);
        let engine =
            if own_thread { Engine::on_new_thread(core)? } else { Engine::on_caller(core) };
        Ok(LeaseManager { engine })
    }

    fn checked(&self) -> Result<(Timing, Settings)> {
        let timing = Timing::new(self.ttl)?;
        if let Some(bound) = self.poll_bound
            && !(POLL_BOUNDS.0..=POLL_BOUNDS.1).contains(&bound)
        {
            return Err(Error::invalid(format!(
                "a poll bound of {bound:?} is out of range; choose 1 ms to 60 s"
            )));
        }
        if let Some(max) = self.max_hold
            && max < SHORTEST_MAX_HOLD
        {
            return Err(Error::invalid(format!(
                "a max_hold of {max:?} is too short; choose at least 10 ms"
            )));
        }
        if let Some(retention) = self.fence_retention
            && retention < timing.ttl * 2
        {
            return Err(Error::invalid(format!(
                "a fence_retention of {retention:?} would end before a lease does; choose at least {:?}",
                timing.ttl * 2
            )));
        }
        Ok((timing, self.settings(&timing)))
    }

    fn settings(&self, timing: &Timing) -> Settings {
        Settings {
            max_hold: self.max_hold,
            poll_bound: self.poll_bound.unwrap_or(DEFAULT_POLL_BOUND.min(timing.ttl / 3)),
            fencing: self.fencing.then_some(Fencing { block: 1, retention: self.fence_retention }),
        }
    }
}
