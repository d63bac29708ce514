//! A hold on its way to a waiter, and the wake-up that brings it.

use crate::engine::shared::hold::Hold;
use crate::util::panics::run_wakers;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The owner of hand-offs, which takes back a hold that its waiter did not accept.
pub(in crate::engine) trait TakesBack: Send + Sync {
    /// Hands the hold off to the next waiter, or releases it.
    fn take_back(self: Arc<Self>, hold: Arc<Hold>);
}

/// A hold on its way to a waiter. Dropping it hands the hold off to the next waiter, or releases
/// it.
pub(crate) struct HandedOff {
    pub(in crate::engine) from: Arc<dyn TakesBack>,
    pub(in crate::engine) hold: Option<Arc<Hold>>,
}

impl HandedOff {
    /// Returns whether it carries this hold.
    pub(super) fn is(&self, hold: &Arc<Hold>) -> bool {
        self.hold.as_ref().is_some_and(|own| Arc::ptr_eq(own, hold))
    }
}

impl Drop for HandedOff {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            Arc::clone(&self.from).take_back(hold);
        }
    }
}

/// Wakes a waiter: with a hold that is handed off to it, or with `None` for a check-in.
pub(in crate::engine) type Wake = oneshot::Sender<Option<HandedOff>>;

/// Wakes a waiter of the queue, with a hold that is handed off to it, if there is one.
pub(super) fn wake_waiter(wake: Wake, offered: Option<HandedOff>) {
    // A waiter that was dropped needs no wake-up, and its hold goes to the next one.
    run_wakers(|| drop(wake.send(offered)));
}
