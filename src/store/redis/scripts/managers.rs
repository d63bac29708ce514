//! The descriptions of managers, each under a key of its own.

use super::reply::{self, Element};
use super::{DESCRIBE, OWNER, ScriptCall, millis, rw};
use crate::error::Result;
use crate::store::redis::RedisStore;
use crate::store::{Describe, Metadata, Owner, Owners};

/// The most requests at one time.
const AT_ONCE: usize = 64;

/// Writes the description of a manager, or deletes it.
pub(in crate::store::redis) async fn describe(store: &RedisStore, request: Describe) -> Result<()> {
    let mut call = ScriptCall::default();
    call.key(&store.keys.manager(&request.key()));
    let Describe { owner, ttl, timeout, .. } = request;
    // A time to live of 0 deletes.
    call.number(owner.as_ref().map_or(0, |_| millis(ttl).max(1)));
    for (name, text) in owner.into_iter().flat_map(|owner| Metadata::new(owner, 0).words()) {
        if name != "rev" {
            call.text(name);
            call.text(&text);
        }
    }
    let reply = store.caller.run(&DESCRIBE, call, timeout).await?;
    rw::code(&reply).map(drop)
}

/// Returns the descriptions of managers. In a cluster each can be on another server.
pub(in crate::store::redis) async fn owners(
    store: &RedisStore,
    request: Owners,
) -> Result<Vec<Option<Owner>>> {
    let mut owners = Vec::with_capacity(request.managers.len());
    for managers in request.managers.chunks(AT_ONCE) {
        let ask = |manager: &String| {
            let mut call = ScriptCall::default();
            call.key(&store.keys.manager(manager));
            store.caller.run(&OWNER, call, request.timeout)
        };
        // All are sent together.
        let asked: Vec<_> = managers.iter().map(ask).collect();
        for reply in asked {
            owners.push(owner(&reply.await?)?);
        }
    }
    Ok(owners)
}

/// Reads the reply to a request for a description.
fn owner(reply: &[Element]) -> Result<Option<Owner>> {
    let (words, rest) = reply.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(reply::malformed_reply());
    }
    let mut metadata = Metadata::default();
    for word in words {
        let [Element::Text(name), Element::Text(text)] = word else {
            return Err(reply::malformed_reply());
        };
        metadata.read(name, text);
    }
    Ok((!words.is_empty()).then_some(metadata.owner))
}
