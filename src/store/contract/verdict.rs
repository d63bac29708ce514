//! Verdicts of a store.

use super::keep::{Closed, Mark};
use super::metadata::{BEGINNING, Metadata, Owner};
use super::mode::Mode;
#[cfg(doc)]
use super::name::HolderId;
use super::note::Note;
use super::request::{RenewBatch, Renewal};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::store::StoreFuture;
use crate::util::join::{BoxedCall, all};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The store's verdict on an [`Acquire`](crate::store::Acquire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquired {
    /// The holder of the request has the name.
    #[non_exhaustive]
    Granted {
        /// When the request left.
        sent: Instant,
        /// The first reserved fencing token.
        fence: Option<u64>,
        /// Where fencing tokens are a number of microseconds: whether the store's clock has surely reached the first
        /// one. Elsewhere it does not matter.
        reached: bool,
        /// For how long the oldest waiter of another manager has waited in the [line](crate::store::Store#lines).
        /// `None` if there is none, or if the request had no arrival.
        oldest: Option<Duration>,
    },
    /// There is another holder.
    #[non_exhaustive]
    Held {
        /// Its time to live, if the store [knows it](crate::store::Capabilities::time_left).
        remaining: Option<Duration>,
        /// The mark that [keeps the name closed](crate::store::Release::keep), instead of a holder. A store with
        /// [`Capabilities::keeps`](crate::store::Capabilities::keeps) names [`Mark::Done`], so that a job which waits ends at
        /// once. It may leave out another mark. On a quorum, one node is enough to name it.
        closed: Option<Mark>,
        /// Whether the holder's manager [lingers](HolderId::lingers), as far as the store knows. Then this manager asks it to give
        /// a hold that rests up, by [`Want::resting`](crate::store::Want::resting).
        lingers: bool,
    },
    /// A change of the mode found that the hold is no longer there, or a steal found the name free.
    NotYours(Absence),
}

/// The store's verdicts on the requests of [`acquire_all`](crate::store::Store::acquire_all), in their order. `None`
/// for a name that stays as it is because another one was not granted.
pub type SetVerdicts = Vec<Result<Option<Acquired>>>;

impl Acquired {
    /// Creates the grant of a request that left at `sent`, with the first reserved fencing token.
    #[must_use]
    pub fn granted(sent: Instant, fence: Option<u64>) -> Self {
        Self::Granted { sent, fence, reached: false, oldest: None }
    }

    /// Creates a grant whose first fencing token, a number of microseconds, is not ahead of the store's clock.
    #[must_use]
    pub fn granted_with_fence_reached(sent: Instant, fence: Option<u64>) -> Self {
        Self::Granted { sent, fence, reached: true, oldest: None }
    }

    /// Adds to a grant for how long the oldest waiter of another manager has waited.
    #[must_use]
    pub fn with_oldest(mut self, waited: Option<Duration>) -> Self {
        if let Self::Granted { oldest, .. } = &mut self {
            *oldest = waited;
        }
        self
    }

    /// Creates a refusal, with the remaining time of the holder if the store knows it.
    #[must_use]
    pub fn held(remaining: Option<Duration>) -> Self {
        Self::Held { remaining, closed: None, lingers: false }
    }

    /// Adds to a refusal whether the holder's manager [lingers](HolderId::lingers).
    #[must_use]
    pub fn with_lingering(mut self, lingering: bool) -> Self {
        if let Self::Held { lingers, .. } = &mut self {
            *lingers = lingering;
        }
        self
    }

    /// Adds to a refusal the mark that keeps the name closed.
    #[must_use]
    pub fn with_closed(mut self, mark: Option<Mark>) -> Self {
        if let Self::Held { closed, .. } = &mut self {
            *closed = mark;
        }
        self
    }
}

/// The store's verdict on a [`Release`](crate::store::Release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The count was lowered, or the name released.
    #[non_exhaustive]
    Done {
        /// The number of subscribers of other managers that got the wake-up. A hint; 0 unless the
        /// name was released.
        listeners: u64,
    },
    /// The hold was not there (any more).
    NotYours(Absence),
}

impl Released {
    /// Creates the verdict of a release, with the number of subscribers of other managers that got the wake-up.
    #[must_use]
    pub fn done(listeners: u64) -> Self {
        Self::Done { listeners }
    }
}

