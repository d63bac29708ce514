//! The waiters of this process to which a hold may be handed off.

use crate::clock::Instant;
use std::time::Duration;

/// The waiters of this process to which a hold may be handed off, as far as those of other processes are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandoffScope {
    /// Those that take no part in the line: the grant of a plain lock does not report who waits elsewhere.
    Plain,
    /// Any, because none waited elsewhere.
    All,
    /// Those that arrived before this time, at which the oldest waiter elsewhere arrived.
    Before(Instant),
}

impl HandoffScope {
    /// Returns those of a grant that was requested at `sent`.
    pub(in crate::engine) fn of(fair: bool, sent: Instant, oldest: Option<Duration>) -> Self {
        match (fair, oldest) {
            (false, _) => Self::Plain,
            (true, None) => Self::All,
            (true, Some(waited)) => {
                let since_start = sent.saturating_duration_since(Instant::ZERO);
                Self::Before(Instant::ZERO + since_start.saturating_sub(waited))
            }
        }
    }

    /// Returns whether a waiter is one of them.
    pub(super) fn admits(self, fair: bool, arrived: Instant) -> bool {
        match self {
            Self::Plain => !fair,
            Self::All => true,
            Self::Before(time) => arrived < time,
        }
    }
}

/// The chain of hand-offs that a hold belongs to.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Chain {
    /// The time of the request that the store granted.
    pub(in crate::engine) began: Instant,
    /// True if it is so short that it costs waiters elsewhere little.
    pub(in crate::engine) is_young: bool,
    /// To whom the hold may be handed off.
    pub(in crate::engine) scope: HandoffScope,
    /// The time for which the store keeps the name closed beyond T.
    pub(in crate::engine) delay: Duration,
}
