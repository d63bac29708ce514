//! Runs wakers.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Wakes waiters. A waker is the only user code that runs here; its panic affects no other waiter.
pub(super) fn wake(wake: impl FnOnce()) {
    // The panic hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(wake));
}
