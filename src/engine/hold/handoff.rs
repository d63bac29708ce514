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
//!    ([`State::may_hand_off`](crate::engine::machine::hold::State::may_hand_off)), with a fencing token that the
//!    grant has reserved, or that the store's clock has passed since.
//! 3. **Bounded**, by a count and by a share of T. Then the hold is released in the store, for
//!    other processes.
//! 4. **Never dropped on the way.** The offer of a waiter that goes away moves to the next waiter,
//!    and in the end the hold is released in the store.
//! 5. **In the order of arrival.** A call that asks the store for permits comes before all that are in the queue, so it is
//!    handed the hold while it asks ([`Turn::seek`](crate::engine::acquire::turn::Turn::seek)). Its turn ends in the
//!    same step, and the next call goes on with its subscription and the time of its next request: the store has just
//!    refused, so it need not ask. If that call wants another number of permits, or makes one attempt, the hold is
//!    released in the store. A request of it that is not answered yet is left to the engine, which hands off what it brings
//!    ([`Hold::offer`]).
//! 6. **In the order of the line.** A hold of a fair lock is handed off only to a waiter that may pass those of other
//!    processes ([`HandoffScope`](crate::engine::machine::chain::HandoffScope)).
//! 7. **By the policy of its holder.** A hold before the end of its `min_hold` is not handed off, and no hold to a waiter with
//!    another `lock_delay`, which the store does not know yet.
//! 8. **Its own in the store, if that matters.** A hold that another manager wants is released: that is what it asked for, and
//!    the next holder, which nothing asked to go, would have the holder id that is wanted. So is one whose id a
//!    [guard](crate::Lease::guard) names: it would let the writes of the last holder pass.
//! 9. **By the size of the semaphore.** After a resize to fewer permits by this manager, those that are out are released in the
//!    store, which alone knows when enough are back.
//! 10. **Not renewed until it is accepted.** A hold not accepted by the time its renewal is due is
//!     released: no waiter waits for a future that is not polled.

use crate::clock::Instant;
use crate::engine::machine::count::Share;
use crate::engine::machine::hold::{Phase, State};
use crate::engine::machine::mode;
use crate::engine::machine::occupants::HolderSlot;
use crate::engine::shared::core::{Core, Settings};
use crate::engine::shared::hold::{Hold, Inner};
use crate::engine::shared::life::Grant;
use crate::engine::shared::queue::{HandedOff, Handoff};
use crate::engine::shared::report::CallReport;
use crate::observe::{EventKind, How, Recorded};
use crate::util::panics::run_wakers;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

impl Hold {
    /// Ends one lease of a share; the last one ends the hold for its holder. Returns the phase before that, or
    /// `None` if the hold was handed off. After `Some` the caller flushes.
    pub(crate) fn leave(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
        share: Share,
    ) -> Option<Phase> {
        let mut inner = self.hand_off(core, now)?;
        inner.leave_share(share);
        let leave = |state: &mut State, now| state.leave(&core.timing, now);
        Some(self.update_locked(core, now, inner, None, leave))
    }

    /// Records that the work is done, and ends the lease: the release keeps the name closed for `keep`. As [`leave`](Self::leave)
    /// otherwise.
    pub(super) fn leave_done(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
        share: Share,
        keep: Duration,
    ) -> Phase {
        let mut inner = self.lock();
        inner.leave_share(share);
        self.update_locked(core, now, inner, None, |state, now| {
            state.finish(&core.timing, now, keep);
            state.leave(&core.timing, now)
        })
    }

    /// Ends one lease of a share and leaves the rest to the engine.
    pub(crate) fn leave_in_background(self: &Arc<Self>, core: &Arc<Core>, share: Share) {
        if self.leave(core, core.now(), share).is_some() {
            self.flush_if_needed(core);
        }
    }

