//! The settings of a manager.

use super::{LeaseManager, connect};
use crate::engine::{Overrun, Settings, Timing, check_stall_after};
use crate::error::{Error, Result};
use crate::observe::{Observer, Observers};
#[cfg(doc)]
use crate::store::MemoryStore;
use crate::store::connect::provider::Provider;
use crate::store::connect::remote::{Remote, Replicas};
use crate::store::connect::tls::{Identity, Pem};
use crate::store::{
    CredentialsProvider, DEFAULT_TTL, Fencing, Finding, Layout, Owner, Preflight, Store, TlsLibrary,
};
#[cfg(doc)]
use crate::{ErrorKind, Loss};
use std::path::PathBuf;
use std::time::Duration;

const DEFAULT_FENCE_RETENTION: Duration = Duration::from_secs(60 * 60);
const LONGEST_RETENTION: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST_POLL_INTERVAL: Duration = Duration::from_millis(1);
const LONGEST_POLL_INTERVAL: Duration = Duration::from_secs(60);
/// A chain of 128 holders makes the two calls around it cheap (0.08 commands each), and the turn of
/// another process is less than a millisecond away when no holder keeps it for long.
const DEFAULT_LOCAL_HANDOFFS: u32 = 127;
const MOST_LOCAL_HANDOFFS: u32 = 9_999;
const SHORTEST_MAX_HOLD: Duration = Duration::from_millis(10);

/// Returns the timing of a time to live, with this grace or the default one.
pub(super) fn timing_of(ttl: Duration, grace: Option<Duration>) -> Result<Timing> {
    let timing = Timing::new(ttl)?;
    grace.map_or(Ok(timing), |grace| timing.with_grace(grace))
}

/// For how long the store remembers fencing tokens.
#[derive(Clone, Copy, Debug)]
enum FenceRetention {
    /// For a time that depends on T.
    Default,
    For(Duration),
    Forever,
}

/// The settings of a [`LeaseManager`].
///
/// [`connect`](Builder::connect) makes the manager from a URL, and [`build`](Builder::build) from a store.
///
/// All processes that share names should use the same settings. A setting that the store does not support is refused
/// with [`Unsupported`](ErrorKind::Unsupported). Two settings are accepted, but have no effect:
///
/// - [`max_local_handoffs`](Builder::max_local_handoffs) on ZooKeeper with fencing tokens, where nothing is handed off.
/// - [`fence_retention`](Builder::fence_retention) in memory and on ZooKeeper, where tokens always grow.
///
/// ```
/// use leasehold::LeaseManager;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let leases = LeaseManager::builder()
///     .ttl(Duration::from_secs(10))
///     .max_hold(Duration::from_secs(3600))
///     .require_fencing(true)
///     .connect("memory:")
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects or builds"]
pub struct Builder {
    ttl: Duration,
    max_poll_interval: Option<Duration>,
    max_local_handoffs: u32,
    pub(super) linger: Option<Duration>,
    max_hold: Option<Duration>,
    pub(super) grace: Option<Duration>,
    stall_after: Option<Duration>,
    warn_held: Option<Duration>,
    pub(super) on_overrun: Option<Overrun>,
    fencing: bool,
    require_fencing: bool,
    pub(super) owner: Option<Owner>,
    fence_retention: FenceRetention,
    pub(super) dedicated_thread: Option<bool>,
    #[cfg(feature = "testing")]
    seed: Option<u64>,
    pub(super) remote: Remote,
    pub(super) observers: Observers,
    classify: Option<fn(&str) -> &'static str>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            ttl: DEFAULT_TTL,
            max_poll_interval: None,
            max_local_handoffs: DEFAULT_LOCAL_HANDOFFS,
            linger: None,
            max_hold: None,
            grace: None,
            stall_after: None,
            warn_held: None,
            on_overrun: None,
            fencing: true,
            require_fencing: false,
            owner: None,
            fence_retention: FenceRetention::Default,
            dedicated_thread: None,
            #[cfg(feature = "testing")]
            seed: None,
            remote: Remote::default(),
            observers: Observers::default(),
            classify: None,
        }
    }
}

impl Builder {
    /// Sets the time to live of a lease (TTL): 100 ms to 365 days.
    ///
    /// After a crash of the holder, others wait this long. Renewals are sent every third of it, or every 60 s if that
    /// is shorter. Below 2 s, a short stall of the network or the machine loses leases. To survive a failover of F
    /// seconds, choose a TTL of at least F / 0.4, or F / 0.33 if that gives less than 2.5 s. With ZooKeeper it is the
    /// [session timeout](crate::guide::zookeeper#the-ttl-is-the-session-timeout), and all times that follow from the TTL
    /// follow from three quarters of it.
    ///
    /// Defaults to 30 s.
    #[doc(alias = "lease time")]
    #[doc(alias = "lockWatchdogTimeout")]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the longest time that a waiter sleeps without asking the store again: 1 ms to 60 s.
    ///
    /// Messages wake waiters; this setting bounds the wait when a message is lost.
    ///
    /// Defaults to 1 s or a third of the [TTL](Builder::ttl), whichever is less.
    pub fn max_poll_interval(mut self, interval: Duration) -> Self {
        self.max_poll_interval = Some(interval);
        self
    }

