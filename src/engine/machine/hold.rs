//! The state machine of a hold: pure transitions over time, without I/O, locks or clocks.

pub(crate) use super::count::{NoEntry, Recorder};
pub(crate) use super::phase::{ChangeVerdict, DueWork, Phase};
pub(crate) use super::policy::HoldPolicy;
pub(crate) use super::release::{Ended, Next};
pub(crate) use super::renewal::{RenewalAttempt, SentRenewal};

use super::chain::{Chain, HandoffScope, Handoffs, Standing};
use super::count::CountRecord;
use super::phase::{InFlight, Visible};
use super::policy::{CallSite, NO_POLICY};
use super::pulse::Pulse;
use super::release::Release;
use super::renewal::{NextRenewal, Renewals};
use super::timing::Timing;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Loss, Result};
use crate::store::{Absence, Keep};
use std::time::Duration;

/// The state of a hold and of its operations in flight.
#[derive(Debug)]
pub(crate) struct State {
    phase: Phase,
    in_flight: InFlight,
    /// True if the store may have changed the mode, and did not say so.
    mode_unknown: bool,
    standing: Standing,
    renewals: Renewals,
    /// The end of `max_hold`.
    max_until: Option<Instant>,
    /// The number of live leases in this process.
    live: u32,
    /// The record of that number in the store.
    record: CountRecord,
    handoffs: Handoffs,
    release: Release,
    /// `None` for most holds.
    policy: Option<Box<HoldPolicy>>,
}

impl State {
    /// Returns the state after the grant of a request sent at `sent`, to be renewed first at
    /// `renew`.
    pub(in crate::engine) fn granted(
        sent: Instant,
        renew: Instant,
        max_until: Option<Instant>,
        unsure_until: Option<Instant>,
    ) -> Self {
        Self {
            phase: Phase::Held,
            in_flight: InFlight::None,
            mode_unknown: false,
            standing: Standing::Accepted,
            renewals: Renewals::new(sent, renew),
            max_until,
            live: 1,
            record: CountRecord::GRANTED,
            handoffs: Handoffs::none(sent),
            release: Release::new(unsure_until),
            policy: None,
        }
    }

    pub(in crate::engine) fn phase(&self) -> Phase {
        self.phase
    }

    pub(in crate::engine) fn confirmed(&self) -> Instant {
        self.renewals.confirmed
    }

    pub(in crate::engine) fn live(&self) -> u32 {
        self.live
    }

    pub(in crate::engine) fn is_busy(&self) -> bool {
        self.in_flight != InFlight::None
    }

    pub(in crate::engine) fn max_until(&self) -> Option<Instant> {
        self.max_until
    }

    /// Returns the part of the state that tasks wait on.
    pub(in crate::engine) fn visible(&self) -> Visible {
        let confirmed = self.renewals.confirmed;
        let busy = self.is_busy();
        let over = self.is_over();
        Visible { phase: self.phase, confirmed, busy, over }
    }

    /// Returns whether the holder may rely on the hold.
    pub(in crate::engine) fn believed(&self) -> bool {
        matches!(self.phase, Phase::Held | Phase::AtRisk)
    }

    /// Returns whether nothing more is sent for the hold, so that the next waiter may ask the
    /// store.
    pub(in crate::engine) fn is_over(&self) -> bool {
        // After a loss, an operation that is still in flight changes nothing any more.
        let is_done = matches!(self.phase, Phase::Lost(_)) && self.release.owed.is_none();
        is_done || self.phase == Phase::Released
    }

    /// Returns `D`: the time until which the store surely keeps the key.
    pub(in crate::engine) fn deadline(&self, timing: &Timing) -> Instant {
        timing.deadline(self.renewals.confirmed)
    }

    /// Returns `C`, or the end of `max_hold` if that is earlier: the time until which the holder
    /// may rely on the hold.
    pub(in crate::engine) fn believed_until(&self, timing: &Timing) -> Instant {
        let cancel = timing.cancel(self.renewals.confirmed);
        self.max_until.map_or(cancel, |max| max.min(cancel))
    }

    /// Returns whether a release is due now.
    pub(in crate::engine) fn needs_release(&self) -> bool {
        match self.phase {
            Phase::Releasing => true,
            Phase::Lost(_) => self.release.owed.is_some() && self.live == 0,
            Phase::Held | Phase::AtRisk | Phase::Released => false,
        }
    }

    /// Returns the time at which the watchdog must check this hold again.
    pub(in crate::engine) fn wake_at(&self, timing: &Timing) -> Option<Instant> {
        match self.phase {
            Phase::Held | Phase::AtRisk => {
                let end = self.ends_at(timing);
                let at = match self.renewals.next {
                    NextRenewal::Due(at) if self.is_kept() => Some(at.min(end)),
                    // The batch is watched, but for this.
                    NextRenewal::UnderWay { .. } => self.stalls_at(),
                    NextRenewal::Due(_) | NextRenewal::Stopped => Some(end),
                };
                at.into_iter().chain(self.policy().warn_at).min()
            }
            Phase::Releasing => Some(self.abandoned_at(timing)),
            Phase::Lost(_) if self.release.is_queued() => {
                self.release.owed.map(|_| self.abandoned_at(timing))
            }
            Phase::Lost(_) => self.release.owed,
            Phase::Released => None,
        }
    }

    pub(in crate::engine) fn is_releasing(&self) -> bool {
        self.phase == Phase::Releasing
    }

    /// Returns whether no caller has accepted it: it was handed off, or it rests.
    pub(in crate::engine) fn is_offered(&self) -> bool {
        self.standing != Standing::Accepted
    }

    /// Returns whether it rests.
    pub(in crate::engine) fn rests(&self) -> bool {
        self.is_resting() && self.believed()
    }

    /// Returns whether it rests, or was released or lost while it rested.
    pub(in crate::engine) fn is_resting(&self) -> bool {
        self.standing == Standing::Resting
    }

    /// Returns the loss, also one that only the release has found.
    pub(in crate::engine) fn loss(&self) -> Option<Loss> {
        match self.phase {
            Phase::Lost(loss) => Some(loss),
            _ => self.release.found_lost(),
        }
    }

    pub(in crate::engine) fn release_error(&self) -> Option<Error> {
        self.release.error()
    }

    /// Returns how the release ended, once the hold is released.
    pub(in crate::engine) fn end_of_release(&self) -> Ended {
        self.release.end()
    }

    /// Returns the time at which the hold is lost if nothing happens before.
    pub(in crate::engine) fn ends_at(&self, timing: &Timing) -> Instant {
        let until = self.believed_until(timing);
        self.stalls_at().map_or(until, |stalls| stalls.min(until))
    }

    /// Returns the time at which the hold is lost without a report of progress, or a pulse.
    fn stalls_at(&self) -> Option<Instant> {
        self.policy().stalls_at(self.live)
    }

    /// Returns the time at which the release is given up and the key is left to expire.
    fn abandoned_at(&self, timing: &Timing) -> Instant {
        self.release.abandoned_at(self.deadline(timing), timing.attempt)
    }

    /// Returns whether a caller has a lease of it: one that was handed off or granted may not have reached its caller.
    pub(in crate::engine) fn has_a_caller(&self) -> bool {
        !self.is_offered() && self.live > self.policy().unreturned
    }

    /// Returns whether the hold is to be renewed: a caller has a lease of it, or the call that will return one has a
    /// pulse. A change of the mode is so short that it needs none, and a future that is not polled keeps nothing.
    fn is_kept(&self) -> bool {
        self.live > 0 && !self.policy().is_unused(self.live)
    }
}

