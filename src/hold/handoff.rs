//! Passes a hold on in memory, from whoever gives it back to the first waiter of this process (lock
//! cohorting), so that a change of holder at home costs no round trip.
//!
//! The token on the wire stays and names this process's possession; each holder inside has a [`Hold`]
//! of its own, so each has its own fencing token, loss and hold count.
//!
//! # Invariants
//!
//! 1. **Decided before any release is sent**, in the step that ends the hold for its holder.
//! 2. **Only what is sure is passed on** ([`State::may_pass`](super::state::State::may_pass)), with a
//!    fencing token that the grant has reserved.
//! 3. **Bounded**, by a count and by a share of T; then it is really released, for other processes.
//! 4. **Never dropped on the way**: what nobody receives goes on to the next, and in the end to the
//!    store. Passing over waiters that went away is a loop.

use super::Hold;
use super::engine::Core;
use super::queue::{Admission, Waiter};
use super::reaper::Job;
use super::state::Phase;
use crate::clock::Instant;
use crate::error::Loss;
use std::sync::Arc;

impl Hold {
    /// One lease less; the last one ends the hold for its holder. Returns the phase as it was, unless it
    /// was passed on: the caller settles then.
    pub(crate) fn leave(self: &Arc<Self>, core: &Arc<Core>, now: Instant) -> Option<Phase> {
        if self.pass_on(core, now) {
            return None;
        }
        Some(self.update_at(core, now, |state, now| state.leave(&core.timing, now)))
    }

    /// One lease less, in the background.
    pub(crate) fn give_back(self: &Arc<Self>, core: &Arc<Core>) {
        if self.leave(core, core.now()).is_some() {
            core.reap(Job::Settle(Arc::clone(self)));
        }
    }

    fn pass_on(self: &Arc<Self>, core: &Arc<Core>, now: Instant) -> bool {
        let mut next = self.succeed(core, now);
        let passed = next.is_some();
        while let Some((waiter, hold)) = next {
            let admission = Admission::Hold(Passed { core: Arc::clone(core), hold: Some(hold) });
            next = match waiter.send(admission) {
                Ok(()) => None,
                // He went away in this moment. Whoever is next gets it; without one it is given back.
                Err(Admission::Hold(mut passed)) => {
                    let hold = passed.hold.take();
                    hold.and_then(|hold| {
                        let next = hold.succeed(core, now);
                        if next.is_none() {
                            hold.give_back(core);
                        }
                        next
                    })
                }
                Err(Admission::Turn(_)) => None,
            };
        }
        passed
    }

    /// Ends it for its holder and begins what the first waiter is to have, if it may be passed on.
    fn succeed(self: &Arc<Self>, core: &Arc<Core>, now: Instant) -> Option<(Waiter, Arc<Self>)> {
        let mut inner = self.lock();
        if !inner.state.may_pass(&core.timing, now, core.settings.handoff_bound) || core.is_closed()
        {
            return None;
        }
        let (waiter, hold) = core.queue.hand_over(&self.name, || {
            let max_until = core.settings.max_hold.map(|max| now + max);
            let state = inner.state.pass(max_until);
            let turn = inner.turn.take();
            let fence = self.fence.map(|fence| fence + 1);
            Self::new(self.name.clone(), self.token, fence, state, turn)
        })?;
        let (scheduled, watched) = (inner.scheduled.take(), inner.watched);
        drop(inner);
        core.schedule.set(self, scheduled, None);
        if watched {
            self.changed.notify_waiters();
        }
        hold.start(core, now);
        Some((waiter, hold))
    }

    /// Whether a holder who comes to it at `now` can rely on it for as long as on a new grant.
    fn is_worth_having(self: &Arc<Self>, core: &Arc<Core>, now: Instant) -> bool {
        self.phase(core) == Phase::Held && !core.timing.stale(self.confirmed(), now)
    }
}

/// A hold on its way to the next in line.
pub(crate) struct Passed {
    core: Arc<Core>,
    hold: Option<Arc<Hold>>,
}

impl Passed {
    /// The hold, if it is still worth having: the waiter's runtime may have been stopped meanwhile.
    pub(crate) fn accept(mut self) -> Option<Arc<Hold>> {
        let core = &self.core;
        let worth = |hold: &mut Arc<Hold>| hold.is_worth_having(core, core.now());
        self.hold.take_if(worth)
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.give_back(&self.core);
        }
    }
}

/// Ends belief in whatever this process has of a name, and returns it.
pub(crate) fn lose(core: &Arc<Core>, name: &crate::store::Name, loss: Loss) -> Option<Arc<Hold>> {
    let mut told: Option<Arc<Hold>> = None;
    loop {
        // It may be passed on between the look and the word.
        match core.queue.hold(name) {
            Some(hold) if !told.as_ref().is_some_and(|told| Arc::ptr_eq(told, &hold)) => {
                hold.lose(core, loss);
                told = Some(hold);
            }
            _ => return told,
        }
    }
}
