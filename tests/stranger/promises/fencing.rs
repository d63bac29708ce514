//! Fencing tokens.

use crate::history::{Backend, Held, History, Mode, Way};
use crate::judge::{Breach, Window};

fn calm(history: &History, held: &Held, disturbed: &[Window]) -> bool {
    let learned = history.rules.ttl;
    held.was_good()
        && !disturbed
            .iter()
            .any(|window| window.from <= held.start.at && held.start.at <= window.to + learned)
}

/// A later grant has a larger token.
pub fn fences_grow(history: &History) -> Vec<Breach> {
    let sentence = "fencing: Each grant of a name carries a fencing token, a number larger than that of any earlier grant \
                    of this name. (family: The fencing token of a reader is larger than those of the writers before and \
                    smaller than those of the writers after.)";
    let mut breaches = Vec::new();
    for name in history.names() {
        let disturbed = history.disturbed(&name);
        let leases = history.of(&name);
        let calm: Vec<&&Held> =
            leases.iter().filter(|held| !held.nested && calm(history, held, &disturbed)).collect();
        for (index, second) in calm.iter().enumerate() {
            for first in &calm[..index] {
                let Some(before) = first.fence else { continue };
                let Some(after) = second.fence else { continue };
                if first.mode == Mode::Read && second.mode == Mode::Read {
                    continue;
                }
                // "`downgrade` gives the reader a larger one than the writer had, and on ZooKeeper the same."
                // Readers that share a hold share its token.
                let is_kept = |reader: &&Held| {
                    history.calls[reader.call].way == Way::Change
                        && (reader.handle, reader.fence) == (first.handle, first.fence)
                        && (reader.manager, reader.mode) == (second.manager, second.mode)
                };
                let keeps = history.rules.backend == Backend::ZooKeeper
                    && second.mode == Mode::Read
                    && leases.iter().any(is_kept);
                if after < before || after == before && !keeps {
                    let what = format!(
                        "call {} has {after}, and call {} before it had {before}",
                        second.call, first.call
                    );
                    breaches.push(Breach {
                        promise: "fences_grow",
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

/// Leases have tokens, permits have none, and nested leases have that of the outer one.
pub fn fences_are_there(history: &History) -> Vec<Breach> {
    let sentence = "family: If the store has fencing tokens, all but permits have them. fencing: `fencing(false)` turns \
                    tokens off. Nested leases of one hold have the same token.";
    let mut breaches = Vec::new();
    for held in &history.leases {
        let expected = history.rules.fencing && !matches!(held.mode, Mode::Permits { .. });
        let outer = |outer: &&Held| {
            outer.handle == held.handle
                && outer.name == held.name
                && !outer.nested
                && outer.start.order < held.start.order
        };
        let other = held.nested.then(|| history.leases.iter().rev().find(outer)).flatten();
        let differs = other
            .is_some_and(|outer| outer.fence != held.fence && outer.was_good() && held.was_good());
        if held.fence.is_some() != expected || differs {
            let what = format!("the token of call {} is {:?}", held.call, held.fence);
            breaches.push(Breach {
                promise: "fences_are_there",
                sentence,
                name: held.name.clone(),
                what,
            });
        }
    }
    breaches
}

/// Readers of different processes have different tokens.
pub fn readers_have_their_own(history: &History) -> Vec<Breach> {
    let sentence = "family: Readers that share a hold share its token; others have their own.";
    if history.rules.backend == Backend::Quorum {
        return Vec::new();
    }
    let mut breaches = Vec::new();
    for name in history.names() {
        let leases = history.of(&name);
        for (index, second) in leases.iter().enumerate() {
            for first in &leases[..index] {
                let is_same = first.fence.is_some() && first.fence == second.fence;
                if is_same
                    && first.mode == Mode::Read
                    && second.mode == Mode::Read
                    && first.manager != second.manager
                {
                    let what = format!(
                        "calls {} and {} of two managers have one token",
                        first.call, second.call
                    );
                    breaches.push(Breach {
                        promise: "readers_have_their_own",
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

/// What is stolen comes with a larger token.
pub fn steal_has_a_larger_fence(history: &History) -> Vec<Breach> {
    let sentence = "`Lock::steal`: The fencing token of the new lease is larger than theirs.";
    let mut breaches = Vec::new();
    for name in history.names() {
        let leases = history.of(&name);
        for thief in leases
            .iter()
            .filter(|held| matches!(history.calls[held.call].way, Way::Steal | Way::StealAfter(_)))
        {
            let before = leases.iter().filter(|old| {
                old.start.order < history.calls[thief.call].start.order && old.was_good()
            });
            for old in before {
                let is_smaller =
                    old.fence.zip(thief.fence).is_some_and(|fences| fences.1 <= fences.0);
                if is_smaller {
                    let what = format!(
                        "call {} has stolen the name with a token not above that of call {}",
                        thief.call, old.call
                    );
                    breaches.push(Breach {
                        promise: "steal_has_a_larger_fence",
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
