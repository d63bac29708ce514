//! Until when a session is surely alive, by what its servers have acknowledged.
//!
//! The leader alone expires sessions, a timeout after it last heard of them. A member tells it of the
//! sessions that it heard from with its next ping, half a tick later, and not with the write that it passes
//! on. So an acknowledged write says nothing yet about itself; but when the *next* one is acknowledged, sent
//! at least half a tick later over the same ordered channel, the leader has heard of the one before.
//!
//! 1. A write is proven when another one, sent [`SPACING`] after its answer or later, is acknowledged.
//! 2. The session lives until the send time of the last proven write + its timeout, at least.
//! 3. The session's own creation is proven at once: the leader itself did it.
//! 4. That a server goes on with the session is proven by the next write there, however soon: the server has asked
//!    the leader, and the write says that it was the leader.
//!
//! A tick is not told to clients. A timeout of three ticks or more makes half of one at most a sixth of it.
//!
//! Rule 1 needs a leader that pings in time. One that stands still from before a ping until after the second write,
//! acknowledges that before it pings, and is cut off from the member in between, has heard half a tick less.
//! The grace of a lease covers half of that; no case of it was ever seen.

use crate::clock::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// Of the timeout: writes that are a fifth of it apart have half a tick between them, and a margin.
const SPACING: u32 = 5;
/// How much of the timeout the one before the last write may take: the rest is for the lease.
const PERIODS: u32 = 4;

/// How long a lease may be believed after a write, if each follows the one before in time.
pub(super) fn lease_time(session: Duration) -> Duration {
    session - period(session)
}

/// From one write to the next.
pub(super) fn period(session: Duration) -> Duration {
    session / PERIODS
}

#[derive(Clone, Debug)]
pub(super) struct Proof {
    session: Duration,
    proven: Instant,
    last_sent: Instant,
    last_answered: Instant,
    /// Acknowledged, but not proven yet.
    waiting: VecDeque<Write>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    sent: Instant,
    /// From when on another one proves it.
    ripe: Instant,
}

impl Proof {
    /// Of a session of this timeout whose creation was asked for at `created`.
    pub(super) fn new(session: Duration, created: Instant) -> Self {
        let waiting = VecDeque::new();
        Self { session, proven: created, last_sent: created, last_answered: created, waiting }
    }

    /// A write was acknowledged.
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

    /// A server goes on with the session.
    pub(super) fn resumed(&mut self, sent: Instant, answered: Instant) {
        self.waiting.clear();
        self.waiting.push_back(Write { sent, ripe: answered });
    }

    /// How long the last write took, there and back.
    pub(super) fn round_trip(&self) -> Duration {
        self.last_answered.saturating_duration_since(self.last_sent)
    }

    /// From when on another write proves the last one.
    pub(super) fn due(&self) -> Instant {
        self.waiting.back().map_or(self.last_answered, |write| write.ripe)
    }

    /// When to send the next write: a period after the last one, at once if a proof is `wanted`, but never so soon
    /// that it would not prove the last one. A server may be so far away that this takes longer than a period.
    pub(super) fn next(&self, wanted: bool) -> Instant {
        let usual = self.last_sent + period(self.session);
        if wanted { self.due() } else { usual.max(self.due()) }
    }

    /// Whether a lease that is renewed at `now` is not due at once again: that is a third of the
    /// [`lease_time`] after, less a tenth.
    pub(super) fn is_new(&self, now: Instant) -> bool {
        now < self.confirmed(now) + self.session / SPACING
    }

    /// What to call the time of sending, so that with [`lease_time`] more the lease ends when the session
    /// may; `now` at the latest.
    pub(super) fn confirmed(&self, now: Instant) -> Instant {
        (self.proven + period(self.session)).min(now)
    }

    /// Whether a lease that is granted at `now` is worth having.
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
    fn the_lease_counts_from_the_write_before_the_last() {
        let mut proof = Proof::new(SESSION, at(0));
        proof.acknowledge(at(250), at(255));
        assert_eq!(proof.confirmed(at(260)), at(250), "the creation alone, and a period");
        proof.acknowledge(at(500), at(505));
        assert_eq!(proof.confirmed(at(600)), at(500));
        // Nothing follows: the lease ends when the session of the write at 250 may.
        assert_eq!(proof.confirmed(at(5000)) + lease_time(SESSION), at(250) + SESSION);
    }

    #[test]
    fn a_write_too_soon_after_another_proves_nothing() {
        let mut proof = Proof::new(SESSION, at(0));
        proof.acknowledge(at(250), at(255));
        proof.acknowledge(at(454), at(460));
        assert_eq!(proof.confirmed(at(9999)), at(250));
        proof.acknowledge(at(455), at(461));
        assert_eq!(proof.confirmed(at(9999)), at(500), "a fifth after the answer at 255");
        proof.acknowledge(at(700), at(701));
        assert_eq!(proof.confirmed(at(9999)), at(455 + 250));
    }

    #[test]
    fn after_a_reconnect_one_write_is_enough() {
        let mut proof = Proof::new(SESSION, at(0));
        proof.acknowledge(at(250), at(255));
        proof.resumed(at(700), at(720));
        assert_eq!(proof.confirmed(at(9999)), at(250), "nothing says that there is a quorum");
        assert_eq!(proof.due(), at(720));
        proof.acknowledge(at(721), at(725));
        assert_eq!(proof.confirmed(at(9999)), at(700 + 250));
        assert!(proof.is_fresh(at(725)) && proof.is_new(at(725)));
        assert_eq!(proof.due(), at(925));
    }

    #[test]
    fn each_write_that_is_due_proves_the_one_before() {
        let mut proof = Proof::new(SESSION, at(0));
        let mut last = at(0);
        for _ in 0..10 {
            let (sent, answered) = (proof.due(), proof.due() + Duration::from_millis(30));
            proof.acknowledge(sent, answered);
            assert_eq!(proof.confirmed(answered + SESSION), last + period(SESSION));
            assert!(proof.is_new(answered));
            last = sent;
        }
    }

    #[test]
    fn each_write_proves_the_one_before_however_far_the_server_is() {
        for (wanted, round_trip) in [(false, 1), (false, 49), (false, 70), (true, 70), (false, 240)]
        {
            let round_trip = Duration::from_millis(round_trip);
            let mut proof = Proof::new(SESSION, at(0));
            let mut last = at(0);
            for _ in 0..10 {
                let sent = proof.next(wanted);
                assert!(wanted || sent >= last + period(SESSION));
                proof.acknowledge(sent, sent + round_trip);
                assert_eq!(proof.confirmed(at(99_999)), last + period(SESSION), "{round_trip:?}");
                last = sent;
            }
        }
    }

    #[test]
    fn a_slow_answer_is_not_mistaken_for_a_pause() {
        let mut proof = Proof::new(SESSION, at(0));
        proof.acknowledge(at(100), at(390));
        proof.acknowledge(at(400), at(410));
        assert_eq!(proof.confirmed(at(9999)), at(250));
    }

    #[test]
    fn the_time_of_sending_is_never_in_the_future() {
        let proof = Proof::new(SESSION, at(0));
        assert_eq!(proof.confirmed(at(10)), at(10));
        assert!(proof.is_fresh(at(250 + 333)));
        assert!(!proof.is_fresh(at(250 + 334)));
        assert!(proof.is_new(at(250 + 199)));
        assert!(!proof.is_new(at(250 + 200)));
    }
}
