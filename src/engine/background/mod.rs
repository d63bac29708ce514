//! Runs the calls of the watchdog and the jobs of the callers: everything that calls the store.
//!
//! One loop per engine. It spawns a task for each call and job, so that none waits for another. The
//! watchdog needs none of them to fire a token. It reads the inbox of the manager, too: see [`steal`](super::steal).

pub(super) mod jobs;
pub(crate) mod presence;

use super::hold::{describe, handoff, renew};
use super::machine::hold::{Phase, SentRenewal, State};
use super::shared::calls::{self, caught, panicked};
use super::shared::core::{Core, WorkQueues};
use super::shared::hold::Hold;
use super::shared::job::Job;
use super::shared::lifecycle::Stage;
use super::shared::schedule::{Batch, Group, Renewing, ScheduledCall};
use super::shared::{answers, report};
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::{Event, EventKind, Operation};
use crate::store::{
    self, Absence, Hint, RenewBatch, RenewCall, Renewal, Renewed, Signal, StoreFuture, failed,
};
use crate::util::reached::Rare;
use crate::util::trace;
use jobs::Work;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::Level;

/// The most descriptions of holds that are written at one time.
const WRITERS: usize = 8;

/// Runs the worker until the engine is no longer needed, and ends the engine.
pub(super) async fn run(core: &Arc<Core>, queues: &mut WorkQueues) {
    let mut tasks = JoinSet::new();
    let mut writers = JoinSet::new();
    let reconnects = core.store.reconnects();
    let mut hints = calls::subscribe_inbox(core);
    let mut described = std::pin::pin!(presence::keep_described(core));
    loop {
        tokio::select! {
            // Renewals come first and new jobs last: a flood of jobs must not starve the rest.
            biased;
            Some(calls) = queues.calls.recv() => {
                for call in calls {
                    send(core, &mut tasks, call);
                }
            }
            () = reconnected(reconnects.as_ref()) => {
                core.reconnected.notify_waiters();
                core.verify.notify_one();
                report::count(core, core.now(), EventKind::Reconnected, Event::new).finish();
            }
            Some(hint) = next(hints.as_mut()) => follow(core, &mut tasks, hint),
            Some(_) = tasks.join_next() => {}
            Some(_) = writers.join_next() => {}
            () = &mut described => {}
            Some(hold) = queues.to_write.recv(), if writers.len() < WRITERS => {
                // Here and not in the task, which its runtime can drop before the first poll.
                if let Some(hold) = describe::still_due(core, &hold) {
                    let core = Arc::clone(core);
                    // What fails is tried again at the next renewal.
                    writers.spawn(async move { drop(describe::write(&core, &hold).await) });
                }
            }
            Some(job) = queues.jobs.recv() => drop(tasks.spawn(Work::new(core, job).run())),
            () = core.life.until(Stage::Ending) => break,
        }
    }
    end(core, &mut queues.jobs, tasks).await;
}

async fn reconnected(reconnects: Option<&Signal>) {
    match reconnects {
        Some(reconnects) => reconnects.recv().await,
        None => std::future::pending().await,
    }
}

async fn next(hints: Option<&mut store::Inbox>) -> Option<Hint> {
    hints?.recv().await
}

/// Follows a hint of another manager: asks the store about the holds in question, marks them as wanted, or ends
/// their rest.
fn follow(core: &Arc<Core>, tasks: &mut JoinSet<()>, hint: Hint) {
    match hint {
        Hint::Verify(name) => {
            core.queue.doubted(&name);
            core.queue.each_hold_of(&name, |hold| {
                // Due before the task begins: it is not handed off, nor does it rest, before the store has answered.
                hold.update(core, State::renew_at);
                let core = Arc::clone(core);
                let hold = Arc::clone(hold);
                // A renewal that is in flight may have run before the act, so one more follows it.
                let limit = core.timing.attempt * 2;
                tasks.spawn(
                    async move { drop(timeout(limit, renew::renew_now(&core, &hold)).await) },
                );
            });
        }
        Hint::Want(name) => {
            core.queue.each_hold_of(&name, |hold| hold.set_wanted());
            handoff::yield_rest(core, &name);
        }
        Hint::Yield(name) => handoff::yield_rest(core, &name),
    }
}

fn send(core: &Arc<Core>, tasks: &mut JoinSet<()>, call: ScheduledCall) {
    let core = Arc::clone(core);
    tasks.spawn(async move { renew(&core, call).await });
}

