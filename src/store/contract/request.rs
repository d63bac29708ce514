//! Requests to a store.
//!
//! Each request names its target and limits the time that the store may take. All of them are plain data, with absolute
//! counts and times.

use super::keep::Keep;
use super::mode::Mode;
use super::name::{HolderId, Name};
use super::note::Steal;
use super::note::{Act, Reason};
use super::target::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{SetVerdicts, StoreFuture, failed};
use std::time::Duration;

/// The number of fencing tokens that a grant reserves, and how long the last one is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fencing {
    /// The size of the reserved block. The grant returns its first token. 0 is a [proposal](Self::proposal).
    pub block: u32,
    /// The time for which the store remembers the last fencing token after the last request, or in
    /// [`Mode::Permits`](crate::store::Mode::Permits) the size of an idle semaphore; `None` for forever.
    pub retention: Option<Duration>,
}

impl Fencing {
    /// Creates a request for a block of fencing tokens. The store remembers the last one for `retention`, forever with
    /// `None`.
    #[must_use]
    pub fn new(block: u32, retention: Option<Duration>) -> Self {
        Self { block, retention }
    }

    /// Creates a request for a proposal: the grant returns a fencing token that is larger than the last one and not behind
    /// the store's clock, and reserves nothing. The same holder may ask again, and another proposal is returned.
    ///
    /// Only for a store with [`Capabilities::reserves`](crate::store::Capabilities::reserves), in any mode that has fencing
    /// tokens.
    #[must_use]
    pub fn proposal() -> Self {
        Self { block: 0, retention: None }
    }

    /// Returns whether nothing is reserved.
    pub(crate) fn is_proposal(&self) -> bool {
        self.block == 0
    }
}

/// Asks to reserve the fencing tokens of several grants, each from a first token that the caller names.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reserve {
    /// The grants.
    pub items: Vec<Reservation>,
    /// The time that the attempt may take.
    pub timeout: Duration,
}

impl Reserve {
    /// Creates the request.
    #[must_use]
    pub fn new(items: Vec<Reservation>, timeout: Duration) -> Self {
        Self { items, timeout }
    }

    /// Returns the answer of a store that cannot reserve a token that the caller names. Nothing was executed.
    #[must_use]
    pub fn unsupported() -> Error {
        let message =
            "the store reserves fencing tokens of its own only, none that the caller names";
        Error::new(ErrorKind::Unsupported, message)
    }
}

/// One grant of a [`Reserve`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reservation {
    /// The name and the mode of the hold.
    pub target: Target,
    /// The holder that was granted the name.
    pub holder: HolderId,
    /// The first fencing token of the block.
    pub first: u64,
    /// The size of the block, at least 1, and how long the last token is remembered.
    pub fencing: Fencing,
}

impl Reservation {
    /// Creates an item.
    #[must_use]
    pub fn new(target: Target, holder: HolderId, first: u64, fencing: Fencing) -> Self {
        Self { target, holder, first, fencing }
    }

    /// Returns the last fencing token of the block.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.first.saturating_add(u64::from(self.fencing.block.max(1)) - 1)
    }
}

/// Asks for a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Acquire {
    /// The name and the mode to acquire.
    pub target: Target,
    /// The holder: a new id for each hold, the same one in its retries.
    pub holder: HolderId,
    /// The time to live to grant, in whole milliseconds.
    pub ttl: Duration,
    /// The fencing tokens to reserve; `None` for none.
    pub fencing: Option<Fencing>,
    /// The time that the attempt may take.
    pub timeout: Duration,
    /// Whether this request changes the mode of a hold, between [`Read`](crate::store::Mode::Read) and
    /// [`Write`](crate::store::Mode::Write).
    ///
    /// If true, the holder has the name in the other one of the two modes, and asks for the mode of the target. A writer
    /// becomes a reader. A reader becomes the writer only if it is the only holder and no writer waits, where the store
    /// keeps an order of waiters; otherwise the store answers [`Held`](crate::store::Acquired::Held). If false, the
    /// store must not change the mode of a holder, because the request may be a late copy of an earlier one.
    pub converts: bool,
    /// The arrival in the order of waiters; `None` for a request that takes no part in that order.
    pub arrival: Option<Arrival>,
    /// Takes the name from another holder, in [`Mode::Exclusive`](crate::store::Mode::Exclusive) and without an arrival. Only
    /// for a store with [`Capabilities::steals`](crate::store::Capabilities::steals).
    pub steal: Option<Box<Steal>>,
}

