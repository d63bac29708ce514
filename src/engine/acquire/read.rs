//! Enters again what the handle reads.

use super::super::hold::Hold;
use super::super::state::Reentry;
use super::{AcquireLoop, Claim};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::timeout;

impl<'core> AcquireLoop<'_, 'core> {
    /// Re-enters a read hold of this handle, without asking the store. Returns `None` if the handle has none of it any
    /// more.
    pub(super) async fn read_again(&self, hold: Arc<Hold>) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        loop {
            match hold.join_again(core, self.share) {
                Ok(()) => return Ok(Some(Claim::new(core, hold, self.share))),
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
