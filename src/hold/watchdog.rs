//! Renews what is held, in batches, and fires the tokens of what could not be renewed.
//!
//! One loop per engine. It wakes for the hold that is due first, never for each hold, and hands
//! I/O to tasks of its own, so that no store, however slow, keeps it from firing a token at `C`.

use super::Hold;
use super::engine::Core;
use super::reaper::{Job, Work};
use super::state::{Attempt, Due};
use crate::clock::{Instant, Sleeper};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::store::{Renewal, Renewed};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// A hold and the attempt to renew it.
pub(super) struct Renewing {
    hold: Arc<Hold>,
    attempt: Attempt,
}

/// How many calls go out together at most, unless more are due.
const BURST: usize = 16;

/// What is renewed by one call.
pub(super) type Batch = Vec<Renewing>;

pub(crate) async fn run(core: &Arc<Core>, inbox: &mut mpsc::UnboundedReceiver<Job>) {
    let mut tasks = JoinSet::new();
    let _alarm = Alarm(core);
    let reconnects = core.store.reconnects();
    let mut sleeper = Sleeper::new(core.clock());
    loop {
        tokio::select! {
            // What is due first, and new work last: a flood of it must not keep the rest waiting.
            biased;
            () = core.schedule.wait(&mut sleeper) => {}
            () = reconnected(reconnects.as_deref()) => {
                core.reconnected.notify_waiters();
                verify_all(core, &mut tasks);
            }
            Some(_) = tasks.join_next() => continue,
            Some(job) = inbox.recv() => {
                tasks.spawn(Work::new(core, job).run());
                continue;
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
    let due = core.schedule.due(now);
    for batch in due.batches {
        for renewing in batch.iter() {
            renewing.hold.unanswered(core, renewing.attempt.number);
        }
    }
    warm(due.holds.iter().map(|(_, hold)| hold));
    let mut batch = Vec::with_capacity(due.holds.len());
    for (at, hold) in due.holds {
        match hold.tick(core, at, now) {
            Due::Nothing => {}
            Due::Renew(attempt) => batch.push(Renewing { hold, attempt }),
            Due::Settle => {
                tasks.spawn(Work::new(core, Job::Settle(hold)).run());
            }
        }
    }
    fill_up(core, &mut batch, now);
    send(core, tasks, batch, now);
}

/// Brings holds into the caches, from which they are gone after a period. Plain reads of many are waited for
/// together; the lock of each would be waited for alone.
fn warm<'a>(holds: impl Iterator<Item = &'a Arc<Hold>>) {
    black_box(holds.map(|hold| hold.warm()).fold(0, usize::wrapping_add));
}

/// Takes leases along that are due soon anyway. Those due almost at once, because a burst of calls costs a
/// third of what they cost one by one, each on cold caches; and as many as the last call has room for,
/// because it costs the same for one as for a hundred.
fn fill_up(core: &Arc<Core>, batch: &mut Batch, now: Instant) {
    if batch.is_empty() {
        return;
    }
    let size = core.store.capabilities().renewal_batch.max(1);
    let room = (BURST * size).saturating_sub(batch.len());
    let at_once = now + core.timing.period / 32;
    renew_early(core, batch, core.schedule.soon(at_once, room), now);
    let room = (size - batch.len() % size) % size;
    let soon = now + core.timing.period / 5;
    renew_early(core, batch, core.schedule.soon(soon, room), now);
}

/// A connection was lost and made anew: the server may have restarted without our leases.
fn verify_all(core: &Arc<Core>, tasks: &mut JoinSet<()>) {
    let now = core.now();
    let mut batch = Vec::new();
    renew_early(core, &mut batch, core.schedule.all(), now);
    send(core, tasks, batch, now);
}

/// Renews what was taken out of the schedule before its time.
fn renew_early(
    core: &Arc<Core>,
    batch: &mut Batch,
    taken: Vec<(Instant, Arc<Hold>)>,
    now: Instant,
) {
    warm(taken.iter().map(|(_, hold)| hold));
    batch.reserve(taken.len());
    for (at, hold) in taken {
        if let Due::Renew(attempt) = hold.renew_early(core, at, now) {
            batch.push(Renewing { hold, attempt });
        }
    }
}

fn send(core: &Arc<Core>, tasks: &mut JoinSet<()>, batch: Batch, now: Instant) {
    if !core.store.capabilities().sharded {
        return send_all(core, tasks, batch, now);
    }
    let mut shards: HashMap<usize, Batch> = HashMap::new();
    for renewing in batch {
        shards.entry(core.store.shard(&renewing.hold.name)).or_default().push(renewing);
    }
    for batch in shards.into_values() {
        send_all(core, tasks, batch, now);
    }
}

fn send_all(core: &Arc<Core>, tasks: &mut JoinSet<()>, mut long: Batch, now: Instant) {
    // Those with little time left apart: their attempt must be short, that of the others need not.
    let whole = now + core.timing.attempt;
    let short: Batch =
        long.extract_if(.., |renewing| renewing.attempt.believed_until < whole).collect();
    let size = core.store.capabilities().renewal_batch.max(1);
    for all in [short, long] {
        let mut all = all.into_iter();
        while all.len() > 0 {
            let batch: Arc<Batch> = Arc::new(all.by_ref().take(size).collect());
            // No attempt outlives the first `C` among them. Whatever becomes of the task, the watchdog looks
            // at each of them then.
            let first = batch.iter().map(|renewing| renewing.attempt.believed_until).min();
            let until = first.map_or(whole, |first| first.min(whole));
            let key = core.schedule.put(&batch, until);
            let core = Arc::clone(core);
            tasks.spawn(async move {
                // Without an answer it stays there, for the watchdog to see.
                if renew(&core, &batch, until).await {
                    core.schedule.remove(key);
                }
            });
        }
    }
}

/// Whether there was an answer, or a failure, for each of them.
async fn renew(core: &Arc<Core>, batch: &Batch, until: Instant) -> bool {
    let now = core.now();
    let timeout = until.saturating_duration_since(now);
    if timeout.is_zero() {
        // The thread was stopped since it was due: nothing is sent after `C`.
        return false;
    }
    let request = |renewing: &Renewing| Renewal {
        name: renewing.hold.name.clone(),
        token: renewing.hold.token,
        ttl: core.timing.ttl,
        fence_retention: fence_retention(core, renewing, now),
    };
    let requests: Vec<Renewal> = batch.iter().map(request).collect();
    // A store that keeps its contract answers before.
    let answer = tokio::time::timeout(timeout * 2, core.store.renew(requests, timeout));
    let Ok(renewed) = answer.await else { return false };

    let (sent, verdicts) = match renewed {
        Ok(Renewed { sent, verdicts }) if verdicts.len() == batch.len() => (sent, verdicts),
        Ok(_) => {
            let error = Error::invalid("the store answered for a different number of leases");
            (now, repeat(error, batch.len()))
        }
        Err(error) => (now, repeat(error, batch.len())),
    };
    let moment = (core.now(), core.jitter());
    let mut group = core.schedule.group(core.timing.renewal(sent, moment.1), batch.len());
    warm(batch.iter().map(|renewing| &renewing.hold));
    for (renewing, verdict) in batch.iter().zip(verdicts) {
        let kept = fence_retention(core, renewing, now).is_some();
        let attempt = (renewing.attempt.number, sent, kept);
        renewing.hold.renewed(core, moment, attempt, verdict, &mut group);
    }
    true
}

fn repeat<T>(error: Error, times: usize) -> Vec<Result<T>> {
    (0..times).map(|_| Err(error.clone())).collect()
}

/// The store's memory of the last fencing token must not end during a long hold.
fn fence_retention(core: &Core, renewing: &Renewing, now: Instant) -> Option<Duration> {
    let retention = core.settings.fencing?.retention?;
    let old = now.saturating_duration_since(renewing.attempt.fence_kept) >= retention / 4;
    (renewing.hold.fence.is_some() && old).then_some(retention)
}

/// Nobody needs the engine any more: finish what was begun, within bounds, and disconnect.
async fn end(core: &Arc<Core>, inbox: &mut mpsc::UnboundedReceiver<Job>, mut tasks: JoinSet<()>) {
    let until = core.now() + core.timing.attempt * 2;
    let until = core.closing_until.get().map_or(until, |closing| until.min(*closing));
    let finish = async {
        loop {
            for _ in 0..inbox.len() {
                if let Ok(job) = inbox.try_recv() {
                    tasks.spawn(Work::new(core, job).run());
                }
            }
            if tasks.join_next().await.is_none() && inbox.is_empty() {
                break;
            }
            // When the runtime ends too, what is spawned comes back at once; this lets it end us first.
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = finish => {}
        () = core.clock().sleep_until(until) => {}
    }
    let until = core.now() + core.timing.attempt;
    tokio::select! {
        biased;
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
