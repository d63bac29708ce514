//! One call that asks for a name, read downwards: its options, what the handle has already ([`AcquireLoop::run`]), its turn
//! in this process ([`AcquireLoop::outermost`]), its requests ([`AcquireLoop::ask_store`]), and what becomes of each answer.
//!
//! `spec` is what a call asks for and gets. `turn` guards what it has in the queue, `acquire_guard` guards its requests, and `wait`
//! has the hints between them. `set` is for several names in one call.

pub(super) mod acquire_guard;
pub(super) mod set;
mod spec;
pub(super) mod turn;
mod wait;

pub(crate) use spec::{AcquireSpec, Claim, WaitLimit};
pub(crate) use wait::Polling;

use super::hold::{handoff, readers, renew};
use super::machine::chain::HandoffScope;
use super::machine::count::Share;
use super::machine::hold::NoEntry;
use super::machine::mode;
use super::machine::name::TurnOutcome;
use super::shared::answers::{self, Attention, Timed, Unanswered};
use super::shared::core::Core;
use super::shared::hold::{Grant, Hold};
use super::shared::job::Job;
use super::shared::line::OpenArrival;
use super::shared::options::Options;
use super::shared::queue::{HandedOff, PermitsRequest, Waits};
use super::shared::report::{self, CallReport};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::observe::Operation;
use crate::store::{Acquire, Acquired, Arrival, HolderId, Line, Mode, Name, Target};
use crate::util::bound::within;
use crate::util::reached::Rare;
use crate::util::trace::{self, QuietSpan};
use acquire_guard::{AcquireGuard, GrantUse, Landed, was_refused};
use set::SetCall;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tracing::Level;
use turn::{Admission, Turn, WaiterGuard};
use wait::Subscription;

/// A server counts the time to live in milliseconds; this margin lets it end first.
pub(crate) const AFTER_EXPIRY: Duration = Duration::from_millis(5);

/// The longest time for which `try_lock` lets waiters of other processes go first. Shorter: calls of `try_lock` in a loop pass a
/// waiter that needs a message and a request. Longer: `try_lock` answers later.
const SHORT_PAUSE: Duration = Duration::from_millis(2);

/// The time until the second pulse of a waiter; it doubles each time. Shorter: waits behind short holds wake for nothing.
/// Longer: it is found later that the call with the turn is not polled.
const FIRST_GAP: Duration = Duration::from_millis(50);

/// How long after a request for permits the next call asks, if a hold was handed off before the answer. Meanwhile the engine
/// hands off what that request brings. Shorter than a round trip, both would ask at once; longer, a lost request costs more.
const UNANSWERED: Duration = Duration::from_millis(100);

/// Acquires a name for a handle that never shares a hold, as [`acquire_as`] does.
pub(crate) fn acquire<'a>(
    core: &'a Arc<Core>,
    name: &Name,
    spec: impl Into<AcquireSpec<'a>>,
    current: &mut Option<Arc<Hold>>,
    limit: WaitLimit,
) -> impl Future<Output = Result<Option<Claim<'a>>>> {
    acquire_as(core, name, spec.into(), current, Share::FIRST, limit)
}

