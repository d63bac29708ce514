//! Does what callers have left: releases names without a holder (dropped leases, abandoned acquires, unknown outcomes), records
//! counts, awaits changes of the mode, deletes descriptions, gives up arrivals, and wakes what the watchdog leaves to it.

use crate::clock::Instant;
use crate::engine::acquire::acquire_guard::AcquireGuard;
use crate::engine::acquire::turn::Turn;
use crate::engine::hold::readers::ModeChange;
use crate::engine::hold::record::Record;
use crate::engine::hold::release::{ReleaseAnswer, release_to_the_end, yield_to_remote};
use crate::engine::hold::{describe, handoff};
use crate::engine::machine::mode;
use crate::engine::machine::name::TurnOutcome;
use crate::engine::shared::calls::{self, caught, in_time};
use crate::engine::shared::core::Core;
use crate::engine::shared::job::{Job, Sweep};
use crate::engine::shared::lifecycle::Stage;
use crate::engine::shared::line;
use crate::error::Error;
use crate::store::{Acquired, Release, Released, StoreFuture, Target};
use crate::util::reached::Rare;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time per sweep over which the sweeps of an outage are spread after a reconnect: a server
/// that has just come back must not get all of them at once.
const AFTER_RECONNECT: Duration = Duration::from_micros(100);

/// A server that stood still for longer than T runs late what it was sent before, when it goes on. So a sweep that was not
/// answered goes on for so many T more.
const STANDSTILL: u32 = 10;
/// Unless there are more sweeps than this: each costs about 1 kB.
const MOST_UNANSWERED: u32 = 1000;

/// A job of a task. It is created before the task is spawned, so that the job is submitted again if
/// the runtime ends before the task's first poll.
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
            Some(Job::Wake(wakes)) => wakes.run(core),
            Some(Job::Release(hold)) => release_to_the_end(core, &hold, None).await,
            Some(Job::Record { name, holder }) => Record::new(core, name, holder).run().await,
            Some(Job::FinishRelease { hold, verdict }) => {
                release_to_the_end(core, &hold, Some(verdict)).await;
            }
            Some(Job::FinishChange { hold, sent, verdict }) => {
                let mut change = ModeChange::resume(core, &hold, sent, verdict);
                let verdict = change.land().await;
                // The caller is gone.
                let _ = change.end(verdict);
            }
            Some(Job::FinishAcquire { sweep, verdict }) => {
                finish_acquire(core, sweep, verdict).await
            }
            Some(Job::Sweep(sweep)) => Sweeping::new(core, sweep).run().await,
            Some(Job::GiveUpArrival { target, holder, next }) => {
                line::give_up(core, target, holder, next).await
            }
            Some(Job::AskToYield(name)) => calls::ask_to_yield(core, name).await,
            Some(Job::DeleteDescription { target, holder }) => {
                describe::delete(core, target, holder).await;
            }
        }
    }
}

/// Waits for the answer to a request that no call waits for. A grant goes to a call of this process that waits for as many
/// permits, and is released if there is none.
async fn finish_acquire(core: &Arc<Core>, sweep: Sweep, verdict: StoreFuture<Acquired>) {
    let target = sweep.target.clone();
    let mut attempt = AcquireGuard::resume(core, sweep, verdict);
    let verdict = attempt.land().await;
    if verdict.is_ok() {
        // Other holds and waiters of the name may be there, and nothing else reports this.
        core.queue.answered(&target.name);
    }
    let Ok(Acquired::Granted { sent, fence, reached, .. }) = verdict else { return };
    let Some(turn) = turn_for_a_waiter(core, &target, sent) else {
        Rare::AbandonedReleased.reached();
        return attempt.release_later(sent);
    };
    Rare::AbandonedHandedOff.reached();
    handoff::offer(core, attempt.into_grant(turn, sent, fence, reached, core.now()));
}

