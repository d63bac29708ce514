//! Names that several holders share. Each request is a call of its own: `rw.rs` and `permits.rs` have the words.

use super::keys::Keys;
use super::reply::Element;
use super::{PERMITS_INSPECT, RW_INSPECT, Script, ScriptCall, Scripts, permits, reply, rw};
use crate::clock::Instant;
use crate::error::Result;
use crate::store::connect::remote::Replicas;
use crate::store::contract::mode::Kind;
use crate::store::redis::RedisStore;
use crate::store::{Acquire, Acquired, Inspect, Inspection, Mode, Release, Resize};

/// Returns the call that acquires a read-write lock or permits.
pub(super) fn acquire(
    keys: &Keys,
    scripts: &'static Scripts,
    replicas: Option<Replicas>,
    request: &Acquire,
) -> (&'static Script, ScriptCall) {
    let (script, mut call) = match request.target.mode {
        Mode::Permits { size, take } => {
            (&scripts.permits_acquire, permits::acquire(keys, request, size, take))
        }
        _ => (&scripts.rw_acquire, rw::acquire(keys, request)),
    };
    // A reader that becomes the writer has a new grant.
    let upgrades = request.converts && request.target.mode == Mode::Write;
    call.wait = replicas.filter(|_| !request.converts || upgrades);
    (script, call)
}

/// Reads the reply to it.
pub(super) fn acquired(request: &Acquire, sent: Instant, reply: &[Element]) -> Result<Acquired> {
    match request.target.mode {
        Mode::Permits { size, .. } => permits::acquired(size, sent, reply),
        _ => rw::acquired(request, sent, reply),
    }
}

/// Returns the call that releases a read-write lock or permits.
pub(super) fn release(
    keys: &Keys,
    scripts: &'static Scripts,
    request: &Release,
) -> (&'static Script, ScriptCall) {
    match request.target.mode {
        Mode::Permits { .. } => (&scripts.permits_release, permits::release(keys, request)),
        _ => (&scripts.rw_release, rw::release(keys, request)),
    }
}

/// Returns the call that releases one with a single key, while a cluster has moved only some of them.
pub(super) fn release_with_one_key(
    keys: &Keys,
    scripts: &'static Scripts,
    request: &Release,
) -> (&'static Script, ScriptCall) {
    match request.target.mode {
        Mode::Permits { .. } => {
            (&scripts.permits_release, permits::release_with_one_key(keys, request))
        }
        _ => (&scripts.rw_release, rw::release_with_one_key(keys, request)),
    }
}

/// Returns the holders of a name.
pub(in crate::store::redis) async fn holders(
    store: &RedisStore,
    request: Inspect,
) -> Result<Inspection> {
    let Inspect { target, timeout, .. } = request;
    match target.mode.kind() {
        Kind::Lock => {
            let reply = store.run_on(&store.scripts.inspect, &target.name, timeout).await?;
            reply::inspection(&reply)
        }
        Kind::ReadWrite => {
            let mut call = ScriptCall::of(1);
            call.key(&store.keys.lock(&target.name));
            call.text(&store.keys.channel_of(&target).concat());
            call.text(store.scripts.numsub());
            rw::inspection(&store.caller.run(&RW_INSPECT, call, timeout).await?)
        }
        Kind::Semaphore => {
            let mut call = permits::of(&store.keys, &target.name, 1);
            call.text(&store.keys.channel_of(&target).concat());
            call.text(store.scripts.numsub());
            permits::inspection(&store.caller.run(&PERMITS_INSPECT, call, timeout).await?)
        }
    }
}

/// Sets the number of permits of a semaphore. Returns the one before.
pub(in crate::store::redis) async fn resize(
    store: &RedisStore,
    request: &Resize,
) -> Result<Option<u32>> {
    let call = permits::resize(&store.keys, request);
    let reply = store.caller.run(&store.scripts.permits_resize, call, request.timeout).await?;
    permits::resized(&reply)
}
