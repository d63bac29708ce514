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
//!    ([`offer`]).
//! 6. **In the order of the line.** A hold of a fair lock is handed off only to a waiter that may pass those of other
//!    processes ([`HandoffScope`](crate::engine::machine::chain::HandoffScope)).
//! 7. **By the policy of its holder.** A hold before the end of its `min_hold` is not handed off, and no hold to a waiter with
//!    another `lock_delay`, which the store does not know yet.
//! 8. **Its own in the store, if that matters.** A hold that another manager wants is released: that is what it asked for, and
//!    the next holder, which nothing asked to go, would have the holder id that is wanted. So is one whose id a
//!    [guard](crate::Lease::guard) names: it would let the writes of the last holder pass.
//! 9. **By the size of the semaphore.** After a resize to fewer permits by this manager, those that are out are released in the
//!    store, which alone knows when enough are back.
//! 10. **It may rest before the next waiter is there**, where the manager lingers
//!     ([`State::rest`](crate::engine::machine::hold::State::rest)). Then the first call that asks for the name has it handed
//!     off, by the same rules, or released. Whatever ends the rest earlier has it released.
//! 11. **Not renewed until it is accepted.** A hold not accepted by the time its renewal is due is
//!     released: no waiter waits for a future that is not polled.

use super::describe;
use crate::clock::Instant;
use crate::engine::machine::contention::HolderSlot;
use crate::engine::machine::count::Share;
use crate::engine::machine::hold::{Phase, State};
use crate::engine::machine::mode;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::{Grant, Hold, HolderAndFence, Inner};
use crate::engine::shared::options::{Options, Settings};
use crate::engine::shared::queue::{HandedOff, Handoff};
use crate::engine::shared::report::CallReport;
use crate::observe::{EventKind, How, Recorded};
use crate::store::Name;
use crate::util::reached::Rare;
use crate::util::sync::MutexGuard;
use std::sync::Arc;
use std::time::Duration;

/// Ends one lease of a share; the last one ends the hold for its holder. Returns the phase before that, or
/// `None` if the hold was handed off. After `Some` the caller releases it.
pub(crate) fn leave(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    now: Instant,
    share: Share,
) -> Option<Phase> {
    leave_as(core, hold, now, share, AtEnd::Lingers)
}

/// Ends one lease of a share as [`leave`] does, but the hold does not rest.
pub(super) fn leave_now(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    now: Instant,
    share: Share,
) -> Option<Phase> {
    leave_as(core, hold, now, share, AtEnd::Releases)
}

/// What becomes of a hold whose last lease ends, if no call of this process waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    /// It rests, if the manager lingers and it may.
    Lingers,
    Releases,
}

fn leave_as(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    now: Instant,
    share: Share,
    at_end: AtEnd,
) -> Option<Phase> {
    let mut inner = hand_off(core, hold, now, at_end)?;
    inner.leave_share(share);
    let leave = |state: &mut State, now| state.leave(&core.timing, now);
    Some(hold.update_locked(core, now, inner, None, leave))
}

/// Ends the rest of a hold, if it rests: it is handed off to the first waiter, if it suits that one, or released. Returns
/// whether it rested.
pub(crate) fn end_rest(core: &Arc<Core>, hold: &Arc<Hold>) -> bool {
    let rests = hold.lock().state.rests();
    if rests {
        leave_in_background(core, hold, Share::FIRST);
    }
    rests
}

/// Ends the rests of all holds, as [`end_rest`] does.
pub(crate) fn end_rests(core: &Arc<Core>) {
    core.queue.holds().iter().for_each(|hold| _ = end_rest(core, hold));
}

/// Follows the question of another manager for a name: gives it up, if it rests, and lets no hold of the same chain rest any
/// more.
pub(in crate::engine) fn yield_rest(core: &Arc<Core>, name: &Name) {
    core.queue.each_hold_of(name, |hold| {
        let rests = hold.lock().state.wanted_elsewhere();
        if rests {
            Rare::RestYielded.reached();
            leave_in_background(core, hold, Share::FIRST);
        }
    });
}

/// Records that the work is done, and ends the lease: the release keeps the name closed for `keep`. As [`leave`]
/// otherwise.
pub(super) fn leave_done(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    now: Instant,
    share: Share,
    keep: Duration,
) -> Phase {
    let mut inner = hold.lock();
    inner.leave_share(share);
    hold.update_locked(core, now, inner, None, |state, now| {
        state.mark_done(&core.timing, now, keep);
        state.leave(&core.timing, now)
    })
}

