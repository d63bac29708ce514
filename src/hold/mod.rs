//! The life of one hold: granted, renewed, at risk, and in the end released or lost.
//!
//! # Invariants
//!
//! 1. **Lost is terminal.** No transition leaves `Lost`; a late or doubled reply changes nothing.
//!    So a holder that was told can rely on it.
//! 2. **Only a confirmed grant or renewal moves the deadline**, each by its own `sent`, and
//!    only forward. A failed or unanswered attempt never does.
//! 3. **After `C` no reply counts and no renewal is sent.** Otherwise a key would be kept alive
//!    for a holder that has given up.
//! 4. **The process's count is the truth**, the store's its record. At most one operation that
//!    writes the count is under way (`busy`), so the record is known or known to be unknown.
//! 5. **Count zero closes the hold in the same step.** Belief ends (the leases' tokens fired) before
//!    a release is sent, and nothing can re-enter a hold that is being released.
//! 6. **A loss fires the token exactly once**, outside the lock, before the turn passes on.
//! 7. **Tokens first.** When the key is still ours at a loss (`max_hold`, `close`), it is owed to
//!    the store: released when the last lease is dropped or after the grace, never before.
//!
//! Lock order: a hold's state, then the schedule or the queue. Wakers run with no lock held.

pub(crate) mod engine;
pub(crate) mod queue;
pub(crate) mod reaper;
pub(crate) mod timing;
pub(crate) mod watchdog;

use crate::clock::Instant;
use crate::error::{Error, Fate, Loss};
use crate::store::{Absence, Name, Token};
use engine::Core;
use queue::Turn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use timing::Timing;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_util::sync::CancellationToken;

/// One possession of a name, shared by its leases and the engine.
pub(crate) struct Hold {
    pub(crate) name: Name,
    pub(crate) token: Token,
    /// Our own copy: the store may forget its.
    pub(crate) fence: Option<u64>,
    /// Fires on loss, never on release.
    pub(crate) lost: CancellationToken,
    changed: Notify,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Held,
    AtRisk,
    Lost(Loss),
    /// The count is zero: the release is under way, or will be tried again.
    Releasing,
    /// The store has it back, or it is left to expire.
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    Due(Instant),
    UnderWay { attempt: u32, until: Instant },
    Stopped,
}

#[derive(Debug)]
pub(crate) struct State {
    phase: Phase,
    /// When the last confirmed grant or renewal was sent.
    confirmed: Instant,
    renewal: Renewal,
    attempts: u32,
    failures: u32,
    /// Leases alive in this process.
    live: u32,
    /// The count that the store has, as far as known.
    recorded: Option<u32>,
    busy: bool,
    nesting: bool,
    /// The reaper was told of what is owed.
    settling: bool,
    /// The loss was ours to decide: when to release at the latest.
    owed: Option<Instant>,
    max_until: Option<Instant>,
    /// Earlier sends of the grant whose fate is unknown may run until then.
    unsure_until: Option<Instant>,
    /// When the store last set how long it remembers the fencing token.
    fence_kept: Instant,
    /// The error of the last release that failed.
    release_error: Option<Error>,
    scheduled: Option<Instant>,
    turn: Option<Turn>,
}

/// What the watchdog must do for a hold now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Renew { attempt: u32 },
    Settle,
}

/// Whether the holder may enter once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Ask the store for this count.
    Count(u32),
    /// Another operation is under way; ask again after a change.
    Busy,
    /// Lost while older leases are alive.
    Lost(Loss),
    /// Nothing left of it: take a new one.
    Over,
}

/// What the store must be told of the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Record(u32),
    Release,
}

/// The answer to [`Hold::next_op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send this; [`Hold::settled`] must follow.
    Op(Op),
    /// Another operation is under way; ask again after a change.
    Busy,
    /// The store knows all it needs.
    Nothing,
}

/// What a grant brings.
pub(crate) struct Grant {
    pub(crate) name: Name,
    pub(crate) token: Token,
    pub(crate) fence: Option<u64>,
    pub(crate) sent: Instant,
    pub(crate) unsure_until: Option<Instant>,
    pub(crate) turn: Turn,
}

