//! The place of this process in the line of a name, for fair locks.
//!
//! A store with [`Line::Places`](crate::store::Line::Places) orders the processes by the time at which the oldest waiter of
//! each arrived; the queue orders the waiters of one process.
//!
//! # Invariants
//!
//! 1. **The waiter that asks has the place.** Each of its requests reports for how long it has waited, and refreshes the
//!    place. The next waiter that asks takes the place over, with its own arrival.
//! 2. **No gap at a release.** Waiters behind a hold of this process do not ask, so they are not in the line. The release
//!    takes the place for the first of them in the same step, before a waiter elsewhere can ask.
//! 3. **A place without a waiter is left.** The waiter that asked gives it up when it goes
//!    ([`Attempt`](super::attempt::Attempt)), after the answer to its last request, and gives it to the next waiter,
//!    if there is one. A place that a release took, or that was given to it, is open until the first waiter asks. If that one
//!    goes before, it does the same ([`OpenPlace`]). Each waiter has the place with its own arrival.
//! 4. **All of that may fail.** Then the place lapses, which delays other processes, and breaks no promise.

use super::AcquireLoop;
use crate::clock::Instant;
use crate::engine::machine::chain::HandoffScope;
use crate::engine::machine::mode;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::job::Job;
use crate::store::{HolderId, Mode, Name, Place, Target};
use std::sync::Arc;
use std::time::Duration;

/// Gives up the place that is open for a waiter when that one goes. Each waiter has one.
pub(super) struct OpenPlace<'a> {
    pub(in crate::engine) core: &'a Arc<Core>,
    pub(in crate::engine) name: &'a Name,
    pub(in crate::engine) arrived: Instant,
}

impl Drop for OpenPlace<'_> {
    fn drop(&mut self) {
        if let Some(holder) = self.core.queue.abandoned_place(self.name, self.arrived) {
            self.core.leave_later(Target::exclusive(self.name.clone()), holder);
        }
    }
}

impl AcquireLoop<'_, '_> {
    /// Returns the place in the order of the waiters of all processes.
    pub(super) fn place(&self) -> Option<Place> {
        let core = self.core;
        let ordered = match self.mode {
            Mode::Exclusive => self.fair,
            Mode::Read | Mode::Write => !self.once,
            Mode::Permits { .. } => false,
        };
        ordered.then(|| {
            if self.once {
                // It passes no waiter and gets no place.
                return Place::new(Duration::ZERO, Duration::ZERO);
            }
            let waited = core.now().saturating_duration_since(self.start);
            let left = self.longest_wait.saturating_sub(waited);
            Place::new(waited, core.place_kept(self.mode).min(left))
        })
    }
}

impl Core {
    /// Returns the place that the release of a hold takes for the next waiter; `None` if neither is fair.
    pub(in crate::engine) fn next_place(&self, hold: &Hold) -> Option<Place> {
        if !self.queue.is_fair() || !mode::has_line(hold.mode) {
            return None;
        }
        match self.queue.next_arrival(&hold.name, self.now()) {
            Some(arrived) => Some(self.place_of(arrived)),
            None if hold.handoff_scope() == HandoffScope::Plain => None,
            None => Some(Place::default()),
        }
    }

    /// Returns the place of a waiter of a fair lock.
    pub(in crate::engine) fn place_of(&self, arrived: Instant) -> Place {
        let waited = self.now().saturating_duration_since(arrived);
        Place::new(waited, self.place_kept(Mode::Exclusive))
    }

    /// Keeps the place that the release of a hold took open for the next waiter, or gives it up if there is none any more.
    pub(in crate::engine) fn keep_place(&self, hold: &Hold) {
        let target = hold.target();
        if self.open_place(&target, hold.holder).is_none() {
            self.submit(Job::Leave { target, holder: hold.holder, next: None });
        }
    }

    /// Opens a place that a request of `holder` has taken for the next waiter, if it takes part in the line. Returns its
    /// arrival.
    pub(in crate::engine) fn open_place(
        &self,
        target: &Target,
        holder: HolderId,
    ) -> Option<Instant> {
        if !self.queue.is_fair() || !mode::has_line(target.mode) || self.life.is_closed() {
            return None;
        }
        self.queue.open_place(&target.name, holder, self.now())
    }

    /// Gives up a place in the background. In a line the next waiter gets it, for whom it is open then: otherwise
    /// a waiter elsewhere that came later could be granted the name before that one asks.
    pub(super) fn leave_later(&self, target: Target, holder: HolderId) {
        let next = self.open_place(&target, holder);
        self.submit(Job::Leave { target, holder, next });
    }
}
