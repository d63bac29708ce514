//! Semaphores, in the layout of Redisson's `RPermitExpirableSemaphore`. Each request is a call of its own.
//!
//! A permit's id has 16 bytes: 8 of the manager's uuid, 6 of the holder's number, and 2 of the permit's place among those
//! of the holder.

use super::keys::Keys;
use super::reply::{self, Code, Element};
use super::rw::code;
use super::{ScriptCall, millis};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::store::{
    Acquire, Acquired, HolderId, HolderInfo, IDLE_SEMAPHORE, Inspection, Mode, Name, Release,
    RenewBatch, Renewal, Resize,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The bytes of a permit's id that its holder determines.
const HEAD: usize = 14;
/// The digits of a permit's id.
const DIGITS: usize = 32;
/// The most permits in one call, which takes the server a millisecond or two. Each is a member of a sorted set.
pub(in crate::store::redis) const MOST_PERMITS: u32 = 1000;

/// Returns the error of an acquire of more permits than one call takes.
pub(in crate::store::redis) fn too_many(take: u32) -> Error {
    Error::invalid(format!("{take} permits were asked for at once; ask for {MOST_PERMITS} at most"))
}

/// Builds the call of an acquire.
pub(super) fn acquire(keys: &Keys, request: &Acquire, size: u32, take: u32) -> ScriptCall {
    let mut call = of(keys, &request.target.name, 1);
    call.key(&keys.sizes(&request.target.name));
    call.number(size.into());
    call.number(take.into());
    call.number(millis(request.ttl));
    let kept = request.fencing.map_or(Some(IDLE_SEMAPHORE), |fencing| fencing.retention);
    call.number(kept.map_or(0, millis));
    call.bytes(&head(request.holder));
    call
}

/// Reads the reply to an acquire.
pub(super) fn acquired(size: u32, sent: Instant, reply: &[Element]) -> Result<Acquired> {
    if let [Element::Int(-2), has] = reply {
        return Err(Error::other_size(has.int()?, size));
    }
    match code(reply)? {
        Code::Done(0) => Ok(Acquired::granted(sent, None)),
        Code::Other(left) => Ok(Acquired::held(left.checked_sub(1).map(Duration::from_millis))),
        Code::Done(_) | Code::Absent(_) => Err(reply::malformed_reply()),
    }
}

/// Builds the call of a resize.
pub(super) fn resize(keys: &Keys, request: &Resize) -> ScriptCall {
    let mut call = of(keys, &request.name, 1);
    call.key(&keys.sizes(&request.name));
    call.number(request.size.into());
    call.number(request.retention.map_or(0, millis));
    call
}

/// Reads the reply to a resize.
pub(super) fn resized(reply: &[Element]) -> Result<Option<u32>> {
    match reply {
        [Element::Int(before)] => Ok(u32::try_from(*before).ok()),
        _ => Err(reply::malformed_reply()),
    }
}

/// Builds the call of a release.
pub(super) fn release(keys: &Keys, request: &Release) -> ScriptCall {
    let mut call = of(keys, &request.target.name, 1);
    call.divisible = true;
    write_release(request, call)
}

/// Builds the call of a release without the counter, which is on another server.
pub(super) fn release_with_one_key(keys: &Keys, request: &Release) -> ScriptCall {
    let mut call = ScriptCall::of(1);
    call.key(&[&keys.permits(&request.target.name)]);
    write_release(request, call)
}

fn write_release(request: &Release, mut call: ScriptCall) -> ScriptCall {
    call.number(request.target.mode.permits().into());
    call.bytes(&head(request.holder));
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
    call.number(millis(batch.fence_retention.unwrap_or_default().max(IDLE_SEMAPHORE)));
    for item in items {
        call.key(&keys.lock(&item.target.name));
        write_renewal(keys, item, &mut call);
    }
    call
}

/// Builds the call that renews permits without the counter, which is on another server.
pub(in crate::store::redis) fn renewal_with_one_key(
    keys: &Keys,
    batch: &RenewBatch,
    item: &Renewal,
) -> ScriptCall {
    let mut call = ScriptCall::of(1);
    call.number(millis(batch.ttl));
    call.number(millis(batch.fence_retention.unwrap_or_default().max(IDLE_SEMAPHORE)));
    write_renewal(keys, item, &mut call);
    call
}

fn write_renewal(keys: &Keys, item: &Renewal, call: &mut ScriptCall) {
    call.key(&[&keys.permits(&item.target.name)]);
    call.number(item.target.mode.permits().into());
    call.bytes(&head(item.holder));
}

/// Builds a call with the keys of a name.
pub(super) fn of(keys: &Keys, name: &Name, items: usize) -> ScriptCall {
    let mut call = ScriptCall::of(items);
    call.key(&keys.lock(name));
    call.key(&[&keys.permits(name)]);
    call
}

/// Reads the reply of the inspect script.
pub(super) fn inspection(reply: &[Element]) -> Result<Inspection> {
    let [size, waiting, permits @ ..] = reply else { return Err(reply::malformed_reply()) };
    let (permits, rest) = permits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(reply::malformed_reply());
    }
    let mut holders: BTreeMap<String, (u64, Option<Duration>)> = BTreeMap::new();
    for [id, left] in permits {
        let Element::Text(id) = id else { return Err(reply::malformed_reply()) };
        let left = reply::remaining(left.int()?);
        let (count, least) = holders.entry(holder_of(id)).or_insert((0, left));
        *count += 1;
        *least = (*least).min(left);
    }
    let size = u32::try_from(size.int()?).ok();
    let info = |(holder, (count, left)): (String, (u64, Option<Duration>))| {
        let take = u32::try_from(count).unwrap_or(u32::MAX);
        let mode = Mode::Permits { size: size.unwrap_or(take), take };
        HolderInfo::new(holder, count, left).with_mode(mode)
    };
    let waiting = u64::try_from(waiting.int()?).ok();
    Ok(Inspection::new(holders.into_iter().map(info)).with_size(size).with_waiting(waiting))
}

