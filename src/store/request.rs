//! What is asked of a store.
//!
//! Each request says what it is about and how long the store may take for it. All of them are plain data, with counts
//! and times that are absolute.

use super::name::HolderId;
use super::target::Target;
use crate::error::Result;
use std::time::Duration;

/// Says how many fencing tokens an outermost grant reserves, and how long the last is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fencing {
    /// The size of the reserved block, at least 1. The grant tells the first of them.
    pub block: u32,
    /// How long the last fencing token is kept when nobody locks; `None` for ever.
    pub retention: Option<Duration>,
}

impl Fencing {
    /// Asks for a block of fencing tokens, of which the last is kept for `retention`; `None` for ever.
    #[must_use]
    pub fn new(block: u32, retention: Option<Duration>) -> Self {
        Self { block, retention }
    }
}

/// Asks for a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Acquire {
    /// What to lock.
    pub target: Target,
    /// Who asks: new for each outermost acquire, the same in its retries and nested calls.
    pub holder: HolderId,
    /// The hold count after the grant: 1 for an outermost acquire.
    pub count: u32,
    /// The time to live to grant; whole milliseconds.
    pub ttl: Duration,
    /// Fencing tokens wanted; `None` for none, and for nested acquires.
    pub fencing: Option<Fencing>,
    /// How long the attempt may take.
    pub timeout: Duration,
}

impl Acquire {
    /// Makes an outermost acquire, without fencing tokens.
    #[must_use]
    pub fn new(target: Target, holder: HolderId, ttl: Duration, timeout: Duration) -> Self {
        Self { target, holder, count: 1, ttl, fencing: None, timeout }
    }

    /// Sets the [`count`](Self::count): above 1 it is a nested acquire.
    #[must_use]
    pub fn with_count(self, count: u32) -> Self {
        Self { count, ..self }
    }

    /// Sets the [`fencing`](Self::fencing) tokens wanted.
    #[must_use]
    pub fn with_fencing(self, fencing: Option<Fencing>) -> Self {
        Self { fencing, ..self }
    }
}

/// Asks to lower a hold count, or to release a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Release {
    /// What is locked.
    pub target: Target,
    /// Who holds it.
    pub holder: HolderId,
    /// The hold count that is to remain; 0 releases the name.
    pub count: u32,
    /// How long the attempt may take.
    pub timeout: Duration,
}

impl Release {
    /// Makes a request that leaves a hold count; 0 releases the name.
    #[must_use]
    pub fn new(target: Target, holder: HolderId, count: u32, timeout: Duration) -> Self {
        Self { target, holder, count, timeout }
    }
}

/// Asks to extend many holds by one time to live.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewBatch {
    /// The holds, [`renewal_batch`](super::Capabilities::renewal_batch) at most.
    pub items: Vec<Renewal>,
    /// The time to live to set for each of them.
    pub ttl: Duration,
    /// For how much longer the last fencing token is to be remembered, of those items that
    /// [say so](Renewal::keep_fence); `None` if of none.
    pub fence_retention: Option<Duration>,
    /// How long the attempt may take.
    pub timeout: Duration,
}

impl RenewBatch {
    /// Makes a batch that leaves the memory of fencing tokens as it is.
    #[must_use]
    pub fn new(items: Vec<Renewal>, ttl: Duration, timeout: Duration) -> Self {
        Self { items, ttl, fence_retention: None, timeout }
    }

    /// Sets the [`fence_retention`](Self::fence_retention).
    #[must_use]
    pub fn with_fence_retention(self, fence_retention: Option<Duration>) -> Self {
        Self { fence_retention, ..self }
    }

    /// Refuses a batch with an item of another mode than [`Mode::Exclusive`](super::Mode::Exclusive), for a store that
    /// has no other.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if there is such an item.
    pub fn require_exclusive(&self) -> Result<()> {
        self.items.iter().try_for_each(|item| item.target.require_exclusive())
    }

    /// Returns for how much longer the fencing token of an item is to be remembered, if it is.
    #[must_use]
    pub fn retention_of(&self, item: &Renewal) -> Option<Duration> {
        self.fence_retention.filter(|_| item.keep_fence)
    }
}

/// One hold of a [`RenewBatch`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// What is locked.
    pub target: Target,
    /// Who holds it.
    pub holder: HolderId,
    /// Whether the memory of the last fencing token is to be prolonged, by
    /// [`fence_retention`](RenewBatch::fence_retention).
    pub keep_fence: bool,
}

impl Renewal {
    /// Makes an item that leaves the memory of the fencing token as it is.
    #[must_use]
    pub fn new(target: Target, holder: HolderId) -> Self {
        Self { target, holder, keep_fence: false }
    }

    /// Sets [`keep_fence`](Self::keep_fence).
    #[must_use]
    pub fn with_keep_fence(self, keep_fence: bool) -> Self {
        Self { keep_fence, ..self }
    }
}

/// Asks to be told when a name may have become free.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Wait {
    /// What is waited for.
    pub target: Target,
    /// Who waits: the holder of the acquires that follow. `None` for one who only listens, and has no acquire of its
    /// own; it gets no place in a line that the store keeps.
    pub holder: Option<HolderId>,
    /// How long the attempt may take.
    pub timeout: Duration,
}

impl Wait {
    /// Makes a request of one who waits, or of one who only listens.
    #[must_use]
    pub fn new(target: Target, holder: Option<HolderId>, timeout: Duration) -> Self {
        Self { target, holder, timeout }
    }
}

/// Asks who holds a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspect {
    /// What may be held.
    pub target: Target,
    /// How long the attempt may take.
    pub timeout: Duration,
}

impl Inspect {
    /// Makes the request.
    #[must_use]
    pub fn new(target: Target, timeout: Duration) -> Self {
        Self { target, timeout }
    }
}

/// Asks to take a name away from whoever holds it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForceRelease {
    /// What is to be free.
    pub target: Target,
    /// How long the attempt may take.
    pub timeout: Duration,
}

impl ForceRelease {
    /// Makes the request.
    #[must_use]
    pub fn new(target: Target, timeout: Duration) -> Self {
        Self { target, timeout }
    }
}
