//! Reports to observers and counters what happens.
//!
//! A part of the engine that has something to tell calls [`Core::publish`], or [`Hold::happened`] for what is counted too. Neither
//! runs an observer. While there is none, an event costs one branch.

use super::core::Core;
use super::hold::Hold;
use super::options::{Caller, Options};
use super::schedule::Renewing;
use crate::clock::Instant;
use crate::engine::acquire::set::SetCall;
use crate::engine::machine::hold::{Ended, Phase, State};
use crate::error::Result;
use crate::observe::{Event, EventKind, Health, How, Operation, Outcome, Recorded, Refusal};
use crate::store::{Mark, Mode, Name, Renewed};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

impl Core {
    /// Queues what has happened for the observers, if there are any. May be called with the state of a hold locked; finish
    /// what it returns when that is unlocked.
    pub(in crate::engine) fn publish(&self, happened: impl FnOnce() -> Event) -> Recorded {
        if self.events.is_observed() { self.events.record(happened()) } else { Recorded::default() }
    }

    /// Counts what has happened at `now`, and queues its event, as [`publish`](Self::publish) does.
    pub(in crate::engine) fn count(
        &self,
        now: Instant,
        kind: EventKind,
        event: impl FnOnce(EventKind) -> Event,
    ) -> Recorded {
        self.counters.count(&kind, now);
        self.publish(|| event(kind))
    }

    /// Reports a measurement to the observers, if one of them wants any. Call it with no lock held.
    pub(in crate::engine) fn measure(&self, measured: impl FnOnce() -> EventKind) {
        if self.events.is_measured() {
            self.events.record(Event::new(measured())).finish();
        }
    }

    /// Records the answer to a request for so many holds, that was sent at `sent`. It is a refusal if `refuses` says so.
    pub(in crate::engine) fn count_answer<T>(
        &self,
        op: Operation,
        answer: &Result<T>,
        refuses: impl FnOnce(&T) -> bool,
        sent: Instant,
        items: usize,
    ) {
        self.counters.heard(op, answer.as_ref().err(), || self.now());
        self.measure_answer(op, || Outcome::of(answer, refuses), sent, items);
    }

    /// Records that a request for so many holds, that was sent at `sent`, has no answer in time.
    pub(in crate::engine) fn count_failure(&self, op: Operation, sent: Instant, items: usize) {
        self.counters.silent(self.now());
        self.measure_answer(op, || Outcome::Unavailable, sent, items);
    }

    fn measure_answer(
        &self,
        op: Operation,
        outcome: impl FnOnce() -> Outcome,
        sent: Instant,
        items: usize,
    ) {
        self.measure(|| {
            let outcome = outcome();
            let took = self.now().saturating_duration_since(sent);
            EventKind::Answered { op, outcome, took, items }
        });
    }

    /// Measures how much of T was left to the lease that came closest to its end.
    pub(in crate::engine) fn measure_headroom(&self, batch: &[Renewing], answer: &Result<Renewed>) {
        if !self.events.is_measured() || answer.is_err() {
            return;
        }
        let now = self.now();
        let left = |one: &Renewing| one.hold.deadline(self).saturating_duration_since(now);
        let Some(least) = batch.iter().map(left).min() else { return };
        let headroom = least.as_secs_f64() / self.timing.ttl.as_secs_f64();
        self.measure(|| EventKind::Renewed { headroom });
    }

    /// Returns how the manager fares.
    pub(crate) fn health(&self) -> Health {
        let now = self.now();
        Health {
            store_silent_for: self.counters.silence(now, self.timing.ttl),
            store_refuses_for: self.counters.refusal(now, self.timing.ttl),
            at_risk: self.counters.at_risk_now(),
            losses_1m: self.counters.recent_losses(now),
            watchdog_lag: self.schedule.overdue(now),
            ttl: self.timing.ttl,
            closed: self.life.is_closed(),
            panicked: self.life.has_panicked(),
            leading: self.leading(),
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.events.end();
    }
}

impl Hold {
    /// Returns an event of this hold.
    pub(in crate::engine) fn event(&self, kind: EventKind) -> Event {
        Event::of(&self.name, kind)
            .with_mode(self.mode)
            .with_holder(self.holder)
            .with_class(self.options.class())
    }

