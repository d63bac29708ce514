//! The sign that a call is still polled. `NameState::reclaim` acts on that of a turn, `State::expire` on that of a hold.

use crate::clock::Instant;

/// The last pulse of a call: each poll is one. Nothing waits for a call, and no hold is kept for it, from the end of its last
/// pulse on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pulse {
    until: Instant,
}

impl Pulse {
    /// Returns a pulse that ends at `until`, a bound after the poll.
    pub(in crate::engine) fn until(until: Instant) -> Self {
        Self { until }
    }

    pub(in crate::engine) fn ends_at(self) -> Instant {
        self.until
    }

    /// Returns whether the call counts as not polled.
    pub(in crate::engine) fn is_over(self, now: Instant) -> bool {
        now >= self.until
    }
}
