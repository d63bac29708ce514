//! Events: what happened, to which hold.

use crate::error::{Error, Loss, Result};
use crate::store::{HolderId, Mode, Name};
use std::time::Duration;

/// An event of a lease, of a call that asks for one, or of the connection.
///
/// It is owned, and cheap to clone.
///
/// ```
/// use leasehold::{Event, EventKind};
///
/// fn report(event: &Event) {
///     let name = event.name().unwrap_or("-");
///     match event.kind() {
///         EventKind::Lost { cause, held, .. } => println!("{name} lost after {held:?}: {cause}"),
///         EventKind::AtRisk { left, .. } => println!("{name} at risk, {left:?} left"),
///         _ => {}
///     }
/// }
/// # let _ = report;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Event {
    name: Option<Name>,
    mode: Option<Mode>,
    holder: Option<HolderId>,
    class: &'static str,
    kind: EventKind,
    pub(super) counts: ClassCounts,
}

/// How many holds and waiters there are after an event, as the observers of the builder have seen it. Absolute, so that
/// events that were dropped do no lasting harm.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "for metrics"))]
pub(crate) struct ClassCounts {
    /// Those of the class and the mode.
    pub(crate) leases: u32,
    /// Those of the class and the mode before, if the mode has changed.
    pub(crate) leases_before: u32,
    /// Those of the class.
    pub(crate) waiters: u32,
}

/// What happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// A call waits: other calls of this manager come first, or the store has answered that the name is held.
    #[non_exhaustive]
    Waiting {
        /// The number of waiters of this manager that come first.
        ahead: usize,
    },
    /// A call returns a lease. A re-entry causes no event.
    #[non_exhaustive]
    Granted {
        /// The time from the call to the lease.
        waited: Duration,
        /// The fencing token.
        fence: Option<u64>,
        /// The origin of the lease.
        how: How,
        /// Whether [`Waiting`](EventKind::Waiting) came before.
        was_waiting: bool,
    },
    /// A call ends without a lease.
    #[non_exhaustive]
    NotGranted {
        /// The time from the call to its end.
        waited: Duration,
        /// The reason.
        why: Refusal,
        /// Whether [`Waiting`](EventKind::Waiting) came before.
        was_waiting: bool,
    },
    /// A candidate of an [election](crate::Election) leads with this hold, until the hold ends. This event comes after
    /// [`Granted`](EventKind::Granted), and after the store has written the value of the candidate, unless the store
    /// did not answer.
    #[non_exhaustive]
    Leads {
        /// The term: the fencing token.
        term: Option<u64>,
    },
    /// A renewal failed and is retried; the lease is still held.
    #[non_exhaustive]
    AtRisk {
        /// The time until the lease is lost.
        left: Duration,
    },
    /// A lease that was at risk has been renewed.
    Recovered,
    /// The lease is lost.
    #[non_exhaustive]
    Lost {
        /// The reason.
        cause: Loss,
        /// The time since the grant, or since the hand-off.
        held: Duration,
    },
    /// The hold was handed off to the next waiter of this manager, whose [`Granted`](EventKind::Granted) follows.
    #[non_exhaustive]
    HandedOff {
        /// The time since the grant, or since the hand-off before.
        held: Duration,
    },
    /// The handle has changed the mode of the hold to that of this event.
    #[non_exhaustive]
    ModeChanged {
        /// The mode before.
        from: Mode,
        /// The time since the grant, or since the change before.
        held: Duration,
        /// The new fencing token.
        fence: Option<u64>,
    },
    /// The store has confirmed the release, or the hold [lingers](crate::Builder::linger): then its later release in the store is
    /// no event, unless it fails.
    #[non_exhaustive]
    Released {
        /// The time from the grant, or from the hand-off, to the confirmation, or to the end of the last lease.
        held: Duration,
    },
    /// The store has not confirmed the release. The name stays taken until it expires.
    #[non_exhaustive]
    NotReleased {
        /// The error of the last attempt. `None` after [`forget`](crate::Lease::forget), which makes none.
        error: Option<Error>,
        /// The time since the grant, or since the hand-off. `None` if the lease was [`Lost`](EventKind::Lost) before.
        held: Option<Duration>,
    },
    /// The store has reconnected; all leases are verified.
    Reconnected,
    /// A measurement: a request to the store has ended, with or without an answer.
    #[non_exhaustive]
    Answered {
        /// The request.
        op: Operation,
        /// The answer.
        outcome: Outcome,
        /// The time from the request to the answer.
        took: Duration,
        /// The number of holds in the request.
        items: usize,
    },
    /// A measurement: a batch of leases has been renewed.
    #[non_exhaustive]
    Renewed {
        /// The smallest share of its time to live that a lease of the batch had left. It is 0.66 if all goes well.
        headroom: f64,
    },
    /// A measurement: the watchdog has done the work that was due.
    #[non_exhaustive]
    WatchdogRan {
        /// The delay of that work.
        lag: Duration,
    },
}

