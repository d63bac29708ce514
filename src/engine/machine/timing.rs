//! The arithmetic of time: every duration is derived from T, the time to live.
//!
//! `s` is the clock read just before a request was sent, so the store ran it at `s` or later and
//! keeps the key at least until `s + T`, by its own clock. With an allowance for the rate error of
//! that clock, the store surely keeps it until the deadline `D`. The holder may rely on the hold until
//! `C`, a grace earlier, when its token fires:
//!
//! ```text
//! s ────────── renew ─────────────── C ── grace ── D ─ margin ─ s + T
//! ```
//!
//! The grace is the time for work to stop. [`OverrunTimes`] says when the process acts on work that does not.

use crate::clock::Instant;
use crate::error::{Error, Loss, Result};
use crate::store::{DEFAULT_TTL, surely_kept};
use std::time::Duration;

/// The bounds of the default grace; the first one is that of every grace.
const SHORTEST_GRACE: Duration = Duration::from_millis(10);
const LONGEST_GRACE: Duration = Duration::from_secs(2);
/// What is left between the end of the second attempt and `C`, at least.
const ROOM: Duration = Duration::from_millis(1);
/// Shorter: more renewals for a T of hours. Longer: a key that was deleted is noticed later.
const LONGEST_PERIOD: Duration = Duration::from_secs(60);
/// Linux resends a lost segment after at least 200 ms; one lost segment must not fail an attempt.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(250);
/// With a T of hours, a fraction of T would be too long to wait for a reply.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(10);
/// Shorter: more requests to a server that refuses them. Longer: with a T of hours, a later attempt after the end of an outage.
const LONGEST_GAP: Duration = Duration::from_secs(3);
/// The longest time for which an action on an overrun that is late already waits for the line that it writes first.
const LONGEST_LINE: Duration = Duration::from_millis(20);
const SHORTEST_TTL: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The durations derived from T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// T, the time to live that the store grants.
    pub(crate) ttl: Duration,
    /// The time from `C` to `D`, in which the work of the holder stops.
    pub(crate) grace: Duration,
    /// The time from one confirmed renewal to the next, before jitter.
    pub(crate) period: Duration,
    /// The time limit of one attempt.
    pub(crate) attempt: Duration,
    /// The time for which a hold is handed off in memory before other processes get their turn.
    pub(crate) longest_chain: Duration,
    /// The time from `s` to `D`.
    to_deadline: Duration,
    /// The time from `s` to `C`.
    to_cancel: Duration,
}

impl Timing {
    /// Returns the time by which the next step follows a request that is sent at `now`.
    pub(in crate::engine) fn step_due(&self, now: Instant) -> Instant {
        now + self.attempt * 3
    }

    /// The timing of T = 30 s. A test compares it with [`Timing::new`].
    pub(crate) const DEFAULT: Self = Self {
        ttl: DEFAULT_TTL,
        grace: Duration::from_secs(2),
        period: Duration::from_secs(10),
        attempt: Duration::from_secs(3),
        longest_chain: Duration::from_secs(3),
        to_deadline: Duration::from_millis(29_698),
        to_cancel: Duration::from_millis(27_698),
    };

