//! Runs wakers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::sync::oneshot;

/// Wakes waiters. A waker is the only user code that runs here; its panic affects no other waiter.
pub(super) fn wake(wake: impl FnOnce()) {
    // The panic hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(wake));
}

/// Wakes a waiter of the queue.
pub(super) fn wake_waiter(waiter: oneshot::Sender<()>) {
    // A waiter that was dropped needs no wake-up.
    wake(|| {
        let _ = waiter.send(());
    });
}
