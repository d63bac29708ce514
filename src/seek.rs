//! How a name is taken: alone, again, or after waiting.

mod line;

use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Result};
use crate::hints::Hints;
use crate::hold::engine::{Core, Engine};
use crate::hold::place::{Admission, Kept, Turn};
use crate::hold::reaper::{Attempt, Nested};
use crate::hold::state::{Entered, Entry};
use crate::hold::{Grant, Hold};
use crate::lease::Lease;
use crate::store::{Acquire, Acquired, HolderId, Name, Target};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

/// A server's time to live has a grain of a millisecond; be there just after it ended.
const AFTER_EXPIRY: Duration = Duration::from_millis(5);

/// For how long `try_lock` lets waiters of other processes go first.
const SHORT_PAUSE: Duration = Duration::from_millis(2);

/// How soon a waiter in line looks again for the first time; each time takes twice as long as the one before.
const FIRST_GAP: Duration = Duration::from_millis(50);

/// How long the caller waits for somebody else.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    Once,
    For(Duration),
    Forever,
}

pub(crate) async fn lock(
    engine: &Arc<Engine>,
    name: &Result<Name>,
    current: &mut Option<Arc<Hold>>,
) -> Result<Lease> {
    let lease = acquire(engine, name, current, Patience::Forever).await?;
    lease.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the wait ended without a lease"))
}

/// The one way to a lease: traced, and bounded by the caller's patience.
pub(crate) async fn acquire(
    engine: &Arc<Engine>,
    name: &Result<Name>,
    current: &mut Option<Arc<Hold>>,
    patience: Patience,
) -> Result<Option<Lease>> {
    let name = name.as_ref().map_err(Error::clone)?;
    let core = &engine.core;
    let _call = core.call();
    // What is ready at once must not keep the rest of its thread waiting.
    consume_budget().await;
    let span = tracing::debug_span!(
        "acquire",
        name = name.as_str(),
        waited_ms = tracing::field::Empty,
        outcome = tracing::field::Empty,
    );
    let start = core.now();
    // Whether the store has said anything; waiting behind a local holder needs no answer.
    let answered = AtomicBool::new(true);
    let (once, pause) = match patience {
        Patience::Once => (true, SHORT_PAUSE),
        // What is left must do for a request.
        Patience::For(limit) => (limit.is_zero(), (limit / 2).max(SHORT_PAUSE)),
        Patience::Forever => (false, Duration::MAX),
    };
    // Each is pinned where it is made: a future that is moved into another one takes its room there again.
    let seek = Seek { engine, name, once, pause, start, answered: &answered };
    let mut seek = pin!(seek.run(current).instrument(span.clone()));
    let open = pin!(async {
        tokio::select! {
            biased;
            result = seek.as_mut() => result,
            () = core.closed.cancelled() => Err(core.closed_error()),
        }
    });
    let attended = core.attend(open);
    let result = match patience {
        Patience::For(limit) if !once => match timeout(limit, attended).await {
            Ok(result) => result,
            Err(_) if answered.load(Ordering::Relaxed) && !is_silent(core, name, start) => Ok(None),
            Err(_) => Err(Error::silent()),
        },
        _ => attended.await,
    };
    if !span.is_disabled() {
        record(&span, core.now().saturating_duration_since(start), &result);
    }
    result
}

/// Whether the store has not answered the first in line since `start`, or for longer than an attempt.
fn is_silent(core: &Core, name: &Name, start: Instant) -> bool {
    core.queue.silent_since(name).is_some_and(|since| {
        since <= start || core.now().saturating_duration_since(since) >= core.timing.attempt
    })
}

fn record(span: &tracing::Span, waited: Duration, result: &Result<Option<Lease>>) {
    span.record("waited_ms", waited.as_secs_f64() * 1e3);
    span.record(
        "outcome",
        match &result {
            Ok(Some(_)) => "granted",
            Ok(None) => "not granted",
            Err(_) => "failed",
        },
    );
    if let Ok(Some(lease)) = &result {
        let (name, count) = (lease.name(), lease.hold_count());
        span.in_scope(|| tracing::debug!(name, fence = lease.fence(), count, "granted"));
    }
}

struct Seek<'a> {
    engine: &'a Arc<Engine>,
    name: &'a Name,
    once: bool,
    /// For how long it lets others go first, at most.
    pause: Duration,
    start: Instant,
    answered: &'a AtomicBool,
}

