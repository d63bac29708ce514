//! Asks the store. A panic of it is a failure like others.

use super::engine::Core;
use super::reaper::{asked, made};
use crate::error::Result;
use crate::store::{Acquire, Acquired, Holding, Name, Release, Released, StoreFuture, Wakeups};
use crate::trace;
use tracing::Level;

impl Core {
    /// Asks the store for a name.
    pub(crate) fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        made(|| self.store.acquire(request))
    }

    /// Has the store release a name.
    pub(crate) fn release(&self, request: Release) -> StoreFuture<Released> {
        made(|| self.store.release(request))
    }

    /// Asks the store who holds a name.
    pub(crate) async fn inspect(&self, name: &Name) -> Result<Option<Holding>> {
        asked(|| self.store.inspect(name)).await
    }

    /// Has the store take a name away from whoever holds it.
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
            trace::later(Level::WARN, || move || tracing::warn!(%error, "not closed"));
        }
    }
}
