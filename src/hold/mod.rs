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
//!    An operation that nobody polls keeps nothing: without a live lease nothing is renewed, and after the loss, or
//!    `D`, the hold is over whatever is under way.
//! 6. **A loss fires the token exactly once**, outside the lock, before the turn passes on.
//! 7. **Tokens first.** When the key is still ours at a loss (`max_hold`, `close`), it is owed to
//!    the store: released when the last lease is dropped or after the grace, never before.
//! 8. **Nothing delays a token.** What fires tokens at `C` ([`watchdog`]) runs no store, no client, no log
//!    subscriber and no user code but wakers. All that touches the store runs elsewhere ([`worker`]). Traces are
//!    written by a thread of their own ([`trace`]).
//! 9. **Tokens depend on no runtime of the user**, unless the clock is tokio's, which only a runtime can pause.
//!    Then watchdog and worker are one task of a runtime. When that ends, those who wait or hold elsewhere take
//!    the place, and until then a [`spare`] watchdog fires the tokens.
//! 10. **Only `close` closes.** A poll of ours that panics is told from a panic elsewhere ([`alarm`]); the tokens
//!     fire, and what is asked later is told that the watchdog has panicked.
//!
//! Lock order: a hold's state, then the schedule or the queue. Who waits for a change is woken with
//! no lock held.

mod alarm;
mod ask;
pub(crate) mod engine;
pub(crate) mod handoff;
mod pause;
pub(crate) mod place;
pub(crate) mod queue;
pub(crate) mod reaper;
mod renewal;
mod schedule;
pub(crate) mod settle;
mod spare;
pub(crate) mod state;
pub(crate) mod timing;
pub(crate) mod watchdog;
mod worker;

use crate::clock::Instant;
use crate::error::{Error, Loss, Result};
use crate::store::{Absence, HolderId, Name};
use crate::trace;
use engine::Core;
use place::Turn;
use schedule::Group;
use state::{Entered, Entry, Next, Op, Phase, State};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_util::sync::CancellationToken;
use tracing::Level;

/// How many there have been.
static HOLDS: AtomicU64 = AtomicU64::new(0);

/// One possession of a name, shared by its leases and the engine.
pub(crate) struct Hold {
    pub(crate) name: Name,
    pub(crate) token: HolderId,
    /// Our own copy: the store may forget its.
    pub(crate) fence: Option<u64>,
    /// No other hold of the process has it; all of one chain of hand-offs have the same token.
    number: u64,
    inner: Mutex<Inner>,
    /// Fires on loss, never on release; made when first asked for.
    lost: OnceLock<CancellationToken>,
    changed: Notify,
}

struct Inner {
    /// Where it stands in the watchdog's schedule.
    scheduled: Option<Instant>,
    /// Whether somebody has ever waited for `changed`: to ask costs less than to wake nobody.
    watched: bool,
    state: State,
    /// Kept until nothing more is to be sent for this hold.
    turn: Option<Turn>,
}

/// What a grant brings.
pub(crate) struct Grant {
    pub(crate) name: Name,
    pub(crate) token: HolderId,
    pub(crate) fence: Option<u64>,
    /// The store's clock has reached the fencing token.
    pub(crate) reached: bool,
    pub(crate) sent: Instant,
    /// When it came.
    pub(crate) now: Instant,
    pub(crate) unsure_until: Option<Instant>,
    pub(crate) turn: Turn,
}

impl Hold {
    /// Begins the life of a hold: one lease, watched, and known under its name.
    pub(crate) fn begin(core: &Arc<Core>, grant: Grant) -> Arc<Self> {
        let Grant { name, token, fence, reached, sent, now, unsure_until, turn } = grant;
        let renew = core.timing.renewal(sent, core.jitter());
        let max_until = core.settings.max_hold.map(|max| now + max);
        let mut state = State::granted(sent, renew, max_until, unsure_until);
        // Of one that is ahead of the clock nobody knows by how much: then the block is all there is.
        state.reached(if reached { now } else { Instant::MAX });
        let hold = Self::new(name, token, fence, state, Some(turn));
        let forced = core.queue.install(&hold, sent);
        hold.start(core, now);
        if forced {
            hold.update(core, State::renew_at);
        }
        hold
    }

