//! The state machine of a hold: pure transitions over time, without I/O, locks or clocks.

pub(crate) use super::count::{ChangeVerdict, Next, Recorder, Reentry};
pub(crate) use super::end::Ended;
pub(crate) use super::policy::Terms;

use super::scope::HandoffScope;
use super::timing::Timing;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::store::Absence;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// The phase of a hold.
pub(crate) enum Phase {
    Held,
    AtRisk,
    Lost(Loss),
    /// The count is zero: the release is in flight, or will be retried.
    Releasing,
    /// The store has released it, or it is left to expire.
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// The next renewal of a hold.
pub(super) enum NextRenewal {
    Due(Instant),
    /// In a batch, which the watchdog checks in time for each hold in it.
    UnderWay {
        attempt: u32,
    },
    Stopped,
}

/// The work for a hold that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Renew(RenewalAttempt),
    Flush,
    /// Flush it: its waiter did not accept it in time.
    TakenBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// The part of the state that tasks wait on.
pub(in crate::engine) struct Visible {
    pub(in crate::engine) phase: Phase,
    pub(super) confirmed: Instant,
    busy: bool,
    over: bool,
}

/// A renewal to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RenewalAttempt {
    pub(crate) number: u32,
    /// The time after which it must not be sent.
    pub(crate) believed_until: Instant,
    pub(crate) fence_kept: Instant,
}

/// The request in flight that changes the hold in the store. There is at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InFlight {
    None,
    /// A change of the mode, which closes the hold itself if no lease is left at its end.
    ModeChange,
    Release,
}

/// The record of the count. There is at most one for a holder id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Recording {
    #[default]
    Idle,
    /// It is submitted, and reads the count when it is sent.
    Queued,
    InFlight(u32),
}

/// The state of a release that is owed to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cleanup {
    Idle,
    /// The watchdog has submitted it.
    Queued,
    /// A flush is running, one at a time, so that the gaps between attempts hold. The watchdog may
    /// have submitted another one meanwhile.
    Running {
        queued: bool,
    },
}

/// The count in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    Known(u32),
    /// A record of this count has failed. It is not repeated.
    Tried(u32),
    Unknown,
    /// 1, whatever the number of leases: a read hold.
    One,
}

impl Recorded {
    /// Returns whether this count needs no further record.
    pub(super) fn is(self, count: u32) -> bool {
        match self {
            Self::Known(recorded) | Self::Tried(recorded) => recorded == count,
            Self::Unknown => false,
            Self::One => true,
        }
    }
}

