//! The holds of a read-write lock. The handles of one manager that read the same name join one hold. A hold changes its mode: a
//! writer becomes a reader, or the only reader becomes the writer.
//!
//! # Invariants
//!
//! Of a hold that readers join:
//!
//! 1. **As good as a grant.** A reader joins a hold only if it may rely on it for as long as on a new grant
//!    ([`State::join`](crate::engine::machine::hold::State::join)), with at most T/10 less of `max_hold`, or a tenth of
//!    it if that is shorter, and never one that is being released or changes its mode.
//! 2. **No reader overtakes.** It joins at once only if no waiter of this process is in the queue. One that waits joins when no
//!    writer is before it.
//! 3. **The store is asked each T/10.** A hold is joined no longer than that after its grant. Later readers ask for a hold
//!    of their own, which younger ones join, and an old hold is never waited for. So a writer elsewhere is served, and a
//!    process has at most one hold for each T/10 of its longest read, or for each tenth of a shorter `max_hold`.
//! 4. **Known to the store once.** Its count there is always 1, so neither a join nor a re-entry sends anything. The last
//!    lease that ends, of whichever handle, has the hold released.
//!
//! Of a change of the mode:
//!
//! 5. **Only for the only lease of a hold**, which the caller gives up: whatever happens, no lease believes in the old
//!    mode any more. A future that is not polled keeps nothing, so nothing is renewed for that lease meanwhile.
//! 6. **Tokens first.** A writer's token fires before its request leaves: with it, the store lets readers in. From then on
//!    the lease does not come back. Any answer but the change releases it.
//! 7. **One request, never repeated.** A late copy of it would change the mode once more. If its fate is unknown, the hold
//!    is released; a release and a renewal go by the holder id, in either mode.
//! 8. **The slot stays taken.** While a reader becomes the writer, the queue treats its slot as that of a writer; a writer
//!    that becomes a reader admits other readers only after the store did.

use crate::clock::Instant;
use crate::engine::machine::count::{Share, Shares};
use crate::engine::machine::hold::{ChangeVerdict, NoEntry, Phase};
use crate::engine::machine::mode;
use crate::engine::shared::calls;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::{Hold, HolderAndFence};
use crate::engine::shared::job::Job;
use crate::engine::shared::report::CallReport;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::observe::{EventKind, How, Recorded};
use crate::store::{Acquire, Acquired, Mode, Name, StoreFuture, Target};
use crate::util::panics::run_wakers;
use crate::util::reached::Rare;
use std::pin::pin;
use std::sync::Arc;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Joins the hold that readers of this name share now. Returns it with the new share.
pub(in crate::engine) fn join_youngest(
    core: &Arc<Core>,
    report: &CallReport<'_>,
    name: &Name,
) -> Option<(Arc<Hold>, Share)> {
    let hold = core.queue.joinable(name)?;
    let share = join(core, &hold, report)?;
    Some((hold, share))
}

/// Adds a lease of a handle that has none of this hold. Returns its share, or `None` if the hold cannot be joined.
pub(in crate::engine) fn join(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    report: &CallReport<'_>,
) -> Option<Share> {
    let now = core.now();
    let mut inner = hold.lock();
    // Nothing that a task waits for changes, nor the time at which the watchdog looks, so it needs no `update`.
    // After a downgrade `max_hold` counts from the grant of the writer, which may be long ago.
    let has_its_time = match (inner.state.max_until(), core.settings.max_hold) {
        (Some(end), Some(max)) => now + max <= end + core.timing.longest_chain.min(max / 10),
        _ => true,
    };
    let joins = has_its_time && inner.state.join(&core.timing, now);
    let share = joins.then(|| inner.add_share());
    let event = match share {
        Some(_) => hold.happened(core, now, report.granted(hold.fence, How::Joined, now)),
        None => Recorded::default(),
    };
    drop(inner);
    event.finish();
    if share.is_none() {
        Rare::JoinRefused.reached();
        core.queue.disband(hold);
    }
    share
}

/// Adds a lease to a share that has one. Returns why not if it cannot.
pub(in crate::engine) fn join_again(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    share: Share,
) -> Result<(), NoEntry> {
    // Applies the clock.
    hold.phase(core);
    let mut inner = hold.lock();
    if inner.count_of(share) == 0 {
        return Err(NoEntry::Over);
    }
    match inner.state.join_again(core.now()) {
        None => {
            if let Some(shares) = &mut inner.shares {
                shares.grow(share);
            }
            Ok(())
        }
        Some(refused) => Err(refused),
    }
}

