//! The subscription to hints that a name may be free, and the waits of a caller that polls.

use super::AFTER_EXPIRY;
use crate::clock::Instant;
use crate::engine::shared::answers::Unanswered;
use crate::engine::shared::calls::{self, in_time};
use crate::engine::shared::core::Core;
use crate::error::{Error, Result};
use crate::store::{HolderId, Name, Target, Wakeups};
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The unit of the pauses after a refusal without a holder: 2, 4, 8 of it, and so on.
const SHORTEST_GAP: Duration = Duration::from_millis(1);

/// The source of hints between two attempts.
pub(crate) enum Subscription<'a> {
    NotSubscribed,
    Subscribing(Subscribing<'a>),
    /// Shared with the queue, for the call that asks next.
    Subscribed(Arc<Wakeups>),
    /// The store has no wake-ups: only the clock is left.
    Clock,
}

type Subscribing<'a> = Pin<Box<dyn Future<Output = Result<Option<Wakeups>>> + Send + 'a>>;

impl<'a> Subscription<'a> {
    pub(crate) fn is_subscribed(&self) -> bool {
        matches!(self, Self::Subscribed(_))
    }

    /// Returns the subscription, if there is one.
    pub(super) fn wakeups(&self) -> Option<Arc<Wakeups>> {
        if let Self::Subscribed(wakeups) = self { Some(Arc::clone(wakeups)) } else { None }
    }

    /// Returns whether a message that comes now is lost.
    pub(super) fn may_miss(&self) -> bool {
        matches!(self, Self::NotSubscribed | Self::Subscribing(_))
    }

    /// Waits for a hint or for `pause`. Returns whether there was a hint.
    ///
    /// A new subscription counts as a hint: only one more attempt sees a release that came before
    /// it.
    pub(crate) async fn wait(
        &mut self,
        core: &'a Core,
        target: Target,
        holder: HolderId,
        pause: Duration,
    ) -> bool {
        tokio::select! {
            biased;
            () = self.heard(core, target, Some(holder)) => true,
            () = sleep(pause) => false,
        }
    }

    /// Waits for a hint. Dropping the future loses no hint and no subscription in progress.
    pub(crate) async fn heard(&mut self, core: &'a Core, target: Target, holder: Option<HolderId>) {
        if let Self::NotSubscribed = self {
            let limit = core.timing.attempt;
            let subscribe = calls::subscribe(core, target.clone(), holder);
            *self = Self::Subscribing(Box::pin(in_time(limit, subscribe)));
        }
        match self {
            Self::Subscribed(wakeups) => wakeups.heard().await,
            Self::Subscribing(subscribing) => match subscribing.await {
                Ok(Some(wakeups)) => *self = Self::Subscribed(Arc::new(wakeups)),
                Err(error) => {
                    // This wait goes by the clock. The next one subscribes again, because a permission may come back.
                    tracing::debug!(name = target.name.as_str(), %error, "no wake-ups yet");
                    *self = Self::NotSubscribed;
                    pending().await
                }
                Ok(None) => {
                    *self = Self::Clock;
                    pending().await
                }
            },
            Self::NotSubscribed | Self::Clock => pending().await,
        }
    }
}

/// The waits of a caller that asks again and again, at hints and by the clock.
pub(crate) struct Polling<'a> {
    core: &'a Core,
    target: Target,
    subscription: Subscription<'a>,
    /// The time at which it gives up; `None` for one that does not wait.
    until: Option<Instant>,
    unanswered: Unanswered,
    /// The number of refusals in a row at which the store had no holder.
    free: u32,
}

impl<'a> Polling<'a> {
    /// Creates the waits of a caller that waits for `limit`, from now on.
    pub(crate) fn new(core: &'a Core, name: &Name, limit: Duration) -> Self {
        let until = (!limit.is_zero()).then(|| core.now() + limit);
        Self {
            core,
            target: Target::exclusive(name.clone()),
            subscription: Subscription::NotSubscribed,
            until,
            unanswered: Unanswered::default(),
            free: 0,
        }
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
        self.unanswered.lasted(self.core.now()) >= self.core.timing.attempt
    }

    /// Waits after a refusal. If the store has no holder (`is_free`), this process is still releasing the name, or another
    /// caller is about to get it. The hint may have come already, so it asks again soon.
    pub(crate) async fn refused(&mut self, is_free: bool) -> Result<()> {
        self.unanswered.answered();
        self.free = if is_free { self.free.saturating_add(1) } else { 0 };
        let bound = match self.free {
            0 => self.core.settings.max_poll_interval,
            times => SHORTEST_GAP * (1 << times.min(8)),
        };
        let bound = bound.min(self.core.settings.max_poll_interval);
        let pause = bound.min(self.left().saturating_add(AFTER_EXPIRY));
        tokio::select! {
            biased;
            // Without a holder: the store keeps no arrival for it.
            () = self.subscription.heard(self.core, self.target.clone(), None) => {}
            () = self.core.life.pause(pause) => {}
        }
        self.core.life.check()
    }

    /// Waits after the failure of a request that was sent at `asked`, unless it lasts, or the store has been silent for too
    /// long.
    pub(crate) async fn failed(&mut self, error: Error, asked: Instant) -> Result<()> {
        if !error.is_unavailable() {
            return Err(error);
        }
        match self.unanswered.gap(self.core, asked) {
            Some(gap) if gap < self.left() => {
                self.core.life.pause(gap).await;
                self.core.life.check()
            }
            _ => Err(error),
        }
    }
}
