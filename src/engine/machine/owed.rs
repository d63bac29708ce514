//! The release that is owed to the store after a loss.

use super::hold::{Cleanup, Phase, State};
use super::timing::Timing;
use crate::clock::Instant;

impl State {
    /// Returns whether the watchdog has submitted the release that is owed.
    pub(super) fn is_queued(&self) -> bool {
        matches!(self.cleanup, Cleanup::Queued | Cleanup::Running { queued: true })
    }

    pub(super) fn set_queued(&mut self, queued: bool) {
        self.cleanup = match self.cleanup {
            Cleanup::Running { .. } => Cleanup::Running { queued },
            _ if queued => Cleanup::Queued,
            _ => Cleanup::Idle,
        };
    }

    /// Returns the time at which the release is given up and the key is left to expire, whatever is
    /// in flight: that may be in a future that is not polled.
    pub(super) fn abandoned_at(&self, timing: &Timing) -> Instant {
        let deadline = self.deadline(timing);
        self.owed.map_or(deadline, |owed| deadline.max(owed + timing.attempt * 3))
    }

    /// Owes a release after a confirmation that came too late: the store keeps the key for T from
    /// `sent`, without a holder. It is sent when the leases are gone, or when they cannot rely on
    /// the key any more.
    pub(super) fn owe_late(&mut self, timing: &Timing, sent: Instant, now: Instant) {
        if matches!(self.phase, Phase::Lost(_))
            && self.owed.is_none()
            && !self.leaves_to_expire(timing, now)
        {
            self.owed = Some(self.deadline(timing).max(now));
            self.set_queued(false);
            self.unsure_until = self.unsure_until.max(Some(sent + timing.ttl + self.delay()));
        }
    }

    /// Owes a release by `until`: a key that was to be deleted may still exist.
    pub(in crate::engine) fn owe(&mut self, until: Instant) {
        if matches!(self.phase, Phase::Lost(_)) && self.owed.is_none() {
            self.owed = Some(until);
            self.set_queued(false);
        }
    }
}
