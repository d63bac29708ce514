//! Keeps a panic from what it does not concern.

use crate::util::trace;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::sleep;
use tracing::Level;

/// Makes a call that runs wakers: it fires a token, or wakes waiters. A waker is the only user code that runs here; its
/// panic affects no caller. Tokio wakes the waiters of one token, or one notifier, in turn, and those after it are not woken.
pub(crate) fn run_wakers(call: impl FnOnce()) {
    quietly(call);
}

/// Runs code of a user, whose panic does no harm.
pub(crate) fn quietly(call: impl FnOnce()) {
    // The panic hook has reported it.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        // Its drop is code of the user, too.
        std::mem::forget(payload);
    }
}

/// The pause after a panic.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs the work of a task that serves more than one caller. Returns `None` after a panic and a pause, and its owner begins
/// the work again.
#[cfg_attr(
    not(any(feature = "redis", feature = "zookeeper")),
    allow(dead_code, reason = "for stores with tasks")
)]
pub(crate) async fn caught<F: Future>(task: &'static str, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    let output = poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)))
            .map_or(Poll::Ready(None), |poll| poll.map(Some))
    })
    .await;
    if output.is_none() {
        trace::later(Level::ERROR, || {
            move || tracing::error!(task, "a task of leasehold has panicked; it begins again")
        });
        sleep(PAUSE).await;
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_a_task_is_returned_to_its_owner() {
        assert_eq!(caught("one", async { 7 }).await, Some(7));
        let broken = caught("another", async {
            tokio::task::yield_now().await;
            panic!("a task");
        });
        assert_eq!(broken.await, None::<()>);
    }
}
