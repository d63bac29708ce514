//! What the watchdog does to a hold: starts its renewals, and tells it what came of them.

use super::core::Core;
use super::hold::Hold;
use super::job::Job;
use super::schedule::Group;
use super::state::{Due, State};
use super::timing::Timing;
use crate::clock::Instant;
use crate::error::{Error, Loss, Result};
use crate::store::Absence;
use crate::trace;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tracing::Level;

impl Hold {
    /// What is due; the watchdog has taken the hold out of the schedule, where it stood at `at`. `change` is
    /// [`State::tick`], or [`State::renew_early`] to fill a batch or to verify after a reconnect.
    pub(super) fn when_due(
        self: &Arc<Self>,
        core: &Arc<Core>,
        (at, now): (Instant, Instant),
        change: impl FnOnce(&mut State, &Timing, Instant) -> Due,
    ) -> Due {
        let mut inner = self.lock();
        if inner.scheduled != Some(at) {
            // It has ended, or moved: then it stands elsewhere too.
            return Due::Nothing;
        }
        inner.scheduled = None;
        let due = self
            .update_locked(core, now, inner, None, |state, now| change(state, &core.timing, now));
        if due != Due::TakenBack {
            return due;
        }
        core.queue.missed(self);
        Due::Flush
    }

    /// Waits until the store has confirmed it by a renewal that leaves from now on, or it is over. Without an answer
    /// in the time of an attempt it is lost.
    pub(crate) async fn verify(self: &Arc<Self>, core: &Arc<Core>) {
        let start = core.now();
        tokio::select! {
            biased;
            () = self.renew_now(core) => {}
            () = core.clock().sleep_until(start + core.timing.attempt) => {
                self.lose(core, Loss::Revoked);
                self.owe(core);
            }
        }
    }

    /// Has it renewed at once. Waits until the store has confirmed it by a renewal that leaves from now on, or it is over.
    pub(crate) async fn renew_now(self: &Arc<Self>, core: &Arc<Core>) {
        let start = core.now();
        self.until(|_| {
            let sure = self.confirmed() >= start || self.remaining(core).is_zero();
            if !sure {
                self.update(core, State::renew_at);
            }
            sure.then_some(())
        })
        .await;
    }

    /// Waits until at least `min` remains; an error if it is lost before that, or can never be so.
    pub(crate) async fn until_remaining(
        self: &Arc<Self>,
        core: &Arc<Core>,
        min: Duration,
    ) -> Result<()> {
        if min > core.timing.ttl / 2 {
            return Err(Error::invalid(format!(
                "{min:?} cannot be ensured with a time to live of {:?}; ask for at most half of it",
                core.timing.ttl
            )));
        }
        core.ensure_running();
        consume_budget().await;
        loop {
            self.check(core)?;
            if self.remaining(core) >= min {
                return Ok(());
            }
            if self.ends_before(core.now() + min) {
                return Err(Error::invalid(format!(
                    "max_hold ends this lease in less than {min:?}"
                )));
            }
            // So late, a renewal is under way or due: the first leaves after a third of T. What changed
            // before this line is seen by the next look, what comes later wakes us.
            let changed = self.changed();
            if self.check(core).is_ok() && self.remaining(core) < min {
                core.attend(pin!(changed)).await;
            }
        }
    }

    /// A renewal was not answered in time.
    pub(super) fn unanswered(self: &Arc<Self>, core: &Arc<Core>, attempt: u32) {
        self.update(core, |state, now| {
            state.unanswered(&core.timing, now, core.jitter(), attempt);
        });
    }

    /// The verdict on a renewal: which attempt, when it left, and whether it also kept the memory of
    /// the fencing token. With the same `jitter`, what was renewed together is due together, and joins
    /// the group.
    pub(super) fn renewed(
        self: &Arc<Self>,
        core: &Arc<Core>,
        (now, jitter): (Instant, f64),
        attempt: (u32, Instant, bool),
        verdict: Result<Option<Absence>>,
        group: &mut Group<'_>,
    ) {
        match &verdict {
            Ok(None) => trace::later(Level::TRACE, || {
                let name = self.name.clone();
                move || tracing::trace!(name = name.as_str(), "renewed")
            }),
            Ok(Some(_)) => {}
            Err(error) => trace::later(Level::DEBUG, || {
                let (name, error) = (self.name.clone(), error.clone());
                move || tracing::debug!(name = name.as_str(), %error, "renewal failed")
            }),
        }
        let unflushed = self.update_locked(core, now, self.lock(), Some(group), |state, now| {
            state.renewed(&core.timing, now, jitter, attempt, verdict);
            state.needs_flush()
        });
        if unflushed {
            core.submit(Job::Flush(Arc::clone(self)));
        }
    }
}
