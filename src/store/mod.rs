//! Defines what a lock needs of a store, and the stores that leasehold brings.
//!
//! [`Store`] is the one narrow interface between the engine and a store. Its contract is in prose on the trait; with the
//! feature `testing`, the conformance suite in `leasehold::testing` checks a store of your own against it.
//!
//! [`stores`](crate::guide::stores) compares the stores; [`redis`](crate::guide::redis), [`quorum`](crate::guide::quorum)
//! and [`zookeeper`](crate::guide::zookeeper) describe each.

pub(crate) mod connect;
pub(crate) mod contract;
mod memory;
mod quorum;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod url;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

pub use connect::credentials::{
    Credentials, CredentialsProvider, CredentialsRequest, PasswordFile,
};
pub use connect::finding::{Check, Finding, Severity};
pub use connect::layout::Layout;
pub use connect::options::ConnectOptions;
pub use connect::preflight::{Preflight, Unfit};
pub use connect::tls::TlsLibrary;
pub use contract::capabilities::{Capabilities, Line};
pub use contract::keep::{Closed, Keep, Mark};
pub use contract::list::{List, Listed, Pages};
pub(crate) use contract::metadata::manager_of;
pub use contract::metadata::{Annotate, Describe, Metadata, Owner, Owners};
pub(crate) use contract::mode::IDLE_SEMAPHORE;
pub use contract::mode::{Kind, Mode};
pub(crate) use contract::name::NameMap;
pub use contract::name::{HolderId, Name};
pub(crate) use contract::note::steal_by_force;
pub use contract::note::{Act, Reason};
pub use contract::note::{Hint, Inbox, InboxSender, Note, Steal, Want};
pub use contract::request::{
    About, Acquire, Arrival, Ends, Fencing, ForceRelease, Inspect, Release, RenewBatch, Renewal,
    Reservation, Reserve, Resize, Topic, Wait,
};
pub use contract::signal::{Signal, Wakeups};
pub use contract::target::Target;
pub use contract::verdict::{
    Absence, Acquired, HolderInfo, Inspection, Released, RenewCall, Renewed, Reserved, SetVerdicts,
    TokenVerdict, Uptime, WaitingManager,
};
pub use memory::MemoryStore;
pub use quorum::{NoMajority, NodeVerdict, Quorum};
pub(crate) use quorum::{NodeOpener, open_quorum};
#[cfg(feature = "redis")]
pub use redis::RedisStore;
#[cfg(all(feature = "redis", feature = "testing"))]
#[doc(hidden)]
pub use redis::{InProcessServer, ServerReply};
#[cfg(feature = "zookeeper")]
pub use zookeeper::ZooKeeperStore;

use crate::clock::Clock;
use crate::error::{Error, Result};
use async_trait::async_trait;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A future of a store that owns what it needs, so that the engine can finish it after its caller was dropped.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// The default time to live of a manager, and of a store that is connected without one: as Redisson's watchdog, long enough for
/// a failover, short enough for a crash.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The divisor for the rate error: the store's clock may run 1 % faster than ours. NTP slews by 0.05 % a side.
const RATE_ERROR_DIVISOR: u32 = 100;
/// The error of rounding to whole milliseconds on both sides.
const ROUNDING: Duration = Duration::from_millis(2);

/// Returns the part of a time to live for which the store surely keeps a hold, from the moment at which its request left.
pub(crate) fn surely_kept(ttl: Duration) -> Duration {
    (ttl - ttl / RATE_ERROR_DIVISOR).saturating_sub(ROUNDING)
}

/// Returns a request that has failed already.
pub(crate) fn failed<'a, T: Send + 'a>(
    error: Error,
) -> Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>> {
    Box::pin(std::future::ready(Err(error)))
}

