//! One hold: the data that its leases and the engine share.

use super::description::Description;
use super::options::Options;
use crate::clock::Instant;
use crate::engine::machine::chain::HandoffScope;
use crate::engine::machine::count::{Share, Shares};
use crate::engine::machine::hold::{Next, Phase, State};
use crate::engine::machine::mode;
use crate::engine::machine::occupants::HolderSlot;
use crate::engine::machine::timing::Timing;
use crate::error::{Error, Loss};
use crate::store::{HolderId, Keep, Mode, Name, Target};
use crate::util::panics::run_wakers;
use crate::util::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_util::sync::CancellationToken;

/// The number of holds that were created.
static HOLDS: AtomicU64 = AtomicU64::new(0);

/// The number of a hold, unique in the process. All holds of one chain of hand-offs have the same
/// holder id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HoldNo(u64);

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
    /// Whether a guard names its holder id, which the hold of another flow must not have then.
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
    /// The share of the handle that changed the mode of this hold or made it by such a change, and a link to the last hold of
    /// that chain of changes.
    latest: Option<(Share, Latest)>,
}

/// The last hold of a chain of changes of the mode by one handle, which all of its holds share. It keeps none of them.
type Latest = Arc<Mutex<Weak<Hold>>>;

impl Inner {
    fn is_finished(&self) -> bool {
        self.state.is_over() && self.state.live() == 0
    }
}

impl Hold {
    /// Creates a hold that is neither in the queue nor in the schedule yet.
    pub(in crate::engine) fn new(
        Target { name, mode }: Target,
        options: Options,
        (holder, fence): (HolderId, Option<u64>),
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
                latest: None,
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
        let latest = {
            let inner = self.lock();
            let own = inner.latest.as_ref().filter(|(by, _)| *by == share)?;
            Arc::clone(&own.1)
        };
        let hold = latest.lock().upgrade()?;
        (!std::ptr::eq(self, Arc::as_ptr(&hold))).then_some(hold)
    }

    /// Records that a handle with this share has made `next` of it, which no other task has yet.
    pub(in crate::engine) fn changes_to(inner: &mut Inner, share: Share, next: &Arc<Self>) {
        let chain = inner.latest.take().filter(|(by, _)| *by == share);
        let latest = chain.map(|(_, latest)| latest).unwrap_or_default();
        *latest.lock() = Arc::downgrade(next);
        next.lock().latest = Some((Share::FIRST, Arc::clone(&latest)));
        inner.latest = Some((share, latest));
    }

    /// Returns the number of its slot in the queue, while it has one.
    pub(in crate::engine) fn slot_number(&self) -> Option<u64> {
        self.lock().slot.as_ref().map(HolderSlot::number)
    }

    pub(in crate::engine) fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        if let Some(pulse) = self.options.pulse() {
            inner.state.beat(pulse.last());
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

    /// Returns whether the hold is over and has no live lease.
    pub(crate) fn is_finished(&self) -> bool {
        self.lock().is_finished()
    }

    /// Returns whether the next call of its handle does not depend on the hold: it is finished, is shared with no other
    /// handle, and no hold of another mode was made of it.
    pub(in crate::engine) fn is_past(&self) -> bool {
        let inner = self.lock();
        inner.is_finished() && inner.latest.is_none() && !mode::is_joined(self.mode)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.lock().state.is_busy()
    }

    pub(crate) fn release_error(&self) -> Option<Error> {
        self.lock().state.release_error()
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
        let watchers = self.watchers(&inner);
        drop(inner);
        if let Some(watchers) = watchers {
            run_wakers(|| watchers.notify_waiters());
        }
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

    /// Returns the notifier of changes, if a task has ever waited. Call it with the state locked.
    pub(in crate::engine) fn watchers(&self, _locked: &Inner) -> Option<&Notify> {
        self.changed.get().map(Box::as_ref)
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

    /// Returns whether the engine may begin to flush the hold: one flush at a time.
    /// [`Hold::end_flush`] must follow.
    pub(crate) fn begin_flush(&self) -> bool {
        self.lock().state.begin_flush()
    }

    /// Ends a flush. Returns whether there is more to flush.
    pub(crate) fn end_flush(&self) -> bool {
        let mut inner = self.lock();
        inner.state.end_flush();
        inner.state.needs_flush()
    }

    /// Begins the release, if it is due. Returns with it the mark that it leaves. After [`Next::Release`],
    /// [`Hold::apply_release`] must follow.
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
}
