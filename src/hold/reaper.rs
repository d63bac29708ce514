//! Gives back what nobody holds: dropped leases, abandoned acquires, unknown outcomes.
//!
//! Whoever sends something to the store does so through a guard here. When the caller's future
//! is dropped, the guard's Drop hands the request, still in flight, to the engine as a [`Job`]; it
//! never spawns and never blocks, so it works inside a runtime and out.

use super::Hold;
use super::engine::Core;
use super::settle::settle_to_the_end;
use super::state::{Entered, Op};
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{
    Absence, Acquire, Acquired, HolderId, Name, Release, Released, StoreFuture, Target,
};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

/// How long the sweeps of an outage take after a reconnect, for each of them: a server that has just come back is
/// not to meet all of them at once.
const AFTER_RECONNECT: Duration = Duration::from_micros(100);

/// Work for the engine.
pub(crate) enum Job {
    /// Tell the store what it does not know of a hold yet.
    Settle(Arc<Hold>),
    /// Await an operation on a hold, then settle it.
    Finish { hold: Arc<Hold>, op: Op, verdict: StoreFuture<Released> },
    /// Await a nested acquire that nobody waits for.
    FinishNested { hold: Arc<Hold>, count: u32, verdict: StoreFuture<Acquired> },
    /// Await an outermost acquire that nobody waits for, and give back what it brings.
    Abandon { sweep: Sweep, verdict: StoreFuture<Acquired> },
    /// Release a token that may have been granted, or may be yet.
    Sweep(Sweep),
}

/// A job in the hands of a task. Made before the task is spawned, so that the job comes back if the
/// runtime ends before the task's first turn.
pub(crate) struct Work {
    core: Arc<Core>,
    job: Option<Job>,
}

impl Work {
    pub(crate) fn new(core: &Arc<Core>, job: Job) -> Self {
        Self { core: Arc::clone(core), job: Some(job) }
    }

    pub(crate) async fn run(mut self) {
        let core = &self.core;
        match self.job.take() {
            None => {}
            Some(Job::Settle(hold)) => settle_to_the_end(core, &hold, None).await,
            Some(Job::Finish { hold, op, verdict }) => {
                settle_to_the_end(core, &hold, Some((op, verdict))).await;
            }
            Some(Job::FinishNested { hold, count, verdict }) => {
                let flight = bounded(core, verdict);
                let mut nested = Nested { core, hold: &hold, count, flight };
                let verdict = nested.land().await;
                // Nobody is there to be told.
                let _ = nested.end(verdict, false);
            }
            Some(Job::Abandon { sweep, verdict }) => {
                let flight = bounded(core, verdict);
                let mut attempt = Attempt { core, sweep, flight };
                if let Ok(Acquired::Granted { sent, .. }) = attempt.land().await {
                    attempt.give_back(sent);
                }
            }
            Some(Job::Sweep(sweep)) => Sweeping::new(core, sweep).run().await,
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            self.core.reap(job);
        }
    }
}

/// Bounds a request: what it waits for may live on a runtime that nobody drives any more. Its fate is
/// unknown then, and the engine asks again by its own connection.
pub(crate) async fn in_time<T>(
    limit: Duration,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, request).await.unwrap_or_else(|_| Err(Error::silent()))
}

/// A request to the store, which may borrow what it asks about.
type Request<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Awaits a request; a panic of the store is a failure like others, of which the fate is unknown.
pub(super) async fn caught<T>(request: &mut Request<'_, T>) -> Result<T> {
    poll_fn(|cx| {
        catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(cx)))
            .unwrap_or_else(|_| Poll::Ready(Err(panicked())))
    })
    .await
}

