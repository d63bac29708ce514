//! What a lock needs of a store, and the stores that leasehold brings.
//!
//! [`Store`] is the one narrow waist between the engine and whatever keeps the leases. Its
//! contract is in prose on the trait; with the feature `testing`, the conformance suite in
//! `leasehold::testing` checks a store of your own against it.
//!
//! # ZooKeeper
//!
//! With the feature `zookeeper`, by `zookeeper://host:2181,host:2181/path`. Each lock is a directory under
//! `<path>/leasehold/locks`, each holder and each process that waits an ephemeral sequential node in it. The first
//! in the line holds, and each other watches the one before it, so a release wakes one process, and processes
//! are let in in the order of their arrival. One session serves all leases of a manager.
//!
//! **The time to live** is the session's timeout: others wait for as long after a crash. The servers must give
//! exactly what [`ttl`](crate::Builder::ttl) asks for, else `connect` says what they give; by default that is from
//! 2 to 20 of their ticks, 4 s to 40 s. It must be at least 1 s and at least 3 ticks (6 s by default; 6 ticks where
//! clients connect to observers that follow an observer master, by `observerMasterPort`: what such an observer has heard
//! reaches the leader a tick late, not half of one), with the same limits on all members. Ticks are not told to clients: below
//! 10 s `connect` looks for the shortest timeout that the servers give, by default 2 ticks, and a warning in the log says
//! when T is less than 1.5 times that; more nobody can check from outside. Do not change the limits while clients run:
//! a session that is given another timeout at a reconnect is given up, and its holders are told at once. A lease is
//! believed for three quarters of it: until the send time of the last acknowledged write *but one* plus the
//! timeout. For an acknowledged write proves that there is a quorum, but the leader, which ends sessions, surely
//! knows only of the one before it.
//!
//! **Promised** beyond what [holds for every store](crate::LeaseManager#what-is-promised): a holder whose member
//! is frozen, or cut off from the quorum, is told before the next one is let in, also while its member still
//! answers reads. What an old session held, a new one never revives. A wait that is given up, and an answer
//! that is lost, leave no node behind. Leases and places in the line outlive a reconnect and a new leader. A member
//! that is silent for a fifth of the timeout is left for another one, so from 6 s on a silent member of three costs no
//! lease; in an outage all members are tried at least once in a second or two, and nothing is sent while there is no
//! connection. A [fencing token](crate::Lease::fence) is the number of the transaction that made the node, and grows
//! for as long as the ensemble's data is kept.
//!
//! **Not promised:** how long somebody else's hold has left ([`Holding::remaining`] is `None`). A node that an
//! operator deletes is noticed at the next renewal. A process that is stopped while it is the first to wait
//! keeps the others waiting until its session ends; one that runs, but does not poll its waiter, for an eighth of the
//! timeout (250 ms at least), then it goes to the end of the line. A process whose round trips take more than a fourteenth
//! of the timeout misses some of its turns. [`force_unlock`](crate::LeaseManager::force_unlock)
//! deletes whatever is the first in the line, and says whether there was anything. Since each grant has one fencing
//! token, a lock is handed on in memory only with [`fencing(false)`](crate::Builder::fencing). TLS is not supported:
//! the client library's brings a second cryptography along, which leaves rustls without a default, and code that is
//! no longer maintained. A tunnel on the same machine does it.
//!
//! **Users:** `zookeeper://user:password@host:2181,host:2181/path`, percent-encoded, is authentication by the scheme
//! `digest`. All nodes that leasehold then makes, also those of `<path>`, are this user's alone; without a user
//! they are open to all who reach the servers. Who may not is told so, by [`Denied`](crate::ErrorKind::Denied). Rights to
//! `<path>/leasehold/locks` and `<path>/leasehold/sessions` are enough where an operator has made these two.
//! Users who share these, but no rights, do not share names: whoever comes first to a name has its directory
//! for as long as it is used, and then until it is cleared away, some ten seconds. The password passes the network
//! as it is.
//!
//! **Costs:** a free lock 2 round trips, of which 1 is a write to the quorum; one that was waited for 1 write
//! after the wake-up; entering again, leaving and the release 1 write each. A session writes once in each
//! quarter of the time to live (a server that is far away sees fewer), however many leases there are, and also when there are none; each lease
//! adds a read from the member that it is connected to. The process that released a lock deletes its directory after
//! 5 to 10 s without a use, which is 1 write more for a name that is used once; what it cannot delete, the servers
//! clear away, 10 000 in a minute at most (`znode.container.maxPerMinute`).

