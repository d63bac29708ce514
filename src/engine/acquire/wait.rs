//! Waits before the store is asked again.

use super::hints::Hints;
use super::turn::Turn;
use super::{AFTER_EXPIRY, AcquireLoop};
use crate::clock::Instant;
use crate::engine::shared::queue::Asked;
use crate::store::HolderId;
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

    /// Records the last request for the flow that asks after this one, if a hold is handed off to this one.
    pub(super) fn note_ask(&self, turn: &Turn, hints: &Hints<'_>, again_at: Instant) {
        if !self.once && self.mode.can_seek() {
            turn.note_ask(Asked { mode: self.mode, wakeups: hints.wakeups(), again_at });
        }
    }

    /// Goes on in place of the flow that asked before, until the store is to be asked again.
    pub(super) async fn wait_as_before<'a>(
        &'a self,
        turn: &Turn,
        hints: &mut Hints<'a>,
        holder: HolderId,
        last: Asked,
    ) {
        if let Some(wakeups) = &last.wakeups {
            *hints = Hints::Subscribed(Arc::clone(wakeups));
        }
        // The store may grant another number of permits.
        if last.mode == self.mode {
            let again_at = last.again_at;
            turn.note_ask(last);
            self.wait_to_retry(turn, hints, holder, again_at).await;
        }
    }
}