/// Acquires a name for a handle with this hold and its share in it, traced and bounded by the caller's limit. Every lease
/// is acquired here.
pub(crate) async fn acquire_as<'a>(
    core: &'a Arc<Core>,
    name: &Name,
    AcquireSpec { mode, options, caller, set, refusal }: AcquireSpec<'_>,
    current: &mut Option<Arc<Hold>>,
    share: Share,
    limit: WaitLimit,
) -> Result<Option<Claim<'a>>> {
    let _call = core.life.begin_call();
    // A call that is always ready must not starve other tasks of its thread.
    consume_budget().await;
    options.check(core, mode)?;
    // Where the store has a queue of its own, all locks are fair.
    let fair = options.is_fair() && core.can.line == Line::Arrivals;
    let span = QuietSpan::new(tracing::debug_span!(
        "acquire",
        name = name.as_str(),
        waited_ms = tracing::field::Empty,
        outcome = tracing::field::Empty,
    ));
    let start = core.now();
    // An atomic, because the future of the call is `Send`; no other thread uses it meanwhile.
    let waits_for_mode_change = &AtomicBool::new(false);
    let limit = limit.simplified();
    let classified = core.settings.classified(name, options);
    let options = classified.as_ref().unwrap_or(options);
    let report = CallReport::new(core, name, mode, options, start, caller)
        .of_set(set.map(SetCall::is_given_up));
    let report = &report.with_refusal(refusal);
    // Each future is pinned where it is created: a future that is moved into another one takes its
    // space there again.
    let attention = &Attention::new(start);
    let acquire_loop = AcquireLoop {
        core,
        name,
        mode,
        fair,
        options,
        share,
        limit,
        start,
        attention,
        waits_for_mode_change,
        report,
        set,
    };
    let mut acquiring = pin!(acquire_loop.run(current));
    let acquiring = pin!(poll_fn(|cx| span.inside(|| acquiring.as_mut().poll(cx))));
    let attended = core.attend(acquiring);
    let result = match limit {
        WaitLimit::For(limit) => match timeout(limit, attended).await {
            Ok(result) => result,
            Err(_) if waits_for_mode_change.load(Ordering::Relaxed) => {
                answers::silent_unless_answered(core, name).map_or(Ok(None), Err)
            }
            Err(_) => {
                answers::out_of_time(core, name, Timed { start, limit }).map_or(Ok(None), Err)
            }
        },
        WaitLimit::Once | WaitLimit::Forever => attended.await,
    };
    if matches!(result, Ok(None)) && set.is_some_and(|set| set.has_not_tried(name)) {
        // The name that was refused is reported.
        report.end_unreported();
    } else {
        report.end(&result, limit.is_once());
    }
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
        let name = hold.name.as_str();
        let count = hold.count();
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
    limit: WaitLimit,
    start: Instant,
    attention: &'a Attention,
    /// Whether the store has not answered a change of the mode that this call waits for.
    waits_for_mode_change: &'a AtomicBool,
    report: &'a CallReport<'a>,
    /// The set that it is a part of.
    set: Option<&'a SetCall>,
}

