//! The acquire loop: acquires a name at once, re-entrantly, or after waiting.

mod asking;
pub(super) mod attempt;
mod hints;
mod line;
mod poll;
mod queued;
mod reenter;
mod seek;
pub(super) mod set;
pub(super) mod timed;
pub(super) mod turn;
mod wait;

pub(crate) use poll::Polling;

use super::machine::share::Share;
use super::shared::asker::{Asker, StoreRefusal};
use super::shared::core::Core;
use super::shared::hold::Hold;
use super::shared::options::{Caller, NO_OPTIONS, Options};
use crate::clock::Instant;
use crate::error::Result;
use crate::store::{Acquire, HolderId, Line, Mode, Name, Place, Target};
use crate::util::trace::QuietSpan;
use line::OpenPlace;
use set::SetCall;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use timed::Timed;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;
use turn::{Turn, WaiterGuard};

/// A server counts the time to live in milliseconds; this margin lets it end first.
pub(crate) const AFTER_EXPIRY: Duration = Duration::from_millis(5);

/// The longest time for which `try_lock` lets waiters of other processes go first.
const SHORT_PAUSE: Duration = Duration::from_millis(2);

/// The time until the first repeated check-in of a waiter; it doubles each time.
const FIRST_GAP: Duration = Duration::from_millis(50);

/// How long after a request for permits the next flow asks, if a hold was handed off before the answer. Meanwhile the engine
/// hands off what that request brings.
const UNANSWERED: Duration = Duration::from_millis(100);

/// The time for which the caller waits for other holders.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    Once,
    For(Duration),
    Forever,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    mode: Mode,
    /// The options of the handle.
    options: &'a Options,
    caller: Caller,
    /// The call for several names that it is a part of.
    set: Option<&'a SetCall>,
    /// Where a call that asks once leaves what the store says to refuse it.
    refusal: Option<&'a StoreRefusal>,
}

impl<'a> Wanted<'a> {
    /// Sets the options of the handle.
    pub(crate) fn with(self, options: &'a Options) -> Self {
        Self { options, ..self }
    }

    /// Sets the place of the call.
    pub(crate) fn at(self, caller: &'static Location<'static>) -> Self {
        Self { caller: Some(caller), ..self }
    }

    /// Returns the place of the call.
    pub(crate) fn caller(&self) -> Caller {
        self.caller
    }

    /// Leaves what the store says to refuse a call that asks once.
    pub(crate) fn with_refusal(self, refusal: &'a StoreRefusal) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    /// Makes it a part of a call for several names.
    pub(crate) fn of_set(self, set: &'a SetCall) -> Self {
        Self { set: Some(set), ..self }
    }
}

impl From<Mode> for Wanted<'_> {
    fn from(mode: Mode) -> Self {
        Self { mode, options: &NO_OPTIONS, caller: None, set: None, refusal: None }
    }
}

/// A hold that was acquired and has no lease yet. Dropping it releases it.
pub(crate) struct Claim<'a> {
    core: &'a Arc<Core>,
    hold: Arc<Hold>,
    share: Share,
    taken: bool,
}

impl<'a> Claim<'a> {
    fn new(core: &'a Arc<Core>, hold: Arc<Hold>, share: Share) -> Self {
        Self { core, hold, share, taken: false }
    }

    /// Creates the claim of a hold that no other handle shares.
    pub(super) fn of(core: &'a Arc<Core>, hold: Arc<Hold>) -> Self {
        Self::new(core, hold, Share::FIRST)
    }

    /// Returns the hold, which this still claims.
    pub(super) fn hold(&self) -> Arc<Hold> {
        Arc::clone(&self.hold)
    }

    /// Returns the share of its handle in the hold.
    pub(crate) fn share(&self) -> Share {
        self.share
    }

    /// Returns the hold. The caller must release it from now on.
    pub(crate) fn into_hold(mut self) -> Arc<Hold> {
        self.taken = true;
        Arc::clone(&self.hold)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.taken {
            self.hold.leave_in_background(self.core, self.share);
        }
    }
}

/// Acquires a name for a handle that never shares a hold, as [`acquire_as`] does.
pub(crate) fn acquire<'a>(
    core: &'a Arc<Core>,
    name: &Name,
    wanted: impl Into<Wanted<'a>>,
    current: &mut Option<Arc<Hold>>,
    limit: WaitLimit,
) -> impl Future<Output = Result<Option<Claim<'a>>>> {
    acquire_as(core, name, wanted.into(), (current, Share::FIRST), limit)
}