impl State {
    fn new(core: &Core, grant: &Grant, now: Instant) -> Self {
        Self {
            phase: Phase::Held,
            confirmed: grant.sent,
            renewal: Renewal::Due(core.timing.renewal(grant.sent, core.jitter())),
            attempts: 0,
            failures: 0,
            live: 1,
            recorded: Some(1),
            busy: false,
            nesting: false,
            settling: false,
            owed: None,
            max_until: core.settings.max_hold.map(|max| now + max),
            unsure_until: grant.unsure_until,
            fence_kept: grant.sent,
            release_error: None,
            scheduled: None,
            turn: None,
        }
    }

    fn believed(&self) -> bool {
        matches!(self.phase, Phase::Held | Phase::AtRisk)
    }

    fn over(&self) -> bool {
        match self.phase {
            Phase::Released => true,
            Phase::Lost(_) => self.owed.is_none() && !self.busy,
            _ => false,
        }
    }

    fn lose(&mut self, loss: Loss, owed: Option<Instant>) {
        if self.believed() {
            self.phase = Phase::Lost(loss);
            self.renewal = Renewal::Stopped;
            self.owed = owed;
        }
    }

    /// Notices by the clock what no event has told yet.
    fn expire(&mut self, timing: &Timing, now: Instant) {
        if now >= timing.cancel(self.confirmed) {
            self.lose(Loss::Expired, None);
        } else if self.max_until.is_some_and(|max| now >= max) {
            self.lose(Loss::MaxHold, Some(now + timing.grace));
        }
    }

    /// Nothing more is owed to the store.
    fn end(&mut self) {
        self.owed = None;
        if self.phase == Phase::Releasing {
            self.phase = Phase::Released;
        }
    }

    /// Invariant 5; a nested acquire under way decides about itself when its verdict is there.
    fn close_if_left(&mut self) {
        if self.live == 0 && self.believed() && !self.nesting {
            self.phase = Phase::Releasing;
            self.renewal = Renewal::Stopped;
        }
    }

    fn confirm(&mut self, core: &Core, sent: Instant) {
        self.confirmed = self.confirmed.max(sent);
        self.phase = Phase::Held;
        self.failures = 0;
        self.renewal = Renewal::Due(core.timing.renewal(self.confirmed, core.jitter()));
    }

    /// When the watchdog must look at this hold again.
    fn wake_at(&self, timing: &Timing) -> Option<Instant> {
        match self.phase {
            Phase::Held | Phase::AtRisk => {
                let end = timing.cancel(self.confirmed);
                let end = self.max_until.map_or(end, |max| max.min(end));
                Some(match self.renewal {
                    Renewal::Due(at) | Renewal::UnderWay { until: at, .. } => at.min(end),
                    Renewal::Stopped => end,
                })
            }
            Phase::Lost(_) if !self.settling => self.owed,
            _ => None,
        }
    }

    fn tick(&mut self, core: &Core, now: Instant) -> Due {
        let timing = &core.timing;
        self.expire(timing, now);
        if let Phase::Lost(_) = self.phase {
            let due = self.owed.is_some_and(|at| at <= now || self.live == 0) && !self.settling;
            self.settling |= due;
            return if due { Due::Settle } else { Due::Nothing };
        }
        if !self.believed() {
            return Due::Nothing;
        }
        if let Renewal::UnderWay { attempt, until } = self.renewal
            && until <= now
        {
            self.renewal_failed(core, attempt, now);
        }
        match self.renewal {
            Renewal::Due(at) if at <= now => self.start_renewal(timing, now),
            _ => Due::Nothing,
        }
    }

    fn start_renewal(&mut self, timing: &Timing, now: Instant) -> Due {
        self.attempts = self.attempts.wrapping_add(1);
        let attempt = self.attempts;
        self.renewal = Renewal::UnderWay {
            attempt,
            until: now + timing.attempt,
        };
        Due::Renew { attempt }
    }

    fn renewal_failed(&mut self, core: &Core, attempt: u32, now: Instant) {
        // An attempt that was given up on may still fail later; it says nothing new.
        if !matches!(self.renewal, Renewal::UnderWay { attempt: current, .. } if current == attempt)
        {
            return;
        }
        self.phase = Phase::AtRisk;
        self.failures = self.failures.saturating_add(1);
        self.renewal = Renewal::Due(now + core.timing.gap(self.failures, core.jitter()));
    }

