//! Fires the tokens of what could not be renewed, and says what is to be renewed when.
//!
//! One loop per engine. It wakes for the hold that is due first, never for each hold.
//!
//! # Invariants
//!
//! 1. **Nothing here waits for anything but the clock**: no store, no client, no subscriber of traces, no user code
//!    but the wakers of tokens. What is to be sent goes to the [`worker`](super::worker).
//! 2. **What is on its way is watched too.** A call is put into the schedule before the worker has it, so a worker
//!    that stands still costs renewals, never a token.
//! 3. Only the watchdog takes holds out of the schedule.

use super::Hold;
use super::engine::Core;
use super::reaper::Job;
use super::round::{Open, Round};
use super::schedule::Key;
use super::state::{Attempt, Due, State};
use super::timing::Timing;
use crate::clock::{Instant, Sleeper};
use std::hint::black_box;
use std::sync::Arc;

/// A hold and the attempt to renew it.
#[derive(Clone)]
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

/// A call to be sent. It is in the schedule, where the watchdog finds it if nothing comes of it.
pub(super) struct Call {
    pub(super) batch: Arc<Batch>,
    pub(super) round: Option<Arc<Round>>,
    /// When a call of those with time enough must be over.
    pub(super) whole: Instant,
    /// When this one must be over: no attempt outlives the first `C` among them.
    pub(super) until: Instant,
    pub(super) key: Key,
}

impl Call {
    pub(super) fn new(
        core: &Core,
        batch: Batch,
        round: Option<Arc<Round>>,
        whole: Instant,
    ) -> Self {
        let batch = Arc::new(batch);
        let first = batch.iter().map(|renewing| renewing.attempt.believed_until).min();
        let until = first.map_or(whole, |first| first.min(whole));
        let key = core.schedule.put(&batch, until);
        Self { batch, round, whole, until, key }
    }
}

/// Watches for ever.
pub(super) async fn run(core: &Arc<Core>) {
    let mut sleeper = Sleeper::new(core.clock());
    loop {
        tokio::select! {
            // What is due first.
            biased;
            () = core.schedule.wait(&mut sleeper) => {}
            () = core.verify.notified() => verify_all(core),
        }
        tick(core);
    }
}

/// Does what is due.
fn tick(core: &Arc<Core>) {
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
    departure.leave(core);
}

/// A connection was lost and made anew: the server may have restarted without our leases.
fn verify_all(core: &Arc<Core>) {
    let mut departure = Departure::new(core, core.now());
    departure.take(core, core.schedule.all(), State::verify);
    departure.leave(core);
}

/// Brings holds into the caches, from which they are gone after a period. Plain reads of many are waited for
/// together; the lock of each would be waited for alone.
pub(super) fn warm<'a>(holds: impl Iterator<Item = &'a Arc<Hold>>) {
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
    /// Calls of which all may be told at once, and the next such call as it grows.
    rounds: Vec<(Arc<Round>, Batch)>,
    round: (Arc<Round>, Batch),
    others: Batch,
    /// Lost, and owed to the store.
    settle: Vec<Arc<Hold>>,
}

impl Departure {
    fn new(core: &Core, now: Instant) -> Self {
        Self {
            now,
            whole: now + core.timing.attempt,
            size: core.batch_size,
            rounds: Vec::new(),
            round: Default::default(),
            others: Vec::new(),
            settle: Vec::new(),
        }
    }

    /// The round that a hold may join; none where parts of the store can fail on their own.
    fn open(&self, core: &Core) -> Option<Open<'_>> {
        (!core.sharded).then_some(Open { round: &self.round.0, whole: self.whole })
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
            let due = hold.taken(core, (at, self.now), self.open(core), change);
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

    fn leave(mut self, core: &Arc<Core>) {
        for hold in self.settle {
            core.reap(Job::Settle(hold));
        }
        if !self.round.1.is_empty() {
            self.rounds.push(self.round);
        }
        let mut calls: Vec<Call> = Vec::new();
        for (round, batch) in self.rounds {
            calls.push(Call::new(core, batch, Some(round), self.whole));
        }
        let short = self.others.extract_if(.., |one| one.attempt.believed_until < self.whole);
        let short: Batch = short.collect();
        for all in [short, self.others] {
            // The worker takes apart what parts of the store are to be asked for; to know them is the store's.
            let size = if core.sharded { all.len() } else { self.size };
            let mut all = all.into_iter();
            while all.len() > 0 {
                let batch = all.by_ref().take(size).collect();
                calls.push(Call::new(core, batch, None, self.whole));
            }
        }
        if !calls.is_empty() {
            core.send(calls);
        }
    }
}
