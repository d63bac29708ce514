//! What is decided once for all locks of a manager.

use crate::LeaseManager;
#[cfg(doc)]
use crate::Loss;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::engine::{Core, Engine, Settings};
use crate::hold::timing::Timing;
use crate::store::remote::{Remote, Replicas};
use crate::store::url::{Common, Target};
use crate::store::{Fencing, MemoryStore, Store};
use std::sync::Arc;
use std::time::Duration;

/// 30 s, as Redisson's watchdog: long enough for a failover, short enough for a crash.
const DEFAULT_TTL: Duration = Timing::DEFAULT.ttl;
const DEFAULT_FENCE_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
const LONGEST_RETENTION: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
const DEFAULT_POLL_BOUND: Duration = Duration::from_secs(1);
const POLL_BOUNDS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(60));
/// A chain of 128 holders makes the two calls around it cheap (0.08 commands each), and the turn of
/// another process is less than a millisecond away when nobody holds for long.
const DEFAULT_HANDOFF_BOUND: u32 = 127;
const HIGHEST_HANDOFF_BOUND: u32 = 9_999;
const SHORTEST_MAX_HOLD: Duration = Duration::from_millis(10);
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

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
    handoff_bound: u32,
    max_hold: Option<Duration>,
    fencing: bool,
    /// `None`: the default, which depends on T.
    fence_retention: Option<Option<Duration>>,
    prefix: String,
    own_thread: Option<bool>,
    #[cfg(feature = "testing")]
    seed: Option<u64>,
    remote: Remote,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            ttl: DEFAULT_TTL,
            poll_bound: None,
            handoff_bound: DEFAULT_HANDOFF_BOUND,
            max_hold: None,
            fencing: true,
            fence_retention: None,
            prefix: String::new(),
            own_thread: None,
            #[cfg(feature = "testing")]
            seed: None,
            remote: Remote::default(),
        }
    }
}

impl Builder {
    /// T, the time to live of a lease: after a crash others wait for as long. 100 ms to 365 days; default 30 s.
    ///
    /// Renewals go out every third of it (at most every 60 s). Below 2 s a short stall of the network or the
    /// machine costs leases. To ride out a failover of F seconds, choose T ≥ F / 0.4. For ZooKeeper it is the
    /// [session's time-out](crate::store#zookeeper).
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

    /// How often in a row a lock goes from one holder to the next of this manager without a word to the store. 0 to
    /// 9999; default 127; 0 never.
    ///
    /// Such a hand-off costs no round trip. After as many, or T/10 after the store's grant, whichever comes first,
    /// the lock is really released, and other processes get their turn. While waiters of other processes listen, the
    /// chain of hand-offs ends sooner: when the waiters that were in line at the grant have been served, or after 20 ms,
    /// whichever is later. After a release that they have heard, this manager stays away for a pause, which grows until
    /// another holder is seen: up to 50 ms, or to a tenth of the time for which the name was held here (500 ms at most).
    /// A waiter that needs longer than that from the release to its request may wait for many chains.
    ///
    /// A higher bound gives more throughput; a lower one gives shorter waits elsewhere, also for the first waiter of
    /// another process, of which a chain that has begun knows nothing. Each grant reserves as many fencing tokens and one more, on
    /// Redis 64 at most; holders beyond these have one of the microseconds that have passed since.
    pub fn handoff_bound(mut self, bound: u32) -> Self {
        self.handoff_bound = bound;
        self
    }

    /// How long one holder may hold; after it the lease is lost, with [`Loss::MaxHold`]. At least 10 ms;
    /// default: no bound.
    ///
    /// Against a worker that hangs while its process lives on, and is renewed for ever. It counts anew for each
    /// holder.
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