/// The same for the call that makes the request.
pub(super) fn made<'a, T: Send + 'a>(request: impl FnOnce() -> Request<'a, T>) -> Request<'a, T> {
    catch_unwind(AssertUnwindSafe(request))
        .unwrap_or_else(|_| Box::pin(std::future::ready(Err(panicked()))))
}

/// Makes a request and awaits it, both as above.
pub(super) async fn asked<'a, T: Send + 'a>(request: impl FnOnce() -> Request<'a, T>) -> Result<T> {
    caught(&mut made(request)).await
}

fn panicked() -> Error {
    Error::new(ErrorKind::Unavailable, "the store panicked")
}

fn bounded<T: 'static>(core: &Core, request: StoreFuture<T>) -> Option<StoreFuture<T>> {
    Some(Box::pin(in_time(core.timing.attempt * 2, request)))
}

/// The grants of one token that may exist without anybody's knowledge.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    name: Name,
    token: HolderId,
    /// How many requests may have been, or may yet be, granted.
    unknown: u32,
    /// Not before.
    from: Option<Instant>,
    /// Until when the last of them may keep the name.
    until: Option<Instant>,
}

impl Sweep {
    pub(crate) fn new(name: Name, token: HolderId) -> Self {
        Self { name, token, unknown: 0, from: None, until: None }
    }

    /// Of a hold that is over, whose grant was asked for more than once.
    pub(crate) fn late(name: Name, token: HolderId, from: Instant, until: Instant) -> Self {
        // Of several sends, one release cannot know which it undid.
        Self { name, token, unknown: 2, from: Some(from), until: Some(until) }
    }

    pub(crate) fn unsure(&mut self, core: &Core, sent: Instant) {
        self.unknown += 1;
        self.until = self.until.max(Some(sent + core.timing.ttl));
    }
}

/// A sweep under way, which goes back to the engine if the runtime ends.
struct Sweeping<'a> {
    core: &'a Arc<Core>,
    sweep: Option<Sweep>,
}

impl<'a> Sweeping<'a> {
    fn new(core: &'a Arc<Core>, sweep: Sweep) -> Self {
        core.sweeps.fetch_add(1, Ordering::Relaxed);
        Self { core, sweep: Some(sweep) }
    }

    async fn run(mut self) {
        if let Some(sweep) = &self.sweep {
            sweep.run(self.core).await;
        }
        self.sweep = None;
    }
}

impl Drop for Sweeping<'_> {
    fn drop(&mut self) {
        self.core.sweeps.fetch_sub(1, Ordering::Relaxed);
        if let Some(sweep) = self.sweep.take() {
            self.core.reap(Job::Sweep(sweep));
        }
    }
}

impl Sweep {
    /// Releases the token now, after every reconnect and every T/10, or sooner when no answer came, until a late grant
    /// would have expired by itself. That it is not there says nothing: the grant may still be on its way.
    async fn run(&self, core: &Arc<Core>) {
        let Some(until) = self.until else { return };
        if let Some(from) = self.from {
            tokio::select! {
                biased;
                () = core.clock().sleep_until(from) => {}
                () = core.stop.cancelled() => return,
            }
        }
        loop {
            let mut reconnected = std::pin::pin!(core.reconnected.notified());
            reconnected.as_mut().enable();
            let target = Target::exclusive(self.name.clone());
            let request = Release::new(target, self.token, 0, core.timing.attempt);
            // A grant may still arrive after a release that was sent before `until`.
            let last = core.now() >= until;
            let mut request = core.release(request);
            let verdict = in_time(core.timing.attempt * 2, caught(&mut request)).await;
            if matches!(verdict, Ok(Released::Done { .. })) && self.unknown == 1 {
                return;
            }
            if last || core.stop.is_cancelled() {
                return;
            }
            // Spread: there may be as many of these as there were requests in an outage.
            let longest = core.timing.sweep_gap(verdict.is_err());
            let gap = longest.mul_f64(1.0 - core.jitter() / 4.0);
            let after_reconnect = async {
                reconnected.await;
                let all = AFTER_RECONNECT * core.sweeps.load(Ordering::Relaxed);
                let wait = all.min(core.timing.attempt).mul_f64(core.jitter());
                if wait >= Duration::from_millis(1) {
                    tokio::time::sleep(wait).await;
                }
            };
            tokio::select! {
                biased;
                () = after_reconnect => {}
                () = tokio::time::sleep(gap) => {}
                () = core.stop.cancelled() => {}
            }
        }
    }
}

