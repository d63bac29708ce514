//! The arithmetic of time: everything follows from T, the time to live.
//!
//! `s` is the clock read just before a request was sent, so the store ran it at `s` or later
//! and keeps the key until `s + T` at least, by its own clock. Allowing that clock a rate
//! error, the holder may believe until the deadline `D`, and is told at `C`, a grace earlier:
//!
//! ```text
//! s ────────── renew ─────────────── C ── grace ── D ─ margin ─ s + T
//! ```

use crate::clock::Instant;
use crate::error::{Error, Result};
use std::time::Duration;

/// How much faster than ours the store's clock may run. NTP slews by 0.05 % a side.
const RATE_ERROR_DIVISOR: u32 = 100;
/// Rounding to whole milliseconds on both sides.
const ROUNDING: Duration = Duration::from_millis(2);
const GRACE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
const LONGEST_PERIOD: Duration = Duration::from_secs(60);
/// Linux resends a lost segment after 200 ms at the earliest; one of them must not fail an attempt.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(250);
/// With a T of hours a fraction of T would be longer than anybody wants to wait for a reply.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(10);
const LONGEST_GAP: Duration = Duration::from_secs(3);
pub(crate) const SHORTEST_TTL: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The durations that follow from T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// T: the time to live that the store grants.
    pub(crate) ttl: Duration,
    /// How long before `D` the holder is told, so that its work can stop.
    pub(crate) grace: Duration,
    /// From one confirmed renewal to the next, before jitter.
    pub(crate) period: Duration,
    /// How long one attempt may take.
    pub(crate) attempt: Duration,
    /// For how long a hold is passed on in memory before other processes get their turn.
    pub(crate) longest_chain: Duration,
    /// From `s` to `D`.
    to_deadline: Duration,
    /// From `s` to `C`.
    to_cancel: Duration,
}

impl Timing {
    /// The timing of T = 30 s; a test holds it to [`Timing::new`].
    pub(crate) const DEFAULT: Self = Self {
        ttl: Duration::from_secs(30),
        grace: Duration::from_secs(2),
        period: Duration::from_secs(10),
        attempt: Duration::from_secs(3),
        longest_chain: Duration::from_secs(3),
        to_deadline: Duration::from_millis(29_698),
        to_cancel: Duration::from_millis(27_698),
    };

    /// Derives everything from T.
    pub(crate) fn new(ttl: Duration) -> Result<Self> {
        if !(SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
            return Err(Error::invalid(format!(
                "a time to live of {ttl:?} is out of range; choose 100 ms to 365 days"
            )));
        }
        // The store counts whole milliseconds; ours must not be longer than its.
        let ttl = Duration::from_millis(ttl.as_millis() as u64);
        let grace = (ttl / 10).clamp(GRACE.0, GRACE.1);
        let to_deadline = ttl - ttl / RATE_ERROR_DIVISOR - ROUNDING;
        Ok(Self {
            ttl,
            grace,
            period: (ttl / 3).min(LONGEST_PERIOD),
            attempt: (ttl / 10).clamp(SHORTEST_ATTEMPT, LONGEST_ATTEMPT).min(ttl / 6),
            longest_chain: ttl / 10,
            to_deadline,
            to_cancel: to_deadline - grace,
        })
    }

    /// How long after a release that may not have been the last the next one follows: sooner if it failed.
    pub(crate) fn sweep_gap(&self, failed: bool) -> Duration {
        if failed { (self.ttl / 10).min(LONGEST_GAP) } else { self.ttl / 10 }
    }

    /// How often a waiter in line looks whether the one with the turn still moves.
    pub(crate) fn check_in_period(&self) -> Duration {
        self.ttl / 16
    }

    /// `D`: until when a grant or renewal that was sent at `sent` may be believed.
    pub(crate) fn deadline(&self, sent: Instant) -> Instant {
        sent + self.to_deadline
    }

