//! The hold count: re-entry, ended leases, and the count in the store.

use super::heirs::Heirs;
use super::hold::{Cleanup, InFlight, NextRenewal, Phase, Recorded, State, Terms};
use super::timing::Timing;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Loss, Result};
use crate::store::Absence;
use std::time::Duration;

/// The time for which a chain of hand-offs may go on while waiters elsewhere listen, even after the
/// waiters that were queued at its start have been served.
const SHORTEST_CHAIN: Duration = Duration::from_millis(20);

/// The answer to a re-entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reentry {
    /// Ask the store for this count.
    Count(u32),
    /// Another operation is in flight; ask again after a change.
    Busy,
    /// The hold is lost while older leases are alive.
    Lost(Loss),
    /// Nothing is left of the hold; acquire a new one.
    Over,
}

/// The verdict on a nested acquire.
#[derive(Clone, Debug)]
pub(crate) enum NestedVerdict {
    Granted { sent: Instant, count: u32 },
    NotYours(Absence),
    Failed(Error),
}

/// An operation on the count in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Record(u32),
    Release,
}

/// The next operation for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send this; its verdict must follow.
    Op(Op),
    /// Another operation is in flight; ask again after a change.
    Busy,
    /// The store is up to date.
    Nothing,
}

impl State {
    /// Begins a re-entry. After [`Reentry::Count`] the verdict must follow.
    pub(in crate::engine) fn reenter(&mut self, timing: &Timing, now: Instant) -> Reentry {
        self.expire(timing, now);
        match self.phase {
            Phase::Lost(loss) if self.live > 0 => Reentry::Lost(loss),
            Phase::Lost(_) | Phase::Releasing | Phase::Released => Reentry::Over,
            Phase::Held | Phase::AtRisk if self.lingers() => Reentry::Over,
            Phase::Held | Phase::AtRisk if self.is_busy() => Reentry::Busy,
            Phase::Held | Phase::AtRisk => {
                self.in_flight = InFlight::Nested;
                Reentry::Count(self.live + 1)
            }
        }
    }

    /// Makes it the state of a read hold, which handles share: the store counts one lease.
    pub(in crate::engine) fn share(&mut self) {
        self.recorded = Recorded::One;
    }

    /// Adds a lease of another handle, if the hold is as good as a new grant: it is sure, nothing changes its mode, enough
    /// time is left, and the store was asked lately, so that waiters elsewhere do not wait long. Returns whether it did.
    pub(in crate::engine) fn join(&mut self, timing: &Timing, now: Instant) -> bool {
        let joins = self.phase == Phase::Held
            && self.recorded == Recorded::One
            && !self.is_busy()
            && now < self.chain_began + timing.longest_chain
            && !timing.stale(self.confirmed, now)
            && self.max_until.is_none_or(|max| now < max);
        if joins {
            self.live += 1;
            self.report(now);
        }
        joins
    }

    /// Adds a lease of a handle that shares the hold already. Returns why not if it cannot.
    pub(in crate::engine) fn join_again(&mut self, now: Instant) -> Option<Reentry> {
        match self.phase {
            Phase::Lost(loss) => Some(Reentry::Lost(loss)),
            Phase::Held | Phase::AtRisk if self.is_busy() => Some(Reentry::Busy),
            Phase::Held | Phase::AtRisk if self.recorded == Recorded::One => {
                self.live += 1;
                self.report(now);
                None
            }
            // Otherwise its mode is unknown, and it is about to be released.
            Phase::Held | Phase::AtRisk | Phase::Releasing | Phase::Released => Some(Reentry::Over),
        }
    }

    /// Applies the verdict on a nested acquire. With `keep`, a grant adds one lease.
    pub(in crate::engine) fn reentered(
        &mut self,
        timing: &Timing,
        now: Instant,
        jitter: f64,
        verdict: NestedVerdict,
        keep: bool,
    ) -> Result<()> {
        self.in_flight = InFlight::None;
        self.expire(timing, now);
        let result = match (self.phase, verdict) {
            (Phase::Lost(loss), verdict) => {
                if let NestedVerdict::Granted { sent, .. } = verdict {
                    self.owe_late(timing, sent, now);
                }
                Err(Error::lost(loss))
            }
            (_, NestedVerdict::Failed(error)) if error.kind() == ErrorKind::WrongType => {
                self.lose(Loss::Taken, None);
                Err(error)
            }
            (_, NestedVerdict::Granted { sent, count }) => {
                self.confirm_jittered(timing, sent, jitter);
                self.recorded = Recorded::Known(count);
                self.live += u32::from(keep);
                self.report(now);
                Ok(())
            }
            (_, NestedVerdict::NotYours(absence)) => {
                self.lose(absence.into(), None);
                Err(Error::lost(absence.into()))
            }
            (_, NestedVerdict::Failed(error)) => {
                if error.fate() != Fate::NotExecuted {
                    self.recorded = Recorded::Unknown;
                }
                Err(error)
            }
        };
        self.close_if_left();
        result
    }

