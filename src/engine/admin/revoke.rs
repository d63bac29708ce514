//! Forces a name open.

use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::life::lose_all;
use crate::error::{Loss, Result};
use crate::store::{Name, Reason};
use std::collections::HashSet;
use std::sync::Arc;

impl Core {
    /// Has the store release a name by force. Tokens of this process fire first. Returns whether it
    /// was held.
    pub(crate) async fn revoke(self: &Arc<Self>, name: &Name, reason: &Reason) -> Result<bool> {
        let mut revoked = Revoked::new(self, lose_all(self, name, Loss::Revoked));
        let held = self.force_release(name, reason).await;
        // A grant whose request was sent before this, and that arrives later, is released.
        self.queue.forced(name, self.now(), None);
        let before: HashSet<_> = revoked.holds.iter().map(|hold| hold.number).collect();
        if held.is_ok() {
            revoked.done();
        }
        // A hold that a waiter of this manager was granted meanwhile may have been deleted as well.
        for hold in self.queue.holds_of(name) {
            if !before.contains(&hold.number) {
                hold.verify(self).await;
            }
        }
        held
    }
}

#[cfg(feature = "testing")]
impl Core {
    /// Loses all holds that this process has of a name, for a test. Their releases are owed to the store. Returns whether
    /// there were any.
    pub(crate) fn lose(self: &Arc<Self>, name: &Name, loss: Loss) -> bool {
        let lost = Revoked::new(self, lose_all(self, name, loss));
        !lost.holds.is_empty()
    }
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
        for hold in self.holds.drain(..) {
            hold.owe(self.core);
        }
    }
}