    /// Hands the hold off to the first waiter. Otherwise it returns the hold's data, locked.
    fn hand_off(self: &Arc<Self>, core: &Arc<Core>, now: Instant) -> Option<MutexGuard<'_, Inner>> {
        let (handoff, is_described) = match self.prepare_handoff(core, now) {
            Ok(next) => next,
            Err(inner) => return Some(inner),
        };
        let hold = Arc::clone(&handoff.hold);
        core.queue.complete(handoff);
        if is_described {
            // The description of the holder before it is out of date.
            core.tell_later(&hold);
        }
        None
    }

    /// Ends the hold for its holder and starts the next one, if it may be handed off. Returns what wakes its waiter, and
    /// whether the store describes the holder before it. If it may not, returns the hold's data, still locked.
    fn prepare_handoff(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
    ) -> Result<(Handoff, bool), MutexGuard<'_, Inner>> {
        let mut inner = self.lock();
        let Settings { handoff_bound, fencing, .. } = core.settings;
        let reserved = fencing.filter(|_| self.fence.is_some()).map(|fencing| fencing.block);
        if !inner.state.may_hand_off(&core.timing, now, handoff_bound)
            || !reserved.is_none_or(|block| inner.state.has_fence(now, block))
            || core.life.is_closed()
            // A leader resigns in the store: observers never see its value under the id of the next.
            || inner.described.as_ref().is_some_and(|told| told.value.is_some())
            || self.keeps_its_id(&inner)
            // The slot of a reader that tried to become the writer is that of a writer still.
            || !mode::can_hand_off(self.mode)
        {
            return Err(inner);
        }
        let chain = inner.state.chain(now);
        let Some(slot) = inner.slot.as_ref().map(HolderSlot::number) else { return Err(inner) };
        let is_offered = inner.state.is_offered();
        let mut told = Recorded::default();
        let mut is_described = false;
        let next = core.queue.hand_off(&self.name, slot, now, &chain, |options| {
            let state = inner.state.hand_off(now + core.timing.attempt);
            let slot = inner.slot.take();
            let fence = self.fence.map(|fence| fence + 1);
            let holder = (self.holder, fence);
            let hold = Self::new(self.target(), options, holder, now, state, slot);
            if let Some(described) = Self::described_to(&inner) {
                is_described = true;
                hold.lock().described = Some(described);
            }
            // Queued before the waiter can see the offer, and so before its grant.
            if !is_offered {
                told = self.happened(core, now, EventKind::HandedOff { held: self.held(now) });
            }
            hold
        });
        let Some(next) = next else { return Err(inner) };
        let (scheduled, watchers) = (inner.scheduled.take(), self.watchers(&inner));
        drop(inner);
        told.finish();
        next.hold.start_after(core, self, scheduled);
        if let Some(watchers) = watchers {
            run_wakers(|| watchers.notify_waiters());
        }
        Ok((next, is_described))
    }

    /// Hands the grant of a request that no call waits for off to a waiter, or releases it.
    pub(in crate::engine) fn offer(core: &Arc<Core>, grant: Grant) {
        let Grant {
            target, options, holder, fence, reached, sent, now, unsure_until, turn, ..
        } = grant;
        let renew = core.timing.renewal(sent, core.jitter());
        let mut granted = State::granted(sent, renew, None, unsure_until);
        granted.reached(if reached { now } else { Instant::MAX });
        let state = granted.hand_off(now + core.timing.attempt);
        let number = turn.number();
        let hold = Self::new(target, options, (holder, fence), now, state, turn.into_slot());
        let forced = core.queue.install(&hold, number, sent);
        hold.start(core, now);
        if forced {
            hold.update(core, State::renew_at);
        }
        hold.leave_in_background(core, Share::FIRST);
    }
}

impl HandedOff {
    /// Returns the hold, if it has enough time left: the runtime of the waiter may have been
    /// stopped meanwhile, or the hold may have been taken back.
    pub(crate) fn accept(
        mut self,
        core: &Arc<Core>,
        report: &CallReport<'_>,
        now: Instant,
    ) -> Option<Arc<Hold>> {
        let max_hold = core.settings.max_hold;
        let mut told = Recorded::default();
        let hold = self.hold.take_if(|hold| {
            hold.update_at(core, now, |state, now| {
                let accepted = state.accept(&core.timing, now, max_hold);
                if accepted {
                    told =
                        hold.happened(core, now, report.granted(hold.fence, How::HandedOff, now));
                    state.set_policy(core.policy(&hold.options, now, report.caller));
                }
                accepted
            })
        });
        told.finish();
        hold
    }
}
