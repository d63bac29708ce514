//! The arrivals of this process in the line of a name, for fair locks.
//!
//! A store with [`Line::Arrivals`](crate::store::Line::Arrivals) orders the processes by the time at which the oldest waiter of
//! each arrived; the queue orders the waiters of one process.
//!
//! # Invariants
//!
//! 1. **The waiter that asks is in the line.** Each of its requests reports for how long it has waited, and refreshes the
//!    arrival that the store keeps for this process. The next waiter that asks replaces it by its own.
//! 2. **No gap at a release.** Waiters behind a hold of this process do not ask, so they are not in the line. The release
//!    records the arrival of the first of them in the same step, before a waiter elsewhere can ask.
//! 3. **An arrival without a waiter is given up.** The waiter that asked does that when it goes
//!    ([`AcquireGuard`](crate::engine::acquire::acquire_guard::AcquireGuard)), after the answer to its last request, and records the arrival
//!    of the next waiter instead, if there is one. An arrival that was recorded for a waiter that does not ask yet is open
//!    until it does. If that one goes before, it does the same ([`OpenArrival`]).
//! 4. **All of that may fail.** Then the arrival lapses, which delays other processes, and breaks no promise.

use super::calls;
use super::core::Core;
use super::hold::Hold;
use super::job::Job;
use crate::clock::Instant;
use crate::engine::machine::chain::HandoffScope;
use crate::engine::machine::mode;
use crate::store::{Arrival, HolderId, Mode, Name, Release, Target};
use crate::util::reached::Rare;
use crate::util::trace;
use std::sync::Arc;
use tracing::Level;

/// Gives up the arrival that is open for a waiter when that one goes. Each waiter of a fair lock has one.
pub(in crate::engine) struct OpenArrival<'a> {
    pub(in crate::engine) core: &'a Arc<Core>,
    pub(in crate::engine) name: &'a Name,
    pub(in crate::engine) arrived: Instant,
}

impl Drop for OpenArrival<'_> {
    fn drop(&mut self) {
        if let Some(holder) = self.core.queue.abandoned_arrival(self.name, self.arrived) {
            Rare::ArrivalAbandoned.reached();
            give_up_later(self.core, Target::exclusive(self.name.clone()), holder);
        }
    }
}

/// Returns the arrival that the release of a hold records for the next waiter; `None` if neither is fair.
pub(in crate::engine) fn next_arrival(core: &Core, hold: &Hold) -> Option<Arrival> {
    if !core.queue.is_fair() || !mode::has_line(hold.mode) {
        return None;
    }
    match core.queue.next_arrival(&hold.name, core.now()) {
        Some(arrived) => Some(arrival_of(core, arrived)),
        None if hold.handoff_scope() == HandoffScope::OutsideTheLine => None,
        None => Some(Arrival::default()),
    }
}

/// Returns the arrival of a waiter of a fair lock, for a request.
fn arrival_of(core: &Core, arrived: Instant) -> Arrival {
    let waited = core.now().saturating_duration_since(arrived);
    Arrival::new(waited, core.arrival_kept(Mode::Exclusive))
}

/// Keeps the arrival that the release of a hold recorded open for the next waiter, or gives it up if there is none any more.
pub(in crate::engine) fn keep_open(core: &Core, hold: &Hold) {
    let target = hold.target();
    if open(core, &target, hold.holder).is_none() {
        core.submit(Job::GiveUpArrival { target, holder: hold.holder, next: None });
    }
}

/// Opens the arrival that a request of `holder` has recorded for the next waiter, if that one takes part in the line.
/// Returns it.
pub(in crate::engine) fn open(core: &Core, target: &Target, holder: HolderId) -> Option<Instant> {
    if !core.queue.is_fair() || !mode::has_line(target.mode) || core.life.is_closed() {
        return None;
    }
    core.queue.open_arrival(&target.name, holder, core.now())
}

/// Gives up an arrival in the background. In a line that of the next waiter replaces it, and is open then: otherwise a
/// waiter elsewhere that came later could be granted the name before that one asks.
pub(in crate::engine) fn give_up_later(core: &Core, target: Target, holder: HolderId) {
    let next = open(core, &target, holder);
    core.submit(Job::GiveUpArrival { target, holder, next });
}

/// Has the store give up an arrival, or replace it by that of the waiter that arrived at `next`. One that is not given up
/// lapses.
pub(in crate::engine) async fn give_up(
    core: &Core,
    target: Target,
    holder: HolderId,
    next: Option<Instant>,
) {
    let name = target.name.clone();
    let next = next.map(|arrived| arrival_of(core, arrived));
    let request = Release::arrival(target, holder, core.timing.attempt).with_arrival(next);
    let left = calls::ask(core, || core.store.release(request)).await;
    if let Err(error) = left {
        trace::later(
            Level::DEBUG,
            || move || tracing::debug!(name = name.as_str(), %error, "an arrival is left to lapse"),
        );
    }
}
