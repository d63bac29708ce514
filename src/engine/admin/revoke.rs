//! Forces a name open.

use crate::engine::hold::renew;
use crate::engine::shared::calls;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::error::{Loss, Result};
use crate::store::{Name, Reason};
use crate::util::reached::Rare;
use std::collections::HashSet;
use std::sync::Arc;

/// Has the store release a name by force. Tokens of this process fire first. Returns whether it
/// was held.
pub(crate) async fn revoke(core: &Arc<Core>, name: &Name, reason: &Reason) -> Result<bool> {
    let mut revoked = Revoked::new(core, lose_all(core, name, Loss::Revoked));
    let held = calls::force_release(core, name, reason).await;
    // A grant whose request was sent before this, and that arrives later, is released.
    core.queue.forced(name, core.now(), None);
    let before: HashSet<_> = revoked.holds.iter().map(|hold| hold.number).collect();
    if held.is_ok() {
        revoked.done();
    }
    // A hold that a waiter of this manager was granted meanwhile may have been deleted as well.
    for hold in core.queue.holds_of(name) {
        if !before.contains(&hold.number) {
            renew_or_lose(core, &hold).await;
        }
    }
    held
}

/// Renews the hold at once. Without an answer in the time of an attempt, it is lost.
async fn renew_or_lose(core: &Arc<Core>, hold: &Arc<Hold>) {
    let start = core.now();
    tokio::select! {
        biased;
        () = renew::renew_now(core, hold) => {}
        () = core.clock().sleep_until(start + core.timing.attempt) => {
            hold.lose(core, Loss::Revoked);
            hold.owe(core);
        }
    }
}

/// Loses all holds that this process has of a name, for a test. Their releases are owed to the store. Returns whether
/// there were any.
#[cfg(feature = "testing")]
pub(crate) fn lose(core: &Arc<Core>, name: &Name, loss: Loss) -> bool {
    let lost = Revoked::new(core, lose_all(core, name, loss));
    !lost.holds.is_empty()
}

/// Loses all holds that this process has of a name, and returns them.
pub(in crate::engine) fn lose_all(core: &Arc<Core>, name: &Name, loss: Loss) -> Vec<Arc<Hold>> {
    let mut lost = Vec::new();
    core.queue.each_hold_of(name, |hold| {
        hold.lose(core, loss);
        lost.push(Arc::clone(hold));
    });
    lost
}

/// Holds whose keys are deleted by force. If that fails or is dropped, their releases are owed to
/// the store.
pub(super) struct Revoked<'a> {
    core: &'a Arc<Core>,
    holds: Vec<Arc<Hold>>,
}

impl<'a> Revoked<'a> {
    pub(in crate::engine) fn new(core: &'a Arc<Core>, holds: Vec<Arc<Hold>>) -> Self {
        Self { core, holds }
    }

    /// Records that the store has deleted the keys.
    pub(in crate::engine) fn done(&mut self) {
        self.holds.clear();
    }
}

impl Drop for Revoked<'_> {
    fn drop(&mut self) {
        Rare::ForceUnknown.reached_if(|| !self.holds.is_empty());
        for hold in self.holds.drain(..) {
            hold.owe(self.core);
        }
    }
}
