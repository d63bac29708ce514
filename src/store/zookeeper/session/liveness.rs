//! Computes until when a session is surely alive, from the writes that its servers have acknowledged.
//!
//! Only the leader expires sessions, one timeout after it last heard of them. A member reports the sessions that it heard
//! from with its next ping, half a tick later, and not with the write that it forwards. So an acknowledged write proves
//! nothing yet about itself. But when the *next* write is acknowledged, sent at least half a tick later over the same
//! ordered channel, the leader has heard of the one before.
//!
//! 1. A write is proven when another one, sent [`SPACING`] after its answer or later, is acknowledged.
//! 2. The session lives at least until the send time of the last proven write plus its timeout.
//! 3. The session's own creation is proven at once: the leader itself did it.
//! 4. A server's resumption of the session is proven by the next write there, however soon: the server has asked the
//!    leader, and the write proves that it was the leader.
//!
//! Servers do not report their tick to clients. With a timeout of three ticks or more, half a tick is at most a sixth of
//! the timeout.
//!
//! Rule 1 needs a leader that pings in time. Suppose that a leader stalls from before a ping until after the second write,
//! acknowledges that write before it pings, and is cut off from the member in between: then it has heard half a tick less.
//! The grace of a lease covers half of that. No such case was ever observed.

use crate::clock::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// The part of the timeout between two writes: a fifth is half a tick and a margin.
const SPACING: u32 = 5;
/// The part of the timeout between two usual writes; the lease has the rest.
const PERIODS: u32 = 4;

/// Returns for how long a lease is valid after a write, if each write follows the one before in time.
pub(super) fn lease_time(session: Duration) -> Duration {
    session - period(session)
}

/// Returns the time from one write to the next.
pub(super) fn period(session: Duration) -> Duration {
    session / PERIODS
}

/// The writes of a session, and what they prove.
#[derive(Clone, Debug)]
pub(super) struct SessionLiveness {
    session: Duration,
    proven: Instant,
    last_sent: Instant,
    last_answered: Instant,
    /// The writes that are acknowledged, but not proven yet.
    waiting: VecDeque<Write>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    sent: Instant,
    /// From when on another write proves it.
    ripe: Instant,
}

impl SessionLiveness {
    /// Creates the record of a session with this timeout, whose creation was requested at `created`.
    pub(in crate::store::zookeeper) fn new(session: Duration, created: Instant) -> Self {
        let waiting = VecDeque::new();
        Self { session, proven: created, last_sent: created, last_answered: created, waiting }
    }

    /// Records that a write was acknowledged.
    pub(super) fn acknowledge(&mut self, sent: Instant, answered: Instant) {
        while let Some(write) = self.waiting.front()
            && write.ripe <= sent
        {
            self.proven = self.proven.max(write.sent);
            self.waiting.pop_front();
        }
        self.waiting.push_back(Write { sent, ripe: answered + self.session / SPACING });
        self.last_sent = self.last_sent.max(sent);
        self.last_answered = self.last_answered.max(answered);
    }

    /// Records that a server has resumed the session.
    pub(super) fn resumed(&mut self, sent: Instant, answered: Instant) {
        self.waiting.clear();
        self.waiting.push_back(Write { sent, ripe: answered });
    }

    /// Returns the round-trip time of the last write.
    pub(in crate::store::zookeeper) fn round_trip(&self) -> Duration {
        self.last_answered.saturating_duration_since(self.last_sent)
    }

    /// Returns from when on another write proves the last one.
    pub(in crate::store::zookeeper) fn due(&self) -> Instant {
        self.waiting.back().map_or(self.last_answered, |write| write.ripe)
    }

    /// Returns when to send the next write: a period after the last one, or at once if a proof is `wanted`, but never so
    /// soon that it would not prove the last one. A server may be so far away that this takes longer than a period.
    pub(in crate::store::zookeeper) fn next(&self, wanted: bool) -> Instant {
        let usual = self.last_sent + period(self.session);
        if wanted { self.due() } else { usual.max(self.due()) }
    }

    /// Returns whether a lease that is renewed at `now` is not due again at once: it is due a third of the
    /// [`lease_time`] later, less a tenth.
    pub(super) fn is_new(&self, now: Instant) -> bool {
        now < self.confirmed(now) + self.session / SPACING
    }

