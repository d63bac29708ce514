//! Steals, wishes and notes. Each request is a call of its own. The hint to the old holder's manager is part of the script;
//! in a cluster it follows, because its channel is in another slot.

use super::lock::confirmed;
use super::{HINT, NOTE_READ, ScriptCall, millis, permits, reply, rw};
use crate::error::Result;
use crate::store::contract::mode::Kind;
use crate::store::redis::{Element, EngineCaller, RedisStore};
use crate::store::{
    Acquire, Acquired, Act, ForceRelease, HolderId, Inspect, Mode, Name, Note, Reason, Steal,
    StoreFuture, Want, failed,
};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// Takes a name from its holder for another one.
pub(in crate::store::redis) fn steal(
    store: &RedisStore,
    acquire: Acquire,
    Steal { from, reason }: Steal,
) -> StoreFuture<Acquired> {
    let target = &acquire.target;
    if let Err(error) = Steal::check_mode(target.mode) {
        return failed(error);
    }
    let mut call = ScriptCall::of(1);
    call.key(&store.keys.lock(&target.name));
    call.key(&store.keys.note(&target.name));
    call.holder(acquire.holder);
    call.number(millis(acquire.ttl));
    call.text(&from);
    write_reason(store, &mut call, &reason, target.name.as_str());
    if let Some(fencing) = acquire.fencing {
        call.key(&store.keys.fence(&target.name));
        call.number(fencing.block.into());
        call.number(fencing.retention.map_or(0, millis));
    }
    call.wait = store.replicas;
    let sent = store.clock.now();
    let wait = call.wait;
    let hint = format!("verify {}", target.name);
    let reply = store.caller.run(&store.scripts.steal, call, acquire.timeout);
    let hint_sender = hint_sender(store, acquire.timeout);
    Box::pin(async move {
        let mut reply = reply.await?;
        let confirmed = confirmed(wait, &mut reply);
        let verdict = rw::acquired(&acquire, sent, &reply);
        match verdict {
            Ok(Acquired::Granted { .. }) => {
                hint_sender.send([from.as_str()], &hint);
                confirmed.and(verdict)
            }
            verdict => verdict,
        }
    })
}

/// Reports to a holder that its name is wanted.
pub(in crate::store::redis) async fn want(store: &RedisStore, request: Want) -> Result<bool> {
    let Want { target, from, reason, only_resting, timeout } = request;
    Steal::check_mode(target.mode)?;
    if only_resting {
        return ask_to_yield(store, &target.name, timeout).await;
    }
    let mut call = ScriptCall::of(1);
    call.key(&store.keys.lock(&target.name));
    call.key(&store.keys.note(&target.name));
    call.text(&from);
    write_reason(store, &mut call, &reason, target.name.as_str());
    let reply = store.caller.run(&store.scripts.want, call, timeout).await?;
    let is_holder = match rw::code(&reply)? {
        reply::Code::Done(is_holder) => is_holder > 0,
        _ => return Err(reply::malformed_reply()),
    };
    if is_holder {
        hint_sender(store, timeout).send([from.as_str()], &format!("want {}", target.name));
    }
    Ok(is_holder)
}

/// Asks the manager that has a name to give up a hold that rests. Returns whether it lingers.
async fn ask_to_yield(store: &RedisStore, name: &Name, timeout: Duration) -> Result<bool> {
    let mut call = ScriptCall::of(1);
    call.key(&store.keys.lock(name));
    call.text(&store.keys.inbox().concat());
    call.text(name.as_str());
    let reply = store.caller.run(&store.scripts.rest_yield, call, timeout).await?;
    let holder = match reply.first() {
        Some(Element::Text(holder)) => holder,
        Some(Element::Int(_)) => return Ok(false),
        _ => return Err(reply::malformed_reply()),
    };
    hint_sender(store, timeout).send([holder.as_str()], &format!("yield {name}"));
    Ok(true)
}

