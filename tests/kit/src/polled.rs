//! Futures that are polled a few times, and then left alone.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Polls so many times, each time it is woken; what came of it, if that was enough.
pub async fn polled<F: Future>(mut future: Pin<&mut F>, times: u64) -> Option<F::Output> {
    let mut left = times;
    let poll = poll_fn(move |context| {
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    poll.await
}