/// The state of a hold and of its operations in flight.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) phase: Phase,
    pub(super) in_flight: InFlight,
    /// True if the store may have changed the mode, and did not say so.
    pub(super) mode_unknown: bool,
    pub(super) cleanup: Cleanup,
    /// True if it was handed off to a waiter that has not accepted it yet.
    pub(super) offered: bool,
    /// True if a release that failed may have run.
    pub(super) release_unknown: bool,
    /// Set when the release found that the hold was already lost.
    pub(super) found_lost: Option<Loss>,
    /// The time at which the last confirmed grant or renewal was sent.
    pub(super) confirmed: Instant,
    pub(super) renewal: NextRenewal,
    /// The number of the last renewal attempt.
    pub(super) attempts: u32,
    /// The number of failed renewals in a row.
    pub(super) failures: u32,
    /// The end of `max_hold`.
    pub(super) max_until: Option<Instant>,
    /// The time at which the store last extended its memory of the fencing token.
    pub(super) fence_kept: Instant,
    /// The number of live leases in this process.
    pub(super) live: u32,
    /// The count in the store.
    pub(super) recorded: Recorded,
    pub(super) recording: Recording,
    /// The number of hand-offs since the grant of the store.
    pub(super) handoffs: u32,
    /// The time at which the request was sent that the store granted.
    pub(super) chain_began: Instant,
    /// The time by which the store's clock had surely reached the first fencing token of the grant;
    /// `Instant::MAX` if unknown.
    pub(super) reached: Instant,
    /// To whom it may be handed off.
    pub(super) scope: HandoffScope,
    /// The latest time of the release that is owed to the store, if the key is still ours after the
    /// loss.
    pub(super) owed: Option<Instant>,
    /// The time until which earlier requests of the grant with an unknown fate may run.
    pub(super) unsure_until: Option<Instant>,
    /// The error of the last release that failed.
    pub(super) release_error: Option<Error>,
    /// True if the store has answered the release.
    pub(super) answered: bool,
    /// `None` for most holds.
    pub(super) terms: Option<Box<Terms>>,
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
            confirmed: sent,
            renewal: NextRenewal::Due(renew),
            attempts: 0,
            failures: 0,
            chain_began: sent,
            reached: sent,
            scope: HandoffScope::Plain,
            handoffs: 0,
            live: 1,
            recorded: Recorded::Known(1),
            recording: Recording::Idle,
            offered: false,
            in_flight: InFlight::None,
            mode_unknown: false,
            cleanup: Cleanup::Idle,
            owed: None,
            max_until,
            unsure_until,
            fence_kept: sent,
            release_error: None,
            answered: false,
            release_unknown: false,
            found_lost: None,
            terms: None,
        }
    }

    pub(in crate::engine) fn phase(&self) -> Phase {
        self.phase
    }

    pub(in crate::engine) fn confirmed(&self) -> Instant {
        self.confirmed
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
        let (busy, over) = (self.is_busy(), self.is_over());
        Visible { phase: self.phase, confirmed: self.confirmed, busy, over }
    }

    /// Returns whether the holder may rely on the hold.
    pub(in crate::engine) fn believed(&self) -> bool {
        matches!(self.phase, Phase::Held | Phase::AtRisk)
    }

    /// Returns whether nothing more is sent for the hold, so that the next waiter may ask the
    /// store.
    pub(in crate::engine) fn is_over(&self) -> bool {
        // After a loss, an operation that is still in flight changes nothing any more.
        let is_done = matches!(self.phase, Phase::Lost(_)) && self.owed.is_none();
        is_done || self.phase == Phase::Released
    }

    /// Returns `D`: the time until which the store surely keeps the key.
    pub(in crate::engine) fn deadline(&self, timing: &Timing) -> Instant {
        timing.deadline(self.confirmed)
    }

    /// Returns `C`, or the end of `max_hold` if that is earlier: the time until which the holder
    /// may rely on the hold.
    pub(in crate::engine) fn believed_until(&self, timing: &Timing) -> Instant {
        let cancel = timing.cancel(self.confirmed);
        self.max_until.map_or(cancel, |max| max.min(cancel))
    }

    /// Returns whether a release is due now.
    pub(in crate::engine) fn needs_flush(&self) -> bool {
        match self.phase {
            Phase::Releasing => true,
            Phase::Lost(_) => self.owed.is_some() && self.live == 0,
            Phase::Held | Phase::AtRisk | Phase::Released => false,
        }
    }

    /// Returns the time at which the watchdog must check this hold again.
    pub(in crate::engine) fn wake_at(&self, timing: &Timing) -> Option<Instant> {
        match self.phase {
            Phase::Held | Phase::AtRisk => {
                let end = self.ends_at(timing);
                let at = match self.renewal {
                    NextRenewal::Due(at) if self.is_kept() => Some(at.min(end)),
                    // The batch is watched, but for this.
                    NextRenewal::UnderWay { .. } => self.stalls_at(timing),
                    NextRenewal::Due(_) | NextRenewal::Stopped => Some(end),
                };
                at.into_iter().chain(self.warns_at()).min()
            }
            Phase::Releasing => Some(self.abandoned_at(timing)),
            Phase::Lost(_) if self.is_queued() => self.owed.map(|_| self.abandoned_at(timing)),
            Phase::Lost(_) => self.owed,
            Phase::Released => None,
        }
    }

    pub(in crate::engine) fn is_releasing(&self) -> bool {
        self.phase == Phase::Releasing
    }

    /// Returns whether it may be renewed: it has a live lease that a waiter has accepted.
    fn renewable(&self) -> bool {
        self.is_kept() && !self.offered
    }

    /// Sets the time by which the store's clock has reached the first fencing token.
    pub(in crate::engine) fn reached(&mut self, time: Instant) {
        self.reached = time;
    }

    /// Loses the hold. With `owed` the key is still ours, and is to be released by then.
    pub(in crate::engine) fn lose(&mut self, loss: Loss, owed: Option<Instant>) {
        if self.believed() {
            self.phase = Phase::Lost(loss);
            self.renewal = NextRenewal::Stopped;
            self.owed = owed;
        }
    }

    /// Loses the hold if `C` or the end of `max_hold` has passed.
    pub(in crate::engine) fn expire(&mut self, timing: &Timing, now: Instant) {
        if now >= timing.cancel(self.confirmed) {
            self.lose(Loss::Expired, None);
        } else if self.max_until.is_some_and(|max| now >= max) {
            self.lose(Loss::MaxHold, Some(now + timing.grace));
        } else if self.silent_at(timing).is_some_and(|at| now >= at) {
            self.lose_silent(now);
        } else if self.stalls_at(timing).is_some_and(|at| now >= at) {
            self.lose(Loss::Stalled, Some(now + timing.grace));
        }
    }

    /// Returns the work that is due at `now`, and starts it.
    pub(in crate::engine) fn tick(&mut self, timing: &Timing, now: Instant) -> Due {
        self.expire(timing, now);
        if (self.is_queued() || self.phase == Phase::Releasing) && now >= self.abandoned_at(timing)
        {
            self.end();
        }
        self.keep_delay(timing, now);
        if let Phase::Lost(_) = self.phase {
            let due = self.owed.is_some_and(|at| at <= now || self.live == 0) && !self.is_queued();
            if due {
                self.set_queued(true);
            }
            return if due { Due::Flush } else { Due::Nothing };
        }
        match self.renewal {
            NextRenewal::Due(at) if at <= now => self.verify(timing, now),
            _ => Due::Nothing,
        }
    }

    /// Starts a renewal, or takes the hold back if its waiter has not accepted it.
    pub(in crate::engine) fn verify(&mut self, timing: &Timing, now: Instant) -> Due {
        if !self.offered || !self.believed() {
            return self.renew_early(timing, now);
        }
        self.leave(timing, now);
        Due::TakenBack
    }

    pub(super) fn attempt(&mut self, believed_until: Instant) -> RenewalAttempt {
        let number = self.attempts.wrapping_add(1);
        self.attempts = number;
        self.renewal = NextRenewal::UnderWay { attempt: number };
        RenewalAttempt { number, believed_until, fence_kept: self.fence_kept }
    }

    /// Makes the next renewal due now.
    pub(in crate::engine) fn renew_at(&mut self, now: Instant) {
        if let (true, NextRenewal::Due(at)) = (self.believed(), self.renewal) {
            self.renewal = NextRenewal::Due(at.min(now));
        }
    }

    /// Starts a renewal that is not due yet.
    pub(in crate::engine) fn renew_early(&mut self, timing: &Timing, now: Instant) -> Due {
        match self.renewal {
            NextRenewal::Due(_)
                if self.renewable() && self.believed() && now < self.believed_until(timing) =>
            {
                Due::Renew(self.attempt(self.believed_until(timing)))
            }
            _ => Due::Nothing,
        }
    }

    /// Applies the verdict on renewal `attempt`, which was sent at `sent`.
    pub(in crate::engine) fn renewed(
        &mut self,
        timing: &Timing,
        now: Instant,
        jitter: f64,
        (attempt, sent, fence_kept): (u32, Instant, bool),
        verdict: Result<Option<Absence>>,
    ) {
        self.expire(timing, now);
        if !self.believed() {
            if let Ok(None) = verdict {
                self.owe_late(timing, sent, now);
            }
            return;
        }
        match verdict {
            Ok(None) => {
                self.confirm_jittered(timing, sent, jitter);
                if fence_kept {
                    self.fence_kept = sent;
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
        // An attempt that was given up may still fail later; that counts once only.
        if self.renewal != (NextRenewal::UnderWay { attempt }) {
            return;
        }
        self.phase = Phase::AtRisk;
        self.failures = self.failures.saturating_add(1);
        self.renewal = NextRenewal::Due(now + timing.gap(self.failures, jitter));
    }

    pub(super) fn confirm_jittered(&mut self, timing: &Timing, sent: Instant, jitter: f64) {
        let latest = self.confirmed.max(sent);
        self.confirm(latest, timing.renewal(latest, jitter));
    }

    /// Records the confirmation of a request sent at `sent`, and the time of the next renewal.
    pub(super) fn confirm(&mut self, sent: Instant, next: Instant) {
        self.confirmed = sent;
        self.phase = Phase::Held;
        self.failures = 0;
        self.renewal = NextRenewal::Due(next);
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fate;
    use std::time::Duration;

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
            Due::Renew(attempt) => attempt.number,
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
        state.renewed(&timing(), at(now), 0.0, (attempt, at(sent), false), verdict);
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
            if let Due::Renew(attempt) = state.tick(&timing(), now) {
                attempts += 1;
                assert_eq!(state.wake_at(&timing()), None, "its batch is checked");
                state.unanswered(&timing(), now + timing().attempt, 1.0, attempt.number);
            }
        }
        assert_eq!(attempts, 3);
        assert_eq!(state.tick(&timing(), at(888)), Due::Nothing);
        assert_eq!(state.phase(), Phase::Lost(Loss::Expired));
        assert_eq!(state.wake_at(&timing()), None);
        assert_eq!(state.renew_early(&timing(), at(889)), Due::Nothing);
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
        assert_eq!(state.tick(&timing(), at(500)), Due::Nothing, "a gap first");
        let second = renew(&mut state, 520);
        verdict(&mut state, 530, first, 333, Err(unavailable()));
        state.unanswered(&timing(), at(531), 0.0, first);
        assert_eq!(state.renewal, NextRenewal::UnderWay { attempt: second });
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
        assert_eq!(state.tick(&timing(), at(988)), Due::Flush);
        assert_eq!(state.begin_release(&timing(), at(988)), Next::Release);
    }

    #[test]
    fn hold_closes_in_the_step_that_ends_its_last_lease() {
        let mut state = held();
        assert_eq!(state.leave(&timing(), at(10)), Phase::Held);
        assert_eq!(state.phase(), Phase::Releasing);
        assert_eq!(state.enter_again(&timing(), at(11)), Err(Reentry::Over));
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
        assert_eq!(state.enter_again(&timing(), at(12)), Err(Reentry::Busy));
        assert_eq!(state.begin_mode_change(&timing(), at(12)), Err(Reentry::Busy));
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
        for (fate, enters) in [(Fate::NotExecuted, Ok(())), (Fate::Unknown, Err(Reentry::Over))] {
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
        assert_eq!(state.tick(&timing(), at(200)), Due::Nothing);
        assert_eq!(state.phase(), Phase::Lost(Loss::MaxHold));
        assert_eq!(state.begin_release(&timing(), at(250)), Next::Nothing, "the lease is alive");
        assert_eq!(state.enter_again(&timing(), at(250)), Err(Reentry::Lost(Loss::MaxHold)));
        assert_eq!(state.wake_at(&timing()), Some(at(300)));
        assert_eq!(state.tick(&timing(), at(300)), Due::Flush);
        assert_eq!(state.tick(&timing(), at(301)), Due::Nothing, "once");
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
        assert_eq!(state.renew_early(&timing(), at(888)), Due::Nothing);
        assert!(matches!(state.renew_early(&timing(), at(887)), Due::Renew(_)));
        let mut left = held();
        left.leave(&timing(), at(10));
        assert_eq!(left.renew_early(&timing(), at(11)), Due::Nothing);
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
    fn handoff_not_accepted_is_taken_back_at_its_renewal() {
        let mut state = held().hand_off(at(400));
        assert_eq!(state.wake_at(&timing()), Some(at(400)), "not before it could be accepted");
        assert_eq!(state.tick(&timing(), at(399)), Due::Nothing);
        assert_eq!(state.tick(&timing(), at(400)), Due::TakenBack);
        assert_eq!(state.begin_release(&timing(), at(400)), Next::Release);
        assert!(!state.accept(&timing(), at(400), None));
        // After a reconnect it is not sure any more.
        let mut state = held().hand_off(at(0));
        assert_eq!(state.verify(&timing(), at(1)), Due::TakenBack);
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
        assert_eq!(state.tick(&timing(), at(400)), Due::Nothing);
        assert_eq!(state.tick(&timing(), at(888)), Due::Nothing);
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
        assert_eq!(state.tick(&timing(), at(987)), Due::Nothing);
        assert!(!state.is_over());
        assert_eq!(state.tick(&timing(), at(988)), Due::Nothing);
        assert!(state.is_over() && state.is_busy());
        assert_eq!(state.begin_release(&timing(), at(988)), Next::Nothing);
        // A release that is owed ends some attempts after its time.
        let mut state = held();
        state.begin_mode_change(&timing(), at(10)).unwrap();
        state.lose(Loss::Closed, Some(at(900)));
        assert_eq!(state.tick(&timing(), at(900)), Due::Flush);
        let end = state.wake_at(&timing()).expect("it is checked again");
        assert!(end > at(988) && !state.is_over());
        assert_eq!(state.tick(&timing(), end), Due::Nothing);
        assert!(state.is_over());
    }

    #[test]
    fn handoff_chain_ends_by_its_own_time_and_count() {
        let mut state = held();
        let chain = timing().longest_chain;
        assert!(state.may_hand_off(&timing(), at(99), 1));
        assert!(!state.may_hand_off(&timing(), Instant::ZERO + chain, 1));
        // A renewal does not restart the time of the chain.
        let attempt = match state.renew_early(&timing(), at(20)) {
            Due::Renew(attempt) => attempt.number,
            due => panic!("{due:?}"),
        };
        assert!(!state.may_hand_off(&timing(), at(21), 1), "a renewal is in flight");
        state.renewed(&timing(), at(30), 0.0, (attempt, at(20), false), Ok(None));
        let mut next = state.hand_off(at(0));
        assert_eq!(state.phase(), Phase::Released);
        assert!(!next.may_hand_off(&timing(), at(40), 1), "handed off once");
        assert!(next.may_hand_off(&timing(), at(40), 2));
        assert!(!next.may_hand_off(&timing(), Instant::ZERO + chain, 2));
        assert_eq!(next.renew_early(&timing(), at(40)), Due::Nothing, "not accepted yet");
        assert!(next.accept(&timing(), at(40), None));
        match next.renew_early(&timing(), at(40)) {
            Due::Renew(attempt) => assert_eq!(attempt.fence_kept, at(0), "since the grant"),
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
    fn flush_runs_once_at_a_time() {
        let mut state = held();
        assert!(state.begin_flush());
        assert!(!state.begin_flush());
        state.end_flush();
        assert!(state.begin_flush());
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
        assert!(!state.needs_flush(), "the store counts one");
        assert!(!state.join(&timing(), at(100)), "after T/10 the store is asked");
        state.leave(&timing(), at(100));
        assert!(!state.needs_flush());
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
        assert_eq!((state.join_again(at(350)), state.live()), (Some(Reentry::Lost(Loss::Gone)), 2));
    }
}
