//! Waits between the attempts of a caller that waits in no queue.

use super::AFTER_EXPIRY;
use super::hints::Hints;
use crate::clock::Instant;
use crate::engine::shared::core::Core;
use crate::error::{Error, Result};
use crate::store::{Name, Target};
use std::time::Duration;

/// Half of the first pause after a refusal for no holder that the store has.
const SHORTEST_GAP: Duration = Duration::from_millis(1);

/// The waits of a caller that asks again and again, at hints and by the clock.
pub(crate) struct Polling<'a> {
    core: &'a Core,
    target: Target,
    hints: Hints<'a>,
    /// The time at which it gives up; `None` for one that does not wait.
    until: Option<Instant>,
    failures: u32,
    /// The number of refusals in a row at which the store had no holder.
    free: u32,
    silent_since: Option<Instant>,
}

impl<'a> Polling<'a> {
    /// Creates the waits of a caller that waits for `limit`, from now on.
    pub(crate) fn new(core: &'a Core, name: &Name, limit: Duration) -> Self {
        let (target, hints) = (Target::exclusive(name.clone()), Hints::NotSubscribed);
        let until = (!limit.is_zero()).then(|| core.now() + limit);
        Self { core, target, hints, until, failures: 0, free: 0, silent_since: None }
    }

    fn left(&self) -> Duration {
        let now = self.core.now();
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Returns whether the time has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Returns whether the store has not answered for the time of an attempt.
    pub(crate) fn is_silent(&self) -> bool {
        let silence = |since| self.core.now().saturating_duration_since(since);
        self.silent_since.is_some_and(|since| silence(since) >= self.core.timing.attempt)
    }

    /// Waits after a refusal. If the store has no holder (`is_free`), this process is still releasing the name, or another
    /// caller is about to get it. The hint may have come already, so it asks again soon.
    pub(crate) async fn refused(&mut self, is_free: bool) -> Result<()> {
        (self.failures, self.silent_since) = (0, None);
        self.free = if is_free { self.free.saturating_add(1) } else { 0 };
        let bound = match self.free {
            0 => self.core.settings.poll_bound,
            times => SHORTEST_GAP * (1 << times.min(8)),
        };
        let bound = bound.min(self.core.settings.poll_bound);
        let pause = bound.min(self.left().saturating_add(AFTER_EXPIRY));
        tokio::select! {
            biased;
            // Without a holder: it takes no place in a queue of the store.
            () = self.hints.hint(self.core, self.target.clone(), None) => {}
            () = self.core.pause(pause) => {}
        }
        self.core.check_open()
    }

    /// Waits after the failure of a request that was sent at `asked`, unless it lasts, or the store has been silent for too
    /// long.
    pub(crate) async fn failed(&mut self, error: Error, asked: Instant) -> Result<()> {
        if !error.is_unavailable() {
            return Err(error);
        }
        let core = self.core;
        let since = *self.silent_since.get_or_insert(asked);
        self.failures += 1;
        let gap = core.timing.gap(self.failures, core.jitter());
        let silent = core.now().saturating_duration_since(since) + gap;
        if silent >= core.timing.ttl || gap >= self.left() {
            return Err(error);
        }
        core.pause(gap).await;
        core.check_open()
    }
}