/// Returns a turn for a grant of permits, if a call of this process wants permits too: the one that sent the request may have
/// been handed a permit meanwhile, so that the next one has not asked.
fn turn_for_a_waiter(core: &Arc<Core>, target: &Target, sent: Instant) -> Option<Turn> {
    let now = core.now();
    let is_awaited = mode::can_seek(target.mode) && core.queue.is_awaited_here(&target.name);
    if !is_awaited || core.timing.stale(sent, now) || core.life.is_closed() {
        return None;
    }
    let turn = Turn::seize(&core.queue, &target.name, target.mode, now);
    (turn.keep(sent, false) == TurnOutcome::Kept).then_some(turn)
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            Rare::JobReturned.reached();
            self.core.submit(job);
        }
    }
}

/// A running sweep. If its runtime ends, dropping it submits it again.
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
            release_all(self.core, sweep).await;
        }
        self.sweep = None;
    }
}

impl Drop for Sweeping<'_> {
    fn drop(&mut self) {
        self.core.sweeps.fetch_sub(1, Ordering::Relaxed);
        if let Some(sweep) = self.sweep.take() {
            Rare::SweepReturned.reached();
            self.core.submit(Job::Sweep(sweep));
        }
    }
}

/// Releases the name now, after every reconnect and every T/10, or sooner after a failure,
/// until a late grant would have expired by itself and the store has answered. A release that finds
/// no grant does not end the sweep: the grant may still arrive.
async fn release_all(core: &Arc<Core>, sweep: &Sweep) {
    let Some(until) = sweep.until else { return };
    if let Some(from) = sweep.from {
        tokio::select! {
            biased;
            () = core.clock().sleep_until(from) => {}
            () = core.life.until(Stage::Ending) => return,
        }
    }
    if sweep.arrival_recorded {
        let next = line::open(core, &sweep.target, sweep.holder);
        line::give_up(core, sweep.target.clone(), sweep.holder, next).await;
    }
    loop {
        let mut reconnected = std::pin::pin!(core.reconnected.notified());
        reconnected.as_mut().enable();
        let target = sweep.target.clone();
        let request = Release::new(target, sweep.holder, 0, core.timing.attempt);
        // A grant may still arrive after a release that was sent before `until`.
        let sent = core.now();
        let last = sent >= until;
        let mut request = calls::release(core, request);
        let verdict = in_time(core.timing.attempt * 2, caught(&mut request)).await;
        if let Ok(Released::Done { listeners }) = verdict {
            Rare::SweepFoundGrant.reached();
            // No caller had it, but those elsewhere have waited for it as for any other.
            let release = ReleaseAnswer { sent, now: core.now(), listeners, ours: Duration::ZERO };
            yield_to_remote(core, &sweep.target.name, sweep.target.mode, release);
            if sweep.unknown == 1 {
                return;
            }
        }
        let unanswered = verdict.as_ref().is_err_and(Error::is_unavailable)
            && core.now() < until + core.timing.ttl * STANDSTILL
            && core.sweeps.load(Ordering::Relaxed) <= MOST_UNANSWERED;
        if last && !unanswered || core.life.is_ending() {
            return;
        }
        // Spread by jitter: there may be one sweep for each request of an outage.
        let longest = core.timing.sweep_gap(verdict.is_err());
        let gap = longest.mul_f64(1.0 - core.jitter() / 4.0);
        let after_reconnect = async {
            reconnected.await;
            Rare::SweepAfterReconnect.reached();
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
            () = core.life.until(Stage::Ending) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::shared::core::core_in_memory;
    use crate::store::{HolderId, Name};
    use uuid::Uuid;

    #[test]
    fn job_whose_runtime_ends_before_its_first_poll_returns() {
        let core = core_in_memory();
        let target = Target::exclusive(Name::new("n").expect("a name"));
        let sweep = Sweep::new(target, HolderId::new(Uuid::new_v4(), 1));
        let before = Rare::JobReturned.count();
        drop(Work::new(&core, Job::Sweep(sweep)).run());
        assert!(Rare::JobReturned.count() > before);
        let mut queues = core.work_queues();
        let jobs = &mut queues.as_mut().expect("no runtime has them").jobs;
        assert!(matches!(jobs.try_recv(), Ok(Job::Sweep(_))));
    }
}
