//! The hand-offs that follow from one grant of the store: to whom they may go, how long they go on, and for how long a hold
//! rests between two of them.
//!
//! A hold *rests* when its last lease has ended and no call of this process waits: the store keeps it for a moment. The next
//! call of this process takes it over as a hold that is handed off, without a request. No holder believes in it, and it is not
//! renewed: it is a hold that was offered, whose waiter is still to come.
//!
//! # Invariants
//!
//! 1. **Only what may be handed off rests**, and what rests is taken over only as long as it may be handed off: a process that
//!    did not run looks at the clock first.
//! 2. **It ends within the chain**: by the time that is set, and before a hand-off would be refused for its age.
//! 3. **Nothing rests in the way of others.** A hold does not rest while others are known to wait elsewhere, and not any more
//!    in a chain during which another manager has asked for the name.

use super::timing::Timing;
use crate::clock::Instant;
use std::time::Duration;

/// The time for which a chain of hand-offs may go on while waiters elsewhere listen, even after the
/// waiters that were queued at its start have been served.
const SHORTEST_CHAIN: Duration = Duration::from_millis(20);

/// The waiters of this process to which a hold may be handed off, as far as those of other processes are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandoffScope {
    /// Those that take no part in the line: the grant of a lock that is not fair does not report who waits
    /// elsewhere.
    OutsideTheLine,
    /// Any, because none waited elsewhere.
    All,
    /// Those that arrived before this time, at which the oldest waiter elsewhere arrived.
    Before(Instant),
}

impl HandoffScope {
    /// Returns those of a grant that was requested at `sent`.
    pub(in crate::engine) fn of(fair: bool, sent: Instant, oldest: Option<Duration>) -> Self {
        match (fair, oldest) {
            (false, _) => Self::OutsideTheLine,
            (true, None) => Self::All,
            (true, Some(waited)) => {
                let since_start = sent.saturating_duration_since(Instant::ZERO);
                Self::Before(Instant::ZERO + since_start.saturating_sub(waited))
            }
        }
    }

    /// Returns whether a waiter is one of them.
    pub(super) fn admits(self, fair: bool, arrived: Instant) -> bool {
        match self {
            Self::OutsideTheLine => !fair,
            Self::All => true,
            Self::Before(time) => arrived < time,
        }
    }
}

/// Who has a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// A call of this process has it.
    Accepted,
    /// It is on its way to a waiter, or back.
    Offered,
    /// No call; it rests until the time of its next renewal, which is not sent.
    Resting,
}

/// The hand-offs since a grant of the store. Each hold of the chain has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handoffs {
    /// The time at which the request was sent that the store granted.
    pub(super) began: Instant,
    /// The time by which the store's clock had surely reached the first fencing token of the grant;
    /// `Instant::MAX` if unknown.
    pub(super) reached: Instant,
    /// To whom the hold may be handed off.
    pub(super) scope: HandoffScope,
    /// Whether another manager has asked for the name since.
    pub(super) asked: bool,
    count: u32,
}

impl Handoffs {
    /// Returns those of a grant that was requested at `sent`.
    pub(super) fn none(sent: Instant) -> Self {
        Self {
            began: sent,
            reached: sent,
            scope: HandoffScope::OutsideTheLine,
            asked: false,
            count: 0,
        }
    }

    /// Returns those of the next hold.
    pub(super) fn next(self) -> Self {
        Self { count: self.count + 1, ..self }
    }

    /// Returns whether the store was asked so lately that waiters elsewhere do not wait long.
    pub(super) fn is_recent(&self, timing: &Timing, now: Instant) -> bool {
        now < self.ends(timing)
    }

    /// Returns whether the chain may go on, by its time and by a bound on its hand-offs.
    pub(super) fn may_go_on(&self, timing: &Timing, now: Instant, bound: u32) -> bool {
        self.count < bound && self.is_recent(timing, now)
    }

    /// Returns whether its holds may rest: no waiter elsewhere is known. The order of a line is that of all processes.
    fn may_rest(&self) -> bool {
        self.scope == HandoffScope::OutsideTheLine && !self.asked
    }

    /// Returns until when a hold rests whose last lease ends at `now` and that is due for renewal at `due`. `linger` is the
    /// time that is set. `None` if it may not rest, or no time is left.
    pub(super) fn rests_until(
        &self,
        timing: &Timing,
        now: Instant,
        due: Instant,
        linger: Duration,
    ) -> Option<Instant> {
        let until = (now + linger).min(self.ends(timing)).min(due);
        (self.may_rest() && until > now).then_some(until)
    }

    /// Returns the time at which the chain ends.
    fn ends(&self, timing: &Timing) -> Instant {
        self.began + timing.longest_chain
    }

    /// Returns the chain of a hold that keeps the name closed for `delay` beyond T.
    pub(super) fn chain(&self, now: Instant, delay: Duration) -> Chain {
        let is_young = now < self.began + SHORTEST_CHAIN;
        Chain { began: self.began, is_young, scope: self.scope, delay }
    }

    /// Returns whether the next holder in the chain has its own fencing token, after a grant that
    /// reserved `block`. A token that was not reserved must lie behind the store's clock, which may
    /// be 1 % slower, by more than a microsecond: the next grant may begin at an even number.
    pub(super) fn has_fence(&self, now: Instant, block: u32) -> bool {
        let next = self.count.saturating_add(1);
        let elapsed = now.saturating_duration_since(self.reached).mul_f64(0.99).as_micros();
        next < block || elapsed > u128::from(next) + 1
    }
}

/// The chain of hand-offs that a hold belongs to, for the queue.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Chain {
    /// The time of the request that the store granted.
    pub(in crate::engine) began: Instant,
    /// True if it is so short that it costs waiters elsewhere little.
    pub(in crate::engine) is_young: bool,
    /// To whom the hold may be handed off.
    pub(in crate::engine) scope: HandoffScope,
    /// The time for which the store keeps the name closed beyond T.
    pub(in crate::engine) delay: Duration,
}