    /// Counts what happens to it at `now`, and queues the event. May be called with its state locked; finish what it returns
    /// when that is unlocked.
    pub(in crate::engine) fn happened(
        &self,
        core: &Core,
        now: Instant,
        kind: EventKind,
    ) -> Recorded {
        core.count(now, kind, |kind| self.event(kind))
    }

    /// Reports a transition between two phases at `now`, after which `left` remains, as [`happened`](Self::happened) does. A hold that
    /// its waiter has not accepted has no lease, so only that it is not released is reported.
    pub(super) fn tell_phase(
        &self,
        core: &Core,
        state: &State,
        (was, is): (Phase, Phase),
        (now, left): (Instant, Duration),
    ) -> Recorded {
        core.counters.risks(was == Phase::AtRisk, is == Phase::AtRisk);
        let held = self.held(now);
        let not_released =
            |error| EventKind::NotReleased { error, held: (!state.is_offered()).then_some(held) };
        let kind = match is {
            Phase::Released if was == Phase::Releasing => match state.end_of_release() {
                Ended::Confirmed | Ended::Lost(_) if state.is_offered() => {
                    return Recorded::default();
                }
                Ended::Confirmed => EventKind::Released { held },
                Ended::Lost(cause) => EventKind::Lost { cause, held },
                Ended::Failed(error) => not_released(Some(error)),
            },
            Phase::Releasing => return Recorded::default(),
            _ if state.is_offered() => return Recorded::default(),
            Phase::Released => not_released(None),
            Phase::Held => EventKind::Recovered,
            Phase::AtRisk => EventKind::AtRisk { left },
            Phase::Lost(cause) => EventKind::Lost { cause, held },
        };
        self.happened(core, now, kind)
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
    /// The place of the call.
    pub(in crate::engine) caller: Caller,
    /// Whether its wait was reported.
    waits: AtomicBool,
    /// Whether its end was reported.
    ended: AtomicBool,
    /// True if the grant took the name from another holder.
    steals: AtomicBool,
    /// The set that it is a part of.
    pub(in crate::engine) set: Option<&'a SetCall>,
    /// Where it leaves what a refusal says.
    refusal: Option<&'a StoreRefusal>,
}

/// What the store said when it refused a call that asks once: the mark that keeps the name closed, if it is one. Empty if the
/// store was not asked.
pub(crate) type StoreRefusal = OnceLock<Option<Mark>>;

impl<'a> CallReport<'a> {
    pub(in crate::engine) fn new(
        core: &'a Core,
        (name, mode, options): (&'a Name, Mode, &'a Options),
        (start, caller): (Instant, Caller),
    ) -> Self {
        let (waits, ended, steals) = Default::default();
        let (set, refusal) = (None, None);
        Self { core, name, mode, options, start, caller, waits, ended, steals, set, refusal }
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
    pub(in crate::engine) fn of_set(mut self, set: Option<&'a SetCall>) -> Self {
        self.set = set;
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
            self.core.count(self.start, waiting, |kind| self.event(kind)).finish();
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
            // Another name of the set was refused.
            Ok(None) if self.set.is_some_and(|set| set.has_spared(self.name)) => None,
            Ok(None) if once => Some(Refusal::Busy),
            Ok(None) => Some(Refusal::TimedOut),
            Err(error) => Some(Refusal::Failed(error.clone())),
        };
        match why {
            Some(why) => self.refused(why),
            None => self.ended.store(true, Ordering::Relaxed),
        }
    }

    fn refused(&self, why: Refusal) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let now = self.core.now();
        let waited = now.saturating_duration_since(self.start);
        let was_waiting = self.waits.load(Ordering::Relaxed);
        let refused = EventKind::NotGranted { waited, why, was_waiting };
        self.core.count(now, refused, |kind| self.event(kind)).finish();
    }
}

impl Drop for CallReport<'_> {
    fn drop(&mut self) {
        // Its user dropped nothing if another name of the set was refused.
        if self.set.is_some_and(SetCall::is_given_up) {
            return;
        }
        self.refused(Refusal::Dropped);
    }
}