    /// Derives all durations from T.
    pub(crate) fn new(ttl: Duration) -> Result<Self> {
        if !(SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
            return Err(Error::invalid(format!(
                "a ttl of {ttl:?} is out of range; choose 100 ms to 365 days"
            )));
        }
        // The store counts whole milliseconds; T here must not be longer than there.
        let ttl = Duration::from_millis(ttl.as_millis() as u64);
        let grace = (ttl / 10).clamp(SHORTEST_GRACE, LONGEST_GRACE);
        let to_deadline = surely_kept(ttl);
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

    /// Sets the grace, and renews earlier if two attempts would not fit between the renewal and `C` any more.
    pub(crate) fn with_grace(self, grace: Duration) -> Result<Self> {
        let longest = self.ttl / 3;
        if !(SHORTEST_GRACE..=longest).contains(&grace) {
            return Err(Error::invalid(format!(
                "a grace of {grace:?} is out of range; choose 10 ms to a third of the ttl, {longest:?}"
            )));
        }
        let to_cancel = self.to_deadline - grace;
        let room = to_cancel.saturating_sub(self.attempt * 2 + self.ttl / 20 + ROOM);
        Ok(Self { grace, to_cancel, period: self.period.min(room), ..self })
    }

    /// Returns the time from one release of a sweep to the next: T/10; after a failure 3 s at most.
    pub(crate) fn sweep_gap(&self, failed: bool) -> Duration {
        if failed { (self.ttl / 10).min(LONGEST_GAP) } else { self.ttl / 10 }
    }

    /// Returns the longest time between two pulses of a waiter. A shorter one wakes each waiter more often; a longer
    /// one finds later that the call with the turn is not polled.
    pub(crate) fn pulse_period(&self) -> Duration {
        self.ttl / 16
    }

    /// Returns `D`: the time until which the store surely keeps what a grant or renewal wrote that was sent at `sent`.
    pub(crate) fn deadline(&self, sent: Instant) -> Instant {
        sent + self.to_deadline
    }

    /// Returns `C`: the time at which the token fires, if nothing was confirmed since.
    pub(crate) fn cancel(&self, sent: Instant) -> Instant {
        sent + self.to_cancel
    }

    /// Returns the time of the renewal that follows a confirmation of `sent`: up to a tenth early,
    /// so that processes started together drift apart.
    pub(crate) fn renewal(&self, sent: Instant, jitter: f64) -> Instant {
        // Cheaper than multiplying a `Duration`; a period is at most a minute.
        let early = self.period.as_micros() as u64 as f64 / 10.0 * jitter;
        sent + (self.period - Duration::from_micros(early as u64))
    }

    /// Returns the wait before attempt `failures + 1`: T/60, doubling to T/20, with jitter, but at
    /// least a quarter of that, to spare a server that refuses requests.
    pub(crate) fn gap(&self, failures: u32, jitter: f64) -> Duration {
        let full = (self.ttl / 60)
            .saturating_mul(1 << failures.saturating_sub(1).min(8))
            .min(self.ttl / 20)
            .min(LONGEST_GAP);
        (full / 4) + (full - full / 4).mul_f64(jitter)
    }

    /// Returns whether a grant sent at `sent` has too little time left at `now` to be used.
    pub(crate) fn stale(&self, sent: Instant, now: Instant) -> bool {
        self.deadline(sent) < now + self.ttl / 2
    }
}

/// The times of the action on an overrun: a lease that is alive after its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct OverrunTimes {
    /// The time at which the thread of the action is asked to act.
    pub(in crate::engine) act: Instant,
    /// The time at which the watchdog ends the process itself, if the thread has not; see [`force_after`](Self::force_after).
    force: Instant,
    /// For how long the action may take until then, at least: it may itself come late.
    line: Duration,
}

impl OverrunTimes {
    /// Returns those of a loss that was found at `now`, of a hold that was last confirmed by a request sent at `confirmed`.
    /// Returns `None` if nothing is to be done: the process has ended the hold by `close`.
    ///
    /// - Where the store keeps the name for a while, at 0.8 of the grace after the token, and by force at 0.95 of it. The token
    ///   is due at the cancellation deadline, or fires earlier.
    /// - Where it has nothing left to keep, a grace after the token. The work gets as much time to stop.
    /// - At once, if that time has passed: the process did not run.
    pub(in crate::engine) fn of(
        timing: &Timing,
        loss: Loss,
        now: Instant,
        confirmed: Instant,
    ) -> Option<Self> {
        let grace = timing.grace;
        let token = now.min(timing.cancel(confirmed));
        let (act, force) = match loss {
            Loss::Closed => return None,
            Loss::Expired | Loss::MaxHold | Loss::Stalled => {
                (token + grace.mul_f64(0.8), token + grace.mul_f64(0.95))
            }
            Loss::Gone | Loss::Taken | Loss::Revoked | Loss::Stolen => {
                (now + grace, now + grace.mul_f64(1.15))
            }
        };
        let line = grace.mul_f64(0.15).min(LONGEST_LINE);
        Some(Self { act: act.max(now), force, line })
    }