/// Keeps holds on behalf of the engine: a server, a set of servers, or memory.
///
/// # The contract
///
/// A store keeps for each name its *holds*: a [`HolderId`], a hold count of 1 or more, and a
/// time to live, by the store's own clock. In [`Mode::Exclusive`] a name has one hold at most. It upholds:
///
/// 1. **Atomic.** Each operation on one name happens at one instant.
/// 2. **Absolute.** Requests carry the new count, never a change of it, so every operation may run twice, or late, with
///    the effect of running once.
/// 3. **Never without a time to live.** No hold exists that does not expire by itself, not
///    even for an instant, whatever fails.
/// 4. **Only an acquire creates.** A renewal, a release, a record of a count or a change of the mode by a holder that is
///    not there changes nothing and reports that.
/// 5. **Acquire recognises its own hold.** An acquire by the holder that has the name already is granted again, with
///    the same fencing token, and sets the time to live again. The hold count is then 1, or stays as it is.
/// 6. **Sent is read before sending.** Every verdict carries the [`clock`](Store::clock) as
///    it was just before the request left, never later: the holder's deadline counts from it.
/// 7. **Time to live is a promise.** A hold is there for the whole of its time to live after
///    the operation ran, or after `sent` where that is what the store can promise, unless
///    it is deleted.
/// 8. **Fencing tokens grow** in the order of the grants of a name, beyond releases and
///    expiries, if [`Capabilities::fencing`] says so.
/// 9. **Errors are classified.** An error has a kind and a [fate](crate::Error::fate), which reports whether the
///    operation ran. Refused credentials are never reported as contention.
/// 10. **Bounded.** No future takes much longer than the `timeout` of its request, or the `timeout` that the method
///     takes.
/// 11. **A mode is granted as itself or not at all.** A request of a mode that [`Capabilities::supports`] denies is
///     [`Unsupported`](crate::ErrorKind::Unsupported), and nothing of it runs; so is a call of renewals with such an
///     item. If something under the name is not a lock of the requested kind, it stays as it is, and the request
///     returns [`WrongType`](crate::ErrorKind::WrongType).
///
/// A store may answer late, lose answers, fail, and send too many or too few wake-ups. It must not retry an operation
/// by itself after its outcome became unknown and the time limit passed, and it must not touch a key that holds
/// something other than a lock.
///
/// # Modes that share a name
///
/// In [`Mode::Read`] a name has any number of holds, in [`Mode::Write`] one that excludes them. Each of its readers has a
/// fencing token of its own, larger than those of all writers before, as a writer has one larger than all before; those of
/// readers grow in the order in which they were granted, or began to ask. In [`Mode::Permits`] the holds take at most
/// `size` permits together; a request with another size than the name has, or had before a [`resize`](Store::resize),
/// is [`Invalid`](crate::ErrorKind::Invalid), and grants carry no fencing token. [`Acquire::converts`] changes a holder
/// from one of the modes `Read` and `Write` to the other; renewals and releases in `Read` go by the [`HolderId`],
/// whichever of the two it has, because they can come late. A renewal in `Write` of a holder that only reads finds
/// nothing, and so does its release, which may end the hold: a store can lose a change of the mode. [`Acquire::arrival`]
/// asks for an order between readers and writers. A store need not support any of them.
///
/// # Lines
///
/// A store with [`Line::Arrivals`] keeps a line for each name: one [`Arrival`] for each manager, with the time at which its
/// waiter arrived, and until when it is kept, by the store's own clock. It upholds:
///
/// - An exclusive acquire with an arrival, from a manager that does not hold the name, is refused while another manager has
///   an older arrival in the line, even if the name is free. The refusal reports when that arrival lapses.
/// - A refused request records the arrival of its manager, or keeps it for longer, unless [`Arrival::kept`] is zero. The
///   numbers of holder ids tell which request is older: the arrival of a later waiter of the manager replaces that of an
///   earlier one, a late copy for an earlier waiter changes nothing, and one for the same waiter never makes it younger.
/// - A grant ends the arrival of its manager, and reports the oldest waiter of the others.
/// - An arrival lapses by itself. A [release](Ends::Arrival) of it ends it sooner, and wakes the others if the name is free.
/// - A request without an arrival is granted whenever the name is free. It neither enters the line nor sees it.
///
/// Any other store returns [`Unsupported`](crate::ErrorKind::Unsupported) to an exclusive acquire with an arrival.
///
/// # Dropped futures
///
/// The methods have two forms, each with one allocation. [`acquire`](Store::acquire),
/// [`acquire_all`](Store::acquire_all), [`release`](Store::release) and each call of [`renew`](Store::renew) return a
/// [`StoreFuture`], which the engine can move to another task: it awaits the verdict of an abandoned acquire there, and
/// releases a grant without a waiter. No task takes over the other calls, so they are `async fn`s, which borrow the store
/// and spare it a copy of its parts.
///
/// Any of these futures may be dropped at any time. Then the outcome is unknown.
///
/// # A store of your own
///
/// Ten methods are required. Each of the others has a default, which refuses: none grants, and none claims an ability. The
/// engine does without what is refused, or returns [`Unsupported`](crate::ErrorKind::Unsupported). Requests can have parts
/// that a store does not know, such as an [arrival](Acquire::arrival), a [steal](Acquire::steal) or a [question](About): it
/// refuses them too, and never leaves them out. [`Acquire::plain_name`], [`Release::require_hold`] and
/// [`Inspect::unsupported`] are made for that.
///
/// A wrapper forwards every method, also those with a default and [`capabilities`](Store::capabilities): a method that it
/// leaves out silently changes the store behind it. `#[deny(clippy::missing_trait_methods)]` at its `impl` finds such a
/// method. An `Arc` of a store is a store too. `examples/own_store.rs` is an example, and
/// `leasehold::testing::conformance`, with the feature `testing`, checks one against this contract.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Returns the clock of the times in verdicts. The engine uses the same.
    fn clock(&self) -> Clock;

    /// Returns the abilities of this store. The engine asks once, and the answer must not change.
    fn capabilities(&self) -> Capabilities;

    /// Returns the shard of the store that keeps `name`, if parts of it can fail on their own; 0 for a store that is one, as
    /// this default does.
    ///
    /// An answer of one shard says nothing about a silence of another: a call that gets no answer in time fails as
    /// [`Unavailable`](crate::ErrorKind::Unavailable), unless the same shard has served another call. The shard is a hint, and
    /// may change at any time.
    fn shard(&self, name: &Name) -> usize {
        let _ = name;
        0
    }

    /// Grants a name, a re-entry, or once more what the holder already has.
    ///
    /// With a [`steal`](Acquire::steal), it takes a name in [`Mode::Exclusive`] from [`Steal::from`] for the new holder, in one
    /// step, with the next fencing token. It leaves a note for the old holder, and sends [`Hint::Verify`] to the inbox of its
    /// manager. The verdict is a grant, also if the new holder has the name already; [`Acquired::Held`] if another holder than
    /// `from` has the name; and [`Acquired::NotYours`] with [`Absence::Gone`] if the name is free, which grants nothing. So a
    /// late copy takes the name from no other holder: ids are not used again, and where others use theirs again, the note says
    /// that the act was done. A store without such a step may release by force and acquire, and then another may come
    /// between. A store that cannot steal at all, and any other mode, is [`Unsupported`](crate::ErrorKind::Unsupported).
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired>;

    /// Grants several names in [`Mode::Exclusive`] in one step: all of them or none. The requests have no arrival, and no
    /// steal. They are alike but for their names, which differ, and the numbers of their holders. Returns a verdict
    /// for each, in their order.
    ///
    /// If a name has another holder or cannot be granted, it gets that verdict, and no name is taken: those that were free,
    /// and those that the holder had already and keeps, get `None`. Otherwise all are granted, as by
    /// [`acquire`](Store::acquire).
    ///
    /// The engine calls it only for names of which [`is_atomic`](Store::is_atomic) returns true. Any other store returns
    /// [`Acquire::all_unsupported`], as this default does.
    fn acquire_all(&self, requests: Vec<Acquire>) -> StoreFuture<SetVerdicts> {
        let _ = requests;
        Acquire::all_unsupported()
    }

    /// Returns whether the store can grant these names in one step, by [`acquire_all`](Store::acquire_all). The default returns
    /// false.
    fn is_atomic(&self, names: &[&Name]) -> bool {
        let _ = names;
        false
    }

    /// Lowers the hold count, or at zero releases the name and wakes waiters. With a [`keep`](Release::keep), the name stays
    /// closed.
    ///
    /// A release of an [arrival](Ends::Arrival) gives up the [`Arrival`] that a manager has in the order of waiters, unless a
    /// holder id with a larger number has replaced it. In a line, the [arrival](Release::arrival) of the next waiter of the
    /// manager replaces it, if the request has one. It wakes the waiters that may be granted the name now. It is
    /// [done](Released::Done) without listeners, also if there is none. In [`Mode::Exclusive`] without [`Line::Arrivals`] it
    /// is [`Unsupported`](crate::ErrorKind::Unsupported). Without an answer, the arrival lapses by itself.
    fn release(&self, request: Release) -> StoreFuture<Released>;

    /// Extends many leases at once, by as few calls as the store can make of the batch. Each item is in one of them.
    ///
    /// The store alone divides a batch, by what fits into a call and by its own [shards](Store::shard):
    /// [`RenewCall::divide`] does that. The engine polls each call by itself and applies its verdicts as they arrive, so a
    /// slow shard delays no lease of another.
    ///
    /// # Errors
    ///
    /// An `Err` of a call is the failure of all its items. A single renewal that fails has an `Err` among the verdicts.
    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall>;

    /// Sets the number of permits of a semaphore, and wakes waiters if some of them may be granted now. Returns the number
    /// that it had; `None` if there was no semaphore, which is made then.
    ///
    /// The holders keep their permits, also if there are more of them than permits then. From then on, a request with a
    /// size that the semaphore had before counts as one with the size that it has.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store without [`Mode::Permits`] or without a change of the
    /// size, as this default is, and [`WrongType`](crate::ErrorKind::WrongType) if what is under the name is no semaphore.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the outcome is unknown. Call it again.
    async fn resize(&self, request: Resize) -> Result<Option<u32>> {
        Err(Mode::Permits { size: request.size, take: 1 }.unsupported())
    }

    /// Returns what is asked [about](Inspect::about) a name: its holders, its line, or the note that was left for a holder. A
    /// note is kept for a day, or until the next one.
    ///
    /// # Errors
    ///
    /// - [`WrongType`](crate::ErrorKind::WrongType) if what is under the name is not a lock of this kind.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported) for the line without [`Line::Arrivals`], and for a question that the
    ///   store does not know.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    async fn inspect(&self, request: Inspect) -> Result<Inspection>;

    /// Writes the description of a holder beside the lock, or deletes it. Returns whether the holder has the name; of a
    /// deletion, whether there was anything to delete.
    ///
    /// It writes only while the holder has the name, in the same step, and ignores a copy of an earlier write of this
    /// holder, by its [`revision`](Metadata::revision). What an earlier holder has written is replaced. It wakes the
    /// subscribers to [`Topic::Metadata`]. A release leaves what was written, so [`inspect`](Store::inspect) reports only
    /// what a present holder has written.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) in a mode that several holders share, and for a store that keeps no
    /// descriptions, as this default does.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the outcome is unknown. Call it again.
    async fn annotate(&self, request: Annotate) -> Result<bool> {
        let _ = request;
        Err(Metadata::unsupported())
    }

    /// Keeps the description of a manager, or deletes it.
    ///
    /// A manager that [describes](crate::Builder::describe) itself writes it again long before its time has passed.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store that keeps none, as this default does. A manager does
    /// without it then.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the outcome is unknown. Call it again.
    async fn describe(&self, request: Describe) -> Result<()> {
        let _ = request;
        Err(Describe::unsupported())
    }

    /// Returns the descriptions of managers, in their order. `None` for each that the store has none of.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store that keeps none, as this default does.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    async fn owners(&self, request: Owners) -> Result<Vec<Option<Owner>>> {
        let _ = request;
        Err(Describe::unsupported())
    }

    /// Returns the names that are in use and begin with a text, page by page. Sends nothing: the [pages](Pages::next) do.
    ///
    /// The answer is no snapshot. A name that has a holder from before the first page to after the last one is in it, at least
    /// once. A name whose last hold ends or expires meanwhile, or did a moment ago, may be in it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store that does not know its names, as this default does.
    fn list(&self, request: List) -> Result<Box<dyn Pages>> {
        let _ = request;
        Err(List::unsupported())
    }

    /// Deletes all holds of a name and wakes waiters. Returns whether there were any.
    ///
    /// If the request names a [holder](ForceRelease::from), it does nothing unless that one holds the name: both in one
    /// step. A holder id that begins with that id and a dot is an attempt of that holder at a node of a quorum.
    ///
    /// # Errors
    ///
    /// [`WrongType`](crate::ErrorKind::WrongType) if what is under the name is not a lock of this kind.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the outcome is unknown. Call it again.
    async fn force_release(&self, request: ForceRelease) -> Result<bool>;

    /// Subscribes to hints about a name: that it [may be free](Topic::Release), or that the description of its holder
    /// [may have changed](Topic::Metadata). Hints can be late, lost or spurious.
    ///
    /// The subscription may still be on its way when this returns. The waiter asks for the name once more before it
    /// sleeps, which covers a release in between. A store with a queue of its own may give [`Wait::holder`] a place in it,
    /// which ends when the subscription is dropped.
    ///
    /// Returns `Ok(None)` if [`Capabilities::wakeups`] is false, for a listener without a holder if
    /// [`Capabilities::announces`] is false, and for a topic of which the store gives no hints.
    ///
    /// # Errors
    ///
    /// After [`Unavailable`](crate::ErrorKind::Unavailable) the waiter or observer subscribes again. After any other error it
    /// polls.
    ///
    /// # Cancel safety
    ///
    /// Safe: a subscription without an owner ends.
    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>>;

    /// Returns a signal that is set at each reconnect. The engine then verifies all leases at once. `None` for a store
    /// without connections, as this default is.
    fn reconnects(&self) -> Option<Signal> {
        None
    }

    /// Leaves a note for a holder that its name is wanted, and sends [`Hint::Want`] to the inbox of its manager. Changes
    /// nothing about the hold. Returns whether it has the name.
    ///
    /// A request for [what rests](Want::only_resting) leaves no note. If the manager of the holder, whichever it is,
    /// [lingers](HolderId::lingers), it sends [`Hint::Yield`], and returns true.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store without notes, as this default is, and for any mode but
    /// [`Mode::Exclusive`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the outcome is unknown. Call it again.
    async fn want(&self, request: Want) -> Result<bool> {
        Err(Steal::unsupported(request.target.mode))
    }

    /// Subscribes to the inbox of a manager, on the current runtime. It costs one subscription for a manager, whatever
    /// the number of its leases. `None` for a store without inboxes, as this default is: then holders learn of a steal or a
    /// forced release at their next renewal.
    fn inbox(&self, manager: Uuid) -> Option<Inbox> {
        let _ = manager;
        None
    }

    /// Returns the key under which a server of Redis keeps the exclusive hold of a name: a hash with the holder id as a
    /// field, for [`guard`](crate::guard). `None` for any other store, as this default is.
    fn guard_key(&self, name: &Name) -> Option<String> {
        let _ = name;
        None
    }

    /// Returns for how long the store has retained every confirmed write, and the server behind it.
    ///
    /// A [`Quorum`] asks its nodes after each grant and renewal, by this call or by [`reserve`](Store::reserve), and counts
    /// only those that have been up for the time to live. With a node that reports no [age](Uptime::age) and loses writes, two can hold a name at once. A
    /// quorum that is made from URLs refuses two nodes with the same [server](Uptime::server). Every quorum asks again after a
    /// reconnect, to report nodes that are one server, and after each grant to a reader, to count that server once.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store that does not know its age; it cannot be the node of a quorum.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    async fn uptime(&self, timeout: Duration) -> Result<Uptime>;

    /// Reserves fencing tokens that the caller names: the second round of a grant of a [`Quorum`], after an acquire that
    /// asked for a [proposal](Fencing::proposal). Returns the [uptime](Store::uptime) after that.
    ///
    /// For each item, in one step: if the holder has the name, and the last token of the name is smaller than
    /// [`first`](Reservation::first), the last token becomes that of the block. *Strictly* smaller: a second copy of the
    /// request changes nothing and is [outrun](TokenVerdict::Outrun), so no two grants can have the same token at one store.
    /// The token counts as that of a grant then: later proposals are larger, and its memory ends no sooner.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store without
    /// [`Capabilities::reserves`], as this default is.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the outcome is unknown: the tokens may be reserved, and are never granted to others then.
    async fn reserve(&self, request: Reserve) -> Result<Reserved> {
        let _ = request;
        Err(Reserve::unsupported())
    }

    /// Ends all connections, within about `timeout`. Operations fail after that; holds stay until they expire.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, some connections stay open until the store is dropped.
    async fn close(&self, timeout: Duration);
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn clock(&self) -> Clock {
        (**self).clock()
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn shard(&self, name: &Name) -> usize {
        (**self).shard(name)
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        (**self).acquire(request)
    }

    fn acquire_all(&self, requests: Vec<Acquire>) -> StoreFuture<SetVerdicts> {
        (**self).acquire_all(requests)
    }

    fn is_atomic(&self, names: &[&Name]) -> bool {
        (**self).is_atomic(names)
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        (**self).release(request)
    }

    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        (**self).renew(batch)
    }

    async fn resize(&self, request: Resize) -> Result<Option<u32>> {
        (**self).resize(request).await
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        (**self).inspect(request).await
    }

    async fn annotate(&self, request: Annotate) -> Result<bool> {
        (**self).annotate(request).await
    }

    async fn describe(&self, request: Describe) -> Result<()> {
        (**self).describe(request).await
    }

    async fn owners(&self, request: Owners) -> Result<Vec<Option<Owner>>> {
        (**self).owners(request).await
    }

    fn list(&self, request: List) -> Result<Box<dyn Pages>> {
        (**self).list(request)
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        (**self).force_release(request).await
    }

    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        (**self).subscribe(request).await
    }

    fn reconnects(&self) -> Option<Signal> {
        (**self).reconnects()
    }

    async fn want(&self, request: Want) -> Result<bool> {
        (**self).want(request).await
    }

    fn inbox(&self, manager: Uuid) -> Option<Inbox> {
        (**self).inbox(manager)
    }

    fn guard_key(&self, name: &Name) -> Option<String> {
        (**self).guard_key(name)
    }

    async fn uptime(&self, timeout: Duration) -> Result<Uptime> {
        (**self).uptime(timeout).await
    }

    async fn reserve(&self, request: Reserve) -> Result<Reserved> {
        (**self).reserve(request).await
    }

    async fn close(&self, timeout: Duration) {
        (**self).close(timeout).await;
    }
}