/// Acquires a name for a handle with this hold and its share in it, traced and bounded by the caller's limit. Every lease
/// is acquired here.
pub(crate) async fn acquire_as<'a>(
    core: &'a Arc<Core>,
    name: &Name,
    Wanted { mode, options, caller, set, refusal }: Wanted<'_>,
    (current, share): (&mut Option<Arc<Hold>>, Share),
    limit: WaitLimit,
) -> Result<Option<Claim<'a>>> {
    core.check_options(options, mode)?;
    // Where the store has a queue of its own, all locks are fair.
    let fair = options.is_fair() && core.can.line == Line::Places;
    let _call = core.begin_call();
    // A call that is always ready must not starve other tasks of its thread.
    consume_budget().await;
    let span = QuietSpan::new(tracing::debug_span!(
        "acquire",
        name = name.as_str(),
        waited_ms = tracing::field::Empty,
        outcome = tracing::field::Empty,
    ));
    let start = core.now();
    // False while this call waits for a change of the mode that the store has not answered.
    let answered = &AtomicBool::new(true);
    let limit = match limit {
        // It has no time to wait.
        WaitLimit::For(Duration::ZERO) => WaitLimit::Once,
        limit => limit,
    };
    let (once, longest_wait, longest_pause) = match limit {
        WaitLimit::Once => (true, Duration::ZERO, SHORT_PAUSE),
        // The rest of the time must suffice for a request.
        WaitLimit::For(limit) => (false, limit, (limit / 2).max(SHORT_PAUSE)),
        WaitLimit::Forever => (false, Duration::MAX, Duration::MAX),
    };
    let classified = core.settings.classified(name, options);
    let options = classified.as_ref().unwrap_or(options);
    let asker = Asker::new(core, (name, mode, options), (start, caller)).of_set(set);
    let asker = &asker.with_refusal(refusal);
    // Each future is pinned where it is created: a future that is moved into another one takes its
    // space there again.
    let acquiring = AcquireLoop {
        core,
        name,
        mode,
        fair,
        options,
        share,
        once,
        longest_wait,
        longest_pause,
        start,
        answered,
        asker,
    };
    let mut acquiring = pin!(acquiring.run(current));
    let acquiring = pin!(poll_fn(|cx| span.inside(|| acquiring.as_mut().poll(cx))));
    let attended = core.attend(acquiring);
    let result = match limit {
        WaitLimit::For(limit) => match timeout(limit, attended).await {
            Ok(result) => result,
            Err(_) if answered.load(Ordering::Relaxed) => {
                core.out_of_time(name, Timed { start, limit }).map_or(Ok(None), Err)
            }
            Err(_) => core.unserved(name).map_or(Ok(None), Err),
        },
        WaitLimit::Once | WaitLimit::Forever => attended.await,
    };
    asker.end(&result, once);
    if span.is_enabled() {
        record(&span, core.now().saturating_duration_since(start), &result);
    }
    result
}

fn record(span: &QuietSpan, waited: Duration, result: &Result<Option<Claim<'_>>>) {
    span.record("waited_ms", waited.as_secs_f64() * 1e3);
    span.record(
        "outcome",
        match &result {
            Ok(Some(_)) => "granted",
            Ok(None) => "not granted",
            Err(_) => "failed",
        },
    );
    if let Ok(Some(Claim { hold, .. })) = &result {
        let (name, count) = (hold.name.as_str(), hold.count());
        span.inside(|| tracing::debug!(name, fence = hold.fence, count, "granted"));
    }
}

struct AcquireLoop<'a, 'core> {
    core: &'core Arc<Core>,
    name: &'a Name,
    mode: Mode,
    /// Whether the store orders it among the waiters of all processes.
    fair: bool,
    options: &'a Options,
    /// The share of the handle in its last hold.
    share: Share,
    once: bool,
    /// The longest time for which it waits.
    longest_wait: Duration,
    /// The longest time for which it lets waiters elsewhere go first.
    longest_pause: Duration,
    start: Instant,
    answered: &'a AtomicBool,
    asker: &'a Asker<'a>,
}

