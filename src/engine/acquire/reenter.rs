//! Enters again what the handle has: without a request, and without a wait but for a change of the mode.

use super::{AcquireLoop, Claim};
use crate::engine::machine::count::Share;
use crate::engine::machine::hold::Reentry;
use crate::engine::machine::mode;
use crate::engine::shared::hold::Hold;
use crate::error::{Error, Result};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::timeout;

impl<'core> AcquireLoop<'_, 'core> {
    /// Re-enters a hold of which this handle has a share. Returns `None` if nothing is left of it, but for the one that a
    /// change of its mode has made of it.
    pub(super) async fn enter_again(
        &self,
        hold: &Arc<Hold>,
        share: Share,
    ) -> Result<Option<Claim<'core>>> {
        if !mode::can_enter(hold.mode, self.mode) {
            return Err(Error::invalid(
                "this handle reads the name, so its write would wait for itself; drop the read lease first, or use \
                 ReadLease::try_upgrade",
            ));
        }
        let entering = pin!(self.enter(hold, share));
        self.core.life.unless_closed(entering).await
    }

    async fn enter(&self, hold: &Arc<Hold>, share: Share) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        loop {
            let entered = match mode::is_joined(hold.mode) {
                true => hold.join_again(core, share),
                false => hold.enter_again(core),
            };
            match entered {
                Ok(()) => return Ok(Some(Claim::new(core, Arc::clone(hold), share))),
                Err(Reentry::Busy) => {
                    // A silence is the store's: it has not answered the request of this handle to change the mode.
                    self.answered.store(false, Ordering::Relaxed);
                    let idle = timeout(self.silence_limit(), hold.until_idle()).await;
                    idle.map_err(|_| Error::silent())?;
                }
                Err(Reentry::Lost(loss)) => return Err(Error::lost(loss)),
                Err(Reentry::Over) => {
                    // The release of this handle may still be in flight; `try_lock` waits for it instead of reporting
                    // contention.
                    if self.once && !mode::is_joined(hold.mode) {
                        let _ = timeout(core.timing.attempt, hold.until_over()).await;
                    }
                    return Ok(None);
                }
            }
        }
    }
}