    /// Returns when the watchdog ends the process itself, after it has asked the thread at `now`.
    pub(in crate::engine) fn force_after(&self, now: Instant) -> Instant {
        self.force.max(now + self.line)
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

    fn at(n: u64) -> Instant {
        Instant::ZERO + millis(n)
    }

    #[test]
    fn timing_of_thirty_seconds_has_the_documented_figures() {
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
    fn grace_limits_are_named_in_the_error() {
        let timing = Timing::new(millis(3_000)).unwrap();
        for bad in [Duration::ZERO, millis(9), millis(1_001), Duration::MAX] {
            let error = timing.with_grace(bad).unwrap_err();
            assert!(error.to_string().contains("10 ms to a third of the ttl, 1s"), "{error}");
        }
        assert_eq!(timing.with_grace(millis(300)).unwrap().period, timing.period);
    }

    #[test]
    fn ttl_limits_are_named_in_the_error() {
        for bad in [Duration::ZERO, millis(99), LONGEST_TTL + millis(1), Duration::MAX] {
            let error = Timing::new(bad).unwrap_err();
            assert!(error.to_string().contains("100 ms to 365 days"), "{error}");
        }
        assert!(Timing::new(SHORTEST_TTL).is_ok());
        assert!(Timing::new(LONGEST_TTL).is_ok());
    }

    #[test]
    fn grant_with_less_than_half_left_is_stale() {
        let timing = Timing::new(millis(1_000)).unwrap();
        let s = Clock::system().now();
        assert!(!timing.stale(s, s + millis(488)));
        assert!(timing.stale(s, s + millis(489)));
        assert!(timing.stale(s, s + millis(5_000)));
    }

    /// T = 10 s: the grace is 1 s. The hold was confirmed at 0, so C is 8 898 ms and D is 9 898 ms.
    fn times(loss: Loss, now: u64) -> Option<(Instant, Instant)> {
        let timing = Timing::new(Duration::from_secs(10)).unwrap();
        OverrunTimes::of(&timing, loss, at(now), at(0))
            .map(|times| (times.act, times.force_after(times.act)))
    }

    #[test]
    fn action_comes_before_the_store_can_grant_the_name() {
        assert_eq!(times(Loss::Expired, 8_898), Some((at(9_698), at(9_848))));
        // The token fired 300 ms late.
        assert_eq!(times(Loss::Expired, 9_198), Some((at(9_698), at(9_848))));
        // The release is owed at the end of the grace.
        for loss in [Loss::MaxHold, Loss::Stalled] {
            assert_eq!(times(loss, 2_000), Some((at(2_800), at(2_950))));
        }
    }

    #[test]
    fn work_gets_a_grace_where_the_store_has_nothing_left() {
        for loss in [Loss::Gone, Loss::Taken, Loss::Revoked, Loss::Stolen] {
            assert_eq!(times(loss, 2_000), Some((at(3_000), at(3_150))));
        }
    }

    #[test]
    fn action_comes_at_once_if_the_process_did_not_run() {
        for now in [9_700, 9_898, 60_000] {
            assert_eq!(times(Loss::Expired, now), Some((at(now), at(now + 20).max(at(9_848)))));
        }
    }

    /// The process was stopped between the loss and the action.
    #[test]
    fn action_that_comes_late_has_the_time_for_its_line() {
        let timing = Timing::new(Duration::from_secs(10)).unwrap();
        let times = OverrunTimes::of(&timing, Loss::MaxHold, at(2_000), at(0)).unwrap();
        assert_eq!(times.force_after(at(2_800)), at(2_950));
        assert_eq!(times.force_after(at(2_940)), at(2_960));
        assert_eq!(times.force_after(at(5_000)), at(5_020));
    }

    #[test]
    fn close_is_no_overrun() {
        assert_eq!(times(Loss::Closed, 2_000), None);
    }

    proptest! {
        #[test]
        fn ttl_leaves_room_to_renew_twice(ttl in 100u64..=365 * 24 * 3600 * 1000) {
            let timing = Timing::new(millis(ttl)).unwrap();
            let s = Clock::system().now();
            let (c, d) = (timing.cancel(s), timing.deadline(s));
            prop_assert!(s < c && c < d && d < s + timing.ttl);
            prop_assert!(timing.grace >= millis(10) && timing.grace <= millis(2_000));
            // A first attempt that times out still leaves time for one more before C.
            let second = timing.renewal(s, 0.0) + timing.attempt + timing.gap(1, 1.0);
            prop_assert!(second + timing.attempt < c, "{timing:?}");
        }

        #[test]
        fn grace_leaves_room_to_renew_twice(ttl in 100u64..=365 * 24 * 3600 * 1000, part in 0.0f64..=1.0) {
            let plain = Timing::new(millis(ttl)).unwrap();
            let longest = plain.ttl / 3;
            let grace = millis(10) + (longest - millis(10)).mul_f64(part);
            let timing = plain.with_grace(grace).unwrap();
            let s = Clock::system().now();
            let (c, d) = (timing.cancel(s), timing.deadline(s));
            prop_assert_eq!((d, c + grace), (plain.deadline(s), d));
            let second = timing.renewal(s, 0.0) + timing.attempt + timing.gap(1, 1.0);
            prop_assert!(second + timing.attempt < c, "{timing:?}");
            prop_assert!(timing.period <= plain.period && timing.period >= plain.period.min(plain.ttl / 10), "{timing:?}");
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