/// The store's verdicts on the items of a [`RenewCall`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewed {
    /// When the call left.
    pub sent: Instant,
    /// One for each item, in their order: `Ok(None)` renewed, `Ok(Some(_))` not there any more.
    pub verdicts: Vec<Result<Option<Absence>>>,
}

impl Renewed {
    /// Creates the verdicts on a call that left at `sent`.
    #[must_use]
    pub fn new(sent: Instant, verdicts: Vec<Result<Option<Absence>>>) -> Self {
        Self { sent, verdicts }
    }
}

/// One call of a renewal. It renews some items of a [`RenewBatch`], and is answered, or fails, by itself.
///
/// ```
/// use leasehold::store::{MemoryStore, RenewBatch, RenewCall, Store};
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let ttl = Duration::from_secs(30);
/// let calls = MemoryStore::new().renew(RenewBatch::new(Vec::new(), ttl, ttl));
/// assert!(RenewCall::join(calls).await?.verdicts.is_empty());
/// # Ok::<(), leasehold::Error>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[non_exhaustive]
pub struct RenewCall {
    /// The positions of its items in the batch.
    pub items: Vec<usize>,
    /// Its verdicts, one for each of its items, in their order. It does nothing until it is polled.
    pub verdicts: StoreFuture<Renewed>,
}

impl RenewCall {
    /// Creates a call for the items at these positions.
    #[must_use]
    pub fn new(items: Vec<usize>, verdicts: StoreFuture<Renewed>) -> Self {
        Self { items, verdicts }
    }

    /// Divides a batch among calls: one for each part of the store, with `size` items at most. `renew` makes the call of a
    /// smaller batch.
    #[must_use]
    pub fn divide(
        mut batch: RenewBatch,
        size: usize,
        part: impl Fn(&Renewal) -> usize,
        mut renew: impl FnMut(RenewBatch) -> StoreFuture<Renewed>,
    ) -> Vec<Self> {
        let mut parts: BTreeMap<usize, (Vec<usize>, Vec<Renewal>)> = BTreeMap::new();
        for (at, item) in std::mem::take(&mut batch.items).into_iter().enumerate() {
            let (positions, items) = parts.entry(part(&item)).or_default();
            positions.push(at);
            items.push(item);
        }
        let mut calls = Vec::new();
        for (positions, items) in parts.into_values() {
            let mut items = items.into_iter();
            for positions in positions.chunks(size.max(1)) {
                let items = items.by_ref().take(positions.len()).collect();
                calls.push(Self::new(
                    positions.to_vec(),
                    renew(RenewBatch { items, ..batch.clone() }),
                ));
            }
        }
        calls
    }

    /// Makes one answer of all calls of a batch, which waits for the last of them. The items of a call that fails have its
    /// error. If all calls fail, so does the whole.
    #[must_use]
    pub fn join(calls: Vec<Self>) -> StoreFuture<Renewed> {
        Box::pin(async move {
            let (mut positions, mut answers): (Vec<Vec<usize>>, Vec<BoxedCall<'_, _>>) =
                Default::default();
            for Self { items, verdicts } in calls {
                positions.push(items);
                answers.push(verdicts);
            }
            let answers = all(answers).await;
            let Some(sent) = answers.iter().flatten().map(|renewed| renewed.sent).min() else {
                // Without an item there is no call.
                let nothing = || Ok(Renewed::new(Instant::ZERO, Vec::new()));
                return answers.into_iter().next().unwrap_or_else(nothing);
            };
            let count = positions.iter().flatten().max().map_or(0, |last| last + 1);
            let missing =
                || Err(Error::protocol("the store answered for a different number of leases"));
            let mut verdicts: Vec<_> = (0..count).map(|_| missing()).collect();
            for (positions, answer) in positions.into_iter().zip(answers) {
                let answer = match answer {
                    Ok(renewed) if renewed.verdicts.len() == positions.len() => renewed.verdicts,
                    Ok(_) => continue,
                    Err(error) => vec![Err(error); positions.len()],
                };
                for (at, verdict) in positions.into_iter().zip(answer) {
                    verdicts[at] = verdict;
                }
            }
            Ok(Renewed::new(sent, verdicts))
        })
    }
}

impl fmt::Debug for RenewCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewCall").field("items", &self.items).finish_non_exhaustive()
    }
}