/// The clock, renewals and the loss.
impl State {
    /// Loses the hold. With `owed` the key is still ours, and is to be released by then.
    pub(in crate::engine) fn lose(&mut self, loss: Loss, owed: Option<Instant>) {
        if self.believed() {
            self.phase = Phase::Lost(loss);
            self.renewals.stop();
            self.release.owed = owed;
            if self.is_resting() {
                self.live = 0;
            }
        }
    }

    /// Loses the hold if `C` or the end of `max_hold` has passed.
    pub(in crate::engine) fn expire(&mut self, timing: &Timing, now: Instant) {
        if now >= timing.cancel(self.renewals.confirmed) {
            self.lose(Loss::Expired, None);
        } else if self.max_until.is_some_and(|max| now >= max) {
            self.lose(Loss::MaxHold, Some(now + timing.grace));
        } else if self.policy().is_silent(self.live, now) {
            if let (true, Some(policy)) = (self.believed(), &mut self.policy) {
                // No caller has a lease, so there is no use that the delay would wait for.
                policy.delay = Duration::ZERO;
            }
            self.lose(Loss::Stalled, Some(now));
        } else if self.stalls_at().is_some_and(|at| now >= at) {
            self.lose(Loss::Stalled, Some(now + timing.grace));
        }
    }

    /// Returns the work that is due at `now`, and starts it.
    pub(in crate::engine) fn tick(&mut self, timing: &Timing, now: Instant) -> DueWork {
        self.expire(timing, now);
        let is_owed = self.release.is_queued() || self.phase == Phase::Releasing;
        if is_owed && now >= self.abandoned_at(timing) {
            self.end();
        }
        self.keep_delay(timing, now);
        if let Phase::Lost(_) = self.phase {
            let queues = self.release.queue_if_due(self.live, now);
            return if queues { DueWork::Release } else { DueWork::Nothing };
        }
        if self.renewals.is_due(now) { self.renew_or_recall(timing, now) } else { DueWork::Nothing }
    }

    /// Starts a renewal, or recalls the hold if its waiter has not accepted it.
    pub(in crate::engine) fn renew_or_recall(&mut self, timing: &Timing, now: Instant) -> DueWork {
        if !self.is_offered() || !self.believed() {
            return self.begin_renewal(timing, now);
        }
        self.leave(timing, now);
        DueWork::Recalled
    }

    /// Makes the next renewal due now.
    pub(in crate::engine) fn renew_at(&mut self, now: Instant) {
        if self.believed() {
            self.renewals.hasten(now);
        }
    }

    /// Starts a renewal, due or not, if the hold is to be renewed.
    pub(in crate::engine) fn begin_renewal(&mut self, timing: &Timing, now: Instant) -> DueWork {
        let until = self.believed_until(timing);
        let may_renew = self.believed() && self.is_kept() && !self.is_offered() && now < until;
        if may_renew && self.renewals.is_planned() {
            DueWork::Renew(self.renewals.begin(until))
        } else {
            DueWork::Nothing
        }
    }

    /// Applies the verdict on a renewal.
    pub(in crate::engine) fn renewed(
        &mut self,
        timing: &Timing,
        now: Instant,
        jitter: f64,
        renewal: SentRenewal,
        verdict: Result<Option<Absence>>,
    ) {
        let SentRenewal { attempt, sent, keeps_fence } = renewal;
        self.expire(timing, now);
        if !self.believed() {
            if let Ok(None) = verdict {
                self.owe_late(timing, sent, now);
            }
            return;
        }
        match verdict {
            Ok(None) => {
                self.confirm(timing, sent, jitter);
                if keeps_fence {
                    self.renewals.keep_fence(sent);
                }
            }
            Ok(Some(absence)) => self.lose(absence.into(), None),
            Err(error) if error.kind() == ErrorKind::WrongType => self.lose(Loss::Taken, None),
            Err(_) => self.renewal_failed(timing, now, jitter, attempt),
        }
    }

    /// Counts renewal `attempt` as failed: no verdict came in time.
    pub(in crate::engine) fn unanswered(
        &mut self,
        timing: &Timing,
        now: Instant,
        jitter: f64,
        attempt: u32,
    ) {
        self.expire(timing, now);
        if self.believed() {
            self.renewal_failed(timing, now, jitter, attempt);
        }
    }

    fn renewal_failed(&mut self, timing: &Timing, now: Instant, jitter: f64, attempt: u32) {
        if self.renewals.fail(timing, now, jitter, attempt) {
            self.phase = Phase::AtRisk;
        }
    }

    /// Records the confirmation of a request sent at `sent`.
    fn confirm(&mut self, timing: &Timing, sent: Instant, jitter: f64) {
        self.renewals.confirm(timing, sent, jitter);
        self.phase = Phase::Held;
    }

    /// Owes a release after a confirmation that came too late: the store keeps the key for T from
    /// `sent`, without a holder. It is sent when the leases are gone, or when they cannot rely on
    /// the key any more.
    fn owe_late(&mut self, timing: &Timing, sent: Instant, now: Instant) {
        if self.owes_nothing_yet() && !self.leaves_to_expire(timing, now) {
            self.release.owe(self.deadline(timing).max(now));
            let runs_until = sent + timing.ttl + self.delay();
            self.release.unsure_until = self.release.unsure_until.max(Some(runs_until));
        }
    }

    /// Owes a release by `until`: a key that was to be deleted may still exist.
    pub(in crate::engine) fn owe(&mut self, until: Instant) {
        if self.owes_nothing_yet() {
            self.release.owe(until);
        }
    }

    fn owes_nothing_yet(&self) -> bool {
        matches!(self.phase, Phase::Lost(_)) && self.release.owed.is_none()
    }
}

/// Leases that begin and end, and changes of the mode.
impl State {
    /// Adds a lease of the handle that has the hold. Returns why not if it cannot.
    pub(in crate::engine) fn enter_again(
        &mut self,
        timing: &Timing,
        now: Instant,
    ) -> Result<(), NoEntry> {
        self.check_entry(timing, now)?;
        if self.mode_unknown {
            // It may admit others by now, and is about to be released.
            return Err(NoEntry::Over);
        }
        self.live += 1;
        self.progress(now);
        Ok(())
    }

    /// Begins a change of the mode, if the hold has one lease. Returns whether it does; the verdict must follow then.
    pub(in crate::engine) fn begin_mode_change(
        &mut self,
        timing: &Timing,
        now: Instant,
    ) -> Result<bool, NoEntry> {
        self.check_entry(timing, now)?;
        let begins = self.live == 1;
        if begins {
            self.in_flight = InFlight::ModeChange;
        }
        Ok(begins)
    }

    fn check_entry(&mut self, timing: &Timing, now: Instant) -> Result<(), NoEntry> {
        self.expire(timing, now);
        match self.phase {
            Phase::Lost(loss) if self.live > 0 => Err(NoEntry::Lost(loss)),
            Phase::Lost(_) | Phase::Releasing | Phase::Released => Err(NoEntry::Over),
            Phase::Held | Phase::AtRisk if self.is_busy() => Err(NoEntry::Busy),
            Phase::Held | Phase::AtRisk => Ok(()),
        }
    }

    /// Makes it the state of a read hold, which handles share.
    pub(in crate::engine) fn share(&mut self) {
        self.record.share();
    }

    /// Adds a lease of another handle, if the hold is as good as a new grant: it is sure, nothing changes its mode, enough
    /// time is left, and the store was asked lately, so that waiters elsewhere do not wait long. Returns whether it did.
    pub(in crate::engine) fn join(&mut self, timing: &Timing, now: Instant) -> bool {
        let joins =
            self.is_sure(timing, now) && self.is_shared() && self.handoffs.is_recent(timing, now);
        if joins {
            self.live += 1;
            self.progress(now);
        }
        joins
    }

