//! A bound in time on what a call waits for.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tokio::task::coop::unconstrained;
use tokio::time::sleep;

/// Waits for `work` for at most `limit`. Returns `None` if the limit has passed.
///
/// Work that is ready at its first poll costs no timer. Work that uses up the budget of its task is bounded all the same.
pub(crate) async fn within<F: Future>(limit: Duration, mut work: Pin<&mut F>) -> Option<F::Output> {
    // It begins with its first poll.
    let mut timer = pin!(unconstrained(async { sleep(limit).await }));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use tokio::runtime::Builder;
    use tokio::task::coop::consume_budget;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn work_ends_at_the_limit_and_not_before() {
        let start = Instant::now();
        let limit = Duration::from_secs(3);
        let slow = pin!(async {
            sleep(Duration::from_secs(2)).await;
            7
        });
        assert_eq!(within(limit, slow).await, Some(7));
        assert_eq!(within(limit, pin!(pending::<()>())).await, None);
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }

    #[test]
    fn work_that_is_ready_needs_no_timer() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let done = runtime.block_on(async { within(Duration::ZERO, pin!(ready(7))).await });
        assert_eq!(done, Some(7));
    }

    #[tokio::test]
    async fn work_that_uses_up_the_budget_is_bounded() {
        let greedy = pin!(async {
            loop {
                consume_budget().await;
            }
        });
        assert_eq!(within(Duration::from_millis(20), greedy).await, None::<()>);
    }
}
