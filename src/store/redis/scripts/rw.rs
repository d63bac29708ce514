//! Read-write locks, in the layout of Redisson's `RReadWriteLock`. Each request is a call of its own.

use super::keys::Keys;
use super::reply::{self, Code, Element};
use super::{ScriptCall, millis};
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Acquire, Acquired, HolderInfo, Inspection, Mode, Release, RenewBatch, Renewal};

/// Builds the call of an acquire.
pub(super) fn acquire(keys: &Keys, request: &Acquire) -> ScriptCall {
    let Acquire { target, holder, .. } = request;
    let [read, write] = keys.sides(&target.name);
    let (own, waits) = match target.mode {
        Mode::Write => ("write", [write, read]),
        _ => ("read", [read, write]),
    };
    let mut call = ScriptCall::of(1);
    call.key(&keys.lock(&target.name));
    call.key(&[&keys.reader(&target.name, *holder)]);
    waits.iter().for_each(|side| call.key(side));
    call.holder(*holder);
    call.number(millis(request.ttl));
    call.text(own);
    call.number(request.converts.into());
    let (waited, kept) =
        request.arrival.map(|arrival| (arrival.waited, arrival.kept)).unwrap_or_default();
    call.number(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX));
    call.number(millis(kept));
    if let Some(fencing) = request.fencing {
        call.key(&keys.fence(&target.name));
        // A reader is not handed off.
        call.number(
            if target.mode == Mode::Write { fencing.block } else { fencing.block.min(1) }.into(),
        );
        call.number(fencing.retention.map_or(0, millis));
    }
    call
}

/// Reads the reply to an acquire.
pub(super) fn acquired(request: &Acquire, sent: Instant, reply: &[Element]) -> Result<Acquired> {
    match reply {
        [reply] => reply::acquired(reply, request.fencing.is_some(), sent, None),
        _ => Err(reply::malformed_reply()),
    }
}

/// Builds the call that gives up an arrival.
pub(super) fn leave(keys: &Keys, request: &Release) -> ScriptCall {
    let name = &request.target.name;
    let [read, write] = keys.sides(name);
    let mut call = ScriptCall::of(1);
    call.key(&keys.lock(name));
    call.key(if request.target.mode == Mode::Write { &write } else { &read });
    call.holder(request.holder);
    call.text(word(request.target.mode));
    call
}

/// Builds the call of a release.
pub(super) fn release(keys: &Keys, request: &Release) -> ScriptCall {
    let mut call = release_with_one_key(keys, request);
    call.key(&[&keys.reader(&request.target.name, request.holder)]);
    call.divisible = true;
    call
}

/// Builds the call of a release without the time of the reader, which is on another server.
pub(super) fn release_with_one_key(keys: &Keys, request: &Release) -> ScriptCall {
    let mut call = ScriptCall::of(1);
    call.key(&keys.lock(&request.target.name));
    call.holder(request.holder);
    call.text(word(request.target.mode));
    call.number(request.count.into());
    call
}

/// Builds the call that renews some items of a batch.
pub(in crate::store::redis) fn renewal(
    keys: &Keys,
    batch: &RenewBatch,
    items: &[Renewal],
) -> ScriptCall {
    let mut call = ScriptCall::of(items.len());
    call.number(millis(batch.ttl));
    call.number(batch.fence_retention.map_or(0, millis));
    for item in items {
        call.key(&keys.lock(&item.target.name));
        call.key(&[&keys.reader(&item.target.name, item.holder)]);
        let keeps = batch.retention_of(item).is_some();
        if keeps {
            call.key(&keys.fence(&item.target.name));
        }
        call.holder(item.holder);
        call.text(word(item.target.mode));
        call.text(if keeps { "F" } else { "L" });
    }
    call
}

/// Builds the calls that renew an item of which some keys are on another server, with one key each. They must run in this
/// order.
pub(in crate::store::redis) fn renewals_with_one_key(
    keys: &Keys,
    batch: &RenewBatch,
    item: &Renewal,
) -> Vec<ScriptCall> {
    let part = |step: &str, key: &[&str]| {
        let mut call = ScriptCall::of(1);
        call.number(millis(batch.ttl));
        call.number(0);
        call.key(key);
        call.holder(item.holder);
        call.text(word(item.target.mode));
        call.text(step);
        call
    };
    let Renewal { target, holder, .. } = item;
    let lock = part("H", &keys.lock(&target.name));
    match target.mode {
        Mode::Write => vec![lock],
        _ => vec![part("T", &[&keys.reader(&target.name, *holder)]), lock],
    }
}

/// Reads the reply of the inspect script.
pub(super) fn inspection(reply: &[Element]) -> Result<Inspection> {
    let [waiting, holders @ ..] = reply else { return Err(reply::malformed_reply()) };
    let (holders, rest) = holders.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(reply::malformed_reply());
    }
    let holder = |words: &[Element; 4]| {
        let [Element::Text(holder), Element::Text(mode), Element::Text(count), left] = words else {
            return Err(reply::malformed_reply());
        };
        let mode = if mode == "write" { Mode::Write } else { Mode::Read };
        let count = count.parse().map_err(|_| no_count())?;
        let left = reply::remaining(left.int()?);
        Ok(HolderInfo::new(holder.clone(), count, left).with_mode(mode))
    };
    let waiting = u64::try_from(waiting.int()?).ok();
    let holders = holders.iter().map(holder).collect::<Result<Vec<_>>>()?;
    Ok(Inspection::new(holders).with_waiting(waiting))
}

/// Returns the code of a reply that has one element.
pub(super) fn code(reply: &[Element]) -> Result<Code> {
    match reply {
        [element] => element.code(),
        _ => Err(reply::malformed_reply()),
    }
}

fn no_count() -> Error {
    Error::new(
        ErrorKind::WrongType,
        "the hash under this name is not a read-write lock (a field has no count); it was left untouched",
    )
}

fn word(mode: Mode) -> &'static str {
    if mode == Mode::Write { "write" } else { "read" }
}
