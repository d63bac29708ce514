//! Takes a name from its holder, wherever that is.
//!
//! # Invariants
//!
//! 1. **From the holder that was seen, and from no other.** The request names it. If another came meanwhile, nothing is taken.
//! 2. **Tokens first.** If the holder is of this manager, its token fires before the request leaves, and a grant that is still
//!    on its way becomes no hold. If the request fails, the release of that hold is owed to the store.
//! 3. **One act, one holder id.** A steal is an outermost acquire for the rest of the engine: its [`AcquireGuard`] guards it, so a
//!    dropped or unanswered one is released and swept like any other.
//! 4. **It waits for no turn**: the holder it is meant for may never end. Other calls of this process that ask for the name
//!    lose their turns with the grant, and wait again.
//!
//! The old holder elsewhere hears of it by a hint in the inbox of its manager, which verifies the hold at once
//! ([`background`](crate::engine::background)). The renewal is answered that the hold was stolen, and the token fires.
//! The note is read when a lease is asked for it, so that it never delays the token.

use super::revoke::Revoked;
use crate::engine::acquire::Claim;
use crate::engine::acquire::acquire_guard::AcquireGuard;
use crate::engine::acquire::turn::Turn;
use crate::engine::hold::handoff;
use crate::engine::machine::hold::State;
use crate::engine::machine::name::TurnOutcome;
use crate::engine::shared::calls;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::{Grant, Hold};
use crate::engine::shared::lifecycle::CallGuard;
use crate::engine::shared::options::Options;
use crate::engine::shared::report::CallReport;
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::store::{Acquire, Acquired, Mode, Name, Reason, Steal, Target};
use crate::util::reached::Rare;
use std::pin::pin;
use std::sync::Arc;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

/// Takes a name from its holder; from `only`, if that is given. Acquires it if it is free. Returns `None` if another holder
/// came between.
pub(crate) async fn steal<'a>(
    core: &'a Arc<Core>,
    name: &Name,
    options: &Options,
    current: &mut Option<Arc<Hold>>,
    reason: &Reason,
    only: Option<&str>,
) -> Result<Option<Claim<'a>>> {
    let _call = begin_call(core, options, current).await?;
    // Looking, taking, and once more if the name became free between.
    let limit = core.timing.attempt * 4;
    let report = &CallReport::new(core, name, Mode::Exclusive, options, core.now(), None);
    let stealing = pin!(async {
        match timeout(limit, run(core, name, options, reason, only, report)).await {
            Ok(result) => result,
            Err(_) => Err(Error::silent()),
        }
    });
    let attended = pin!(core.attend(stealing));
    let result = core.life.unless_closed(attended).await;
    report.end(&result, true);
    let claim = result?;
    if core.life.is_closed() {
        drop(claim);
        return Err(core.life.error());
    }
    if let Some(claim) = &claim {
        *current = Some(claim.hold());
    }
    Ok(claim)
}

/// Reports to the holder of a name that it is wanted. Returns the holder; `None` if the name is free.
pub(crate) async fn want(
    core: &Arc<Core>,
    name: &Name,
    options: &Options,
    current: &Option<Arc<Hold>>,
    reason: &Reason,
) -> Result<Option<String>> {
    // What the steal refuses must not make the holder release.
    let _call = begin_call(core, options, current).await?;
    let asking = pin!(async {
        let holder = calls::inspect_as(core, name, Mode::Exclusive).await?.into_holder();
        let holder = holder.map(|holder| holder.holder);
        core.queue.each_hold_of(name, |hold| {
            if holder.as_deref() == Some(hold.holder.to_string().as_str()) {
                // A holder of this manager needs no message, and the worker may not even run yet.
                hold.set_wanted();
            } else {
                // The store has another holder, or none: this one may have lost the name without having heard of it. Its
                // renewal is due, so it is not handed off to this very call before the store has answered.
                hold.update(core, State::renew_at);
            }
        });
        handoff::yield_rest(core, name);
        let Some(holder) = holder else { return Ok(None) };
        match calls::want(core, Target::exclusive(name.clone()), holder.clone(), reason.clone())
            .await
        {
            // A holder that cannot be asked is only waited for.
            Err(error) if error.kind() != ErrorKind::Unsupported => Err(error),
            _ => Ok(Some(holder)),
        }
    });
    let asking = pin!(core.attend(asking));
    core.life.unless_closed(asking).await
}

/// Begins a call. Fails if a steal would be refused: of a handle that has the name, with these options, or by this store.
async fn begin_call<'a>(
    core: &'a Arc<Core>,
    options: &Options,
    current: &Option<Arc<Hold>>,
) -> Result<CallGuard<'a>> {
    let call = core.life.begin_call();
    consume_budget().await;
    core.life.check()?;
    core.ensure_running();
    refuse_nested(core, current)?;
    options.check(core, Mode::Exclusive)?;
    if core.can.steals { Ok(call) } else { Err(Steal::unsupported(Mode::Exclusive)) }
}