/// An outermost acquire: all requests of one token, until it is granted or given up.
pub(crate) struct Attempt<'a> {
    core: &'a Arc<Core>,
    sweep: Sweep,
    flight: Option<StoreFuture<Acquired>>,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(core: &'a Arc<Core>, name: Name, token: HolderId) -> Self {
        Self { core, sweep: Sweep::new(name, token), flight: None }
    }

    /// Asks the store once.
    pub(crate) fn ask(&mut self, request: Acquire) -> impl Future<Output = Result<Acquired>> {
        self.flight = Some(self.core.acquire(request));
        self.land()
    }

    async fn land(&mut self) -> Result<Acquired> {
        let verdict = land(&mut self.flight).await;
        if let Err(error) = &verdict
            && error.fate() != Fate::NotExecuted
        {
            self.sweep.unsure(self.core, self.core.now());
        }
        verdict
    }

    pub(crate) fn token(&self) -> HolderId {
        self.sweep.token
    }

    /// The grant is taken over; until when earlier requests may still arrive.
    pub(crate) fn taken(mut self) -> Option<Instant> {
        self.sweep.until.take()
    }

    /// The grant, sent at `sent`, is of no use.
    pub(crate) fn give_back(mut self, sent: Instant) {
        self.sweep.unsure(self.core, sent);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let sweep = self.sweep.clone();
        match self.flight.take() {
            Some(verdict) => self.core.reap(Job::Abandon { sweep, verdict }),
            None if sweep.until.is_some() => self.core.reap(Job::Sweep(sweep)),
            None => {}
        }
    }
}

/// A nested acquire: between [`Hold::enter`] and [`Hold::entered`].
pub(crate) struct Nested<'a> {
    core: &'a Arc<Core>,
    hold: &'a Arc<Hold>,
    count: u32,
    flight: Option<StoreFuture<Acquired>>,
}

impl<'a> Nested<'a> {
    pub(crate) fn new(core: &'a Arc<Core>, hold: &'a Arc<Hold>, count: u32) -> Self {
        Self { core, hold, count, flight: None }
    }

    /// Asks the store once. A failure leaves it open; [`Nested::end`] closes it.
    pub(crate) fn ask(&mut self, request: Acquire) -> impl Future<Output = Entered> {
        self.flight = Some(self.core.acquire(request));
        self.land()
    }

    async fn land(&mut self) -> Entered {
        match land(&mut self.flight).await {
            Ok(Acquired::Granted { sent, .. }) => Entered::Granted { sent, count: self.count },
            Ok(Acquired::NotYours(absence)) => Entered::NotYours(absence),
            // A store must not say this of a nested acquire; it means the same.
            Ok(Acquired::Held { .. }) => Entered::NotYours(Absence::Taken),
            Err(error) => Entered::Failed(error),
        }
    }

    /// Ends it; with `keep`, and if it was granted, there is one lease more.
    pub(crate) fn end(self, verdict: Entered, keep: bool) -> Result<()> {
        // Its Drop has nothing left to do.
        let nested = std::mem::ManuallyDrop::new(self);
        nested.hold.entered(nested.core, verdict, keep)
    }
}

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        let hold = Arc::clone(self.hold);
        match self.flight.take() {
            Some(verdict) => {
                self.core.reap(Job::FinishNested { hold, count: self.count, verdict });
            }
            // Dropped between two attempts: what the store has recorded is not known.
            None => {
                let error = Error::new(ErrorKind::Unavailable, "given up");
                let _ = hold.entered(self.core, Entered::Failed(error), false);
            }
        }
    }
}

/// Awaits a request in place, so that a guard's Drop finds it there as long as it is in flight.
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