/// Deletes a name by force. Returns whether it was held.
pub(in crate::store::redis) async fn force_release(
    store: &RedisStore,
    request: ForceRelease,
) -> Result<bool> {
    request.check_mode()?;
    let ForceRelease { target, reason, from, act, timeout } = request;
    let script = match target.mode.kind() {
        Kind::Lock => &store.scripts.force,
        Kind::ReadWrite => &store.scripts.rw_force,
        Kind::Semaphore => {
            let mut call = permits::of(&store.keys, &target.name, 1);
            call.key(&store.keys.sizes(&target.name));
            let reply = store.caller.run(&store.scripts.permits_force, call, timeout).await?;
            return was_held(&reply);
        }
    };
    let mut call = ScriptCall::of(1);
    call.key(&store.keys.lock(&target.name));
    if let Some(reason) = &reason {
        call.text(act.word());
        write_reason(store, &mut call, reason, target.name.as_str());
    } else if from.is_some() {
        (0..5).for_each(|_| call.text(""));
    }
    if let Some(from) = &from {
        call.text(from);
    }
    let reply = store.caller.run(script, call, timeout).await?;
    let holders = reply.iter().filter_map(|element| match element {
        Element::Text(holder) => Some(holder.as_str()),
        _ => None,
    });
    hint_sender(store, timeout).send(holders, &format!("verify {}", target.name));
    was_held(&reply)
}

fn write_reason(
    store: &RedisStore,
    call: &mut ScriptCall,
    Reason { by, why }: &Reason,
    name: &str,
) {
    call.text(by);
    call.text(why);
    call.text(&store.keys.inbox().concat());
    call.text(name);
}

/// Returns the note about a name that was left for a holder.
pub(in crate::store::redis) async fn note(
    store: &RedisStore,
    Inspect { target, timeout, .. }: Inspect,
    holder: HolderId,
) -> Result<Option<Note>> {
    if let Mode::Permits { .. } = target.mode {
        return Ok(None);
    }
    let mut call = ScriptCall::of(1);
    call.key(&store.keys.note(&target.name));
    let reply = store.caller.run(&NOTE_READ, call, timeout).await?;
    let [
        Element::Text(act),
        Element::Text(from),
        Element::Text(by),
        Element::Text(why),
        Element::Text(at),
        Element::Text(fence),
    ] = &reply[..]
    else {
        return Err(reply::malformed_reply());
    };
    let Some(act) = Act::of_word(act).filter(|_| is_for(from, &holder.to_string())) else {
        return Ok(None);
    };
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(at.parse().unwrap_or(0));
    // The author may be of a later version, which takes longer texts.
    let reason = Reason { by: by.as_str().into(), why: why.as_str().into() };
    let fence = fence.parse().ok().filter(|fence| *fence > 0);
    Ok(Some(Note::new(act, reason, at).with_fence_to_beat(fence)))
}

fn hint_sender(store: &RedisStore, timeout: Duration) -> HintSender {
    let inbox = store.keys.inbox().concat();
    let sharded = store.scripts.sharded;
    HintSender { caller: store.caller.clone(), inbox, timeout, sharded }
}

/// Sends hints where a script cannot.
struct HintSender {
    caller: EngineCaller,
    inbox: String,
    timeout: Duration,
    sharded: bool,
}

impl HintSender {
    /// Sends a hint to the managers of these holders, in the background. A hint that is lost costs the time until a renewal.
    fn send<'a>(&self, holders: impl IntoIterator<Item = &'a str>, hint: &str) {
        if !self.sharded {
            return;
        }
        let managers: BTreeSet<&str> = holders
            .into_iter()
            .filter_map(|holder| holder.split_once(':'))
            .map(|(id, _)| id)
            .collect();
        for manager in managers {
            let mut call = ScriptCall::of(1);
            call.key(&[&self.inbox, manager]);
            call.text(hint);
            drop(self.caller.run(&HINT, call, self.timeout));
        }
    }
}

/// Returns whether a note is for this holder. A hold at a node of a quorum has an id for each attempt, which begins alike.
fn is_for(from: &str, holder: &str) -> bool {
    let is_own = |rest: &str| rest.is_empty() || rest.starts_with('.');
    from.split(' ').any(|from| from.strip_prefix(holder).is_some_and(is_own))
}

fn was_held(reply: &[Element]) -> Result<bool> {
    match reply.first() {
        Some(Element::Int(deleted)) => Ok(*deleted > 0),
        _ => Err(reply::malformed_reply()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_is_for_the_holders_that_it_names() {
        for (from, holder, is) in [
            ("a:1", "a:1", true),
            ("a:12", "a:1", false),
            ("a:1.2.3", "a:1.2", true),
            ("a:1.21", "a:1.2", false),
            ("b:1 a:1", "a:1", true),
            ("", "a:1", false),
        ] {
            assert_eq!(is_for(from, holder), is, "{from} {holder}");
        }
    }
}
