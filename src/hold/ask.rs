//! Asks the store. A panic of it is a failure like others, and a mode that it does not have is refused here, before
//! anything is sent.

use super::engine::Core;
use super::reaper::{asked, made};
use crate::error::Result;
use crate::store::{
    Acquire, Acquired, ForceRelease, HolderId, Holding, Inspect, Name, Release, Released,
    StoreFuture, Target, Wait, Wakeups,
};
use crate::trace;
use tracing::Level;

impl Core {
    /// Asks the store for a name.
    pub(crate) fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        match self.check(&request.target) {
            Ok(()) => made(|| self.store.acquire(request)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    /// Has the store release a name.
    pub(crate) fn release(&self, request: Release) -> StoreFuture<Released> {
        made(|| self.store.release(request))
    }

    /// Refuses a mode that the store does not have. A release or a renewal follows an acquire.
    fn check(&self, target: &Target) -> Result<()> {
        if self.can.supports(target.mode) { Ok(()) } else { Err(target.mode.unsupported()) }
    }

    /// Asks the store who holds a name.
    pub(crate) async fn inspect(&self, name: &Name) -> Result<Option<Holding>> {
        let target = Target::exclusive(name.clone());
        self.check(&target)?;
        let request = Inspect::new(target, self.timing.attempt);
        asked(|| self.store.inspect(request)).await.map(|inspection| inspection.into_holder())
    }

    /// Has the store take a name away from whoever holds it.
    pub(crate) async fn force_release(&self, name: &Name) -> Result<bool> {
        let target = Target::exclusive(name.clone());
        self.check(&target)?;
        let request = ForceRelease::new(target, self.timing.attempt);
        asked(|| self.store.force_release(request)).await
    }

    /// Asks the store for the wake-ups of a name, for one who is about to ask for it or only listens.
    pub(crate) async fn subscribe(
        &self,
        name: &Name,
        holder: Option<HolderId>,
    ) -> Result<Option<Wakeups>> {
        let target = Target::exclusive(name.clone());
        self.check(&target)?;
        let request = Wait::new(target, holder, self.timing.attempt);
        asked(|| self.store.subscribe(request)).await
    }

    /// Ends the store's connections.
    pub(super) async fn close_store(&self) {
        let closed = asked(|| {
            Box::pin(async {
                self.store.close(self.timing.attempt).await;
                Ok(())
            })
        });
        if let Err(error) = closed.await {
            trace::later(Level::WARN, || move || tracing::warn!(%error, "not closed"));
        }
    }
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use super::super::engine::Settings;
    use super::super::timing::Timing;
    use super::*;
    use crate::error::{ErrorKind, Fate};
    use crate::store::{MemoryStore, Mode};
    use crate::testing::{Call, FaultyStore};
    use std::sync::Arc;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_mode_that_the_store_does_not_have_is_refused_before_anything_is_sent() {
        let (store, faults) = FaultyStore::new(MemoryStore::new());
        let settings = Settings {
            max_hold: None,
            poll_bound: Duration::from_secs(1),
            handoff_bound: 0,
            fencing: None,
            seed: None,
        };
        let core = Core::new(Arc::new(store), Timing::DEFAULT, settings, true);
        for mode in [Mode::Read, Mode::Write, Mode::Permits { size: 2, take: 1 }] {
            let target = Target::new(Name::new("n").unwrap(), mode);
            let ttl = core.timing.ttl;
            let request = Acquire::new(target, core.draw_token(), ttl, core.timing.attempt);
            let error = core.acquire(request).await.unwrap_err();
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Unsupported, Fate::NotExecuted));
        }
        assert_eq!(faults.calls(Call::Acquire), 0);
        let target = Target::exclusive(Name::new("n").unwrap());
        let request = Acquire::new(target, core.draw_token(), core.timing.ttl, core.timing.attempt);
        core.acquire(request).await.unwrap();
        assert_eq!(faults.calls(Call::Acquire), 1);
    }
}
