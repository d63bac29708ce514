//! The acquires of a set of locks, in one call.

use super::keys::Keys;
use super::lock::{Batch, Codec, Request};
use super::reply::{self, Element};
use super::{Script, ScriptCall, millis};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::store::{Acquire, Name, SetVerdicts};
use std::time::Duration;

/// Acquires of several locks: all of them or none.
pub(in crate::store::redis) struct AcquireAll {
    first: Acquire,
    /// All of them. They are alike but for the names and the numbers of the holders.
    requests: Vec<Acquire>,
}

impl AcquireAll {
    /// Returns `None` if there is no request.
    pub(in crate::store::redis) fn new(requests: Vec<Acquire>) -> Option<Result<Self>> {
        let first = requests.first()?.clone();
        let is_like_first = |one: &Acquire| {
            one.holder.manager() == first.holder.manager()
                && (one.ttl, one.fencing) == (first.ttl, first.fencing)
                && one.plain_name().is_ok()
        };
        if !requests.iter().all(is_like_first) {
            let message = "the acquires of a set have one manager, time to live and fencing";
            return Some(Err(Error::invalid(message)));
        }
        Some(Ok(Self { first, requests }))
    }
}

impl Request for AcquireAll {
    type Verdict = SetVerdicts;

    fn name(&self) -> &Name {
        self.first.name()
    }

    fn timeout(&self) -> Duration {
        self.first.timeout
    }

    fn write(&self, keys: &Keys, batch: &mut Batch) {
        self.requests.iter().for_each(|request| request.write(keys, batch));
    }

    fn alone(&self, codec: &Codec) -> Option<(&'static Script, ScriptCall)> {
        let Acquire { holder, ttl, fencing, .. } = &self.first;
        let mut call = ScriptCall::of(self.requests.len());
        for request in &self.requests {
            call.key(&codec.keys.lock(&request.target.name));
            if fencing.is_some() {
                call.key(&codec.keys.fence(&request.target.name));
            }
        }
        call.number(millis(*ttl));
        call.number(fencing.map_or(0, |fencing| fencing.block.into()));
        call.number(fencing.and_then(|fencing| fencing.retention).map_or(0, millis));
        call.manager_of(*holder);
        let mut holders = String::with_capacity(self.requests.len() * 12);
        for request in &self.requests {
            if !holders.is_empty() {
                holders.push(',');
            }
            // A String takes whatever is written to it.
            let _ = request.holder.write_rest(&mut holders);
        }
        call.text(&holders);
        call.wait = codec.replicas;
        Some((&codec.scripts.acquire_all, call))
    }

    fn with_one_key(&self, _codec: &Codec) -> Option<(&'static Script, ScriptCall)> {
        None
    }

    fn is_apart(&self) -> bool {
        true
    }

    fn read(&self, codec: &Codec, sent: Instant, reply: &[Element]) -> Result<SetVerdicts> {
        if reply.len() != self.requests.len() {
            return Err(reply::malformed_reply());
        }
        let verdict = |(one, reply)| match reply::is_spared(reply) {
            true => Ok(None),
            false => Acquire::read(one, codec, sent, std::slice::from_ref(reply)).map(Some),
        };
        Ok(self.requests.iter().zip(reply).map(verdict).collect())
    }

    fn unconfirmed(&self, verdicts: SetVerdicts, error: &Error) -> Result<SetVerdicts> {
        let verdict = |(one, verdict): (_, Result<Option<_>>)| match verdict? {
            Some(verdict) => Acquire::unconfirmed(one, verdict, error).map(Some),
            None => Ok(None),
        };
        Ok(self.requests.iter().zip(verdicts).map(verdict).collect())
    }
}