mod memory;
pub(crate) mod name;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
mod percent;
mod quorum;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod remote;
pub(crate) mod url;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

pub use memory::MemoryStore;
pub use name::{HolderId, Name};
pub(crate) use quorum::Opening;
pub use quorum::{NoMajority, NodeVerdict, Quorum};

use crate::clock::{Clock, Instant};
use crate::error::Result;
use async_trait::async_trait;
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// A future of a store: owned, so that the engine can finish what its caller dropped.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// A place that keeps leases.
///
/// # The contract
///
/// A store keeps for each name at most one *hold*: a token, a hold count of 1 or more, and a
/// time to live, by the store's own clock. It upholds:
///
/// 1. **Atomic.** Each operation on one name happens at one instant.
/// 2. **Absolute.** Requests carry the count that is to be, never a change of it, so every
///    operation may run twice, or late, with the effect of running once.
/// 3. **Never without a time to live.** No hold exists that does not expire by itself, not
///    even for an instant, whatever fails.
/// 4. **Only an outermost acquire creates.** A nested acquire (count above 1), a renewal or a
///    release of a token that is not there changes nothing and says so.
/// 5. **Acquire recognises its own.** An acquire by the token that already holds is granted
///    again, with the same fencing token, and sets count and time to live anew.
/// 6. **Sent is read before sending.** Every verdict carries the [`clock`](Store::clock) as
///    it was just before the request left, never later: the holder's deadline counts from it.
/// 7. **Time to live is a promise.** A hold is there for the whole of its time to live after
///    the operation ran, or after `sent` where that is what the store can promise, unless
///    somebody deletes it.
/// 8. **Fencing tokens grow** in the order of the outermost grants of a name, beyond releases and
///    expiries, if [`Capabilities::fencing`] says so.
/// 9. **Errors are sorted.** An error says what kind it is and, by its
///    [fate](crate::Error::fate), whether the operation ran. A refusal of credentials is
///    never reported as contention.
/// 10. **Bounded.** No future takes longer than about [`Acquire::timeout`] and its like.
///
/// A store may: answer late, lose answers, fail, send too many or too few wake-ups. It must
/// not: retry an operation by itself after its outcome became unknown and the time limit
/// passed; touch a key that holds something that is not a lock.
///
/// # Dropped futures
///
/// The futures are `'static`: an abandoned acquire is moved to the engine, which awaits the
/// verdict and gives back what nobody waits for. Dropping one of them without that means
/// that the outcome is unknown.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The clock by which verdicts say when they were sent. The engine uses the same.
    fn clock(&self) -> Clock;

    /// What this store can do.
    fn capabilities(&self) -> Capabilities;

    /// Takes a name, re-enters it, or is granted again what it has.
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired>;

    /// Lowers the hold count, or at zero gives the name back and wakes waiters.
    fn release(&self, request: Release) -> StoreFuture<Released>;

    /// Which part of the store keeps `name`, where parts can fail on their own.
    ///
    /// Leases of different parts are never in one [`renew`](Store::renew), so that a part that is slow
    /// holds up no other's. A hint: it may change at any time. Asked only with
    /// [`Capabilities::sharded`].
    fn shard(&self, name: &Name) -> usize {
        let _ = name;
        0
    }

    /// Extends many leases at once; verdicts are in the order of the requests.
    ///
    /// An `Err` is the failure of the whole batch.
    fn renew(&self, batch: Vec<Renewal>, timeout: Duration) -> StoreFuture<Renewed>;

    /// Who holds `name`.
    async fn inspect(&self, name: &Name) -> Result<Option<Holding>>;

    /// Deletes the hold of whoever has it and wakes waiters; whether there was one.
    async fn force_release(&self, name: &Name) -> Result<bool>;

    /// Hints that `name` may have become free; they may be late, lost, or for nothing.
    ///
    /// The subscription may still be on its way when this returns. Whoever waits asks for the name once more before
    /// he sleeps: that covers what became free meanwhile.
    ///
    /// `Ok(None)` where [`Capabilities::wakeups`] is false.
    async fn subscribe(&self, name: &Name) -> Result<Option<Wakeups>>;

    /// A signal each time that a lost connection was made anew; the engine then verifies
    /// all leases at once.
    fn reconnects(&self) -> Option<Arc<Notify>> {
        None
    }

    /// For how long at least the store has forgotten nothing of what it confirmed, looking back
    /// from a moment after this call; `None` if it never forgets, not even in a restart, or when its disk is
    /// replaced by an empty one. A setting by which a server keeps its keys on disk is no such promise.
    ///
    /// A [`Quorum`] asks its nodes after each grant and renewal, and counts only those that have been
    /// up for the time to live. A store that forgets in a restart must not keep the default.
    async fn age(&self) -> Result<Option<Duration>> {
        Ok(None)
    }

    /// Names the server behind the store, by a text that no other server has; `None` if it has none.
    ///
    /// A [`Quorum`] that is made from URLs refuses two nodes that name the same. Every quorum asks again after a
    /// reconnect, to say which nodes are one server.
    async fn server_id(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Ends all connections. Operations fail after it.
    async fn close(&self);
}