    /// How long the store remembers the last fencing token of a name after the last grant or renewal by leasehold. 2 T
    /// to 100 years; default 24 h, or 2 T if that is longer; `None` for ever, which leaves one key for each name behind.
    ///
    /// The memory of a token that is ahead of the store's clock outlives it by as much. On Redis it may end a hundredth
    /// earlier. In memory it ends when the clock has passed the token, whatever is set here: they grow all the same.
    ///
    /// All managers that share names should have the same. With different ones on Redis, the memory of a name may end when
    /// the shorter one says, until a lease of a manager with the longer one is renewed.
    ///
    /// On Redis, what has no end stays without one: a name that a manager with `None`, or a Java service with an
    /// `RFencedLock`, has locked first is remembered for ever by all. Choose `None` where Java services use `RFencedLock`
    /// on the same names. Otherwise the memory of a name that leasehold has locked first ends although Java goes on
    /// locking it, and Java's tokens start again at 1. Next to leasehold, Java's tokens are larger than an `int`: a
    /// counter that has begun at 1 goes on from the server's time in microseconds.
    pub fn fence_retention(mut self, retention: Option<Duration>) -> Self {
        self.fence_retention = Some(retention);
        self
    }

    /// What goes before each name to make the key; default nothing. Not in memory.
    ///
    /// Redisson calls it a name mapper.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Whether the watchdog and its connections live on threads of their own; default true, but for
    /// `memory:`.
    ///
    /// There, blocked workers of your runtime cannot lose leases: one thread only watches the clock and fires
    /// tokens, another serves the connections, so that not even a store that stands still delays a token. Their log
    /// is written by a third, also the lines of the Redis client, which logs through the crate `log`: if that is
    /// bridged to `tracing` before the manager is made. Another logger that blocks there costs renewals. Spans of
    /// `tracing` are off on these threads.
    ///
    /// Without it both run on the runtime of whoever connects; that is the default in memory, where time is
    /// tokio's, which a test can pause. When that runtime ends, those who wait for a lock or run work under
    /// a lease on another runtime take over there, and leases live on; so does the next call that locks. A lease
    /// for which nobody does that in time is lost: its token fires before the store lets go, as always. What a
    /// store has bound to the runtime that has ended, as its connections, does not come back.
    pub fn own_thread(mut self, own: bool) -> Self {
        self.own_thread = Some(own);
        self
    }

    /// Seeds the jitter, so that a simulation can be repeated.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// A grant counts only if `count` replicas have it within `timeout`; default: no such condition. Redis only.
    ///
    /// Otherwise it is given back, and the attempt fails with [`Rejected`](ErrorKind::Rejected). After a
    /// failover to one of those replicas the lease is still there. It is **no guarantee**: another replica can
    /// be promoted, one that was cut off from the primary in the meantime; renewals do not wait, and their loss
    /// shortens a lease on the new primary; and a primary that is cut off from its sentinels, but not from its
    /// replicas and from you, goes on granting. What remains, only the [fencing token](crate::Lease::fence)
    /// catches.
    ///
    /// At least 1 replica and 1 ms; at most half the time that an attempt may take, which is T/10 (250 ms at
    /// least, T/6 at most). Each call that grants waits for the replicas, and so do the calls behind it on the
    /// same connection: about a round trip from the primary to them, and `timeout` when they are away. The
    /// server's `WAIT` does it, for which the user needs the right.
    pub fn replicas(mut self, count: u32, timeout: Duration) -> Self {
        self.remote.replicas = Some(Replicas { count, timeout });
        self
    }

    /// Whether waiters in a Redis Cluster are woken by sharded pub/sub (`SPUBLISH`), whose messages stay with the servers
    /// of a slot; default true. Redis only; elsewhere than in a cluster it changes nothing.
    ///
    /// Set it to false where Java services with Redisson share the names and wake their waiters by plain pub/sub: with
    /// `shardedSubscriptionMode` set to `OFF` (its default, `AUTO`, is sharded), or before Redisson 3.22. All
    /// processes that share names must do the same. Otherwise they do not hear each other, and go by the clock: waiters
    /// here by [`poll_bound`](Self::poll_bound), those of Redisson by the time that the lease has left. Nor are they heard
    /// of: while many in another process want the name, it is hardly ever free when a waiter like that looks, and nobody
    /// there makes room for it. Nothing tells of different settings. A missing right to the channel has the same effect,
    /// and is told by a warning in the log, when connecting and at each release.
    pub fn sharded_pubsub(mut self, on: bool) -> Self {
        self.remote.plain_pubsub = !on;
        self
    }

