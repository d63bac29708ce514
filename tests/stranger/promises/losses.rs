//! Why a lease ends, and for how long its name stays closed.

use std::time::Duration;

use leasehold::{ErrorKind, Loss};

use crate::history::{Deed, Ending, Held, History, Mode, Object, Outcome, Way};
use crate::judge::{Breach, Window};

/// A lease is lost for a reason that the guide lists.
pub fn losses_have_causes(history: &History) -> Vec<Breach> {
    let sentence = "guarantees: A lease is lost only at that deadline, by the store's clear answer that it is gone or belongs \
                    to another holder, by `force_unlock`, `steal`, `max_hold`, `stall_after` or `close`, or by a panic of the \
                    watchdog.";
    let mut breaches = Vec::new();
    for held in &history.leases {
        let seen = held.lost.and_then(|lost| lost.loss.map(|loss| (loss, lost.seen)));
        let at_end = held.end.as_ref().and_then(|end| end.failure.as_ref()?.loss.zip(end.done));
        for (loss, at) in seen.into_iter().chain(at_end) {
            // A set is lost with any of its names.
            let names = &history.calls[held.call].names;
            if !names.iter().any(|name| history.has_cause(name, held.manager, loss, at)) {
                let what = format!("the lease of call {} was lost by {loss:?}", held.call);
                breaches.push(Breach {
                    promise: "losses_have_causes",
                    sentence,
                    name: held.name.clone(),
                    what,
                });
            }
        }
    }
    breaches
}

/// No holder holds for longer than `max_hold`, and none loses its lease by it earlier.
pub fn max_hold_ends_a_lease(history: &History) -> Vec<Breach> {
    let sentence = "`Builder::max_hold`: Sets the longest time that one holder may hold a name. After it the lease is lost, \
                    with `Loss::MaxHold`.";
    let Some(max) = history.rules.max_hold else { return Vec::new() };
    let mut breaches = Vec::new();
    for held in history.leases.iter().filter(|held| !held.nested) {
        // A writer that becomes a reader is the same holder.
        let is_first = |first: &&Held| first.handle == held.handle && first.name == held.name;
        let first = if history.calls[held.call].way == Way::Change {
            history.leases.iter().find(is_first)
        } else {
            None
        };
        let first = first.unwrap_or(held);
        let call = &history.calls[first.call];
        // "`max_hold` counts from the grant, which may be a tenth of the TTL older than the lease."
        // It may be a writer by now.
        let has_read = held.mode == Mode::Read || history.calls[held.call].way == Way::Change;
        let joined = if has_read { history.rules.ttl / 10 } else { Duration::ZERO };
        let is_late = held.good_until.at > first.start.at + max + history.rules.slack;
        let is_early = held.lost.is_some_and(|lost| {
            lost.loss == Some(Loss::MaxHold)
                && lost.seen.at + joined + history.rules.slack < call.start.at + max
        });
        if is_late || is_early {
            let what = format!(
                "the lease of call {} was good until {:?}, and lost {:?}",
                held.call, held.good_until.at, held.lost
            );
            breaches.push(Breach {
                promise: "max_hold_ends_a_lease",
                sentence,
                name: held.name.clone(),
                what,
            });
        }
    }
    breaches
}