/// What a store can do; the engine answers `Unsupported` for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Outermost grants carry a fencing token.
    pub fencing: bool,
    /// A grant reserves as many fencing tokens as [`Fencing::block`] says; without that it has one, and is
    /// not passed on in memory.
    pub fence_blocks: bool,
    /// How many fencing tokens a grant reserves at most. A store on which they are a number of microseconds must not
    /// be asked for more than pass between two grants, or they run ahead of its clock, and fall back to it when the
    /// key is lost. Beyond these, holders have one as soon as the store's clock has surely passed it, after a grant that
    /// tells that the clock has [reached](Acquired::Granted::reached) the first.
    pub longest_fence_block: u32,
    /// [`Acquired::Held`] and [`Holding`] tell how much time is left.
    pub time_left: bool,
    /// [`Store::subscribe`] gives wake-ups; without them waiters poll.
    pub wakeups: bool,
    /// Each release of a name, also one by force, wakes all that have subscribed to it, whether they have asked for it
    /// or not. Then the first in line behind a hold of its own process subscribes too, and the hold is renewed at once
    /// when it was forced open elsewhere. Without that it is noticed by the next renewal that is due.
    pub announces: bool,
    /// How many renewals one [`Store::renew`] takes at most.
    pub renewal_batch: usize,
    /// [`Store::shard`] has more than one answer.
    pub sharded: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            fencing: true,
            fence_blocks: true,
            longest_fence_block: u32::MAX,
            time_left: true,
            wakeups: true,
            announces: true,
            renewal_batch: 100,
            sharded: false,
        }
    }
}

/// What kind of lock is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// One holder at a time, which may re-enter.
    #[default]
    Exclusive,
}

/// How many fencing tokens an outermost grant reserves, and how long the last is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fencing {
    /// The size of the reserved block, at least 1. The grant tells the first of them.
    pub block: u32,
    /// How long the last fencing token is kept when nobody locks; `None` for ever.
    pub retention: Option<Duration>,
}

