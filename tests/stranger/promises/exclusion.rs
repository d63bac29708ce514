//! Who may believe at one time.

use crate::history::{Act, Deed, Held, History, Mode, Way};
use crate::judge::{Breach, Window};

fn pairs<'a>(leases: &'a [&'a Held]) -> impl Iterator<Item = [&'a Held; 2]> {
    leases.iter().enumerate().flat_map(move |(index, first)| {
        leases[index + 1..].iter().map(move |second| [*first, *second])
    })
}

/// Two leases that exclude each other are never good at one time.
pub fn locks_exclude(history: &History) -> Vec<Breach> {
    let sentence = "guarantees: While the cancellation token of a lease has not fired and `check` returns `Ok`, no other \
                    holder can believe that it has the name in a mode that excludes this one.";
    let mut breaches = Vec::new();
    for name in history.names() {
        let leases = history.of(&name);
        let disturbed = history.disturbed(&name);
        for [first, second] in pairs(&leases).filter(|[first, second]| first.excludes(second)) {
            let until = first.good_until.min(second.good_until);
            if second.start.order >= until.order {
                continue;
            }
            let both = Window { from: second.start.at, to: until.at };
            if history.outside(both, &disturbed).is_some() {
                let what = format!(
                    "calls {} and {} both had a good lease {both:?}",
                    first.call, second.call
                );
                breaches.push(Breach {
                    promise: "locks_exclude",
                    sentence,
                    name: name.clone(),
                    what,
                });
            }
        }
    }
    breaches
}

/// The token of a lease has fired when another holder is granted the name.
pub fn token_fires_before_the_next_grant(history: &History) -> Vec<Breach> {
    let sentence = "README: If the lease is lost, its `CancellationToken` fires before the store can grant the name to \
                    another holder.";
    let mut breaches = Vec::new();
    for name in history.names() {
        let leases = history.of(&name);
        let disturbed = history.disturbed(&name);
        for [first, second] in
            pairs(&leases).filter(|[first, second]| first.excludes(second) && second.was_good())
        {
            let both =
                Window { from: second.start.at, to: first.unfired_until.min(second.good_until).at };
            let around = Window { from: both.from.saturating_sub(history.rules.ttl), to: both.to };
            let stalled = history
                .acts
                .iter()
                .any(|act| act.deed == Deed::Stall && act.window().meets(around));
            let late = second.start.order < first.unfired_until.order;
            if late && !stalled && history.outside(both, &disturbed).is_some() {
                let what = format!(
                    "the token of call {} had not fired {both:?}, after the grant of call {}",
                    first.call, second.call
                );
                let promise = "token_fires_before_the_next_grant";
                breaches.push(Breach { promise, sentence, name: name.clone(), what });
            }
        }
    }
    breaches
}

/// No more permits are held than there are.
pub fn permits_keep_the_size(history: &History) -> Vec<Breach> {
    let sentence = "guarantees: ... and no more permits are held than the semaphore has.";
    let mut breaches = Vec::new();
    for name in history.names() {
        let leases = history.of(&name);
        let disturbed = history.disturbed(&name);
        for last in leases.iter().filter(|last| last.was_good()) {
            let Mode::Permits { size, .. } = last.mode else { continue };
            let at = last.start;
            let held = leases
                .iter()
                .filter(|held| held.start.order <= at.order && at.order < held.good_until.order);
            let sum: u32 = held
                .filter_map(|held| {
                    if let Mode::Permits { count, .. } = held.mode { Some(count) } else { None }
                })
                .sum();
            if sum > size && !disturbed.iter().any(|window| window.has(at.at)) {
                let what = format!("{sum} of {size} permits were held at {at:?}");
                breaches.push(Breach {
                    promise: "permits_keep_the_size",
                    sentence,
                    name: name.clone(),
                    what,
                });
            }
        }
    }
    breaches
}

