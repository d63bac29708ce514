//! Looks at the keys of a store again and again: which names are free, or have an owner, and whether
//! anything has no end.

use super::{Backend, Log};
use kit::soak::history::{What, Words, now};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A gap longer than this may hide a whole lease.
const BLIND: u64 = 100_000_000;
/// A span shorter than this is of no interest.
const SHORT: u64 = 150_000_000;

/// What a name was like, from the first look that saw it so to the last.
struct Seen {
    from: u64,
    until: u64,
    token: Option<String>,
}

pub fn watch(backend: &Backend, log: &Log, stop: &AtomicBool) {
    let mut look = backend.servers.looker(&backend.names);
    let mut spans: Vec<Option<Seen>> = backend.names.iter().map(|_| None).collect();
    while !stop.load(Ordering::Relaxed) {
        let before = now();
        let keys = look();
        let after = now();
        let blind = keys.is_err() || after - before > BLIND;
        let keys = keys.unwrap_or_default();
        for (name, span) in backend.names.iter().zip(&mut spans) {
            let token = keys.iter().find(|key| key.name == *name).map(|key| key.token.clone());
            match span {
                Some(seen) if !blind && seen.token == token && before - seen.until < BLIND => {
                    seen.until = before;
                }
                _ => {
                    tell(name, span.take(), log);
                    *span = (!blind).then_some(Seen { from: after, until: after, token });
                }
            }
        }
        for key in keys.into_iter().filter(|key| key.ttl == -1) {
            log.write(after, What::Undying { key: Words(key.name) });
        }
        thread::sleep(Duration::from_millis(10));
    }
    for (name, span) in backend.names.iter().zip(spans) {
        tell(name, span, log);
    }
}

fn tell(name: &str, seen: Option<Seen>, log: &Log) {
    let Some(Seen { from, until, token }) = seen.filter(|seen| seen.until - seen.from > SHORT)
    else {
        return;
    };
    let name = name.to_owned();
    let token = token.as_deref().map(|token| token.split_once(':'));
    match token {
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
