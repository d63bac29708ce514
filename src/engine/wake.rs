//! Runs wakers.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Wakes those who wait. A waker is the only code of the user's that runs here; if it panics, nobody else is struck.
pub(super) fn wake(wake: impl FnOnce()) {
    // The panic hook has told it.
    let _ = catch_unwind(AssertUnwindSafe(wake));
}
