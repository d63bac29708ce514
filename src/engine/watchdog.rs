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

use super::core::Core;
use super::hold::Hold;
use super::job::Job;
use super::schedule::{Batch, Call, Renewing};
use super::state::{Due, State};
use super::timing::Timing;
use crate::clock::{Instant, Sleeper};
use std::sync::Arc;

/// How many calls go out together at most, unless more are due.
const BURST: usize = 16;

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
    let mut plan = RenewalPlan::new(core, now);
    plan.take(core, due.holds, State::tick);
    plan.top_up(core);
    plan.send_all(core);
}

/// A connection was lost and made anew: the server may have restarted without our leases.
fn verify_all(core: &Arc<Core>) {
    let mut plan = RenewalPlan::new(core, core.now());
    plan.take(core, core.schedule.all(), State::verify);
    plan.send_all(core);
}

/// What is to be renewed now.
struct RenewalPlan {
    now: Instant,
    /// When an attempt that leaves now must be over. Those with less time left go apart: theirs must be short, that of the
    /// others need not.
    attempt_deadline: Instant,
    /// How many one call takes.
    size: usize,
    renewing: Batch,
    /// Lost, and owed to the store.
    flush: Vec<Arc<Hold>>,
}

impl RenewalPlan {
    fn new(core: &Core, now: Instant) -> Self {
        Self {
            now,
            attempt_deadline: now + core.timing.attempt,
            size: core.batch_size,
            renewing: Vec::new(),
            flush: Vec::new(),
        }
    }

    /// Takes along what was taken out of the schedule, as far as it is to be renewed or flushed.
    fn take(
        &mut self,
        core: &Arc<Core>,
        taken: Vec<(Instant, Arc<Hold>)>,
        change: fn(&mut State, &Timing, Instant) -> Due,
    ) {
        for (at, hold) in taken {
            match hold.when_due(core, (at, self.now), change) {
                Due::Nothing => {}
                Due::Flush | Due::TakenBack => self.flush.push(hold),
                Due::Renew(attempt) => self.renewing.push(Renewing { hold, attempt }),
            }
        }
    }

    /// Takes leases along that are due soon anyway. Those due almost at once, because a burst of calls costs a
    /// third of what they cost one by one, each on cold caches; and as many as the last call has room for,
    /// because it costs the same for one as for a hundred.
    fn top_up(&mut self, core: &Arc<Core>) {
        if self.renewing.is_empty() {
            return;
        }
        let room = BURST.saturating_mul(self.size).saturating_sub(self.renewing.len());
        let at_once = self.now + core.timing.period / 32;
        self.take(core, core.schedule.soon(at_once, room), State::renew_early);
        let room = (self.size - self.renewing.len() % self.size) % self.size;
        let soon = self.now + core.timing.period / 5;
        self.take(core, core.schedule.soon(soon, room), State::renew_early);
    }

    fn send_all(mut self, core: &Arc<Core>) {
        for hold in self.flush {
            core.submit(Job::Flush(hold));
        }
        let mut calls: Vec<Call> = Vec::new();
        let short =
            self.renewing.extract_if(.., |one| one.attempt.believed_until < self.attempt_deadline);
        let short: Batch = short.collect();
        for all in [short, self.renewing] {
            // The worker takes apart what parts of the store are to be asked for; to know them is the store's.
            let size = if core.sharded { all.len() } else { self.size };
            let mut all = all.into_iter();
            while all.len() > 0 {
                let batch = all.by_ref().take(size).collect();
                calls.push(Call::new(&core.schedule, batch, self.attempt_deadline));
            }
        }
        if !calls.is_empty() {
            core.send(calls);
        }
    }
}
