//! The clock that leasehold and its keeper share, which goes on while the machine is suspended.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

/// A moment of CLOCK_BOOTTIME, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(pub(super) u64);

impl Moment {
    pub(super) fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        Self(now.tv_sec.unsigned_abs() * SECOND + now.tv_nsec.unsigned_abs())
    }

    /// Returns the moment until which a lease is certain that has so much left.
    pub(super) fn by(left: impl FnOnce() -> Duration) -> Self {
        // Before the other: if this process is stopped in between, the lease must not become longer.
        let now = Self::now();
        now.after(left())
    }

    pub(super) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the time from now on; zero if it has passed.
    pub(super) fn left(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(Self::now().0))
    }

    pub(super) fn timespec(self) -> Timespec {
        let part = |nanos: u64| i64::try_from(nanos).unwrap_or(i64::MAX);
        Timespec { tv_sec: part(self.0 / SECOND), tv_nsec: part(self.0 % SECOND) }
    }
}

/// When the tree has to end, if no further renewal is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Until {
    /// The cancellation deadline: the tree is asked to stop.
    pub(super) stop: Moment,
    /// Four fifths of the grace later: the tree is killed. The last fifth is for its death.
    pub(super) kill: Moment,
}

impl Until {
    /// Returns the deadlines of a lease on which its holder may rely until `stop`.
    pub(super) fn new(stop: Moment, grace: Duration) -> Self {
        Self { stop, kill: stop.after(notice(grace)) }
    }
}

/// Returns the part of the grace between the signal and the kill.
pub(super) fn notice(grace: Duration) -> Duration {
    grace * 4 / 5
}
