//! What tells a waiter to ask again: a message, or the clock.

use crate::error::Result;
use crate::hold::engine::Core;
use crate::hold::reaper::in_time;
use crate::store::{HolderId, Name, Wakeups};
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;
use tokio::time::sleep;

/// What a waiter listens to between two attempts.
pub(crate) enum Hints<'a> {
    Unasked,
    Subscribing(Subscribing<'a>),
    Subscribed(Wakeups),
    /// The store has no wake-ups, or refused them: the clock alone.
    Clock,
}

type Subscribing<'a> = Pin<Box<dyn Future<Output = Result<Option<Wakeups>>> + Send + 'a>>;

impl<'a> Hints<'a> {
    pub(crate) fn is_subscribed(&self) -> bool {
        matches!(self, Self::Subscribed(_))
    }

    /// Waits for a hint, or for `pause`; returns whether there was a hint.
    ///
    /// A new subscription is a hint: what was released before that must be seen by one more attempt.
    pub(crate) async fn wait(
        &mut self,
        core: &'a Core,
        (name, holder): (&'a Name, HolderId),
        pause: Duration,
    ) -> bool {
        tokio::select! {
            biased;
            () = self.hint(core, name, Some(holder)) => true,
            () = sleep(pause) => false,
        }
    }

    /// Waits for a hint. Dropping the future loses none, and no subscription that is under way.
    pub(crate) async fn hint(&mut self, core: &'a Core, name: &'a Name, holder: Option<HolderId>) {
        if let Self::Unasked = self {
            let limit = core.timing.attempt;
            *self = Self::Subscribing(Box::pin(in_time(limit, core.subscribe(name, holder))));
        }
        match self {
            Self::Subscribed(wakeups) => wakeups.recv().await,
            Self::Subscribing(subscribing) => match subscribing.await {
                Ok(Some(wakeups)) => *self = Self::Subscribed(wakeups),
                Err(error) if error.is_unavailable() => {
                    // Wait by the clock this time; subscribe the next.
                    *self = Self::Unasked;
                    pending().await
                }
                Err(error) => {
                    tracing::warn!(name = name.as_str(), %error, "no wake-ups; waiting by the clock");
                    *self = Self::Clock;
                    pending().await
                }
                Ok(None) => {
                    *self = Self::Clock;
                    pending().await
                }
            },
            Self::Unasked | Self::Clock => pending().await,
        }
    }
}
