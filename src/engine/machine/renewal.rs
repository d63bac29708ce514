//! The renewals of a hold: what the store has confirmed, and when it is asked next.

use super::timing::Timing;
use crate::clock::Instant;
use crate::error::Loss;
use crate::store::Absence;

/// The next renewal of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextRenewal {
    Due(Instant),
    /// In a batch, which the watchdog checks in time for each hold in it.
    UnderWay {
        attempt: u32,
    },
    Stopped,
}

/// A renewal to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RenewalAttempt {
    pub(crate) number: u32,
    /// The time after which it must not be sent.
    pub(crate) believed_until: Instant,
    pub(crate) fence_kept: Instant,
}

/// A renewal that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRenewal {
    /// The number of the attempt.
    pub(crate) attempt: u32,
    pub(crate) sent: Instant,
    /// Whether it extends the store's memory of the fencing token.
    pub(crate) keeps_fence: bool,
}

/// The renewals of a hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewals {
    pub(super) next: NextRenewal,
    /// The time at which the last confirmed grant or renewal was sent.
    pub(super) confirmed: Instant,
    /// The number of the last attempt.
    attempts: u32,
    /// The number of failures in a row.
    failures: u32,
    /// The time at which the store last extended its memory of the fencing token.
    fence_kept: Instant,
}

impl Renewals {
    /// Returns those of a grant that was requested at `sent`. The first one is due at `next`.
    pub(super) fn new(sent: Instant, next: Instant) -> Self {
        let next = NextRenewal::Due(next);
        Self { next, confirmed: sent, attempts: 0, failures: 0, fence_kept: sent }
    }

    /// Returns those of the next hold of a chain. The first one is due at `earliest` or later.
    pub(super) fn hand_off(self, earliest: Instant) -> Self {
        let next = match self.next {
            NextRenewal::Due(at) => NextRenewal::Due(at.max(earliest)),
            next => next,
        };
        Self { next, attempts: 0, failures: 0, ..self }
    }

    pub(super) fn stop(&mut self) {
        self.next = NextRenewal::Stopped;
    }

    /// Returns whether the next one has a time, and so none is in flight.
    pub(super) fn is_planned(&self) -> bool {
        matches!(self.next, NextRenewal::Due(_))
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        matches!(self.next, NextRenewal::Due(at) if at <= now)
    }

    /// Makes the next one due at `now`, if it has a later time.
    pub(super) fn hasten(&mut self, now: Instant) {
        if let NextRenewal::Due(at) = &mut self.next {
            *at = now.min(*at);
        }
    }

    /// Plans the next one for `renew` after a rest, or none if the time of the rest has passed.
    pub(super) fn end_rest(&mut self, now: Instant, renew: Instant) {
        self.next = match self.next {
            NextRenewal::Due(until) if now < until => NextRenewal::Due(renew),
            _ => NextRenewal::Stopped,
        };
    }

    /// Begins an attempt.
    pub(super) fn begin(&mut self, believed_until: Instant) -> RenewalAttempt {
        let number = self.attempts.wrapping_add(1);
        self.attempts = number;
        self.next = NextRenewal::UnderWay { attempt: number };
        RenewalAttempt { number, believed_until, fence_kept: self.fence_kept }
    }

    /// Records the confirmation of a request sent at `sent`.
    pub(super) fn confirm(&mut self, timing: &Timing, sent: Instant, jitter: f64) {
        self.confirmed = self.confirmed.max(sent);
        self.failures = 0;
        self.next = NextRenewal::Due(timing.renewal(self.confirmed, jitter));
    }

    /// Records that the store has extended its memory of the fencing token by a request sent at `sent`.
    pub(super) fn keep_fence(&mut self, sent: Instant) {
        self.fence_kept = sent;
    }

    /// Counts an attempt as failed. Returns false if it was given up before: that counts once only.
    pub(super) fn fail(
        &mut self,
        timing: &Timing,
        now: Instant,
        jitter: f64,
        attempt: u32,
    ) -> bool {
        let counts = self.next == NextRenewal::UnderWay { attempt };
        if counts {
            self.failures = self.failures.saturating_add(1);
            self.next = NextRenewal::Due(now + timing.gap(self.failures, jitter));
        }
        counts
    }
}

/// The loss that an answer of the store shows.
impl From<Absence> for Loss {
    fn from(absence: Absence) -> Self {
        match absence {
            Absence::Gone => Loss::Gone,
            Absence::Taken => Loss::Taken,
            Absence::Stolen => Loss::Stolen,
            Absence::Forced => Loss::Revoked,
        }
    }
}
