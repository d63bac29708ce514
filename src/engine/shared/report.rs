//! Reports to observers and counters what happens.
//!
//! A part of the engine that has something to report calls [`publish`], or
//! [`Hold::happened`](super::hold::Hold::happened) for what is counted too. Neither runs an observer. While there is none, an
//! event costs one branch.

use super::core::Core;
use super::options::Options;
use super::schedule::Renewing;
use crate::clock::Instant;
use crate::engine::machine::policy::CallSite;
use crate::error::Result;
use crate::observe::{
    Event, EventKind, Health, How, LeadershipHealth, Operation, Outcome, Recorded, Refusal,
};
use crate::store::{Mark, Mode, Name, Renewed};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Queues what has happened for the observers, if there are any. May be called with the state of a hold locked; finish
/// what it returns when that is unlocked.
pub(in crate::engine) fn publish(core: &Core, happened: impl FnOnce() -> Event) -> Recorded {
    if core.events.is_observed() { core.events.record(happened()) } else { Recorded::default() }
}

/// Counts what has happened at `now`, and queues its event, as [`publish`] does.
pub(in crate::engine) fn count(
    core: &Core,
    now: Instant,
    kind: EventKind,
    event: impl FnOnce(EventKind) -> Event,
) -> Recorded {
    core.counters.count(&kind, now);
    publish(core, || event(kind))
}

/// Reports a measurement to the observers, if one of them wants any. Call it with no lock held.
pub(in crate::engine) fn measure(core: &Core, measured: impl FnOnce() -> EventKind) {
    if core.events.is_measured() {
        core.events.record(Event::new(measured())).finish();
    }
}

/// Records the answer to a request for so many holds, that was sent at `sent`. It is a refusal if `refuses` says so.
pub(in crate::engine) fn count_answer<T>(
    core: &Core,
    op: Operation,
    answer: &Result<T>,
    refuses: impl FnOnce(&T) -> bool,
    sent: Instant,
    items: usize,
) {
    core.counters.heard(op, answer.as_ref().err(), || core.now());
    measure_answer(core, op, || Outcome::of(answer, refuses), sent, items);
}

/// Records that a request for so many holds, that was sent at `sent`, has no answer in time.
pub(in crate::engine) fn count_failure(core: &Core, op: Operation, sent: Instant, items: usize) {
    core.counters.silent(core.now());
    measure_answer(core, op, || Outcome::Unavailable, sent, items);
}

fn measure_answer(
    core: &Core,
    op: Operation,
    outcome: impl FnOnce() -> Outcome,
    sent: Instant,
    items: usize,
) {
    measure(core, || {
        let outcome = outcome();
        let took = core.now().saturating_duration_since(sent);
        EventKind::Answered { op, outcome, took, items }
    });
}

/// Measures how much of T was left to the lease that came closest to its end.
pub(in crate::engine) fn measure_headroom(
    core: &Core,
    batch: &[Renewing],
    answer: &Result<Renewed>,
) {
    if !core.events.is_measured() || answer.is_err() {
        return;
    }
    let now = core.now();
    let left = |one: &Renewing| one.hold.deadline(core).saturating_duration_since(now);
    let Some(least) = batch.iter().map(left).min() else { return };
    let headroom = least.as_secs_f64() / core.timing.ttl.as_secs_f64();
    measure(core, || EventKind::Renewed { headroom });
}

/// Returns how the manager fares, and those of it that lead.
pub(crate) fn health(core: &Core, leading: Vec<LeadershipHealth>) -> Health {
    let now = core.now();
    Health {
        store_silent_for: core.counters.silence(now, core.timing.ttl),
        store_refuses_for: core.counters.refusal(now, core.timing.ttl),
        at_risk: core.counters.at_risk_now(),
        losses_1m: core.counters.recent_losses(now),
        watchdog_lag: core.schedule.overdue(now),
        ttl: core.timing.ttl,
        closed: core.life.is_closed(),
        panicked: core.life.has_panicked(),
        leading,
    }
}

