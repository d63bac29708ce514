//! Tells the store what it does not know of a hold yet: a lower count, or the release.

use super::Hold;
use super::engine::Core;
use super::pause::Heard;
use super::reaper::{Job, caught, in_time};
use super::state::{Next, Op};
use crate::clock::Instant;
use crate::error::{ErrorKind, Result};
use crate::store::{Release, Released, StoreFuture, Target};
use crate::trace;
use std::sync::Arc;
use std::time::Duration;
use tracing::Level;

/// An operation that was sent, if one was.
type Flight = Option<(Op, StoreFuture<Released>)>;

/// Tells the store what it does not know yet of a hold. Whoever drops this in the middle
/// leaves the rest to the engine.
struct Settlement<'a> {
    core: &'a Arc<Core>,
    hold: &'a Arc<Hold>,
    flight: Flight,
    /// The time of the last event: when the operation was sent, if one is under way.
    now: Instant,
    /// How long the store may take for it. `None`: the caller keeps the time.
    limit: Option<Duration>,
    /// A release was not answered.
    silent: bool,
    over: bool,
}

impl Settlement<'_> {
    fn start(&mut self, op: Op) {
        let count = match op {
            Op::Record(count) => count,
            Op::Release => 0,
        };
        let (name, token) = (self.hold.name.clone(), self.hold.token);
        let target = Target::exclusive(name);
        let request = Release::new(target, token, count, self.core.timing.attempt);
        self.flight = Some((op, self.core.release(request)));
    }

    /// The next operation and what came of it; `None` when the store knows all it needs.
    async fn step(&mut self) -> Option<Result<()>> {
        while self.flight.is_none() {
            match self.hold.next_op(self.now) {
                Next::Op(op) => self.start(op),
                Next::Busy => {
                    self.hold.until_idle().await;
                    self.now = self.core.now();
                }
                Next::Nothing => return None,
            }
        }
        let (op, request) = self.flight.as_mut()?;
        let op = *op;
        let verdict = match self.limit {
            Some(limit) => in_time(limit, caught(request)).await,
            None => caught(request).await,
        };
        if op == Op::Release {
            self.note_silence(&verdict);
        }
        let sent = std::mem::replace(&mut self.now, self.core.now());
        let verdict = verdict.map(|released| match released {
            Released::Done { listeners } => {
                if op == Op::Release {
                    self.give_way(sent, listeners);
                }
                None
            }
            Released::NotYours(absence) => Some(absence),
        });
        self.flight = None;
        if let (Op::Record(_), Err(error)) = (op, &verdict) {
            trace::later(Level::DEBUG, || {
                let (name, error) = (self.hold.name.clone(), error.clone());
                move || tracing::debug!(name = name.as_str(), %error, "hold count not recorded")
            });
        }
        Some(self.hold.settled(self.core, self.now, op, verdict))
    }

    /// Who waits behind a release that is not answered waits for the store.
    fn note_silence(&mut self, verdict: &Result<Released>) {
        let (queue, name) = (&self.core.queue, &self.hold.name);
        match verdict {
            Err(error) if error.is_unavailable() => {
                queue.asked(name, self.now);
                self.silent = true;
            }
            _ if self.silent => queue.answered(name),
            _ => {}
        }
    }

    /// Waiters elsewhere were told; ours, which needs no message, is to leave them the time to ask.
    fn give_way(&self, sent: Instant, listeners: u64) {
        let heard = (listeners > 0).then(|| Heard {
            now: self.now,
            round_trip: self.now.saturating_duration_since(sent),
            ours: sent.saturating_duration_since(self.hold.granted()),
            jitter: self.core.jitter(),
        });
        self.core.queue.released(&self.hold.name, self.now, heard);
    }
}

impl Drop for Settlement<'_> {
    fn drop(&mut self) {
        let hold = Arc::clone(self.hold);
        match self.flight.take() {
            Some((op, verdict)) => self.core.reap(Job::Finish { hold, op, verdict }),
            None if self.over => {}
            None => self.core.reap(Job::Settle(hold)),
        }
    }
}

/// Settles a hold that was left at `now`, retrying a release for one attempt's time. The caller keeps
/// the time. A future that is dropped before its first poll leaves it to the engine, too.
pub(crate) fn settle<'a>(
    core: &'a Arc<Core>,
    hold: &'a Arc<Hold>,
    now: Instant,
) -> impl Future<Output = Result<()>> + 'a {
    let mut settlement =
        Settlement { core, hold, flight: None, now, limit: None, silent: false, over: false };
    async move { finish(&mut settlement, || now + core.timing.attempt).await }
}

async fn finish(settlement: &mut Settlement<'_>, until: impl Fn() -> Instant) -> Result<()> {
    let result = run(settlement, until).await;
    settlement.over = true;
    result
}

async fn run(settlement: &mut Settlement<'_>, until: impl Fn() -> Instant) -> Result<()> {
    let core = settlement.core;
    let mut failures = 0;
    while let Some(result) = settlement.step().await {
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Lost => return Err(error),
            Err(error) => {
                failures += 1;
                let gap = core.timing.gap(failures, core.jitter());
                if core.now() + gap >= until() || core.stop.is_cancelled() {
                    return Err(error);
                }
                tokio::select! {
                    biased;
                    () = tokio::time::sleep(gap) => {}
                    () = core.stop.cancelled() => {}
                }
                settlement.now = core.now();
            }
        }
    }
    Ok(())
}

/// The engine's own settling: to `D`, after which the store lets it expire.
pub(super) async fn settle_to_the_end(core: &Arc<Core>, hold: &Arc<Hold>, mut flight: Flight) {
    if flight.is_none() && !hold.begin_reaping() {
        // Whoever is at it looks again before it ends.
        return;
    }
    let _reaping = Reaping { core, hold };
    let until = || {
        let deadline = hold.deadline(core);
        core.closing_until.get().map_or(deadline, |closing| deadline.min(*closing))
    };
    let limit = Some(core.timing.attempt * 2);
    let now = core.now();
    // What went before may not have been answered.
    let silent = core.queue.silent_since(&hold.name).is_some();
    let mut settlement =
        Settlement { core, hold, flight: flight.take(), now, limit, silent, over: false };
    match finish(&mut settlement, until).await {
        Err(error) if error.kind() != ErrorKind::Lost => hold.give_up(core, &error),
        _ => {}
    }
}

struct Reaping<'a> {
    core: &'a Arc<Core>,
    hold: &'a Arc<Hold>,
}

impl Drop for Reaping<'_> {
    fn drop(&mut self) {
        if self.hold.end_reaping() {
            self.core.reap(Job::Settle(Arc::clone(self.hold)));
        }
    }
}
