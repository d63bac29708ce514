//! All waits of a call: for a hint, by the clock, out of a silence, and between two failures.

use super::turn::Turn;
use super::{AFTER_EXPIRY, AcquireLoop, Claim, FIRST_GAP};
use crate::clock::Instant;
use crate::engine::machine::mode;
use crate::engine::shared::calls::in_time;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::queue::Asked;
use crate::engine::shared::served::Unanswered;
use crate::error::{Error, Result};
use crate::store::{HolderId, Name, Target, Wakeups};
use crate::util::trace;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::Level;

/// Half of the first pause after a refusal for no holder that the store has.
const SHORTEST_GAP: Duration = Duration::from_millis(1);

/// The source of hints between two attempts.
pub(crate) enum Hints<'a> {
    NotSubscribed,
    Subscribing(Subscribing<'a>),
    /// Shared with the queue, for the call that asks next.
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

impl<'core> AcquireLoop<'_, 'core> {
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
        // A call of this process may have released permits while others wait elsewhere.
        if mode::can_seek(self.mode)
            && let Some(time) = core.queue.not_before(self.name)
        {
            self.let_others_go_first(turn, time).await;
        }
    }

    /// Lets waiters elsewhere go first until `time`.
    async fn let_others_go_first(&self, turn: &Turn, time: Instant) {
        let time = time.min(self.start + self.longest_pause);
        turn.set_due(time + self.core.timing.attempt);
        self.core.clock().sleep_until(time).await;
    }

    /// Returns when the store is asked again that has refused the request of `sent`, if no hint comes before. Records that
    /// for the call that asks after this one.
    pub(super) fn ask_again_at(
        &self,
        turn: &Turn,
        hints: &Hints<'_>,
        sent: Instant,
        remaining: Option<Duration>,
    ) -> Instant {
        let (now, bound) = (self.core.now(), self.core.settings.poll_bound);
        let until =
            now + remaining.map_or(bound, |left| bound.min(left.saturating_add(AFTER_EXPIRY)));
        // A release since then may wake no waiter. If permits change hands faster than the store subscribes, none of the
        // calls hears one.
        let took = now.saturating_duration_since(sent);
        let next_call = if hints.may_miss() { until.min(now + took) } else { until };
        self.note_ask(turn, hints, next_call);
        until
    }

    /// Records the last request for the call that asks after this one, if a hold is handed off to this one.
    pub(super) fn note_ask(&self, turn: &Turn, hints: &Hints<'_>, again_at: Instant) {
        if !self.once && mode::can_seek(self.mode) {
            turn.note_ask(Asked { mode: self.mode, wakeups: hints.wakeups(), again_at });
        }
    }

    /// Waits before the first request of a turn: in place of the call before it, and for waiters elsewhere.
    pub(super) async fn wait_to_ask<'a>(
        &'a self,
        turn: &mut Turn,
        hints: &mut Hints<'a>,
        holder: HolderId,
    ) {
        if let Some(last) = turn.last_ask.take() {
            Box::pin(self.wait_as_before(turn, hints, holder, last)).await;
        }
        turn.set_fair(self.fair);
        if let Some(time) = turn.not_before() {
            self.let_others_go_first(turn, time).await;
        }
    }

    /// Goes on in place of the call that asked before, until the store is to be asked again.
    async fn wait_as_before<'a>(
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

    /// Waits for the answer to a request of another call of this process, as long as for an own
    /// one: a long silence may come from a stall of this process. Returns `None` if the store is
    /// not silent: then another call has the name, or is about to.
    pub(super) async fn wait_out_silence(&self) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        let until = self.start + self.silence_limit();
        let mut waiter = self.waiter();
        loop {
            let now = core.now();
            core.life.check()?;
            let silence = core.queue.silence(self.name);
            let lasts = |since| now.saturating_duration_since(since) >= core.timing.attempt;
            if !silence.is_some_and(|silence| lasts(silence.since)) {
                return self.check_kind().map(|()| None);
            }
            if until <= now {
                return Err(core.silent(self.name));
            }
            if let Ok(admission) = waiter.check_in(now) {
                return self.admitted(admission, now).await;
            }
            let pause = FIRST_GAP.min(until.saturating_duration_since(now));
            // The answer that ends the silence may also have let us ask.
            if timeout(pause, waiter.woken()).await.is_ok() {
                let now = core.now();
                if let Ok(admission) = waiter.check_in(now) {
                    return self.admitted(admission, now).await;
                }
            }
        }
    }

    /// Fails if this process uses the name as another kind of lock: the store would refuse the request, which waits here.
    pub(super) fn check_kind(&self) -> Result<()> {
        let others = self.core.queue.used_otherwise(self.name, self.mode);
        // One that ends soon, or never was, is of no account.
        let is_sure =
            |hold: &Option<Arc<Hold>>| hold.as_ref().is_none_or(|hold| hold.is_believed());
        let other = others.iter().find(|(_, hold)| is_sure(hold));
        other.map_or(Ok(()), |(mode, _)| Err(mode.kind().wrong_type()))
    }

    /// Warns of a wait that may never end: the flow of control that waits may be the one that holds the name. Returns
    /// false if this process does not hold it.
    pub(super) fn report_own_hold(&self, now: Instant) -> bool {
        if self.core.queue.holds_of(self.name).is_empty() {
            return false;
        }
        let waited = now.saturating_duration_since(self.start);
        trace::later(Level::WARN, || {
            let (name, waited_ms) = (self.name.clone(), waited.as_millis() as u64);
            move || {
                tracing::warn!(
                    name = name.as_str(),
                    waited_ms,
                    "waiting for a name that this process holds; a nested call needs the handle of its caller"
                )
            }
        });
        true
    }

    /// Renews the hold ahead at each hint: it may have been forced open elsewhere.
    pub(super) async fn verify_on_hints<'a>(&'a self, hints: &mut Hints<'a>) -> Infallible {
        let core = self.core;
        loop {
            let subscribed = hints.is_subscribed();
            hints.hint(core, self.target(), None).await;
            // Neither the subscription nor a release of this process, which a new grant follows, is
            // worth a renewal: a hold is not handed off during one.
            let holds = if subscribed { core.queue.holds_of(self.name) } else { Vec::new() };
            for hold in holds {
                if hold.chain_began() + FIRST_GAP < core.now() {
                    hold.renew_now(core).await;
                }
            }
        }
    }
}

/// The waits of a caller that asks again and again, at hints and by the clock.
pub(crate) struct Polling<'a> {
    core: &'a Core,
    target: Target,
    hints: Hints<'a>,
    /// The time at which it gives up; `None` for one that does not wait.
    until: Option<Instant>,
    unanswered: Unanswered,
    /// The number of refusals in a row at which the store had no holder.
    free: u32,
}

impl<'a> Polling<'a> {
    /// Creates the waits of a caller that waits for `limit`, from now on.
    pub(crate) fn new(core: &'a Core, name: &Name, limit: Duration) -> Self {
        let (target, hints) = (Target::exclusive(name.clone()), Hints::NotSubscribed);
        let until = (!limit.is_zero()).then(|| core.now() + limit);
        Self { core, target, hints, until, unanswered: Unanswered::default(), free: 0 }
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
            0 => self.core.settings.poll_bound,
            times => SHORTEST_GAP * (1 << times.min(8)),
        };
        let bound = bound.min(self.core.settings.poll_bound);
        let pause = bound.min(self.left().saturating_add(AFTER_EXPIRY));
        tokio::select! {
            biased;
            // Without a holder: it takes no place in a queue of the store.
            () = self.hints.hint(self.core, self.target.clone(), None) => {}
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
