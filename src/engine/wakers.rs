//! Runs wakers.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a call that runs wakers: it fires a token, or wakes waiters. A waker is the only user code that runs here; its
/// panic affects no other waiter.
pub(super) fn run_wakers(call: impl FnOnce()) {
    // The panic hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(call));
}
