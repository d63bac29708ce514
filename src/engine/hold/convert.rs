//! Changes the mode of a hold: a writer becomes a reader, or the only reader becomes the writer.
//!
//! # Invariants
//!
//! 1. **Only for the only lease of a hold**, which the caller gives up: whatever happens, no lease believes in the old
//!    mode any more. A future that is not polled keeps nothing, so nothing is renewed for that lease meanwhile.
//! 2. **Tokens first.** A writer's token fires before its request leaves: with it, the store lets readers in. From then on
//!    the lease does not come back. Any answer but the change releases it.
//! 3. **One request, never repeated.** A late copy of it would change the mode once more. If its fate is unknown, the hold
//!    is released; a release and a renewal go by the holder id, in either mode.
//! 4. **The slot stays taken.** While a reader becomes the writer, the queue treats its slot as that of a writer; a writer
//!    that becomes a reader admits other readers only after the store did.

use crate::clock::Instant;
use crate::engine::acquire::attempt::ModeChange;
use crate::engine::machine::count::{Share, Shares};
use crate::engine::machine::hold::{ChangeVerdict, Phase, Reentry};
use crate::engine::machine::mode;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::EventKind;
use crate::store::{Acquire, Acquired, Mode, Target};
use crate::util::panics::run_wakers;
use std::pin::pin;
use std::sync::Arc;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

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
    core.life.check()?;
    core.ensure_running();
    consume_budget().await;
    let limit = core.timing.attempt * 2;
    let converting = pin!(async {
        match timeout(limit, run(core, hold, mode, token)).await {
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

async fn run(
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
            Err(Reentry::Busy) => hold.until_idle().await,
            Err(Reentry::Lost(loss)) => return Err(Error::lost(loss)),
            Err(Reentry::Over) => {
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
            match hold.change_mode(core, number, granted) {
                Some(next) => {
                    change.changed();
                    Ok(Converted::Changed(next))
                }
                None => {
                    let late = ChangeVerdict::Failed(Error::silent());
                    change.end(late).map(|()| Converted::Refused)
                }
            }
        }
        Ok(Acquired::Held { .. }) if upgrades => {
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

impl Hold {
    /// Ends the hold and installs the one of the new mode in its slot. Returns `None` if the hold is lost, or the answer
    /// came too late.
    fn change_mode(
        self: &Arc<Self>,
        core: &Arc<Core>,
        number: u64,
        change: Change,
    ) -> Option<Arc<Self>> {
        let Change { mode, sent, fence, reached } = change;
        let now = core.now();
        let mut inner = self.lock();
        let watchers = self.watchers(&inner);
        let renew = core.timing.renewal(sent, core.jitter());
        let was_at_risk = inner.state.phase() == Phase::AtRisk;
        let mut state = inner.state.change_mode(&core.timing, now, sent, renew)?;
        state.reached(if reached { now } else { Instant::MAX });
        if mode::is_joined(mode) {
            state.share();
        }
        let (slot, scheduled) = (inner.slot.take(), inner.scheduled.take());
        let target = Target::new(self.name.clone(), mode);
        let holder = (self.holder, fence);
        let next = Self::new(target, self.options.clone(), holder, now, state, slot);
        let share = inner.shares.as_deref().map_or(Share::FIRST, Shares::only);
        Self::changes_to(&mut inner, share, &next);
        core.queue.reseat(&next, number, sent);
        core.counters.risks(was_at_risk, false);
        let (from, held) = (self.mode, self.held(now));
        let told = next.happened(core, now, EventKind::ModeChanged { from, held, fence });
        drop(inner);
        told.finish();
        core.schedule.set(self, scheduled, None);
        if let Some(watchers) = watchers {
            run_wakers(|| watchers.notify_waiters());
        }
        next.start(core, now);
        Some(next)
    }
}
