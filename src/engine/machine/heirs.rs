//! The waiters of this process to which a hold may be handed off.

use crate::clock::Instant;
use std::time::Duration;

/// The waiters of this process to which a hold may be handed off, as far as those of other processes are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heirs {
    /// Those that take no part in the line: the grant of a plain lock does not report who waits elsewhere.
    Plain,
    /// Any, because none waited elsewhere.
    All,
    /// Those that arrived before this time, at which the oldest waiter elsewhere arrived.
    Before(Instant),
}

impl Heirs {
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
    pub(super) fn admit(self, fair: bool, arrived: Instant) -> bool {
        match self {
            Self::Plain => !fair,
            Self::All => true,
            Self::Before(time) => arrived < time,
        }
    }
}
