//! The optional limits of a hold. Most holds have none.

use super::pulse::Pulse;
use crate::clock::Instant;
use crate::store::{Keep, Mark};
use std::panic::Location;
use std::time::Duration;

/// The location in the user's code where a name is acquired, if it is known.
pub(crate) type CallSite = Option<&'static Location<'static>>;

/// What the options of a handle and the settings of the manager ask of a hold.
#[derive(Clone, Debug)]
pub(crate) struct HoldPolicy {
    /// The end of `min_hold`; `None` before its caller has the lease.
    pub(crate) min_until: Option<Instant>,
    /// True if `stall_after` and `max_hold` have not begun, because its caller has no lease yet.
    pub(crate) awaits_lease: bool,
    /// The last pulse of the call that it was granted to, if it may have to wait for its lease.
    pub(crate) pulse: Option<Pulse>,
    /// The leases that no caller has: it does not have them yet, or they are in a change of the mode.
    pub(crate) unreturned: u32,
    /// The time for which the store keeps the name closed beyond T.
    pub(crate) delay: Duration,
    /// The longest time between two reports of progress, and the time of the last one.
    pub(crate) stall: Option<(Duration, Instant)>,
    /// The time at which a warning is due that it is still held.
    pub(crate) warn_at: Option<Instant>,
    /// When it began, and where it was acquired.
    pub(crate) began: Option<(Instant, CallSite)>,
    /// The time for which the name stays closed after the release, because the work is done.
    pub(crate) done: Option<Duration>,
}

/// The policy of most holds.
pub(super) static NO_POLICY: HoldPolicy = HoldPolicy::NONE;

impl Default for HoldPolicy {
    fn default() -> Self {
        Self::NONE
    }
}

impl HoldPolicy {
    /// That of most holds.
    const NONE: Self = Self {
        min_until: None,
        awaits_lease: false,
        pulse: None,
        unreturned: 0,
        delay: Duration::ZERO,
        stall: None,
        warn_at: None,
        began: None,
        done: None,
    };

    /// Returns the policy of the next hold of a chain until its waiter has accepted it, if it has any: the store keeps the
    /// delay until a renewal of the next holder.
    pub(super) fn handed_off(&self) -> Option<Box<Self>> {
        (!self.delay.is_zero()).then(|| Box::new(Self { delay: self.delay, ..Self::NONE }))
    }

    /// Returns whether it has leases, but no caller has one, and no call that will return one has a pulse.
    pub(super) fn is_unused(&self, live: u32) -> bool {
        self.unreturned == live && self.pulse.is_none()
    }

    /// Records the last pulse of the call that the hold was granted to.
    pub(super) fn record_pulse(&mut self, pulse: Pulse) {
        if let Some(last) = &mut self.pulse {
            *last = pulse;
        }
    }

    /// Records that a caller has got a lease that none had, or that it ends next.
    pub(super) fn end_unreturned(&mut self) {
        self.unreturned = self.unreturned.saturating_sub(1);
    }

    /// Returns the mark that a release at `now` leaves. `expires` is the deadline of a hold that is lost.
    pub(super) fn mark(
        &self,
        now: Instant,
        expires: Option<Instant>,
        ttl: Duration,
    ) -> Option<Keep> {
        // The store counts whole milliseconds; the name must not open earlier.
        let whole =
            |left: Duration| Duration::from_millis(left.as_nanos().div_ceil(1_000_000) as u64);
        match (self.done, self.min_left(now, expires, ttl).map(whole)) {
            (Some(done), left) => Some(Keep::new(Mark::Done, done.max(left.unwrap_or_default()))),
            (None, Some(left)) => Some(Keep::new(Mark::Kept, left)),
            (None, None) => None,
        }
    }

    /// Returns for how long a release at `now` keeps the name closed for `min_hold`; `None` if it does not.
    fn min_left(&self, now: Instant, expires: Option<Instant>, ttl: Duration) -> Option<Duration> {
        let until = self.min_until.filter(|until| *until > now)?;
        let left = until.saturating_duration_since(now);
        let Some(expires) = expires.filter(|_| !self.delay.is_zero()) else { return Some(left) };
        // The delay is in force, too. A name that is left to expire stays closed until then at least.
        (until > expires + self.delay).then(|| left.max(ttl + self.delay))
    }

    /// Returns whether it allows that the next local waiter gets the hold.
    pub(super) fn may_end_early(&self, now: Instant) -> bool {
        self.done.is_none() && self.min_until.is_none_or(|until| until <= now)
    }

    /// Returns the time at which a hold with so many leases is lost without a report of progress, or a pulse.
    pub(super) fn stalls_at(&self, live: u32) -> Option<Instant> {
        let stalls = self.stall.map(|(longest, last)| last + longest);
        stalls.into_iter().chain(self.watched(live).map(Pulse::ends_at)).min()
    }

    /// Returns whether no caller has a lease, and the call that the hold was granted to is not polled.
    pub(super) fn is_silent(&self, live: u32, now: Instant) -> bool {
        self.watched(live).is_some_and(|pulse| pulse.is_over(now))
    }

    /// Returns the pulse that keeps a hold with so many leases: no caller has one of them.
    fn watched(&self, live: u32) -> Option<Pulse> {
        self.pulse.filter(|_| self.unreturned > 0 && self.unreturned == live)
    }

    /// Records progress.
    pub(super) fn progress(&mut self, now: Instant) {
        if let Some((_, last)) = &mut self.stall {
            *last = now.max(*last);
        }
    }

    /// Returns when the hold began, and where, if a warning is due that it is still held. Once only.
    pub(super) fn warn(&mut self, now: Instant) -> Option<(Instant, CallSite)> {
        self.warn_at.take_if(|at| *at <= now)?;
        self.began
    }
}