    /// Sets how many times in a row this manager hands a lock off to its own waiters without contacting the store: 0 to
    /// 9999. With 0 it never does.
    ///
    /// A hand-off costs no round trip. The chain ends after that many hand-offs, or a tenth of the [TTL](Builder::ttl)
    /// after the store's grant, whichever comes first. Then the lock is released in the store, and other managers get
    /// their turn.
    ///
    /// While waiters of other managers listen, the chain ends sooner, and a pause follows in which they go first; see
    /// [fairness](crate::guide::settings#fairness).
    ///
    /// A higher value gives more throughput; a lower one gives shorter waits elsewhere, also for the first waiter of
    /// another manager, which a chain that has begun does not notice.
    ///
    /// On Redis, a value above 63 has a price if the server's clock is ever stepped back: see
    /// [chains of hand-offs](crate::guide::fencing#chains-of-hand-offs).
    ///
    /// Defaults to 127.
    pub fn max_local_handoffs(mut self, count: u32) -> Self {
        self.max_local_handoffs = count;
        self
    }

    /// Keeps a name for a while after its last lease has ended, so that the next call of this process gets it without a
    /// request. Off by default: the last lease of a hold releases the name. At most a tenth of the [TTL](Self::ttl).
    ///
    /// It is for a process that locks the same names again and again, as an actor or a shard does, while hardly any other
    /// process wants them. When the last lease of a name ends and no call of this process waits for it, the hold *rests*: the
    /// store keeps it, no lease has it, and it is not renewed. The next [`lock`](crate::Lock::lock) of this manager takes it over as a hold
    /// that is handed off, with a fencing token of its own: microseconds instead of two requests. Several may follow each other,
    /// within the bounds of [hand-offs](Self::max_local_handoffs): so many in a row, and a tenth of the TTL. Then the name is
    /// released, and the store asked.
    ///
    /// A hold that rests is released when its time ends, when another process asks for the name, and with the manager. A
    /// process that uses leasehold asks by a message, so it waits for a round trip more. Redisson, and a process
    /// whose message is lost, wait for the remaining time, and for longer if this process locks the name again meanwhile: up
    /// to a tenth of the TTL. A few tens of milliseconds are enough for most uses.
    ///
    /// **Do not use it** where a message can overtake the release. [`unlock`](crate::Lease::unlock) returns before the store has
    /// released the name, so another process that hears "I am done" may be refused by [`try_lock`](crate::Lock::try_lock). There, use
    /// [`unlock_now`](crate::Lease::unlock_now), or [`lock_timeout`](crate::Lock::lock_timeout). If the process
    /// crashes while a hold rests, others wait for the TTL, as after any crash. It is the same if the process ends without
    /// [`close`](crate::LeaseManager::close), or if the runtime ends on which the manager works, as in memory and with
    /// [`dedicated_thread(false)`](Self::dedicated_thread): nothing is left then that could release the name. Meanwhile
    /// [`inspect`](crate::LeaseManager::inspect) of any process reports the last holder.
    ///
    /// Only [`lock`](crate::LeaseManager::lock) lingers. Fair locks do not, because their order is that of all processes. Read-write
    /// locks and semaphores do not, because one release lets many others in. Sets, elections, and jobs that run once
    /// do not, nor a hold whose [guard](crate::Lease::guard) is used, that another process [wants](crate::Lock::steal_after), or before the end of
    /// its [`min_hold`](crate::Lock::min_hold). Redis and memory support it; a quorum and ZooKeeper do not. It needs
    /// [`max_local_handoffs`](Self::max_local_handoffs) above 0.
    ///
    /// ```
    /// use leasehold::LeaseManager;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let leases = LeaseManager::builder()
    ///     .linger(Duration::from_millis(20))
    ///     .connect("memory:")
    ///     .await?;
    /// let mut cart = leases.lock("cart:42");
    /// let first = cart.lock().await?;
    /// let fence = first.fence();
    /// first.unlock().await?;
    /// // The store is not asked.
    /// let second = cart.lock().await?;
    /// assert!(second.fence() > fence);
    /// // Another process may have the name at once.
    /// second.unlock_now().await
    /// # }
    /// ```
    #[doc(alias = "sticky")]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = (!time.is_zero()).then_some(time);
        self
    }

    /// Sets the longest time that one holder may hold a name: at least 10 ms. After it the lease is lost, with
    /// [`Loss::MaxHold`].
    ///
    /// This protects against a hung worker, whose lease would be renewed forever. The limit applies to each holder
    /// separately. A reader that shares the hold of [another one](crate::RwLock#readers-of-one-process) has at least nine
    /// tenths of it.
    ///
    /// Defaults to no limit.
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.max_hold = Some(max);
        self
    }

    /// Sets the grace: the time from the cancellation deadline, when a token fires, to the moment at which the store may let
    /// the lease expire: 10 ms to a third of the [TTL](Builder::ttl).
    ///
    /// In this time the work of the holder must stop. Choose a longer one for work that needs time to stop, such as a
    /// child process or a rollback. A longer grace leaves less time to retry a renewal. If two attempts would not fit,
    /// renewals are sent earlier. All leases of a manager have the same grace.
    ///
    /// Defaults to a tenth of the TTL, but at least 10 ms and at most 2 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Sets the longest time between two reports of [progress](crate::Lease::progress): at least 10 ms. After it the lease
    /// is lost, with [`Loss::Stalled`].
    ///
    /// This protects against a hung worker, whose lease would be renewed forever, without a limit on how long the work
    /// may take. The first report is due that long after the grant. At the loss the token fires first, and the name is
    /// released when the lease is dropped, or after the [grace](Builder::grace). A handle can have [a limit of its
    /// own](crate::Lock::stall_after).
    ///
    /// Defaults to no limit.
    pub fn stall_after(mut self, limit: Duration) -> Self {
        self.stall_after = Some(limit);
        self
    }

    /// Sets the age at which a lease is reported in the log, once, with the call site that acquired it.
    ///
    /// For leaders, and for leases of [`steal`](crate::Lock::steal) and [`steal_after`](crate::Lock::steal_after), the
    /// line names no call site; for a `LeaseLayer` it names the layer, not your handler.
    ///
    /// Use it to find leaked leases. Nothing happens to the lease; [`max_hold`](Builder::max_hold) ends one. A handle
    /// can have [an age of its own](crate::Lock::warn_held).
    ///
    /// Defaults to no report.
    pub fn warn_held(mut self, age: Duration) -> Self {
        self.warn_held = Some(age);
        self
    }

    /// Sets what the process does when a lease is lost, and is still alive shortly before another process can have the name.
    ///
    /// A token stops work that is polled. It does not stop work that blocks its thread: a loop, a blocking call, C code, a
    /// deadlock. This setting is for work that must not run beside that of the next holder. It acts when the lease has been
    /// neither dropped nor unlocked:
    ///
    /// | the loss | acts |
    /// |---|---|
    /// | [`Expired`](Loss::Expired), [`MaxHold`](Loss::MaxHold), [`Stalled`](Loss::Stalled): the store still keeps the name | at 0.8 of the [grace](Builder::grace) after the cancellation deadline, or after the token if that fired earlier |
    /// | [`Gone`](Loss::Gone), [`Taken`](Loss::Taken), [`Stolen`](Loss::Stolen), [`Revoked`](Loss::Revoked): nothing is left | a grace after the token; another holder may have the name already |
    /// | any, found after that time, because the process or the machine was stopped | at once |
    /// | [`Closed`](Loss::Closed) | never |
    ///
    /// It acts once for each hold. Nested leases are one hold, the names of a [`MultiLock`](crate::MultiLock) count as one, and
    /// [readers that share a hold](crate::RwLock#readers-of-one-process) are one. After a clean drop or unlock it never acts.
    ///
    /// A thread of its own acts, which waits from the start: it needs neither your runtime nor a new thread. If that thread
    /// is held up, as by a standard error that is not read, by a handler of the exit or of SIGABRT, or by a hook of another
    /// handle, the watchdog kills the process itself, 0.15 of the grace after the times above. A waker of a token that blocks holds up the watchdog, and with it
    /// the action. [`close`](LeaseManager::close) waits for actions that are to come.
    ///
    /// A lease that is kept in scope while the work is rolled back counts as work: drop it first, or choose a
    /// longer grace. No process can stop what the kernel or the network has already: see
    /// [when work does not stop](crate::guide::guarantees#when-work-does-not-stop). A handle can have [an action of its
    /// own](crate::Lock::on_overrun).
    ///
    /// It needs a watchdog with a thread of its own. Without [`dedicated_thread`](Builder::dedicated_thread), as in memory by
    /// default, it is [`Unsupported`](ErrorKind::Unsupported).
    ///
    /// Defaults to nothing: only the token fires.
    ///
    /// ```no_run
    /// use leasehold::{LeaseManager, Overrun};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let builder = LeaseManager::builder().on_overrun(Overrun::Exit(75));
    /// let leases = builder.connect("redis://127.0.0.1:6379").await?;
    /// # drop(leases);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "hard stop")]
    #[doc(alias = "fail-stop")]
    pub fn on_overrun(mut self, action: Overrun) -> Self {
        self.on_overrun = Some(action);
        self
    }

    /// Sets whether grants carry [fencing tokens](crate::Lease::fence).
    ///
    /// A store without fencing tokens, such as a [`Quorum`](crate::store::Quorum) of stores that cannot
    /// [reserve](crate::store::Capabilities::reserves) them, grants without them; [`require_fencing`](Builder::require_fencing) refuses it. Without fencing tokens a grant costs a Redis server
    /// two fifths less time.
    ///
    /// Defaults to `true`.
    pub fn fencing(mut self, on: bool) -> Self {
        self.fencing = on;
        self
    }

    /// Refuses a store without [fencing tokens](crate::Lease::fence), with
    /// [`Unsupported`](ErrorKind::Unsupported) from [`connect`](Builder::connect) or [`build`](Builder::build).
    ///
    /// Every lease of the manager then has a fencing token.
    ///
    /// Defaults to `false`: a store without fencing tokens is accepted.
    ///
    /// ```
    /// use leasehold::store::MemoryStore;
    /// use leasehold::testing::FaultyStore;
    /// use leasehold::{ErrorKind, LeaseManager};
    ///
    /// let (store, _faults) = FaultyStore::new(MemoryStore::new());
    /// let can = leasehold::store::Capabilities::default().with_fencing(false);
    /// let built = LeaseManager::builder().require_fencing(true).build(store.with_capabilities(can));
    /// assert_eq!(built.unwrap_err().kind(), ErrorKind::Unsupported);
    /// ```
    pub fn require_fencing(mut self, on: bool) -> Self {
        self.require_fencing = on;
        self
    }

    /// Sets how long the store remembers the last fencing token of a name after its last grant or renewal: from two
    /// [TTLs](Builder::ttl) to 100 years. `None` means forever, which leaves one key for each name in Redis.
    ///
    /// A token that is forgotten starts again from the server's time, which is larger, unless the clock was set back. So
    /// this is how far the clock of the server may be set back. It costs about 150 bytes of the server for each name that
    /// was locked in that time. If the token is ahead of the server's clock, it is remembered for that much longer. On Redis
    /// it may be forgotten 5 % earlier. In memory and on ZooKeeper this setting has no effect, because tokens always grow
    /// there.
    ///
    /// All managers that share names should use the same value. With different values on Redis, a manager never shortens
    /// what another has set, but the token of a name may be forgotten after the shorter time.
    ///
    /// A semaphore that is idle, and what a [`fence_guard`](crate::Lease::fence_guard) remembers, are kept for 24 hours, or
    /// for this time if it is longer.
    ///
    /// On Redis, a token that is remembered forever stays so: that of a name which a manager with `None`, or a Java
    /// service with an `RFencedLock`, has locked first. Choose `None` where Java services use `RFencedLock` on the same
    /// names. Otherwise the token of a name that leasehold has locked first is forgotten although Java still locks the
    /// name, and Java's tokens start again at 1. On names that leasehold locks too, Java's tokens are larger than an
    /// `int`: a counter that began at 1 continues from the server's time in microseconds.
    ///
    /// Defaults to 1 h or two TTLs, whichever is longer.
    pub fn fence_retention(mut self, retention: Option<Duration>) -> Self {
        self.fence_retention = retention.map_or(FenceRetention::Forever, FenceRetention::For);
        self
    }

    /// Sets the text that precedes each name in its key: at most 256 bytes. Redis and ZooKeeper only.
    ///
    /// Redisson calls it a name mapper.
    ///
    /// Defaults to an empty text.
    #[doc(alias = "namespace")]
    #[doc(alias = "NameMapper")]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.remote.prefix = prefix.into();
        self
    }

    /// Sets the format of a lock's key on the server, and so with which other clients it is shared. Redis only, also Sentinel,
    /// Cluster and a quorum.
    ///
    /// All processes that share a name must use the same layout. One that meets a name of the other layout gets
    /// [`WrongType`](ErrorKind::WrongType), and leaves the key as it is. What a layout cannot carry is
    /// [`Unsupported`](ErrorKind::Unsupported): see [`plain_locks`](crate::guide::plain_locks).
    ///
    /// Defaults to [`Layout::Redisson`].
    pub fn layout(mut self, layout: Layout) -> Self {
        self.remote.layout = Some(layout);
        self
    }

    /// Sets whether the watchdog and its connections run on threads of their own.
    ///
    /// With `true`, blocked workers of your runtime cannot lose leases. One thread only watches the clock and fires
    /// tokens. Another serves the connections, so that even a store that hangs delays no token. The wakers of tokens and
    /// of waiting calls run on these two. A waker that blocks delays what comes after it; those of executors never do.
    /// A third thread writes the log of the two. The log includes the lines of the Redis client, which logs through the
    /// crate `log`, if `log` is bridged to `tracing` before the manager is created; any other logger that blocks there
    /// delays renewals. Spans of `tracing` are off on these threads.
    ///
    /// With `false`, the watchdog and the connections run on the runtime on which the manager is made, or, if it is
    /// made outside of one, on that of the first call. When that runtime ends, the next caller on another runtime that
    /// locks, waits for a lock or runs work under a lease takes the work over, and leases live on. If no caller does so
    /// in time, or user code blocks that runtime for too long, a lease is lost. Its token fires before the store can grant
    /// the name to another holder, as always: a thread of the process does that, unless tokio's time is paused;
    /// [`max_hold`](Self::max_hold) and [`stall_after`](Self::stall_after) can end a lease up to a quarter of the TTL late. The
    /// connections of a runtime that has ended do not come back.
    ///
    /// Defaults to `true`; in memory to `false`, where time is tokio's, which a test can pause.
    pub fn dedicated_thread(mut self, on: bool) -> Self {
        self.dedicated_thread = Some(on);
        self
    }

    /// Takes back what a memory store does not have: the settings of connections, and those that need a thread.
    #[cfg(feature = "testing")]
    pub(crate) fn without_server(self) -> Self {
        Self { remote: Remote::default(), on_overrun: None, dedicated_thread: Some(false), ..self }
    }

    /// Describes the process of this manager in the store: service, version, host and process id.
    ///
    /// The ids of holders, of readers and permits too, of waiters in a line and of those that closed a name lead to it:
    /// [`inspect`](LeaseManager::inspect), [`holders`](LeaseManager::holders), [`waiters`](LeaseManager::waiters) and
    /// [`owner_of`](LeaseManager::owner_of) report it. On Redis the service is also a part of the name of each connection,
    /// which `CLIENT LIST` shows.
    ///
    /// It adds no request to a lock. The manager writes one entry when it starts, and again every third of the
    /// [TTL](Builder::ttl), but not more often than every 10 s and at least every 60 s, and after a reconnect.
    /// [`close`](LeaseManager::close) deletes it; that of a process that died lapses after the TTL, or after 30 s if that is
    /// longer. If the store refuses it, one line in the log says so, and the holders stay without it.
    ///
    /// [`connect`](Self::connect) writes it before it returns. A manager that runs on the caller's runtime, as after
    /// [`build`](Self::build), writes it when the runtime first runs its task.
    ///
    /// The description is as public as the names: everyone who may read the locks reads it.
    ///
    /// Defaults to off: only this manager knows the process of its holders, and holders of
    /// [labelled](crate::Lock::label) locks and [leaders](crate::Election) write host and process id beside their locks.
    ///
    /// ```
    /// use leasehold::{LeaseManager, Owner};
    /// use leasehold::store::MemoryStore;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let owner = Owner::new("billing").version("1.4.2");
    /// let leases = LeaseManager::builder().describe(owner).build(MemoryStore::new())?;
    /// let lease = leases.lock("orders:42").lock().await?;
    /// let holder = leases.inspect("orders:42").await?.expect("held");
    /// assert_eq!(holder.owner.expect("described").service, "billing");
    /// # drop(lease);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[doc(alias = "metadata")]
    pub fn describe(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Seeds the jitter, so that a simulation can be repeated.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Accepts a grant only if `count` replicas acknowledge it within `timeout`. Redis only.
    ///
    /// Otherwise the grant is released, and the attempt fails with [`Rejected`](ErrorKind::Rejected). This makes a loss
    /// in a failover rarer and is no guarantee: see [`redis`](crate::guide::redis#replicas). Only the
    /// [fencing token](crate::Lease::fence) catches the remaining cases.
    ///
    /// `count` is at least 1. `timeout` is at least 1 ms and at most half of an
    /// [attempt](crate::guide::settings#what-follows-from-the-ttl): 1.5 s with a TTL of 30 s. The user needs
    /// permission for `WAIT`.
    ///
    /// Defaults to off: a grant counts without replicas.
    pub fn replicas(mut self, count: u32, timeout: Duration) -> Self {
        self.remote.replicas = Some(Replicas { count, timeout });
        self
    }

    /// Sets what connecting does about a server whose settings may cost leases. Redis only.
    ///
    /// Connecting asks each server once with `INFO`, and looks for these:
    ///
    /// | [`Check`] | found when |
    /// |---|---|
    /// | `Eviction` | `maxmemory` is set and `maxmemory-policy` is not `noeviction`: each other policy may evict a live lease |
    /// | `Role` | the server is a replica |
    /// | `Version` | it is older than Redis 7.0 |
    /// | `Persistence` | it has no append-only file, so a restart forgets all leases; not on a [`Quorum`], which counts no node that has restarted within a TTL |
    /// | `Replicas` | it has fewer replicas than [`replicas`](Builder::replicas) demands |
    /// | `ClusterMode` | with a `redis://` URL: the server is in cluster mode, and refuses calls for names of several slots |
    /// | `Failover` | with Sentinel or Cluster: the server has a replica and [`replicas`](Builder::replicas) is not set, so a failover may lose a grant that was returned |
    /// | `Info` | the user may not run `INFO` |
    ///
    /// - [`warn`](Preflight::warn) writes one warning to the log for each finding, and connects.
    /// - [`refuse`](Preflight::refuse) fails with [`Unfit`](ErrorKind::Unfit). The error names all findings of all servers,
    ///   and its source lists them. Nothing stays connected.
    /// - [`off`](Preflight::off) asks nothing.
    ///
    /// [`Preflight::allow`] leaves a check out: for servers whose setting is known and cannot be changed, or costs nothing
    /// there. A managed server that keeps its writes may show no append-only file.
    ///
    /// The manager also checks each server that it meets later: after a failover, when a shard joins, when a server of
    /// Sentinel or Cluster answers for the first time, and after each reconnect to a single server. A finding there is
    /// only a warning, whatever is set. But a node of a quorum that connects later does not count while
    /// [`refuse`](Preflight::refuse) would refuse it.
    ///
    /// `INFO` shows neither `appendfsync` nor `min-replicas-to-write`: a server without a finding can still lose
    /// leases. Memory and ZooKeeper have none of these settings; with them this setting is
    /// [`Unsupported`](ErrorKind::Unsupported).
    ///
    /// Defaults to [`warn`](Preflight::warn).
    ///
    /// ```no_run
    /// use leasehold::store::{Check, Unfit};
    /// use leasehold::{ErrorKind, LeaseManager, Preflight};
    /// use std::error::Error;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let preflight = Preflight::refuse().allow(Check::Persistence);
    /// let builder = LeaseManager::builder().preflight(preflight);
    /// if let Err(error) = builder.connect("redis://127.0.0.1:6379").await
    ///     && error.kind() == ErrorKind::Unfit
    ///     && let Some(unfit) = error.source().and_then(|source| source.downcast_ref::<Unfit>())
    /// {
    ///     for finding in unfit.findings() {
    ///         eprintln!("{finding}"); // "the server may evict the key of a lease that is held, by ..; set .."
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// [`Check`]: crate::store::Check
    /// [`Quorum`]: crate::store::Quorum
    pub fn preflight(mut self, preflight: Preflight) -> Self {
        self.remote.preflight = Some(preflight);
        self
    }

    /// Sets whether sharded pub/sub (`SPUBLISH`) wakes waiters in a Redis Cluster, so that a message stays with the
    /// servers of its slot. Redis only; `true` is refused outside a cluster.
    ///
    /// Set it to false where Java services with Redisson share the names and wake their waiters by plain pub/sub: with
    /// `shardedSubscriptionMode` set to `OFF` (its default, `AUTO`, is sharded), or before Redisson 3.22. All processes
    /// that share names must use the same setting; no error reports a difference. Processes with different settings do
    /// not hear each other's messages. Their waiters ask by the clock: those of leasehold after
    /// [`max_poll_interval`](Self::max_poll_interval), those of Redisson when the lease would end. Such a waiter rarely
    /// finds a name free that many waiters of another process want, because that process does not know of it and does
    /// not let it go first. A missing permission for the channel has the same effect; a warning in the log reports it,
    /// when connecting and at each release.
    ///
    /// Defaults to `true` in a cluster.
    pub fn sharded_pubsub(mut self, on: bool) -> Self {
        self.remote.sharded_pubsub = Some(on);
        self
    }

    /// Trusts the certificates in `pem`, of one CA or several, instead of those of the platform. For `rediss://` URLs, with one
    /// of the features of [`TlsLibrary`].
    ///
    /// It may hold several certificates: to replace a CA, trust the old and the new one for a while.
    ///
    /// Defaults to the certificates of the platform.
    pub fn tls_ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.remote.tls.ca = Some(Pem::Given(pem.into()));
        self
    }

    /// Trusts the certificates in a file in PEM instead of those of the platform. For `rediss://` URLs. Replaces
    /// [`tls_ca`](Self::tls_ca).
    ///
    /// The file is read each time a connection is made, so a CA can be replaced while the manager runs. Reading it delays no
    /// connection that works. While it is missing or broken, a new connection fails with
    /// [`Unavailable`](ErrorKind::Unavailable), and the message names the file; it is tried again. Connections that work stay
    /// in use, with all leases.
    ///
    /// ```no_run
    /// # async fn connected() -> leasehold::Result<()> {
    /// use leasehold::LeaseManager;
    ///
    /// let leases = LeaseManager::builder()
    ///     .tls_ca_file("/etc/redis/ca.pem")
    ///     .tls_identity_files("/run/secrets/client.pem", "/run/secrets/client.key")
    ///     .connect("rediss://redis.internal:6380")
    ///     .await?;
    /// # drop(leases);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Defaults to the certificates of the platform.
    pub fn tls_ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.remote.tls.ca = Some(Pem::File(path.into()));
        self
    }

    /// Presents a client certificate: a chain and its private key, in PEM. For `rediss://` URLs, with one of the features of
    /// [`TlsLibrary`].
    ///
    /// The key has no passphrase. [`NativeTls`](TlsLibrary::NativeTls) wants it in PKCS#8, which begins with
    /// `-----BEGIN PRIVATE KEY-----`. `openssl pkcs8 -topk8 -nocrypt -in old.key -out new.key` makes one of a key in another
    /// form.
    ///
    /// Defaults to no certificate.
    pub fn tls_identity(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.remote.tls.identity =
            Some(Identity { chain: Pem::Given(chain.into()), key: Pem::Given(key.into()) });
        self
    }

    /// Presents a client certificate from two files in PEM: a chain and its private key, of the form that
    /// [`tls_identity`](Self::tls_identity) wants. For `rediss://` URLs. Replaces [`tls_identity`](Self::tls_identity).
    ///
    /// The files are read each time a connection is made, as that of [`tls_ca_file`](Self::tls_ca_file), so a certificate can
    /// be replaced before it ends. They need not change at the same moment: if they do not fit together, the connection is tried again.
    /// Both may be the same file.
    ///
    /// Defaults to no certificate.
    pub fn tls_identity_files(
        mut self,
        chain: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.remote.tls.identity =
            Some(Identity { chain: Pem::File(chain.into()), key: Pem::File(key.into()) });
        self
    }

    /// Chooses the library that makes TLS connections, where several are compiled in. For `rediss://` URLs.
    ///
    /// One whose feature is off is refused with [`Unsupported`](ErrorKind::Unsupported).
    ///
    /// Defaults to the first in the list of [`TlsLibrary`] whose feature is on.
    pub fn tls_library(mut self, library: TlsLibrary) -> Self {
        self.remote.tls.library = Some(library);
        self
    }

    /// Sets what provides the user and the password of each connection, in place of those of the URL. Redis only.
    ///
    /// It is for credentials that change while the manager runs: the tokens of a cloud, or a password that a secret store
    /// replaces. The provider is asked each time a connection is made. If its credentials are [valid for a
    /// while](crate::Credentials::valid_for), each connection authenticates again before they lapse, at a time of its own. It is an
    /// async closure, a [`PasswordFile`](crate::PasswordFile), or fixed [`Credentials`](crate::Credentials).
    ///
    /// The provider runs on a [thread of its own](CredentialsProvider::credentials). While it is slow, fails or panics, the
    /// connections that work stay in use, with all leases. Only a new connection waits for it; without one, calls return
    /// [`Unavailable`](ErrorKind::Unavailable). If the server refuses what it returns, a new connection fails as
    /// [`Denied`](ErrorKind::Denied), and is tried again.
    ///
    /// ```no_run
    /// use leasehold::{Credentials, CredentialsRequest, LeaseManager};
    /// use std::time::Duration;
    ///
    /// # async fn signed_token(_: &str) -> std::io::Result<String> { Ok(String::new()) }
    /// # async fn connected() -> leasehold::Result<()> {
    /// let leases = LeaseManager::builder()
    ///     .credentials(async |request: CredentialsRequest| {
    ///         let token = signed_token(request.server()).await?;
    ///         let token = Credentials::password(token).user("lease");
    ///         Ok::<_, std::io::Error>(token.valid_for(Duration::from_secs(15 * 60)))
    ///     })
    ///     .connect("rediss://cache.internal:6379")
    ///     .await?;
    /// # drop(leases);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A URL with a user or a password is then [`Invalid`](ErrorKind::Invalid). With memory and ZooKeeper this setting is
    /// [`Unsupported`](ErrorKind::Unsupported). Managers of one builder share the provider and its thread.
    ///
    /// Defaults to the user and the password of the URL, for as long as the manager lives.
    #[doc(alias = "IAM")]
    #[doc(alias = "password")]
    #[doc(alias = "auth")]
    pub fn credentials(mut self, provider: impl CredentialsProvider) -> Self {
        self.remote.credentials = Some(Provider::new(provider));
        self
    }

    /// Adds an observer of what happens to leases. You can add several.
    ///
    /// Each observer has a thread of its own, which calls it. [`operations`](crate::guide::operations) says what to
    /// observe.
    ///
    /// Defaults to no observer.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.add(observer);
        self
    }

    /// Sets the function that returns the class of a name whose handle has no [class](crate::Lock::class) of its own.
    ///
    /// A class is a word for all names of a kind, which [metrics](crate::guide::operations#metrics) and
    /// [events](crate::Event::class) show. There should be few classes. Each call that locks a name calls `classify`.
    ///
    /// Defaults to the class `all` for every name.
    ///
    /// ```
    /// # let _ =
    /// leasehold::LeaseManager::builder().classify(|name| match name.split_once(':') {
    ///     Some(("orders", _)) => "order",
    ///     _ => "other",
    /// });
    /// ```
    pub fn classify(mut self, classify: fn(&str) -> &'static str) -> Self {
        self.classify = Some(classify);
        self
    }

    /// Examines the servers of the store at `url`: whether locks work there, and what may cost leases. Each check has a
    /// [`Finding`], also what is fine, and what this user may not see.
    ///
    /// It never fails: an invalid URL or setting, a server that is away, a wrong password or a missing permission is a finding
    /// with [`Severity::Failure`](crate::Severity::Failure). No answer of a server is waited for forever: it takes about 11 s, in
    /// which the clocks of the servers are watched, and at most a minute and a half. It only reads, besides the try-out of permissions
    /// that [`connect`](Self::connect) does as well, for names that begin with the prefix and `leasehold-probe:`.
    /// [`preflight`](Self::preflight) does not count here.
    ///
    /// | what | on |
    /// |---|---|
    /// | the answer, the [settings](crate::guide::settings#what-connecting-looks-for) that connecting checks, the times of requests, the clock, stalls, limits, locks without a time to live | each primary, and each node of a quorum; what counts after a failover on each replica |
    /// | permissions, and a wake-up | the whole |
    /// | slots, majority, the time that a failover takes | Sentinel, Cluster, a quorum |
    /// | the answer, its latency, the session | each server of ZooKeeper |
    ///
    /// The command `leasehold doctor` prints what this returns.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, it ends in the background.
    ///
    /// ```no_run
    /// # async fn examined() {
    /// use leasehold::{LeaseManager, Severity};
    ///
    /// let findings = LeaseManager::builder().prefix("app:").examine("redis://127.0.0.1:6379").await;
    /// for finding in findings.iter().filter(|finding| finding.severity > Severity::Fine) {
    ///     println!("{}: {finding}", finding.check);
    /// }
    /// # }
    /// ```
    #[doc(alias = "doctor")]
    pub async fn examine(self, url: impl AsRef<str>) -> Vec<Finding> {
        Box::pin(connect::examine(self, url.as_ref())).await
    }

    /// Connects to the store at `url`, as [`LeaseManager::connect`] describes.
    ///
    /// # Errors
    ///
    /// - All errors of [`LeaseManager::connect`].
    /// - [`Invalid`](ErrorKind::Invalid): a setting is out of range, or two settings contradict each other.
    /// - [`Unsupported`](ErrorKind::Unsupported): the store does not support a setting, or has no fencing tokens
    ///   although [`require_fencing`](Builder::require_fencing) or [`fence_retention`](Builder::fence_retention) is
    ///   set.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the connections are closed.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<LeaseManager> {
        let engine = connect::connect(self, url).await?;
        Ok(LeaseManager { engine })
    }

    /// Builds a manager on `store`: a store of your own, a [`Quorum`](crate::store::Quorum), or a [`MemoryStore`] that
    /// several managers share.
    ///
    /// If the store uses tokio's clock, the work runs on the runtime on which the manager is made, or, if it is made
    /// outside of one, on that of the first call. Otherwise it runs on threads of its own.
    ///
    /// # Errors
    ///
    /// - [`Invalid`](ErrorKind::Invalid): a setting is out of range, or two settings contradict each other.
    /// - [`Unsupported`](ErrorKind::Unsupported): a setting is for stores with a URL, such as
    ///   [`prefix`](Builder::prefix), or `store` has no fencing tokens although
    ///   [`require_fencing`](Builder::require_fencing) or [`fence_retention`](Builder::fence_retention) is set.
    /// - [`Unavailable`](ErrorKind::Unavailable): a thread could not be started.
    pub fn build(self, store: impl Store) -> Result<LeaseManager> {
        let engine = connect::build(self, store)?;
        Ok(LeaseManager { engine })
    }

    /// Checks that all settings are in range and agree with each other.
    pub(super) fn checked(&self) -> Result<(Timing, Settings)> {
        let timing = timing_of(self.ttl, self.grace)?;
        self.stall_after.map_or(Ok(()), check_stall_after)?;
        if let Some(bound) = self.max_poll_interval
            && !(SHORTEST_POLL_INTERVAL..=LONGEST_POLL_INTERVAL).contains(&bound)
        {
            return Err(Error::invalid(format!(
                "a max_poll_interval of {bound:?} is out of range; choose 1 ms to 60 s"
            )));
        }
        if self.max_local_handoffs > MOST_LOCAL_HANDOFFS {
            return Err(Error::invalid(format!(
                "a max_local_handoffs of {} is out of range; choose 0 to {MOST_LOCAL_HANDOFFS}",
                self.max_local_handoffs
            )));
        }
        if let Some(linger) = self.linger
            && linger > timing.ttl / 10
        {
            return Err(Error::invalid(format!(
                "a linger of {linger:?} is too long; choose at most a tenth of the ttl, {:?}",
                timing.ttl / 10
            )));
        }
        if self.linger.is_some() && self.max_local_handoffs == 0 {
            return Err(Error::invalid(
                "linger contradicts max_local_handoffs(0), because a hold that rests is handed off; leave one of them out",
            ));
        }
        if let Some(max) = self.max_hold
            && max < SHORTEST_MAX_HOLD
        {
            return Err(Error::invalid(format!(
                "a max_hold of {max:?} is too short; choose at least 10 ms"
            )));
        }
        if let Some(retention) = self.retention(&timing)
            && !(timing.ttl * 2..=LONGEST_RETENTION).contains(&retention)
        {
            return Err(Error::invalid(format!(
                "a fence_retention of {retention:?} is out of range; choose {:?} to 100 years, or None",
                timing.ttl * 2
            )));
        }
        if !self.fencing
            && let Some(setting) = self.needs_fencing()
        {
            return Err(Error::invalid(format!(
                "{setting} contradicts fencing(false); leave one of them out"
            )));
        }
        self.owner.as_ref().map_or(Ok(()), Owner::check)?;
        self.remote.check(timing.attempt)?;
        Ok((timing, self.settings(&timing)))
    }

    /// Returns the name of a setting that a store without fencing tokens cannot have, if one is set.
    pub(super) fn needs_fencing(&self) -> Option<&'static str> {
        let is_set = !matches!(self.fence_retention, FenceRetention::Default);
        let retention = is_set.then_some("fence_retention");
        self.require_fencing.then_some("require_fencing").or(retention)
    }

    fn retention(&self, timing: &Timing) -> Option<Duration> {
        match self.fence_retention {
            FenceRetention::Default => Some(DEFAULT_FENCE_RETENTION.max(timing.ttl * 2)),
            FenceRetention::For(retention) => Some(retention),
            FenceRetention::Forever => None,
        }
    }

    pub(super) fn settings(&self, timing: &Timing) -> Settings {
        Settings {
            max_hold: self.max_hold,
            stall_after: self.stall_after,
            warn_held: self.warn_held,
            max_poll_interval: self
                .max_poll_interval
                .unwrap_or(DEFAULT_POLL_INTERVAL.min(timing.ttl / 3)),
            max_local_handoffs: self.max_local_handoffs,
            linger: self.linger,
            classify: self.classify,
            fencing: self
                .fencing
                .then(|| Fencing::new(self.max_local_handoffs + 1, self.retention(timing))),
            #[cfg(feature = "testing")]
            seed: self.seed,
        }
    }
}