/// The outcome of a change of the mode.
pub(crate) enum Converted {
    /// The hold in the new mode, with one lease.
    Changed(Arc<Hold>),
    /// The hold is as before: it has other leases, or others read, or wait for the name.
    Refused,
}

/// A grant of the store in the new mode.
#[derive(Clone, Copy)]
struct Change {
    mode: Mode,
    sent: Instant,
    fence: Option<u64>,
    reached: bool,
}

/// Changes the mode of a hold whose only lease is that of the caller, with this token. After an error the caller drops that
/// lease, which releases the hold.
pub(crate) async fn convert(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    mode: Mode,
    token: Option<&CancellationToken>,
) -> Result<Converted> {
    consume_budget().await;
    core.life.check()?;
    core.ensure_running();
    let limit = core.timing.attempt * 2;
    let converting = pin!(async {
        match timeout(limit, ask_to_convert(core, hold, mode, token)).await {
            Ok(result) => result,
            Err(_) => Err(Error::silent()),
        }
    });
    let converted = core.attend(converting).await?;
    if let Converted::Refused = converted {
        // An answer can be so late that the hold is not as before.
        hold.check(core)?;
    }
    Ok(converted)
}

async fn ask_to_convert(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    mode: Mode,
    token: Option<&CancellationToken>,
) -> Result<Converted> {
    loop {
        match hold.begin_mode_change(core) {
            Ok(true) => break,
            // It has other leases.
            Ok(false) => return Ok(Converted::Refused),
            Err(NoEntry::Busy) => hold.until_idle().await,
            Err(NoEntry::Lost(loss)) => return Err(Error::lost(loss)),
            Err(NoEntry::Over) => {
                let message = "the lease has ended, so its mode cannot be changed; lock again in the mode that you need";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        }
    }
    let mut change = ModeChange::new(core, hold);
    let number = hold.slot_number();
    let upgrades = !mode::is_shared(mode);
    let slot = number.filter(|number| !upgrades || core.queue.begin_upgrade(&hold.name, *number));
    let Some(number) = slot else {
        Rare::UpgradeRefusedHere.reached_if(|| upgrades);
        change.refused();
        return Ok(Converted::Refused);
    };
    if !upgrades {
        hold.set_downgraded();
        if let Some(token) = token {
            run_wakers(|| token.cancel());
        }
    }
    let request = Acquire::new(
        Target::new(hold.name.clone(), mode),
        hold.holder,
        core.timing.ttl,
        core.timing.attempt.min(hold.remaining(core)),
    )
    .with_fencing(core.fencing(mode))
    .with_converts(true);
    let verdict = tokio::select! {
        biased;
        verdict = change.ask(request) => verdict,
        loss = hold.when_lost() => return Err(Error::lost(loss)),
    };
    match verdict {
        Ok(Acquired::Granted { sent, fence, reached, .. }) => {
            let granted = Change { mode, sent, fence, reached };
            match change_mode(core, hold, number, granted) {
                Some(next) => {
                    change.changed();
                    Ok(Converted::Changed(next))
                }
                None => {
                    Rare::ChangedTooLate.reached();
                    let late = ChangeVerdict::Failed(Error::silent());
                    change.end(late).map(|()| Converted::Refused)
                }
            }
        }
        Ok(Acquired::Held { .. }) if upgrades => {
            Rare::UpgradeUndone.reached();
            core.queue.end_upgrade(&hold.name, number, hold.mode);
            change.refused();
            Ok(Converted::Refused)
        }
        Ok(Acquired::Held { .. }) => {
            let message = "the store did not make a reader of the writer; lock again in the mode that you need";
            let error = Error::new(ErrorKind::Unavailable, message);
            change.end(ChangeVerdict::Failed(error)).map(|()| Converted::Refused)
        }
        Ok(Acquired::NotYours(absence)) => {
            change.end(ChangeVerdict::NotYours(absence)).map(|()| Converted::Refused)
        }
        Err(error) => change.end(ChangeVerdict::Failed(error)).map(|()| Converted::Refused),
    }
}

/// Ends the hold and installs the one of the new mode in its slot. Returns `None` if the hold is lost, or the answer
/// came too late.
fn change_mode(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    number: u64,
    change: Change,
) -> Option<Arc<Hold>> {
    let Change { mode, sent, fence, reached } = change;
    let now = core.now();
    let mut inner = hold.lock();
    let renew = core.timing.renewal(sent, core.jitter());
    let was_at_risk = inner.state.phase() == Phase::AtRisk;
    let mut state = inner.state.change_mode(&core.timing, now, sent, renew)?;
    state.reached(if reached { now } else { Instant::MAX });
    if mode::is_joined(mode) {
        state.share();
    }
    let slot = inner.slot.take();
    let scheduled = inner.scheduled.take();
    let target = Target::new(hold.name.clone(), mode);
    let id = HolderAndFence { holder: hold.holder, fence };
    let next = Hold::new(target, hold.options.clone(), id, now, state, slot);
    let share = inner.shares.as_deref().map_or(Share::FIRST, Shares::only);
    Hold::changes_to(&mut inner, share, &next);
    let effects = core.queue.replace_in_slot(&next, number, sent);
    core.counters.risks(was_at_risk, false);
    let held = hold.held(now);
    let event = next.happened(core, now, EventKind::ModeChanged { from: hold.mode, held, fence });
    drop(inner);
    event.finish();
    core.schedule.set(hold, scheduled, None);
    next.start(core);
    // Last, because a waker of a user may block: another reader may join the next hold by now.
    core.queue.perform(effects);
    hold.notify();
    Some(next)
}

/// The error of a change of the mode that was refused: the hold is as it was.
fn refused() -> Error {
    Error::new(ErrorKind::Unavailable, "the mode was not changed").with_fate(Fate::NotExecuted)
}

/// A change of the mode between [`Hold::begin_mode_change`] and its end.
pub(in crate::engine) struct ModeChange<'a> {
    core: &'a Arc<Core>,
    hold: &'a Arc<Hold>,
    /// When the request in flight was sent.
    sent: Instant,
    flight: Option<StoreFuture<Acquired>>,
}