/// Renews a batch, by as many calls as the store makes of it. Each is answered by itself. Without an answer a call stays in
/// the schedule, where the watchdog finds it.
pub(super) async fn renew(core: &Arc<Core>, call: ScheduledCall) {
    let now = core.now();
    let limit = call.until.saturating_duration_since(now);
    if limit.is_zero() {
        Rare::RenewalNeverSent.reached();
        // The thread has stalled since the call was due: nothing is sent after `C`.
        return;
    }
    let request = |renewing: &Renewing| {
        Renewal::new(renewing.hold.target(), renewing.hold.holder)
            .with_keep_fence(keeps_fence(core, renewing, now))
            .with_ttl(own_ttl(core, &renewing.hold))
    };
    let retention = core.settings.fencing.and_then(|fencing| fencing.retention);
    let asked = catch_unwind(AssertUnwindSafe(|| {
        let items = call.batch.iter().map(request).collect();
        let requests = RenewBatch::new(items, core.timing.ttl, limit);
        core.store.renew(requests.with_fence_retention(retention))
    }));
    let mut calls = match asked {
        Ok(calls) => calls,
        Err(_) => vec![RenewCall::new((0..call.batch.len()).collect(), failed(panicked()))],
    };
    let is_whole =
        matches!(&calls[..], [only] if only.items.iter().copied().eq(0..call.batch.len()));
    if is_whole && let Some(only) = calls.pop() {
        return answered(core, call, only.verdicts, now).await;
    }
    let mut parts = JoinSet::new();
    for (part, verdicts) in divided(core, &call, calls) {
        let core = Arc::clone(core);
        parts.spawn(async move { answered(&core, part, verdicts, now).await });
    }
    core.schedule.remove(call.key);
    while parts.join_next().await.is_some() {}
}

/// Enters the calls that a store has made of a batch into the schedule. What it has left out, or has twice, fails.
fn divided(
    core: &Core,
    call: &ScheduledCall,
    calls: Vec<RenewCall>,
) -> Vec<(ScheduledCall, StoreFuture<Renewed>)> {
    let mut rest: Vec<_> = call.batch.iter().map(Some).collect();
    let mut take = |at: usize| rest.get_mut(at).and_then(Option::take).cloned();
    let mut parts = Vec::with_capacity(calls.len());
    let mut wrong = Batch::new();
    for RenewCall { items, verdicts, .. } in calls {
        let count = items.len();
        let batch: Batch = items.into_iter().filter_map(&mut take).collect();
        if batch.len() == count {
            parts.push((batch, verdicts));
        } else {
            wrong.extend(batch);
        }
    }
    wrong.extend(rest.into_iter().flatten().cloned());
    if !wrong.is_empty() {
        parts.push((wrong, failed(wrong_number())));
    }
    let enter = |batch| ScheduledCall::new(&core.schedule, batch, call.attempt_deadline);
    parts.into_iter().map(|(batch, verdicts)| (enter(batch), verdicts)).collect()
}

/// Waits for the answer to one call of renewals that was sent at `now`, and applies its verdicts.
async fn answered(
    core: &Arc<Core>,
    ScheduledCall { batch, until, key, .. }: ScheduledCall,
    mut verdicts: StoreFuture<Renewed>,
    now: Instant,
) {
    if core.now() >= until {
        // The thread has stalled since the call was made: nothing is sent after `C`. The watchdog finds the call.
        return;
    }
    // A store that keeps its contract answers earlier.
    let limit = until.saturating_duration_since(now);
    let answer = timeout(limit * 2, caught(&mut verdicts));
    let Ok(renewals) = answer.await else {
        return report::count_failure(core, Operation::Renew, now, batch.len());
    };
    report::count_answer(core, Operation::Renew, &renewals, |_| false, now, batch.len());
    report::measure_headroom(core, &batch, &renewals);
    if let (Err(error), Some(first)) = (&renewals, batch.first()) {
        answers::note_failure(core, &first.hold.name, error);
    }

    let (sent, verdicts) = match renewals {
        Ok(Renewed { sent, verdicts }) if verdicts.len() == batch.len() => (sent, verdicts),
        Ok(_) => (now, repeat(wrong_number(), batch.len())),
        Err(error) => (now, repeat(error, batch.len())),
    };
    let answered_at = core.now();
    Rare::RenewedLate.reached_if(|| answered_at >= until);
    let jitter = core.jitter();
    let next = core.timing.renewal(sent, jitter);
    let mut group = Group::new(core, Some(next), batch.len());
    for (renewing, verdict) in batch.iter().zip(verdicts) {
        let keeps_fence = keeps_fence(core, renewing, now);
        let renewal = SentRenewal { attempt: renewing.attempt.number, sent, keeps_fence };
        renewed(core, &renewing.hold, answered_at, jitter, renewal, verdict, &mut group);
    }
    drop(group);
    core.schedule.remove(key);
}