/// Refuses a handle that has the name: there is nothing to take.
fn refuse_nested(core: &Arc<Core>, current: &Option<Arc<Hold>>) -> Result<()> {
    match current {
        Some(hold) if !hold.is_finished() && hold.count() > 0 => {
            hold.check(core)?;
            Err(Error::invalid(
                "this handle holds the name; steal is for the name of another holder, so call `lock` to enter again",
            ))
        }
        _ => Ok(()),
    }
}

async fn run<'a>(
    core: &'a Arc<Core>,
    name: &Name,
    options: &Options,
    reason: &Reason,
    only: Option<&str>,
    report: &CallReport<'_>,
) -> Result<Option<Claim<'a>>> {
    let holder = calls::inspect_as(core, name, Mode::Exclusive).await?.into_holder();
    if holder.as_ref().is_some_and(|holder| holder.closed.is_some()) {
        // It has no holder, and stays closed for a while.
        return Ok(None);
    }
    let from = holder.map(|holder| holder.holder);
    if from.is_some() && only.is_some_and(|only| from.as_deref() != Some(only)) {
        return Ok(None);
    }
    let turn = Turn::seize(&core.queue, name, Mode::Exclusive, core.now());
    let mut attempt = AcquireGuard::new(core, Target::exclusive(name.clone()), core.draw_holder());
    let request = Acquire::new(
        Target::exclusive(name.clone()),
        attempt.holder(),
        core.ttl_of(options),
        core.timing.attempt,
    )
    .with_fencing(core.fencing(Mode::Exclusive));
    let mut verdict = Acquired::held(None);
    let mut is_free = from.is_none();
    if let Some(from) = from {
        let own = |hold: &Arc<Hold>| hold.holder.to_string() == from;
        let mut stolen = Revoked::new(core, lose_own(core, name, own));
        // The grant of this holder may be on its way to another call of this manager.
        core.queue.forced(name, core.now(), Some(turn.number()));
        let steal = Steal::new(from.clone(), reason.clone());
        attempt.send(request.clone().with_steal(Some(steal)), None, core.now());
        verdict = attempt.land().await?;
        is_free = matches!(verdict, Acquired::NotYours(_));
        Rare::StealMetUnlock.reached_if(|| is_free);
        if let Acquired::Granted { .. } = verdict {
            stolen.done();
            report.steals();
        }
    }
    if is_free {
        turn.set_due(core.timing.step_due(core.now()));
        attempt.send(request, None, core.now());
        verdict = attempt.land().await?;
    }
    if let Acquired::Granted { sent, .. } = verdict {
        for hold in core.queue.holds_of(name) {
            // The store had another holder, so this one lost the name, and has not heard of it.
            if hold.is_believed() && hold.chain_began() < sent {
                Rare::StealFoundOlder.reached();
                hold.lose(core, Loss::Taken);
            }
            // One whose release is in flight has nothing left to release.
            if !hold.is_believed() {
                hold.update(core, |state, _| State::end(state));
            }
        }
    }
    Ok(begin(core, options, attempt, turn, verdict, report).map(|hold| Claim::of(core, hold)))
}

/// Loses the holds of this manager that match, also those to which they are handed off meanwhile. Returns them.
fn lose_own(core: &Arc<Core>, name: &Name, own: impl Fn(&Arc<Hold>) -> bool) -> Vec<Arc<Hold>> {
    let mut lost: Vec<Arc<Hold>> = Vec::new();
    loop {
        let is_new = |hold: &Arc<Hold>| lost.iter().all(|known| known.number != hold.number);
        let mut new = core.queue.holds_of(name);
        new.retain(|hold| own(hold) && is_new(hold));
        if new.is_empty() {
            Rare::StoleFromItself.reached_if(|| !lost.is_empty());
            return lost;
        }
        new.iter().for_each(|hold| hold.lose(core, Loss::Stolen));
        lost.extend(new);
    }
}

/// Begins a hold with a grant. Returns `None`, and has the grant released, if it cannot be kept.
fn begin(
    core: &Arc<Core>,
    options: &Options,
    attempt: AcquireGuard<'_>,
    turn: Turn,
    verdict: Acquired,
    report: &CallReport<'_>,
) -> Option<Arc<Hold>> {
    let Acquired::Granted { sent, fence, reached, .. } = verdict else { return None };
    let now = core.now();
    if core.timing.stale(sent, now) || turn.keep(sent, true) != TurnOutcome::Kept {
        attempt.release_later(sent);
        return None;
    }
    let grant = attempt.into_grant(turn, sent, fence, reached, now);
    let grant = Grant { options: options.clone(), ..grant };
    Some(Hold::begin(core, grant, report))
}
