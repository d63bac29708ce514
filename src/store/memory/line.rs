//! The line of a name: the managers that wait for an exclusive lock, in the order of arrival.

use super::State;
use super::waiter::{Waiter, arrived};
use super::wake::wake;
use crate::clock::Instant;
use crate::store::{Acquire, Acquired, Arrival, HolderId, Name, Release, WaitingManager};
use std::time::Duration;

/// The arrivals in a line, in no order: there are as many as managers that wait.
#[derive(Debug, Default)]
pub(super) struct Queue(Vec<Waiter>);

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes the arrivals that have lapsed. Returns whether any is left.
    pub(super) fn is_live(&mut self, now: Instant) -> bool {
        self.0.retain(|waiter| waiter.until > now);
        !self.0.is_empty()
    }

    /// Returns the oldest waiter of other managers.
    fn first_but(&self, holder: HolderId, now: Instant) -> Option<&Waiter> {
        let others = self.0.iter().filter(|waiter| !waiter.is_of(holder));
        others.filter(|waiter| waiter.until > now).min_by_key(|waiter| waiter.arrived)
    }

    /// Returns for how long the oldest waiter of other managers has waited.
    pub(super) fn oldest_but(&self, holder: HolderId, now: Instant) -> Option<Duration> {
        self.first_but(holder, now).map(|waiter| waiter.waited(now))
    }

    /// Returns how long an arrival is kept that is older than this one, which asks for the name; `None` if there is none.
    pub(super) fn ahead_of(
        &mut self,
        holder: HolderId,
        arrival: Arrival,
        now: Instant,
    ) -> Option<Duration> {
        self.is_live(now);
        let own = self.arrival(holder, arrival, now);
        let first = self.first_but(holder, now).filter(|first| first.arrived < own)?;
        Some(first.until.saturating_duration_since(now))
    }

    /// Returns the arrival of the waiter that asks: a repeated request never makes it later.
    fn arrival(&self, holder: HolderId, arrival: Arrival, now: Instant) -> i128 {
        let own = self.0.iter().find(|waiter| waiter.holder == holder);
        let arrived = arrived(Some(arrival), now);
        own.map_or(arrived, |own| own.arrived.min(arrived))
    }

    /// Records the arrival of a manager, or keeps it for longer. Returns that of an earlier waiter of it, if this replaces it.
    fn enter(&mut self, holder: HolderId, arrival: Arrival, now: Instant) -> Option<i128> {
        if arrival.kept.is_zero() {
            return None;
        }
        let arrived = self.arrival(holder, arrival, now);
        let until = now + arrival.kept;
        let entry = Waiter { holder, arrived, until };
        match self.0.iter_mut().find(|waiter| waiter.is_of(holder)) {
            None => self.0.push(entry),
            Some(own) if own.holder.number() > holder.number() => {}
            Some(own) => {
                let before = std::mem::replace(own, entry);
                return (before.holder != holder).then_some(before.arrived);
            }
        }
        None
    }

    /// Returns whether the oldest waiter of other managers came after `before`.
    fn is_first_after(&self, before: i128, holder: HolderId, now: Instant) -> bool {
        self.first_but(holder, now).is_some_and(|first| before < first.arrived)
    }

    /// Ends the arrival of a manager, or replaces it by that of its next waiter, unless it is that of a later waiter. Returns
    /// whether there was one.
    fn leave(&mut self, holder: HolderId, next: Option<Arrival>, now: Instant) -> bool {
        let its = self.0.iter().position(|waiter| waiter.is_of(holder));
        if let Some(at) = its
            && self.0[at].holder.number() <= holder.number()
        {
            self.0.swap_remove(at);
            if let Some(next) = next {
                _ = self.enter(holder, next, now);
            }
        }
        its.is_some()
    }

    /// Returns the managers in the line, the oldest first.
    pub(super) fn waiting(&self, now: Instant) -> Vec<WaitingManager> {
        let mut live: Vec<_> = self.0.iter().filter(|waiter| waiter.until > now).collect();
        live.sort_by_key(|waiter| waiter.arrived);
        let manager = |waiter: &Waiter| waiter.holder.manager().to_string();
        live.into_iter()
            .map(|waiter| WaitingManager::new(manager(waiter), waiter.waited(now)))
            .collect()
    }
}

/// Acquires a name in the order of arrival.
pub(super) fn acquire_in_line(
    state: &mut State,
    request: &Acquire,
    arrival: Arrival,
    now: Instant,
) -> Acquired {
    let name = &request.target.name;
    let holder = request.holder;
    let is_free = state.entry(name, now).is_none();
    let mut line = state.lines.remove(name).unwrap_or_default();
    let mut wakes = false;
    let verdict = match line.ahead_of(holder, arrival, now).filter(|_| is_free) {
        Some(left) => Acquired::held(Some(left)),
        None => state.acquire_exclusive(request, now),
    };
    let verdict = match verdict {
        Acquired::Granted { .. } => {
            line.leave(holder, None, now);
            verdict.with_oldest(line.oldest_but(holder, now))
        }
        Acquired::Held { .. } | Acquired::NotYours(_) => {
            let before = line.enter(holder, arrival, now);
            // The first may have been refused by that arrival, which is behind it now.
            wakes = is_free && before.is_some_and(|it| line.is_first_after(it, holder, now));
            verdict
        }
    };
    keep_line(state, name, line);
    if wakes {
        wake(state, name, None);
    }
    verdict
}

fn keep_line(state: &mut State, name: &Name, line: Queue) {
    if !line.is_empty() {
        state.lines.insert(name.clone(), line);
    }
}

/// Gives up an arrival, or replaces it by that of the next waiter. The others may have waited for it to lapse.
pub(super) fn leave(
    state: &mut State,
    name: &Name,
    holder: HolderId,
    next: Option<Arrival>,
    now: Instant,
) {
    let Some(mut line) = state.lines.remove(name) else { return };
    let left = line.leave(holder, next, now);
    keep_line(state, name, line);
    if left && state.entry(name, now).is_none() {
        wake(state, name, None);
    }
}

/// Records the arrival of the next waiter after a release. Returns whether another manager waits in the line.
pub(super) fn released_in_line(state: &mut State, request: &Release, now: Instant) -> bool {
    let Some(arrival) = request.arrival else { return false };
    let name = &request.target.name;
    let mut line = state.lines.remove(name).unwrap_or_default();
    _ = line.enter(request.holder, arrival, now);
    let others = line.oldest_but(request.holder, now).is_some();
    keep_line(state, name, line);
    others
}
