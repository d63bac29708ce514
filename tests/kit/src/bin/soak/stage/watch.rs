//! Looks at the keys of a store again and again: which names are free, or have which owners, and whether
//! anything has no end.

use super::{Backend, Key, Log, main_key};
use kit::soak::history::{What, Words, now};
use kit::soak::leases::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A gap longer than this may hide a whole lease.
const BLIND: u64 = 100_000_000;
/// A span shorter than this is of no interest.
const SHORT: u64 = 150_000_000;

/// One owner of a name, or none at all.
type Owner = Option<String>;

/// From the first look that saw an owner to the last.
struct Seen {
    from: u64,
    until: u64,
}

pub fn watch(backend: &Backend, log: &Log, stop: &AtomicBool) {
    let mut look = backend.servers.looker(&backend.names);
    let mut spans: Vec<BTreeMap<Owner, Seen>> =
        backend.names.iter().map(|_| BTreeMap::new()).collect();
    while !stop.load(Ordering::Relaxed) {
        let before = now();
        let keys = look();
        let after = now();
        let blind = keys.is_err() || after - before > BLIND;
        let keys = keys.unwrap_or_default();
        for (name, spans) in backend.names.iter().zip(&mut spans) {
            let owners = if blind { BTreeSet::new() } else { owners(name, &keys) };
            spans.retain(|owner, seen| {
                let goes_on = owners.contains(owner) && before - seen.until < BLIND;
                if !goes_on {
                    report(name, owner.as_deref(), seen, log);
                }
                goes_on
            });
            for owner in owners {
                let seen = spans.entry(owner).or_insert(Seen { from: after, until: after });
                seen.until = seen.until.max(before);
            }
        }
        for key in keys.into_iter().filter(|key| key.ttl == -1) {
            log.write(after, What::Undying { key: Words(key.name) });
        }
        thread::sleep(Duration::from_millis(10));
    }
    for (name, spans) in backend.names.iter().zip(spans) {
        spans.iter().for_each(|(owner, seen)| report(name, owner.as_deref(), seen, log));
    }
}

/// Who has a name by the keys of a server.
fn owners(name: &str, keys: &[Key]) -> BTreeSet<Owner> {
    let (main, is_pool) = (main_key(name), matches!(Kind::of(name), Kind::Semaphore { .. }));
    let mut its = keys.iter().filter(|key| key.name == main);
    match Kind::of(name) {
        Kind::Lock | Kind::Election | Kind::Job | Kind::Loot => {
            // What is there and has no holder is no lock.
            let holder = |key: &Key| key.tokens.first().cloned().unwrap_or_default();
            BTreeSet::from([its.next().map(holder)])
        }
        Kind::ReadWrite | Kind::Semaphore { .. } => {
            let mut its = its.peekable();
            // A lock whose readers are all over is not free before it goes itself.
            let is_free = is_pool || its.peek().is_none();
            let owners: BTreeSet<Owner> =
                its.flat_map(|key| key.tokens.iter().cloned().map(Some)).collect();
            if owners.is_empty() && is_free { BTreeSet::from([None]) } else { owners }
        }
    }
}

fn report(name: &str, owner: Option<&str>, seen: &Seen, log: &Log) {
    let Seen { from, until } = *seen;
    if until - from <= SHORT {
        return;
    }
    let name = name.to_owned();
    match owner.map(|token| token.split_once(':')) {
        None => log.write(from, What::Free { until, name }),
        Some(Some((id, number))) => {
            // A quorum puts the number of the attempt behind it.
            let number = number.split('.').next().and_then(|number| number.parse().ok());
            let (id, number) = (id.to_owned(), number.unwrap_or_default());
            log.write(from, What::Kept { until, name, id, number });
        }
        Some(None) => {
            log.write(from, What::Left { text: Words(format!("{name}, which is no lock")) })
        }
    }
}