    /// Adds a lease of a handle that shares the hold already. Returns why not if it cannot.
    pub(in crate::engine) fn join_again(&mut self, now: Instant) -> Option<NoEntry> {
        match self.phase {
            Phase::Lost(loss) => Some(NoEntry::Lost(loss)),
            Phase::Held | Phase::AtRisk if self.is_busy() => Some(NoEntry::Busy),
            Phase::Held | Phase::AtRisk if self.is_shared() => {
                self.live += 1;
                self.progress(now);
                None
            }
            // Its mode is not known, and it is about to be released.
            Phase::Held | Phase::AtRisk | Phase::Releasing | Phase::Released => Some(NoEntry::Over),
        }
    }

    /// Returns whether it is sure, with enough time left, and no request that changes it is in flight.
    fn is_sure(&self, timing: &Timing, now: Instant) -> bool {
        self.phase == Phase::Held
            && !self.is_busy()
            && !timing.stale(self.renewals.confirmed, now)
            && self.max_until.is_none_or(|max| now < max)
    }

    /// Returns whether it is a read hold, which handles may share.
    fn is_shared(&self) -> bool {
        self.record.is_shared() && !self.mode_unknown
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
                self.confirm(timing, sent, jitter);
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

    /// Ends the hold for its only lease, after the store has changed its mode by a request of `sent`. Returns the state of
    /// the hold in the new mode, to be renewed first at `renew`, or `None` if it is lost, or the answer came too late.
    pub(in crate::engine) fn change_mode(
        &mut self,
        timing: &Timing,
        now: Instant,
        sent: Instant,
        renew: Instant,
    ) -> Option<Self> {
        self.expire(timing, now);
        if !self.believed() || timing.stale(sent, now) {
            return None;
        }
        // The caller gets the lease that was in the change.
        self.end_unreturned();
        let unsure_until = self.release.unsure_until.take();
        let next = Self {
            policy: self.policy.take(),
            record: self.record.change_mode(),
            ..Self::granted(sent, renew, self.max_until, unsure_until)
        };
        self.in_flight = InFlight::None;
        self.replaced();
        Some(next)
    }

    /// Closes a hold without leases (invariant 5). One whose mode is being changed closes at the verdict.
    fn close_if_left(&mut self) {
        if self.live == 0 && self.believed() && self.in_flight != InFlight::ModeChange {
            self.phase = Phase::Releasing;
            self.renewals.stop();
        }
    }

    /// Ends one lease without a release: the hold is left to expire.
    pub(in crate::engine) fn forget(&mut self) {
        self.live = self.live.saturating_sub(1);
        if self.live == 0 && self.in_flight != InFlight::ModeChange {
            self.release.owed = None;
            self.release.unsure_until = None;
            self.renewals.stop();
            if self.believed() {
                self.phase = Phase::Released;
            }
        }
    }

    /// Returns the count to record, if the store has another one than this process.
    fn to_record(&self) -> Option<u32> {
        let counts = self.believed() && self.live > 0 && !self.mode_unknown && !self.is_busy();
        Some(self.live).filter(|live| counts && !self.record.needs_no_record(*live))
    }

    /// Returns whether a record of the count is to be submitted, which counts as submitted from now on.
    pub(in crate::engine) fn queue_record(&mut self) -> bool {
        let needs_one = self.to_record().is_some();
        self.record.queue_if_idle(needs_one)
    }

    /// Returns whether a record is submitted or in flight. A hold that was handed off, or whose mode was changed, has handed
    /// it off.
    pub(in crate::engine) fn has_record(&self) -> bool {
        self.record.is_under_way()
    }

    /// Begins the record that was submitted. Returns the count, or `None` if the store has it. After a count,
    /// [`end_record`](Self::end_record) must follow.
    pub(in crate::engine) fn begin_record(&mut self) -> Option<u32> {
        let count = self.to_record();
        self.record.begin(count)
    }

    /// Submits the record again: its task has ended halfway.
    pub(in crate::engine) fn requeue_record(&mut self) {
        self.record.requeue();
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
        let Some(count) = self.record.end() else { return };
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
                self.record.set(count, verdict.is_ok());
            }
        }
    }
}

/// Hand-offs.
impl State {
    /// Returns whether the hold may be handed off when its last lease ends now: it is sure, in the mode that it has in the
    /// store, neither a renewal nor a change of the mode is in flight, enough time is left, and other processes have not
    /// waited for too long. A record of the count may be in flight: the next hold goes on with it.
    pub(in crate::engine) fn may_hand_off(
        &self,
        timing: &Timing,
        now: Instant,
        bound: u32,
    ) -> bool {
        self.live == 1
            && self.is_sure(timing, now)
            && !self.mode_unknown
            && self.renewals.is_planned()
            && self.handoffs.may_go_on(timing, now, bound)
            && self.policy().may_end_early(now)
    }

    /// Sets the time by which the store's clock has reached the first fencing token.
    pub(in crate::engine) fn reached(&mut self, time: Instant) {
        self.handoffs.reached = time;
    }

    /// Sets to whom the hold may be handed off.
    pub(in crate::engine) fn set_handoff_scope(&mut self, scope: HandoffScope) {
        self.handoffs.scope = scope;
    }

    /// Returns to whom the hold may be handed off.
    pub(in crate::engine) fn handoff_scope(&self) -> HandoffScope {
        self.handoffs.scope
    }

    /// Returns the time of the request that the store granted; hand-offs keep it.
    pub(in crate::engine) fn chain_began(&self) -> Instant {
        self.handoffs.began
    }

    /// Returns the chain of hand-offs that it belongs to.
    pub(in crate::engine) fn chain(&self, now: Instant) -> Chain {
        self.handoffs.chain(now, self.delay())
    }

    /// Returns whether the next holder in a chain has its own fencing token, after a grant that reserved `block`.
    pub(in crate::engine) fn has_fence(&self, now: Instant, block: u32) -> bool {
        self.handoffs.has_fence(now, block)
    }

    /// Ends the hold for its holder. Returns the state of the next hold, which must be accepted
    /// before its renewal is due, at `earliest` or later.
    pub(in crate::engine) fn hand_off(&mut self, earliest: Instant) -> Self {
        let unsure_until = self.release.unsure_until.take();
        let next = Self {
            renewals: self.renewals.hand_off(earliest),
            policy: self.policy().handed_off(),
            standing: Standing::Offered,
            handoffs: self.handoffs.next(),
            record: self.record.hand_off(),
            ..Self::granted(earliest, earliest, None, unsure_until)
        };
        self.replaced();
        next
    }

    /// Ends the hold for its holder, as [`hand_off`](Self::hand_off) does, but for a holder that is still to come: the next
    /// state rests. Returns `None` if it may not.
    pub(in crate::engine) fn rest(
        &mut self,
        timing: &Timing,
        now: Instant,
        linger: Duration,
    ) -> Option<Self> {
        let NextRenewal::Due(due) = self.renewals.next else { return None };
        let handoffs = self.handoffs;
        let until =
            handoffs.rests_until(timing, now, due, linger).filter(|_| !self.is_offered())?;
        let mut next = Self { standing: Standing::Resting, handoffs, ..self.hand_off(until) };
        next.renewals.next = NextRenewal::Due(until);
        Some(next)
    }

    /// Ends the rest, if it rests, so that it can be handed off and be renewed at `renew`, or released. It is only released if
    /// its time has passed.
    pub(in crate::engine) fn end_rest(&mut self, now: Instant, renew: Instant) {
        if self.rests() {
            self.standing = Standing::Offered;
            self.renewals.end_rest(now, renew);
        }
    }

    /// Records that another manager has asked for the name: no hold of the chain rests any more. Returns whether this one rests.
    pub(in crate::engine) fn wanted_elsewhere(&mut self) -> bool {
        self.handoffs.asked = true;
        self.rests()
    }