/// Ends one lease of a share and leaves the rest to the engine.
pub(crate) fn leave_in_background(core: &Arc<Core>, hold: &Arc<Hold>, share: Share) {
    if leave(core, hold, core.now(), share).is_some() {
        hold.release_if_needed(core);
    }
}

/// Hands the hold off to the first waiter, or lets it rest. Otherwise it returns the hold's data, locked.
fn hand_off<'a>(
    core: &Arc<Core>,
    hold: &'a Arc<Hold>,
    now: Instant,
    at_end: AtEnd,
) -> Option<MutexGuard<'a, Inner>> {
    let (handoff, is_described) = match replace_with_next(core, hold, now, at_end) {
        Ok(next) => next,
        Err(inner) => return Some(inner),
    };
    let next = Arc::clone(&handoff.hold);
    core.queue.perform(handoff.effects);
    if is_described {
        // The description of the holder before it is out of date.
        describe::write_later(core, &next);
    }
    None
}

/// Ends the hold for its holder and starts the next one, if it may be handed off or may rest. Returns what wakes its waiter, and
/// whether the store is to describe the next holder in place of the one before it. If it may not, returns the hold's data, still locked.
fn replace_with_next<'a>(
    core: &Arc<Core>,
    hold: &'a Arc<Hold>,
    now: Instant,
    at_end: AtEnd,
) -> Result<(Handoff, bool), MutexGuard<'a, Inner>> {
    let mut inner = hold.lock();
    let linger = core.settings.linger.filter(|_| at_end == AtEnd::Lingers);
    // Most names have none.
    if linger.is_none() && !core.queue.is_contended(&hold.name) {
        return Err(inner);
    }
    if inner.state.is_resting() {
        let renew = core.timing.renewal(inner.state.confirmed(), core.jitter());
        Rare::RestEnded.reached();
        inner.state.end_rest(now, renew);
    }
    let Settings { max_local_handoffs, fencing, .. } = core.settings;
    let reserved = fencing.filter(|_| hold.fence.is_some()).map(|fencing| fencing.block);
    let has_fence = |state: &State| reserved.is_none_or(|block| state.has_fence(now, block));
    Rare::FencesUsedUp.reached_if(|| !has_fence(&inner.state));
    Rare::KeptItsId.reached_if(|| hold.keeps_its_id(&inner));
    if !inner.state.may_hand_off(&core.timing, now, max_local_handoffs)
        || !has_fence(&inner.state)
        || core.life.is_closed()
        // A leader resigns in the store: observers never see its value under the id of the next.
        || inner.described.as_ref().is_some_and(|described| described.value.is_some())
        || hold.keeps_its_id(&inner)
        // The slot of a reader that tried to become the writer is that of a writer still.
        || !mode::can_hand_off(hold.mode)
    {
        return Err(inner);
    }
    let chain = inner.state.chain(now);
    let Some(slot) = inner.slot.as_ref().map(HolderSlot::number) else { return Err(inner) };
    let is_offered = inner.state.is_offered();
    let mut event = Recorded::default();
    let mut is_described = false;
    let handed_off = core.queue.hand_off(&hold.name, slot, now, &chain, |options| {
        let state = inner.state.hand_off(now + core.timing.attempt);
        let next =
            next_of(hold, &mut inner, state, options, hold.fence.map(|fence| fence + 1), now);
        is_described = next.lock().described.is_some();
        // Queued before the waiter can see the offer, and so before its grant.
        if !is_offered {
            event = hold.happened(core, now, EventKind::HandedOff { held: hold.held(now) });
        }
        next
    });
    let linger = linger.filter(|_| mode::can_rest(hold.mode) && hold.options.may_rest());
    let next = match (handed_off, linger) {
        (Some(next), _) => next,
        (None, None) => return Err(inner),
        (None, Some(linger)) => {
            let rests = core.queue.rest(&hold.name, slot, || {
                let state = inner.state.rest(&core.timing, now, linger)?;
                let options = hold.options.clone();
                let next = next_of(hold, &mut inner, state, options, hold.fence, now);
                // For its holder this is the end, whatever the store still keeps.
                event = hold.happened(core, now, EventKind::Released { held: hold.held(now) });
                Some(next)
            });
            let Some(next) = rests else { return Err(inner) };
            next
        }
    };
    let scheduled = inner.scheduled.take();
    drop(inner);
    event.finish();
    next.hold.start_after(core, hold, scheduled);
    hold.notify();
    Ok((next, is_described))
}