    fn next_op(&mut self, now: Instant) -> Next {
        if self.busy {
            return Next::Busy;
        }
        let op = match self.phase {
            Phase::Releasing => Op::Release,
            Phase::Lost(_) if self.owed.is_some_and(|at| self.live == 0 || at <= now) => {
                Op::Release
            }
            Phase::Held | Phase::AtRisk if self.recorded != Some(self.live) => {
                Op::Record(self.live)
            }
            _ => return Next::Nothing,
        };
        self.busy = true;
        Next::Op(op)
    }
}

impl Hold {
    /// Begins the life of a hold: one lease, watched, and known under its name.
    pub(crate) fn begin(core: &Arc<Core>, grant: Grant) -> Arc<Self> {
        let mut state = State::new(core, &grant, core.now());
        let Grant {
            name,
            token,
            fence,
            turn,
            ..
        } = grant;
        state.turn = Some(turn);
        let hold = Arc::new(Self {
            name,
            token,
            fence,
            lost: CancellationToken::new(),
            changed: Notify::new(),
            state: Mutex::new(state),
        });
        core.queue.install(&hold);
        // A manager that was closed meanwhile must not hand out a lease that nobody ends.
        hold.update(core, |_, _| ());
        if core.is_closed() {
            hold.lose(core, Loss::Closed);
        }
        hold
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Transitions do not panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a transition, then what follows from it: the schedule, the token, the turn, a trace.
    fn update<R>(
        self: &Arc<Self>,
        core: &Arc<Core>,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> R {
        let now = core.now();
        let mut state = self.lock();
        let before = state.phase;
        let result = change(&mut state, now);
        let wake_at = state.wake_at(&core.timing);
        if wake_at != state.scheduled {
            core.schedule.set(self, state.scheduled, wake_at);
            state.scheduled = wake_at;
        }
        let after = state.phase;
        let left = core
            .timing
            .cancel(state.confirmed)
            .saturating_duration_since(now);
        let turn = if state.over() {
            state.turn.take()
        } else {
            None
        };
        drop(state);

        if before != after {
            self.trace(after, left);
        }
        if let (false, Phase::Lost(_)) = (matches!(before, Phase::Lost(_)), after) {
            self.lost.cancel();
        }
        drop(turn);
        self.changed.notify_waiters();
        result
    }

    fn trace(&self, phase: Phase, left: std::time::Duration) {
        let name = self.name.as_str();
        match phase {
            Phase::Held => tracing::debug!(name, fence = self.fence, "no longer at risk"),
            Phase::AtRisk => tracing::warn!(name, left_ms = left.as_millis() as u64, "at risk"),
            Phase::Lost(cause) => tracing::warn!(name, fence = self.fence, ?cause, "lost"),
            Phase::Releasing | Phase::Released => {}
        }
    }

    /// The phase by the clock: right even when the watchdog did not run.
    pub(crate) fn phase(self: &Arc<Self>, core: &Arc<Core>) -> Phase {
        let now = core.now();
        let state = self.lock();
        let end = core.timing.cancel(state.confirmed);
        let end = state.max_until.map_or(end, |max| max.min(end));
        if !state.believed() || now < end {
            return state.phase;
        }
        drop(state);
        self.update(core, |state, now| {
            state.expire(&core.timing, now);
            state.phase
        })
    }

    /// `C`, by the last confirmation, or the end of `max_hold` if that is earlier.
    pub(crate) fn believed_until(&self, core: &Core) -> Instant {
        let state = self.lock();
        let end = core.timing.cancel(state.confirmed);
        state.max_until.map_or(end, |max| max.min(end))
    }

    /// `D`, by the last confirmation.
    pub(crate) fn deadline(&self, core: &Core) -> Instant {
        core.timing.deadline(self.lock().confirmed)
    }

    pub(crate) fn count(&self) -> u32 {
        self.lock().live
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().over()
    }

    pub(crate) fn release_error(&self) -> Option<Error> {
        self.lock().release_error.clone()
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        match self.lock().phase {
            Phase::Lost(loss) => Some(loss),
            _ => None,
        }
    }

    /// Waits for the loss; for ever after a clean end.
    pub(crate) async fn when_lost(&self) -> Loss {
        self.lost.cancelled().await;
        self.until(Self::loss).await
    }

    /// A future of the next change; enable it before looking at the state.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Whether `max_hold` ends it before `time`, whatever is renewed.
    pub(crate) fn ends_before(&self, time: Instant) -> bool {
        self.lock().max_until.is_some_and(|max| max < time)
    }

    /// Lets the watchdog renew now, unless a renewal is under way or was just refused.
    pub(crate) fn renew_now(self: &Arc<Self>, core: &Arc<Core>) {
        self.update(core, |state, now| {
            if let (Phase::Held, Renewal::Due(at)) = (state.phase, state.renewal) {
                state.renewal = Renewal::Due(at.min(now));
            }
        });
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.lock().busy
    }

    pub(crate) fn fence_kept(&self) -> Instant {
        self.lock().fence_kept
    }

    /// Waits until `done` says something of the state, looking at each change.
    pub(crate) async fn until<R>(&self, mut done: impl FnMut(&Self) -> Option<R>) -> R {
        loop {
            let mut changed = pin!(self.changed());
            changed.as_mut().enable();
            if let Some(result) = done(self) {
                return result;
            }
            changed.await;
        }
    }

    /// Ends belief for a reason that the process knows. The key is owed to the store.
    pub(crate) fn lose(self: &Arc<Self>, core: &Arc<Core>, loss: Loss) {
        let settle = self.update(core, |state, now| {
            let owed = (loss != Loss::Revoked).then(|| now + core.timing.grace);
            state.lose(loss, owed);
            state.owed.is_some() && state.live == 0
        });
        if settle {
            core.reap(reaper::Job::Settle(Arc::clone(self)));
        }
    }

    /// What is due now; the watchdog has taken the hold out of the schedule, where it stood at `at`.
    pub(crate) fn tick(self: &Arc<Self>, core: &Arc<Core>, at: Instant) -> Due {
        self.update(core, |state, now| {
            if state.scheduled == Some(at) {
                state.scheduled = None;
            }
            state.tick(core, now)
        })
    }

    /// Starts a renewal now if none is under way: to fill a batch, or to verify after a reconnect.
    pub(crate) fn renew_early(self: &Arc<Self>, core: &Arc<Core>) -> Due {
        self.update(core, |state, now| match state.renewal {
            Renewal::Due(_) if state.believed() && now < core.timing.cancel(state.confirmed) => {
                state.start_renewal(&core.timing, now)
            }
            _ => Due::Nothing,
        })
    }

    /// The verdict on a renewal.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        core: &Arc<Core>,
        attempt: u32,
        sent: Instant,
        fence_kept: bool,
        verdict: Result<Option<Absence>, Error>,
    ) {
        if let Err(error) = &verdict {
            tracing::debug!(name = self.name.as_str(), %error, "renewal failed");
        }
        self.update(core, |state, now| {
            state.expire(&core.timing, now);
            if !state.believed() {
                return;
            }
            match verdict {
                Ok(None) => {
                    state.confirm(core, sent);
                    if fence_kept {
                        state.fence_kept = sent;
                    }
                    tracing::trace!(name = self.name.as_str(), "renewed");
                }
                Ok(Some(absence)) => state.lose(absence.into(), None),
                Err(_) => state.renewal_failed(core, attempt, now),
            }
        });
    }

    /// Asks to enter once more; [`Entry::Count`] must be followed by [`Hold::entered`].
    pub(crate) fn enter(self: &Arc<Self>, core: &Arc<Core>) -> Entry {
        self.update(core, |state, now| {
            state.expire(&core.timing, now);
            match state.phase {
                Phase::Lost(loss) if state.live > 0 => Entry::Lost(loss),
                Phase::Lost(_) | Phase::Releasing | Phase::Released => Entry::Over,
                Phase::Held | Phase::AtRisk if state.busy => Entry::Busy,
                Phase::Held | Phase::AtRisk => {
                    state.busy = true;
                    state.nesting = true;
                    Entry::Count(state.live + 1)
                }
            }
        })
    }

    /// The verdict on a nested acquire. With `keep`, and if it is granted, there is one lease more.
    pub(crate) fn entered(
        self: &Arc<Self>,
        core: &Arc<Core>,
        verdict: Entered,
        keep: bool,
    ) -> Result<(), Error> {
        let (result, settle) = self.update(core, |state, now| {
            state.busy = false;
            state.nesting = false;
            state.expire(&core.timing, now);
            let result = match (state.phase, verdict) {
                (Phase::Lost(loss), _) => Err(Error::lost(loss)),
                (_, Entered::Granted { sent, count }) => {
                    state.confirm(core, sent);
                    state.recorded = Some(count);
                    state.live += u32::from(keep);
                    Ok(())
                }
                (_, Entered::NotYours(absence)) => {
                    state.lose(absence.into(), None);
                    Err(Error::lost(absence.into()))
                }
                (_, Entered::Failed(error)) => {
                    if error.fate() != Fate::NotExecuted {
                        state.recorded = None;
                    }
                    Err(error)
                }
            };
            state.close_if_left();
            let settle = match state.phase {
                Phase::Releasing => true,
                Phase::Lost(_) => state.owed.is_some() && state.live == 0,
                Phase::Held | Phase::AtRisk => state.recorded != Some(state.live),
                Phase::Released => false,
            };
            (result, settle)
        });
        if settle {
            core.reap(reaper::Job::Settle(Arc::clone(self)));
        }
        result
    }

    /// One lease less; returns the phase as it was for its holder.
    pub(crate) fn leave(self: &Arc<Self>, core: &Arc<Core>) -> Phase {
        self.update(core, |state, now| {
            state.expire(&core.timing, now);
            let phase = state.phase;
            state.live = state.live.saturating_sub(1);
            state.close_if_left();
            phase
        })
    }

    /// One lease less without telling the store: it is left to expire.
    pub(crate) fn forget(self: &Arc<Self>, core: &Arc<Core>) {
        self.update(core, |state, _| {
            state.live = state.live.saturating_sub(1);
            if state.live == 0 && !state.nesting {
                state.owed = None;
                state.renewal = Renewal::Stopped;
                if state.believed() {
                    state.phase = Phase::Released;
                }
            }
        });
    }

    /// The next operation that the store needs; [`Hold::settled`] must follow.
    pub(crate) fn next_op(self: &Arc<Self>, core: &Arc<Core>) -> Next {
        self.update(core, |state, now| state.next_op(now))
    }

    /// The verdict on [`Hold::next_op`]. `Some` is a time until when copies of the grant may
    /// still arrive, so that the token must be swept until then.
    pub(crate) fn settled(
        self: &Arc<Self>,
        core: &Arc<Core>,
        op: Op,
        verdict: Result<Option<Absence>, Error>,
    ) -> Option<Instant> {
        self.update(core, |state, now| {
            state.busy = false;
            match (op, verdict) {
                (Op::Record(count), Ok(None)) => state.recorded = Some(count),
                (Op::Record(_), Ok(Some(absence))) => state.lose(absence.into(), None),
                // The count in the store is only a record: the renewals and the release will do.
                (Op::Record(_), Err(_)) => state.recorded = Some(state.live),
                (Op::Release, Ok(_)) => {
                    state.end();
                    state.release_error = None;
                    tracing::debug!(name = self.name.as_str(), fence = self.fence, "released");
                    return state.unsure_until.filter(|until| *until > now);
                }
                (Op::Release, Err(error)) => state.release_error = Some(error),
            }
            None
        })
    }

    /// Leaves a release that failed to the time to live.
    pub(crate) fn give_up(self: &Arc<Self>, core: &Arc<Core>, error: &Error) {
        tracing::warn!(name = self.name.as_str(), %error, "not released; left to expire");
        self.update(core, |state, _| state.end());
    }
}

/// What became of a nested acquire.
pub(crate) enum Entered {
    Granted { sent: Instant, count: u32 },
    NotYours(Absence),
    Failed(Error),
}

impl From<Absence> for Loss {
    fn from(absence: Absence) -> Self {
        match absence {
            Absence::Gone => Loss::Gone,
            Absence::Taken => Loss::Taken,
        }
    }
}