    /// Ends the hold for its holder: another one has taken its place.
    fn replaced(&mut self) {
        self.live = 0;
        self.phase = Phase::Released;
        self.renewals.stop();
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
        let accepted = self.phase == Phase::Held && !timing.stale(self.renewals.confirmed, now);
        if accepted {
            self.standing = Standing::Accepted;
            self.max_until = max_hold.map(|max| now + max);
        }
        accepted
    }
}

/// The release.
impl State {
    /// Begins a release by the engine. Returns whether none is running yet.
    pub(in crate::engine) fn begin_background_release(&mut self) -> bool {
        self.release.begin_background_release()
    }

    /// Ends a release by the engine.
    pub(in crate::engine) fn end_background_release(&mut self) {
        self.release.end_background_release();
    }

    /// Begins the release, if it is due. After [`Next::Release`] the verdict must follow.
    pub(in crate::engine) fn begin_release(&mut self, timing: &Timing, now: Instant) -> Next {
        self.keep_delay(timing, now);
        let due = match self.phase {
            Phase::Releasing => true,
            Phase::Lost(_) => self.release.is_due(self.live, now),
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

    /// Applies the verdict on the release. Returns the result for the caller that waits for it.
    pub(in crate::engine) fn released(
        &mut self,
        timing: &Timing,
        now: Instant,
        verdict: Result<Option<Absence>>,
    ) -> Result<()> {
        self.in_flight = InFlight::None;
        let absence = self.release.read(verdict)?;
        self.end();
        let is_done = self.policy().done.is_some();
        self.release.answered(absence, now < self.deadline(timing), is_done)
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
        let until = self.release.unsure_until.filter(|until| *until > now)?;
        let from = match self.phase {
            // The key is still ours until `D`; no other holder may be granted the name before.
            Phase::Lost(Loss::Expired) => self.deadline(timing),
            _ => now,
        };
        Some((from, until))
    }

    /// Ends the hold: nothing more is owed to the store.
    pub(in crate::engine) fn end(&mut self) {
        self.release.owed = None;
        if self.phase == Phase::Releasing {
            self.phase = Phase::Released;
        }
    }

    /// Gives up a release that is owed, if the name is left to expire: with the last lease, or at the end of the grace.
    fn keep_delay(&mut self, timing: &Timing, now: Instant) {
        if self.release.is_due(self.live, now) && self.leaves_to_expire(timing, now) {
            self.release.leave_to_expire();
        }
    }

    /// Returns whether a lost hold is left to expire, so that its delay is in force. A release that leaves a mark keeps the
    /// name closed by itself, and for longer.
    fn leaves_to_expire(&self, timing: &Timing, now: Instant) -> bool {
        let left = match self.phase {
            Phase::Lost(Loss::Expired) => true,
            Phase::Lost(Loss::MaxHold | Loss::Stalled | Loss::Closed) => {
                self.mark(timing, now).is_none()
            }
            // The key is not there, or is to be deleted by force.
            _ => false,
        };
        left && !self.delay().is_zero()
    }

    /// Returns the mark that a release at `now` leaves.
    pub(in crate::engine) fn mark(&self, timing: &Timing, now: Instant) -> Option<Keep> {
        let policy = self.policy.as_ref()?;
        let is_lost = matches!(self.phase, Phase::Lost(_));
        let expires = is_lost.then(|| self.deadline(timing));
        policy.mark(now, expires, timing.ttl)
    }
}

/// The policy.
impl State {
    fn policy(&self) -> &HoldPolicy {
        self.policy.as_deref().unwrap_or(&NO_POLICY)
    }

    pub(in crate::engine) fn set_policy(&mut self, policy: Option<Box<HoldPolicy>>) {
        if policy.as_ref().is_some_and(|policy| policy.awaits_lease) {
            self.max_until = None;
        }
        self.policy = policy;
    }

    /// Begins `stall_after` and `max_hold`, if they have not begun with the hold.
    pub(in crate::engine) fn begin_limits(
        &mut self,
        now: Instant,
        stall_after: Option<Duration>,
        max_hold: Option<Duration>,
    ) {
        let Some(policy) = self.policy.as_mut().filter(|policy| policy.awaits_lease) else {
            return;
        };
        policy.awaits_lease = false;
        policy.stall = stall_after.map(|longest| (longest, now));
        self.max_until = max_hold.map(|max| now + max);
    }

    /// Records that no caller has a new lease yet, if its call has a pulse. Returns whether it has.
    pub(in crate::engine) fn begin_unreturned(&mut self) -> bool {
        let policy = self.policy.as_mut().filter(|policy| policy.pulse.is_some());
        policy.map(|policy| policy.unreturned += 1).is_some()
    }

    /// Records that a lease is in a change of the mode, so that no caller has it.
    pub(in crate::engine) fn begin_change(&mut self) {
        self.policy.get_or_insert_default().unreturned += 1;
    }

    /// Records that a caller has got such a lease, or that it ends next.
    pub(in crate::engine) fn end_unreturned(&mut self) {
        if let Some(policy) = &mut self.policy {
            policy.end_unreturned();
        }
    }

    /// Records the last pulse of the call that the hold was granted to.
    pub(in crate::engine) fn record_pulse(&mut self, pulse: Pulse) {
        if let Some(policy) = &mut self.policy {
            policy.record_pulse(pulse);
        }
    }

    /// Begins `min_hold`, which ends at `until`, unless an earlier lease of the hold has begun it.
    pub(in crate::engine) fn begin_min_hold(&mut self, until: Instant) {
        self.policy.get_or_insert_default().min_until.get_or_insert(until);
    }

    /// Returns the time for which the store keeps the name closed beyond T.
    pub(in crate::engine) fn delay(&self) -> Duration {
        self.policy().delay
    }

    /// Records that the work is done, if the hold is not lost: its release keeps the name closed for `keep`.
    pub(in crate::engine) fn mark_done(&mut self, timing: &Timing, now: Instant, keep: Duration) {
        self.expire(timing, now);
        if self.believed() {
            self.policy.get_or_insert_default().done = Some(keep);
        }
    }

    /// Records progress.
    pub(in crate::engine) fn progress(&mut self, now: Instant) {
        if let Some(policy) = &mut self.policy {
            policy.progress(now);
        }
    }

    /// Returns when the hold began, and where, if it has been held for so long that a warning is due. Once only.
    pub(in crate::engine) fn warn(&mut self, now: Instant) -> Option<(Instant, CallSite)> {
        if self.believed() { self.policy.as_mut()?.warn(now) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T = 1 s: renew at 333 ms, attempts of 166 ms, C = 888 ms, D = 988 ms.
    fn timing() -> Timing {
        Timing::new(Duration::from_secs(1)).unwrap()
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn held() -> State {
        State::granted(at(0), at(333), None, None)
    }

    fn unavailable() -> Error {
        Error::new(ErrorKind::Unavailable, "test")
    }

    fn renew(state: &mut State, now: u64) -> u32 {
        match state.tick(&timing(), at(now)) {
            DueWork::Renew(attempt) => attempt.number,
            due => panic!("{due:?} at {now}"),
        }
    }

    fn verdict(
        state: &mut State,
        now: u64,
        attempt: u32,
        sent: u64,
        verdict: Result<Option<Absence>>,
    ) {
        state.renewed(
            &timing(),
            at(now),
            0.0,
            SentRenewal { attempt, sent: at(sent), keeps_fence: false },
            verdict,
        );
    }

    #[test]
    fn renewal_moves_the_deadline_forward_by_its_own_send_time() {
        let mut state = held();
        assert_eq!(state.wake_at(&timing()), Some(at(333)));
        let attempt = renew(&mut state, 333);
        verdict(&mut state, 340, attempt, 334, Ok(None));
        assert_eq!(state.believed_until(&timing()), at(334 + 888));
        verdict(&mut state, 341, attempt, 100, Ok(None));
        assert_eq!(state.believed_until(&timing()), at(334 + 888));
    }

    #[test]
    fn renewal_failure_is_at_risk_and_then_held_again() {
        let mut state = held();
        let attempt = renew(&mut state, 333);
        verdict(&mut state, 350, attempt, 333, Err(unavailable()));
        assert_eq!(state.phase(), Phase::AtRisk);
        let attempt = renew(&mut state, 400);
        verdict(&mut state, 410, attempt, 400, Ok(None));
        assert_eq!(state.phase(), Phase::Held);
    }

    #[test]
    fn renewal_without_an_answer_is_retried_only_until_c() {
        let mut state = held();
        let mut attempts = 0;
        loop {
            let now = state.wake_at(&timing()).unwrap();
            if now >= at(888) {
                break;
            }
            if let DueWork::Renew(attempt) = state.tick(&timing(), now) {
                attempts += 1;
                assert_eq!(state.wake_at(&timing()), None, "its batch is checked");
                state.unanswered(&timing(), now + timing().attempt, 1.0, attempt.number);
            }
        }
        assert_eq!(attempts, 3);
        assert_eq!(state.tick(&timing(), at(888)), DueWork::Nothing);
        assert_eq!(state.phase(), Phase::Lost(Loss::Expired));
        assert_eq!(state.wake_at(&timing()), None);
        assert_eq!(state.begin_renewal(&timing(), at(889)), DueWork::Nothing);
    }

    #[test]
    fn renewal_reply_after_c_changes_nothing() {
        let mut state = held();
        let attempt = renew(&mut state, 333);
        verdict(&mut state, 888, attempt, 333, Ok(None));
        assert_eq!(state.phase(), Phase::Lost(Loss::Expired));
        verdict(&mut state, 889, attempt, 333, Ok(Some(Absence::Taken)));
        assert_eq!(state.phase(), Phase::Lost(Loss::Expired));
    }

    #[test]
    fn renewal_given_up_that_fails_later_changes_nothing() {
        let mut state = held();
        let first = renew(&mut state, 333);
        state.unanswered(&timing(), at(500), 0.0, first);
        assert_eq!(state.tick(&timing(), at(500)), DueWork::Nothing, "a gap first");
        let second = renew(&mut state, 520);
        verdict(&mut state, 530, first, 333, Err(unavailable()));
        state.unanswered(&timing(), at(531), 0.0, first);
        assert_eq!(state.renewals.next, NextRenewal::UnderWay { attempt: second });
    }

    #[test]
    fn renewal_that_finds_an_absence_loses_the_hold() {
        for (absence, loss) in [(Absence::Gone, Loss::Gone), (Absence::Taken, Loss::Taken)] {
            let mut state = held();
            let attempt = renew(&mut state, 333);
            verdict(&mut state, 340, attempt, 333, Ok(Some(absence)));
            assert_eq!(state.phase(), Phase::Lost(loss));
            assert!(state.is_over());
        }
    }

    #[test]
    fn renewal_that_finds_a_key_of_another_type_is_a_loss() {
        let mut state = held();
        let attempt = renew(&mut state, 333);
        let error = Error::new(ErrorKind::WrongType, "test");
        verdict(&mut state, 340, attempt, 333, Err(error));
        assert_eq!(state.phase(), Phase::Lost(Loss::Taken));
    }

    #[test]
    fn renewal_confirmed_after_the_loss_is_released_after_d() {
        let mut state = held();
        let attempt = renew(&mut state, 333);
        verdict(&mut state, 900, attempt, 700, Ok(None));
        assert_eq!(state.phase(), Phase::Lost(Loss::Expired));
        assert_eq!(state.wake_at(&timing()), Some(at(988)));
        assert_eq!(state.begin_release(&timing(), at(950)), Next::Nothing, "the lease is alive");
        assert_eq!(state.tick(&timing(), at(988)), DueWork::Release);
        assert_eq!(state.begin_release(&timing(), at(988)), Next::Release);
    }

    #[test]
    fn hold_closes_in_the_step_that_ends_its_last_lease() {
        let mut state = held();
        assert_eq!(state.leave(&timing(), at(10)), Phase::Held);
        assert_eq!(state.phase(), Phase::Releasing);
        assert_eq!(state.enter_again(&timing(), at(11)), Err(NoEntry::Over));
        assert_eq!(state.begin_release(&timing(), at(11)), Next::Release);
        assert_eq!(state.begin_release(&timing(), at(11)), Next::Busy);
        assert!(!state.is_over());
        state.released(&timing(), at(12), Ok(None)).unwrap();
        assert!(state.is_over());
        assert_eq!(state.begin_release(&timing(), at(13)), Next::Nothing);
    }

    /// A hold with two leases, whose count is not recorded yet.
    fn entered() -> State {
        let mut state = held();
        state.enter_again(&timing(), at(10)).unwrap();
        state
    }

    #[test]
    fn count_is_recorded_once_at_a_time_and_as_it_is_then() {
        let mut state = entered();
        assert!(state.queue_record() && !state.queue_record());
        state.enter_again(&timing(), at(11)).unwrap();
        assert_eq!(state.begin_record(), Some(3));
        state.leave(&timing(), at(12));
        assert!(!state.queue_record(), "one is in flight");
        state.end_record(&timing(), at(13), Recorder::Same, Ok(None));
        assert_eq!(state.begin_record(), Some(2), "by the task that has recorded the last one");
        state.end_record(&timing(), at(14), Recorder::Same, Err(unavailable()));
        assert_eq!((state.begin_record(), state.phase()), (None, Phase::Held), "not repeated");
        assert!(!state.queue_record());
        state.leave(&timing(), at(15));
        assert!(state.queue_record());
    }

    #[test]
    fn count_that_is_one_again_is_not_recorded() {
        let mut state = entered();
        assert!(state.queue_record());
        state.leave(&timing(), at(11));
        assert_eq!(state.begin_record(), None);
        assert!(!state.queue_record());
        state.enter_again(&timing(), at(12)).unwrap();
        assert!(state.queue_record(), "the next one is submitted again");
    }

    #[test]
    fn record_in_flight_holds_up_neither_the_release_nor_a_handoff() {
        let mut state = entered();
        state.queue_record();
        assert_eq!(state.begin_record(), Some(2));
        state.leave(&timing(), at(11));
        assert!(state.may_hand_off(&timing(), at(12), 1));
        let mut next = state.hand_off(at(400));
        next.accept(&timing(), at(13), None);
        assert!(!next.queue_record(), "that of the last holder is in flight");
        next.end_record(&timing(), at(14), Recorder::Before, Ok(None));
        assert_eq!(next.begin_record(), Some(1));
        next.leave(&timing(), at(15));
        assert_eq!(next.begin_release(&timing(), at(15)), Next::Release);
        let gone = Ok(Some(Absence::Gone));
        next.end_record(&timing(), at(16), Recorder::Same, gone);
        next.released(&timing(), at(17), Ok(None)).unwrap();
        assert_eq!((next.phase(), next.loss()), (Phase::Released, None));
    }

    #[test]
    fn record_that_finds_an_absence_is_a_loss_of_its_own_hold_only() {
        let gone = || Ok(Some(Absence::Gone));
        let wrong_type = || Err(Error::new(ErrorKind::WrongType, "test"));
        for (verdict, loss) in [(gone(), Loss::Gone), (wrong_type(), Loss::Taken)] {
            let mut state = entered();
            state.queue_record();
            state.begin_record();
            state.end_record(&timing(), at(20), Recorder::Same, verdict);
            assert_eq!(state.phase(), Phase::Lost(loss));
        }
        for by in [Recorder::Before, Recorder::OtherMode] {
            let mut state = entered();
            state.queue_record();
            state.begin_record();
            state.end_record(&timing(), at(20), by, gone());
            assert_eq!((state.phase(), state.wake_at(&timing())), (Phase::Held, Some(at(20))));
        }
        // The store may have made a reader of the writer.
        let mut state = entered();
        state.queue_record();
        state.begin_record();
        state.leave(&timing(), at(11));
        assert_eq!(state.begin_mode_change(&timing(), at(12)), Ok(true));
        state.end_record(&timing(), at(20), Recorder::Same, gone());
        assert_eq!(state.phase(), Phase::Held);
    }

    #[test]
    fn record_whose_task_ended_is_submitted_again() {
        let mut state = entered();
        state.queue_record();
        state.begin_record();
        state.leave(&timing(), at(11));
        state.requeue_record();
        assert!(!state.queue_record());
        assert_eq!(state.begin_record(), Some(1), "the store may have either");
    }

    #[test]
    fn mode_is_changed_for_the_only_lease() {
        assert_eq!(entered().begin_mode_change(&timing(), at(11)), Ok(false));
        let mut state = held();
        assert_eq!(state.begin_mode_change(&timing(), at(11)), Ok(true));
        assert_eq!(state.enter_again(&timing(), at(12)), Err(NoEntry::Busy));
        assert_eq!(state.begin_mode_change(&timing(), at(12)), Err(NoEntry::Busy));
        state.leave(&timing(), at(13));
        assert_eq!(state.phase(), Phase::Held, "the verdict decides");
        assert!(state.end_mode_change(&timing(), at(14), 0.0, unchanged(Fate::Unknown)).is_err());
        assert_eq!(state.begin_release(&timing(), at(14)), Next::Release);
    }

    fn unchanged(fate: Fate) -> ChangeVerdict {
        ChangeVerdict::Failed(unavailable().with_fate(fate))
    }

    #[test]
    fn hold_whose_mode_is_unknown_is_not_entered_again() {
        for (fate, enters) in [(Fate::NotExecuted, Ok(())), (Fate::Unknown, Err(NoEntry::Over))] {
            let mut state = held();
            state.begin_mode_change(&timing(), at(10)).unwrap();
            state.end_mode_change(&timing(), at(20), 0.0, unchanged(fate)).unwrap_err();
            assert_eq!(state.enter_again(&timing(), at(20)), enters, "{fate:?}");
            let changes = state.begin_mode_change(&timing(), at(20));
            assert_eq!(changes, Ok(enters.is_err()), "with one lease it can be tried again");
        }
    }

    #[test]
    fn hold_whose_mode_is_unknown_is_not_handed_off() {
        for (fate, may) in [(Fate::NotExecuted, true), (Fate::Unknown, false)] {
            let mut state = held();
            state.begin_mode_change(&timing(), at(11)).unwrap();
            state.end_mode_change(&timing(), at(14), 0.0, unchanged(fate)).unwrap_err();
            assert_eq!(state.may_hand_off(&timing(), at(15), 1), may);
        }
    }

    #[test]
    fn tokens_fire_first_then_comes_the_release_or_the_grace() {
        let mut state = State::granted(at(0), at(333), Some(at(200)), None);
        assert_eq!(state.wake_at(&timing()), Some(at(200)));
        assert_eq!(state.tick(&timing(), at(200)), DueWork::Nothing);
        assert_eq!(state.phase(), Phase::Lost(Loss::MaxHold));
        assert_eq!(state.begin_release(&timing(), at(250)), Next::Nothing, "the lease is alive");
        assert_eq!(state.enter_again(&timing(), at(250)), Err(NoEntry::Lost(Loss::MaxHold)));
        assert_eq!(state.wake_at(&timing()), Some(at(300)));
        assert_eq!(state.tick(&timing(), at(300)), DueWork::Release);
        assert_eq!(state.tick(&timing(), at(301)), DueWork::Nothing, "once");
        assert_eq!(state.begin_release(&timing(), at(301)), Next::Release);
        state.released(&timing(), at(302), Ok(None)).unwrap();
        assert!(state.is_over());
        assert_eq!(state.phase(), Phase::Lost(Loss::MaxHold), "lost is terminal");

        let mut state = State::granted(at(0), at(333), None, None);
        state.lose(Loss::Closed, Some(at(150)));
        state.leave(&timing(), at(60));
        assert_eq!(
            state.begin_release(&timing(), at(60)),
            Next::Release,
            "dropped before the grace"
        );
    }

    #[test]
    fn grant_copies_that_may_still_arrive_are_swept() {
        let mut state = State::granted(at(0), at(333), None, Some(at(900)));
        state.leave(&timing(), at(10));
        state.begin_release(&timing(), at(10));
        state.released(&timing(), at(11), Ok(None)).unwrap();
        assert_eq!(state.sweep(&timing(), at(11)), Some((at(11), at(900))));
        assert_eq!(state.sweep(&timing(), at(900)), None);
    }

    #[test]
    fn grant_copies_of_an_expired_hold_are_swept_only_after_d() {
        let mut state = State::granted(at(0), at(333), None, Some(at(1500)));
        state.tick(&timing(), at(888));
        assert_eq!(state.phase(), Phase::Lost(Loss::Expired));
        assert_eq!(state.sweep(&timing(), at(888)), Some((at(988), at(1500))));
    }

    #[test]
    fn release_that_may_have_run_explains_an_absence_until_d() {
        for (now, explained) in [(987, true), (988, false)] {
            let mut state = held();
            state.leave(&timing(), at(10));
            state.begin_release(&timing(), at(10));
            assert!(state.released(&timing(), at(20), Err(unavailable())).is_err());
            state.begin_release(&timing(), at(30));
            let result = state.released(&timing(), at(now), Ok(Some(Absence::Gone)));
            assert_eq!(result.is_ok(), explained);
        }
        let mut state = held();
        state.leave(&timing(), at(10));
        state.begin_release(&timing(), at(10));
        let result = state.released(&timing(), at(20), Ok(Some(Absence::Gone)));
        assert_eq!(result.unwrap_err().loss(), Some(Loss::Gone));
    }

    /// Another client has an exclusive lock where a reader was.
    #[test]
    fn release_that_may_have_run_explains_a_key_of_another_type() {
        let wrong_type = || Err(Error::new(ErrorKind::WrongType, "test"));
        let mut state = held();
        state.leave(&timing(), at(10));
        state.begin_release(&timing(), at(10));
        assert!(state.released(&timing(), at(20), Err(unavailable())).is_err());
        state.begin_release(&timing(), at(30));
        assert!(state.released(&timing(), at(40), wrong_type()).is_ok(), "the first one had run");
        let mut state = held();
        state.leave(&timing(), at(10));
        state.begin_release(&timing(), at(10));
        for now in [20, 30] {
            let error = state.released(&timing(), at(now), wrong_type()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongType, "nothing had run before");
            state.begin_release(&timing(), at(now));
        }
    }

    #[test]
    fn hold_that_is_forgotten_is_neither_renewed_nor_released() {
        let mut state = held();
        state.forget();
        assert!(state.is_over());
        assert_eq!(state.wake_at(&timing()), None);
        assert_eq!(state.begin_release(&timing(), at(1)), Next::Nothing);
    }

    #[test]
    fn renewal_is_not_sent_from_c_on() {
        let mut state = held();
        assert_eq!(state.begin_renewal(&timing(), at(888)), DueWork::Nothing);
        assert!(matches!(state.begin_renewal(&timing(), at(887)), DueWork::Renew(_)));
        let mut left = held();
        left.leave(&timing(), at(10));
        assert_eq!(left.begin_renewal(&timing(), at(11)), DueWork::Nothing);
    }

    #[test]
    fn loss_by_close_keeps_its_own_time_of_release() {
        let mut state = held();
        let attempt = renew(&mut state, 333);
        state.lose(Loss::Closed, Some(at(400)));
        verdict(&mut state, 350, attempt, 333, Ok(None));
        assert_eq!(state.wake_at(&timing()), Some(at(400)));
        state.owe(at(700));
        assert_eq!(state.wake_at(&timing()), Some(at(400)));
    }

    #[test]
    fn release_is_owed_only_of_a_lost_hold() {
        let mut state = held();
        state.owe(at(700));
        assert_eq!(state.wake_at(&timing()), Some(at(333)));
        state.lose(Loss::Expired, None);
        assert_eq!(state.wake_at(&timing()), None);
        assert!(state.is_over());
        state.owe(at(700));
        assert!(!state.is_over());
        assert_eq!(state.wake_at(&timing()), Some(at(700)));
    }

    #[test]
    fn loss_is_returned_also_when_only_the_release_finds_it() {
        let mut state = held();
        assert_eq!(state.loss(), None);
        state.lose(Loss::Taken, None);
        assert_eq!(state.loss(), Some(Loss::Taken));

        let mut state = held();
        state.leave(&timing(), at(10));
        state.begin_release(&timing(), at(10));
        state.released(&timing(), at(20), Ok(Some(Absence::Gone))).unwrap_err();
        assert_eq!(state.loss(), Some(Loss::Gone));
    }

    #[test]
    fn mode_change_that_finds_another_type_is_a_loss() {
        let mut state = held();
        state.begin_mode_change(&timing(), at(10)).unwrap();
        let failed = ChangeVerdict::Failed(Error::new(ErrorKind::WrongType, "test"));
        state.end_mode_change(&timing(), at(11), 0.0, failed).unwrap_err();
        assert_eq!(state.phase(), Phase::Lost(Loss::Taken));
    }

    #[test]
    fn handoff_not_accepted_is_recalled_at_its_renewal() {
        let mut state = held().hand_off(at(400));
        assert_eq!(state.wake_at(&timing()), Some(at(400)), "not before it could be accepted");
        assert_eq!(state.tick(&timing(), at(399)), DueWork::Nothing);
        assert_eq!(state.tick(&timing(), at(400)), DueWork::Recalled);
        assert_eq!(state.begin_release(&timing(), at(400)), Next::Release);
        assert!(!state.accept(&timing(), at(400), None));
        // After a reconnect it is not sure any more.
        let mut state = held().hand_off(at(0));
        assert_eq!(state.renew_or_recall(&timing(), at(1)), DueWork::Recalled);
        let mut state = held().hand_off(at(0));
        assert!(!state.accept(&timing(), at(600), None), "too little is left");
    }

    #[test]
    fn fence_not_reserved_must_lie_behind_the_stores_clock() {
        let micros = |micros| Instant::ZERO + Duration::from_micros(micros);
        let mut state = held();
        state.reached(micros(1_001));
        assert!(!state.has_fence(micros(1_000), 1));
        assert!(state.has_fence(micros(1_000), 2), "reserved by the grant");
        // The first after it needs three microseconds, by a clock that is 1 % slower.
        assert!(!state.has_fence(micros(1_004), 1));
        assert!(state.has_fence(micros(1_005), 1));
        let next = state.hand_off(at(0));
        assert!(next.has_fence(micros(1_000), 3));
        assert!(!next.has_fence(micros(1_000), 2));
        assert!(!next.has_fence(micros(1_005), 2));
        assert!(next.has_fence(micros(1_006), 2));
        assert!(!next.has_fence(at(0), 2), "before it is reached");
    }

    #[test]
    fn hold_without_a_live_lease_is_not_renewed_and_ends_by_loss() {
        let mut state = held();
        state.begin_mode_change(&timing(), at(10)).unwrap();
        state.leave(&timing(), at(20));
        assert_eq!(state.phase(), Phase::Held, "its mode is being changed");
        assert_eq!(state.wake_at(&timing()), Some(at(888)));
        assert_eq!(state.tick(&timing(), at(400)), DueWork::Nothing);
        assert_eq!(state.tick(&timing(), at(888)), DueWork::Nothing);
        assert_eq!(state.phase(), Phase::Lost(Loss::Expired));
        assert!(state.is_over() && state.is_busy());
        assert_eq!(state.begin_release(&timing(), at(888)), Next::Nothing);
    }

    #[test]
    fn release_that_is_not_polled_ends_with_the_key() {
        let mut state = held();
        state.leave(&timing(), at(20));
        assert_eq!(state.begin_release(&timing(), at(20)), Next::Release);
        assert_eq!(state.wake_at(&timing()), Some(at(988)));
        assert_eq!(state.tick(&timing(), at(987)), DueWork::Nothing);
        assert!(!state.is_over());
        assert_eq!(state.tick(&timing(), at(988)), DueWork::Nothing);
        assert!(state.is_over() && state.is_busy());
        assert_eq!(state.begin_release(&timing(), at(988)), Next::Nothing);
        // A release that is owed ends some attempts after its time.
        let mut state = held();
        state.begin_mode_change(&timing(), at(10)).unwrap();
        state.lose(Loss::Closed, Some(at(900)));
        assert_eq!(state.tick(&timing(), at(900)), DueWork::Release);
        let end = state.wake_at(&timing()).expect("it is checked again");
        assert!(end > at(988) && !state.is_over());
        assert_eq!(state.tick(&timing(), end), DueWork::Nothing);
        assert!(state.is_over());
    }

    #[test]
    fn handoff_chain_ends_by_its_own_time_and_count() {
        let mut state = held();
        let chain = timing().longest_chain;
        assert!(state.may_hand_off(&timing(), at(99), 1));
        assert!(!state.may_hand_off(&timing(), Instant::ZERO + chain, 1));
        // A renewal does not restart the time of the chain.
        let attempt = match state.begin_renewal(&timing(), at(20)) {
            DueWork::Renew(attempt) => attempt.number,
            due => panic!("{due:?}"),
        };
        assert!(!state.may_hand_off(&timing(), at(21), 1), "a renewal is in flight");
        state.renewed(
            &timing(),
            at(30),
            0.0,
            SentRenewal { attempt, sent: at(20), keeps_fence: false },
            Ok(None),
        );
        let mut next = state.hand_off(at(0));
        assert_eq!(state.phase(), Phase::Released);
        assert!(!next.may_hand_off(&timing(), at(40), 1), "handed off once");
        assert!(next.may_hand_off(&timing(), at(40), 2));
        assert!(!next.may_hand_off(&timing(), Instant::ZERO + chain, 2));
        assert_eq!(next.begin_renewal(&timing(), at(40)), DueWork::Nothing, "not accepted yet");
        assert!(next.accept(&timing(), at(40), None));
        match next.begin_renewal(&timing(), at(40)) {
            DueWork::Renew(attempt) => assert_eq!(attempt.fence_kept, at(0), "since the grant"),
            due => panic!("{due:?}"),
        }
        let ends = State::granted(at(0), at(333), Some(at(50)), None);
        assert!(ends.may_hand_off(&timing(), at(49), 1));
        assert!(!ends.may_hand_off(&timing(), at(50), 1), "max_hold ends it");
    }

    #[test]
    fn max_hold_counts_from_the_acceptance_of_a_handoff() {
        let mut state = State::granted(at(0), at(333), Some(at(50)), None);
        let mut next = state.hand_off(at(0));
        next.expire(&timing(), at(60));
        assert!(next.accept(&timing(), at(60), Some(Duration::from_millis(50))));
        assert_eq!(next.max_until(), Some(at(110)));
        next.expire(&timing(), at(110));
        assert_eq!(next.phase(), Phase::Lost(Loss::MaxHold));
    }

    #[test]
    fn lease_that_is_forgotten_leaves_a_hold_with_another_as_is() {
        let mut state = entered();
        state.forget();
        assert_eq!(state.phase(), Phase::Held);
        assert!(state.wake_at(&timing()).is_some(), "still renewed");

        let mut changing = held();
        changing.begin_mode_change(&timing(), at(10)).unwrap();
        changing.forget();
        assert_eq!(changing.phase(), Phase::Held, "the change decides");
    }

    #[test]
    fn background_release_runs_once_at_a_time() {
        let mut state = held();
        assert!(state.begin_background_release());
        assert!(!state.begin_background_release());
        state.end_background_release();
        assert!(state.begin_background_release());
    }

    /// A read hold with one lease, at its best.
    fn read() -> State {
        let mut state = held();
        state.share();
        state
    }

    #[test]
    fn read_hold_is_joined_while_it_is_as_good_as_new() {
        let mut state = read();
        assert!(state.join(&timing(), at(99)) && state.live() == 2);
        assert!(!state.needs_release(), "the store counts one");
        assert!(!state.join(&timing(), at(100)), "after T/10 the store is asked");
        state.leave(&timing(), at(100));
        assert!(!state.needs_release());
        state.leave(&timing(), at(100));
        assert_eq!((state.begin_release(&timing(), at(100)), state.live()), (Next::Release, 0));
        assert!(!state.join(&timing(), at(50)), "it is being released");
    }

    #[test]
    fn read_hold_at_risk_changing_or_ending_is_not_joined() {
        let joins = |change: &dyn Fn(&mut State)| {
            let mut state = read();
            change(&mut state);
            let live = state.live();
            let joined = state.join(&timing(), at(50));
            assert_eq!(state.live(), live + u32::from(joined));
            joined
        };
        assert!(joins(&|_| {}));
        assert!(!joins(&|state| {
            state.renew_at(at(10));
            let attempt = renew(state, 10);
            let failed = Err(unavailable());
            verdict(state, 20, attempt, 10, failed);
            assert_eq!(state.phase(), Phase::AtRisk);
        }));
        assert!(!joins(&|state| assert!(state.begin_mode_change(&timing(), at(10)).unwrap())));
        assert!(!joins(&|state| {
            state.begin_mode_change(&timing(), at(10)).unwrap();
            state.end_mode_change(&timing(), at(20), 0.0, unchanged(Fate::Unknown)).unwrap_err();
        }));
        assert!(!joins(&|state| state.lose(Loss::Revoked, None)));
        assert!(!joins(&|state| state.max_until = Some(at(50))));
        let mut plain = held();
        assert!(!plain.join(&timing(), at(50)), "its leases are counted in the store");
    }

    #[test]
    fn read_hold_at_risk_is_entered_again_by_its_own_handle() {
        let mut state = read();
        let attempt = renew(&mut state, 333);
        verdict(&mut state, 340, attempt, 333, Err(unavailable()));
        assert_eq!((state.join_again(at(350)), state.live()), (None, 2));
        state.lose(Loss::Gone, None);
        assert_eq!((state.join_again(at(350)), state.live()), (Some(NoEntry::Lost(Loss::Gone)), 2));
    }

    const LINGER: Duration = Duration::from_millis(20);

    /// One that rests from 50 ms on, as far as it may.
    fn rests(mut state: State, linger: Duration) -> Option<(State, State)> {
        let next = state.rest(&timing(), at(50), linger)?;
        Some((state, next))
    }

    #[test]
    fn hold_that_rests_is_over_for_its_holder_and_is_not_renewed() {
        let (state, mut next) = rests(held(), LINGER).unwrap();
        assert_eq!((state.phase(), state.live(), state.is_over()), (Phase::Released, 0, true));
        assert!(next.is_resting() && next.is_offered() && !next.has_a_caller());
        assert_eq!((next.phase(), next.wake_at(&timing())), (Phase::Held, Some(at(70))));
        assert_eq!(next.begin_renewal(&timing(), at(60)), DueWork::Nothing);
        assert_eq!(next.tick(&timing(), at(69)), DueWork::Nothing);
        assert_eq!(next.tick(&timing(), at(70)), DueWork::Recalled);
        assert_eq!((next.phase(), next.needs_release()), (Phase::Releasing, true));
    }

    #[test]
    fn rest_ends_with_the_chain_and_before_a_renewal() {
        // A tenth of T after the grant.
        let (_, next) = rests(held(), Duration::from_secs(1)).unwrap();
        assert_eq!(next.wake_at(&timing()), Some(at(100)));
        let early = State::granted(at(0), at(60), None, None);
        let (_, next) = rests(early, Duration::from_secs(1)).unwrap();
        assert_eq!(next.wake_at(&timing()), Some(at(60)));
        let due = State::granted(at(0), at(50), None, None);
        assert!(rests(due, LINGER).is_none());
        assert!(held().rest(&timing(), at(100), LINGER).is_none());
        // A renewal that is in flight.
        let mut renewing = State::granted(at(0), at(40), None, None);
        renew(&mut renewing, 40);
        assert!(rests(renewing, LINGER).is_none());
    }

    #[test]
    fn hold_that_others_wait_for_does_not_rest() {
        for scope in [HandoffScope::All, HandoffScope::Before(at(0))] {
            let mut state = held();
            state.set_handoff_scope(scope);
            assert!(rests(state, LINGER).is_none(), "{scope:?}");
        }
        let mut state = held();
        assert!(!state.wanted_elsewhere());
        assert!(state.rest(&timing(), at(50), LINGER).is_none());
        // Nor does the next one of its chain.
        let mut next = state.hand_off(at(60));
        assert!(next.accept(&timing(), at(50), None));
        assert!(next.rest(&timing(), at(50), LINGER).is_none());
        // One that comes back from its waiter is released.
        let mut offered = held().hand_off(at(60));
        assert!(offered.rest(&timing(), at(50), LINGER).is_none());
        let (_, mut next) = rests(held(), LINGER).unwrap();
        assert!(next.wanted_elsewhere());
    }

    #[test]
    fn rest_that_ends_in_time_goes_on_as_a_hand_off() {
        let (_, mut next) = rests(held(), LINGER).unwrap();
        next.end_rest(at(60), at(333));
        assert!(!next.is_resting() && next.is_offered());
        assert!(next.may_hand_off(&timing(), at(60), 1), "the rest itself is none");
        let mut taken = next.hand_off(at(60));
        assert!(!taken.may_hand_off(&timing(), at(60), 1));
        assert!(taken.accept(&timing(), at(60), None));
        assert_eq!(
            (taken.phase(), taken.live(), taken.wake_at(&timing())),
            (Phase::Held, 1, Some(at(333)))
        );
        // Not again: the other call finds what it is now.
        next.end_rest(at(60), at(333));
        assert!(!next.may_hand_off(&timing(), at(60), 9));
    }

    /// The process did not run meanwhile.
    #[test]
    fn rest_whose_time_has_passed_is_only_released() {
        for late in [70, 400, 5_000] {
            let (_, mut next) = rests(held(), LINGER).unwrap();
            next.end_rest(at(late), at(late + 333));
            assert!(!next.may_hand_off(&timing(), at(late), 9), "{late}");
            next.leave(&timing(), at(late));
            assert_eq!(next.is_over(), late == 5_000, "expired by then");
            assert_eq!(next.needs_release(), late != 5_000);
        }
    }

    #[test]
    fn loss_of_a_hold_that_rests_waits_for_no_lease() {
        for (loss, owed) in [(Loss::Closed, Some(at(160))), (Loss::Revoked, None)] {
            let (_, mut next) = rests(held(), LINGER).unwrap();
            next.lose(loss, owed);
            assert_eq!((next.live(), next.is_resting()), (0, true));
            assert_eq!((next.needs_release(), next.is_over()), (owed.is_some(), owed.is_none()));
            next.end_rest(at(60), at(333));
            assert!(!next.may_hand_off(&timing(), at(60), 9));
        }
    }
}
