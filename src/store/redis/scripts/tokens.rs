//! Fencing tokens that the caller names: the second round of a quorum, of which a server is a node.

use super::{ScriptCall, millis, reply};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::contract::mode::Kind;
use crate::store::redis::scripts::keys::Keys;
use crate::store::redis::scripts::reply::{Code, Element};
use crate::store::redis::{RedisStore, uptime_of};
use crate::store::{Mode, Reservation, Reserve, Reserved, TokenVerdict, Uptime};

/// Reserves the tokens of grants, by a call for so many of them.
pub(in crate::store::redis) async fn reserve(
    store: &RedisStore,
    request: Reserve,
    size: usize,
) -> Result<Reserved> {
    let Reserve { items, timeout } = request;
    if let Some(item) = items.iter().find(|item| item.target.mode.kind() == Kind::Semaphore) {
        return Err(item.target.mode.unsupported());
    }
    let part = |items: &[Reservation]| {
        // It is sent now, so the calls are under way side by side.
        let reply = store.caller.run(&store.scripts.reserve, call(&store.keys, items), timeout);
        (items.len(), reply)
    };
    let parts: Vec<_> = items.chunks(size).map(part).collect();
    let mut uptime: Option<Uptime> = None;
    let mut verdicts = Vec::with_capacity(items.len());
    for (count, reply) in parts {
        match reply.await.and_then(|reply| read(&reply, count)) {
            Ok(part) => {
                verdicts.extend(part.verdicts);
                let younger = uptime.as_ref().is_none_or(|other| part.uptime.age < other.age);
                uptime = if younger { Some(part.uptime) } else { uptime };
            }
            Err(error) => verdicts.extend((0..count).map(|_| Err(error.clone()))),
        }
    }
    match uptime {
        Some(uptime) => Ok(Reserved::new(uptime, verdicts)),
        None => Err(verdicts.into_iter().find_map(Result::err).unwrap_or_else(nothing)),
    }
}

fn nothing() -> Error {
    Error::new(ErrorKind::Invalid, "a request to reserve fencing tokens names no grant; name one")
        .with_fate(Fate::NotExecuted)
}

/// Builds the call for some items.
fn call(keys: &Keys, items: &[Reservation]) -> ScriptCall {
    let mut call = ScriptCall::of(items.len());
    for item in items {
        call.key(&keys.lock(&item.target.name));
        call.key(&keys.fence(&item.target.name));
        match item.target.mode {
            Mode::Write => call.text(&format!("{}:write", item.holder)),
            _ => call.holder(item.holder),
        }
        call.number(item.first);
        call.number(item.fencing.block.max(1).into());
        call.number(item.fencing.retention.map_or(0, millis));
    }
    call
}

/// Reads the reply for so many items.
fn read(reply: &[Element], count: usize) -> Result<Reserved> {
    let [up, id, verdicts @ ..] = reply else { return Err(reply::malformed_reply()) };
    if verdicts.len() != count {
        return Err(reply::malformed_reply());
    }
    let verdict = |element: &Element| match element.code()? {
        Code::Done(0) => Ok(TokenVerdict::Stored),
        Code::Done(last) => Ok(TokenVerdict::outrun(last)),
        Code::Absent(absence) => Ok(TokenVerdict::NotYours(absence)),
        Code::Other(_) => Err(reply::malformed_reply()),
    };
    let verdicts = verdicts.iter().map(verdict).collect();
    Ok(Reserved::new(uptime_of(up, id)?, verdicts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Absence;
    use crate::store::{Fencing, HolderId, Name, Target};
    use std::time::Duration;
    use uuid::Uuid;

    #[test]
    fn each_item_has_its_keys_and_four_arguments() {
        let item = |mode, name: &str| {
            let target = Target::new(Name::new(name).unwrap(), mode);
            let fencing = Fencing::new(64, Some(Duration::from_secs(1)));
            Reservation::new(target, HolderId::new(Uuid::nil(), 7), 100, fencing)
        };
        let call = call(&Keys::new(""), &[item(Mode::Exclusive, "a"), item(Mode::Write, "b")]);
        assert_eq!(call.keys, 4);
        let holder = "00000000-0000-0000-0000-000000000000:7";
        let writer = format!("{holder}:write");
        let expected = [holder, "100", "64", "1000", &writer, "100", "64", "1000"];
        assert_eq!(call.arguments(), expected);
    }

    #[test]
    fn reply_has_the_age_and_a_verdict_for_each_item() {
        let text = |text: &str| Element::Text(text.to_owned());
        let reply = [10, 0, 5, -1, -2, -7].map(Element::Int);
        let mut reply = reply.to_vec();
        reply.insert(1, text("abc"));
        let read_ok = read(&reply, 5).unwrap();
        assert_eq!(read_ok.uptime.age, Some(Duration::from_secs(9)));
        assert_eq!(read_ok.uptime.server.as_deref(), Some("abc"));
        let verdicts: Vec<_> =
            read_ok.verdicts.into_iter().map(|one| one.map_err(|error| error.kind())).collect();
        let expected = [
            Ok(TokenVerdict::Stored),
            Ok(TokenVerdict::outrun(5)),
            Ok(TokenVerdict::NotYours(Absence::Gone)),
            Ok(TokenVerdict::NotYours(Absence::Taken)),
            Err(ErrorKind::Protocol),
        ];
        assert_eq!(verdicts, expected);
        assert_eq!(read(&reply, 4).unwrap_err().kind(), ErrorKind::Protocol);
    }
}
