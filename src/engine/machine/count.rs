//! The hold count: leases that begin and end, and the count in the store.
//!
//! The count in this process is the truth. The store's is a record, for those who look at it: it is written in the
//! background, absolute, one request of a hold at a time, and nothing waits for it.

use super::hold::{Cleanup, InFlight, NextRenewal, Phase, Recorded, Recording, State, Terms};
use super::scope::HandoffScope;
use super::timing::Timing;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Loss, Result};
use crate::store::Absence;
use std::time::Duration;

/// The time for which a chain of hand-offs may go on while waiters elsewhere listen, even after the
/// waiters that were queued at its start have been served.
const SHORTEST_CHAIN: Duration = Duration::from_millis(20);

/// Why a handle cannot enter its hold again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reentry {
    /// Its mode is being changed; ask again after a change.
    Busy,
    /// The hold is lost while older leases are alive.
    Lost(Loss),
    /// Nothing is left of the hold; acquire a new one.
    Over,
}

/// The verdict on a change of the mode that made no hold of the new mode.
#[derive(Clone, Debug)]
pub(crate) enum ChangeVerdict {
    /// The store has changed the mode by a request sent then, and no caller waits for it any more.
    Changed {
        sent: Instant,
    },
    NotYours(Absence),
    Failed(Error),
}

/// What is to be done for a hold that may have to be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send the release; its verdict must follow.
    Release,
    /// A request of the hold is in flight; ask again after a change.
    Busy,
    Nothing,
}

/// The hold that a record was sent for, as seen by the one that is there when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorder {
    Same,
    /// One that was handed off since.
    Before,
    /// One of another mode.
    OtherMode,
}

impl State {
    /// Adds a lease of the handle that has the hold. Returns why not if it cannot.
    pub(in crate::engine) fn enter_again(
        &mut self,
        timing: &Timing,
        now: Instant,
    ) -> Result<(), Reentry> {
        self.check_entry(timing, now)?;
        if self.mode_unknown {
            // It may admit others by now, and is about to be released.
            return Err(Reentry::Over);
        }
        self.live += 1;
        self.report(now);
        Ok(())
    }

    /// Begins a change of the mode, if the hold has one lease. Returns whether it does; the verdict must follow then.
    pub(in crate::engine) fn begin_mode_change(
        &mut self,
        timing: &Timing,
        now: Instant,
    ) -> Result<bool, Reentry> {
        self.check_entry(timing, now)?;
        let begins = self.live == 1;
        if begins {
            self.in_flight = InFlight::ModeChange;
        }
        Ok(begins)
    }

    fn check_entry(&mut self, timing: &Timing, now: Instant) -> Result<(), Reentry> {
        self.expire(timing, now);
        match self.phase {
            Phase::Lost(loss) if self.live > 0 => Err(Reentry::Lost(loss)),
            Phase::Lost(_) | Phase::Releasing | Phase::Released => Err(Reentry::Over),
            Phase::Held | Phase::AtRisk if self.is_busy() => Err(Reentry::Busy),
            Phase::Held | Phase::AtRisk => Ok(()),
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
            && self.is_shared()
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
            Phase::Held | Phase::AtRisk if self.is_shared() => {
                self.live += 1;
                self.report(now);
                None
            }
            // Its mode is not known, and it is about to be released.
            Phase::Held | Phase::AtRisk | Phase::Releasing | Phase::Released => Some(Reentry::Over),
        }
    }

    /// Returns whether it is a read hold, which handles may share.
    fn is_shared(&self) -> bool {
        self.recorded == Recorded::One && !self.mode_unknown
    }

