//! One hold: the data that its leases and the engine share, and each transition with its effects.

use super::core::Core;
use super::descriptions::Description;
use super::job::{Job, Sweep};
use super::options::Options;
use super::queue::Installed;
use super::report::{self, CallReport};
use super::schedule::Group;
use crate::clock::Instant;
use crate::engine::machine::chain::HandoffScope;
use crate::engine::machine::contention::HolderSlot;
use crate::engine::machine::count::{Share, Shares};
use crate::engine::machine::hold::{ChangeVerdict, Ended, Next, NoEntry, Phase, Recorder, State};
use crate::engine::machine::mode;
use crate::engine::machine::timing::Timing;
use crate::error::{Error, Loss, Result};
use crate::observe::{Event, EventKind, How, Recorded};
use crate::store::{Absence, HolderId, Keep, Mode, Name, Target};
use crate::util::panics::run_wakers;
use crate::util::reached::Rare;
use crate::util::sync::{Mutex, MutexGuard};
use crate::util::trace;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_util::sync::CancellationToken;
use tracing::Level;

/// The number of holds that were created.
static HOLDS: AtomicU64 = AtomicU64::new(0);

/// The number of a hold, unique in the process. All holds of one chain of hand-offs have the same
/// holder id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HoldNo(u64);

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
    /// That of the turn.
    pub(in crate::engine) slot: Option<HolderSlot>,
}

/// What names a hold to the store and to what it protects.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct HolderAndFence {
    pub(in crate::engine) holder: HolderId,
    pub(in crate::engine) fence: Option<u64>,
}

/// One possession of a name, shared by its leases and the engine.
pub(crate) struct Hold {
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    pub(crate) holder: HolderId,
    /// The process's own copy: the store may forget its.
    pub(crate) fence: Option<u64>,
    /// The options of the handle that got the grant or the hand-off.
    pub(crate) options: Options,
    pub(in crate::engine) number: HoldNo,
    /// The time of the grant, the hand-off or the change of the mode that began it.
    pub(in crate::engine) began: Instant,
    inner: Mutex<Inner>,
    /// Fires on loss, never on release. Created at first use.
    pub(in crate::engine) lost: OnceLock<CancellationToken>,
    /// Notifies of each visible change. Created when a task first waits, which lets other updates skip it; boxed,
    /// because no task ever waits for most holds.
    changed: OnceLock<Box<Notify>>,
    /// Whether another manager has said that it wants the name.
    wanted: AtomicBool,
    /// Whether a guard names its holder id, which the hold of another call must not have then.
    guarded: AtomicBool,
    /// Whether the store was asked to make a reader of this writer.
    downgraded: AtomicBool,
}

/// Two holds are equal if they are the same.
impl PartialEq for Hold {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

pub(in crate::engine) struct Inner {
    /// Its time in the watchdog's schedule.
    pub(in crate::engine) scheduled: Option<Instant>,
    pub(in crate::engine) state: State,
    /// Kept until nothing more is to be sent for this hold.
    pub(in crate::engine) slot: Option<HolderSlot>,
    /// The handles that share a read hold. `None` while it has one.
    pub(in crate::engine) shares: Option<Box<Shares>>,
    /// Its description, once it is written.
    pub(in crate::engine) described: Option<Box<Description>>,
    /// Why the last renewal failed, if none was confirmed since: for the log.
    pub(in crate::engine) failure: Option<Error>,
    /// The share of the handle that changed the mode of this hold or made it by such a change, and a link to the last
    /// hold of these conversions.
    last_conversion: Option<(Share, LastConversion)>,
}

/// The last hold that one handle has made by conversions, one after the other. All holds of these conversions share it; it
/// keeps none of them.
type LastConversion = Arc<Mutex<Weak<Hold>>>;

impl Inner {
    fn is_finished(&self) -> bool {
        self.state.is_over() && self.state.live() == 0
    }

    /// Makes the last of the leases that the state counts that of a further share.
    pub(in crate::engine) fn add_share(&mut self) -> Share {
        let before = self.state.live() - 1;
        self.shares.get_or_insert_with(|| Box::new(Shares::new(before))).add()
    }