impl Seek<'_> {
    fn core(&self) -> &Arc<Core> {
        &self.engine.core
    }

    async fn run(self, current: &mut Option<Arc<Hold>>) -> Result<Option<Lease>> {
        self.core().check_open()?;
        self.core().ensure_running();
        // Most of the time the last one is over.
        if let Some(hold) = current.clone().filter(|hold| !hold.is_left()) {
            // In a box, as is all that few calls come to, so that the others stay small.
            if let Some(lease) = Box::pin(self.enter(hold)).await? {
                return Ok(Some(lease));
            }
        }
        *current = None;
        let Some(hold) = self.first().await? else {
            return Ok(None);
        };
        // While we waited, the engine's runtime may have gone.
        self.core().ensure_running();
        if self.core().is_closed() {
            // What was granted goes the way of a dropped lease.
            drop(Lease::new(self.engine, hold));
            return Err(self.core().closed_error());
        }
        *current = Some(Arc::clone(&hold));
        Ok(Some(Lease::new(self.engine, hold)))
    }

    /// Waits in line, and takes the name from the store or from the one before us.
    async fn first(&self) -> Result<Option<Arc<Hold>>> {
        let core = self.core();
        if self.once {
            return match core.queue.try_enter(self.name, self.start) {
                Some(turn) => self.begin(turn).await,
                None => Box::pin(self.behind_a_silence()).await,
            };
        }
        let mut place = core.queue.place(self.name);
        loop {
            match self.wait_in_line(&mut place).await? {
                Admission::Turn(turn) => {
                    if let Some(hold) = self.begin(turn).await? {
                        return Ok(Some(hold));
                    }
                }
                Admission::Hold(passed) => {
                    if let Some(hold) = passed.accept() {
                        return Ok(Some(hold));
                    }
                }
            }
        }
    }

    /// Takes the name from the store.
    async fn begin(&self, turn: Turn) -> Result<Option<Arc<Hold>>> {
        let grant = self.take(turn).await?;
        Ok(grant.map(|grant| Hold::begin(self.core(), grant)))
    }

    /// For how long no answer from the store is taken.
    fn silence_limit(&self) -> Duration {
        // A request may have to wait for the one before it.
        let timing = &self.core().timing;
        if self.once { timing.attempt * 2 } else { timing.ttl }
    }

    fn request(&self, token: HolderId, count: u32) -> Acquire {
        let core = self.core();
        let target = Target::exclusive(self.name.clone());
        Acquire::new(target, token, core.timing.ttl, core.timing.attempt)
            .with_count(count)
            .with_fencing(core.settings.fencing.filter(|_| count == 1))
    }

    /// A nested request, which must not outlive `C`.
    fn nested(&self, hold: &Arc<Hold>, count: u32) -> Acquire {
        let request = self.request(hold.token, count);
        Acquire { timeout: request.timeout.min(hold.remaining(self.core())), ..request }
    }

    /// Enters a hold of ours once more. `None`: nothing is left of it.
    async fn enter(&self, hold: Arc<Hold>) -> Result<Option<Lease>> {
        let core = self.core();
        let count = loop {
            match hold.enter(core) {
                Entry::Count(count) => break count,
                Entry::Busy => {
                    // Our own operation, so a silence here is the store's.
                    self.answered.store(false, Ordering::Relaxed);
                    let idle = timeout(self.silence_limit(), hold.until_idle()).await;
                    idle.map_err(|_| Error::silent())?;
                }
                Entry::Lost(loss) => return Err(Error::lost(loss)),
                Entry::Over => {
                    // The own release may still be under way; `try_lock` must not trip over it.
                    if self.once {
                        let _ = timeout(core.timing.attempt, hold.until_over()).await;
                    }
                    return Ok(None);
                }
            }
        };
        let mut nested = Nested::new(core, &hold, count);
        let mut failures = 0;
        let ask = async {
            loop {
                self.answered.store(false, Ordering::Relaxed);
                match nested.ask(self.nested(&hold, count)).await {
                    Entered::Failed(error) if error.is_unavailable() && !self.once => {
                        failures += 1;
                        tracing::debug!(%error, "nested acquire failed; trying again");
                        sleep(core.timing.gap(failures, core.jitter())).await;
                    }
                    verdict => return verdict,
                }
            }
        };
        let limit = self.silence_limit();
        tokio::select! {
            biased;
            verdict = timeout(limit, ask) => match verdict {
                Ok(verdict) => nested.end(verdict, true)?,
                Err(_) => return Err(Error::silent()),
            },
            loss = hold.when_lost() => return Err(Error::lost(loss)),
        }
        Ok(Some(Lease::new(self.engine, hold)))
    }

    /// Takes the name from the store, alone in this process. `None`: it is held, and we ask once only, or we took too
    /// long between two steps, and another waiter has the turn.
    async fn take(&self, turn: Turn) -> Result<Option<Grant>> {
        let core = self.core();
        let mut attempt = Attempt::new(core, self.name.clone(), core.draw_token());
        let mut hints = Hints::Unasked;
        let mut unanswered: Option<Instant> = None;
        let mut failures = 0;
        let attempt_time = core.timing.attempt;
        if let Some(time) = turn.not_before() {
            let time = time.min(self.start + self.pause);
            turn.moves_by(time + attempt_time);
            core.clock().sleep_until(time).await;
        }
        self.answered.store(false, Ordering::Relaxed);
        loop {
            core.check_open()?;
            // Silence counts from the first send without an answer, also of those who were first before, not while
            // we sleep.
            let now = core.now();
            let Some(since) = turn.asks(now) else { return Ok(None) };
            let since = *unanswered.get_or_insert(since);
            let until = since.max(self.start) + self.silence_limit();
            let request = self.request(attempt.token(), 1);
            let verdict = self.answer(&turn, pin!(attempt.ask(request)), until).await;
            let Some(verdict) = verdict else {
                return Err(Error::silent());
            };
            match verdict {
                Ok(Acquired::Granted { sent, fence, reached }) => {
                    let now = core.now();
                    let stale = core.timing.stale(sent, now);
                    let kept = if stale { Kept::Forced } else { turn.keep(sent, now) };
                    if kept == Kept::Forced {
                        tracing::debug!("granted too late; given back");
                        attempt.give_back(sent);
                        attempt = Attempt::new(core, self.name.clone(), core.draw_token());
                        continue;
                    }
                    if kept == Kept::Not {
                        attempt.give_back(sent);
                        return Ok(None);
                    }
                    let token = attempt.token();
                    let unsure_until = attempt.taken();
                    let name = self.name.clone();
                    return Ok(Some(Grant {
                        name,
                        token,
                        fence,
                        reached,
                        sent,
                        now,
                        unsure_until,
                        turn,
                    }));
                }
                Ok(Acquired::Held { remaining }) => {
                    self.answered.store(true, Ordering::Relaxed);
                    if self.once {
                        return Ok(None);
                    }
                    (unanswered, failures) = (None, 0);
                    core.queue.saw_another(self.name);
                    self.rest(&turn, &mut hints, attempt.token(), remaining).await;
                }
                Ok(Acquired::NotYours(_)) => {
                    return Err(Error::invalid(
                        "the store took an outermost acquire for a nested one",
                    ));
                }
                Err(error) if error.is_unavailable() && !self.once => {
                    self.answered.store(false, Ordering::Relaxed);
                    failures += 1;
                    let gap = core.timing.gap(failures, core.jitter());
                    if core.now() + gap >= since + core.timing.ttl {
                        return Err(error);
                    }
                    tracing::debug!(%error, "acquire failed; trying again");
                    turn.moves_by(core.now() + gap + attempt_time);
                    sleep(gap).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for an answer, for as long as the store is not silent; meanwhile, it is seen that this is polled.
    async fn answer<R>(
        &self,
        turn: &Turn,
        mut request: Pin<&mut impl Future<Output = R>>,
        until: Instant,
    ) -> Option<R> {
        let core = self.core();
        loop {
            let now = core.now();
            let left = until.saturating_duration_since(now);
            turn.moves_by(now + core.timing.attempt * 3);
            match timeout(left.min(core.timing.attempt * 2), request.as_mut()).await {
                Ok(answer) => return Some(answer),
                Err(_) if core.now() >= until => return None,
                Err(_) => {}
            }
        }
    }

    /// Waits for a hint, or until the holder's time to live has ended, or for the poll bound; meanwhile, it is seen that
    /// this is polled.
    async fn rest<'a>(
        &'a self,
        turn: &Turn,
        hints: &mut Hints<'a>,
        holder: HolderId,
        remaining: Option<Duration>,
    ) {
        let core = self.core();
        let bound = core.settings.poll_bound;
        let pause = remaining.map_or(bound, |left| bound.min(left.saturating_add(AFTER_EXPIRY)));
        let until = core.now() + pause;
        loop {
            let now = core.now();
            let step = until.saturating_duration_since(now).min(core.timing.ttl / 4);
            turn.moves_by(now + step + core.timing.attempt);
            if step.is_zero() || hints.wait(core, (self.name, holder), step).await {
                return;
            }
        }
    }
}
