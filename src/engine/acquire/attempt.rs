//! Requests in flight: acquires that a caller waits for.
//!
//! A caller sends through a guard of this module. When the caller's future is dropped, the guard's
//! Drop submits the request, still in flight, to the engine as a [`Job`]. It never spawns and never
//! blocks, so it works inside and outside a runtime.

use super::set::SetCall;
use crate::clock::Instant;
use crate::engine::machine::hold::ChangeVerdict;
use crate::engine::shared::calls::caught;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::job::{Job, Sweep};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Acquire, Acquired, HolderId, StoreFuture, Target};
use std::sync::Arc;

/// An outermost acquire: all requests of one holder id, until it is granted or given up. Dropping it
/// leaves cleanup to the engine.
pub(crate) struct Attempt<'a> {
    core: &'a Arc<Core>,
    sweep: Sweep,
    flight: Option<StoreFuture<Acquired>>,
    /// When it was sent, or taken over.
    since: Instant,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(core: &'a Arc<Core>, target: Target, holder: HolderId) -> Self {
        let (sweep, since) = (Sweep::new(target, holder), Instant::ZERO);
        Self { core, sweep, flight: None, since }
    }

    /// Takes over a request that another future has sent.
    pub(in crate::engine) fn resume(
        core: &'a Arc<Core>,
        sweep: Sweep,
        verdict: StoreFuture<Acquired>,
    ) -> Self {
        let since = core.now();
        let flight = Some(core.bounded(verdict, since));
        Self { core, sweep, flight, since }
    }

    /// Asks the store once; [`land`](Self::land) waits for the answer. A part of a `set` is sent with the others.
    pub(in crate::engine) fn send(
        &mut self,
        request: Acquire,
        set: Option<&SetCall>,
        now: Instant,
    ) {
        if request.takes_place() {
            self.sweep.placed = true;
            self.core.queue.take_place(&request.target.name);
        }
        self.sweep.delay = request.ttl.saturating_sub(self.core.timing.ttl);
        self.flight = Some(match set {
            Some(set) => set.add(request),
            None => self.core.acquire(request),
        });
        self.since = now;
    }

    /// Waits for the request in flight.
    pub(in crate::engine) async fn land(&mut self) -> Result<Acquired> {
        let verdict = land(&mut self.flight).await;
        self.core.note_answer(&self.sweep.target.name, self.since, &verdict);
        if let Ok(Acquired::Granted { .. }) = &verdict {
            // A grant ends the place.
            self.sweep.placed = false;
        }
        if let Err(error) = &verdict
            && error.fate() != Fate::NotExecuted
        {
            self.sweep.unsure(self.core.now() + self.core.delayed_ttl(self.sweep.delay));
        }
        verdict
    }

    pub(crate) fn holder(&self) -> HolderId {
        self.sweep.holder
    }

    /// Returns the error of the last request as one of all: an earlier one may have been executed.
    pub(in crate::engine) fn failed(&self, error: Error) -> Error {
        match error.fate() {
            Fate::NotExecuted if self.sweep.unknown > 0 => error.with_fate(Fate::Unknown),
            _ => error,
        }
    }

    /// Accepts the grant. Returns the time until which earlier requests may still arrive.
    pub(crate) fn accept_grant(mut self) -> Option<Instant> {
        self.sweep.until.take()
    }

    /// Has the grant of the request sent at `sent` released.
    pub(crate) fn undo(mut self, sent: Instant) {
        self.sweep.unsure(sent + self.core.delayed_ttl(self.sweep.delay));
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let sweep = self.sweep.clone();
        match self.flight.take() {
            Some(verdict) => self.core.submit(Job::Abandon { sweep, verdict }),
            None if sweep.until.is_some() => self.core.submit(Job::Sweep(sweep)),
            None if sweep.placed => {
                self.core.leave_later(sweep.target, sweep.holder);
            }
            None => {}
        }
    }
}

/// The error of a change of the mode that was refused: the hold is as it was.
fn refused() -> Error {
    Error::new(ErrorKind::Unavailable, "the mode was not changed").with_fate(Fate::NotExecuted)
}

/// A change of the mode between [`Hold::begin_mode_change`] and its end.
pub(crate) struct ModeChange<'a> {
    core: &'a Arc<Core>,
    hold: &'a Arc<Hold>,
    /// When the request in flight was sent.
    sent: Instant,
    flight: Option<StoreFuture<Acquired>>,
}

impl<'a> ModeChange<'a> {
    pub(in crate::engine) fn new(core: &'a Arc<Core>, hold: &'a Arc<Hold>) -> Self {
        Self { core, hold, sent: core.now(), flight: None }
    }

    /// Takes over a request that another future has sent.
    pub(in crate::engine) fn resume(
        core: &'a Arc<Core>,
        hold: &'a Arc<Hold>,
        sent: Instant,
        verdict: StoreFuture<Acquired>,
    ) -> Self {
        Self { core, hold, sent, flight: Some(core.bounded(verdict, sent)) }
    }

    /// Asks the store once. A change ends this by [`changed`](Self::changed), anything else by [`end`](Self::end).
    pub(in crate::engine) async fn ask(&mut self, request: Acquire) -> Result<Acquired> {
        self.sent = self.core.now();
        self.flight = Some(self.core.acquire(request));
        land(&mut self.flight).await
    }

    /// Waits for the request in flight, which no caller waits for any more.
    pub(in crate::engine) async fn land(&mut self) -> ChangeVerdict {
        match land(&mut self.flight).await {
            Ok(Acquired::Granted { sent, .. }) => ChangeVerdict::Changed { sent },
            Ok(Acquired::NotYours(absence)) => ChangeVerdict::NotYours(absence),
            Ok(Acquired::Held { .. }) => ChangeVerdict::Failed(refused()),
            Err(error) => ChangeVerdict::Failed(error),
        }
    }

    /// Ends it after the store has changed the mode. The hold is over then.
    pub(in crate::engine) fn changed(self) {
        let _ = std::mem::ManuallyDrop::new(self);
    }

    /// Ends it after the store has refused it.
    pub(in crate::engine) fn refused(self) {
        let _ = self.end(ChangeVerdict::Failed(refused()));
    }

    /// Ends it without a hold of the new mode.
    pub(in crate::engine) fn end(self, verdict: ChangeVerdict) -> Result<()> {
        // Drop has nothing left to do.
        let change = std::mem::ManuallyDrop::new(self);
        change.hold.end_mode_change(change.core, verdict)
    }
}

impl Drop for ModeChange<'_> {
    fn drop(&mut self) {
        match self.flight.take() {
            Some(verdict) => {
                let (hold, sent) = (Arc::clone(self.hold), self.sent);
                self.core.submit(Job::FinishChange { hold, sent, verdict });
            }
            // Dropped before it was sent, or after its answer.
            None => {
                let error =
                    Error::new(ErrorKind::Unavailable, "the change of the mode was dropped");
                let _ = self.hold.end_mode_change(self.core, ChangeVerdict::Failed(error));
            }
        }
    }
}

/// Awaits a request in place, so that a guard's Drop finds it while it is in flight.
async fn land<T>(flight: &mut Option<StoreFuture<T>>) -> Result<T> {
    let verdict = match flight {
        Some(request) => caught(request).await,
        None => {
            Err(Error::new(ErrorKind::Unavailable, "nothing was sent").with_fate(Fate::NotExecuted))
        }
    };
    *flight = None;
    verdict
}