impl<'core> AcquireLoop<'_, 'core> {
    async fn run(self, current: &mut Option<Arc<Hold>>) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        core.check_open()?;
        core.ensure_running();
        let mut now = self.start;
        let mut share = self.share;
        // Most of the time the handle's last hold is over.
        drop(current.take_if(|hold| hold.is_past()));
        while let Some(hold) = current.clone() {
            let is_own =
                if hold.mode.is_joined() { hold.count_of(share) > 0 } else { !hold.is_finished() };
            if is_own {
                // Boxed, like all rare paths, so that the future of the other calls stays small.
                if let Some(claim) = Box::pin(self.enter_again(&hold, share)).await? {
                    return Ok(Some(claim));
                }
                now = core.now();
            }
            // A change of its mode may have made another hold of it.
            (*current, share) = (hold.changed_to(share), Share::FIRST);
        }
        let Some(claim) = self.outermost(now).await? else {
            return Ok(None);
        };
        // The engine's runtime may have ended during the wait.
        core.ensure_running();
        if core.is_closed() {
            // The hold is released like that of a dropped lease.
            drop(claim);
            return Err(core.closed_error());
        }
        *current = Some(Arc::clone(&claim.hold));
        Ok(Some(claim))
    }

    /// Acquires the name outermost: from the store, or by a hand-off, after waiting in the queue.
    async fn outermost(&self, mut now: Instant) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        // A nested request before it needs no answer any more.
        self.answered.store(true, Ordering::Relaxed);
        if self.mode.is_joined()
            && let Some((hold, share)) = core.join_cohort(self.asker, self.name)
        {
            return Ok(Some(Claim::new(core, hold, share)));
        }
        // Dropped after the waiter.
        let _place = self.fair.then(|| OpenPlace { core, name: self.name, arrived: self.start });
        if self.once {
            return match core.queue.try_turn(self.name, self.mode, now) {
                Some(turn) => self.begin(turn).await,
                None => Box::pin(self.wait_out_silence()).await,
            };
        }
        let mut waiter = self.waiter();
        loop {
            let admission = self.wait_in_queue(&mut waiter, now).await?;
            if let Some(claim) = self.admitted(admission).await? {
                return Ok(Some(claim));
            }
            now = core.now();
        }
    }

    /// Asks the store for the name and begins a hold with its grant.
    async fn begin(&self, turn: Turn) -> Result<Option<Claim<'core>>> {
        if self.mode.can_seek() && !self.once {
            return Box::pin(self.seek(turn)).await;
        }
        let asking = pin!(self.ask_store(turn));
        let grant = self.core.unless_closed(asking).await?;
        Ok(grant.map(|grant| self.claim(Hold::begin(self.core, grant, self.asker))))
    }

    /// Returns the claim of a hold that no other handle shares.
    fn claim(&self, hold: Arc<Hold>) -> Claim<'core> {
        Claim::new(self.core, hold, Share::FIRST)
    }

    /// Returns the time to wait for an answer before the store counts as silent.
    fn silence_limit(&self) -> Duration {
        // A request may have to wait for the request before it.
        let timing = &self.core.timing;
        if self.once { timing.attempt * 2 } else { timing.ttl }
    }

    pub(super) fn target(&self) -> Target {
        Target::new(self.name.clone(), self.mode)
    }

    fn request(&self, holder: HolderId) -> Acquire {
        let core = self.core;
        Acquire::new(self.target(), holder, core.ttl_of(self.options), core.timing.attempt)
            .with_fencing(core.fencing(self.mode))
            .with_place(self.place())
    }

    /// Returns the place in the order of the waiters of all processes.
    fn place(&self) -> Option<Place> {
        let core = self.core;
        let ordered = match self.mode {
            Mode::Exclusive => self.fair,
            Mode::Read | Mode::Write => !self.once,
            Mode::Permits { .. } => false,
        };
        ordered.then(|| {
            if self.once {
                // It passes no waiter and gets no place.
                return Place::new(Duration::ZERO, Duration::ZERO);
            }
            let waited = core.now().saturating_duration_since(self.start);
            let left = self.longest_wait.saturating_sub(waited);
            Place::new(waited, core.place_kept(self.mode).min(left))
        })
    }

    /// Returns the guard of this call's place in the queue of this process.
    fn waiter(&self) -> WaiterGuard<'_> {
        self.core
            .queue
            .waiter(self.name, self.mode)
            .arrived(self.start, self.fair)
            .with(self.options)
    }
}
