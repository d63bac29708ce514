//! The manager, which creates locks.

use crate::Loss;
use crate::builder::Builder;
use crate::error::{Error, Result};
use crate::hold::Hold;
use crate::hold::engine::{Core, Engine};
use crate::hold::handoff::lose;
use crate::lock::{Holder, Lock};
use crate::store::{Holding, Name};
use crate::trace;
use std::fmt;
use std::pin::pin;
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
/// # What is not
///
/// - A key that an operator deletes, or that the server evicts or loses in a failover or a restart without persistence,
///   is gone before its holder can know. The token fires at the next renewal (a third of the [TTL](Builder::ttl)) or
///   reconnect. Until then the lock is also handed off between waiters of this manager, for a tenth of the TTL at most.
/// - A process that is paused between [`check`](crate::Lease::check) and its write can write late.
/// - [`force_unlock`](LeaseManager::force_unlock) lets the next holder in while the old one still works.
///
/// In these cases only the [fencing token](crate::Lease::fence) protects, if the resource compares it.
///
/// # Ending
///
/// Dropping the last manager, lock and lease disconnects in the background. Call
/// [`close`](LeaseManager::close) before the process ends, so that its leases do not outlive it.
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
    /// - `memory:` - a new store in this process, as [`in_memory`](LeaseManager::in_memory); two managers
    ///   share one through [`Builder::build`];
    /// - `redis://user:password@host:6379/0` - one Redis server (every part but the host is optional);
    /// - `rediss://…` - the same over TLS, with the feature `rustls`;
    /// - `redis+unix:///path/to/socket` - a Unix socket, with `redis+unix://user:password@localhost/path` for a user
    ///   and `?db=3` for a database;
    /// - `redis-sentinel://user:password@host:26379/0?node=host2:26379&sentinelServiceName=mymaster` - the
    ///   primary that these sentinels name; `&sentinelUsername=` and `&sentinelPassword=` if they want a user;
    /// - `redis-cluster://user:password@host:6379?node=host2:6379` - a cluster, of which these nodes are asked;
    /// - `rediss-sentinel://…`, `rediss-cluster://…` - the same over TLS.
    /// - `zookeeper://user:password@host:2181,host:2181/path` - a [ZooKeeper](crate::store#zookeeper) server or
    ///   ensemble, with the feature `zookeeper` (user, password and path are optional).
    /// - `redis://a,redis://b,redis://c` - a [`Quorum`](crate::store::Quorum) of 3 to 15 independent servers. A
    ///   minority may be down: it is tried again in the background.
    ///
    /// Odd characters in users, passwords and paths are percent-encoded. Other keys in the query are refused, and so is
    /// a `#`. What a URL cannot say, the [builder](LeaseManager::builder) can.
    ///
    /// The connection is tried out with a key of its own, so that a wrong password or a missing right
    /// shows here and not at the first lock.
    ///
    /// # Sentinel and Cluster
    ///
    /// Every server has connections of its own, and only primaries are asked. All keys of a name are in one
    /// slot. In a cluster a call carries the leases of one slot, calls of different slots go out together, and a
    /// server that is down delays nobody else's renewals. Waiters are woken by sharded pub/sub (`SPUBLISH`), as
    /// Redisson does it by default, or as [`sharded_pubsub`](Builder::sharded_pubsub) says; on Sentinel by plain pub/sub.
    ///
    /// When a slot moves, calls follow it (`MOVED`, `ASK`). While it is moving, held leases are renewed and
    /// released, but a name that nobody holds cannot be locked with a fencing token (`TRYAGAIN`: the server
    /// takes no call on two keys that it lacks); who locks waits for the end of the move, for T at most. Wake-ups
    /// follow a moved slot within T/3 (10 s at most); until then waiters go by the clock, as
    /// [`max_poll_interval`](Builder::max_poll_interval) says.
    ///
    /// After a failover all leases are verified at once on the new primary. **A grant that the old primary did
    /// not pass on is lost with it**: replication is asynchronous, so somebody else can be granted the name
    /// before the old holder knows. What the holder sees, and by when:
    ///
    /// | the new primary | the old holder |
    /// |---|---|
    /// | has the lease | goes on; choose T ≥ (time to fail over) / 0.4 |
    /// | does not have it | is told [`Gone`](Loss::Gone) at the first contact, which is the verification, or [`Taken`](Loss::Taken) |
    /// | cannot be reached by it | is told [`Expired`](Loss::Expired) before T has passed since its last renewal |
    ///
    /// In tests with three sentinels on one machine the holder is told within a second of the promotion, whether
    /// the old primary was killed or frozen. [`replicas`](Builder::replicas) makes such a loss rarer, not
    /// impossible. Fencing tokens grow across failovers as long as the clocks of the servers agree better than
    /// the failover takes: a token is at least the server's time. Only a resource that compares them is safe in
    /// all cases.
    ///
    /// List all sentinels: each is listened to, and of their answers the newest counts. So `SENTINEL REMOVE`, after
    /// which epochs begin again, goes to all of them; where some still name another primary, who is a replica by its
    /// own word does not count, if the user has `+info`. Names that tie many
    /// leases to one slot, as `{tenant}:a` and `{tenant}:b`, are renewed in fewer calls, all by one server.
    ///
    /// Rights, beside those that one server needs: in a cluster `+cluster|slots +asking +spublish +ssubscribe
    /// +sunsubscribe` instead of `+publish +subscribe +unsubscribe`; on sentinels, if they have users,
    /// `+sentinel|master +sentinel|get-master-addr-by-name +subscribe &+switch-master`; `+wait` for `replicas`. In a cluster with TLS, the
    /// certificates must name what the nodes announce: their addresses, or their host names.
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
    /// The cancellation tokens of a holder in this manager fire first, with [`Loss::Revoked`]. A holder elsewhere learns
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
        let name = Name::new(name.as_ref())?;
        let hold = lose(core, &name, Loss::Revoked);
        let mut revoked = Revoked { core, hold };
        let held = core.force_release(&name).await;
        // A grant that was sent before that, and is heard of later, is given back.
        core.queue.forced(&name, core.now());
        let before = if held.is_ok() { revoked.hold.take() } else { revoked.hold.clone() };
        // What was granted to a waiter of this manager meanwhile may have gone with the rest.
        if let Some(hold) = core.queue.hold(&name)
            && !before.is_some_and(|before| Arc::ptr_eq(&before, &hold))
        {
            hold.verify(core).await;
        }
        held
    }

    /// Closes the manager and all its clones: refuses new locks, releases all leases, and disconnects.
    ///
    /// The cancellation tokens of all leases fire first, with [`Loss::Closed`], and waiters get
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
        let core = &self.engine.core;
        core.ensure_running();
        core.closed.cancel();
        consume_budget().await;
        let until = core.now() + core.timing.grace + core.timing.attempt * 2;
        let until = *core.closing_until.get_or_init(|| until);
        let mut holds = core.queue.holds();
        for hold in &mut holds {
            if let Some(last) = lose(core, &hold.name, Loss::Closed) {
                *hold = last;
            }
        }
        let mut failed = Vec::new();
        let mut released = 0;
        for hold in holds {
            let over = pin!(hold.until_over());
            let in_time = tokio::select! {
                biased;
                () = core.attend(over) => true,
                () = core.clock().sleep_until(until) => hold.is_over(),
            };
            match hold.release_error() {
                Some(error) => failed.push((hold.name.to_string(), error)),
                None if in_time => released += 1,
                None => failed.push((hold.name.to_string(), Error::silent())),
            }
        }
        tokio::select! {
            biased;
            () = core.until_no_call() => {}
            () = core.clock().sleep_until(until) => {}
        }
        core.stop.cancel();
        let ended = pin!(async {
            core.stopped.cancelled().await;
            trace::written().await;
        });
        tokio::select! {
            biased;
            () = core.attend(ended) => {}
            () = core.clock().sleep_until(core.now() + core.timing.attempt * 2) => {}
        }
        if failed.is_empty() { Ok(()) } else { Err(CloseError { released, failed }) }
    }
}

/// A hold whose key is to be deleted by force; if that fails or is given up, it is owed to the store.
struct Revoked<'a> {
    core: &'a Arc<Core>,
    hold: Option<Arc<Hold>>,
}

impl Drop for Revoked<'_> {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.owe(self.core);
        }
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
