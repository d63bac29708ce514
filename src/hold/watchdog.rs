//! Renews what is held, in batches, and fires the tokens of what could not be renewed.
//!
//! One loop per engine. It wakes for the hold that is due first, never for each hold, and hands
//! I/O to tasks of its own, so that no store, however slow, keeps it from firing a token at `C`.

use super::Hold;
use super::engine::Core;
use super::reaper::{Job, Work};
use super::state::Due;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::store::{Renewal, Renewed};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// A lease and the attempt to renew it.
type Renewing = (Arc<Hold>, u32);

pub(crate) async fn run(core: &Arc<Core>, inbox: &mut mpsc::UnboundedReceiver<Job>) {
    let mut tasks = JoinSet::new();
    let _alarm = Alarm(core);
    let reconnects = core.store.reconnects();
    loop {
        tokio::select! {
            () = core.schedule.wait(core.clock()) => {}
            Some(job) = inbox.recv() => {
                tasks.spawn(Work::new(core, job).run());
                continue;
            }
            Some(_) = tasks.join_next() => continue,
            () = reconnected(reconnects.as_deref()) => {
                core.reconnected.notify_waiters();
                verify_all(core, &mut tasks);
            }
            () = core.stop.cancelled() => break,
        }
        tick(core, &mut tasks);
    }
    end(core, inbox, tasks).await;
}

/// Nobody renews when the loop has panicked, so all holders are told.
struct Alarm<'a>(&'a Arc<Core>);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.closed.cancel();
            for hold in self.0.queue.holds() {
                hold.lose(self.0, Loss::Closed);
            }
            self.0.stopped.cancel();
        }
    }
}

async fn reconnected(reconnects: Option<&Notify>) {
    match reconnects {
        Some(reconnects) => reconnects.notified().await,
        None => std::future::pending().await,
    }
}

/// Does what is due.
fn tick(core: &Arc<Core>, tasks: &mut JoinSet<()>) {
    let now = core.now();
    let mut renewing = Vec::new();
    for (at, hold) in core.schedule.due(now) {
        match hold.tick(core, at) {
            Due::Nothing => {}
            Due::Renew { attempt } => renewing.push((hold, attempt)),
            Due::Settle => {
                tasks.spawn(Work::new(core, Job::Settle(hold)).run());
            }
        }
    }
    fill_up(core, &mut renewing, now);
    send(core, tasks, renewing);
}

/// Fills the last batch with leases that are due soon anyway: a call costs the same for one
/// as for a hundred.
fn fill_up(core: &Arc<Core>, renewing: &mut Vec<Renewing>, now: Instant) {
    let batch = core.store.capabilities().renewal_batch.max(1);
    let room = (batch - renewing.len() % batch) % batch;
    if renewing.is_empty() || room == 0 {
        return;
    }
    let soon = now + core.timing.period / 5;
    for hold in core.schedule.soon(soon, room) {
        if let Due::Renew { attempt } = hold.renew_early(core) {
            renewing.push((hold, attempt));
        }
    }
}

/// A connection was lost and made anew: the server may have restarted without our leases.
fn verify_all(core: &Arc<Core>, tasks: &mut JoinSet<()>) {
    let mut renewing = Vec::new();
    for hold in core.schedule.all() {
        if let Due::Renew { attempt } = hold.renew_early(core) {
            renewing.push((hold, attempt));
        }
    }
    send(core, tasks, renewing);
}

fn send(core: &Arc<Core>, tasks: &mut JoinSet<()>, renewing: Vec<Renewing>) {
    // Those with little time left apart: their attempt must be short, that of the others need not.
    let (short, long): (Vec<_>, Vec<_>) =
        renewing.into_iter().partition(|(hold, _)| hold.remaining(core) < core.timing.attempt);
    let size = core.store.capabilities().renewal_batch.max(1);
    for mut renewing in [short, long] {
        while !renewing.is_empty() {
            let rest = renewing.split_off(size.min(renewing.len()));
            let batch = std::mem::replace(&mut renewing, rest);
            tasks.spawn(renew(Arc::clone(core), batch));
        }
    }
}

async fn renew(core: Arc<Core>, mut batch: Vec<Renewing>) {
    // Since it was due, the thread may have been stopped: nothing is sent after `C`, and no attempt
    // outlives the first `C` among them.
    let now = core.now();
    batch.retain(|(hold, _)| !hold.remaining(&core).is_zero());
    let left = batch.iter().map(|(hold, _)| hold.remaining(&core)).min();
    let Some(timeout) = left.map(|left| left.min(core.timing.attempt)) else { return };

    let mut requests = Vec::with_capacity(batch.len());
    for (hold, _) in &batch {
        requests.push(Renewal {
            name: hold.name.clone(),
            token: hold.token,
            ttl: core.timing.ttl,
            fence_retention: fence_retention(&core, hold, now),
        });
    }
    let kept: Vec<bool> =
        requests.iter().map(|request| request.fence_retention.is_some()).collect();

    let renewed = tokio::select! {
        renewed = core.store.renew(requests, timeout) => renewed,
        // A store that keeps its contract answers before.
        () = core.clock().sleep_until(now + timeout * 2) => {
            Err(Error::new(ErrorKind::Unavailable, "the store did not answer in time"))
        }
    };
    let (sent, mut verdicts) = match renewed {
        Ok(Renewed { sent, verdicts }) if verdicts.len() == batch.len() => {
            (sent, verdicts.into_iter())
        }
        Ok(_) => {
            let error = Error::invalid("the store answered for a different number of leases");
            (now, repeat(error, batch.len()).into_iter())
        }
        Err(error) => (now, repeat(error, batch.len()).into_iter()),
    };
    for ((hold, attempt), kept) in batch.into_iter().zip(kept) {
        if let Some(verdict) = verdicts.next() {
            hold.renewed(&core, (attempt, sent, kept), verdict);
        }
    }
}

fn repeat<T>(error: Error, times: usize) -> Vec<Result<T>> {
    (0..times).map(|_| Err(error.clone())).collect()
}

/// The store's memory of the last fencing token must not end during a long hold.
fn fence_retention(core: &Core, hold: &Hold, now: Instant) -> Option<Duration> {
    let retention = core.settings.fencing?.retention?;
    let old = now.saturating_duration_since(hold.fence_kept()) >= retention / 4;
    (hold.fence.is_some() && old).then_some(retention)
}

/// Nobody needs the engine any more: finish what was begun, within bounds, and disconnect.
async fn end(core: &Arc<Core>, inbox: &mut mpsc::UnboundedReceiver<Job>, mut tasks: JoinSet<()>) {
    let until = core.now() + core.timing.attempt * 2;
    let until = core.closing_until.get().map_or(until, |closing| until.min(*closing));
    let finish = async {
        loop {
            while let Ok(job) = inbox.try_recv() {
                tasks.spawn(Work::new(core, job).run());
            }
            if tasks.join_next().await.is_none() && inbox.is_empty() {
                break;
            }
        }
    };
    tokio::select! {
        () = finish => {}
        () = core.clock().sleep_until(until) => {}
    }
    let until = core.now() + core.timing.attempt;
    tokio::select! {
        () = core.store.close() => {}
        () = core.clock().sleep_until(until) => {}
    }
    // What is still not released will not be; its turn must not keep the queue alive.
    let error = Error::new(ErrorKind::Unavailable, "the engine has ended");
    for hold in core.queue.holds() {
        hold.give_up(core, &error);
    }
    core.stopped.cancel();
}
