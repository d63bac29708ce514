//! Requests in flight: acquires that a caller waits for.
//!
//! A caller sends through a guard of this module. When the caller's future is dropped, the guard's
//! Drop submits the request, still in flight, to the engine as a [`Job`]. It never spawns and never
//! blocks, so it works inside and outside a runtime.

use super::set::SetCall;
use super::turn::Turn;
use crate::clock::Instant;
use crate::engine::machine::chain::HandoffScope;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Grant;
use crate::engine::shared::job::{Job, Sweep};
use crate::engine::shared::options::Options;
use crate::engine::shared::{answers, calls, line};
use crate::error::{Error, Fate, Result};
use crate::store::{Acquire, Acquired, HolderId, StoreFuture, Target};
use std::sync::Arc;

/// An outermost acquire: all requests of one holder id, until it is granted or given up. Dropping it
/// leaves cleanup to the engine.
pub(crate) struct AcquireGuard<'a> {
    core: &'a Arc<Core>,
    sweep: Sweep,
    flight: Option<StoreFuture<Acquired>>,
    /// When it was sent, or taken over.
    since: Instant,
}

/// What came of the wait for an answer.
pub(super) struct Landed {
    /// `None` if the store counts as silent.
    pub(super) verdict: Option<Result<Acquired>>,
    /// By when this future was to be polled last.
    pub(super) due: Instant,
}

/// Returns whether the store has answered that others have the name.
pub(super) fn was_refused(verdict: &Acquired) -> bool {
    !matches!(verdict, Acquired::Granted { .. })
}

/// What a call does with the grant that it got.
pub(super) enum GrantUse {
    /// It begins a hold.
    Hold,
    /// Another hold of this process excludes it.
    Excluded,
    /// It is released, and the store is asked again.
    AskAgain(&'static str),
}

impl<'a> AcquireGuard<'a> {
    pub(crate) fn new(core: &'a Arc<Core>, target: Target, holder: HolderId) -> Self {
        Self { core, sweep: Sweep::new(target, holder), flight: None, since: Instant::ZERO }
    }

    /// Takes over a request that another future has sent.
    pub(in crate::engine) fn resume(
        core: &'a Arc<Core>,
        sweep: Sweep,
        verdict: StoreFuture<Acquired>,
    ) -> Self {
        let since = core.now();
        let flight = Some(calls::bounded(core, verdict, since));
        Self { core, sweep, flight, since }
    }

    /// Asks the store once; [`land`](Self::land) waits for the answer. A part of a `set` is sent with the others.
    pub(in crate::engine) fn send(
        &mut self,
        request: Acquire,
        set: Option<&SetCall>,
        now: Instant,
    ) {
        if request.keeps_arrival() {
            self.sweep.arrival_recorded = true;
            self.core.queue.claim_arrival(&request.target.name);
        }
        self.sweep.delay = request.ttl.saturating_sub(self.core.timing.ttl);
        self.flight = Some(match set {
            Some(set) => set.add(request),
            None => calls::acquire(self.core, request),
        });
        self.since = now;
    }

    /// Waits for the request in flight.
    pub(in crate::engine) async fn land(&mut self) -> Result<Acquired> {
        let verdict = calls::land(&mut self.flight).await;
        answers::note_answer(self.core, &self.sweep.target.name, self.since, &verdict);
        if let Ok(Acquired::Granted { .. }) = &verdict {
            // A grant ends the arrival.
            self.sweep.arrival_recorded = false;
        }
        if let Err(error) = &verdict
            && error.fate() != Fate::NotExecuted
        {
            self.sweep.unsure(self.core.now() + self.core.delayed_ttl(self.sweep.delay));
        }
        verdict
    }

    fn target(&self) -> Target {
        self.sweep.target.clone()
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

    /// Accepts the grant that arrived at `now`, in a turn that is kept. It has no options, and is handed off to any waiter.
    pub(in crate::engine) fn into_grant(
        mut self,
        turn: Turn,
        sent: Instant,
        fence: Option<u64>,
        reached: bool,
        now: Instant,
    ) -> Grant {
        Grant {
            target: self.target(),
            options: Options::default(),
            holder: self.holder(),
            fence,
            reached,
            sent,
            now,
            unsure_until: self.sweep.until.take(),
            scope: HandoffScope::OutsideTheLine,
            slot: turn.into_slot(),
        }
    }

    /// Has the grant of the request sent at `sent` released.
    pub(crate) fn release_later(mut self, sent: Instant) {
        self.sweep.unsure(sent + self.core.delayed_ttl(self.sweep.delay));
    }
}

impl Drop for AcquireGuard<'_> {
    fn drop(&mut self) {
        let sweep = &self.sweep;
        match self.flight.take() {
            Some(verdict) => self.core.submit(Job::FinishAcquire { sweep: sweep.clone(), verdict }),
            None if sweep.until.is_some() => self.core.submit(Job::Sweep(sweep.clone())),
            None if sweep.arrival_recorded => {
                line::give_up_later(self.core, sweep.target.clone(), sweep.holder);
            }
            None => {}
        }
    }
}
