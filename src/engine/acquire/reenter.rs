//! Enters again what the handle has.

use super::attempt::Nested;
use super::{AcquireLoop, Claim};
use crate::engine::machine::hold::{NestedVerdict, Reentry};
use crate::engine::machine::share::Share;
use crate::engine::shared::hold::Hold;
use crate::error::{Error, Result};
use crate::store::Acquire;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::{sleep, timeout};

impl<'core> AcquireLoop<'_, 'core> {
    /// Returns a nested request in the mode of the hold. It must not outlive `C`.
    fn nested(&self, hold: &Arc<Hold>, count: u32) -> Acquire {
        let timing = &self.core.timing;
        let timeout = timing.attempt.min(hold.remaining(self.core));
        let ttl = self.core.ttl_of(&hold.options);
        Acquire::new(hold.target(), hold.holder, ttl, timeout).with_count(count)
    }

    /// Re-enters a hold of which this handle has a share. Returns `None` if nothing is left of it, but for the one that a
    /// change of its mode has made of it.
    pub(super) async fn enter_again(
        &self,
        hold: &Arc<Hold>,
        share: Share,
    ) -> Result<Option<Claim<'core>>> {
        if !hold.mode.can_enter(self.mode) {
            return Err(Error::invalid(
                "this handle reads the name, so its write would wait for itself; drop the read lease first, or use \
                 ReadLease::try_upgrade",
            ));
        }
        let hold = Arc::clone(hold);
        let core = self.core;
        if hold.mode.is_joined() {
            core.unless_closed(pin!(self.read_again(hold, share))).await
        } else {
            core.unless_closed(pin!(self.reenter(hold))).await
        }
    }

    /// Re-enters a hold of this handle. Returns `None` if nothing is left of the hold.
    async fn reenter(&self, hold: Arc<Hold>) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        let count = loop {
            match hold.reenter(core) {
                Reentry::Count(count) => break count,
                Reentry::Busy => {
                    // This handle's own operation is in flight, so a silence here is the store's.
                    self.answered.store(false, Ordering::Relaxed);
                    let idle = timeout(self.silence_limit(), hold.until_idle()).await;
                    idle.map_err(|_| Error::silent())?;
                }
                Reentry::Lost(loss) => return Err(Error::lost(loss)),
                Reentry::Over => {
                    // The release of this handle may still be in flight; `try_lock` waits for it
                    // instead of reporting contention.
                    if self.once {
                        let _ = timeout(core.timing.attempt, hold.until_over()).await;
                    }
                    return Ok(None);
                }
            }
        };
        let mut nested = Nested::new(core, &hold, count);
        let mut failures = 0;
        let ask = async {
            loop {
                self.answered.store(false, Ordering::Relaxed);
                match nested.ask(self.nested(&hold, count)).await {
                    NestedVerdict::Failed(error) if error.is_unavailable() && !self.once => {
                        failures += 1;
                        tracing::debug!(%error, "nested acquire failed; retrying");
                        sleep(core.timing.gap(failures, core.jitter())).await;
                    }
                    verdict => return verdict,
                }
            }
        };
        let limit = self.silence_limit();
        tokio::select! {
            biased;
            verdict = timeout(limit, ask) => match verdict {
                Ok(verdict) => nested.end(verdict, true)?,
                Err(_) => return Err(Error::silent()),
            },
            loss = hold.when_lost() => return Err(Error::lost(loss)),
        }
        Ok(Some(self.claim(hold)))
    }

    /// Re-enters a read hold of this handle, without asking the store. Returns `None` if the handle has none of it any
    /// more.
    async fn read_again(&self, hold: Arc<Hold>, share: Share) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        loop {
            match hold.join_again(core, share) {
                Ok(()) => return Ok(Some(Claim::new(core, hold, share))),
                Err(Reentry::Busy) => {
                    // This handle tries to become the writer, so a silence here is the store's.
                    self.answered.store(false, Ordering::Relaxed);
                    let idle = timeout(self.silence_limit(), hold.until_idle()).await;
                    idle.map_err(|_| Error::silent())?;
                }
                Err(Reentry::Lost(loss)) => return Err(Error::lost(loss)),
                Err(Reentry::Over | Reentry::Count(_)) => return Ok(None),
            }
        }
    }
}
