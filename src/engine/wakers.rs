//! Runs wakers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::sync::oneshot;

/// Makes a call that runs wakers: it fires a token, or wakes waiters. A waker is the only user code that runs here; its
/// panic affects no other waiter.
pub(super) fn run_wakers(call: impl FnOnce()) {
    // The panic hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(call));
}

/// Wakes a waiter of the queue.
pub(super) fn wake_waiter(waiter: oneshot::Sender<()>) {
    // A waiter that was dropped needs no wake-up.
    run_wakers(|| {
        let _ = waiter.send(());
    });
}