/// The state of a name that lacks the expected hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Absence {
    /// Nothing. Not for a holder that has the name in another mode by now: for it, that is [`Taken`](Absence::Taken).
    Gone,
    /// Another holder, with which the hold could not share the name.
    Taken,
    /// A note says that the name was [stolen](crate::store::Steal) from this holder.
    Stolen,
    /// A note says that [`Store::force_release`](crate::store::Store::force_release) ended this hold.
    Forced,
}

/// The answer to an [`Inspect`](crate::store::Inspect). It has what was [asked](crate::store::About), and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The holders, none if the name is free. In [`Mode::Exclusive`](crate::store::Mode::Exclusive) there is one at
    /// most.
    pub holders: Vec<HolderInfo>,
    /// The number of permits of a semaphore; `None` if the name is no semaphore, or the store has none under it.
    pub size: Option<u32>,
    /// The number of processes that wait for the name, or have just waited, as far as the store knows. `None` if it does not
    /// know it.
    ///
    /// On Redis these are the connections that are subscribed to its wake-ups: one for each manager with calls that wait,
    /// and for a second longer, or until their runtime runs again; in a cluster without sharded pub/sub, those of one server only. On a quorum it
    /// is the largest number of a node, in memory the number of managers, on ZooKeeper that of the calls in the queue.
    pub waiting: Option<u64>,
    /// The managers in the [line](crate::store::Store#lines) of the name, the oldest first.
    pub line: Vec<WaitingManager>,
    /// The last note about the name, if it was left for the holder that asks.
    pub note: Option<Note>,
}

impl Inspection {
    /// Creates the answer from the holders.
    #[must_use]
    pub fn new(holders: impl IntoIterator<Item = HolderInfo>) -> Self {
        Self { holders: holders.into_iter().collect(), ..Self::default() }
    }

    /// Sets the managers in the [line](Self::line).
    #[must_use]
    pub fn with_line(self, line: Vec<WaitingManager>) -> Self {
        Self { line, ..self }
    }

    /// Sets the [`note`](Self::note).
    #[must_use]
    pub fn with_note(self, note: Option<Note>) -> Self {
        Self { note, ..self }
    }

    /// Sets the [`size`](Self::size).
    #[must_use]
    pub fn with_size(self, size: Option<u32>) -> Self {
        Self { size, ..self }
    }

    /// Sets the number of processes that are [waiting](Self::waiting).
    #[must_use]
    pub fn with_waiting(self, waiting: Option<u64>) -> Self {
        Self { waiting, ..self }
    }

    /// Returns the holder of a name that has one at most; of several, the first.
    #[must_use]
    pub fn into_holder(self) -> Option<HolderInfo> {
        self.into_holders().into_iter().next()
    }

    /// Returns the holders, each with the number of processes that are [waiting](Self::waiting).
    pub(crate) fn into_holders(self) -> Vec<HolderInfo> {
        let Self { mut holders, waiting, .. } = self;
        holders.iter_mut().for_each(|holder| holder.waiting = waiting);
        holders
    }
}

/// The holder of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The [`HolderId`](crate::store::HolderId) as the store has it: `<uuid of its manager>:<number>`.
    ///
    /// Of a permit on Redis it is `<beginning of the uuid>-..:<number>`, because the 16 bytes of a permit cannot hold the
    /// whole; of a permit of Redisson, its 32 digits.
    ///
    /// An identity for debugging. It is neither a secret nor a permission. [`is_of`](Self::is_of) compares it with that of a
    /// lease.
    pub holder: String,
    /// The hold count; of a semaphore, the number of permits.
    pub hold_count: u64,
    /// The mode of the hold.
    pub mode: Mode,
    /// The remaining time to live; `None` if the store does not know it, or if the hold never expires (leasehold never
    /// requests that).
    pub remaining: Option<Duration>,
    /// The process of the holder, or the one that has [closed](Self::closed) the name.
    ///
    /// [`LeaseManager::inspect`](crate::LeaseManager::inspect) fills it in, for the holders of the same manager and of each
    /// that [describes](crate::Builder::describe) itself and lives. `None` for others.
    pub owner: Option<Owner>,
    /// What the holder has written beside the lock: [`Lock::label`](crate::Lock::label) and elections say when it does.
    /// `None` if it has written nothing, or not yet.
    pub metadata: Option<Box<Metadata>>,
    /// Why the name is closed, if a [mark](crate::store::Mark) has the place of a holder. `holder` is the text of the mark
    /// then, and `hold_count` is 0.
    pub closed: Option<Closed>,
    /// The number of processes that wait for the name, as [`Inspection::waiting`] has it, for all holders of a name together.
    pub waiting: Option<u64>,
}

