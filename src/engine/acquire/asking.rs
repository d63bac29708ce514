//! Asks the store for a name, until it grants it.

use super::attempt::Attempt;
use super::hints::Hints;
use super::turn::Turn;
use super::{AcquireLoop, UNANSWERED};
use crate::clock::Instant;
use crate::engine::machine::name::Kept;
use crate::engine::machine::scope::HandoffScope;
use crate::engine::shared::life::Grant;
use crate::error::{Error, Result};
use crate::observe::Operation;
use crate::store::Acquired;
use std::future::Future;
use std::pin::{Pin, pin};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

impl AcquireLoop<'_, '_> {
    /// Asks the store until it grants the name. Returns `None` if the name is held and this call
    /// asks only once, or if the turn was reclaimed because its steps took too long.
    pub(super) async fn ask_store(&self, mut turn: Turn) -> Result<Option<Grant>> {
        let core = self.core;
        let mut attempt = Attempt::new(core, self.target(), core.draw_holder());
        let mut hints = Hints::NotSubscribed;
        if let Some(last) = turn.last_ask.take() {
            Box::pin(self.wait_as_before(&turn, &mut hints, attempt.holder(), last)).await;
        }
        let mut unanswered: Option<Instant> = None;
        let mut failures = 0;
        let attempt_time = core.timing.attempt;
        turn.set_fair(self.fair);
        if let Some(time) = turn.not_before() {
            self.let_others_go_first(&turn, time).await;
        }
        loop {
            if let Some(set) = self.asker.set {
                set.arrive().await;
            }
            core.check_open()?;
            // Silence counts from the first unanswered request, including those of earlier turns,
            // but not during pauses.
            let now = core.now();
            let Some(since) = turn.asked(now, core.timing.step_due(now)) else { return Ok(None) };
            let since = *unanswered.get_or_insert(since);
            let until = since.max(self.start) + self.silence_limit();
            attempt.send(self.request(attempt.holder()), self.asker.set, now);
            self.note_ask(&turn, &hints, now + UNANSWERED.min(attempt_time));
            let verdict = self.answer(&turn, pin!(attempt.land()), (now, until)).await;
            let Some(verdict) = verdict else {
                let silent = core.silent(self.name);
                core.count_failure(Operation::Acquire, now, 1);
                return Err(silent);
            };
            core.count_answer(Operation::Acquire, &verdict, was_refused, now, 1);
            match verdict {
                Ok(Acquired::Granted { sent, fence, reached, oldest }) => {
                    let now = core.now();
                    let kept = match core.timing.stale(sent, now) {
                        true => None,
                        false => Some(turn.keep(sent, true)),
                    };
                    let refused = match kept {
                        Some(Kept::Yes) => None,
                        Some(Kept::Excluded) => {
                            core.queue.answered(self.name);
                            attempt.undo(sent);
                            return Ok(None);
                        }
                        Some(Kept::Forced) => Some("the name was forced open meanwhile"),
                        None => Some("it came too late"),
                    };
                    if let Some(why) = refused {
                        tracing::debug!(why, "grant released; asking again");
                        attempt.undo(sent);
                        attempt = Attempt::new(core, self.target(), core.draw_holder());
                        // The next one may be ready at once, and too late again.
                        yield_now().await;
                        continue;
                    }
                    let holder = attempt.holder();
                    let unsure_until = attempt.accept_grant();
                    return Ok(Some(Grant {
                        target: self.target(),
                        options: self.options.clone(),
                        holder,
                        fence,
                        reached,
                        sent,
                        now,
                        unsure_until,
                        scope: HandoffScope::of(self.fair, sent, oldest),
                        turn,
                    }));
                }
                Ok(Acquired::Held { remaining, closed }) => {
                    if self.once {
                        self.asker.refused_by_store(closed);
                        core.queue.answered(self.name);
                        return Ok(None);
                    }
                    self.asker.waits(|| 0);
                    (unanswered, failures) = (None, 0);
                    turn.held_elsewhere();
                    let refused_at = core.now();
                    let until = self.ask_again_at(refused_at, remaining);
                    // A release since then may wake no waiter. If permits change hands faster than the store subscribes,
                    // none of the flows hears one.
                    let took = refused_at.saturating_duration_since(now);
                    let next = if hints.may_miss() { until.min(refused_at + took) } else { until };
                    self.note_ask(&turn, &hints, next);
                    self.wait_to_retry(&turn, &mut hints, attempt.holder(), until).await;
                }
                Ok(Acquired::NotYours(_)) => {
                    return Err(Error::protocol(
                        "the store answered an outermost acquire as a nested one",
                    ));
                }
                Err(error) if error.is_unavailable() && !self.once => {
                    failures += 1;
                    let gap = core.timing.gap(failures, core.jitter());
                    if core.now() + gap >= since + core.timing.ttl {
                        return Err(attempt.failed(error));
                    }
                    tracing::debug!(%error, "acquire failed; retrying");
                    turn.set_due(core.now() + gap + attempt_time);
                    sleep(gap).await;
                }
                Err(error) => {
                    // A refusal is an answer too.
                    if !error.is_unavailable() {
                        core.queue.answered(self.name);
                    }
                    return Err(attempt.failed(error));
                }
            }
        }
    }

    /// Waits for the answer to a request of `now` until `until`. Meanwhile it moves the turn's due time on, which shows
    /// that this future is polled.
    pub(super) async fn answer<R>(
        &self,
        turn: &Turn,
        mut request: Pin<&mut impl Future<Output = R>>,
        (mut now, until): (Instant, Instant),
    ) -> Option<R> {
        let core = self.core;
        loop {
            let left = until.saturating_duration_since(now);
            match timeout(left.min(core.timing.attempt * 2), request.as_mut()).await {
                Ok(answer) => return Some(answer),
                Err(_) => now = core.now(),
            }
            if now >= until {
                return None;
            }
            turn.set_due(core.timing.step_due(now));
        }
    }
}

fn was_refused(verdict: &Acquired) -> bool {
    !matches!(verdict, Acquired::Granted { .. })
}
