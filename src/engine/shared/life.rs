//! The life of one hold: each transition and its effects.

use super::core::Core;
use super::hold::{Hold, Inner};
use super::job::{Job, Sweep};
use super::options::Options;
use super::report::CallReport;
use super::schedule::Group;
use crate::clock::Instant;
use crate::engine::acquire::turn::Turn;
use crate::engine::machine::chain::HandoffScope;
use crate::engine::machine::count::Share;
use crate::engine::machine::hold::{ChangeVerdict, Phase, Recorder, Reentry, State};
use crate::engine::machine::mode;
use crate::error::{Error, Loss, Result};
use crate::observe::{EventKind, How};
use crate::store::{Absence, HolderId, Name, Target};
use crate::util::panics::run_wakers;
use crate::util::trace;
use std::collections::HashSet;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tracing::Level;

/// A grant of the store.
pub(crate) struct Grant {
    pub(crate) target: Target,
    pub(crate) options: Options,
    pub(crate) holder: HolderId,
    pub(crate) fence: Option<u64>,
    /// True if the store's clock has reached the fencing token.
    pub(crate) reached: bool,
    pub(crate) sent: Instant,
    /// The time at which the grant arrived.
    pub(crate) now: Instant,
    /// The time until which other requests of this grant may still run.
    pub(crate) unsure_until: Option<Instant>,
    /// To whom the hold may be handed off.
    pub(in crate::engine) scope: HandoffScope,
    pub(in crate::engine) turn: Turn,
}

impl Hold {
    /// Begins the life of a hold: with one lease, scheduled, and in the queue.
    pub(crate) fn begin(core: &Arc<Core>, grant: Grant, report: &CallReport<'_>) -> Arc<Self> {
        let Grant { target, options, fence, reached, sent, now, unsure_until, scope, .. } = grant;
        let (holder, turn) = (grant.holder, grant.turn);
        let policy = core.policy(&options, now, report.caller);
        let renew = core.timing.renewal(sent, core.jitter());
        let max_until = core.settings.max_hold.map(|max| now + max);
        let mut state = State::granted(sent, renew, max_until, unsure_until);
        // How far the token is ahead of the clock is unknown, so only the reserved block counts.
        state.reached(if reached { now } else { Instant::MAX });
        if mode::is_joined(target.mode) {
            state.share();
        }
        state.set_handoff_scope(scope);
        state.set_policy(policy);
        let number = turn.number();
        let hold = Self::new(target, options, (holder, fence), now, state, turn.into_slot());
        // Before any other task can find it.
        hold.happened(core, now, report.granted(fence, How::Store, now)).finish();
        let forced = core.queue.install(&hold, number, sent);
        hold.start(core, now);
        if forced {
            hold.update(core, State::renew_at);
        }
        hold
    }

    /// Puts the hold into the schedule. It is in the queue already.
    pub(in crate::engine) fn start(self: &Arc<Self>, core: &Arc<Core>, now: Instant) {
        self.update_at(core, now, |_, _| ());
        self.end_if_closed(core);
    }

    /// Puts the hold into the schedule, as [`start`](Self::start) does, in place of the hold that was handed off to it.
    pub(in crate::engine) fn start_after(
        self: &Arc<Self>,
        core: &Arc<Core>,
        last: &Self,
        was: Option<Instant>,
    ) {
        let mut inner = self.lock();
        // Its waiter may have accepted it meanwhile, which puts it there.
        let at = if inner.scheduled.is_none() { inner.state.wake_at(&core.timing) } else { None };
        core.schedule.replace(last.number, was, self, at);
        inner.scheduled = inner.scheduled.or(at);
        drop(inner);
        self.end_if_closed(core);
    }

    fn end_if_closed(self: &Arc<Self>, core: &Arc<Core>) {
        // Race with `close`: it sets `is_closed` first and then scans the queue, so either it finds
        // this hold or this line sees that.
        if core.life.is_closed() {
            self.lose(core, Loss::Closed);
        }
    }