/// A call that asks for a name, as observers see it: it waits, and gets a lease or none. Dropping it reports that the call was
/// dropped, unless its end was reported before.
pub(crate) struct CallReport<'a> {
    core: &'a Core,
    name: &'a Name,
    mode: Mode,
    options: &'a Options,
    start: Instant,
    /// Where the user made the call.
    pub(in crate::engine) caller: CallSite,
    /// Whether its wait was reported.
    waits: AtomicBool,
    /// Whether its end was reported.
    ended: AtomicBool,
    /// True if the grant took the name from another holder.
    steals: AtomicBool,
    /// Whether the set that it is a part of is given up: then its user has dropped nothing.
    given_up: Option<&'a AtomicBool>,
    /// Where it leaves what a refusal says.
    refusal: Option<&'a StoreRefusal>,
}

/// What the store said when it refused a call that asks once: the mark that keeps the name closed, if it is one. Empty if the
/// store was not asked.
pub(crate) type StoreRefusal = OnceLock<Option<Mark>>;

impl<'a> CallReport<'a> {
    /// Creates the report of a call that began at `start`.
    pub(in crate::engine) fn new(
        core: &'a Core,
        name: &'a Name,
        mode: Mode,
        options: &'a Options,
        start: Instant,
        caller: CallSite,
    ) -> Self {
        Self {
            core,
            name,
            mode,
            options,
            start,
            caller,
            waits: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            steals: AtomicBool::new(false),
            given_up: None,
            refusal: None,
        }
    }

    /// Has it leave what a refusal says.
    pub(in crate::engine) fn with_refusal(mut self, refusal: Option<&'a StoreRefusal>) -> Self {
        self.refusal = refusal;
        self
    }

    /// Leaves what a refusal says.
    pub(in crate::engine) fn refused_by_store(&self, closed: Option<Mark>) {
        if let Some(refusal) = self.refusal {
            _ = refusal.set(closed);
        }
    }

    /// Makes it a part of a set, which reports only the names that were refused.
    pub(in crate::engine) fn of_set(mut self, given_up: Option<&'a AtomicBool>) -> Self {
        self.given_up = given_up;
        self
    }

    fn event(&self, kind: EventKind) -> Event {
        Event::of(self.name, kind).with_mode(self.mode).with_class(self.options.class())
    }

    /// Reports that it waits, once.
    pub(in crate::engine) fn waits(&self, ahead: impl FnOnce() -> usize) {
        if !self.waits.swap(true, Ordering::Relaxed) {
            let ahead = if self.core.events.is_observed() { ahead() } else { 0 };
            let waiting = EventKind::Waiting { ahead };
            count(self.core, self.start, waiting, |kind| self.event(kind)).finish();
        }
    }

    /// Records that its grant was another holder's.
    pub(in crate::engine) fn steals(&self) {
        self.steals.store(true, Ordering::Relaxed);
    }

    /// Returns what happens with its grant at `now`, which ends it. The caller reports it, in the right order.
    pub(in crate::engine) fn granted(
        &self,
        fence: Option<u64>,
        how: How,
        now: Instant,
    ) -> EventKind {
        self.ended.store(true, Ordering::Relaxed);
        let waited = now.saturating_duration_since(self.start);
        let how = if self.steals.load(Ordering::Relaxed) { How::Stolen } else { how };
        EventKind::Granted { waited, fence, how, was_waiting: self.waits.load(Ordering::Relaxed) }
    }

    /// Ends it, by a result that brings no new hold or reports no grant of its own.
    pub(in crate::engine) fn end<T>(&self, result: &Result<Option<T>>, once: bool) {
        let why = match result {
            // A re-entry.
            Ok(Some(_)) => None,
            Ok(None) if once => Some(Refusal::Busy),
            Ok(None) => Some(Refusal::TimedOut),
            Err(error) => Some(Refusal::Failed(error.clone())),
        };
        match why {
            Some(why) => self.refused(why),
            None => self.end_unreported(),
        }
    }

    /// Ends it without a report: what it has got, or that another name of its set was refused, is reported elsewhere.
    pub(in crate::engine) fn end_unreported(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn refused(&self, why: Refusal) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let now = self.core.now();
        let waited = now.saturating_duration_since(self.start);
        let was_waiting = self.waits.load(Ordering::Relaxed);
        let refused = EventKind::NotGranted { waited, why, was_waiting };
        count(self.core, now, refused, |kind| self.event(kind)).finish();
    }
}

impl Drop for CallReport<'_> {
    fn drop(&mut self) {
        if !self.given_up.is_some_and(|given_up| given_up.load(Ordering::Relaxed)) {
            self.refused(Refusal::Dropped);
        }
    }
}
