//! Releases a hold in the store, for a caller or in the background.

use super::{describe, handoff};
use crate::clock::Instant;
use crate::engine::machine::count::Share;
use crate::engine::machine::hold::{Next, Phase};
use crate::engine::machine::pause::Heard;
use crate::engine::shared::calls::{self, caught, in_time};
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::job::Job;
use crate::engine::shared::lifecycle::Stage;
use crate::engine::shared::{answers, line, report};
use crate::error::{Error, Result};
use crate::observe::Operation;
use crate::store::{Absence, Keep, Mode, Name, Release, Released, StoreFuture};
use crate::util::bound::within;
use crate::util::reached::Rare;
use crate::util::{runtime, trace};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tracing::Level;

/// The release in flight, if any.
type Flight = Option<StoreFuture<Released>>;

/// The release of one hold, tried again until it is confirmed. Dropping it halfway leaves the rest to the engine.
struct ReleaseLoop<'a> {
    core: &'a Arc<Core>,
    hold: &'a Arc<Hold>,
    flight: Flight,
    /// The time of the last event: when the release in flight was sent, if there is one.
    now: Instant,
    /// The time limit of one release. `None` if the caller bounds it.
    limit: Option<Duration>,
    /// True if a release was not answered.
    silent: bool,
    /// True if a release may have recorded an arrival in the line for the next waiter of this process.
    arrival_recorded: bool,
    /// Whether the release keeps the name closed for a time.
    leaves_mark: bool,
    /// True if nothing is left to the engine.
    over: bool,
}

impl ReleaseLoop<'_> {
    fn start(&mut self, mark: Option<Keep>) {
        let ReleaseLoop { core, hold, .. } = self;
        // While the name is closed, no waiter needs an arrival.
        let arrival = if mark.is_none() { line::next_arrival(core, hold) } else { None };
        self.arrival_recorded |= arrival.is_some_and(|arrival| !arrival.kept.is_zero());
        self.leaves_mark = mark.is_some();
        let request = Release::new(hold.target(), hold.holder, 0, core.timing.attempt)
            .with_arrival(arrival)
            .with_keep(mark);
        self.flight = Some(calls::release(self.core, request));
    }

    /// Sends the release, if it is due, and returns its result.
    async fn step(&mut self) -> Option<Result<()>> {
        while self.flight.is_none() {
            let (next, mark) = self.hold.begin_release(&self.core.timing, self.now);
            match next {
                Next::Release => self.start(mark),
                Next::Busy => {
                    self.hold.until_idle().await;
                    self.now = self.core.now();
                }
                Next::Nothing => return None,
            }
        }
        let core = self.core;
        let request = self.flight.as_mut()?;
        let verdict = match self.limit {
            Some(limit) => in_time(limit, caught(request)).await,
            None => caught(request).await,
        };
        self.note_silence(&verdict);
        if self.arrival_recorded && verdict.is_ok() {
            line::keep_open(core, self.hold);
        }
        let sent = std::mem::replace(&mut self.now, self.core.now());
        let refused = |released: &Released| matches!(released, Released::NotYours(_));
        report::count_answer(core, Operation::Release, &verdict, refused, sent, 1);
        if let Err(error) = &verdict {
            answers::note_failure(core, &self.hold.name, error);
        }
        let verdict = verdict.map(|released| match released {
            Released::Done { listeners } => {
                self.yield_to_remote(sent, listeners);
                None
            }
            Released::NotYours(absence) => Some(absence),
        });
        self.flight = None;
        Some(apply(core, self.hold, self.now, verdict))
    }

    /// Records a release that is not answered: waiters behind it wait for the store. None does behind a hold that was lost
    /// and has left the queue; others may have the name since.
    fn note_silence(&mut self, verdict: &Result<Released>) {
        let queue = &self.core.queue;
        let name = &self.hold.name;
        let answered = !verdict.as_ref().is_err_and(Error::is_unavailable);
        if answered && self.silent {
            queue.answered(name);
        }
        if !answered && self.hold.slot_number().is_some() {
            queue.unanswered(name, self.now);
            self.silent = true;
        }
    }

    /// Gives waiters elsewhere time to ask before the local ones.
    fn yield_to_remote(&self, sent: Instant, listeners: u64) {
        // The next waiter of a fair lock has no arrival until it asks, which it does while the name is closed.
        if self.leaves_mark && self.core.queue.is_fair() {
            return;
        }
        let ours = sent.saturating_duration_since(self.hold.chain_began());
        let release = ReleaseAnswer { sent, now: self.now, listeners, ours };
        yield_to_remote(self.core, &self.hold.name, self.hold.mode, release);
    }

    /// Runs the release to its end; nothing is left to the engine then.
    async fn finish(&mut self, until: impl Fn() -> Instant) -> Result<()> {
        let result = self.run(until).await;
        self.over = true;
        result
    }

    async fn run(&mut self, until: impl Fn() -> Instant) -> Result<()> {
        let core = self.core;
        let mut failures = 0;
        while let Some(result) = self.step().await {
            match result {
                Ok(()) => {}
                // There is nothing left to repeat.
                Err(error) if self.hold.is_over() => return Err(error),
                Err(error) => {
                    failures += 1;
                    let gap = core.timing.gap(failures, core.jitter());
                    if core.now() + gap >= until() || core.life.is_ending() {
                        return Err(error);
                    }
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(gap) => {}
                        () = core.life.until(Stage::Ending) => {}
                    }
                    self.now = core.now();
                }
            }
        }
        Ok(())
    }
}