/// Applies the verdict on the renewal of this number. `keeps_fence` says whether it extended the store's memory of the
/// fencing token. With the same jitter, holds that were renewed together are due together, and join the group.
fn renewed(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    now: Instant,
    jitter: f64,
    renewal: SentRenewal,
    verdict: Result<Option<Absence>>,
    group: &mut Group<'_>,
) {
    // The source may be of a user's type, whose drop is slow. Here it delays the worker; with the hold locked it would delay tokens.
    let verdict = verdict.map_err(|error| error.without_source());
    match &verdict {
        Ok(None) => trace::later(Level::TRACE, || {
            let name = hold.name.clone();
            move || tracing::trace!(name = name.as_str(), "renewed")
        }),
        Ok(Some(_)) => {}
        Err(error) => trace::later(Level::DEBUG, || {
            let name = hold.name.clone();
            let error = error.clone();
            move || tracing::debug!(name = name.as_str(), %error, "renewal failed")
        }),
    }
    let mut inner = hold.lock();
    match &verdict {
        Ok(_) => inner.failure = None,
        Err(error) => inner.failure = Some(error.clone()),
    }
    let verdict = match verdict {
        // The store may have made a reader of this writer already, and its answer is on its way. If not, that answer, or
        // the next renewal, shows the loss. Of a name that is free, it has made nothing.
        Ok(Some(Absence::Taken)) if hold.is_downgraded(&inner) => {
            Rare::TakenByItself.reached();
            Err(Error::new(ErrorKind::Unavailable, "the mode may have changed meanwhile"))
        }
        verdict => verdict,
    };
    if Rare::ARE_COUNTED {
        note_rare(core, &inner.state, now, &verdict);
    }
    let is_described = matches!(verdict, Ok(None)) && describe::is_due(core, hold, &inner, now);
    let unreleased = hold.update_locked(core, now, inner, Some(group), |state, now| {
        state.renewed(&core.timing, now, jitter, renewal, verdict);
        state.needs_release()
    });
    if unreleased {
        core.submit(Job::Release(Arc::clone(hold)));
    }
    if is_described {
        describe::write_later(core, hold);
    }
}

/// Counts a verdict on a renewal, if it is rare in this state of the hold.
fn note_rare(core: &Core, state: &State, now: Instant, verdict: &Result<Option<Absence>>) {
    let is_at_risk = state.phase() == Phase::AtRisk;
    let left = state.believed_until(&core.timing).saturating_duration_since(now);
    match verdict {
        Ok(None) if !state.believed() || left.is_zero() => Rare::RenewedAfterLoss.reached(),
        Ok(None) if is_at_risk => {
            Rare::Saved.reached();
            Rare::SavedAtTheLast.reached_if(|| left < core.timing.attempt);
        }
        Err(error) if error.kind() == ErrorKind::WrongType => Rare::RenewalMetWrongType.reached(),
        Err(error) => {
            Rare::DeniedAtRisk.reached_if(|| is_at_risk && error.kind() == ErrorKind::Denied)
        }
        Ok(_) => {}
    }
}

fn wrong_number() -> Error {
    Error::protocol("the store answered for a different number of leases")
}

fn repeat<T>(error: Error, times: usize) -> Vec<Result<T>> {
    (0..times).map(|_| Err(error.clone())).collect()
}

/// Returns whether it is time to extend the retention of the fencing token: the store's memory must
/// not end during a long hold.
fn keeps_fence(core: &Core, renewing: &Renewing, now: Instant) -> bool {
    let Some(retention) = core.settings.fencing.and_then(|fencing| fencing.retention) else {
        return false;
    };
    let old = now.saturating_duration_since(renewing.attempt.fence_kept) >= retention / 4;
    renewing.hold.fence.is_some() && old
}

/// Returns the time to live of a hold that has a delay.
fn own_ttl(core: &Core, hold: &Hold) -> Option<Duration> {
    let delay = hold.options.lock_delay();
    (!delay.is_zero()).then(|| core.delayed_ttl(delay))
}

/// Ends the engine: finishes its jobs within bounds, and disconnects.
async fn end(core: &Arc<Core>, jobs: &mut mpsc::UnboundedReceiver<Job>, mut tasks: JoinSet<()>) {
    let until = core.now() + core.timing.attempt * 2;
    let until = core.life.bounded(until);
    handoff::end_rests(core);
    let finish = async {
        loop {
            for _ in 0..jobs.len() {
                if let Ok(job) = jobs.try_recv() {
                    tasks.spawn(Work::new(core, job).run());
                }
            }
            if tasks.join_next().await.is_none() && jobs.is_empty() {
                break;
            }
            // When the runtime ends too, it drops spawned tasks at once; this lets it drop us
            // first.
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = async { tokio::join!(finish, presence::forget(core)) } => {}
        () = core.clock().sleep_until(until) => {}
    }
    let until = core.now() + core.timing.attempt;
    tokio::select! {
        biased;
        () = calls::close(core) => {}
        () = core.clock().sleep_until(until) => {}
    }
    // The remaining holds are not released any more; tasks may wait for their end.
    let error =
        Error::new(ErrorKind::Unavailable, "the engine ended before the release was confirmed");
    for hold in core.queue.holds() {
        hold.give_up(core, &error);
    }
    core.overruns.end();
    core.events.end();
    core.life.enter(Stage::Ended);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::shared::core::core_in_memory;

    #[tokio::test(start_paused = true)]
    async fn call_that_waited_for_its_worker_too_long_is_not_sent() {
        let core = core_in_memory();
        let call = ScheduledCall::new(&core.schedule, Batch::new(), core.now());
        let before = Rare::RenewalNeverSent.count();
        renew(&core, call).await;
        assert!(Rare::RenewalNeverSent.count() > before);
    }
}