/// A request for a name.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// What to lock.
    pub name: Name,
    /// Who asks: new for each outermost acquire, the same in its retries and nested calls.
    pub token: HolderId,
    /// What kind of lock.
    pub mode: Mode,
    /// The hold count after the grant: 1 for an outermost acquire.
    pub count: u32,
    /// The time to live to grant; whole milliseconds.
    pub ttl: Duration,
    /// Fencing tokens wanted; `None` for none, and for nested acquires.
    pub fencing: Option<Fencing>,
    /// How long the attempt may take.
    pub timeout: Duration,
}

/// The store's verdict on an [`Acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It is yours.
    Granted {
        /// When the request left.
        sent: Instant,
        /// The first reserved fencing token.
        fence: Option<u64>,
        /// Where fencing tokens are a number of microseconds: whether the store's clock has surely reached the first
        /// one. Elsewhere it does not matter.
        reached: bool,
    },
    /// An outermost acquire found another holder.
    Held {
        /// Its time to live, if the store [can tell](Capabilities::time_left).
        remaining: Option<Duration>,
    },
    /// A nested acquire found that the hold is no longer there.
    NotYours(Absence),
}

/// A request to lower the hold count, or to give a name back.
#[derive(Clone, Debug)]
pub struct Release {
    /// What is locked.
    pub name: Name,
    /// Who holds it.
    pub token: HolderId,
    /// The hold count that is to remain; 0 gives the name back.
    pub count: u32,
    /// How long the attempt may take.
    pub timeout: Duration,
}

/// The store's verdict on a [`Release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Done.
    Done {
        /// How many subscribers of other managers the wake-up went to: a hint, 0 unless the name
        /// was given back.
        listeners: u64,
    },
    /// The hold was not there (any more).
    NotYours(Absence),
}

/// One lease of a batch to extend.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// What is locked.
    pub name: Name,
    /// Who holds it.
    pub token: HolderId,
    /// The time to live to set.
    pub ttl: Duration,
    /// When given, the memory of the last fencing token is to be kept for this much longer too.
    pub fence_retention: Option<Duration>,
}

/// The store's verdicts on a batch of renewals.
#[derive(Clone, Debug)]
pub struct Renewed {
    /// When the batch left.
    pub sent: Instant,
    /// One per request: `Ok(None)` renewed, `Ok(Some(_))` not there any more.
    pub verdicts: Vec<Result<Option<Absence>>>,
}

/// What is under the name instead of the hold that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Absence {
    /// Nothing.
    Gone,
    /// Somebody else's hold.
    Taken,
}

/// Who holds a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// The holder's token as the store has it: `<uuid of its manager>:<number>`.
    ///
    /// An identity for people who debug, not a secret and not a permission.
    pub holder: String,
    /// How often the holder has entered.
    pub hold_count: u64,
    /// Until the store lets it expire; `None` if it never will (which leasehold never does).
    pub remaining: Option<Duration>,
}

impl Holding {
    /// For those who write a [`Store`].
    pub fn new(holder: String, hold_count: u64, remaining: Option<Duration>) -> Self {
        Self { holder, hold_count, remaining }
    }
}

/// A subscription to one name's wake-ups; it ends when dropped.
#[derive(Debug)]
pub struct Wakeups {
    notify: Arc<Notify>,
    _subscription: Box<dyn Any + Send + Sync>,
}

impl Wakeups {
    /// `notify` wakes the waiter (by `notify_one`, so that none is lost between two waits);
    /// `subscription` is dropped with it.
    pub fn new(notify: Arc<Notify>, subscription: impl Any + Send + Sync) -> Self {
        Self { notify, _subscription: Box::new(subscription) }
    }

    /// Waits for a hint that came since the last call.
    ///
    /// # Cancel safety
    ///
    /// Safe: a hint is not lost.
    pub async fn recv(&mut self) {
        self.notify.notified().await;
    }
}