/// Returns the bytes that the ids of a holder's permits begin with.
fn head(holder: HolderId) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&holder.manager().as_bytes()[..8]);
    // A number is drawn for each acquire, so 6 bytes last.
    head[8..].copy_from_slice(&holder.number().to_be_bytes()[2..]);
    head
}

/// Returns the holder of a permit: the beginning of its id, as far as the permit has it, and its number; of a permit of
/// Redisson, its digits.
///
/// Redisson's are random. Ours are known by the version of the uuid and by a number below 2^32; of Redisson's one in a million
/// looks the same.
fn holder_of(permit: &str) -> String {
    let digits = |range| permit.get(range).unwrap_or_default();
    let number = u64::from_str_radix(digits(20..HEAD * 2), 16);
    match number {
        Ok(number)
            if permit.len() == DIGITS && digits(12..13) == "4" && digits(16..20) == "0000" =>
        {
            format!("{}-{}-{}-..:{number}", digits(0..8), digits(8..12), digits(12..16))
        }
        _ => permit.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use uuid::Uuid;

    #[test]
    fn size_that_no_handle_has_is_invalid() {
        for has in [-3, 0, 1 << 32, i64::MIN] {
            let reply = [Element::Int(-2), Element::Int(has)];
            let error = acquired(3, Instant::ZERO, &reply).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{has}");
            assert!(error.message().contains(&format!("has {has} permits")), "{error}");
        }
    }

    #[test]
    fn holder_of_a_permit_is_shown_as_far_as_it_is_known() {
        let manager = Uuid::parse_str("04d81a7d-b331-4365-a44b-f78781e5233b").unwrap();
        let head = head(HolderId::new(manager, 45)).map(|byte| format!("{byte:02x}")).concat();
        let ours = format!("{head}0003");
        assert_eq!(holder_of(&ours), "04d81a7d-b331-4365-..:45");
        for other in
            ["", "ff", "9c41f0d2a5e84b7c8d3e6f1a2b3c4d5e", "04d81a7db33143650100000000450003"]
        {
            assert_eq!(holder_of(other), other);
        }
        let reply = |id: &str| [Element::Text(id.to_owned()), Element::Int(7)];
        let other = "9c41f0d2a5e84b7c8d3e6f1a2b3c4d5e";
        let last = format!("{head}0004");
        let permits = [&*ours, other, &last].map(reply).concat();
        let counts = [3, 2].map(Element::Int);
        let inspection = inspection(&[&counts[..], &permits].concat()).unwrap();
        assert_eq!((inspection.size, inspection.waiting), (Some(3), Some(2)));
        let holders = inspection.holders.iter().map(|info| (&*info.holder, info.hold_count));
        assert_eq!(holders.collect::<Vec<_>>(), [("04d81a7d-b331-4365-..:45", 2), (other, 1)]);
    }
}