/// A holder that reports progress is not stalled, and one that does not is.
pub fn stall_ends_a_lease(history: &History) -> Vec<Breach> {
    let sentence = "`Builder::stall_after`: Sets the longest time between two reports of progress. After it the lease is lost, \
                    with `Loss::Stalled`. The first report is due that long after the grant.";
    let Some(limit) = history.rules.stall_after else { return Vec::new() };
    let mut breaches = Vec::new();
    // Readers share their reports.
    for held in history.leases.iter().filter(|held| held.mode != Mode::Read && !held.nested) {
        let its = history
            .leases
            .iter()
            .filter(|other| other.handle == held.handle && other.name == held.name);
        let changes = its.clone().any(|other| history.calls[other.call].way == Way::Change);
        if changes || history.calls[held.call].object == Object::Election {
            continue;
        }
        // A nested lease, and a report by it, count for the holder.
        let reports = its.clone().flat_map(|other| other.reported.into_iter().chain([other.start]));
        let last = reports.max().unwrap_or(held.start);
        let is_late = held.good_until.at > last.at + limit + history.rules.slack;
        let first_report = held.reported.map_or(held.polled, |reported| reported);
        let is_early = held.lost.is_some_and(|lost| {
            lost.loss == Some(Loss::Stalled)
                && lost.seen.at + history.rules.slack < first_report.at.min(held.start.at) + limit
        });
        let reported_just_now = held.lost.zip(held.reported).is_some_and(|(lost, reported)| {
            lost.loss == Some(Loss::Stalled)
                && lost.seen.at < reported.at + limit
                && reported.order < lost.seen.order
        });
        if is_late || is_early || reported_just_now {
            let what = format!(
                "the lease of call {} was good until {:?}, reported {:?}, lost {:?}",
                held.call, held.good_until, held.reported, held.lost
            );
            breaches.push(Breach {
                promise: "stall_ends_a_lease",
                sentence,
                name: held.name.clone(),
                what,
            });
        }
    }
    breaches
}

/// Returns who was granted a name from a moment on, and before another.
fn granted_between<'a>(
    history: &'a History,
    held: &Held,
    from: crate::history::Stamp,
    until: Duration,
) -> Option<&'a Held> {
    let calm = !history.disturbed(&held.name).iter().any(|window| window.to >= held.start.at);
    let is_next = |next: &&Held| {
        next.name == held.name
            && !next.nested
            && next.polled.order > from.order
            && next.start.at < until
            && next.was_good()
    };
    history.leases.iter().filter(|_| calm).find(is_next)
}

/// A name stays closed for `min_hold` after a clean release.
pub fn min_hold_keeps_the_name(history: &History) -> Vec<Breach> {
    let sentence = "jobs: `min_hold` keeps a name closed for a time after the caller got the lease, however early the lease \
                    ends. While the name is closed, no handle can lock it, not even the one that had it.";
    let mut breaches = Vec::new();
    for held in history.leases.iter().filter(|held| !held.nested) {
        let Some(min) = history.calls[held.call].min_hold else { continue };
        let Some(end) = held.clean_end() else { continue };
        let last = history
            .leases
            .iter()
            .filter(|other| other.handle == held.handle && other.name == held.name);
        let all_clean = last.clone().all(|other| other.clean_end().is_some());
        let span = Window {
            from: held.start.at.saturating_sub(history.rules.ttl),
            to: held.start.at + min,
        };
        if !all_clean || history.trouble_in(span) {
            continue;
        }
        if let Some(next) = granted_between(history, held, end.begin, held.polled.at + min) {
            let what = format!(
                "call {} was granted the name within the min_hold of call {}",
                next.call, held.call
            );
            breaches.push(Breach {
                promise: "min_hold_keeps_the_name",
                sentence,
                name: held.name.clone(),
                what,
            });
        }
    }
    breaches
}

/// A name stays closed for `lock_delay` after a loss.
pub fn delay_keeps_the_name(history: &History) -> Vec<Breach> {
    let sentence = "jobs: A lost lease has no clean release, whether it expired or was ended by `max_hold`, `stall_after` or \
                    `close`: its name stays closed (for the `lock_delay`).";
    let mut breaches = Vec::new();
    for held in history.leases.iter().filter(|held| !held.nested) {
        let delay = history.calls[held.call].lock_delay;
        let Some(lost) = held
            .lost
            .filter(|lost| matches!(lost.loss, Some(Loss::MaxHold | Loss::Closed | Loss::Expired)))
        else {
            continue;
        };
        if delay.is_zero() {
            continue;
        }
        // The store's time to live had not passed at the last moment at which it was good.
        if let Some(next) = granted_between(history, held, lost.seen, held.good_until.at + delay) {
            let what = format!(
                "call {} was granted the name within the lock_delay of call {}",
                next.call, held.call
            );
            breaches.push(Breach {
                promise: "delay_keeps_the_name",
                sentence,
                name: held.name.clone(),
                what,
            });
        }
    }
    breaches
}