    /// `C`: when the holder is told, if nothing was confirmed since.
    pub(crate) fn cancel(&self, sent: Instant) -> Instant {
        sent + self.to_cancel
    }

    /// When to renew what was confirmed at `sent`: up to a tenth early, so that processes
    /// started together drift apart.
    pub(crate) fn renewal(&self, sent: Instant, jitter: f64) -> Instant {
        // Cheaper than to multiply a Duration; a period is a minute at most.
        let early = self.period.as_micros() as u64 as f64 / 10.0 * jitter;
        sent + (self.period - Duration::from_micros(early as u64))
    }

    /// The wait before attempt `failures + 1`: T/60, doubling to T/20, with full jitter, but
    /// never so short that a refusing server is hammered.
    pub(crate) fn gap(&self, failures: u32, jitter: f64) -> Duration {
        let full = (self.ttl / 60)
            .saturating_mul(1 << failures.saturating_sub(1).min(8))
            .min(self.ttl / 20)
            .min(LONGEST_GAP);
        (full / 4) + (full - full / 4).mul_f64(jitter)
    }

    /// Whether a grant sent at `sent` has too little left at `now` to be worth having.
    pub(crate) fn stale(&self, sent: Instant, now: Instant) -> bool {
        self.deadline(sent).saturating_duration_since(now) < self.ttl / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use proptest::prelude::*;

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn thirty_seconds_give_the_documented_figures() {
        let timing = Timing::new(millis(30_000)).unwrap();
        assert_eq!(timing, Timing::DEFAULT);
        let s = Clock::system().now();
        assert_eq!(timing.deadline(s), s + millis(29_698));
        assert_eq!(timing.cancel(s), s + millis(27_698));
        assert_eq!(timing.period, millis(10_000));
        assert_eq!(timing.attempt, millis(3_000));
        assert_eq!(timing.renewal(s, 0.0), s + millis(10_000));
        assert_eq!(timing.renewal(s, 1.0), s + millis(9_000));
    }

    #[test]
    fn the_limits_are_named_in_the_error() {
        for bad in [Duration::ZERO, millis(99), LONGEST_TTL + millis(1), Duration::MAX] {
            let error = Timing::new(bad).unwrap_err();
            assert!(error.to_string().contains("100 ms to 365 days"), "{error}");
        }
        assert!(Timing::new(SHORTEST_TTL).is_ok());
        assert!(Timing::new(LONGEST_TTL).is_ok());
    }

    #[test]
    fn a_grant_with_less_than_half_left_is_stale() {
        let timing = Timing::new(millis(1_000)).unwrap();
        let s = Clock::system().now();
        assert!(!timing.stale(s, s + millis(488)));
        assert!(timing.stale(s, s + millis(489)));
        assert!(timing.stale(s, s + millis(5_000)));
    }

    proptest! {
        #[test]
        fn every_time_to_live_leaves_room_to_renew_twice(ttl in 100u64..=365 * 24 * 3600 * 1000) {
            let timing = Timing::new(millis(ttl)).unwrap();
            let s = Clock::system().now();
            let (c, d) = (timing.cancel(s), timing.deadline(s));
            prop_assert!(s < c && c < d && d < s + timing.ttl);
            prop_assert!(timing.grace >= millis(10) && timing.grace <= millis(2_000));
            // A first attempt that runs into its time limit still leaves one more before C.
            let second = timing.renewal(s, 0.0) + timing.attempt + timing.gap(1, 1.0);
            prop_assert!(second + timing.attempt < c, "{timing:?}");
        }

        #[test]
        fn gaps_are_jittered_and_capped(ttl in 100u64..100_000, failures in 1u32..50, jitter in 0.0f64..=1.0) {
            let timing = Timing::new(millis(ttl)).unwrap();
            let gap = timing.gap(failures, jitter);
            prop_assert!(gap <= timing.ttl / 20);
            prop_assert!(gap >= timing.ttl / 240);
        }
    }
}
