//! Waits behind other flows of this process.

use super::hints::Hints;
use super::turn::{Admission, WaiterGuard};
use super::{AcquireLoop, Claim, FIRST_GAP};
use crate::clock::Instant;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::queue::Waits;
use crate::error::Result;
use crate::util::trace;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::time::timeout;
use tracing::Level;

impl<'core> AcquireLoop<'_, 'core> {
    /// Waits for the answer to a request of another flow of this process, as long as for an own
    /// one: a long silence may come from a stall of this process. Returns `None` if the store is
    /// not silent: then another flow has the name, or is about to.
    pub(super) async fn wait_out_silence(&self) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        let until = self.start + self.silence_limit();
        let mut waiter = self.waiter();
        loop {
            let now = core.now();
            core.check_open()?;
            let silence = core.queue.silence(self.name);
            let lasts = |since| now.saturating_duration_since(since) >= core.timing.attempt;
            if !silence.is_some_and(|silence| lasts(silence.since)) {
                return self.check_kind().map(|()| None);
            }
            if until <= now {
                return Err(core.silent(self.name));
            }
            if let Ok(admission) = waiter.check_in(now) {
                return self.admitted((admission, now)).await;
            }
            let pause = FIRST_GAP.min(until.saturating_duration_since(now));
            // The answer that ends the silence may also have let us ask.
            if timeout(pause, waiter.woken()).await.is_ok() {
                let now = core.now();
                if let Ok(admission) = waiter.check_in(now) {
                    return self.admitted((admission, now)).await;
                }
            }
        }
    }

    /// Fails if this process uses the name as another kind of lock: the store would refuse the request, which waits here.
    fn check_kind(&self) -> Result<()> {
        let others = self.core.queue.used_otherwise(self.name, self.mode);
        // One that ends soon, or never was, is of no account.
        let is_sure =
            |hold: &Option<Arc<Hold>>| hold.as_ref().is_none_or(|hold| hold.is_believed());
        let other = others.iter().find(|(_, hold)| is_sure(hold));
        other.map_or(Ok(()), |(mode, _)| Err(mode.kind().wrong_type()))
    }

    /// Takes the offer that a check-in at `now` found, once.
    pub(super) async fn admitted(
        &self,
        (admission, now): (Admission, Instant),
    ) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        match admission {
            Admission::Turn(turn) => self.begin(turn).await,
            Admission::Join(hold) => {
                let share = hold.join(core, self.asker);
                Ok(share.map(|share| Claim::new(core, hold, share)))
            }
            Admission::Hold(offered) => {
                Ok(offered.accept(core, self.asker, now).map(|hold| self.claim(hold)))
            }
        }
    }

    /// Waits in the queue until an offer comes, and returns it with the time of the check-in that found it. Fails once the
    /// store counts as silent: the first waiter may get no answer either.
    pub(super) async fn wait_in_queue(
        &self,
        waiter: &mut WaiterGuard<'_>,
        mut now: Instant,
    ) -> Result<(Admission, Instant)> {
        let core = self.core;
        let limit = self.silence_limit();
        let mut hints = Hints::NotSubscribed;
        let mut gap = FIRST_GAP;
        let mut reported = false;
        loop {
            let Waits { silent_since, mixed } = match waiter.check_in(now) {
                Ok(admission) => return Ok((admission, now)),
                Err(waits) => waits,
            };
            self.asker.waits(|| core.queue.ahead(self.name, waiter.number()));
            // After the check-in: `close` wakes each waiter that it finds.
            core.check_open()?;
            if mixed {
                self.check_kind()?;
            }
            let mut pause = gap.min(core.timing.check_in_period());
            if let Some(since) = silent_since {
                let until = since.max(self.start) + limit;
                if until <= now {
                    return Err(core.silent(self.name));
                }
                pause = pause.min(until.saturating_duration_since(now));
            }
            let may_wait_for_itself = self.mode.is_reentrant() && !reported;
            if may_wait_for_itself && now.saturating_duration_since(self.start) >= core.timing.ttl {
                reported = self.report_own_hold(now);
            }
            // The wait is long enough to be worth a subscription, which reports a forced release.
            let listens = gap > FIRST_GAP && core.announces() && waiter.is_first_behind_a_hold(now);
            let woken = timeout(pause, waiter.woken());
            let woken = if listens {
                tokio::select! {
                    biased;
                    woken = woken => woken,
                    never = Box::pin(self.verify_on_hints(&mut hints)) => match never {},
                }
            } else {
                woken.await
            };
            if woken.is_err() {
                gap = gap.saturating_mul(2);
            }
            now = core.now();
        }
    }

    /// Warns of a wait that may never end: the flow of control that waits may be the one that holds the name. Returns
    /// false if this process does not hold it.
    fn report_own_hold(&self, now: Instant) -> bool {
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
    async fn verify_on_hints<'a>(&'a self, hints: &mut Hints<'a>) -> Infallible {
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