/// When a waiter began to wait, for the order of the waiters of all processes.
///
/// A store remembers it when it refuses the request, unless [`kept`](Self::kept) is zero. In the modes
/// [`Read`](crate::store::Mode::Read) and [`Write`](crate::store::Mode::Write) it then refuses a later reader while an
/// older writer waits, and a later writer while an older reader waits, so that neither side starves. Only requests of
/// its own waiter keep an arrival: if others could, the arrivals of a reader and a writer that are both gone would keep
/// all others out. A holder id with a larger number of the same manager is a later waiter: its arrival replaces the one
/// before.
///
/// In [`Mode::Exclusive`](crate::store::Mode::Exclusive) it is an entry in the [line](crate::store::Store#lines) of the
/// name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrival {
    /// How long the waiter has waited.
    pub waited: Duration,
    /// The time for which the store remembers the arrival after the last request: a waiter may be gone. Zero for a call
    /// that does not wait: it respects the order, and the store keeps nothing of it.
    pub kept: Duration,
}

impl Arrival {
    /// Creates the arrival of a waiter that has waited for `waited`; the store remembers it for `kept`.
    #[must_use]
    pub fn new(waited: Duration, kept: Duration) -> Self {
        Self { waited, kept }
    }

    /// Returns the error of a store that keeps no arrivals for exclusive locks. Nothing was executed.
    #[must_use]
    pub fn unsupported() -> Error {
        let message = "the store has no line to show, or no order between the waiters of several processes; use `lock`, or one Redis server or cluster with Layout::Redisson";
        Error::new(ErrorKind::Unsupported, message)
    }
}

impl Acquire {
    /// Creates a request without fencing tokens.
    #[must_use]
    pub fn new(target: Target, holder: HolderId, ttl: Duration, timeout: Duration) -> Self {
        Self {
            target,
            holder,
            ttl,
            fencing: None,
            timeout,
            converts: false,
            arrival: None,
            steal: None,
        }
    }

    /// Sets the [`fencing`](Self::fencing) tokens to reserve.
    #[must_use]
    pub fn with_fencing(self, fencing: Option<Fencing>) -> Self {
        Self { fencing, ..self }
    }

    /// Sets [`converts`](Self::converts).
    #[must_use]
    pub fn with_converts(self, converts: bool) -> Self {
        Self { converts, ..self }
    }

    /// Sets the [`arrival`](Self::arrival).
    #[must_use]
    pub fn with_arrival(self, arrival: Option<Arrival>) -> Self {
        Self { arrival, ..self }
    }

    /// Sets the holder to [take](Self::steal) the name from.
    #[must_use]
    pub fn with_steal(self, steal: Option<Steal>) -> Self {
        Self { steal: steal.map(Box::new), ..self }
    }

    /// Divides a request to steal: into the acquire of the new holder alone, and the holder to take the name from.
    pub(crate) fn split_steal(mut self) -> (Self, Option<Steal>) {
        let steal = self.steal.take();
        (self, steal.map(|steal| *steal))
    }

    /// Returns whether a refusal records an arrival in the order of waiters.
    pub(crate) fn keeps_arrival(&self) -> bool {
        self.arrival.is_some_and(|arrival| !arrival.kept.is_zero())
    }

    /// Returns the name, for a store that has no mode but [`Mode::Exclusive`](crate::store::Mode::Exclusive), keeps
    /// no arrivals, and takes no name from its holder.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for any other mode, for a request with an arrival, and for one that steals.
    pub fn plain_name(&self) -> Result<Name> {
        self.target.require_exclusive()?;
        self.require_no_line()?;
        if self.steal.is_some() {
            return Err(Steal::unsupported(self.target.mode));
        }
        Ok(self.target.name.clone())
    }

