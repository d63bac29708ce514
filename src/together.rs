//! Waits for several futures in one task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// A future of a call, on the heap because there are several.
pub(crate) type Call<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Waits until all calls have ended. Returns their outputs in the order of the calls.
pub(crate) async fn all<T>(calls: Vec<Call<'_, T>>) -> Vec<T> {
    let mut places: Vec<_> = calls.into_iter().map(|call| (Some(call), None)).collect();
    poll_fn(|cx| {
        for (place, output) in &mut places {
            if let Some(call) = place
                && let Poll::Ready(ready) = call.as_mut().poll(cx)
            {
                (*place, *output) = (None, Some(ready));
            }
        }
        match places.iter().all(|(call, _)| call.is_none()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    places.into_iter().filter_map(|(_, output)| output).collect()
}

/// Waits until `pick` returns a value for the output of a call, and drops the other calls. Returns `None` if all calls
/// have ended without one.
pub(crate) async fn first<T, R>(
    mut calls: Vec<Call<'_, T>>,
    mut pick: impl FnMut(T) -> Option<R>,
) -> Option<R> {
    poll_fn(|cx| {
        let mut picked = None;
        calls.retain_mut(|call| match picked {
            Some(_) => true,
            None => match call.as_mut().poll(cx) {
                Poll::Ready(output) => {
                    picked = pick(output);
                    false
                }
                Poll::Pending => true,
            },
        });
        match picked {
            None if !calls.is_empty() => Poll::Pending,
            picked => Poll::Ready(picked),
        }
    })
    .await
}
