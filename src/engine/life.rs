//! The life of one hold: each transition, and what follows from it.

use super::core::Core;
use super::hold::{Hold, Inner};
use super::job::{Job, Sweep};
use super::schedule::Group;
use super::seat::Seat;
use super::state::{NestedVerdict, Op, Phase, Reentry, State};
use super::wake::wake;
use crate::clock::Instant;
use crate::error::{Error, Loss, Result};
use crate::store::{Absence, Name, Token};
use crate::trace;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tracing::Level;

/// What a grant brings.
pub(crate) struct Grant {
    pub(crate) name: Name,
    pub(crate) token: Token,
    pub(crate) fence: Option<u64>,
    /// The store's clock has reached the fencing token.
    pub(crate) reached: bool,
    pub(crate) sent: Instant,
    /// When it came.
    pub(crate) now: Instant,
    pub(crate) unsure_until: Option<Instant>,
    pub(super) seat: Seat,
}

impl Hold {
    /// Begins the life of a hold: one lease, watched, and known under its name.
    pub(crate) fn begin(core: &Arc<Core>, grant: Grant) -> Arc<Self> {
        let Grant { name, token, fence, reached, sent, now, unsure_until, seat } = grant;
        let renew = core.timing.renewal(sent, core.jitter());
        let max_until = core.settings.max_hold.map(|max| now + max);
        let mut state = State::granted(sent, renew, max_until, unsure_until);
        // Of one that is ahead of the clock nobody knows by how much: then the block is all there is.
        state.reached(if reached { now } else { Instant::MAX });
        let number = seat.number;
        let hold = Self::new(name, token, fence, state, Some(seat));
        let forced = core.queue.install(&hold, number, sent);
        hold.start(core, now);
        if forced {
            hold.update(core, State::renew_at);
        }
        hold
    }

    /// Puts it under the watchdog's eyes; it is known under its name already.
    pub(super) fn start(self: &Arc<Self>, core: &Arc<Core>, now: Instant) {
        self.update_at(core, now, |_, _| ());
        // `close` looks through the queue after it has closed: one of the two sees the other.
        if core.is_closed() {
            self.lose(core, Loss::Closed);
        }
    }

    /// Runs a transition, then what follows from it: the schedule, the token, the turn, a trace.
    pub(super) fn update<R>(
        self: &Arc<Self>,
        core: &Arc<Core>,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> R {
        self.update_at(core, core.now(), change)
    }

    pub(super) fn update_at<R>(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> R {
        self.update_locked(core, now, self.lock(), None, change)
    }

    pub(super) fn update_locked<R>(
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
        let seat = if over { inner.seat.take() } else { None };
        let watched = before.is_some_and(|before| before != inner.state.visible());
        let sweep = (over && !was_over).then(|| inner.state.sweep(&core.timing, now)).flatten();
        drop(inner);

        if let (Some(_), Phase::Lost(_), Some(lost)) = (believed_until, is, self.lost.get()) {
            wake(|| lost.cancel());
        }
        if let Some((from, until)) = sweep {
            let sweep = Sweep::late(self.name.clone(), self.token, from, until);
            core.submit(Job::Sweep(sweep));
        }
        drop(seat);
        // Last, so that those that are told of the end may ask at once.
        if watched {
            wake(|| self.changed.notify_waiters());
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
    pub(super) fn read<R>(self: &Arc<Self>, core: &Arc<Core>, look: impl FnOnce(&State) -> R) -> R {
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

    /// Returns the loss as an error, if it is lost.
    pub(crate) fn check(self: &Arc<Self>, core: &Arc<Core>) -> Result<()> {
        match self.phase(core) {
            Phase::Lost(loss) => Err(Error::lost(loss)),
            _ => Ok(()),
        }
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

    /// Ends belief for a reason that the process knows.
    pub(crate) fn lose(self: &Arc<Self>, core: &Arc<Core>, loss: Loss) {
        self.update(core, |state, now| {
            // Whoever revokes deletes the key himself; else it is owed to the store.
            let owed = (loss != Loss::Revoked).then(|| now + core.timing.grace);
            state.lose(loss, owed);
        });
        self.flush_if_needed(core);
    }

    /// A key that `force_unlock` did not surely delete is owed to the store after all.
    pub(crate) fn owe(self: &Arc<Self>, core: &Arc<Core>) {
        self.update(core, |state, now| state.owe(now + core.timing.grace));
        self.flush_if_needed(core);
    }

    fn flush_if_needed(self: &Arc<Self>, core: &Core) {
        if self.lock().state.needs_flush() {
            core.submit(Job::Flush(Arc::clone(self)));
        }
    }

    /// Asks to enter once more; after [`Reentry::Count`], [`Hold::reentered`] must follow.
    pub(crate) fn reenter(self: &Arc<Self>, core: &Arc<Core>) -> Reentry {
        self.update(core, |state, now| state.reenter(&core.timing, now))
    }

    /// The verdict on a nested acquire. With `keep`, and if it is granted, there is one lease more.
    pub(crate) fn reentered(
        self: &Arc<Self>,
        core: &Arc<Core>,
        verdict: NestedVerdict,
        keep: bool,
    ) -> Result<()> {
        let result = self.update(core, |state, now| {
            state.reentered(&core.timing, now, core.jitter(), verdict, keep)
        });
        self.flush_if_needed(core);
        result
    }

    /// One lease less without telling the store: it is left to expire.
    pub(crate) fn forget(self: &Arc<Self>, core: &Arc<Core>) {
        self.update(core, |state, _| state.forget());
    }

    /// The verdict on [`Hold::next_op`]; what it means for who waits for it.
    pub(crate) fn flushed(
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
        self.update_at(core, now, |state, now| state.flushed(&core.timing, now, op, verdict))
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

/// Ends belief in all that this process has of a name, and returns it.
pub(super) fn lose_all(core: &Arc<Core>, name: &Name, loss: Loss) -> Vec<Arc<Hold>> {
    let mut lost: Vec<Arc<Hold>> = Vec::new();
    loop {
        // One may be handed off between the look and the loss.
        let is_new = |hold: &Arc<Hold>| !lost.iter().any(|lost| Arc::ptr_eq(lost, hold));
        let new: Vec<_> = core.queue.holds_of(name).into_iter().filter(is_new).collect();
        if new.is_empty() {
            return lost;
        }
        new.iter().for_each(|hold| hold.lose(core, loss));
        lost.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use super::super::core::core_in_memory;
    use super::*;
    use crate::store::Mode;

    #[test]
    fn a_hold_goes_with_its_engine() {
        let core = core_in_memory();
        let name = Name::new("n").unwrap();
        let turn = core.queue.try_turn(&name, Mode::Exclusive, core.now()).unwrap();
        let (now, token) = (core.now(), core.draw_token());
        let grant = Grant {
            name,
            token,
            fence: None,
            reached: false,
            sent: now,
            now,
            unsure_until: None,
            seat: turn.into_seat(),
        };
        let hold = Arc::downgrade(&Hold::begin(&core, grant));
        assert!(hold.upgrade().is_some());
        drop(core);
        assert!(hold.upgrade().is_none());
    }
}
