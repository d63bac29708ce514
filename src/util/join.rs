//! Waits for several futures in one task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

#[cfg(feature = "redis")]
pub(crate) use outbox::{Outbox, is_one_of_several, send_with_others};

/// Sends the requests of several calls one right after the other, so that they can leave together.
#[cfg(feature = "redis")]
mod outbox {
    use std::cell::RefCell;

    type Send = Box<dyn FnOnce()>;

    thread_local! {
        /// The requests of the calls that this thread polls, if they are several. Read with `try_with`: a lease may be
        /// dropped after the locals of its thread.
        static OUTBOX: RefCell<Option<Vec<Send>>> = const { RefCell::new(None) };
    }

    /// Returns whether the caller is polled as one of several calls.
    pub(crate) fn is_one_of_several() -> bool {
        OUTBOX.try_with(|outbox| outbox.borrow().is_some()).unwrap_or(false)
    }

    /// Calls `send` once all calls have been polled that are polled together with the caller; at once if it is alone.
    pub(crate) fn send_with_others(send: impl FnOnce() + 'static) {
        if !is_one_of_several() {
            return send();
        }
        OUTBOX.with_borrow_mut(|outbox| outbox.get_or_insert_default().push(Box::new(send)));
    }

    /// Collects requests until it is dropped, and sends them then.
    pub(crate) struct Outbox(Option<Vec<Send>>);

    impl Outbox {
        pub(crate) fn open() -> Self {
            Self(OUTBOX.try_with(|outbox| outbox.replace(Some(Vec::new()))).ok().flatten())
        }
    }

    impl Drop for Outbox {
        fn drop(&mut self) {
            let requests = OUTBOX.try_with(|outbox| outbox.replace(self.0.take()));
            requests.ok().into_iter().flatten().flatten().for_each(|send| send());
        }
    }
}

/// A future of a call, on the heap because there are several.
pub(crate) type BoxedCall<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What to do when each call that has not ended was polled.
pub(crate) enum Next {
    Wait,
    PollAgain,
    Stop,
}

/// Waits until all calls have ended. Returns their outputs in the order of the calls.
pub(crate) async fn all<T>(calls: Vec<BoxedCall<'_, T>>) -> Vec<T> {
    let outputs = all_but(calls, |_| Next::Wait).await;
    outputs.into_iter().flatten().collect()
}

/// Waits until all calls have ended, or until `next`, which gets their outputs after each round of polls, stops it. Calls
/// that have not ended are dropped then, and have no output.
pub(crate) async fn all_but<T>(
    calls: Vec<BoxedCall<'_, T>>,
    mut next: impl FnMut(&[Option<T>]) -> Next,
) -> Vec<Option<T>> {
    #[cfg(feature = "redis")]
    let several = calls.len() > 1;
    let mut outputs: Vec<_> = calls.iter().map(|_| None).collect();
    let mut calls: Vec<_> = calls.into_iter().map(Some).collect();
    poll_fn(|cx| {
        loop {
            #[cfg(feature = "redis")]
            let outbox = several.then(Outbox::open);
            for (slot, output) in calls.iter_mut().zip(&mut outputs) {
                if let Some(call) = slot
                    && let Poll::Ready(ready) = call.as_mut().poll(cx)
                {
                    *slot = None;
                    *output = Some(ready);
                }
            }
            #[cfg(feature = "redis")]
            drop(outbox);
            if outputs.iter().all(Option::is_some) {
                return Poll::Ready(());
            }
            match next(&outputs) {
                Next::Wait => return Poll::Pending,
                Next::PollAgain => {}
                Next::Stop => return Poll::Ready(()),
            }
        }
    })
    .await;
    outputs
}

/// Waits until `pick` returns a value for the output of a call, and drops the other calls. Returns `None` if all calls
/// have ended without one.
pub(crate) async fn first<T, R>(
    mut calls: Vec<BoxedCall<'_, T>>,
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
