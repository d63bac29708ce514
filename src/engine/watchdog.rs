//! Fires the tokens of holds that were not renewed in time, and decides which holds are renewed
//! when.
//!
//! One loop per engine. It wakes for the hold that is due first, never for each hold.
//!
//! # Invariants
//!
//! 1. **The watchdog waits for nothing but the clock**: no store, no client, no subscriber of
//!    traces, no user code but the wakers of tokens and of tasks that wait on a lease. It sends its calls, and the wake-ups of
//!    calls that wait for a name, to the
//!    [`background`](super::background).
//! 2. **Calls in flight are watched too.** A call is put into the schedule before the worker has
//!    it, so a worker that stalls delays renewals, never a token.
//! 3. Only the watchdog takes holds out of the schedule when they are due.

use super::machine::hold::{DueWork, State};
use super::machine::policy::CallSite;
use super::machine::timing::Timing;
use super::shared::core::Core;
use super::shared::hold::Hold;
use super::shared::job::Job;
use super::shared::report;
use super::shared::schedule::{Batch, Group, Renewing, ScheduledCall};
use crate::clock::{Instant, Sleeper};
use crate::error::Error;
use crate::observe::EventKind;
use crate::util::reached::Rare;
use crate::util::trace;
use std::sync::Arc;
use std::time::Duration;
use tracing::Level;

/// The largest number of calls sent together, unless more are due. Larger: more calls share warm caches. Smaller: what is
/// due next waits for less that could come later.
const BURST: usize = 16;

/// Runs the watchdog. Never returns.
pub(super) async fn run(core: &Arc<Core>) {
    let mut sleeper = Sleeper::new(core.clock());
    loop {
        tokio::select! {
            // Due holds come first.
            biased;
            () = core.schedule.wait(&mut sleeper) => {}
            () = core.verify.notified() => verify_all(core),
            // After the tokens.
            () = core.overruns.wait(core.clock()) => core.overruns.act(core.now()),
        }
        tick(core);
    }
}

/// Does the work that is due.
fn tick(core: &Arc<Core>) {
    let now = core.now();
    *core.tick.lock() = Some(now);
    let due = core.schedule.due(now);
    let mut plan = RenewalPlan::new(core, now);
    if let Some((at, _)) = due.holds.first() {
        let lag = now.saturating_duration_since(*at);
        report::measure(core, || EventKind::WatchdogRan { lag });
    }
    for batch in due.batches {
        core.counters.silent(now);
        for renewing in batch.iter() {
            unanswered(core, &renewing.hold, renewing.attempt.number, &mut plan.group);
        }
    }
    plan.add(core, due.holds, State::tick);
    plan.top_up(core);
    plan.send_all(core);
    *core.tick.lock() = None;
}

/// Verifies all holds after a reconnect: the server may have restarted without them.
fn verify_all(core: &Arc<Core>) {
    let mut plan = RenewalPlan::new(core, core.now());
    let all = core.schedule.all();
    Rare::VerifiedAll.reached_if(|| !all.is_empty());
    plan.add(core, all, State::renew_or_recall);
    plan.send_all(core);
}

/// The renewals to send now.
struct RenewalPlan<'a> {
    now: Instant,
    /// What the holds wake.
    group: Group<'a>,
    /// The end of an attempt that is sent now. Holds with less time left go in calls of their own, each with others that have
    /// about as little: only theirs must be short.
    attempt_deadline: Instant,
    /// The number of renewals that one call has room for.
    size: usize,
    renewing: Batch,
    /// Holds whose release is owed to the store.
    releases: Vec<Arc<Hold>>,
}

impl<'a> RenewalPlan<'a> {
    fn new(core: &'a Core, now: Instant) -> Self {
        Self {
            now,
            group: Group::new(core, None, 0),
            attempt_deadline: now + core.timing.attempt,
            size: core.can.renewal_batch,
            renewing: Vec::new(),
            releases: Vec::new(),
        }
    }

    /// Adds holds that were taken out of the schedule and are to be renewed or released.
    fn add(
        &mut self,
        core: &Arc<Core>,
        taken: Vec<(Instant, Arc<Hold>)>,
        change: fn(&mut State, &Timing, Instant) -> DueWork,
    ) {
        for (at, hold) in taken {
            match when_due(core, &hold, at, self.now, &mut self.group, change) {
                DueWork::Nothing => {}
                DueWork::Release | DueWork::Recalled => self.releases.push(hold),
                DueWork::Renew(attempt) => self.renewing.push(Renewing { hold, attempt }),
            }
        }
    }

