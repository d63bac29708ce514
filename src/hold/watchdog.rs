//! Renews what is held, in batches, and fires the tokens of what could not be renewed.
//!
//! One loop per engine. It wakes for the hold that is due first, never for each hold, and hands
//! I/O to tasks of its own, so that no store, however slow, keeps it from firing a token at `C`.

use super::Hold;
use super::engine::Core;
use super::reaper::{Job, Work};
use super::round::{Confirmed, Open, Round};
use super::schedule::Key;
use super::state::{Attempt, Due, State};
use super::timing::Timing;
use crate::clock::{Instant, Sleeper};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::store::{Capabilities, Renewal, Renewed};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// A hold and the attempt to renew it.
pub(super) struct Renewing {
    pub(super) hold: Arc<Hold>,
    pub(super) attempt: Attempt,
}

/// How many calls go out together at most, unless more are due.
const BURST: usize = 16;

/// For how many there is room in a call from the first on: a store may take any number.
const USUAL: usize = 100;

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
    let mut departure = Departure::new(core, now);
    departure.take(core, due.holds, State::tick);
    departure.fill_up(core);
    departure.leave(core, tasks);
}

/// A connection was lost and made anew: the server may have restarted without our leases.
fn verify_all(core: &Arc<Core>, tasks: &mut JoinSet<()>) {
    let mut departure = Departure::new(core, core.now());
    departure.take(core, core.schedule.all(), State::verify);
    departure.leave(core, tasks);
}

/// Brings holds into the caches, from which they are gone after a period. Plain reads of many are waited for
/// together; the lock of each would be waited for alone.
fn warm<'a>(holds: impl Iterator<Item = &'a Arc<Hold>>) {
    black_box(holds.map(|hold| hold.warm()).fold(0, usize::wrapping_add));
}

/// What is to be renewed now.
struct Departure {
    now: Instant,
    /// When an attempt that leaves now must be over. Those with less time left go apart: theirs must be short, that of the
    /// others need not.
    whole: Instant,
    /// How many one call takes.
    size: usize,
    sharded: bool,
    /// Calls of which all may be told at once, and the next such call as it grows.
    rounds: Vec<(Arc<Round>, Batch)>,
    round: (Arc<Round>, Batch),
    others: Batch,
    /// Lost, and owed to the store.
    settle: Vec<Arc<Hold>>,
}

impl Departure {
    fn new(core: &Core, now: Instant) -> Self {
        let Capabilities { renewal_batch, sharded, .. } = core.store.capabilities();
        Self {
            now,
            whole: now + core.timing.attempt,
            size: renewal_batch.max(1),
            sharded,
            rounds: Vec::new(),
            round: Default::default(),
            others: Vec::new(),
            settle: Vec::new(),
        }
    }

    /// The round that a hold may join; none where parts of the store can fail on their own.
    fn open(&self) -> Option<Open<'_>> {
        (!self.sharded).then_some(Open { round: &self.round.0, whole: self.whole })
    }

    /// Takes along what was taken out of the schedule, as far as it is to be renewed or settled.
    fn take(
        &mut self,
        core: &Arc<Core>,
        taken: Vec<(Instant, Arc<Hold>)>,
        change: fn(&mut State, &Timing, Instant) -> Due,
    ) {
        warm(taken.iter().map(|(_, hold)| hold));
        for (at, hold) in taken {
            let due = hold.taken(core, (at, self.now), self.open(), change);
            self.add(hold, due);
        }
    }

    fn add(&mut self, hold: Arc<Hold>, due: Due) {
        match due {
            Due::Nothing => {}
            Due::Settle | Due::TakenBack => self.settle.push(hold),
            Due::Renew(attempt) => self.others.push(Renewing { hold, attempt }),
            Due::Join(attempt) => {
                let (_, batch) = &mut self.round;
                if batch.is_empty() {
                    batch.reserve_exact(self.size.min(USUAL));
                }
                batch.push(Renewing { hold, attempt });
                if batch.len() == self.size {
                    self.rounds.push(std::mem::take(&mut self.round));
                }
            }
        }
    }

    fn len(&self) -> usize {
        self.rounds.len() * self.size + self.round.1.len() + self.others.len()
    }

    /// Takes leases along that are due soon anyway. Those due almost at once, because a burst of calls costs a
    /// third of what they cost one by one, each on cold caches; and as many as the last call has room for,
    /// because it costs the same for one as for a hundred.
    fn fill_up(&mut self, core: &Arc<Core>) {
        if self.len() == 0 {
            return;
        }
        let room = BURST.saturating_mul(self.size).saturating_sub(self.len());
        let at_once = self.now + core.timing.period / 32;
        self.take(core, core.schedule.soon(at_once, room), State::renew_early);
        let room = (self.size - self.len() % self.size) % self.size;
        let soon = self.now + core.timing.period / 5;
        self.take(core, core.schedule.soon(soon, room), State::renew_early);
    }

    fn leave(mut self, core: &Arc<Core>, tasks: &mut JoinSet<()>) {
        for hold in self.settle {
            tasks.spawn(Work::new(core, Job::Settle(hold)).run());
        }
        if !self.round.1.is_empty() {
            self.rounds.push(self.round);
        }
        for (round, batch) in self.rounds {
            send(core, tasks, batch, Some(round), self.whole);
        }
        let mut shards: HashMap<usize, Batch> = HashMap::new();
        for renewing in self.others {
            let shard = if self.sharded { core.store.shard(&renewing.hold.name) } else { 0 };
            shards.entry(shard).or_default().push(renewing);
        }
        for mut long in shards.into_values() {
            let short: Batch =
                long.extract_if(.., |one| one.attempt.believed_until < self.whole).collect();
            for all in [short, long] {
                let mut all = all.into_iter();
                while all.len() > 0 {
                    let batch = all.by_ref().take(self.size).collect();
                    send(core, tasks, batch, None, self.whole);
                }
            }
        }
    }
}