/// The origin of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum How {
    /// The store has granted it.
    Store,
    /// Another lease of this manager was handed off to it, also after it [lingered](crate::Builder::linger).
    HandedOff,
    /// It shares the hold of other readers of this manager.
    Joined,
    /// The store has taken it from another holder, by [`Lock::steal`](crate::Lock::steal).
    Stolen,
}

/// A request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// An outermost acquire.
    Acquire,
    /// A release, or a lower hold count.
    Release,
    /// A renewal of many holds.
    Renew,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The store has done it.
    Done,
    /// The name is held by another holder, or no longer by this one.
    Refused,
    /// The store has not answered.
    Unavailable,
    /// The store has returned another error.
    Failed,
}

impl Outcome {
    /// Returns the outcome of an answer, which is a refusal if `refuses` says so.
    pub(crate) fn of<T>(answer: &Result<T>, refuses: impl FnOnce(&T) -> bool) -> Self {
        match answer {
            Ok(answer) if refuses(answer) => Self::Refused,
            Ok(_) => Self::Done,
            Err(error) if error.is_unavailable() => Self::Unavailable,
            Err(_) => Self::Failed,
        }
    }
}

impl EventKind {
    /// Returns whether it is a measurement, which only an observer that [`measures`](crate::Observer::measures) gets.
    #[must_use]
    pub fn is_measurement(&self) -> bool {
        matches!(self, Self::Answered { .. } | Self::Renewed { .. } | Self::WatchdogRan { .. })
    }
}

/// The reason why a call ends without a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The name is held, and the call does not wait.
    Busy,
    /// The call has waited for as long as it may.
    TimedOut,
    /// It has returned an error.
    Failed(Error),
    /// Its future was dropped.
    Dropped,
}

/// The class of a handle that has none.
pub(crate) const DEFAULT_CLASS: &str = "all";

impl Event {
    /// Returns an event that concerns no name.
    pub(crate) fn new(kind: EventKind) -> Self {
        Self {
            name: None,
            mode: None,
            holder: None,
            class: DEFAULT_CLASS,
            kind,
            counts: ClassCounts::default(),
        }
    }

    /// Returns an event of a name.
    pub(crate) fn of(name: &Name, kind: EventKind) -> Self {
        Self { name: Some(name.clone()), ..Self::new(kind) }
    }

    pub(crate) fn with_mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    pub(crate) fn with_holder(self, holder: HolderId) -> Self {
        Self { holder: Some(holder), ..self }
    }

    pub(crate) fn with_class(self, class: &'static str) -> Self {
        Self { class, ..self }
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn counts(&self) -> ClassCounts {
        self.counts
    }

    /// Returns whether dropping it may run code of a user: that of an error of a store.
    pub(super) fn has_error(&self) -> bool {
        matches!(
            self.kind,
            EventKind::NotGranted { why: Refusal::Failed(_), .. }
                | EventKind::NotReleased { error: Some(_), .. }
        )
    }

    /// Returns what happened.
    #[must_use]
    pub fn kind(&self) -> &EventKind {
        &self.kind
    }

    /// Returns the name that it concerns, if there is one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// Returns the mode of the hold or of the call.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Returns the id of the holder, if there is a hold. It is that of [`Lease::holder_id`](crate::Lease::holder_id).
    #[must_use]
    pub fn holder(&self) -> Option<HolderId> {
        self.holder
    }

    /// Returns the class of the name: the word for all names of its kind that metrics show in place of the name.
    #[must_use]
    pub fn class(&self) -> &'static str {
        self.class
    }
}
