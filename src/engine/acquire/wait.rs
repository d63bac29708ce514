//! Waits before the store is asked again.

use super::attempt::Attempt;
use super::hints::Hints;
use super::turn::Turn;
use super::{AFTER_EXPIRY, AcquireLoop};
use crate::clock::Instant;
use crate::engine::machine::seen::{Found, Listens, Question, Refusal, Seen};
use crate::store::HolderId;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

impl AcquireLoop<'_, '_> {
    /// Waits for a hint, for the end of the turn, or until the holder's time to live or the poll bound ends. Meanwhile
    /// it moves the turn's due time on, which shows that this future is polled.
    pub(super) async fn wait_to_retry<'a>(
        &'a self,
        turn: &Turn,
        hints: &mut Hints<'a>,
        holder: HolderId,
        until: Instant,
    ) {
        let core = self.core;
        loop {
            let now = core.now();
            let step = until.saturating_duration_since(now).min(core.timing.ttl / 4);
            turn.set_due(now + step + core.timing.attempt);
            if step.is_zero() {
                break;
            }
            let is_hint = tokio::select! {
                biased;
                is_hint = hints.wait(core, self.target(), holder, step) => is_hint,
                // Then there is nothing to ask for.
                () = turn.ended() => true,
            };
            if is_hint {
                break;
            }
        }
        // A flow of this process may have released permits while others wait elsewhere.
        if self.mode.can_seek()
            && let Some(time) = core.queue.not_before(self.name)
        {
            self.let_others_go_first(turn, time).await;
        }
    }

    /// Lets waiters elsewhere go first until `time`.
    pub(super) async fn let_others_go_first(&self, turn: &Turn, time: Instant) {
        let time = time.min(self.start + self.longest_pause);
        turn.set_due(time + self.core.timing.attempt);
        self.core.clock().sleep_until(time).await;
    }

    /// Returns when the store is asked again that has refused at `now`, if no hint comes before.
    pub(super) fn ask_again_at(&self, now: Instant, remaining: Option<Duration>) -> Instant {
        let bound = self.core.settings.poll_bound;
        now + remaining.map_or(bound, |left| bound.min(left.saturating_add(AFTER_EXPIRY)))
    }

    /// Makes the next request known to the flow that asks after this one, if a hold is handed off to this one before the
    /// answer.
    pub(super) fn question(&self, turn: &Turn, hints: &Hints<'_>) -> Option<Arc<Question>> {
        if self.once || !self.mode.can_seek() {
            return None;
        }
        let question = Arc::new(Question::new());
        let listens = match hints {
            Hints::NotSubscribed | Hints::Subscribing(_) => Listens::NotYet,
            Hints::Subscribed(wakeups) => Listens::To(Arc::clone(wakeups)),
            Hints::Clock => Listens::Never,
        };
        turn.saw(Seen { mode: self.mode, listens, question: Arc::clone(&question) });
        Some(question)
    }

    /// Goes on in place of the flow that asked before, until the store is to be asked again. Returns true if there is a
    /// request of that flow that has no answer yet.
    pub(super) async fn wait_as_before<'a>(
        &'a self,
        turn: &Turn,
        hints: &mut Hints<'a>,
        attempt: &mut Attempt<'_>,
        seen: Seen,
    ) -> bool {
        *hints = match &seen.listens {
            Listens::NotYet => Hints::NotSubscribed,
            Listens::To(wakeups) => Hints::Subscribed(Arc::clone(wakeups)),
            Listens::Never => Hints::Clock,
        };
        // The store may grant another number of permits.
        if seen.mode != self.mode {
            return false;
        }
        turn.saw(seen.clone());
        let now = self.core.now();
        turn.set_due(self.core.timing.step_due(now));
        // That flow may not be polled.
        let until = now + self.core.timing.attempt;
        let found = self.answer(turn, pin!(seen.question.found()), (now, until)).await;
        match found {
            Some(Found::Left(left)) => {
                attempt.take_over(left, self.core.ttl_of(self.options), seen.question)
            }
            Some(Found::Refused(Refusal { at, took, remaining })) => {
                let until = self.ask_again_at(at, remaining);
                let until = match seen.listens {
                    // A release since then wakes no waiter. If permits change hands faster than the store subscribes, none of
                    // the flows hears one.
                    Listens::NotYet => until.min(at + took),
                    Listens::To(_) | Listens::Never => until,
                };
                self.wait_to_retry(turn, hints, attempt.holder(), until).await;
                false
            }
            Some(Found::Over) | None => false,
        }
    }
}