    /// Ends a lease of a share.
    pub(in crate::engine) fn leave_share(&mut self, share: Share) {
        if let Some(shares) = &mut self.shares {
            shares.leave(share);
        }
    }

    pub(in crate::engine) fn count_of(&self, share: Share) -> u32 {
        self.shares.as_ref().map_or_else(|| self.state.live(), |shares| shares.count(share))
    }
}

impl Hold {
    /// Creates a hold that is neither in the queue nor in the schedule yet.
    pub(in crate::engine) fn new(
        Target { name, mode }: Target,
        options: Options,
        HolderAndFence { holder, fence }: HolderAndFence,
        began: Instant,
        state: State,
        slot: Option<HolderSlot>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            mode,
            holder,
            fence,
            options,
            began,
            number: HoldNo(HOLDS.fetch_add(1, Ordering::Relaxed)),
            lost: OnceLock::new(),
            changed: OnceLock::new(),
            wanted: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
            downgraded: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                described: None,
                failure: None,
                last_conversion: None,
                scheduled: None,
                slot,
                shares: None,
                state,
            }),
        })
    }

    /// Returns the target of requests for this hold.
    pub(crate) fn target(&self) -> Target {
        Target::new(self.name.clone(), self.mode)
    }

    /// Returns how long it is held at `now`.
    pub(crate) fn held(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    /// Returns the last hold that a handle with this share has made of it by changes of the mode.
    pub(in crate::engine) fn changed_to(&self, share: Share) -> Option<Arc<Self>> {
        let last = {
            let inner = self.lock();
            let own = inner.last_conversion.as_ref().filter(|(by, _)| *by == share)?;
            Arc::clone(&own.1)
        };
        let hold = last.lock().upgrade()?;
        (!std::ptr::eq(self, Arc::as_ptr(&hold))).then_some(hold)
    }

    /// Records that a handle with this share has made `next` of it, which no other task has yet.
    pub(in crate::engine) fn changes_to(inner: &mut Inner, share: Share, next: &Arc<Self>) {
        let conversions = inner.last_conversion.take().filter(|(by, _)| *by == share);
        let last = conversions.map(|(_, last)| last).unwrap_or_default();
        *last.lock() = Arc::downgrade(next);
        next.lock().last_conversion = Some((Share::FIRST, Arc::clone(&last)));
        inner.last_conversion = Some((share, last));
    }

    /// Returns the number of its slot in the queue, while it has one.
    pub(in crate::engine) fn slot_number(&self) -> Option<u64> {
        self.lock().slot.as_ref().map(HolderSlot::number)
    }

    pub(in crate::engine) fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        if let Some(pulse) = self.options.pulse() {
            inner.state.record_pulse(pulse.last());
        }
        inner
    }

    /// Returns the time of the request that the store granted; hand-offs keep it.
    pub(crate) fn chain_began(&self) -> Instant {
        self.lock().state.chain_began()
    }

    /// Returns the time at which the last confirmed grant or renewal was sent.
    pub(in crate::engine) fn confirmed(&self) -> Instant {
        self.lock().state.confirmed()
    }

    /// Returns to whom the hold may be handed off.
    pub(in crate::engine) fn handoff_scope(&self) -> HandoffScope {
        self.lock().state.handoff_scope()
    }

    pub(crate) fn count(&self) -> u32 {
        self.lock().state.live()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().state.is_over()
    }

    /// Returns whether its leases believe in it, by the last look at the clock.
    pub(in crate::engine) fn is_believed(&self) -> bool {
        self.lock().state.believed()
    }

    /// Returns whether a caller has a lease of it.
    pub(in crate::engine) fn has_a_caller(&self) -> bool {
        self.lock().state.has_a_caller()
    }

    /// Returns whether the hold is over and has no live lease.
    pub(crate) fn is_finished(&self) -> bool {
        self.lock().is_finished()
    }

    /// Returns whether the next call of its handle does not depend on the hold: it is finished, is shared with no other
    /// handle, and no hold of another mode was made of it.
    pub(in crate::engine) fn is_past(&self) -> bool {
        let inner = self.lock();
        inner.is_finished() && inner.last_conversion.is_none() && !mode::is_joined(self.mode)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.lock().state.is_busy()
    }

    pub(crate) fn release_error(&self) -> Option<Error> {
        self.lock().state.release_error()
    }

    /// Returns how the release has ended, for a caller that has waited for it: also with a loss that only the release of
    /// another caller, or of the engine, has found.
    pub(in crate::engine) fn release_result(&self) -> Result<()> {
        let inner = self.lock();
        match inner.state.loss() {
            Some(loss) => Err(Error::lost(loss)),
            None => inner.state.release_error().map_or(Ok(()), Err),
        }
    }

    /// Returns whether `max_hold` ends the hold before `time`, whatever is renewed.
    pub(crate) fn ends_before(&self, time: Instant) -> bool {
        self.lock().state.max_until().is_some_and(|max| max < time)
    }

    /// Returns the loss, also one that only the release has found.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.lock().state.loss()
    }

    /// Returns a token that fires on the loss.
    pub(crate) fn lost_token(&self) -> CancellationToken {
        let lost = self.lost.get_or_init(CancellationToken::new);
        self.fire_if_lost(lost);
        lost.child_token()
    }

    /// Returns whether the loss fires a token.
    pub(crate) fn has_lost_token(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Makes the loss fire `token`, unless it fires another one already. Returns the token that it fires.
    pub(crate) fn share_lost_token(&self, token: &CancellationToken) -> CancellationToken {
        let lost = self.lost.get_or_init(|| token.clone());
        self.fire_if_lost(lost);
        lost.clone()
    }

    /// Fires the token if the loss happened before it existed.
    fn fire_if_lost(&self, lost: &CancellationToken) {
        if matches!(self.lock().state.phase(), Phase::Lost(_)) {
            lost.cancel();
        }
    }

    /// Waits for the loss. Never returns after a clean end.
    pub(crate) async fn when_lost(&self) -> Loss {
        self.until(|hold| match hold.lock().state.phase() {
            Phase::Lost(loss) => Some(loss),
            _ => None,
        })
        .await
    }

    /// Records that another manager wants the name.
    pub(in crate::engine) fn set_wanted(&self) {
        // With the state locked, so that a task that begins to wait sees it, or is woken.
        let inner = self.lock();
        self.wanted.store(true, Ordering::Relaxed);
        drop(inner);
        self.notify();
    }

    /// Waits until the name is wanted, or the hold is lost.
    pub(crate) async fn when_wanted(&self) {
        self.until(|hold| {
            let inner = hold.lock();
            let lost = matches!(inner.state.phase(), Phase::Lost(_));
            (lost || hold.wanted.load(Ordering::Relaxed)).then_some(())
        })
        .await;
    }

    /// Records that a guard names the holder id.
    pub(crate) fn set_guarded(&self) {
        let _inner = self.lock();
        self.guarded.store(true, Ordering::Relaxed);
    }

    /// Records that the store is asked to make a reader of this writer.
    pub(in crate::engine) fn set_downgraded(&self) {
        let _inner = self.lock();
        self.downgraded.store(true, Ordering::Relaxed);
    }

    /// Returns whether the store may have made a reader of this writer, without an answer yet.
    pub(in crate::engine) fn is_downgraded(&self, inner: &Inner) -> bool {
        self.downgraded.load(Ordering::Relaxed) && inner.state.is_busy()
    }

    /// Returns whether the holder id must end with the hold. Call it with the state locked.
    pub(in crate::engine) fn keeps_its_id(&self, _locked: &Inner) -> bool {
        self.wanted.load(Ordering::Relaxed) || self.guarded.load(Ordering::Relaxed)
    }

    /// Returns a future of the next change. Create it before reading the state.
    pub(crate) fn changed(&self) -> Notified<'_> {
        // An update looks for the notifier with the state locked, so a later read sees each update that found none.
        self.changed.get_or_init(Box::default).notified()
    }

    /// Waits until `look` returns a value, and calls it again at each change.
    pub(crate) async fn until<R>(&self, mut look: impl FnMut(&Self) -> Option<R>) -> R {
        loop {
            let changed = self.changed();
            if let Some(result) = look(self) {
                return result;
            }
            changed.await;
        }
    }

    /// Waits until neither a change of the mode nor the release is in flight, or the hold is over.
    pub(crate) async fn until_idle(&self) {
        self.until(|hold| (!hold.is_busy() || hold.is_over()).then_some(())).await;
    }

    /// Waits until nothing more is sent for the hold.
    pub(crate) async fn until_over(&self) {
        self.until(|hold| hold.is_over().then_some(())).await;
    }

    /// Begins the release of the hold by the engine. Returns whether none is running yet: one at a time.
    /// [`Hold::end_background_release`] must follow.
    pub(crate) fn begin_background_release(&self) -> bool {
        self.lock().state.begin_background_release()
    }

    /// Ends the release by the engine. Returns whether there is more to release.
    pub(crate) fn end_background_release(&self) -> bool {
        let mut inner = self.lock();
        inner.state.end_background_release();
        inner.state.needs_release()
    }

    /// Begins the release, if it is due. Returns with it the mark that it leaves. After [`Next::Release`],
    /// [`release::apply`](crate::engine::hold::release) must follow.
    pub(in crate::engine) fn begin_release(
        &self,
        timing: &Timing,
        now: Instant,
    ) -> (Next, Option<Keep>) {
        // The change wakes no task and moves no time, so it needs no `update`.
        let state = &mut self.lock().state;
        let next = state.begin_release(timing, now);
        let mark = if next == Next::Release { state.mark(timing, now) } else { None };
        (next, mark)
    }

    /// Returns the number of live leases of a share.
    pub(crate) fn count_of(&self, share: Share) -> u32 {
        self.lock().count_of(share)
    }

    /// Begins the life of a hold: with one lease, scheduled, and in the queue.
    pub(crate) fn begin(core: &Arc<Core>, grant: Grant, report: &CallReport<'_>) -> Arc<Self> {
        let Grant { target, options, fence, reached, sent, now, unsure_until, .. } = grant;
        let number = grant.slot.as_ref().map(HolderSlot::number);
        let policy = options.policy(&core.settings, now, report.caller);
        let renew = core.timing.renewal(sent, core.jitter());
        let max_until = core.settings.max_hold.map(|max| now + max);
        let mut state = State::granted(sent, renew, max_until, unsure_until);
        // How far the token is ahead of the clock is unknown, so only the reserved block counts.
        state.reached(if reached { now } else { Instant::MAX });
        if mode::is_joined(target.mode) {
            state.share();
        }
        state.set_handoff_scope(grant.scope);
        state.set_policy(policy);
        let id = HolderAndFence { holder: grant.holder, fence };
        let hold = Self::new(target, options, id, now, state, grant.slot);
        // Before any other task can find it.
        hold.happened(core, now, report.granted(fence, How::Store, now)).finish();
        hold.install(core, sent, number);
        hold
    }

    /// Puts the hold into its slot in the queue and into the schedule, and wakes the waiters that may ask beside it. Last,
    /// because a waker of a user may block: a hold that another call may join by then is watched.
    pub(in crate::engine) fn install(
        self: &Arc<Self>,
        core: &Arc<Core>,
        sent: Instant,
        slot: Option<u64>,
    ) {
        let installed = slot.map(|number| core.queue.install(self, number, sent));
        self.start(core);
        if let Some(Installed { is_doubted, effects }) = installed {
            core.queue.perform(effects);
            if is_doubted {
                self.update(core, State::renew_at);
            }
        }
    }

    /// Puts the hold into the schedule. It is in the queue already.
    pub(in crate::engine) fn start(self: &Arc<Self>, core: &Arc<Core>) {
        self.schedule(core, &mut self.lock(), None);
        self.end_if_closed(core);
    }

    /// Moves the hold in the schedule to the time at which the watchdog must check it again.
    fn schedule(self: &Arc<Self>, core: &Core, inner: &mut Inner, group: Option<&mut Group<'_>>) {
        let mut wake_at = inner.state.wake_at(&core.timing);
        if inner.state.is_releasing() && inner.scheduled < wake_at {
            // The hold is about to leave the schedule; one wakeup for nothing costs less than
            // moving it.
            wake_at = inner.scheduled.or(wake_at);
        }
        if wake_at != inner.scheduled {
            match group {
                Some(group) if inner.scheduled.is_none() && wake_at == group.at => {
                    group.join(self);
                }
                _ => core.schedule.set(self, inner.scheduled, wake_at),
            }
            inner.scheduled = wake_at;
        }
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
        // Race with `close`: it enters `Closed` first and then scans the queue, so either it finds
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
        mut group: Option<&mut Group<'_>>,
        change: impl FnOnce(&mut State, Instant) -> R,
    ) -> R {
        let was = inner.state.phase();
        let was_over = inner.state.is_over();
        // A task that begins to wait later sees the change.
        let before = self.changed.get().map(|_| inner.state.visible());
        let result = change(&mut inner.state, now);
        self.schedule(core, &mut inner, group.as_deref_mut());
        let is = inner.state.phase();
        if Rare::ARE_COUNTED
            && was != is
            && let Phase::Lost(loss) = is
        {
            self.note_loss(&inner.state, loss);
        }
        if let (false, Phase::Lost(_), Some(described)) = (was == is, is, &mut inner.described) {
            described.lost_at = Some(now);
        }
        let believed_until = (was != is).then(|| inner.state.believed_until(&core.timing));
        let rests = believed_until.is_some() && inner.state.is_resting();
        let over = inner.state.is_over();
        let slot = if over { inner.slot.take() } else { None };
        let notifies = before.is_some_and(|before| before != inner.state.visible());
        let event = believed_until.map(|until| {
            let left = until.saturating_duration_since(now);
            self.report_phase(core, &inner.state, was, now, left)
        });
        let failure = believed_until.and_then(|_| inner.failure.clone());
        let sweep = (over && !was_over).then(|| inner.state.sweep(&core.timing, now)).flatten();
        let records = inner.state.queue_record();
        drop(inner);

        if let (Some(_), Phase::Lost(loss)) = (believed_until, is) {
            // First, because a waker of the token may block, or close the manager, which waits for the action.
            core.overruns.add(&core.timing, self, loss, now);
            if let Some(lost) = self.lost.get() {
                run_wakers(|| lost.cancel());
            }
        }
        if let Some((from, until)) = sweep {
            let sweep = Sweep::late(self.target(), self.holder, from, until);
            core.submit(Job::Sweep(sweep));
        }
        if records {
            core.submit(Job::Record { name: self.name.clone(), holder: self.holder });
        }
        let effects = slot.map(|slot| core.queue.leave(now, &self.name, slot.number()));
        if let Some(group) = group {
            group.wakes.effects.extend(effects);
            group.wakes.events.extend(event);
            group.changed.extend(notifies.then(|| Arc::clone(self)));
        } else {
            if let Some(effects) = effects {
                core.queue.perform(effects);
            }
            if let Some(event) = event {
                event.finish();
            }
            // Last, so that a task that is woken by the end may ask at once.
            if notifies {
                self.notify();
            }
        }
        // What happens to a hold without a holder is no news.
        if let Some(until) = believed_until.filter(|_| !rests) {
            self.trace(is, until.saturating_duration_since(now), failure);
        }
        result
    }

    /// Counts a loss, if it is a rare one.
    fn note_loss(&self, state: &State, loss: Loss) {
        match loss {
            _ if state.is_resting() => Rare::RestLost.reached(),
            Loss::MaxHold => Rare::MaxHoldReached.reached(),
            Loss::Stalled if !state.has_a_caller() => Rare::LostWithoutPulse.reached(),
            Loss::Stalled => Rare::Stalled.reached(),
            Loss::Expired => {
                Rare::LostBeforeFirstRenewal.reached_if(|| state.confirmed() <= self.began);
            }
            _ => {}
        }
    }

    /// Notifies the tasks that wait for a change. Call it with no lock held.
    pub(in crate::engine) fn notify(&self) {
        if let Some(changed) = self.changed.get() {
            run_wakers(|| changed.notify_waiters());
        }
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
                let name = name();
                let left_ms = left.as_millis() as u64;
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
    fn read<R>(self: &Arc<Self>, core: &Arc<Core>, look: impl FnOnce(&State) -> R) -> R {
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
        self.release_if_needed(core);
    }

    /// Owes a release to the store after all: `force_unlock` may not have deleted the key.
    pub(crate) fn owe(self: &Arc<Self>, core: &Arc<Core>) {
        self.update(core, |state, now| state.owe(now + core.timing.grace));
        self.release_if_needed(core);
    }

    /// Begins what counts from the moment at which the caller has the lease: `min_hold`, and the limits that have not begun
    /// with the grant.
    pub(crate) fn begin_limits_of_caller(self: &Arc<Self>, core: &Arc<Core>) {
        if self.options.pulse().is_some() {
            let stall = self.options.stall_after(&core.settings);
            let max = core.settings.max_hold;
            self.update(core, |state, now| state.begin_limits(now, stall, max));
        }
        if let Some(min_hold) = self.options.min_hold() {
            self.lock().state.begin_min_hold(core.now() + min_hold);
        }
    }

    /// Records that no caller has a new lease of it yet. Returns whether such a lease needs a pulse; otherwise
    /// [`end_unreturned`](Self::end_unreturned) need not follow.
    pub(crate) fn begin_unreturned(&self) -> bool {
        self.options.pulse().is_some() && self.lock().state.begin_unreturned()
    }

    /// Records that a lease is in a change of the mode: the hold is not renewed for it. [`end_change`](Self::end_change) or
    /// [`end_unreturned`](Self::end_unreturned) must follow.
    pub(crate) fn begin_change(&self) {
        self.lock().state.begin_change();
    }

    /// Records that the caller has such a lease again.
    pub(crate) fn end_change(self: &Arc<Self>, core: &Arc<Core>) {
        self.update(core, |state, _| state.end_unreturned());
    }

    /// Records that a caller has got such a lease, or that it ends next.
    pub(crate) fn end_unreturned(&self) {
        self.lock().state.end_unreturned();
    }

    /// Records that the holder makes progress. It moves no time in the schedule: the watchdog looks once too early.
    pub(crate) fn progress(self: &Arc<Self>, core: &Arc<Core>) {
        // Applies the clock: after the loss it is too late.
        self.phase(core);
        self.lock().state.progress(core.now());
    }

    /// Returns whether a release is due.
    pub(in crate::engine) fn needs_release(&self) -> bool {
        self.lock().state.needs_release()
    }

    pub(in crate::engine) fn release_if_needed(self: &Arc<Self>, core: &Core) {
        if self.needs_release() {
            core.submit(Job::Release(Arc::clone(self)));
        }
    }

    /// Adds a lease of the handle that has the hold. Returns why not if it cannot.
    pub(crate) fn enter_again(self: &Arc<Self>, core: &Arc<Core>) -> Result<(), NoEntry> {
        self.update(core, |state, now| state.enter_again(&core.timing, now))
    }

    /// Begins a change of the mode, if the hold has one lease. Returns whether it does; [`Hold::end_mode_change`] must
    /// follow then, or the hold of the new mode.
    pub(in crate::engine) fn begin_mode_change(
        self: &Arc<Self>,
        core: &Arc<Core>,
    ) -> Result<bool, NoEntry> {
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
        self.release_if_needed(core);
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
            let name = self.name.clone();
            let error = error.clone();
            move || tracing::warn!(name = name.as_str(), %error, "not released; left to expire")
        });
    }

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
        report::count(core, now, kind, |kind| self.event(kind))
    }

    /// Reports a transition from the phase `was` at `now`, after which `left` remains, as [`happened`](Self::happened) does. A hold that
    /// its waiter has not accepted has no lease, so only that it is not released is reported.
    fn report_phase(
        &self,
        core: &Core,
        state: &State,
        was: Phase,
        now: Instant,
        left: Duration,
    ) -> Recorded {
        let is = state.phase();
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
                Ended::Failed(error) => {
                    Rare::ReleaseGivenUp.reached();
                    not_released(Some(error))
                }
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