/// A release in the store.
pub(in crate::engine) struct ReleaseAnswer {
    pub(in crate::engine) sent: Instant,
    /// The time of its answer.
    pub(in crate::engine) now: Instant,
    /// The number of waiters elsewhere that have heard it.
    pub(in crate::engine) listeners: u64,
    /// The time for which this process had the name.
    pub(in crate::engine) ours: Duration,
}

/// Gives waiters elsewhere, which wait for a message, time to ask before the local ones. It does not where others hold
/// on and no local one waits.
pub(in crate::engine) fn yield_to_remote(
    core: &Core,
    name: &Name,
    mode: Mode,
    release: ReleaseAnswer,
) {
    let ReleaseAnswer { sent, now, listeners, ours } = release;
    match mode {
        Mode::Read => return,
        Mode::Permits { .. } if !core.queue.is_awaited_here(name) => return,
        Mode::Exclusive | Mode::Write | Mode::Permits { .. } => {}
    }
    let heard = (listeners > 0).then(|| Heard {
        now,
        round_trip: now.saturating_duration_since(sent),
        ours,
        jitter: core.jitter(),
    });
    core.queue.released(name, now, heard);
}

impl Drop for ReleaseLoop<'_> {
    fn drop(&mut self) {
        let hold = || Arc::clone(self.hold);
        match self.flight.take() {
            Some(verdict) => {
                Rare::UnlockDropped.reached();
                self.core.submit(Job::FinishRelease { hold: hold(), verdict });
            }
            None if self.over => {}
            None => self.core.submit(Job::Release(hold())),
        }
    }
}

/// Releases a hold whose lease ended at `now`, and tries again for the time of one attempt.
/// The caller bounds the whole. A future that is dropped before its first poll leaves the release to
/// the engine, too.
fn release_for_an_attempt<'a>(
    core: &'a Arc<Core>,
    hold: &'a Arc<Hold>,
    now: Instant,
) -> impl Future<Output = Result<()>> + 'a {
    let mut release_loop = ReleaseLoop {
        core,
        hold,
        flight: None,
        now,
        limit: None,
        silent: false,
        arrival_recorded: false,
        leaves_mark: false,
        over: false,
    };
    async move { release_loop.finish(|| now + core.timing.attempt).await }
}

/// Ends one lease of a share. If it is the last one, waits until the store has confirmed the release, or the hold was
/// handed off, or rests.
pub(crate) async fn unlock(core: &Arc<Core>, hold: &Arc<Hold>, share: Share) -> Result<()> {
    let now = core.now();
    match handoff::leave(core, hold, now, share) {
        Some(phase) => finish_unlock(core, hold, now, phase).await,
        // A local waiter has it, or it rests.
        None => Ok(()),
    }
}