    /// One that nobody knows of and nobody watches yet.
    fn new(
        name: Name,
        token: HolderId,
        fence: Option<u64>,
        state: State,
        turn: Option<Turn>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            token,
            fence,
            number: HOLDS.fetch_add(1, Ordering::Relaxed),
            lost: OnceLock::new(),
            changed: Notify::new(),
            inner: Mutex::new(Inner { scheduled: None, watched: false, state, turn }),
        })
    }

    /// Puts it under the watchdog's eyes; it is known under its name already.
    fn start(self: &Arc<Self>, core: &Arc<Core>, now: Instant) {
        self.update_at(core, now, |_, _| ());
        // `close` looks through the queue after it has closed: one of the two sees the other.
        if core.is_closed() {
            self.lose(core, Loss::Closed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Transitions do not panic half way.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a transition, then what follows from it: the schedule, the token, the turn, a trace.
    fn update<R>(
        self: &Arc<Self>,
        core: &Arc<Core>,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> R {
        self.update_at(core, core.now(), change)
    }

    fn update_at<R>(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> R {
        self.update_locked(core, now, self.lock(), None, change)
    }

    fn update_locked<R>(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
        mut inner: MutexGuard<'_, Inner>,
        group: Option<&mut Group<'_>>,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> R {
        let (was, was_over) = (inner.state.phase(), inner.state.is_over());
        let before = inner.watched.then(|| inner.state.visible());
        let result = change(&mut inner.state, now);
        let mut wake_at = inner.state.wake_at(&core.timing);
        if inner.state.is_releasing() && inner.scheduled < wake_at {
            // It is about to leave the schedule; to move it before that costs more than to look in vain.
            wake_at = inner.scheduled.or(wake_at);
        }
        if wake_at != inner.scheduled {
            match group {
                Some(group) if inner.scheduled.is_none() && wake_at == Some(group.at) => {
                    group.join(self);
                }
                _ => core.schedule.set(self, inner.scheduled, wake_at),
            }
            inner.scheduled = wake_at;
        }
        let is = inner.state.phase();
        let believed_until = (was != is).then(|| inner.state.believed_until(&core.timing));
        let over = inner.state.is_over();
        let turn = if over { inner.turn.take() } else { None };
        let watched = before.is_some_and(|before| before != inner.state.visible());
        let sweep = (over && !was_over).then(|| inner.state.sweep(&core.timing, now)).flatten();
        drop(inner);

        if let (Some(_), Phase::Lost(_), Some(lost)) = (believed_until, is, self.lost.get()) {
            alarm::wake(|| lost.cancel());
        }
        if let Some((from, until)) = sweep {
            let sweep = reaper::Sweep::late(self.name.clone(), self.token, from, until);
            core.reap(reaper::Job::Sweep(sweep));
        }
        drop(turn);
        // Last, so that who is told of the end finds the turn free.
        if watched {
            alarm::wake(|| self.changed.notify_waiters());
        }
        if let Some(until) = believed_until {
            self.trace(is, until.saturating_duration_since(now));
        }
        result
    }

    fn trace(&self, phase: Phase, left: Duration) {
        let name = || self.name.clone();
        let fence = self.fence;
        match phase {
            Phase::Held => trace::later(Level::INFO, || {
                let name = name();
                move || tracing::info!(name = name.as_str(), fence, "held again")
            }),
            Phase::AtRisk => trace::later(Level::WARN, || {
                let (name, left_ms) = (name(), left.as_millis() as u64);
                move || tracing::warn!(name = name.as_str(), left_ms, "at risk")
            }),
            Phase::Lost(cause) => trace::later(Level::WARN, || {
                let name = name();
                move || tracing::warn!(name = name.as_str(), fence, ?cause, "lost")
            }),
            // Told when the store has confirmed.
            Phase::Releasing | Phase::Released => {}
        }
    }

    /// Reads the state, after noticing by the clock what no event has told yet: right even when
    /// the watchdog did not run.
    fn read<R>(self: &Arc<Self>, core: &Arc<Core>, look: impl FnOnce(&State) -> R) -> R {
        let now = core.now();
        let inner = self.lock();
        if !inner.state.believed() || now < inner.state.believed_until(&core.timing) {
            return look(&inner.state);
        }
        drop(inner);
        self.update(core, |state, now| {
            state.expire(&core.timing, now);
            look(state)
        })
    }

    pub(crate) fn phase(self: &Arc<Self>, core: &Arc<Core>) -> Phase {
        self.read(core, State::phase)
    }

    /// For how long its holder may believe; zero when lost.
    pub(crate) fn remaining(self: &Arc<Self>, core: &Arc<Core>) -> Duration {
        let until =
            self.read(core, |state| state.believed().then(|| state.believed_until(&core.timing)));
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(core.now()))
    }

    /// `D`, by the last confirmation.
    pub(crate) fn deadline(&self, core: &Core) -> Instant {
        self.lock().state.deadline(&core.timing)
    }

    /// When the store was asked for what is handed from hold to hold.
    pub(crate) fn granted(&self) -> Instant {
        self.lock().state.chain_began()
    }

    /// When the last confirmed grant or renewal was sent.
    fn confirmed(&self) -> Instant {
        self.lock().state.confirmed()
    }

    pub(crate) fn count(&self) -> u32 {
        self.lock().state.live()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().state.is_over()
    }

    /// Returns whether it is over and has no live lease.
    pub(crate) fn is_left(&self) -> bool {
        let inner = self.lock();
        inner.state.is_over() && inner.state.live() == 0
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.lock().state.is_busy()
    }

    pub(crate) fn release_error(&self) -> Option<Error> {
        self.lock().state.release_error()
    }

    /// Whether `max_hold` ends it before `time`, whatever is renewed.
    pub(crate) fn ends_before(&self, time: Instant) -> bool {
        self.lock().state.max_until().is_some_and(|max| max < time)
    }

    /// Why what was given back had been lost before, if it had.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.lock().state.loss()
    }

    /// A token that fires on the loss.
    pub(crate) fn lost_token(&self) -> CancellationToken {
        let lost = self.lost.get_or_init(CancellationToken::new);
        // A loss before this line has found no token to fire, one after it does.
        if matches!(self.lock().state.phase(), Phase::Lost(_)) {
            lost.cancel();
        }
        lost.child_token()
    }

    /// Waits for the loss; for ever after a clean end.
    pub(crate) async fn when_lost(&self) -> Loss {
        self.until(|hold| match hold.lock().state.phase() {
            Phase::Lost(loss) => Some(loss),
            _ => None,
        })
        .await
    }

    /// A future of the next change; make it before looking at the state.
    pub(crate) fn changed(&self) -> Notified<'_> {
        // In this order: what changes before `watched` is set is there to be seen.
        let changed = self.changed.notified();
        self.lock().watched = true;
        changed
    }

    /// Waits until `look` sees something, looking at each change.
    pub(crate) async fn until<R>(&self, mut look: impl FnMut(&Self) -> Option<R>) -> R {
        loop {
            let changed = self.changed();
            if let Some(result) = look(self) {
                return result;
            }
            changed.await;
        }
    }

    /// Waits until no operation that writes the count is under way, or it is over.
    pub(crate) async fn until_idle(&self) {
        self.until(|hold| (!hold.is_busy() || hold.is_over()).then_some(())).await;
    }

    /// Waits until nothing more is sent for it.
    pub(crate) async fn until_over(&self) {
        self.until(|hold| hold.is_over().then_some(())).await;
    }

    /// Ends belief for a reason that the process knows.
    pub(crate) fn lose(self: &Arc<Self>, core: &Arc<Core>, loss: Loss) {
        self.update(core, |state, now| {
            // Whoever revokes deletes the key himself; else it is owed to the store.
            let owed = (loss != Loss::Revoked).then(|| now + core.timing.grace);
            state.lose(loss, owed);
        });
        self.settle_if_needed(core);
    }

    /// A key that `force_unlock` did not surely delete is owed to the store after all.
    pub(crate) fn owe(self: &Arc<Self>, core: &Arc<Core>) {
        self.update(core, |state, now| state.owe(now + core.timing.grace));
        self.settle_if_needed(core);
    }

    /// Whether the engine may begin to settle it: one at a time. [`Hold::end_reaping`] must follow.
    pub(crate) fn begin_reaping(&self) -> bool {
        self.lock().state.begin_reaping()
    }

    /// Whether there is more to settle that came up meanwhile.
    pub(crate) fn end_reaping(&self) -> bool {
        let mut inner = self.lock();
        inner.state.end_reaping();
        inner.state.needs_settling()
    }

    fn settle_if_needed(self: &Arc<Self>, core: &Core) {
        if self.lock().state.needs_settling() {
            core.reap(reaper::Job::Settle(Arc::clone(self)));
        }
    }

    /// Asks to enter once more; after [`Entry::Count`], [`Hold::entered`] must follow.
    pub(crate) fn enter(self: &Arc<Self>, core: &Arc<Core>) -> Entry {
        self.update(core, |state, now| state.enter(&core.timing, now))
    }

    /// The verdict on a nested acquire. With `keep`, and if it is granted, there is one lease more.
    pub(crate) fn entered(
        self: &Arc<Self>,
        core: &Arc<Core>,
        verdict: Entered,
        keep: bool,
    ) -> Result<()> {
        let result = self.update(core, |state, now| {
            state.entered(&core.timing, now, core.jitter(), verdict, keep)
        });
        self.settle_if_needed(core);
        result
    }

    /// One lease less without telling the store: it is left to expire.
    pub(crate) fn forget(self: &Arc<Self>, core: &Arc<Core>) {
        self.update(core, |state, _| state.forget());
    }

    /// What the store must be told next; after [`Next::Op`], [`Hold::settled`] must follow.
    pub(crate) fn next_op(&self, now: Instant) -> Next {
        // What it changes wakes nobody and moves no time.
        self.lock().state.next_op(now)
    }

    /// The verdict on [`Hold::next_op`]; what it means for who waits for it.
    pub(crate) fn settled(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
        op: Op,
        verdict: Result<Option<Absence>>,
    ) -> Result<()> {
        if let (Op::Release, Ok(None)) = (op, &verdict) {
            trace::later(Level::DEBUG, || {
                let (name, fence) = (self.name.clone(), self.fence);
                move || tracing::debug!(name = name.as_str(), fence, "released")
            });
        }
        self.update_at(core, now, |state, now| state.settled(&core.timing, now, op, verdict))
    }

    /// Leaves a release that failed to the time to live.
    pub(crate) fn give_up(self: &Arc<Self>, core: &Arc<Core>, error: &Error) {
        self.update(core, |state, _| state.end());
        trace::later(Level::WARN, || {
            let (name, error) = (self.name.clone(), error.clone());
            move || tracing::warn!(name = name.as_str(), %error, "not released; left to expire")
        });
    }
}