/// Makes the next hold of a chain, with the slot of the one before.
fn next_of(
    hold: &Hold,
    inner: &mut Inner,
    state: State,
    options: Options,
    fence: Option<u64>,
    now: Instant,
) -> Arc<Hold> {
    let slot = inner.slot.take();
    let id = HolderAndFence { holder: hold.holder, fence };
    let next = Hold::new(hold.target(), options, id, now, state, slot);
    if let Some(described) = describe::for_next(inner) {
        next.lock().described = Some(described);
    }
    next
}

/// Hands the grant of a request that no call waits for off to a waiter, or releases it.
pub(in crate::engine) fn offer(core: &Arc<Core>, grant: Grant) {
    let Grant { target, options, holder, fence, reached, sent, now, unsure_until, slot, .. } =
        grant;
    let renew = core.timing.renewal(sent, core.jitter());
    let mut granted = State::granted(sent, renew, None, unsure_until);
    granted.reached(if reached { now } else { Instant::MAX });
    let state = granted.hand_off(now + core.timing.attempt);
    let number = slot.as_ref().map(HolderSlot::number);
    let hold = Hold::new(target, options, HolderAndFence { holder, fence }, now, state, slot);
    hold.install(core, sent, number);
    leave_in_background(core, &hold, Share::FIRST);
}