impl<'a> ModeChange<'a> {
    fn new(core: &'a Arc<Core>, hold: &'a Arc<Hold>) -> Self {
        Self { core, hold, sent: core.now(), flight: None }
    }

    /// Takes over a request that another future has sent.
    pub(in crate::engine) fn resume(
        core: &'a Arc<Core>,
        hold: &'a Arc<Hold>,
        sent: Instant,
        verdict: StoreFuture<Acquired>,
    ) -> Self {
        Self { core, hold, sent, flight: Some(calls::bounded(core, verdict, sent)) }
    }

    /// Asks the store once. A change ends this by [`changed`](Self::changed), anything else by [`end`](Self::end).
    async fn ask(&mut self, request: Acquire) -> Result<Acquired> {
        self.sent = self.core.now();
        self.flight = Some(calls::acquire(self.core, request));
        calls::land(&mut self.flight).await
    }

    /// Waits for the request in flight, which no caller waits for any more.
    pub(in crate::engine) async fn land(&mut self) -> ChangeVerdict {
        match calls::land(&mut self.flight).await {
            Ok(Acquired::Granted { sent, .. }) => ChangeVerdict::Changed { sent },
            Ok(Acquired::NotYours(absence)) => ChangeVerdict::NotYours(absence),
            Ok(Acquired::Held { .. }) => ChangeVerdict::Failed(refused()),
            Err(error) => ChangeVerdict::Failed(error),
        }
    }

    /// Ends it after the store has changed the mode. The hold is over then.
    fn changed(self) {
        let _ = std::mem::ManuallyDrop::new(self);
    }

    /// Ends it after the store has refused it.
    fn refused(self) {
        let _ = self.end(ChangeVerdict::Failed(refused()));
    }

    /// Ends it without a hold of the new mode.
    pub(in crate::engine) fn end(self, verdict: ChangeVerdict) -> Result<()> {
        // Drop has nothing left to do.
        let change = std::mem::ManuallyDrop::new(self);
        let is_unknown =
            matches!(&verdict, ChangeVerdict::Failed(error) if error.fate() != Fate::NotExecuted);
        Rare::ModeUnknown.reached_if(|| is_unknown);
        let is_changed = matches!(verdict, ChangeVerdict::Changed { .. });
        let ended = change.hold.end_mode_change(change.core, verdict);
        Rare::ChangedAfterLoss.reached_if(|| is_changed && ended.is_err());
        ended
    }
}

impl Drop for ModeChange<'_> {
    fn drop(&mut self) {
        match self.flight.take() {
            Some(verdict) => {
                Rare::ChangeDropped.reached();
                let hold = Arc::clone(self.hold);
                self.core.submit(Job::FinishChange { hold, sent: self.sent, verdict });
            }
            // Dropped before it was sent, or after its answer.
            None => {
                let error =
                    Error::new(ErrorKind::Unavailable, "the change of the mode was dropped");
                let _ = self.hold.end_mode_change(self.core, ChangeVerdict::Failed(error));
            }
        }
    }
}
