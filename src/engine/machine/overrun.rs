//! When the process acts on work that goes on after the loss of its lease.

use super::timing::Timing;
use crate::clock::Instant;
use crate::error::Loss;
use std::time::Duration;

/// The longest time for which an action that is late already waits for the line that it writes first.
const LONGEST_LINE: Duration = Duration::from_millis(20);

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

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
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
}
