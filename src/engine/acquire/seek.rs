//! Asks the store for permits, while a hold of this process can be handed off to this flow as well.

use super::turn::Turn;
use super::{AcquireLoop, Claim};
use crate::engine::shared::hold::Hold;
use crate::error::Result;
use std::pin::pin;

impl<'core> AcquireLoop<'_, 'core> {
    /// Asks the store for permits, until it grants them or another flow hands a hold off.
    pub(super) async fn seek(&self, turn: Turn) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        let mut passed = turn.seek(self.options);
        let asked = {
            let asking = pin!(self.ask_store(turn));
            let asking = pin!(core.unless_closed(asking));
            tokio::select! {
                biased;
                asked = asking => asked,
                // A request that is not answered yet is left to the engine.
                Ok(Some(offered)) = &mut passed => return Ok(offered.accept(core, self.asker, core.now()).map(|hold| self.claim(hold))),
            }
        };
        match asked {
            // A hold that was handed off as well goes to the next waiter.
            Ok(Some(grant)) => Ok(Some(self.claim(Hold::begin(core, grant, self.asker)))),
            other => match passed.try_recv() {
                Ok(Some(offered)) => {
                    Ok(offered.accept(core, self.asker, core.now()).map(|hold| self.claim(hold)))
                }
                Ok(None) | Err(_) => other.map(|_| None),
            },
        }
    }
}