    /// Returns the answer of a store that cannot grant several names in one step.
    #[must_use]
    pub fn all_unsupported() -> StoreFuture<SetVerdicts> {
        failed(Error::new(ErrorKind::Unsupported, "this store grants each name by itself"))
    }

    /// Refuses an arrival in the [line](crate::store::Store#lines) of a name, for a store that keeps none.
    pub(crate) fn require_no_line(&self) -> Result<()> {
        match (self.target.mode, self.arrival) {
            (Mode::Exclusive, Some(_)) => Err(Arrival::unsupported()),
            _ => Ok(()),
        }
    }
}

/// Asks to release a name, to record a hold count, or to give up an arrival.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Release {
    /// The name, and the mode of the hold or the one that the waiter asked for.
    pub target: Target,
    /// The holder; of an arrival, the holder id of the last request that may have recorded it.
    pub holder: HolderId,
    /// What it ends. The other fields are described for a hold.
    pub ends: Ends,
    /// The hold count to record, which may be higher or lower than the one before; 0 releases the name.
    pub count: u32,
    /// The time that the attempt may take.
    pub timeout: Duration,
    /// The arrival of the next waiter of this manager, for a hold in [`Mode::Exclusive`](crate::store::Mode::Exclusive).
    /// A store with a [line](crate::store::Store#lines) enters it in the same step, if this request releases the name.
    /// Then [`Released::Done`](crate::store::Released::Done) counts no listeners while another manager waits in the
    /// line: the line orders them. If the request gives up an arrival in a line, this one replaces it.
    pub arrival: Option<Arrival>,
    /// Keeps the name closed, if this request releases it, for a hold in
    /// [`Mode::Exclusive`](crate::store::Mode::Exclusive); in any other mode it is
    /// [`Unsupported`](ErrorKind::Unsupported). Only for a store with
    /// [`Capabilities::keeps`](crate::store::Capabilities::keeps). [`arrival`](Self::arrival) is `None` then.
    pub keep: Option<Keep>,
}

/// What a [`Release`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ends {
    /// A hold, or a part of its count.
    Hold,
    /// The [`Arrival`] that a waiter may have in the order of waiters. The count is 0.
    Arrival,
}

impl Release {
    /// Creates a request that records a hold count; 0 releases the name.
    #[must_use]
    pub fn new(target: Target, holder: HolderId, count: u32, timeout: Duration) -> Self {
        Self { target, holder, ends: Ends::Hold, count, timeout, arrival: None, keep: None }
    }

    /// Creates a request that gives up the [`Arrival`] that a request of `holder` may have recorded.
    #[must_use]
    pub fn arrival(target: Target, holder: HolderId, timeout: Duration) -> Self {
        Self { ends: Ends::Arrival, ..Self::new(target, holder, 0, timeout) }
    }

    /// Refuses to give up an arrival, for a store that keeps no [`Arrival`].
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for a request that ends anything but a hold.
    pub fn require_hold(&self) -> Result<()> {
        match self.ends {
            Ends::Hold => Ok(()),
            Ends::Arrival => Err(Arrival::unsupported()),
        }
    }

    /// Sets the [`arrival`](Self::arrival) of the next waiter.
    #[must_use]
    pub fn with_arrival(self, arrival: Option<Arrival>) -> Self {
        Self { arrival, ..self }
    }

    /// Sets the mark that [keeps](Self::keep) the name closed.
    #[must_use]
    pub fn with_keep(self, keep: Option<Keep>) -> Self {
        Self { keep, ..self }
    }

    /// Returns the mark that this request is to leave, if it releases the name.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) in another mode than [`Mode::Exclusive`](crate::store::Mode::Exclusive).
    pub fn mark(&self) -> Result<Option<Keep>> {
        Keep::require_exclusive(self.keep, self.target.mode)?;
        Ok(self.keep.filter(|_| self.count == 0))
    }
}

