//! Asks the store for permits, while a hold of this process can be handed off to this flow as well.

use super::super::hints::Hints;
use super::super::hold::Hold;
use super::super::name_entry::Seen;
use super::super::turn::Turn;
use super::{AcquireLoop, Claim};
use crate::clock::Instant;
use crate::error::Result;
use crate::store::HolderId;
use std::pin::pin;
use std::sync::Arc;

impl<'core> AcquireLoop<'_, 'core> {
    /// Asks the store for permits, until it grants them or another flow hands a hold off.
    pub(super) async fn seek(&self, turn: Turn) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        let mut passed = turn.seek();
        let asked = {
            let asking = pin!(self.ask_store(turn));
            let asking = pin!(core.unless_closed(asking));
            tokio::select! {
                biased;
                asked = asking => asked,
                // A request that is not answered yet is left to the engine.
                Ok(offered) = &mut passed => return Ok(offered.accept(core).map(|hold| self.claim(hold))),
            }
        };
        match asked {
            // A hold that was handed off as well goes to the next waiter.
            Ok(Some(grant)) => Ok(Some(self.claim(Hold::begin(core, grant)))),
            other => match passed.try_recv() {
                Ok(offered) => Ok(offered.accept(core).map(|hold| self.claim(hold))),
                Err(_) => other.map(|_| None),
            },
        }
    }

    /// Records that the store has refused permits, so that the next flow need not ask at once, if a hold is handed off to
    /// this one.
    pub(super) fn note_refusal(&self, turn: &Turn, hints: &Hints<'_>, ask_at: Instant) {
        let wakeups = match hints {
            Hints::Subscribed(wakeups) => Some(Arc::clone(wakeups)),
            Hints::Clock => None,
            // A release may come before its subscription.
            Hints::NotSubscribed | Hints::Subscribing(_) => return,
        };
        turn.refused(Seen { mode: self.mode, wakeups, ask_at });
    }

    /// Waits on in place of the flow that asked before.
    pub(super) async fn wait_as_before<'a>(
        &'a self,
        turn: &Turn,
        hints: &mut Hints<'a>,
        holder: HolderId,
        seen: Seen,
    ) {
        *hints = seen.wakeups.map_or(Hints::Clock, Hints::Subscribed);
        // The store may grant another number of permits.
        if seen.mode == self.mode {
            self.wait_to_retry(turn, hints, holder, seen.ask_at).await;
        }
    }
}
