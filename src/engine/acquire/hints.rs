//! Hints that make a waiter ask again: a message, or the clock.

use crate::engine::shared::calls::in_time;
use crate::engine::shared::core::Core;
use crate::error::Result;
use crate::store::{HolderId, Target, Wakeups};
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The source of hints between two attempts.
pub(crate) enum Hints<'a> {
    NotSubscribed,
    Subscribing(Subscribing<'a>),
    /// Shared with the queue, for the flow that asks next.
    Subscribed(Arc<Wakeups>),
    /// The store has no wake-ups: only the clock is left.
    Clock,
}

type Subscribing<'a> = Pin<Box<dyn Future<Output = Result<Option<Wakeups>>> + Send + 'a>>;

impl<'a> Hints<'a> {
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
            () = self.hint(core, target, Some(holder)) => true,
            () = sleep(pause) => false,
        }
    }

    /// Waits for a hint. Dropping the future loses no hint and no subscription in progress.
    pub(crate) async fn hint(&mut self, core: &'a Core, target: Target, holder: Option<HolderId>) {
        if let Self::NotSubscribed = self {
            let limit = core.timing.attempt;
            let subscribe = core.subscribe(target.clone(), holder);
            *self = Self::Subscribing(Box::pin(in_time(limit, subscribe)));
        }
        match self {
            Self::Subscribed(wakeups) => wakeups.heard().await,
            Self::Subscribing(subscribing) => match subscribing.await {
                Ok(Some(wakeups)) => *self = Self::Subscribed(Arc::new(wakeups)),
                Err(error) => {
                    // By the clock this time, and the next time the store is asked again: also a permission may come back.
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