/// Returns the hold, if it has enough time left: the runtime of the waiter may have been
/// stopped meanwhile, or the hold may have been recalled.
pub(crate) fn accept(
    core: &Arc<Core>,
    mut offered: HandedOff,
    report: &CallReport<'_>,
    now: Instant,
) -> Option<Arc<Hold>> {
    let max_hold = core.settings.max_hold;
    let mut event = Recorded::default();
    let hold = offered.hold.take_if(|hold| {
        hold.update_at(core, now, |state, now| {
            let accepted = state.accept(&core.timing, now, max_hold);
            Rare::HandedOffTooLate.reached_if(|| !accepted);
            if accepted {
                event = hold.happened(core, now, report.granted(hold.fence, How::HandedOff, now));
                state.set_policy(hold.options.policy(&core.settings, now, report.caller));
            }
            accepted
        })
    });
    event.finish();
    hold
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::acquire::turn::{Admission, Turn, WaiterGuard};
    use crate::engine::admin::revoke::lose_all;
    use crate::engine::machine::chain::HandoffScope;
    use crate::engine::machine::timing::Timing;
    use crate::engine::run::Engine;
    use crate::engine::shared::core::core_in_memory;
    use crate::engine::shared::options::NO_OPTIONS;
    use crate::engine::shared::queue::Waits;
    use crate::error::Loss;
    use crate::store::{MemoryStore, Mode, Target};
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Barrier;
    use std::task::{Context, Waker};
    use uuid::Uuid;

    /// Begins a hold of a name that nothing else has.
    fn begun(core: &Arc<Core>) -> Arc<Hold> {
        let name = Name::new("n").unwrap();
        let turn = Turn::at_once(&core.queue, &name, Mode::Exclusive, core.now()).unwrap();
        let now = core.now();
        let grant = Grant {
            target: Target::exclusive(name),
            options: Options::default(),
            holder: core.draw_holder(),
            fence: None,
            reached: false,
            sent: now,
            now,
            unsure_until: None,
            scope: HandoffScope::OutsideTheLine,
            slot: turn.into_slot(),
        };
        let name = grant.target.name.clone();
        Hold::begin(core, grant, &report(core, &name))
    }

    fn report<'a>(core: &'a Core, name: &'a Name) -> CallReport<'a> {
        CallReport::new(core, name, Mode::Exclusive, &NO_OPTIONS, core.now(), None)
    }

    #[test]
    fn hold_is_dropped_with_its_engine() {
        let core = core_in_memory();
        let hold = Arc::downgrade(&begun(&core));
        assert!(hold.upgrade().is_some());
        drop(core);
        assert!(hold.upgrade().is_none());
    }

    /// As one that `close` did not find, because it began just after that.
    #[test]
    fn hold_begun_while_the_manager_closes_is_lost_at_once() {
        let core = core_in_memory();
        core.set_closed();
        let hold = begun(&core);
        assert_eq!(hold.loss(), Some(Loss::Closed));
        assert!(!hold.is_over(), "its release is owed");
    }

    fn handed_off(admission: Result<Admission, Waits>) -> HandedOff {
        let Ok(Admission::Hold(offered)) = admission else { panic!("no hold") };
        offered
    }

    /// Returns a core, a hold, and the guards of waiters for it.
    fn with_waiters<const N: usize>(
        test: impl FnOnce(&Arc<Core>, &Arc<Hold>, [WaiterGuard<'_>; N]),
    ) {
        let settings = Settings { max_local_handoffs: 100, ..Settings::PLAIN };
        let core = Engine::core(
            Uuid::new_v4(),
            Arc::new(MemoryStore::new()),
            Timing::DEFAULT,
            settings,
            true,
        );
        let (hold, name) = (begun(&core), Name::new("n").unwrap());
        let mut waiters = [(); N].map(|()| WaiterGuard::new(&core.queue, &name, Mode::Exclusive));
        waiters.iter_mut().for_each(|waiter| assert!(waiter.pulse(core.now()).is_err()));
        test(&core, &hold, waiters);
    }

    /// Returns whether a waiter was woken.
    fn is_woken(waiter: &mut WaiterGuard<'_>) -> bool {
        pin!(waiter.woken()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn hold_comes_with_the_wake_up_of_its_waiter() {
        with_waiters(|core, hold, [mut first, mut second]| {
            leave_in_background(core, hold, Share::FIRST);
            assert!(is_woken(&mut first) && !is_woken(&mut second));
            assert!(second.pulse(core.now()).is_err());
            let offered = handed_off(first.pulse(core.now()));
            let next = accept(core, offered, &report(core, &hold.name), core.now()).unwrap();
            assert_eq!((next.holder, next.number == hold.number), (hold.holder, false));
            leave_in_background(core, &next, Share::FIRST);
            // Not polled since: it finds the message at its pulse.
            drop(handed_off(second.pulse(core.now())));
        });
    }

    #[test]
    fn hold_of_a_waiter_that_is_dropped_goes_to_the_next() {
        for is_awake in [false, true] {
            with_waiters(|core, hold, [mut first, mut second]| {
                leave_in_background(core, hold, Share::FIRST);
                assert!(!is_awake || is_woken(&mut first));
                drop(first);
                assert!(is_woken(&mut second));
                drop(handed_off(second.pulse(core.now())));
            });
        }
    }

    #[test]
    fn waiter_just_woken_finds_its_hold_at_the_next_pulse() {
        with_waiters(|core, hold, [mut first, mut second]| {
            core.queue.wake_all();
            leave_in_background(core, hold, Share::FIRST);
            assert!(is_woken(&mut first) && is_woken(&mut second));
            assert!(second.pulse(core.now()).is_err(), "it is the first one's");
            let offered = handed_off(first.pulse(core.now()));
            assert!(accept(core, offered, &report(core, &hold.name), core.now()).is_some());
        });
    }

    /// On another thread, which hands it off along a line.
    #[test]
    fn hold_handed_off_while_all_are_lost_is_lost_too() {
        for _ in 0..300 {
            let settings = Settings { max_local_handoffs: 100, ..Settings::PLAIN };
            let store = Arc::new(MemoryStore::new());
            let core = Engine::core(Uuid::new_v4(), store, Timing::DEFAULT, settings, true);
            let mut hold = begun(&core);
            let name = hold.name.clone();
            let waiter = |_| WaiterGuard::new(&core.queue, &name, Mode::Exclusive);
            let mut waiters: Vec<WaiterGuard> = (0..50).map(waiter).collect();
            waiters.iter_mut().for_each(|waiter| assert!(waiter.pulse(core.now()).is_err()));
            let began = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    began.wait();
                    for mut waiter in waiters {
                        leave_in_background(&core, &hold, Share::FIRST);
                        let now = core.now();
                        let Ok(Admission::Hold(next)) = waiter.pulse(now) else { return };
                        let Some(next) = accept(&core, next, &report(&core, &name), now) else {
                            return;
                        };
                        hold = next;
                    }
                });
                began.wait();
                lose_all(&core, &name, Loss::Revoked);
            });
            let held =
                core.queue.holds_of(&name).iter().any(|hold| hold.phase(&core) == Phase::Held);
            assert!(!held);
        }
    }
}
