//! The line of a lock: the managers that wait for it in the order of arrival. Each request is a call of its own.

use super::keys::Keys;
use super::replies::{self, Element};
use super::requests::{Codec, millis};
use super::scripts::{Call, LINE_ACQUIRE, LINE_INSPECT, Script};
use super::{RedisStore, rw};
use crate::error::Result;
use crate::store::{Acquire, Inspect, Leave, Name, Place, Release, Waiting};
use std::time::Duration;

/// Builds the call of an acquire with a place.
pub(super) fn acquire(codec: &Codec, request: &Acquire, place: Place) -> (&'static Script, Call) {
    let name = &request.target.name;
    let mut call = on(&codec.keys, name);
    call.show(request.holder);
    call.number(millis(request.ttl));
    write(&mut call, place);
    if let Some(fencing) = request.fencing {
        call.key(&codec.keys.fence(name));
        call.number(fencing.block.into());
        call.number(fencing.retention.map_or(0, millis));
    }
    call.wait = codec.replicas;
    (&LINE_ACQUIRE, call)
}

/// Builds the call of a release with the place of the next waiter.
pub(super) fn release(codec: &Codec, request: &Release, place: Place) -> (&'static Script, Call) {
    let mut call = on(&codec.keys, &request.target.name);
    call.show(request.holder);
    write(&mut call, place);
    (&codec.scripts.line_release, call)
}

/// Begins a call with the keys of a lock and its line.
fn on(keys: &Keys, name: &Name) -> Call {
    let mut call = Call::of(2);
    call.key(&keys.lock(name));
    keys.in_line(name).iter().for_each(|key| call.key(key));
    call
}

fn write(call: &mut Call, place: Place) {
    call.number(u64::try_from(place.waited.as_micros()).unwrap_or(u64::MAX));
    call.number(millis(place.kept));
}

impl RedisStore {
    /// Gives up a place.
    pub(super) async fn leave_line(&self, request: Leave) -> Result<()> {
        request.target.require_exclusive()?;
        let mut call = on(&self.keys, &request.target.name);
        call.show(request.holder);
        let reply = self.run_call(&self.scripts.line_leave, call, request.timeout).await?;
        rw::code(&reply).map(drop)
    }

    /// Returns the managers that wait, the oldest first.
    pub(super) async fn waiting(&self, request: Inspect) -> Result<Vec<Waiting>> {
        request.target.require_exclusive()?;
        let call = on(&self.keys, &request.target.name);
        let reply = self.run_call(&LINE_INSPECT, call, request.timeout).await?;
        let (waiters, rest) = reply.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(replies::malformed_reply());
        }
        let waiter = |words: &[Element; 2]| {
            let [Element::Text(manager), Element::Int(waited)] = words else {
                return Err(replies::malformed_reply());
            };
            let waited = Duration::from_micros(u64::try_from(*waited).unwrap_or_default());
            Ok(Waiting::new(manager.clone(), waited))
        };
        waiters.iter().map(waiter).collect()
    }
}
