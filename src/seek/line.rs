//! Waiting behind others of this process.

use super::{FIRST_GAP, Seek, is_silent};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::hints::Hints;
use crate::hold::Hold;
use crate::hold::place::{Admission, Place};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::timeout;

impl Seek<'_> {
    /// Waits for the answer to a request of another one here, as long as for one of its own: that there was none for long
    /// may be because this process stood still. `None`: the store is not silent, so another one here has the name, or
    /// is about to.
    pub(super) async fn behind_a_silence(&self) -> Result<Option<Arc<Hold>>> {
        let core = self.core();
        let until = self.start + self.silence_limit();
        let mut place = core.queue.place(self.name);
        loop {
            let now = core.now();
            if !is_silent(core, self.name, Instant::ZERO) {
                return Ok(None);
            }
            if until <= now {
                return Err(Error::silent());
            }
            let pause = FIRST_GAP.min(until.saturating_duration_since(now));
            match timeout(pause, place.next(now)).await {
                Ok(Admission::Turn(turn)) => return self.begin(turn).await,
                Ok(Admission::Hold(passed)) => return Ok(passed.accept()),
                Err(_) => {}
            }
        }
    }

    /// Waits in line, for as long as the store is not silent: the first in line may hear nothing either.
    pub(super) async fn wait_in_line(&self, place: &mut Place) -> Result<Admission> {
        let core = self.core();
        let limit = self.silence_limit();
        let mut hints = Hints::Unasked;
        let mut gap = FIRST_GAP;
        // This needs no answer, whatever came before.
        self.answered.store(true, Ordering::Relaxed);
        loop {
            let now = core.now();
            let mut pause = gap.min(core.timing.look_period());
            if let Some(since) = core.queue.silent_since(self.name) {
                let until = since.max(self.start) + limit;
                if until <= now {
                    return Err(Error::silent());
                }
                pause = pause.min(until.saturating_duration_since(now));
            }
            // Long enough to be worth a subscription, so that a release by force is heard.
            let listens = gap > FIRST_GAP && core.announces && place.is_first_behind_a_hold(now);
            let admission = if listens {
                tokio::select! {
                    biased;
                    admission = timeout(pause, place.next(now)) => admission,
                    never = Box::pin(self.doubt(&mut hints)) => match never {},
                }
            } else {
                timeout(pause, place.next(now)).await
            };
            if let Ok(admission) = admission {
                return Ok(admission);
            }
            gap = gap.saturating_mul(2);
        }
    }

    /// Has the hold before us renewed at each hint, for it may have been forced open elsewhere.
    async fn doubt<'a>(&'a self, hints: &mut Hints<'a>) -> Infallible {
        let core = self.core();
        loop {
            let subscribed = hints.is_subscribed();
            hints.hint(core, self.name, None).await;
            // Neither the subscription nor a release of our own, which a new grant follows, is worth a renewal: a hold is
            // not handed on while one is under way.
            if let Some(hold) = core.queue.hold(self.name)
                && subscribed
                && hold.granted() + FIRST_GAP < core.now()
            {
                hold.renew_now(core).await;
            }
        }
    }
}
