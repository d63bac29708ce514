//! Hands off a hold in memory to the first waiter of this process (lock cohorting), so that a local
//! change of holder costs no round trip.
//!
//! The holder id on the wire stays and stands for this process. Each local holder has its own
//! [`Hold`], and so its own fencing token, loss and hold count.
//!
//! # Invariants
//!
//! 1. **Decided before any release is sent**, in the step that ends the hold for its holder.
//! 2. **Only a sure hold is handed off**
//!    ([`State::may_hand_off`](super::state::State::may_hand_off)), with a fencing token that the
//!    grant has reserved, or that the store's clock has passed since.
//! 3. **Bounded**, by a count and by a share of T. Then the hold is released in the store, for
//!    other processes.
//! 4. **Never dropped on the way.** The offer of a waiter that goes away moves to the next waiter,
//!    and in the end the hold is released in the store.
//! 5. **In the order of the line.** A hold of a fair lock is handed off only to a waiter that may pass those of other
//!    processes ([`Heirs`](super::heirs::Heirs)).
//! 6. **Not renewed until it is accepted.** A hold not accepted by the time its renewal is due is
//!    released: no waiter waits for a future that is not polled.

use super::core::{Core, Settings};
use super::hold::Hold;
use super::job::Job;
use super::name_entry::{HandedOff, TakesBack};
use super::state::Phase;
use super::wake::{run_wakers, wake_waiter};
use crate::clock::Instant;
use std::sync::Arc;
use tokio::sync::oneshot;

impl Hold {
    /// Ends one lease; the last one ends the hold for its holder. Returns the phase before that, or
    /// `None` if the hold was handed off. After `Some` the caller flushes.
    pub(crate) fn leave(self: &Arc<Self>, core: &Arc<Core>, now: Instant) -> Option<Phase> {
        if self.hand_off(core, now) {
            return None;
        }
        Some(self.update_at(core, now, |state, now| state.leave(&core.timing, now)))
    }

    /// Ends one lease and leaves the rest to the engine.
    pub(crate) fn leave_in_background(self: &Arc<Self>, core: &Arc<Core>) {
        if self.leave(core, core.now()).is_some() {
            core.submit(Job::Flush(Arc::clone(self)));
        }
    }

    /// Hands the hold off to the first waiter. Returns whether it did.
    fn hand_off(self: &Arc<Self>, core: &Arc<Core>, now: Instant) -> bool {
        let Some((waiter, hold)) = self.prepare_handoff(core, now) else { return false };
        hold.start(core, now);
        waiter.into_iter().for_each(wake_waiter);
        true
    }

    /// Ends the hold for its holder and installs the next one, if it may be handed off. Returns the
    /// waiter to wake and its hold.
    fn prepare_handoff(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
    ) -> Option<(Option<oneshot::Sender<()>>, Arc<Self>)> {
        let mut inner = self.lock();
        let Settings { handoff_bound, fencing, .. } = core.settings;
        let reserved = fencing.filter(|_| self.fence.is_some()).map(|fencing| fencing.block);
        if !inner.state.may_hand_off(&core.timing, now, handoff_bound)
            || !reserved.is_none_or(|block| inner.state.has_fence(now, block))
            || core.is_closed()
        {
            return None;
        }
        let when = (now, inner.state.is_young(now));
        let heirs = inner.state.heirs();
        let next = core.queue.hand_off(&self.name, when, heirs, || {
            let state = inner.state.hand_off(now + core.timing.attempt);
            let seat = inner.seat.take();
            let fence = self.fence.map(|fence| fence + 1);
            let hold = Self::new(self.target(), self.holder, fence, state, seat);
            let offered = HandedOff { from: Arc::clone(core) as _, hold: Some(Arc::clone(&hold)) };
            (hold, offered)
        })?;
        let (scheduled, watchers) = (inner.scheduled.take(), self.watchers(&inner));
        drop(inner);
        core.schedule.set(self, scheduled, None);
        if let Some(watchers) = watchers {
            run_wakers(|| watchers.notify_waiters());
        }
        Some(next)
    }
}

impl HandedOff {
    /// Returns the hold, if it has enough time left: the runtime of the waiter may have been
    /// stopped meanwhile, or the hold may have been taken back.
    pub(crate) fn accept(mut self, core: &Arc<Core>) -> Option<Arc<Hold>> {
        let max_hold = core.settings.max_hold;
        self.hold.take_if(|hold| {
            hold.update(core, |state, now| state.accept(&core.timing, now, max_hold))
        })
    }
}

impl TakesBack for Core {
    fn take_back(self: Arc<Self>, hold: Arc<Hold>) {
        hold.leave_in_background(&self);
    }
}