    /// Trusts the certificates in `pem` instead of the platform's; for `rediss` URLs, with the feature `rustls`.
    pub fn tls_ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.remote.ca = Some(pem.into());
        self
    }

    /// Shows a client certificate: a chain and its private key, in PEM; for `rediss` URLs, with the feature
    /// `rustls`.
    pub fn tls_identity(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.remote.identity = Some((chain.into(), key.into()));
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
        let (timing, settings) = self.checked()?;
        let common = Common {
            prefix: self.prefix,
            ttl: timing.ttl,
            attempt: timing.attempt,
            remote: self.remote,
        };
        let target = Target::parse(url, &common)?;
        let timing = match target.lease_time() {
            Some(lease_time) => Timing::new(lease_time)?,
            None => timing,
        };
        let remote = target.own_thread();
        let engine = if self.own_thread.unwrap_or(remote) {
            Engine::on_own_threads(async move || {
                let store = target.open(Clock::system()).await?;
                Ok(Core::new(store, timing, settings, false))
            })
            .await?
        } else {
            // A server's time goes on during a suspend; what is in memory may follow a paused clock.
            let clock = if remote { Clock::system() } else { Clock::tokio() };
            // In a task of its own, so that a caller who gives up leaves no half of it behind.
            let connecting = tokio::spawn(target.open(clock));
            let store = connecting.await.map_err(|error| {
                Error::new(ErrorKind::Unavailable, "connecting was given up").with_source(error)
            })??;
            Engine::on_caller(Core::new(store, timing, settings, true))
        };
        Ok(LeaseManager::new(engine))
    }

    /// Uses a store of your own, or shares a [`MemoryStore`] between managers.
    ///
    /// The work runs on the caller's runtime if the store is on tokio's clock, else on a thread of its own.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a setting out of range.
    pub fn store(self, store: impl Store) -> Result<LeaseManager> {
        self.remote.refuse()?;
        let (timing, settings) = self.checked()?;
        let own_thread = self.own_thread.unwrap_or(!store.clock().is_tokio());
        let core = Core::new(Arc::new(store), timing, settings, !own_thread);
        Ok(LeaseManager::new(Engine::new(core)?))
    }

    /// The engine of the default settings, in memory.
    pub(crate) fn default_in_memory() -> Arc<Engine> {
        let timing = Timing::DEFAULT;
        let settings = Self::default().settings(&timing);
        Engine::on_caller(Core::new(Arc::new(MemoryStore::new()), timing, settings, true))
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
        if self.handoff_bound > HIGHEST_HANDOFF_BOUND {
            return Err(Error::invalid(format!(
                "a handoff_bound of {} is out of range; choose 0 to {HIGHEST_HANDOFF_BOUND}",
                self.handoff_bound
            )));
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
        if let Some(Replicas { count, timeout }) = self.remote.replicas {
            let longest = timing.attempt / 2;
            if count == 0 || !(SHORTEST_WAIT..=longest).contains(&timeout) {
                return Err(Error::invalid(format!(
                    "replicas({count}, {timeout:?}) is out of range; choose at least 1 and 1 ms to {longest:?}"
                )));
            }
        }
        Ok((timing, self.settings(&timing)))
    }

    fn retention(&self, timing: &Timing) -> Option<Duration> {
        self.fence_retention.unwrap_or(Some(DEFAULT_FENCE_RETENTION.max(timing.ttl * 2)))
    }

    fn settings(&self, timing: &Timing) -> Settings {
        Settings {
            max_hold: self.max_hold,
            poll_bound: self.poll_bound.unwrap_or(DEFAULT_POLL_BOUND.min(timing.ttl / 3)),
            handoff_bound: self.handoff_bound,
            fencing: self
                .fencing
                .then(|| Fencing::new(self.handoff_bound + 1, self.retention(timing))),
            #[cfg(feature = "testing")]
            seed: self.seed,
        }
    }
}