impl HolderInfo {
    /// Creates the description of an exclusive holder, for authors of a [`Store`](crate::store::Store).
    #[must_use]
    pub fn new(holder: String, hold_count: u64, remaining: Option<Duration>) -> Self {
        Self {
            holder,
            hold_count,
            mode: Mode::Exclusive,
            remaining,
            owner: None,
            metadata: None,
            closed: None,
            waiting: None,
        }
    }

    /// Sets the [`mode`](Self::mode).
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Sets the [`metadata`](Self::metadata).
    #[must_use]
    pub fn with_metadata(self, metadata: Option<Metadata>) -> Self {
        Self { metadata: metadata.map(Box::new), ..self }
    }

    /// Returns whether it is the hold with this id, which [`Lease::holder_id`](crate::Lease::holder_id) returns. A permit on
    /// Redis is compared by what the store has of its id.
    #[must_use]
    pub fn is_of(&self, holder: crate::store::HolderId) -> bool {
        let Some((manager, number)) = self.holder.split_once(':') else { return false };
        let own = holder.manager().to_string();
        let begins = |beginning: &str| beginning.len() == BEGINNING && own.starts_with(beginning);
        let is_manager = manager == own || manager.strip_suffix("-..").is_some_and(begins);
        is_manager && number == holder.number().to_string()
    }

    /// Creates the description of a name that a mark keeps closed.
    #[must_use]
    pub fn closed(closed: Closed, remaining: Option<Duration>) -> Self {
        let holder = closed.mark.holder().to_owned();
        Self { closed: Some(closed), ..Self::new(holder, 0, remaining) }
    }
}

/// A manager in the [line](crate::store::Store#lines) of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingManager {
    /// The uuid of the manager, with which its [`HolderId`](crate::store::HolderId)s begin.
    pub manager: String,
    /// For how long its oldest waiter has waited.
    pub waited: Duration,
    /// Its process, as [`HolderInfo::owner`] has it.
    pub owner: Option<Owner>,
}

impl WaitingManager {
    /// Creates the description of a manager that waits, for authors of a [`Store`](crate::store::Store).
    #[must_use]
    pub fn new(manager: String, waited: Duration) -> Self {
        Self { manager, waited, owner: None }
    }
}

/// How long a store has been up, and what server it is: the answer of
/// [`Store::uptime`](crate::store::Store::uptime).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uptime {
    /// A lower bound on how long the store has retained every confirmed write, measured after the call; `None` if it never
    /// loses one, not even in a restart or when its disk is replaced by an empty one. A setting that keeps the keys of a
    /// server on disk is no such promise.
    pub age: Option<Duration>,
    /// A text that identifies the server behind the store; `None` if it has none.
    pub server: Option<String>,
}

impl Uptime {
    /// Creates the answer of a store that names no server.
    #[must_use]
    pub fn new(age: Option<Duration>) -> Self {
        Self { age, server: None }
    }

    /// Sets the [`server`](Self::server).
    #[must_use]
    pub fn with_server(self, server: Option<String>) -> Self {
        Self { server, ..self }
    }
}

/// The answer of [`Store::reserve`](crate::store::Store::reserve).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reserved {
    /// The uptime, measured after all items: the answer of [`Store::uptime`](crate::store::Store::uptime).
    pub uptime: Uptime,
    /// A verdict for each item, in their order.
    pub verdicts: Vec<Result<TokenVerdict>>,
}

impl Reserved {
    /// Creates the answer.
    #[must_use]
    pub fn new(uptime: Uptime, verdicts: Vec<Result<TokenVerdict>>) -> Self {
        Self { uptime, verdicts }
    }
}

/// The store's verdict on a [`Reservation`](crate::store::Reservation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenVerdict {
    /// The block was reserved by this call.
    Stored,
    /// Nothing was reserved, because the last token of the name is as large as the first one of the block, or larger.
    #[non_exhaustive]
    Outrun {
        /// The last token of the name.
        last: u64,
    },
    /// Nothing was reserved, because the holder does not have the name.
    NotYours(Absence),
}

impl TokenVerdict {
    /// Creates the verdict on a block that begins no later than the last token.
    #[must_use]
    pub fn outrun(last: u64) -> Self {
        Self::Outrun { last }
    }
}
