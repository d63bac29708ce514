//! The description of a holder, in a hash beside its lock. The lock's own hash stays as it is.

use super::modes::holders;
use super::reply::{self, Element};
use super::{METADATA, ScriptCall, rw};
use crate::error::{ErrorKind, Result};
use crate::store::redis::RedisStore;
use crate::store::{Annotate, Inspect, Inspection, Metadata, Name};
use std::time::Duration;

/// Writes the description of a holder, or deletes it.
pub(in crate::store::redis) async fn annotate(
    store: &RedisStore,
    request: Annotate,
) -> Result<bool> {
    request.require_exclusive()?;
    let Annotate { target, holder, metadata, ttl, timeout } = request;
    let mut call = ScriptCall::default();
    call.key(&store.keys.lock(&target.name));
    call.key(&store.keys.metadata(&target.name));
    call.holder(holder);
    // A time to live of 0 deletes.
    call.number(metadata.as_ref().map_or(0, |_| super::millis(ttl).max(1)));
    call.text(&store.keys.leader_channel(&target.name).concat());
    let number = metadata.as_ref().map_or(0, |metadata| metadata.revision);
    call.number(number);
    for (name, text) in metadata.iter().flat_map(Metadata::words) {
        if name != "rev" {
            call.text(name);
            call.text(&text);
        }
    }
    let reply = store.caller.run(&store.scripts.annotate, call, timeout).await?;
    match rw::code(&reply)? {
        reply::Code::Done(there) => Ok(there > 0),
        _ => Err(reply::malformed_reply()),
    }
}

/// Returns the holders of an exclusive lock, with what they report about themselves.
pub(in crate::store::redis) async fn inspect(
    store: &RedisStore,
    request: Inspect,
) -> Result<Inspection> {
    let name = request.target.name.clone();
    // Both are sent together. One of them can be older: what is not by the holder is left out.
    let metadata = read(store, &name, request.timeout);
    let (holders, metadata) = tokio::join!(holders(store, request), metadata);
    let mut inspection = holders?;
    let (waiting, written) = match metadata {
        Ok(metadata) => metadata,
        // A user that may use locks, and no more, still learns who has them.
        Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::WrongType) => {
            (None, None)
        }
        Err(error) => return Err(error),
    };
    let (holder, metadata) = written.unwrap_or_default();
    for info in inspection.holders.iter_mut().filter(|info| info.holder == holder) {
        info.metadata = Some(Box::new(metadata.clone()));
    }
    inspection.waiting = waiting;
    Ok(inspection)
}

async fn read(
    store: &RedisStore,
    name: &Name,
    timeout: Duration,
) -> Result<(Option<u64>, Option<(String, Metadata)>)> {
    let mut call = ScriptCall::default();
    call.key(&store.keys.metadata(name));
    call.text(&store.keys.channel(name).concat());
    call.text(store.scripts.numsub());
    let reply = store.caller.run(&METADATA, call, timeout).await?;
    let [waiting, words @ ..] = &*reply else { return Err(reply::malformed_reply()) };
    let (words, rest) = words.as_chunks::<2>();
    let mut holder = None;
    let mut metadata = Metadata::default();
    for [name, text] in words {
        let (Element::Text(name), Element::Text(text)) = (name, text) else {
            return Err(reply::malformed_reply());
        };
        match &**name {
            "holder" => holder = Some(text.clone()),
            name => metadata.read(name, text),
        }
    }
    if !rest.is_empty() {
        return Err(reply::malformed_reply());
    }
    Ok((u64::try_from(waiting.int()?).ok(), holder.map(|holder| (holder, metadata))))
}