    /// Adds holds that are due soon anyway. It adds those due almost at once, because a burst of
    /// calls costs a third of the same calls one by one, each on cold caches. It also adds as many
    /// as the last call has room for, because one costs the same as a hundred.
    fn top_up(&mut self, core: &Arc<Core>) {
        if self.renewing.is_empty() {
            return;
        }
        let room = BURST.saturating_mul(self.size).saturating_sub(self.renewing.len());
        // A renewal is early by a 32nd part of its period, so there are 3 % more of them at most.
        let at_once = self.now + core.timing.period / 32;
        self.add(core, core.schedule.soon(at_once, room), State::begin_renewal);
        let room = (self.size - self.renewing.len() % self.size) % self.size;
        // These cost no call of their own, so they may be earlier. Further ahead, a hold is renewed more often than it needs.
        let soon = self.now + core.timing.period / 5;
        self.add(core, core.schedule.soon(soon, room), State::begin_renewal);
    }

    /// Submits the releases and the wake-ups, and sends the calls to the worker.
    fn send_all(mut self, core: &Arc<Core>) {
        for hold in self.releases {
            core.submit(Job::Release(hold));
        }
        // The store divides what is due among its calls, but for the time that each has.
        let mut calls: Vec<ScheduledCall> = Vec::new();
        let mut short: Batch = self
            .renewing
            .extract_if(.., |one| one.attempt.believed_until < self.attempt_deadline)
            .collect();
        Rare::ShortRenewal.reached_if(|| !short.is_empty());
        short.sort_by_key(|one| one.attempt.believed_until);
        let call = |batch| ScheduledCall::new(&core.schedule, batch, self.attempt_deadline);
        calls.extend(short.chunks(self.size.max(1)).map(|batch| call(batch.to_vec())));
        if !self.renewing.is_empty() {
            calls.push(call(std::mem::take(&mut self.renewing)));
        }
        if !calls.is_empty() {
            core.send(calls);
        }
        self.group.end();
    }
}

/// Returns the work that is due, after the watchdog has taken the hold out of the schedule,
/// where its time was `at`. `change` is [`State::tick`], [`State::begin_renewal`] to fill a
/// batch, or [`State::renew_or_recall`] after a reconnect.
fn when_due(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    at: Instant,
    now: Instant,
    group: &mut Group<'_>,
    change: impl FnOnce(&mut State, &Timing, Instant) -> DueWork,
) -> DueWork {
    let mut inner = hold.lock();
    if inner.scheduled != Some(at) {
        // A stale entry: the hold has ended or moved.
        return DueWork::Nothing;
    }
    inner.scheduled = None;
    let mut held = None;
    let rests = inner.state.is_resting();
    let due = hold.update_locked(core, now, inner, Some(group), |state, now| {
        held = state.warn(now);
        change(state, &core.timing, now)
    });
    if let Some((since, caller)) = held {
        warn_held(hold, now.saturating_duration_since(since), caller);
    }
    if due != DueWork::Recalled {
        return due;
    }
    let rare = if rests { Rare::RestRanOut } else { Rare::Recalled };
    rare.reached();
    group.wakes.effects.push(core.queue.recall(hold));
    DueWork::Release
}

/// Warns that the hold has been held for long.
fn warn_held(hold: &Hold, held: Duration, caller: CallSite) {
    trace::later(Level::WARN, || {
        let name = hold.name.clone();
        let fence = hold.fence;
        let held_ms = held.as_millis() as u64;
        let caller = caller.map(tracing::field::display);
        move || {
            tracing::warn!(
                name = name.as_str(),
                fence,
                held_ms,
                caller,
                "still held; is it leaked?"
            );
        }
    });
}

/// Counts a renewal as failed: no answer came in time.
fn unanswered(core: &Arc<Core>, hold: &Arc<Hold>, attempt: u32, group: &mut Group<'_>) {
    let mut inner = hold.lock();
    inner.failure.get_or_insert_with(Error::silent);
    hold.update_locked(core, core.now(), inner, Some(group), |state, now| {
        state.unanswered(&core.timing, now, core.jitter(), attempt);
    });
}