/// A lease that was forgotten keeps others out for as long as it could be relied on.
pub fn forget_keeps_the_name(history: &History) -> Vec<Breach> {
    let sentence = "guarantees: End with `forget` in place of `unlock`. The name then stays taken until the lease expires.";
    let mut breaches = Vec::new();
    for held in history.leases.iter().filter(|held| held.mode == Mode::Alone && held.lost.is_none())
    {
        let Some(end) = held.end.as_ref().filter(|end| end.how == Ending::Forget) else { continue };
        let others = history
            .leases
            .iter()
            .filter(|other| other.handle == held.handle && other.name == held.name);
        let is_last = others.clone().all(|other| {
            other.start.order <= held.start.order
                || other.end.as_ref().is_some_and(|e| e.how == Ending::Forget)
        });
        let closes = history
            .acts
            .iter()
            .any(|act| matches!(act.deed, Deed::Close { manager, .. } if manager == held.manager));
        if !is_last || others.count() > 1 || closes {
            continue;
        }
        if let Some(next) = granted_between(history, held, end.begin, end.begin.at + end.remaining)
        {
            let what = format!(
                "call {} was granted the name that call {} had forgotten",
                next.call, held.call
            );
            breaches.push(Breach {
                promise: "forget_keeps_the_name",
                sentence,
                name: held.name.clone(),
                what,
            });
        }
    }
    breaches
}

/// A token has fired when its lease has ended, however it ended.
pub fn token_fires_at_the_end(history: &History) -> Vec<Breach> {
    let sentence = "`Lease::cancellation_token`: Returns a token that fires when this lease ends: when it is lost, unlocked or \
                    dropped.";
    let is_open = |held: &&Held| {
        held.end
            .as_ref()
            .is_some_and(|end| end.done.is_some() && !end.token_fired && end.how != Ending::Changed)
    };
    let breach = |held: &Held| {
        let what = format!("the token of call {} has not fired at the end of its lease", held.call);
        Breach { promise: "token_fires_at_the_end", sentence, name: held.name.clone(), what }
    };
    history.leases.iter().filter(is_open).map(breach).collect()
}

/// A call of a manager that is closed returns `Closed`.
pub fn closed_call_fails(history: &History) -> Vec<Breach> {
    let sentence = "`LeaseManager::close`: refuses new locks (...) and waiters get `Closed`.";
    let mut breaches = Vec::new();
    for act in &history.acts {
        let Deed::Close { manager, .. } = &act.deed else { continue };
        let Some(closed) = act.end else { continue };
        for (number, call) in history
            .calls
            .iter()
            .enumerate()
            .filter(|(_, call)| call.manager == *manager && !call.nested)
        {
            let began_after = call.start.order > closed.order;
            let waited = call.unpolled.is_none()
                && call.waits_at(act.start)
                && call.end.is_none_or(|end| end.at > closed.at + history.rules.slack);
            let is_closed = match &call.outcome {
                Outcome::Failed(failure) => {
                    matches!(
                        failure.kind,
                        ErrorKind::Closed | ErrorKind::Lost | ErrorKind::Unsupported
                    )
                }
                // What it would have returned is not known.
                Outcome::Abandoned => true,
                _ => false,
            };
            if (began_after || waited) && !is_closed && call.polled.order > act.start.order {
                let what =
                    format!("call {number} of a closed manager ended with {:?}", call.outcome);
                breaches.push(Breach {
                    promise: "closed_call_fails",
                    sentence,
                    name: call.names[0].clone(),
                    what,
                });
            }
        }
    }
    breaches
}
