//! Calls the store. A panic of the store is a failure like others, and every request is bounded.

use super::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Acquire, Acquired, Holding, Name, Release, Released, StoreFuture, Wakeups};
use crate::trace;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tracing::Level;

impl Core {
    /// Asks the store for a name.
    pub(crate) fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        caught_call(|| self.store.acquire(request))
    }

    /// Has the store release a name.
    pub(crate) fn release(&self, request: Release) -> StoreFuture<Released> {
        caught_call(|| self.store.release(request))
    }

    /// Asks the store for the holder of a name.
    pub(crate) async fn inspect(&self, name: &Name) -> Result<Option<Holding>> {
        asked(|| self.store.inspect(name)).await
    }

    /// Has the store release a name by force.
    pub(crate) async fn force_release(&self, name: &Name) -> Result<bool> {
        asked(|| self.store.force_release(name)).await
    }

    /// Asks the store for the wake-ups of a name.
    pub(crate) async fn subscribe(&self, name: &Name) -> Result<Option<Wakeups>> {
        asked(|| self.store.subscribe(name)).await
    }

    /// Ends the store's connections.
    pub(super) async fn close_store(&self) {
        let closed = asked(|| {
            Box::pin(async {
                self.store.close().await;
                Ok(())
            })
        });
        if let Err(error) = closed.await {
            trace::later(
                Level::WARN,
                || move || tracing::warn!(%error, "the store's connections were not closed"),
            );
        }
    }

    /// Bounds a request that no caller waits for.
    pub(super) fn bounded<T: 'static>(&self, request: StoreFuture<T>) -> StoreFuture<T> {
        Box::pin(in_time(self.timing.attempt * 2, request))
    }
}

/// Bounds a request: it may wait for a runtime that is no longer driven. Its fate is unknown then,
/// and the engine asks again on its own connection.
pub(crate) async fn in_time<T>(
    limit: Duration,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, request).await.unwrap_or_else(|_| Err(Error::silent()))
}

/// A request to the store, which may borrow the name in question.
type Request<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Awaits a request. A panic of the store is a failure like others, with an unknown fate.
pub(super) async fn caught<T>(request: &mut Request<'_, T>) -> Result<T> {
    poll_fn(|cx| {
        catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(cx)))
            .unwrap_or_else(|_| Poll::Ready(Err(panicked())))
    })
    .await
}

/// Makes a request. A panic of the store is a failure, as in [`caught`].
pub(super) fn caught_call<'a, T: Send + 'a>(
    request: impl FnOnce() -> Request<'a, T>,
) -> Request<'a, T> {
    catch_unwind(AssertUnwindSafe(request))
        .unwrap_or_else(|_| Box::pin(std::future::ready(Err(panicked()))))
}

/// Makes a request and awaits it, and turns a panic in either into a failure.
async fn asked<'a, T: Send + 'a>(request: impl FnOnce() -> Request<'a, T>) -> Result<T> {
    caught(&mut caught_call(request)).await
}

fn panicked() -> Error {
    Error::new(ErrorKind::Unavailable, "the store panicked")
}
