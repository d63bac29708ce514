//! Tells the store what it does not know of a hold yet: a lower count, or the release.

use super::Hold;
use super::engine::Core;
use super::reaper::{Job, in_time};
use super::state::{Next, Op};
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Release, Released, StoreFuture};
use std::sync::Arc;
use std::time::Duration;

/// For stores that answer at once; the others have to be woken up first.
const SHORTEST_ROUND_TRIP: Duration = Duration::from_micros(100);

/// An operation that was sent, if one was.
type Flight = Option<(Op, StoreFuture<Released>)>;

/// Tells the store what it does not know yet of a hold. Whoever drops this in the middle
/// leaves the rest to the engine.
struct Settlement<'a> {
    core: &'a Arc<Core>,
    hold: &'a Arc<Hold>,
    flight: Flight,
    /// When the operation was sent.
    sent: Instant,
    over: bool,
}

impl Settlement<'_> {
    fn start(&mut self, op: Op) {
        let count = match op {
            Op::Record(count) => count,
            Op::Release => 0,
        };
        let (name, token) = (self.hold.name.clone(), self.hold.token);
        let request = Release { name, token, count, timeout: self.core.timing.attempt };
        self.sent = self.core.now();
        self.flight = Some((op, self.core.store.release(request)));
    }

    /// The next operation and what came of it; `None` when the store knows all it needs.
    async fn step(&mut self) -> Option<Result<()>> {
        while self.flight.is_none() {
            match self.hold.next_op(self.core) {
                Next::Op(op) => self.start(op),
                Next::Busy => self.hold.until_idle().await,
                Next::Nothing => return None,
            }
        }
        let (op, request) = self.flight.as_mut()?;
        let op = *op;
        let verdict =
            in_time(self.core.timing.attempt * 2, request).await.map(|released| match released {
                Released::Done { listeners } => {
                    if op == Op::Release && listeners > 0 {
                        self.give_way();
                    }
                    None
                }
                Released::NotYours(absence) => Some(absence),
            });
        self.flight = None;
        if let (Op::Record(_), Err(error)) = (op, &verdict) {
            tracing::debug!(name = self.hold.name.as_str(), %error, "hold count not recorded");
        }
        Some(self.hold.settled(self.core, op, verdict))
    }
}

impl Settlement<'_> {
    /// Waiters elsewhere were told; ours, who needs no telling, would always be faster. So it waits for
    /// one round trip more, jittered.
    fn give_way(&self) {
        let now = self.core.now();
        let round_trip = now.saturating_duration_since(self.sent).max(SHORTEST_ROUND_TRIP);
        let wait = round_trip.mul_f64(1.0 + self.core.jitter());
        self.core.queue.give_way(&self.hold.name, now, now + wait.min(self.core.timing.attempt));
    }
}

impl Drop for Settlement<'_> {
    fn drop(&mut self) {
        let hold = Arc::clone(self.hold);
        match self.flight.take() {
            Some((op, _)) if std::thread::panicking() => {
                let error = Error::new(ErrorKind::Unavailable, "given up in a panic");
                let _ = hold.settled(self.core, op, Err(error));
                self.core.reap(Job::Settle(hold));
            }
            Some((op, verdict)) => self.core.reap(Job::Finish { hold, op, verdict }),
            None if self.over => {}
            None => self.core.reap(Job::Settle(hold)),
        }
    }
}

/// Settles a hold, retrying a release until `until` says to stop.
pub(crate) async fn settle(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    flight: Flight,
    until: impl Fn() -> Instant,
) -> Result<()> {
    let sent = core.now();
    let mut settlement = Settlement { core, hold, flight, sent, over: false };
    let result = run(&mut settlement, until).await;
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
                    () = tokio::time::sleep(gap) => {}
                    () = core.stop.cancelled() => {}
                }
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
    match settle(core, hold, flight.take(), until).await {
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