/// Nothing writes between a writer and the reader that it becomes.
pub fn downgrade_lets_no_writer_in(history: &History) -> Vec<Breach> {
    let sentence = "`WriteLease::downgrade`: Makes the writer a reader, in one step: no other holder can write in between.";
    let mut breaches = Vec::new();
    for name in history.names() {
        let leases = history.of(&name);
        let disturbed = history.disturbed(&name);
        let changed = leases
            .iter()
            .filter(|held| history.calls[held.call].way == Way::Change && held.mode == Mode::Read);
        for reader in changed.filter(|reader| reader.was_good()) {
            let Some(writer) = leases.iter().rev().find(|held| {
                held.handle == reader.handle
                    && held.mode == Mode::Write
                    && held.start.order < reader.start.order
            }) else {
                continue;
            };
            for other in leases
                .iter()
                .filter(|other| other.handle != reader.handle && other.mode == Mode::Write)
            {
                let within = writer.start.order < other.polled.order
                    && other.start.order < reader.start.order;
                let span = Window { from: writer.start.at, to: reader.start.at };
                if within
                    && other.was_good()
                    && writer.was_good()
                    && history.outside(span, &disturbed).is_some()
                    && disturbed.is_empty()
                {
                    let what = format!(
                        "call {} wrote between the writer {} and its reader {}",
                        other.call, writer.call, reader.call
                    );
                    breaches.push(Breach {
                        promise: "downgrade_lets_no_writer_in",
                        sentence,
                        name: name.clone(),
                        what,
                    });
                }
            }
        }
    }
    breaches
}

/// A close keeps a name until its lease is dropped, or for the grace.
pub fn close_waits_for_the_grace(history: &History) -> Vec<Breach> {
    let sentence = "`LeaseManager::close`: Each name is released when its leases are dropped, or after the grace, never \
                    before.";
    let mut breaches = Vec::new();
    for act in &history.acts {
        let Deed::Close { manager, .. } = act.deed else { continue };
        // The first of two counts.
        let again = |other: &&Act| {
            matches!(other.deed, Deed::Close { manager: who, .. } if who == manager)
                && other.start < act.start
        };
        if history.acts.iter().any(|other| again(&other)) {
            continue;
        }
        for first in history
            .leases
            .iter()
            .filter(|held| held.manager == manager && held.good_until.order < act.start.order)
        {
            // It was there until a moment after the close began.
            let ended = first.end.as_ref().map(|end| end.begin);
            if first.start.order > act.start.order
                || ended.is_some_and(|ended| ended.order < act.start.order)
            {
                continue;
            }
            if history.disturbed(&first.name).iter().any(|window| window.to >= first.start.at)
                || first.lost.is_some_and(|lost| lost.seen.order < act.start.order)
            {
                continue;
            }
            // What was lost by another cause before, such as `max_hold`, is not that of the close.
            if first.lost.is_none_or(|lost| lost.loss != Some(leasehold::Loss::Closed)) {
                continue;
            }
            let grace = act.start.at + history.rules.grace;
            for second in history.of(&first.name) {
                let after =
                    second.start.order > act.start.order && second.polled.order > act.start.order;
                let is_early = second.start.at + history.rules.slack < grace
                    && ended.is_none_or(|ended| second.start.order < ended.order);
                if after && is_early && first.excludes(second) && second.was_good() {
                    let what = format!(
                        "call {} was granted the name in the grace of call {}",
                        second.call, first.call
                    );
                    breaches.push(Breach {
                        promise: "close_waits_for_the_grace",
                        sentence,
                        name: first.name.clone(),
                        what,
                    });
                }
            }
        }
    }
    breaches
}

/// The holder whose name was taken learns of it in time.
pub fn stolen_holder_learns(history: &History) -> Vec<Breach> {
    let sentence = "`Lock::steal`: Without an inbox (...) or if the message is lost, it learns of it at its next renewal, \
                    after up to a third of the TTL.";
    let mut breaches = Vec::new();
    for name in history.names() {
        let leases = history.of(&name);
        for thief in leases.iter().filter(|held| matches!(history.calls[held.call].way, Way::Steal))
        {
            for old in leases.iter().filter(|old| {
                old.handle != thief.handle
                    && old.start.order < history.calls[thief.call].start.order
            }) {
                let by = thief.start.at + history.rules.learns();
                let troubled = history.trouble_in(Window { from: thief.start.at, to: by });
                if !troubled && old.good_until.at > by {
                    let what = format!(
                        "call {} was good long after call {} had stolen the name",
                        old.call, thief.call
                    );
                    breaches.push(Breach {
                        promise: "stolen_holder_learns",
                        sentence,
                        name: name.clone(),
                        what,
                    });
                }
            }
        }
    }
    breaches
}