/// Ends one lease of a share as [`unlock`] does, but the hold does not rest.
pub(crate) async fn unlock_now(core: &Arc<Core>, hold: &Arc<Hold>, share: Share) -> Result<()> {
    let now = core.now();
    match handoff::leave_now(core, hold, now, share) {
        Some(phase) => finish_unlock(core, hold, now, phase).await,
        None => Ok(()),
    }
}

/// Ends one lease of a share after its work, and keeps the name closed for `keep`. Waits until the store has confirmed
/// that. A hold that is lost by then is not closed.
pub(crate) async fn unlock_done(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    share: Share,
    keep: Duration,
) -> Result<()> {
    let now = core.now();
    let phase = handoff::leave_done(core, hold, now, share, keep);
    finish_unlock(core, hold, now, phase).await
}

/// Waits for the release of a hold that ended at `now`, and that had this phase then.
async fn finish_unlock(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    now: Instant,
    phase: Phase,
) -> Result<()> {
    if let Phase::Lost(loss) = phase {
        core.submit(Job::Release(Arc::clone(hold)));
        return Err(Error::lost(loss));
    }
    if !hold.needs_release() {
        // Other leases of the hold are left.
        return Ok(());
    }
    core.ensure_running();
    // A request may have to wait for the request before it, so the limit is two attempts.
    let releasing = pin!(release_for_an_attempt(core, hold, now));
    // Only now: a panic leaves the release to the engine.
    runtime::need();
    let Some(result) = within(core.timing.attempt * 2, pin!(core.attend(releasing))).await else {
        return Err(Error::silent());
    };
    // The release of another lease, or of the engine, may have found how it ended.
    let result = result.and_then(|()| hold.release_result());
    if result.is_err() {
        core.submit(Job::Release(Arc::clone(hold)));
    }
    result
}

/// Applies the verdict on [`Hold::begin_release`]. Returns the result for the caller that waits for it.
fn apply(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    now: Instant,
    verdict: Result<Option<Absence>>,
) -> Result<()> {
    if let Ok(None) = &verdict {
        trace::later(Level::DEBUG, || {
            let name = hold.name.clone();
            let fence = hold.fence;
            move || tracing::debug!(name = name.as_str(), fence, "released")
        });
        describe::delete_later(core, hold);
    }
    hold.update_at(core, now, |state, now| state.released(&core.timing, now, verdict))
}

/// Releases a hold in the background, and tries again up to `D`, after which the store lets the key expire.
pub(in crate::engine) async fn release_to_the_end(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    flight: Flight,
) {
    if flight.is_none() && !hold.begin_background_release() {
        // The one that runs checks again before it ends.
        return;
    }
    let _running = BackgroundRelease { core, hold };
    let until = || core.life.bounded(hold.deadline(core));
    let limit = Some(core.timing.attempt * 2);
    let now = core.now();
    // An earlier release may not have been answered.
    let silent = core.queue.silence(&hold.name).is_some();
    // A release in flight may have recorded an arrival.
    let arrival_recorded = flight.is_some() && core.queue.is_fair();
    let mut release_loop = ReleaseLoop {
        core,
        hold,
        flight,
        now,
        limit,
        silent,
        arrival_recorded,
        leaves_mark: false,
        over: false,
    };
    match release_loop.finish(until).await {
        Err(error) if !hold.is_over() => hold.give_up(core, &error),
        _ => {}
    }
}

/// A release by the engine. Dropping it ends the release, and submits another one if there is more to
/// send.
struct BackgroundRelease<'a> {
    core: &'a Arc<Core>,
    hold: &'a Arc<Hold>,
}

impl Drop for BackgroundRelease<'_> {
    fn drop(&mut self) {
        if self.hold.end_background_release() {
            self.core.submit(Job::Release(Arc::clone(self.hold)));
        }
    }
}