    /// Runs a transition and its effects: on the schedule, the token, the slot and the trace.
    pub(in crate::engine) fn update<R>(
        self: &Arc<Self>,
        core: &Arc<Core>,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> R {
        self.update_at(core, core.now(), change)
    }

    pub(in crate::engine) fn update_at<R>(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> R {
        self.update_locked(core, now, self.lock(), None, change)
    }

    pub(in crate::engine) fn update_locked<R>(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
        mut inner: MutexGuard<'_, Inner>,
        group: Option<&mut Group<'_>>,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> R {
        let (was, was_over) = (inner.state.phase(), inner.state.is_over());
        let watchers = self.watchers(&inner).map(|watchers| (watchers, inner.state.visible()));
        let result = change(&mut inner.state, now);
        let mut wake_at = inner.state.wake_at(&core.timing);
        if inner.state.is_releasing() && inner.scheduled < wake_at {
            // The hold is about to leave the schedule; one wakeup for nothing costs less than
            // moving it.
            wake_at = inner.scheduled.or(wake_at);
        }
        if wake_at != inner.scheduled {
            match group {
                Some(group) if inner.scheduled.is_none() && wake_at == Some(group.at) => {
                    group.join(self);
                }
                _ => core.schedule.set(self, inner.scheduled, wake_at),
            }
            inner.scheduled = wake_at;
        }
        let is = inner.state.phase();
        if let (false, Phase::Lost(_), Some(told)) = (was == is, is, &mut inner.described) {
            told.lost_at = Some(now);
        }
        let believed_until = (was != is).then(|| inner.state.believed_until(&core.timing));
        let over = inner.state.is_over();
        let slot = if over { inner.slot.take() } else { None };
        let watchers = watchers.filter(|(_, before)| *before != inner.state.visible());
        let told = believed_until.map(|until| {
            let left = until.saturating_duration_since(now);
            self.tell_phase(core, &inner.state, (was, is), (now, left))
        });
        let failure = believed_until.and_then(|_| inner.failure.clone());
        let sweep = (over && !was_over).then(|| inner.state.sweep(&core.timing, now)).flatten();
        let records = inner.state.queue_record();
        drop(inner);

        if let (Some(_), Phase::Lost(_), Some(lost)) = (believed_until, is, self.lost.get()) {
            run_wakers(|| lost.cancel());
        }
        if let Some((from, until)) = sweep {
            let sweep = Sweep::late(self.target(), self.holder, from, until);
            core.submit(Job::Sweep(sweep));
        }
        if records {
            core.submit(Job::Record { name: self.name.clone(), holder: self.holder });
        }
        if let Some(slot) = slot {
            core.queue.leave_at(now, &self.name, slot.number());
        }
        if let Some(told) = told {
            told.finish();
        }
        // Last, so that a task that is woken by the end may ask at once.
        if let Some((watchers, _)) = watchers {
            run_wakers(|| watchers.notify_waiters());
        }
        if let Some(until) = believed_until {
            self.trace(is, until.saturating_duration_since(now), failure);
        }
        result
    }

    /// Traces a transition. `failure` is that of the last renewal.
    fn trace(&self, phase: Phase, left: Duration, failure: Option<Error>) {
        let name = || self.name.clone();
        let fence = self.fence;
        match phase {
            Phase::Held => trace::later(Level::INFO, || {
                let name = name();
                move || tracing::info!(name = name.as_str(), fence, "lease recovered")
            }),
            Phase::AtRisk => trace::later(Level::WARN, || {
                let (name, left_ms) = (name(), left.as_millis() as u64);
                let failure = failure.map(tracing::field::display);
                move || {
                    tracing::warn!(
                        name = name.as_str(),
                        left_ms,
                        error = failure,
                        "a lease is at risk: its renewal failed"
                    );
                }
            }),
            Phase::Lost(cause) => trace::later(Level::WARN, || {
                let name = name();
                // Another loss does not come from failed renewals.
                let failure = failure.filter(|_| cause == Loss::Expired);
                let failure = failure.map(tracing::field::display);
                move || {
                    tracing::warn!(
                        name = name.as_str(),
                        fence,
                        ?cause,
                        error = failure,
                        "a lease is lost"
                    );
                }
            }),
            // Traced when the store has confirmed.
            Phase::Releasing | Phase::Released => {}
        }
    }

    /// Reads the state after applying the clock to it, so the result is right even when the
    /// watchdog did not run.
    pub(in crate::engine) fn read<R>(
        self: &Arc<Self>,
        core: &Arc<Core>,
        look: impl FnOnce(&State) -> R,
    ) -> R {
        let now = core.now();
        let inner = self.lock();
        if !inner.state.believed() || now < inner.state.ends_at(&core.timing) {
            return look(&inner.state);
        }
        drop(inner);
        self.update(core, |state, now| {
            state.expire(&core.timing, now);
            look(state)
        })
    }

    pub(crate) fn phase(self: &Arc<Self>, core: &Arc<Core>) -> Phase {
        self.read(core, State::phase)
    }

    /// Returns the phase while a lease of it is live; none is of a hold that no waiter has accepted.
    pub(crate) fn in_use(self: &Arc<Self>, core: &Arc<Core>) -> Option<Phase> {
        self.read(core, |state| {
            let is_released = matches!(state.phase(), Phase::Releasing | Phase::Released);
            (!is_released && !state.is_offered() && state.live() > 0).then(|| state.phase())
        })
    }

    /// Returns the loss as an error, if the hold is lost.
    pub(crate) fn check(self: &Arc<Self>, core: &Arc<Core>) -> Result<()> {
        match self.phase(core) {
            Phase::Lost(loss) => Err(Error::lost(loss)),
            _ => Ok(()),
        }
    }

    /// Returns the time for which the holder may rely on the hold; zero when lost.
    pub(crate) fn remaining(self: &Arc<Self>, core: &Arc<Core>) -> Duration {
        let until =
            self.read(core, |state| state.believed().then(|| state.believed_until(&core.timing)));
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(core.now()))
    }

    /// Returns `D`, by the last confirmation.
    pub(crate) fn deadline(&self, core: &Core) -> Instant {
        self.lock().state.deadline(&core.timing)
    }

    /// Loses the hold for a reason that the process knows.
    pub(crate) fn lose(self: &Arc<Self>, core: &Arc<Core>, loss: Loss) {
        self.update(core, |state, now| {
            // A revocation deletes the key by itself, and a steal takes it; otherwise a release is owed to the store.
            let deletes = matches!(loss, Loss::Revoked | Loss::Stolen);
            let owed = (!deletes).then(|| now + core.timing.grace);
            state.lose(loss, owed);
        });
        self.flush_if_needed(core);
    }

    /// Owes a release to the store after all: `force_unlock` may not have deleted the key.
    pub(crate) fn owe(self: &Arc<Self>, core: &Arc<Core>) {
        self.update(core, |state, now| state.owe(now + core.timing.grace));
        self.flush_if_needed(core);
    }

    /// Begins the `min_hold` of its handle, if it has one, and the limits that have not begun with the grant: the caller
    /// has got the lease.
    pub(crate) fn begin_min_hold(self: &Arc<Self>, core: &Arc<Core>) {
        if self.options.pulse().is_some() {
            let (stall, max) = (core.stall_after(&self.options), core.settings.max_hold);
            self.update(core, |state, now| state.begin_limits(now, stall, max));
        }
        if let Some(min_hold) = self.options.min_hold() {
            self.lock().state.begin_min_hold(core.now() + min_hold);
        }
    }

    /// Records that no caller has a new lease of it yet. Returns whether such a lease needs a pulse; otherwise
    /// [`end_ahead`](Self::end_ahead) need not follow.
    pub(crate) fn begin_ahead(&self) -> bool {
        self.options.pulse().is_some() && self.lock().state.begin_ahead()
    }

    /// Records that a lease is in a change of the mode: the hold is not renewed for it. [`end_change`](Self::end_change) or
    /// [`end_ahead`](Self::end_ahead) must follow.
    pub(crate) fn begin_change(&self) {
        self.lock().state.begin_change();
    }

    /// Records that the caller has such a lease again.
    pub(crate) fn end_change(self: &Arc<Self>, core: &Arc<Core>) {
        self.update(core, |state, _| state.end_ahead());
    }

    /// Records that a caller has got such a lease, or that it ends next.
    pub(crate) fn end_ahead(&self) {
        self.lock().state.end_ahead();
    }

    /// Records that the holder makes progress. It moves no time in the schedule: the watchdog looks once too early.
    pub(crate) fn report(self: &Arc<Self>, core: &Arc<Core>) {
        // Applies the clock: after the loss it is too late.
        self.phase(core);
        self.lock().state.report(core.now());
    }

    /// Returns whether a release is due.
    pub(in crate::engine) fn needs_flush(&self) -> bool {
        self.lock().state.needs_flush()
    }

    pub(in crate::engine) fn flush_if_needed(self: &Arc<Self>, core: &Core) {
        if self.needs_flush() {
            core.submit(Job::Flush(Arc::clone(self)));
        }
    }

    /// Adds a lease of the handle that has the hold. Returns why not if it cannot.
    pub(crate) fn enter_again(self: &Arc<Self>, core: &Arc<Core>) -> Result<(), Reentry> {
        self.update(core, |state, now| state.enter_again(&core.timing, now))
    }

    /// Begins a change of the mode, if the hold has one lease. Returns whether it does; [`Hold::end_mode_change`] must
    /// follow then, or the hold of the new mode.
    pub(in crate::engine) fn begin_mode_change(
        self: &Arc<Self>,
        core: &Arc<Core>,
    ) -> Result<bool, Reentry> {
        self.update(core, |state, now| state.begin_mode_change(&core.timing, now))
    }

    /// Ends a change of the mode that made no hold of the new mode.
    pub(in crate::engine) fn end_mode_change(
        self: &Arc<Self>,
        core: &Arc<Core>,
        verdict: ChangeVerdict,
    ) -> Result<()> {
        let result = self.update(core, |state, now| {
            state.end_mode_change(&core.timing, now, core.jitter(), verdict)
        });
        self.flush_if_needed(core);
        result
    }

    /// Applies the verdict on a record of the count, if it is still that of this hold. Returns whether it is.
    pub(in crate::engine) fn end_record(
        self: &Arc<Self>,
        core: &Arc<Core>,
        by: Recorder,
        verdict: Result<Option<Absence>>,
    ) -> bool {
        self.update(core, |state, now| {
            let is_own = state.has_record();
            state.end_record(&core.timing, now, by, verdict);
            is_own
        })
    }

    /// Ends one lease of a share without a release: the hold is left to expire.
    pub(crate) fn forget(self: &Arc<Self>, core: &Arc<Core>, share: Share) {
        let mut inner = self.lock();
        inner.leave_share(share);
        self.update_locked(core, core.now(), inner, None, |state, _| state.forget());
    }

    /// Applies the verdict on [`Hold::begin_release`]. Returns the result for the caller that waits for it.
    pub(in crate::engine) fn apply_release(
        self: &Arc<Self>,
        core: &Arc<Core>,
        now: Instant,
        verdict: Result<Option<Absence>>,
    ) -> Result<()> {
        if let Ok(None) = &verdict {
            trace::later(Level::DEBUG, || {
                let (name, fence) = (self.name.clone(), self.fence);
                move || tracing::debug!(name = name.as_str(), fence, "released")
            });
            self.untell(core);
        }
        self.update_at(core, now, |state, now| state.released(&core.timing, now, verdict))
    }

    /// Gives up a release that failed: the hold is left to expire.
    pub(crate) fn give_up(self: &Arc<Self>, core: &Arc<Core>, error: &Error) {
        let is_lost = self.update(core, |state, _| {
            let is_lost = !state.is_over() && !state.is_releasing();
            state.end();
            is_lost
        });
        if is_lost {
            let error = Some(error.clone());
            self.happened(core, core.now(), EventKind::NotReleased { error, held: None }).finish();
        }
        trace::later(Level::WARN, || {
            let (name, error) = (self.name.clone(), error.clone());
            move || tracing::warn!(name = name.as_str(), %error, "not released; left to expire")
        });
    }
}

/// Loses all holds that this process has of a name, and returns them.
pub(in crate::engine) fn lose_all(core: &Arc<Core>, name: &Name, loss: Loss) -> Vec<Arc<Hold>> {
    let (mut lost, mut numbers) = (Vec::new(), HashSet::new());
    loop {
        // A hold may be handed off between this lookup and `lose`; look again.
        let mut new = core.queue.holds_of(name);
        new.retain(|hold| numbers.insert(hold.number));
        if new.is_empty() {
            return lost;
        }
        new.iter().for_each(|hold| hold.lose(core, loss));
        lost.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::acquire::turn::{Admission, WaiterGuard};
    use crate::engine::machine::timing::Timing;
    use crate::engine::shared::core::{Settings, core_in_memory};
    use crate::engine::shared::options::NO_OPTIONS;
    use crate::engine::shared::queue::{HandedOff, Waits};
    use crate::store::{MemoryStore, Mode};
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Barrier;
    use std::task::{Context, Waker};

    /// Begins a hold of a name that nothing else has.
    fn begun(core: &Arc<Core>) -> Arc<Hold> {
        let name = Name::new("n").unwrap();
        let turn = core.queue.try_turn(&name, Mode::Exclusive, core.now()).unwrap();
        let (now, holder) = (core.now(), core.draw_holder());
        let grant = Grant {
            target: Target::exclusive(name),
            options: Options::default(),
            holder,
            fence: None,
            reached: false,
            sent: now,
            now,
            unsure_until: None,
            scope: HandoffScope::Plain,
            turn,
        };
        let name = grant.target.name.clone();
        Hold::begin(core, grant, &report(core, &name))
    }

    fn report<'a>(core: &'a Core, name: &'a Name) -> CallReport<'a> {
        CallReport::new(core, (name, Mode::Exclusive, &NO_OPTIONS), (core.now(), None))
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
        let settings = Settings { handoff_bound: 100, ..Settings::PLAIN };
        let core = Core::new(Arc::new(MemoryStore::new()), Timing::DEFAULT, settings, true);
        let (hold, name) = (begun(&core), Name::new("n").unwrap());
        let mut waiters = [(); N].map(|()| core.queue.waiter(&name, Mode::Exclusive));
        waiters.iter_mut().for_each(|waiter| assert!(waiter.check_in(core.now()).is_err()));
        test(&core, &hold, waiters);
    }

    /// Returns whether a waiter was woken.
    fn is_woken(waiter: &mut WaiterGuard<'_>) -> bool {
        pin!(waiter.woken()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn hold_comes_with_the_wake_up_of_its_waiter() {
        with_waiters(|core, hold, [mut first, mut second]| {
            hold.leave_in_background(core, Share::FIRST);
            assert!(is_woken(&mut first) && !is_woken(&mut second));
            assert!(second.check_in(core.now()).is_err());
            let offered = handed_off(first.check_in(core.now()));
            let next = offered.accept(core, &report(core, &hold.name), core.now()).unwrap();
            assert_eq!((next.holder, next.number == hold.number), (hold.holder, false));
            next.leave_in_background(core, Share::FIRST);
            // Not polled since: it finds the message at its check-in.
            drop(handed_off(second.check_in(core.now())));
        });
    }

    #[test]
    fn hold_of_a_waiter_that_is_dropped_goes_to_the_next() {
        for is_awake in [false, true] {
            with_waiters(|core, hold, [mut first, mut second]| {
                hold.leave_in_background(core, Share::FIRST);
                assert!(!is_awake || is_woken(&mut first));
                drop(first);
                assert!(is_woken(&mut second));
                drop(handed_off(second.check_in(core.now())));
            });
        }
    }

    #[test]
    fn waiter_just_woken_finds_its_hold_at_the_next_check_in() {
        with_waiters(|core, hold, [mut first, mut second]| {
            core.queue.wake_all();
            hold.leave_in_background(core, Share::FIRST);
            assert!(is_woken(&mut first) && is_woken(&mut second));
            assert!(second.check_in(core.now()).is_err(), "it is the first one's");
            let offered = handed_off(first.check_in(core.now()));
            assert!(offered.accept(core, &report(core, &hold.name), core.now()).is_some());
        });
    }

    /// On another thread, which hands it off along a line.
    #[test]
    fn hold_handed_off_while_all_are_lost_is_lost_too() {
        for _ in 0..300 {
            let settings = Settings { handoff_bound: 100, ..Settings::PLAIN };
            let store = Arc::new(MemoryStore::new());
            let core = Core::new(store, Timing::DEFAULT, settings, true);
            let mut hold = begun(&core);
            let name = hold.name.clone();
            let waiter = |_| core.queue.waiter(&name, Mode::Exclusive);
            let mut waiters: Vec<WaiterGuard> = (0..50).map(waiter).collect();
            waiters.iter_mut().for_each(|waiter| assert!(waiter.check_in(core.now()).is_err()));
            let began = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    began.wait();
                    for mut waiter in waiters {
                        hold.leave_in_background(&core, Share::FIRST);
                        let now = core.now();
                        let Ok(Admission::Hold(next)) = waiter.check_in(now) else { return };
                        let Some(next) = next.accept(&core, &report(&core, &name), now) else {
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