    /// Ends a change of the mode that made no hold of the new mode.
    pub(in crate::engine) fn end_mode_change(
        &mut self,
        timing: &Timing,
        now: Instant,
        jitter: f64,
        verdict: ChangeVerdict,
    ) -> Result<()> {
        self.in_flight = InFlight::None;
        self.expire(timing, now);
        let result = match (self.phase, verdict) {
            (Phase::Lost(loss), verdict) => {
                if let ChangeVerdict::Changed { sent } = verdict {
                    self.owe_late(timing, sent, now);
                }
                Err(Error::lost(loss))
            }
            (_, ChangeVerdict::Failed(error)) if error.kind() == ErrorKind::WrongType => {
                self.lose(Loss::Taken, None);
                Err(error)
            }
            (_, ChangeVerdict::Changed { sent }) => {
                self.confirm_jittered(timing, sent, jitter);
                self.mode_unknown = true;
                Ok(())
            }
            (_, ChangeVerdict::NotYours(absence)) => {
                self.lose(absence.into(), None);
                Err(Error::lost(absence.into()))
            }
            (_, ChangeVerdict::Failed(error)) => {
                self.mode_unknown |= error.fate() != Fate::NotExecuted;
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

    /// Returns whether the hold may be handed off when its last lease ends now: it is sure, in the mode that it has in the
    /// store, neither a renewal nor a change of the mode is in flight, enough time is left, and other processes have not
    /// waited for too long. A record of the count may be in flight: the next hold goes on with it.
    pub(in crate::engine) fn may_hand_off(
        &self,
        timing: &Timing,
        now: Instant,
        bound: u32,
    ) -> bool {
        self.phase == Phase::Held
            && self.live == 1
            && !self.mode_unknown
            && !self.is_busy()
            && matches!(self.renewal, NextRenewal::Due(_))
            && self.handoffs < bound
            && now < self.chain_began + timing.longest_chain
            && !timing.stale(self.confirmed, now)
            && self.max_until.is_none_or(|max| now < max)
            && self.may_end_early(now)
    }

    /// Sets to whom the hold may be handed off.
    pub(in crate::engine) fn set_handoff_scope(&mut self, scope: HandoffScope) {
        self.scope = scope;
    }

    /// Returns to whom the hold may be handed off.
    pub(in crate::engine) fn handoff_scope(&self) -> HandoffScope {
        self.scope
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
            scope: self.scope,
            handoffs: self.handoffs + 1,
            fence_kept: self.fence_kept,
            // What has failed is tried again.
            recorded: match self.recorded {
                Recorded::Tried(_) => Recorded::Unknown,
                recorded => recorded,
            },
            recording: std::mem::take(&mut self.recording),
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
            recording: std::mem::take(&mut self.recording),
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

    /// Closes a hold without leases (invariant 5). One whose mode is being changed closes at the verdict.
    fn close_if_left(&mut self) {
        if self.live == 0 && self.believed() && self.in_flight != InFlight::ModeChange {
            self.phase = Phase::Releasing;
            self.renewal = NextRenewal::Stopped;
        }
    }

    /// Ends one lease without a release: the hold is left to expire.
    pub(in crate::engine) fn forget(&mut self) {
        self.live = self.live.saturating_sub(1);
        if self.live == 0 && self.in_flight != InFlight::ModeChange {
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

    /// Begins the release, if it is due. After [`Next::Release`] the verdict must follow.
    pub(in crate::engine) fn begin_release(&mut self, timing: &Timing, now: Instant) -> Next {
        self.keep_delay(timing, now);
        let due = match self.phase {
            Phase::Releasing => true,
            Phase::Lost(_) => self.owed.is_some_and(|at| self.live == 0 || at <= now),
            Phase::Held | Phase::AtRisk | Phase::Released => false,
        };
        match due && !self.is_over() {
            false => Next::Nothing,
            true if self.is_busy() => Next::Busy,
            true => {
                self.in_flight = InFlight::Release;
                Next::Release
            }
        }
    }

    /// Returns whether the store has another count than this process.
    fn needs_record(&self) -> bool {
        let counts = self.believed() && self.live > 0 && !self.mode_unknown && !self.is_busy();
        counts && !self.recorded.is(self.live)
    }

    /// Returns whether a record of the count is to be submitted, which counts as submitted from now on.
    pub(in crate::engine) fn queue_record(&mut self) -> bool {
        let queues = self.recording == Recording::Idle && self.needs_record();
        if queues {
            self.recording = Recording::Queued;
        }
        queues
    }

    /// Returns whether a record is submitted or in flight. A hold that was handed off, or whose mode was changed, has passed
    /// it on.
    pub(in crate::engine) fn has_record(&self) -> bool {
        self.recording != Recording::Idle
    }

    /// Begins the record that was submitted. Returns the count, or `None` if the store has it. After a count,
    /// [`end_record`](Self::end_record) must follow.
    pub(in crate::engine) fn begin_record(&mut self) -> Option<u32> {
        let count = self.needs_record().then_some(self.live);
        self.recording = count.map_or(Recording::Idle, Recording::InFlight);
        count
    }

    /// Submits the record again: its task has ended halfway.
    pub(in crate::engine) fn requeue_record(&mut self) {
        if let Recording::InFlight(_) = self.recording
            && self.recorded != Recorded::One
        {
            self.recorded = Recorded::Unknown;
        }
        self.recording = Recording::Queued;
    }

    /// Applies the verdict on a record of the count. The record goes on until the store has the count. An absence is no loss
    /// of a hold that was not there when it was sent: the next renewal, which is due now, decides.
    pub(in crate::engine) fn end_record(
        &mut self,
        timing: &Timing,
        now: Instant,
        by: Recorder,
        verdict: Result<Option<Absence>>,
    ) {
        let Recording::InFlight(count) = self.recording else { return };
        self.recording = Recording::Queued;
        self.expire(timing, now);
        // The store may have changed the mode already.
        let by = if self.is_busy() { Recorder::OtherMode } else { by };
        let absence = match &verdict {
            Ok(absence) => absence.map(Loss::from),
            Err(error) => (error.kind() == ErrorKind::WrongType).then_some(Loss::Taken),
        };
        match (by, absence) {
            (Recorder::Same, Some(loss)) => self.lose(loss, None),
            (Recorder::Before | Recorder::OtherMode, Some(_)) => self.renew_at(now),
            (Recorder::OtherMode, None) => {}
            (Recorder::Same | Recorder::Before, None) => {
                // The count in the store is only a record; renewals and the release work without it.
                self.recorded = match verdict {
                    Ok(_) => Recorded::Known(count),
                    Err(_) => Recorded::Tried(count),
                };
            }
        }
    }

    /// Applies the verdict on the release. Returns the result for the caller that waits for it.
    pub(in crate::engine) fn released(
        &mut self,
        timing: &Timing,
        now: Instant,
        verdict: Result<Option<Absence>>,
    ) -> Result<()> {
        self.in_flight = InFlight::None;
        match verdict {
            Ok(absence) => {
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
            Err(error) => {
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