impl<'core> AcquireLoop<'_, 'core> {
    async fn run(&self, current: &mut Option<Arc<Hold>>) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        core.life.check()?;
        core.ensure_running();
        let mut now = self.start;
        let mut share = self.share;
        // Most of the time the handle's last hold is over.
        drop(current.take_if(|hold| hold.is_past()));
        while let Some(hold) = current.clone() {
            let is_own = if mode::is_joined(hold.mode) {
                hold.count_of(share) > 0
            } else {
                !hold.is_finished()
            };
            if is_own {
                // Boxed, like all rare paths, so that the future of the other calls stays small.
                if let Some(claim) = Box::pin(self.enter_again(&hold, share)).await? {
                    return Ok(Some(claim));
                }
                now = core.now();
            }
            // A change of its mode may have made another hold of it.
            *current = hold.changed_to(share);
            share = Share::FIRST;
        }
        let Some(claim) = self.outermost(now).await? else {
            return Ok(None);
        };
        // The engine's runtime may have ended during the wait.
        core.ensure_running();
        if core.life.is_closed() {
            // The hold is released like that of a dropped lease.
            Rare::GrantedWhileClosed.reached();
            drop(claim);
            return Err(core.life.error());
        }
        *current = Some(Arc::clone(&claim.hold));
        Ok(Some(claim))
    }

    /// Re-enters a hold of which this handle has a share. Returns `None` if nothing is left of it, but for the one that a
    /// change of its mode has made of it.
    async fn enter_again(&self, hold: &Arc<Hold>, share: Share) -> Result<Option<Claim<'core>>> {
        if !mode::can_enter(hold.mode, self.mode) {
            return Err(Error::invalid(
                "this handle reads the name, so its write would wait for itself; drop the read lease first, or use \
                 ReadLease::try_upgrade",
            ));
        }
        let entering = pin!(self.enter(hold, share));
        self.core.life.unless_closed(entering).await
    }

    async fn enter(&self, hold: &Arc<Hold>, share: Share) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        loop {
            let entered = match mode::is_joined(hold.mode) {
                true => readers::join_again(core, hold, share),
                false => hold.enter_again(core),
            };
            match entered {
                Ok(()) => return Ok(Some(Claim::new(core, Arc::clone(hold), share))),
                Err(NoEntry::Busy) => {
                    // A silence is the store's: it has not answered the request of this handle to change the mode.
                    self.waits_for_mode_change.store(true, Ordering::Relaxed);
                    let idle = timeout(self.silence_limit(), hold.until_idle()).await;
                    idle.map_err(|_| Error::silent())?;
                }
                Err(NoEntry::Lost(loss)) => return Err(Error::lost(loss)),
                Err(NoEntry::Over) => {
                    // The release of this handle may still be in flight; `try_lock` waits for it instead of reporting
                    // contention.
                    if self.limit.is_once() && !mode::is_joined(hold.mode) {
                        let _ = timeout(core.timing.attempt, hold.until_over()).await;
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// Acquires the name outermost: from the store, or by a hand-off, after waiting in the queue.
    async fn outermost(&self, mut now: Instant) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        // A nested request before it needs no answer any more.
        self.waits_for_mode_change.store(false, Ordering::Relaxed);
        if mode::is_joined(self.mode)
            && let Some((hold, share)) = readers::join_youngest(core, self.report, self.name)
        {
            return Ok(Some(Claim::new(core, hold, share)));
        }
        // Dropped after the waiter.
        let _arrival =
            self.fair.then(|| OpenArrival { core, name: self.name, arrived: self.start });
        if self.limit.is_once() {
            return match Turn::at_once(&core.queue, self.name, self.mode, now) {
                Some(turn) => self.begin(turn, now).await,
                None => Box::pin(self.try_behind()).await,
            };
        }
        let mut waiter = self.waiter();
        loop {
            let (admission, found_at) = self.wait_in_queue(&mut waiter, now).await?;
            if let Some(claim) = self.admitted(admission, found_at).await? {
                return Ok(Some(claim));
            }
            now = core.now();
        }
    }

    /// Waits in the queue until an offer comes, and returns it with the time of the pulse that found it. Fails once the
    /// store counts as silent: the first waiter may get no answer either.
    async fn wait_in_queue(
        &self,
        waiter: &mut WaiterGuard<'_>,
        mut now: Instant,
    ) -> Result<(Admission, Instant)> {
        let core = self.core;
        let limit = self.silence_limit();
        let mut subscription = Subscription::NotSubscribed;
        let mut gap = FIRST_GAP;
        let mut reported = false;
        loop {
            let Waits { silent_since, mixed, resting } = match waiter.pulse(now) {
                Ok(admission) => return Ok((admission, now)),
                Err(waits) => waits,
            };
            if let Some(hold) = resting
                && handoff::end_rest(core, &hold)
            {
                now = core.now();
                continue;
            }
            self.report.waits(|| core.queue.ahead(self.name, waiter.number()));
            // After the pulse: `close` wakes each waiter that it finds.
            core.life.check()?;
            if mixed {
                self.check_modes()?;
            }
            let mut pause = gap.min(core.timing.pulse_period());
            if let Some(since) = silent_since {
                let until = since.max(self.attention.since()) + limit;
                if until <= now {
                    return Err(answers::silent(core, self.name));
                }
                pause = pause.min(until.saturating_duration_since(now));
            }
            let may_wait_for_itself = mode::is_reentrant(self.mode) && !reported;
            if may_wait_for_itself && now.saturating_duration_since(self.start) >= core.timing.ttl {
                reported = self.report_own_hold(now);
            }
            // The wait is long enough to be worth a subscription, which reports a forced release.
            let listens = gap > FIRST_GAP && core.announces() && waiter.is_first_behind_a_hold(now);
            let woken = timeout(pause, waiter.woken());
            let woken = if listens {
                tokio::select! {
                    biased;
                    woken = woken => woken,
                    never = Box::pin(self.verify_on_hints(&mut subscription)) => match never {},
                }
            } else {
                woken.await
            };
            if woken.is_err() {
                gap = gap.saturating_mul(2);
            }
            let due = now + pause + core.timing.attempt;
            now = core.now();
            self.attention.polled(silent_since, due, now);
        }
    }

    /// Uses the offer that a pulse at `now` found, once.
    async fn admitted(&self, admission: Admission, now: Instant) -> Result<Option<Claim<'core>>> {
        match admission {
            Admission::Turn(turn) => self.begin(turn, now).await,
            Admission::Join(hold) => {
                let share = readers::join(self.core, &hold, self.report);
                Ok(share.map(|share| Claim::new(self.core, hold, share)))
            }
            Admission::Hold(offered) => Ok(self.accept(offered, now)),
        }
    }

    /// Asks the store for the name in a turn that began at `now`.
    async fn begin(&self, turn: Turn, now: Instant) -> Result<Option<Claim<'core>>> {
        if mode::can_seek(self.mode) && !self.limit.is_once() {
            return Box::pin(self.seek(turn, now)).await;
        }
        let asking = pin!(self.ask_store(turn, now));
        self.core.life.unless_closed(asking).await
    }

    /// Asks the store for permits, until it grants them or another call hands a hold off.
    async fn seek(&self, turn: Turn, now: Instant) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        let mut handed_off = turn.seek(self.options);
        let asked = {
            let asking = pin!(self.ask_store(turn, now));
            let asking = pin!(core.life.unless_closed(asking));
            tokio::select! {
                biased;
                asked = asking => asked,
                // A request that is not answered yet is left to the engine.
                Ok(Some(offered)) = &mut handed_off => return Ok(self.accept(offered, core.now())),
            }
        };
        match asked {
            // A hold that was handed off as well goes to the next waiter.
            Ok(Some(claim)) => Ok(Some(claim)),
            other => match handed_off.try_recv() {
                Ok(Some(offered)) => Ok(self.accept(offered, core.now())),
                Ok(None) | Err(_) => other,
            },
        }
    }

    fn accept(&self, offered: HandedOff, now: Instant) -> Option<Claim<'core>> {
        handoff::accept(self.core, offered, self.report, now).map(|hold| Claim::of(self.core, hold))
    }

    /// Asks the store until it grants the name, and begins a hold with the grant. Returns `None` if the name is held and
    /// this call asks only once, or if the turn was reclaimed because its steps took too long.
    async fn ask_store(&self, mut turn: Turn, now: Instant) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        let mut guard = AcquireGuard::new(core, self.target(), core.draw_holder());
        let mut subscription = Subscription::NotSubscribed;
        let mut unanswered = Unanswered::default();
        let mut now = self.wait_to_ask(&mut turn, &mut subscription, guard.holder(), now).await;
        loop {
            if let Some(set) = self.set {
                set.arrive().await;
                now = core.now();
            }
            core.life.check()?;
            // Silence counts from the first unanswered request, including those of earlier turns,
            // but not during pauses, nor from before this call, or before it was polled again.
            let Some(since) = turn.asked(now, core.timing.step_due(now)) else { return Ok(None) };
            unanswered.not_before(self.attention.since());
            let since = unanswered.since(since.max(self.attention.since()));
            guard.send(self.request(guard.holder()), self.set, now);
            self.note_ask(&turn, &subscription, now + UNANSWERED.min(core.timing.attempt));
            let Landed { verdict, due } = self.answer(&turn, pin!(guard.land()), now, since).await;
            let Some(verdict) = verdict else {
                let silent = answers::silent(core, self.name);
                report::count_failure(core, Operation::Acquire, now, 1);
                return Err(silent);
            };
            report::count_answer(core, Operation::Acquire, &verdict, was_refused, now, 1);
            match verdict {
                Ok(Acquired::Granted { sent, fence, reached, oldest }) => {
                    let now = core.now();
                    match self.keep(&turn, sent, now) {
                        GrantUse::Hold => {
                            let grant = Grant {
                                options: self.options.clone(),
                                scope: HandoffScope::of(self.fair, sent, oldest),
                                ..guard.into_grant(turn, sent, fence, reached, now)
                            };
                            let hold = Hold::begin(core, grant, self.report);
                            return Ok(Some(Claim::of(self.core, hold)));
                        }
                        GrantUse::Excluded => {
                            core.queue.answered(self.name);
                            guard.release_later(sent);
                            return Ok(None);
                        }
                        GrantUse::AskAgain(why) => {
                            tracing::debug!(why, "grant released; asking again");
                            // It was ready in time, if this future was not polled.
                            self.attention.polled(Some(since), due, core.now());
                            guard.release_later(sent);
                            guard = AcquireGuard::new(core, self.target(), core.draw_holder());
                            // The next one may be ready at once, and too late again.
                            yield_now().await;
                        }
                    }
                }
                Ok(Acquired::Held { closed, lingers, .. }) if self.limit.is_once() => {
                    self.ask_to_yield(lingers);
                    self.report.refused_by_store(closed);
                    core.queue.answered(self.name);
                    return Ok(None);
                }
                Ok(Acquired::Held { remaining, lingers, .. }) => {
                    self.ask_to_yield(lingers);
                    self.report.waits(|| 0);
                    unanswered.answered();
                    turn.held_elsewhere();
                    let until = self.ask_again_at(&turn, &subscription, now, remaining);
                    self.wait_to_retry(&turn, &mut subscription, guard.holder(), until).await;
                }
                Ok(Acquired::NotYours(_)) => {
                    return Err(Error::protocol(
                        "the store answered an outermost acquire as a nested one",
                    ));
                }
                Err(error) if error.is_unavailable() && !self.limit.is_once() => {
                    self.attention.polled(Some(since), due, core.now());
                    unanswered.not_before(self.attention.since());
                    let Some(gap) = unanswered.gap(core, since) else {
                        return Err(guard.failed(error));
                    };
                    tracing::debug!(%error, "acquire failed; retrying");
                    let due = core.now() + gap + core.timing.attempt;
                    turn.set_due(due);
                    sleep(gap).await;
                    self.attention.polled(Some(since), due, core.now());
                }
                Err(error) => {
                    // A refusal is an answer too.
                    if !error.is_unavailable() {
                        core.queue.answered(self.name);
                    }
                    return Err(guard.failed(error));
                }
            }
            now = core.now();
        }
    }

    /// Asks the manager that has the name to give it up, if it rests there.
    fn ask_to_yield(&self, lingers: bool) {
        if lingers && mode::can_rest(self.mode) {
            self.core.submit(Job::AskToYield(self.name.clone()));
        }
    }

    /// Waits for the answer to a request of `now`, in a silence that began at `since`, until that lasts too long. Meanwhile it
    /// moves the turn's due time on, which shows that this future is polled.
    async fn answer(
        &self,
        turn: &Turn,
        mut request: Pin<&mut impl Future<Output = Result<Acquired>>>,
        mut now: Instant,
        since: Instant,
    ) -> Landed {
        let core = self.core;
        let until = || since.max(self.attention.since()) + self.silence_limit();
        loop {
            let left = until().saturating_duration_since(now);
            let limit = left.min(core.timing.attempt * 2);
            let due = core.timing.step_due(now);
            let verdict = within(limit, request.as_mut()).await;
            if verdict.is_some() {
                return Landed { verdict, due };
            }
            now = core.now();
            self.attention.polled(Some(since), due, now);
            if now >= until() {
                return Landed { verdict: None, due };
            }
            turn.set_due(core.timing.step_due(now));
        }
    }

    /// Keeps the turn for the hold of a grant that arrived at `now`, if the grant is of use.
    fn keep(&self, turn: &Turn, sent: Instant, now: Instant) -> GrantUse {
        if self.core.timing.stale(sent, now) {
            Rare::GrantTooLate.reached();
            return GrantUse::AskAgain("it came too late");
        }
        match turn.keep(sent, true) {
            TurnOutcome::Kept => GrantUse::Hold,
            TurnOutcome::Excluded => GrantUse::Excluded,
            TurnOutcome::Forced => GrantUse::AskAgain("the name was forced open meanwhile"),
        }
    }

    /// Waits for a hint, for the end of the turn, or until the holder's time to live or the poll interval ends. Meanwhile
    /// it moves the turn's due time on, which shows that this future is polled.
    async fn wait_to_retry<'a>(
        &'a self,
        turn: &Turn,
        subscription: &mut Subscription<'a>,
        holder: HolderId,
        until: Instant,
    ) {
        let core = self.core;
        // A store may wake it too often, and refuse each request at once.
        consume_budget().await;
        loop {
            let now = core.now();
            let step = until.saturating_duration_since(now).min(core.timing.ttl / 4);
            let due = now + step + core.timing.attempt;
            turn.set_due(due);
            if step.is_zero() {
                break;
            }
            let is_hint = tokio::select! {
                biased;
                is_hint = subscription.wait(core, self.target(), holder, step) => is_hint,
                // Then there is nothing to ask for.
                () = turn.ended() => true,
            };
            self.attention.polled(None, due, core.now());
            if is_hint {
                break;
            }
        }
        // A call of this process may have released permits while others wait elsewhere.
        if mode::can_seek(self.mode)
            && let Some(time) = core.queue.not_before(self.name)
        {
            self.let_others_go_first(turn, time).await;
        }
    }

    /// Lets waiters elsewhere go first until `time`.
    async fn let_others_go_first(&self, turn: &Turn, time: Instant) {
        Rare::PauseCut.reached_if(|| time > self.start + self.limit.longest_pause());
        let time = time.min(self.start + self.limit.longest_pause());
        turn.set_due(time + self.core.timing.attempt);
        self.core.clock().sleep_until(time).await;
    }

    /// Returns when the store is asked again that has refused the request of `sent`, if no hint comes before. Records that
    /// for the call that asks after this one.
    fn ask_again_at(
        &self,
        turn: &Turn,
        subscription: &Subscription<'_>,
        sent: Instant,
        remaining: Option<Duration>,
    ) -> Instant {
        let now = self.core.now();
        let bound = self.core.settings.max_poll_interval;
        let until =
            now + remaining.map_or(bound, |left| bound.min(left.saturating_add(AFTER_EXPIRY)));
        // A release since then may wake no waiter. If permits change hands faster than the store subscribes, none of the
        // calls hears one.
        let took = now.saturating_duration_since(sent);
        let next_call = if subscription.may_miss() { until.min(now + took) } else { until };
        self.note_ask(turn, subscription, next_call);
        until
    }

    /// Records the last request for the call that asks after this one, if a hold is handed off to this one.
    fn note_ask(&self, turn: &Turn, subscription: &Subscription<'_>, again_at: Instant) {
        if !self.limit.is_once() && mode::can_seek(self.mode) {
            turn.note_ask(PermitsRequest {
                mode: self.mode,
                wakeups: subscription.wakeups(),
                again_at,
            });
        }
    }

    /// Waits before the first request of a turn that began at `now`: as the call before it would, and for waiters
    /// elsewhere. Returns the time after that.
    async fn wait_to_ask<'a>(
        &'a self,
        turn: &mut Turn,
        subscription: &mut Subscription<'a>,
        holder: HolderId,
        mut now: Instant,
    ) -> Instant {
        if let Some(last) = turn.last_ask.take_if(|_| !self.limit.is_once()) {
            Box::pin(self.wait_as_before(turn, subscription, holder, last)).await;
            now = self.core.now();
        }
        turn.set_fair(self.fair);
        if let Some(time) = turn.not_before() {
            self.let_others_go_first(turn, time).await;
            now = self.core.now();
        }
        now
    }

    /// Goes on in place of the call that asked before, until the store is to be asked again.
    async fn wait_as_before<'a>(
        &'a self,
        turn: &Turn,
        subscription: &mut Subscription<'a>,
        holder: HolderId,
        last: PermitsRequest,
    ) {
        // Those of another runtime might come late: then this call subscribes itself.
        if let Some(wakeups) = last.wakeups.as_ref().filter(|wakeups| wakeups.is_of_this_runtime())
        {
            *subscription = Subscription::Subscribed(Arc::clone(wakeups));
        }
        // The store may grant another number of permits.
        if last.mode == self.mode {
            let again_at = last.again_at;
            turn.note_ask(last);
            self.wait_to_retry(turn, subscription, holder, again_at).await;
        }
    }

    /// Takes over the hold that is before this call, which makes one attempt, if it rests. One that does not suit is released,
    /// and the release awaited, as that of a hold of the same handle.
    async fn try_behind(&self) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        let Some(hold) = core.queue.resting(self.name) else {
            return self.wait_out_silence().await;
        };
        let mut waiter = self.waiter();
        let mut now = core.now();
        let mut admitted = waiter.pulse(now);
        if admitted.is_err() {
            handoff::end_rest(core, &hold);
            now = core.now();
            admitted = waiter.pulse(now);
        }
        if admitted.is_err() && timeout(core.timing.attempt, hold.until_over()).await.is_ok() {
            now = core.now();
            admitted = waiter.pulse(now);
        }
        match admitted {
            Ok(admission) => self.admitted(admission, now).await,
            Err(_) => self.check_modes().map(|()| None),
        }
    }

    /// Waits for the answer to a request of another call of this process, as long as for an own
    /// one: a long silence may come from a stall of this process. Returns `None` if the store is
    /// not silent: then another call has the name, or is about to.
    async fn wait_out_silence(&self) -> Result<Option<Claim<'core>>> {
        let core = self.core;
        let until = self.start + self.silence_limit();
        let mut waiter = self.waiter();
        loop {
            let now = core.now();
            core.life.check()?;
            let silence = core.queue.silence(self.name);
            let lasts = |since| now.saturating_duration_since(since) >= core.timing.attempt;
            if !silence.is_some_and(|silence| lasts(silence.since)) {
                return self.check_modes().map(|()| None);
            }
            if until <= now {
                return Err(answers::silent(core, self.name));
            }
            if let Ok(admission) = waiter.pulse(now) {
                Rare::TryOutlastedSilence.reached();
                return self.admitted(admission, now).await;
            }
            let pause = FIRST_GAP.min(until.saturating_duration_since(now));
            // The answer that ends the silence may also have let us ask.
            if timeout(pause, waiter.woken()).await.is_ok() {
                let now = core.now();
                if let Ok(admission) = waiter.pulse(now) {
                    Rare::TryOutlastedSilence.reached();
                    return self.admitted(admission, now).await;
                }
            }
        }
    }

    /// Fails if this process uses the name as another kind of lock: the store would refuse the request, which waits here.
    fn check_modes(&self) -> Result<()> {
        let others = self.core.queue.used_otherwise(self.name, self.mode);
        // One that ends soon, or never was, is of no account.
        let is_sure =
            |hold: &Option<Arc<Hold>>| hold.as_ref().is_none_or(|hold| hold.is_believed());
        let other = others.iter().find(|(_, hold)| is_sure(hold));
        other.map_or(Ok(()), |(mode, _)| Err(mode.kind().wrong_type()))
    }

    /// Warns of a wait that may never end: the call that waits may be nested in one that holds the name. Returns
    /// false if this process does not hold it.
    fn report_own_hold(&self, now: Instant) -> bool {
        if self.core.queue.holds_of(self.name).is_empty() {
            return false;
        }
        let waited = now.saturating_duration_since(self.start);
        trace::later(Level::WARN, || {
            let name = self.name.clone();
            let waited_ms = waited.as_millis() as u64;
            move || {
                tracing::warn!(
                    name = name.as_str(),
                    waited_ms,
                    "waiting for a name that this process holds; a nested call needs the handle of its caller"
                )
            }
        });
        true
    }

    /// Renews the hold ahead at each hint: it may have been forced open elsewhere.
    async fn verify_on_hints<'a>(&'a self, subscription: &mut Subscription<'a>) -> Infallible {
        let core = self.core;
        loop {
            let subscribed = subscription.is_subscribed();
            subscription.heard(core, self.target(), None).await;
            // Neither the subscription nor a release of this process, which a new grant follows, is
            // worth a renewal: a hold is not handed off during one.
            let holds = if subscribed { core.queue.holds_of(self.name) } else { Vec::new() };
            for hold in holds {
                if hold.chain_began() + FIRST_GAP < core.now() {
                    renew::renew_now(core, &hold).await;
                }
            }
        }
    }

    /// Returns the time to wait for an answer before the store counts as silent.
    fn silence_limit(&self) -> Duration {
        // A request may have to wait for the request before it.
        let timing = &self.core.timing;
        if self.limit.is_once() { timing.attempt * 2 } else { timing.ttl }
    }

    fn target(&self) -> Target {
        Target::new(self.name.clone(), self.mode)
    }

    fn request(&self, holder: HolderId) -> Acquire {
        let core = self.core;
        Acquire::new(self.target(), holder, core.ttl_of(self.options), core.timing.attempt)
            .with_fencing(core.fencing(self.mode))
            .with_arrival(self.arrival())
    }

    /// Returns its arrival, for the order of the waiters of all processes.
    fn arrival(&self) -> Option<Arrival> {
        let core = self.core;
        let ordered = match self.mode {
            Mode::Exclusive => self.fair,
            Mode::Read | Mode::Write => !self.limit.is_once(),
            Mode::Permits { .. } => false,
        };
        ordered.then(|| {
            if self.limit.is_once() {
                // It passes no waiter, and the store keeps nothing of it.
                return Arrival::new(Duration::ZERO, Duration::ZERO);
            }
            let waited = core.now().saturating_duration_since(self.start);
            let left = self.limit.longest_wait().saturating_sub(waited);
            Arrival::new(waited, core.arrival_kept(self.mode).min(left))
        })
    }

    /// Returns the guard of this call in the queue of this process.
    fn waiter(&self) -> WaiterGuard<'_> {
        WaiterGuard::new(&self.core.queue, self.name, self.mode)
            .arrived(self.start, self.fair)
            .with(self.options)
    }
}
