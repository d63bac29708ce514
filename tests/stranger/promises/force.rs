//! Closes, steals and forced releases.

use crate::history::{Act, Deed, Held, History, Way};
use crate::judge::{Breach, Window};

/// A loss is final.
pub fn lost_lease_stays_lost(history: &History) -> Vec<Breach> {
    let sentence = "guarantees: A lost lease never comes back.";
    let is_back =
        |held: &&Held| held.lost.is_some_and(|lost| held.good_until.order > lost.seen.order);
    let breach = |held: &Held| {
        let what = format!("the lease of call {} was good after {:?}", held.call, held.lost);
        Breach { promise: "lost_lease_stays_lost", sentence, name: held.name.clone(), what }
    };
    history.leases.iter().filter(is_back).map(breach).collect()
}

/// Returns the leases of a manager that were there before an act, and whose tokens had not fired after it.
fn unfired<'a>(
    history: &'a History,
    act: &'a Act,
    name: Option<&'a str>,
) -> impl Iterator<Item = &'a Held> {
    let manager = act.manager;
    history.leases.iter().filter(move |held| {
        let is_meant = held.manager == manager && name.is_none_or(|name| held.name == name);
        let after = act.end.is_some_and(|end| held.unfired_until.order > end.order);
        is_meant && held.start.order < act.start.order && after
    })
}

/// A close fires all tokens.
pub fn close_fires_all_tokens(history: &History) -> Vec<Breach> {
    let sentence = "`LeaseManager::close`: The cancellation tokens of all leases fire first, with `Loss::Closed`.";
    let mut breaches = Vec::new();
    for act in history.acts.iter().filter(|act| matches!(act.deed, Deed::Close { .. })) {
        for held in unfired(history, act, None) {
            let what = format!("the token of call {} had not fired after the close", held.call);
            let promise = "close_fires_all_tokens";
            breaches.push(Breach { promise, sentence, name: held.name.clone(), what });
        }
    }
    breaches
}

/// A forced release and a steal end the leases of their own manager before they return.
pub fn force_fires_tokens_here(history: &History) -> Vec<Breach> {
    let sentence = "`LeaseManager::force_unlock`: The cancellation tokens of a holder in this manager fire first. `Lock::steal`: \
                    If it belongs to this manager, its token fires before the request leaves.";
    let mut breaches = Vec::new();
    for act in &history.acts {
        let name = match &act.deed {
            Deed::Force { name, .. } => name,
            Deed::Steal { name } => name,
            _ => continue,
        };
        let took = |held: &&Held| {
            let call = &history.calls[held.call];
            matches!(call.way, Way::Steal)
                && held.name == *name
                && call.start.order > act.start.order
                && act.end.is_some_and(|end| held.start.order < end.order)
        };
        let is_forced =
            matches!(act.deed, Deed::Force { .. }) || history.leases.iter().any(|held| took(&held));
        for held in unfired(history, act, Some(name)).filter(|_| is_forced && act.failure.is_none())
        {
            let what =
                format!("the token of call {} had not fired after {:?}", held.call, act.deed);
            let promise = "force_fires_tokens_here";
            breaches.push(Breach { promise, sentence, name: name.clone(), what });
        }
    }
    breaches
}

/// A steal that asks first waits for as long as it says.
pub fn patience_lasts(history: &History) -> Vec<Breach> {
    let sentence = "`Lock::steal_after`: Asks the holder for the name, waits for `patience`, and then takes the name from that \
                    holder.";
    let mut breaches = Vec::new();
    for name in history.names() {
        let leases = history.of(&name);
        for old in &leases {
            let Some(lost) = old.lost.filter(|lost| lost.loss == Some(leasehold::Loss::Stolen))
            else {
                continue;
            };
            let acts = history
                .acts
                .iter()
                .filter(|act| act.is_force_on(&name) && act.window().to >= old.start.at);
            let calls = history
                .calls
                .iter()
                .filter(|call| call.has(&name) && call.start.order < lost.seen.order);
            let thefts: Vec<_> =
                calls.filter(|call| matches!(call.way, Way::Steal | Way::StealAfter(_))).collect();
            let earliest = thefts.iter().filter_map(|call| match call.way {
                Way::StealAfter(patience) => Some(call.start.at + patience),
                _ => None,
            });
            let all_patient = thefts.iter().all(|call| matches!(call.way, Way::StealAfter(_)));
            let is_early = earliest.min().is_some_and(|by| lost.seen.at + history.rules.slack < by);
            if all_patient
                && is_early
                && acts.count() > 0
                && !history.trouble_in(Window { from: old.start.at, to: lost.seen.at })
            {
                let what = format!(
                    "the lease of call {} was stolen at {:?}, before the patience ended",
                    old.call, lost.seen.at
                );
                breaches.push(Breach {
                    promise: "patience_lasts",
                    sentence,
                    name: name.clone(),
                    what,
                });
            }
        }
    }
    breaches
}
