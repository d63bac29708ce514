//! Runs wakers.

use super::offers::{HandedOff, Wake};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a call that runs wakers: it fires a token, or wakes waiters. A waker is the only user code that runs here; its
/// panic affects no other waiter.
pub(super) fn run_wakers(call: impl FnOnce()) {
    // The panic hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(call));
}

/// Wakes a waiter of the queue, with a hold that is handed off to it, if there is one.
pub(super) fn wake_waiter(wake: Wake, offered: Option<HandedOff>) {
    // A waiter that was dropped needs no wake-up, and its hold goes to the next one.
    run_wakers(|| drop(wake.send(offered)));
}