/// Asks to extend many holds by one time to live.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewBatch {
    /// The holds, as many as are due. The store divides them among its [calls](crate::store::RenewCall).
    pub items: Vec<Renewal>,
    /// The time to live to set for each of them.
    pub ttl: Duration,
    /// The time for which the store remembers the last fencing token from now on, for items with
    /// [`keep_fence`](Renewal::keep_fence); `None` if no item has it.
    pub fence_retention: Option<Duration>,
    /// The time that the attempt may take.
    pub timeout: Duration,
}

impl RenewBatch {
    /// Creates a batch that leaves the memory of fencing tokens as it is.
    #[must_use]
    pub fn new(items: Vec<Renewal>, ttl: Duration, timeout: Duration) -> Self {
        Self { items, ttl, fence_retention: None, timeout }
    }

    /// Sets the [`fence_retention`](Self::fence_retention).
    #[must_use]
    pub fn with_fence_retention(self, fence_retention: Option<Duration>) -> Self {
        Self { fence_retention, ..self }
    }

    /// Refuses a batch with an item of another mode than [`Mode::Exclusive`](crate::store::Mode::Exclusive), for a
    /// store that has no other.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if there is such an item.
    pub fn require_exclusive(&self) -> Result<()> {
        self.items.iter().try_for_each(|item| item.target.require_exclusive())
    }

    /// Returns the time to live to set for an item.
    #[must_use]
    pub fn ttl_of(&self, item: &Renewal) -> Duration {
        item.ttl.unwrap_or(self.ttl)
    }

    /// Returns the time for which the store remembers the fencing token of an item from now on, if the item asks for it.
    #[must_use]
    pub fn retention_of(&self, item: &Renewal) -> Option<Duration> {
        self.fence_retention.filter(|_| item.keep_fence)
    }
}

/// One hold of a [`RenewBatch`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// The name and the mode of the hold.
    pub target: Target,
    /// The holder.
    pub holder: HolderId,
    /// True if the memory of the last fencing token is extended, by
    /// [`fence_retention`](RenewBatch::fence_retention).
    pub keep_fence: bool,
    /// The time to live to set for this item, if it is not that of the [batch](RenewBatch::ttl). Only for a store with
    /// [`Capabilities::own_ttl`](crate::store::Capabilities::own_ttl), and in
    /// [`Mode::Exclusive`](crate::store::Mode::Exclusive).
    pub ttl: Option<Duration>,
}

impl Renewal {
    /// Creates an item that leaves the memory of the fencing token as it is.
    #[must_use]
    pub fn new(target: Target, holder: HolderId) -> Self {
        Self { target, holder, keep_fence: false, ttl: None }
    }

    /// Sets [`keep_fence`](Self::keep_fence).
    #[must_use]
    pub fn with_keep_fence(self, keep_fence: bool) -> Self {
        Self { keep_fence, ..self }
    }

    /// Sets the [time to live](Self::ttl) of this item.
    #[must_use]
    pub fn with_ttl(self, ttl: Option<Duration>) -> Self {
        Self { ttl, ..self }
    }
}

/// A request for hints about a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Wait {
    /// The name and the mode.
    pub target: Target,
    /// What the hints are about.
    pub topic: Topic,
    /// The holder of the acquires that follow. `None` for a listener without an acquire of its own, which gets no place
    /// in a queue of the store.
    pub holder: Option<HolderId>,
    /// The time that the attempt may take.
    pub timeout: Duration,
}

/// What the hints of a [`Wait`] are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topic {
    /// The name may have become free.
    Release,
    /// The [description](crate::store::Metadata) of its holder may have changed. The request has no holder then.
    Metadata,
}

impl Wait {
    /// Creates a request to hear of releases, of a waiter, or of a listener with `None`.
    #[must_use]
    pub fn new(target: Target, holder: Option<HolderId>, timeout: Duration) -> Self {
        Self { target, topic: Topic::Release, holder, timeout }
    }

    /// Sets the [`topic`](Self::topic).
    #[must_use]
    pub fn with_topic(self, topic: Topic) -> Self {
        Self { topic, ..self }
    }
}