/// Sends one call.
fn send(
    core: &Arc<Core>,
    tasks: &mut JoinSet<()>,
    batch: Batch,
    round: Option<Arc<Round>>,
    whole: Instant,
) {
    let batch = Arc::new(batch);
    // No attempt outlives the first `C` among them. Whatever becomes of the task, the watchdog looks
    // at each of them then.
    let first = batch.iter().map(|renewing| renewing.attempt.believed_until).min();
    let until = first.map_or(whole, |first| first.min(whole));
    let key = core.schedule.put(&batch, until);
    let core = Arc::clone(core);
    tasks.spawn(async move { renew(&core, batch, round, until, key).await });
}

/// Without an answer it stays in the schedule, for the watchdog to see.
async fn renew(
    core: &Arc<Core>,
    batch: Arc<Batch>,
    round: Option<Arc<Round>>,
    until: Instant,
    key: Key,
) {
    let now = core.now();
    let timeout = until.saturating_duration_since(now);
    if timeout.is_zero() {
        // The thread was stopped since it was due: nothing is sent after `C`.
        return;
    }
    let mut kept = false;
    let request = |renewing: &Renewing| {
        let fence_retention = fence_retention(core, renewing, now);
        kept |= fence_retention.is_some();
        let Hold { name, token, .. } = &*renewing.hold;
        Renewal { name: name.clone(), token: *token, ttl: core.timing.ttl, fence_retention }
    };
    let requests: Vec<Renewal> = batch.iter().map(request).collect();
    // A store that keeps its contract answers before.
    let answer = tokio::time::timeout(timeout * 2, core.store.renew(requests, timeout));
    let Ok(renewed) = answer.await else { return };

    let (sent, verdicts) = match renewed {
        Ok(Renewed { sent, verdicts }) if verdicts.len() == batch.len() => (sent, verdicts),
        Ok(_) => {
            let error = Error::invalid("the store answered for a different number of leases");
            (now, repeat(error, batch.len()))
        }
        Err(error) => (now, repeat(error, batch.len())),
    };
    let moment = (core.now(), core.jitter());
    let next = core.timing.renewal(sent, moment.1);
    let plainly = moment.0 < until && !kept && !tracing::enabled!(tracing::Level::TRACE);
    if let Some(round) = round.filter(|_| plainly)
        && verdicts.iter().all(|verdict| matches!(verdict, Ok(None)))
        && round.conclude(Confirmed { sent, next }, || core.schedule.again(key, next))
    {
        return;
    }
    let mut group = core.schedule.group(next, batch.len());
    warm(batch.iter().map(|renewing| &renewing.hold));
    for (renewing, verdict) in batch.iter().zip(verdicts) {
        let kept = fence_retention(core, renewing, now).is_some();
        let attempt = (renewing.attempt.number, sent, kept);
        renewing.hold.renewed(core, moment, attempt, verdict, &mut group);
    }
    drop(group);
    core.schedule.remove(key);
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