    /// Ends one lease. Returns the phase before that.
    pub(in crate::engine) fn leave(&mut self, timing: &Timing, now: Instant) -> Phase {
        self.expire(timing, now);
        let phase = self.phase;
        self.live = self.live.saturating_sub(1);
        self.close_if_left();
        phase
    }

    /// Returns whether the hold may be handed off when its last lease ends now: it is sure, the
    /// count in the store is right, nothing is in flight, enough time is left, and other processes
    /// have not waited for too long.
    pub(in crate::engine) fn may_hand_off(
        &self,
        timing: &Timing,
        now: Instant,
        bound: u32,
    ) -> bool {
        self.phase == Phase::Held
            && self.live == 1
            && self.recorded == Recorded::Known(1)
            && !self.is_busy()
            && matches!(self.renewal, NextRenewal::Due(_))
            && self.handoffs < bound
            && now < self.chain_began + timing.longest_chain
            && !timing.stale(self.confirmed, now)
            && self.max_until.is_none_or(|max| now < max)
            && self.may_end_early(now)
    }

    /// Sets to whom the hold may be handed off.
    pub(in crate::engine) fn set_heirs(&mut self, heirs: Heirs) {
        self.heirs = heirs;
    }

    /// Returns to whom the hold may be handed off.
    pub(in crate::engine) fn heirs(&self) -> Heirs {
        self.heirs
    }

    /// Returns the time of the request that the store granted; hand-offs keep it.
    pub(in crate::engine) fn chain_began(&self) -> Instant {
        self.chain_began
    }

    /// Returns whether the chain of hand-offs is so short that it costs waiters elsewhere little.
    pub(in crate::engine) fn is_young(&self, now: Instant) -> bool {
        now < self.chain_began + SHORTEST_CHAIN
    }

    /// Returns whether the next holder in a chain has its own fencing token, after a grant that
    /// reserved `block`. A token that was not reserved must lie behind the store's clock, which may
    /// be 1 % slower, by more than a microsecond: the next grant may begin at an even number.
    pub(in crate::engine) fn has_fence(&self, now: Instant, block: u32) -> bool {
        let next = self.handoffs.saturating_add(1);
        let elapsed = now.saturating_duration_since(self.reached).mul_f64(0.99).as_micros();
        next < block || elapsed > u128::from(next) + 1
    }

    /// Ends the hold for its holder. Returns the state of the next hold, which must be accepted
    /// before its renewal is due, at `earliest` or later.
    pub(in crate::engine) fn hand_off(&mut self, earliest: Instant) -> Self {
        let unsure_until = self.unsure_until.take();
        let renewal = match self.renewal {
            NextRenewal::Due(at) => NextRenewal::Due(at.max(earliest)),
            other => other,
        };
        // The store has it until a renewal of the next holder.
        let delay = self.delay();
        let terms = || Box::new(Terms { delay, ..Terms::default() });
        let next = Self {
            renewal,
            terms: (!delay.is_zero()).then(terms),
            offered: true,
            chain_began: self.chain_began,
            reached: self.reached,
            heirs: self.heirs,
            handoffs: self.handoffs + 1,
            fence_kept: self.fence_kept,
            ..Self::granted(self.confirmed, self.confirmed, None, unsure_until)
        };
        self.live = 0;
        self.phase = Phase::Released;
        self.renewal = NextRenewal::Stopped;
        next
    }

    /// Ends the hold for its only lease, after the store has changed its mode by a request of `sent`. Returns the state of
    /// the hold in the new mode, or `None` if it is lost, or the answer came too late.
    pub(in crate::engine) fn change_mode(
        &mut self,
        timing: &Timing,
        now: Instant,
        (sent, renew): (Instant, Instant),
    ) -> Option<Self> {
        self.expire(timing, now);
        if !self.believed() || timing.stale(sent, now) {
            return None;
        }
        // The caller gets the lease that was in the change.
        self.end_ahead();
        let next = Self {
            fence_kept: sent,
            terms: self.terms.take(),
            ..Self::granted(sent, renew, self.max_until, self.unsure_until.take())
        };
        self.live = 0;
        self.in_flight = InFlight::None;
        self.phase = Phase::Released;
        self.renewal = NextRenewal::Stopped;
        Some(next)
    }

    /// Accepts the hold, if its waiter can rely on it for as long as on a new grant. Returns
    /// whether it did. `max_hold` counts from here.
    pub(in crate::engine) fn accept(
        &mut self,
        timing: &Timing,
        now: Instant,
        max_hold: Option<Duration>,
    ) -> bool {
        self.expire(timing, now);
        let accepted = self.phase == Phase::Held && !timing.stale(self.confirmed, now);
        if accepted {
            self.offered = false;
            self.max_until = max_hold.map(|max| now + max);
        }
        accepted
    }

