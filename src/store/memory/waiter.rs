//! A manager that waits in an order: in a line, or between readers and writers.

use crate::clock::Instant;
use crate::store::{Arrival, HolderId};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    /// The holder id of the last request that recorded the arrival.
    pub(super) holder: HolderId,
    /// In nanoseconds of the clock, of which a waiter may have arrived before the start.
    pub(super) arrived: i128,
    pub(super) until: Instant,
}

impl Waiter {
    /// Returns whether it is of the manager of this holder.
    pub(super) fn is_of(&self, holder: HolderId) -> bool {
        self.holder.manager() == holder.manager()
    }

    pub(super) fn waited(&self, now: Instant) -> Duration {
        let now = arrived(None, now);
        Duration::from_nanos(u64::try_from(now - self.arrived).unwrap_or_default())
    }
}

/// Returns when the waiter with this arrival began to wait; `now` if it has none.
pub(super) fn arrived(arrival: Option<Arrival>, now: Instant) -> i128 {
    let waited = arrival.map_or(Duration::ZERO, |arrival| arrival.waited);
    let nanos = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
    nanos(now.saturating_duration_since(Instant::ZERO)) - nanos(waited)
}
