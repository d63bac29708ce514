//! Waits before the store is asked again.

use super::super::hints::Hints;
use super::super::name_entry::Seen;
use super::super::turn::Turn;
use super::AcquireLoop;
use crate::clock::Instant;
use crate::store::{HolderId, Mode};
use std::sync::Arc;

impl AcquireLoop<'_, '_> {
    /// Waits for a hint, or until the holder's time to live or the poll bound ends. Meanwhile
    /// it moves the turn's due time on, which shows that this future is polled.
    pub(super) async fn wait_to_retry<'a>(
        &'a self,
        turn: &Turn,
        hints: &mut Hints<'a>,
        holder: HolderId,
        until: Instant,
    ) {
        let core = self.core;
        if matches!(self.mode, Mode::Permits { .. }) {
            self.note_refusal(turn, hints, until);
        }
        loop {
            let now = core.now();
            let step = until.saturating_duration_since(now).min(core.timing.ttl / 4);
            turn.set_due(now + step + core.timing.attempt);
            if step.is_zero() || hints.wait(core, self.target(), holder, step).await {
                break;
            }
        }
        // A flow of this process may have released permits while others wait elsewhere.
        if matches!(self.mode, Mode::Permits { .. })
            && let Some(time) = core.queue.not_before(self.name)
        {
            self.let_others_go_first(turn, time).await;
        }
    }

    /// Lets waiters elsewhere go first until `time`.
    pub(super) async fn let_others_go_first(&self, turn: &Turn, time: Instant) {
        let time = time.min(self.start + self.limits.1);
        turn.set_due(time + self.core.timing.attempt);
        self.core.clock().sleep_until(time).await;
    }

    /// Records that the store has refused permits, so that the next flow need not ask at once, if a hold is handed off to
    /// this one.
    fn note_refusal(&self, turn: &Turn, hints: &Hints<'_>, ask_at: Instant) {
        let wakeups = match hints {
            Hints::Subscribed(wakeups) => Some(Arc::clone(wakeups)),
            Hints::Clock => None,
            // A release may come before its subscription.
            Hints::NotSubscribed | Hints::Subscribing(_) => return,
        };
        turn.refused(Seen { mode: self.mode, wakeups, ask_at });
    }

    /// Waits on in place of the flow that asked before.
    pub(super) async fn wait_as_before<'a>(
        &'a self,
        turn: &Turn,
        hints: &mut Hints<'a>,
        holder: HolderId,
        seen: Seen,
    ) {
        *hints = seen.wakeups.map_or(Hints::Clock, Hints::Subscribed);
        // The store may grant another number of permits.
        if seen.mode == self.mode {
            self.wait_to_retry(turn, hints, holder, seen.ask_at).await;
        }
    }
}
