//! The watchdog's transitions of a hold: it starts renewals and applies their verdicts.

use crate::clock::Instant;
use crate::engine::machine::hold::{Due, Phase, SentRenewal, State};
use crate::engine::machine::timing::Timing;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::job::Job;
use crate::engine::shared::options::Caller;
use crate::engine::shared::schedule::Group;
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::store::Absence;
use crate::util::trace;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tracing::Level;

impl Hold {
    /// Returns the work that is due, after the watchdog has taken the hold out of the schedule,
    /// where its time was `at`. `change` is [`State::tick`], [`State::renew_early`] to fill a
    /// batch, or [`State::verify`] after a reconnect.
    pub(super) fn when_due(
        self: &Arc<Self>,
        core: &Arc<Core>,
        at: Instant,
        now: Instant,
        change: impl FnOnce(&mut State, &Timing, Instant) -> Due,
    ) -> Due {
        let mut inner = self.lock();
        if inner.scheduled != Some(at) {
            // A stale entry: the hold has ended or moved.
            return Due::Nothing;
        }
        inner.scheduled = None;
        let mut held = None;
        let due = self.update_locked(core, now, inner, None, |state, now| {
            held = state.warn(now);
            change(state, &core.timing, now)
        });
        if let Some((since, caller)) = held {
            self.warn_held(now.saturating_duration_since(since), caller);
        }
        if due != Due::TakenBack {
            return due;
        }
        core.queue.missed(self);
        Due::Flush
    }

    /// Warns that the hold has been held for long.
    fn warn_held(&self, held: Duration, caller: Caller) {
        trace::later(Level::WARN, || {
            let name = self.name.clone();
            let fence = self.fence;
            let held_ms = held.as_millis() as u64;
            let caller = caller.map(tracing::field::display);
            move || {
                tracing::warn!(
                    name = name.as_str(),
                    fence,
                    held_ms,
                    caller,
                    "still held; is it leaked?"
                );
            }
        });
    }

    /// Renews the hold at once and waits as in [`Hold::renew_now`]. Without an answer in the time
    /// of an attempt, the hold is lost.
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

    /// Renews the hold at once. Waits until the store has confirmed a renewal that was sent after
    /// this call began, or the hold is over.
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

    /// Waits until at least `min` remains. Fails if the hold is lost before that, or `min` can
    /// never remain.
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
        if self.remaining(core) < min {
            // With a long grace none may be due yet. One that has failed is retried in its own time.
            self.update(core, |state, now| {
                if state.phase() == Phase::Held {
                    state.renew_at(now);
                }
            });
        }
        loop {
            self.check(core)?;
            if self.remaining(core) >= min {
                return Ok(());
            }
            if self.ends_before(core.now() + min) {
                return Err(Error::invalid(format!(
                    "max_hold ends this lease in less than {min:?}; ask for less, or release it and lock again"
                )));
            }
            // A renewal is in flight or due. The next check sees a change before this line; a later one wakes this task.
            let changed = self.changed();
            if self.check(core).is_ok() && self.remaining(core) < min {
                core.attend(pin!(changed)).await;
            }
        }
    }

    /// Counts a renewal as failed: no answer came in time.
    pub(in crate::engine) fn unanswered(self: &Arc<Self>, core: &Arc<Core>, attempt: u32) {
        self.lock().failure.get_or_insert_with(Error::silent);
        self.update(core, |state, now| {
            state.unanswered(&core.timing, now, core.jitter(), attempt);
        });
    }

    /// Applies the verdict on a renewal. With the same `jitter`, holds that were renewed together are due together, and join
    /// the group.
    pub(in crate::engine) fn renewed(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
        jitter: f64,
        renewal: SentRenewal,
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
                let name = self.name.clone();
                let error = error.clone();
                move || tracing::debug!(name = name.as_str(), %error, "renewal failed")
            }),
        }
        let mut inner = self.lock();
        match &verdict {
            Ok(_) => inner.failure = None,
            Err(error) => inner.failure = Some(error.clone()),
        }
        let verdict = match verdict {
            // The store may have made a reader of this writer already, and its answer is on its way. If not, that answer, or
            // the next renewal, shows the loss. Of a name that is free, it has made nothing.
            Ok(Some(Absence::Taken)) if self.is_downgraded(&inner) => {
                Err(Error::new(ErrorKind::Unavailable, "the mode may have changed meanwhile"))
            }
            verdict => verdict,
        };
        let tells = matches!(verdict, Ok(None)) && self.has_to_tell(core, &inner, now);
        let unflushed = self.update_locked(core, now, inner, Some(group), |state, now| {
            state.renewed(&core.timing, now, jitter, renewal, verdict);
            state.needs_flush()
        });
        if unflushed {
            core.submit(Job::Flush(Arc::clone(self)));
        }
        if tells {
            core.tell_later(self);
        }
    }
}