    /// Returns the instant to report as the time of sending, so that a lease ends [`lease_time`] later, when the session
    /// may end; at the latest `now`.
    pub(in crate::store::zookeeper) fn confirmed(&self, now: Instant) -> Instant {
        (self.proven + period(self.session)).min(now)
    }

    /// Returns whether enough of a lease would be left if it were granted at `now`.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        now <= self.confirmed(now) + self.session / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Duration = Duration::from_millis(1000);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn lease_counts_from_the_write_before_the_last() {
        let mut liveness = SessionLiveness::new(SESSION, at(0));
        liveness.acknowledge(at(250), at(255));
        assert_eq!(liveness.confirmed(at(260)), at(250), "the creation alone, and a period");
        liveness.acknowledge(at(500), at(505));
        assert_eq!(liveness.confirmed(at(600)), at(500));
        // Nothing follows: the lease ends when the session of the write at 250 may.
        assert_eq!(liveness.confirmed(at(5000)) + lease_time(SESSION), at(250) + SESSION);
    }

    #[test]
    fn write_too_soon_after_another_proves_nothing() {
        let mut liveness = SessionLiveness::new(SESSION, at(0));
        liveness.acknowledge(at(250), at(255));
        liveness.acknowledge(at(454), at(460));
        assert_eq!(liveness.confirmed(at(9999)), at(250));
        liveness.acknowledge(at(455), at(461));
        assert_eq!(liveness.confirmed(at(9999)), at(500), "a fifth after the answer at 255");
        liveness.acknowledge(at(700), at(701));
        assert_eq!(liveness.confirmed(at(9999)), at(455 + 250));
    }

    #[test]
    fn after_a_reconnect_one_write_is_enough() {
        let mut liveness = SessionLiveness::new(SESSION, at(0));
        liveness.acknowledge(at(250), at(255));
        liveness.resumed(at(700), at(720));
        assert_eq!(liveness.confirmed(at(9999)), at(250), "nothing proves that there is a quorum");
        assert_eq!(liveness.due(), at(720));
        liveness.acknowledge(at(721), at(725));
        assert_eq!(liveness.confirmed(at(9999)), at(700 + 250));
        assert!(liveness.is_fresh(at(725)) && liveness.is_new(at(725)));
        assert_eq!(liveness.due(), at(925));
    }

    #[test]
    fn each_write_that_is_due_proves_the_one_before() {
        let mut liveness = SessionLiveness::new(SESSION, at(0));
        let mut last = at(0);
        for _ in 0..10 {
            let (sent, answered) = (liveness.due(), liveness.due() + Duration::from_millis(30));
            liveness.acknowledge(sent, answered);
            assert_eq!(liveness.confirmed(answered + SESSION), last + period(SESSION));
            assert!(liveness.is_new(answered));
            last = sent;
        }
    }

    #[test]
    fn each_write_proves_the_one_before_however_far_the_server_is() {
        for (wanted, round_trip) in [(false, 1), (false, 49), (false, 70), (true, 70), (false, 240)]
        {
            let round_trip = Duration::from_millis(round_trip);
            let mut liveness = SessionLiveness::new(SESSION, at(0));
            let mut last = at(0);
            for _ in 0..10 {
                let sent = liveness.next(wanted);
                assert!(wanted || sent >= last + period(SESSION));
                liveness.acknowledge(sent, sent + round_trip);
                assert_eq!(
                    liveness.confirmed(at(99_999)),
                    last + period(SESSION),
                    "{round_trip:?}"
                );
                last = sent;
            }
        }
    }

    #[test]
    fn slow_answer_is_not_mistaken_for_a_pause() {
        let mut liveness = SessionLiveness::new(SESSION, at(0));
        liveness.acknowledge(at(100), at(390));
        liveness.acknowledge(at(400), at(410));
        assert_eq!(liveness.confirmed(at(9999)), at(250));
    }

    #[test]
    fn time_of_sending_is_never_in_the_future() {
        let liveness = SessionLiveness::new(SESSION, at(0));
        assert_eq!(liveness.confirmed(at(10)), at(10));
        assert!(liveness.is_fresh(at(250 + 333)));
        assert!(!liveness.is_fresh(at(250 + 334)));
        assert!(liveness.is_new(at(250 + 199)));
        assert!(!liveness.is_new(at(250 + 200)));
    }
}