/// Asks about a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspect {
    /// The name and the mode to look at.
    pub target: Target,
    /// What is asked.
    pub about: About,
    /// The time that the attempt may take.
    pub timeout: Duration,
}

/// What an [`Inspect`] asks about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum About {
    /// Its holders: [`Inspection::holders`](crate::store::Inspection::holders) and what is said of them all.
    Holders,
    /// The managers in its [line](crate::store::Store#lines):
    /// [`Inspection::line`](crate::store::Inspection::line). [`Unsupported`](ErrorKind::Unsupported) without
    /// [`Line::Arrivals`](crate::store::Line::Arrivals).
    Line,
    /// The last note about it, if it was left for this holder:
    /// [`Inspection::note`](crate::store::Inspection::note). A store without notes returns an empty answer.
    Note(HolderId),
}

impl Inspect {
    /// Creates a request for the holders.
    #[must_use]
    pub fn new(target: Target, timeout: Duration) -> Self {
        Self { target, about: About::Holders, timeout }
    }

    /// Sets what it asks [about](Self::about).
    #[must_use]
    pub fn with_about(self, about: About) -> Self {
        Self { about, ..self }
    }

    /// Returns the error of a store that does not know what is asked. Nothing was executed.
    #[must_use]
    pub fn unsupported(&self) -> Error {
        match self.about {
            About::Line => Arrival::unsupported(),
            About::Holders | About::Note(_) => Error::new(
                ErrorKind::Unsupported,
                "the store does not answer this question about a name",
            ),
        }
    }
}

/// Asks to release a name by force.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForceRelease {
    /// The name and the mode to free.
    pub target: Target,
    /// The author and the reason, for the note to the old holders. Their managers get a hint. `None` leaves no note.
    pub reason: Option<Reason>,
    /// The holder to free it from, as [`Store::inspect`](crate::store::Store::inspect) reports it: in the same step, it is
    /// freed from no other. For [`Mode::Exclusive`] only. `None` frees it from whatever holds it.
    pub from: Option<String>,
    /// What the note says: [`Act::Forced`], or [`Act::Stolen`] if it is the first half of a steal.
    pub act: Act,
    /// The time that the attempt may take.
    pub timeout: Duration,
}

impl ForceRelease {
    /// Creates a request that leaves no note.
    #[must_use]
    pub fn new(target: Target, timeout: Duration) -> Self {
        Self { target, reason: None, from: None, act: Act::Forced, timeout }
    }

    /// Sets the [`reason`](Self::reason).
    #[must_use]
    pub fn with_reason(self, reason: Option<Reason>) -> Self {
        Self { reason, ..self }
    }

    /// Sets the [`from`](Self::from).
    #[must_use]
    pub fn with_from(self, from: Option<String>) -> Self {
        Self { from, ..self }
    }

    /// Refuses a mode in which no holder can be named.
    pub(crate) fn check_mode(&self) -> Result<()> {
        if self.from.is_some() { self.target.require_exclusive() } else { Ok(()) }
    }

    /// Returns whether the name may be freed from this holder. A hold at a node of a quorum has an id for each attempt,
    /// which begins alike.
    pub(crate) fn is_meant_for(&self, holder: &str) -> bool {
        self.from.as_ref().is_none_or(|from| {
            holder
                .strip_prefix(&**from)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }

    /// Makes it the first half of a steal.
    pub(crate) fn of_a_steal(self) -> Self {
        Self { act: Act::Stolen, ..self }
    }
}

/// Asks for another number of permits of a semaphore.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Resize {
    /// The name.
    pub name: Name,
    /// The number of permits that it is to have.
    pub size: u32,
    /// How long the store keeps the size of an idle semaphore, and the sizes that it had before; `None` for forever.
    pub retention: Option<Duration>,
    /// The time that the attempt may take.
    pub timeout: Duration,
}

impl Resize {
    /// Creates the request.
    #[must_use]
    pub fn new(name: Name, size: u32, retention: Option<Duration>, timeout: Duration) -> Self {
        Self { name, size, retention, timeout }
    }
}
