//! The watchdog's transitions of a hold: it starts renewals and applies their verdicts.

use crate::clock::Instant;
use crate::engine::hold::describe;
use crate::engine::machine::hold::{DueWork, Phase, SentRenewal, State};
use crate::engine::machine::policy::CallSite;
use crate::engine::machine::timing::Timing;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::job::Job;
use crate::engine::shared::schedule::Group;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Absence;
use crate::util::reached::Rare;
use crate::util::trace;
use std::sync::Arc;
use std::time::Duration;
use tracing::Level;

/// Returns the work that is due, after the watchdog has taken the hold out of the schedule,
/// where its time was `at`. `change` is [`State::tick`], [`State::begin_renewal`] to fill a
/// batch, or [`State::renew_or_recall`] after a reconnect.
pub(super) fn when_due(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    at: Instant,
    now: Instant,
    group: &mut Group<'_>,
    change: impl FnOnce(&mut State, &Timing, Instant) -> DueWork,
) -> DueWork {
    let mut inner = hold.lock();
    if inner.scheduled != Some(at) {
        // A stale entry: the hold has ended or moved.
        return DueWork::Nothing;
    }
    inner.scheduled = None;
    let mut held = None;
    let rests = inner.state.is_resting();
    let due = hold.update_locked(core, now, inner, Some(group), |state, now| {
        held = state.warn(now);
        change(state, &core.timing, now)
    });
    if let Some((since, caller)) = held {
        warn_held(hold, now.saturating_duration_since(since), caller);
    }
    if due != DueWork::TakenBack {
        return due;
    }
    let rare = if rests { Rare::RestRanOut } else { Rare::TakenBack };
    rare.reached();
    group.wakes.effects.push(core.queue.missed(hold));
    DueWork::Flush
}

/// Warns that the hold has been held for long.
fn warn_held(hold: &Hold, held: Duration, caller: CallSite) {
    trace::later(Level::WARN, || {
        let name = hold.name.clone();
        let fence = hold.fence;
        let held_ms = held.as_millis() as u64;
        let caller = caller.map(tracing::field::display);
        move || {
            tracing::warn!(
                name = name.as_str(),
                fence,
                held_ms,
                caller,
                "still held; is it leaked?"
            );
        }
    });
}

/// Counts a renewal as failed: no answer came in time.
pub(super) fn unanswered(core: &Arc<Core>, hold: &Arc<Hold>, attempt: u32, group: &mut Group<'_>) {
    let mut inner = hold.lock();
    inner.failure.get_or_insert_with(Error::silent);
    hold.update_locked(core, core.now(), inner, Some(group), |state, now| {
        state.unanswered(&core.timing, now, core.jitter(), attempt);
    });
}

/// Applies the verdict on the renewal of this number. `keeps_fence` says whether it extended the store's memory of the
/// fencing token. With the same jitter, holds that were renewed together are due together, and join the group.
pub(in crate::engine) fn renewed(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    now: Instant,
    jitter: f64,
    renewal: SentRenewal,
    verdict: Result<Option<Absence>>,
    group: &mut Group<'_>,
) {
    match &verdict {
        Ok(None) => trace::later(Level::TRACE, || {
            let name = hold.name.clone();
            move || tracing::trace!(name = name.as_str(), "renewed")
        }),
        Ok(Some(_)) => {}
        Err(error) => trace::later(Level::DEBUG, || {
            let name = hold.name.clone();
            let error = error.clone();
            move || tracing::debug!(name = name.as_str(), %error, "renewal failed")
        }),
    }
    let mut inner = hold.lock();
    match &verdict {
        Ok(_) => inner.failure = None,
        Err(error) => inner.failure = Some(error.clone()),
    }
    let verdict = match verdict {
        // The store may have made a reader of this writer already, and its answer is on its way. If not, that answer, or
        // the next renewal, shows the loss. Of a name that is free, it has made nothing.
        Ok(Some(Absence::Taken)) if hold.is_downgraded(&inner) => {
            Rare::TakenByItself.reached();
            Err(Error::new(ErrorKind::Unavailable, "the mode may have changed meanwhile"))
        }
        verdict => verdict,
    };
    if Rare::ARE_COUNTED {
        note_rare(core, &inner.state, now, &verdict);
    }
    let is_described = matches!(verdict, Ok(None)) && describe::is_due(core, hold, &inner, now);
    let unflushed = hold.update_locked(core, now, inner, Some(group), |state, now| {
        state.renewed(&core.timing, now, jitter, renewal, verdict);
        state.needs_flush()
    });
    if unflushed {
        core.submit(Job::Flush(Arc::clone(hold)));
    }
    if is_described {
        describe::write_later(core, hold);
    }
}

/// Counts a verdict on a renewal, if it is rare in this state of the hold.
fn note_rare(core: &Core, state: &State, now: Instant, verdict: &Result<Option<Absence>>) {
    let is_at_risk = state.phase() == Phase::AtRisk;
    let left = state.believed_until(&core.timing).saturating_duration_since(now);
    match verdict {
        Ok(None) if !state.believed() || left.is_zero() => Rare::RenewedAfterLoss.reached(),
        Ok(None) if is_at_risk => {
            Rare::Saved.reached();
            Rare::SavedAtTheLast.reached_if(|| left < core.timing.attempt);
        }
        Err(error) if error.kind() == ErrorKind::WrongType => Rare::RenewalMetWrongType.reached(),
        Err(error) => {
            Rare::DeniedAtRisk.reached_if(|| is_at_risk && error.kind() == ErrorKind::Denied)
        }
        Ok(_) => {}
    }
}
