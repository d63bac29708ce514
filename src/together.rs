//! Waits for several futures in one task.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

thread_local! {
    /// Whether this thread polls one of several calls.
    static TOGETHER: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the caller is polled as one of several calls, whose requests can leave together.
#[cfg(feature = "redis")]
pub(crate) fn is_one_of_several() -> bool {
    TOGETHER.get()
}

/// Sets what [`is_one_of_several`] returns, until it is dropped.
struct Together(bool);

impl Together {
    fn set(several: bool) -> Self {
        Self(TOGETHER.replace(several))
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        TOGETHER.set(self.0);
    }
}

/// A future of a call, on the heap because there are several.
pub(crate) type Call<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Waits until all calls have ended. Returns their outputs in the order of the calls.
pub(crate) async fn all<T>(calls: Vec<Call<'_, T>>) -> Vec<T> {
    let several = calls.len() > 1;
    let mut places: Vec<_> = calls.into_iter().map(|call| (Some(call), None)).collect();
    poll_fn(|cx| {
        let _together = Together::set(several);
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