    /// Closes a hold without leases (invariant 5). A nested acquire in flight decides at its
    /// verdict.
    fn close_if_left(&mut self) {
        if self.live == 0 && self.believed() && self.in_flight != InFlight::Nested {
            self.phase = Phase::Releasing;
            self.renewal = NextRenewal::Stopped;
        }
    }

    /// Ends one lease without a release: the hold is left to expire.
    pub(in crate::engine) fn forget(&mut self) {
        self.live = self.live.saturating_sub(1);
        if self.live == 0 && self.in_flight != InFlight::Nested {
            self.owed = None;
            self.unsure_until = None;
            self.renewal = NextRenewal::Stopped;
            if self.believed() {
                self.phase = Phase::Released;
            }
        }
    }

    /// Begins a flush by the engine. Returns whether none is running yet.
    pub(in crate::engine) fn begin_flush(&mut self) -> bool {
        let queued = self.is_queued();
        let running = Cleanup::Running { queued };
        !matches!(std::mem::replace(&mut self.cleanup, running), Cleanup::Running { .. })
    }

    /// Ends a flush by the engine.
    pub(in crate::engine) fn end_flush(&mut self) {
        self.cleanup = if self.is_queued() { Cleanup::Queued } else { Cleanup::Idle };
    }

    /// Returns the next operation for the store. After [`Next::Op`] the verdict must follow.
    pub(in crate::engine) fn next_op(&mut self, timing: &Timing, now: Instant) -> Next {
        self.keep_delay(timing, now);
        if self.is_over() {
            return Next::Nothing;
        }
        if self.is_busy() {
            return Next::Busy;
        }
        let op = match self.phase {
            Phase::Releasing => Op::Release,
            Phase::Lost(_) if self.owed.is_some_and(|at| self.live == 0 || at <= now) => {
                Op::Release
            }
            Phase::Held | Phase::AtRisk if !self.recorded.is(self.live) => Op::Record(self.live),
            _ => return Next::Nothing,
        };
        self.in_flight = InFlight::Op;
        Next::Op(op)
    }

    /// Applies the verdict on [`State::next_op`]. Returns the result for the caller that waits for
    /// it.
    pub(in crate::engine) fn flushed(
        &mut self,
        timing: &Timing,
        now: Instant,
        op: Op,
        verdict: Result<Option<Absence>>,
    ) -> Result<()> {
        self.in_flight = InFlight::None;
        match (op, verdict) {
            (Op::Record(count), Ok(None)) => self.recorded = Recorded::Known(count),
            (Op::Record(_), Ok(Some(absence))) => {
                self.lose(absence.into(), None);
                self.found_lost = Some(absence.into());
                return Err(Error::lost(absence.into()));
            }
            (Op::Record(_), Err(error)) if error.kind() == ErrorKind::WrongType => {
                self.lose(Loss::Taken, None);
                return Err(Error::lost(Loss::Taken));
            }
            // The count in the store is only a record; renewals and the release work without it.
            (Op::Record(count), Err(_)) => self.recorded = Recorded::AtLeast(count),
            (Op::Release, Ok(absence)) => {
                self.end();
                self.answered = true;
                self.release_error = None;
                // An earlier request whose answer was lost may have released it.
                let done = self.release_unknown && now < self.deadline(timing);
                if absence.is_some() && self.release_unknown && self.is_done() {
                    let message = "the store did not confirm that the name is closed";
                    let error = Error::new(ErrorKind::Unavailable, message);
                    (self.answered, self.release_error) = (false, Some(error.clone()));
                    return Err(error);
                }
                if let (Some(absence), false) = (absence, done) {
                    self.found_lost = Some(absence.into());
                    return Err(Error::lost(absence.into()));
                }
            }
            (Op::Release, Err(error)) => {
                self.release_unknown |= error.fate() != Fate::NotExecuted;
                self.release_error = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the period in which late copies of the grant must be swept, once the hold is over.
    pub(in crate::engine) fn sweep(
        &self,
        timing: &Timing,
        now: Instant,
    ) -> Option<(Instant, Instant)> {
        if self.leaves_to_expire(timing, now) {
            return None;
        }
        let until = self.unsure_until.filter(|until| *until > now)?;
        let from = match self.phase {
            // The key is still ours until `D`; no other holder may be granted the name before.
            Phase::Lost(Loss::Expired) => self.deadline(timing),
            _ => now,
        };
        Some((from, until))
    }

    /// Ends the hold: nothing more is owed to the store.
    pub(in crate::engine) fn end(&mut self) {
        self.owed = None;
        if self.phase == Phase::Releasing {
            self.phase = Phase::Released;
        }
    }
}
