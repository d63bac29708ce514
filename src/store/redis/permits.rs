//! Semaphores, in the layout of Redisson's `RPermitExpirableSemaphore`. Each request is a call of its own.
//!
//! A permit's id has 16 bytes: 8 of the manager's uuid, 6 of the holder's number, and 2 of the permit's place among those
//! of the holder.

use super::keys::Keys;
use super::replies::{self, Code, Element};
use super::requests::millis;
use super::rw::code;
use super::scripts::Call;
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::store::{
    Acquire, Acquired, HolderId, HolderInfo, IDLE_SEMAPHORE, Inspection, Mode, Name, Release,
    RenewBatch, Renewal, Resize,
};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The digits of a permit's id that its holder determines.
const HOLDER_DIGITS: usize = 28;
/// The largest bundle, because the place of a permit has 2 bytes.
const LARGEST_BUNDLE: u32 = 65_535;

/// Builds the call of an acquire.
pub(super) fn acquire(keys: &Keys, request: &Acquire, size: u32, take: u32) -> Result<Call> {
    if take > LARGEST_BUNDLE {
        return Err(Error::invalid(format!(
            "{take} permits were asked for at once; ask for {LARGEST_BUNDLE} at most"
        )));
    }
    let mut call = of(keys, &request.target.name, 1);
    call.key(&keys.sizes(&request.target.name));
    call.number(size.into());
    call.number(take.into());
    call.number(millis(request.ttl));
    let kept = request.fencing.map_or(Some(IDLE_SEMAPHORE), |fencing| fencing.retention);
    call.number(kept.map_or(0, millis));
    call.text(&digits(request.holder));
    Ok(call)
}

/// Reads the reply to an acquire.
pub(super) fn acquired(size: u32, sent: Instant, reply: &[Element]) -> Result<Acquired> {
    if let [Element::Int(-2), has] = reply {
        let has = u32::try_from(has.int()?).map_err(|_| replies::malformed_reply())?;
        return Err(Error::other_size(has, size));
    }
    match code(reply)? {
        Code::Done(0) => Ok(Acquired::granted(sent, None)),
        Code::Other(left) => Ok(Acquired::held(left.checked_sub(1).map(Duration::from_millis))),
        Code::Done(_) | Code::Absent(_) => Err(replies::malformed_reply()),
    }
}

/// Builds the call of a resize.
pub(super) fn resize(keys: &Keys, request: &Resize) -> Call {
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
        _ => Err(replies::malformed_reply()),
    }
}

/// Builds the call of a release.
pub(super) fn release(keys: &Keys, request: &Release) -> Call {
    let mut call = of(keys, &request.target.name, 1);
    call.number(request.target.mode.permits().into());
    call.text(&digits(request.holder));
    call
}

/// Builds the call that renews some items of a batch.
pub(super) fn renewal(keys: &Keys, batch: &RenewBatch, items: &[Renewal]) -> Call {
    let mut call = Call::of(items.len());
    call.number(millis(batch.ttl));
    call.number(batch.fence_retention.map_or(0, millis));
    for item in items {
        call.key(&keys.lock(&item.target.name));
        call.key(&[&keys.permits(&item.target.name)]);
        call.number(item.target.mode.permits().into());
        call.text(&digits(item.holder));
    }
    call
}

/// Builds a call with the keys of a name.
pub(super) fn of(keys: &Keys, name: &Name, items: usize) -> Call {
    let mut call = Call::of(items);
    call.key(&keys.lock(name));
    call.key(&[&keys.permits(name)]);
    call
}

/// Reads the reply of the inspect script.
pub(super) fn inspection(reply: &[Element]) -> Result<Inspection> {
    let [size, permits @ ..] = reply else { return Err(replies::malformed_reply()) };
    let (permits, rest) = permits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(replies::malformed_reply());
    }
    let mut holders: BTreeMap<&str, (u64, Option<Duration>)> = BTreeMap::new();
    for [id, left] in permits {
        let Element::Text(id) = id else { return Err(replies::malformed_reply()) };
        let (_, left) = (id, replies::remaining(left.int()?));
        let holder = id.get(..HOLDER_DIGITS).unwrap_or(id);
        let (count, least) = holders.entry(holder).or_insert((0, left));
        *count += 1;
        *least = (*least).min(left);
    }
    let size = u32::try_from(size.int()?).ok();
    let info = |(holder, (count, left)): (&str, (u64, Option<Duration>))| {
        let take = u32::try_from(count).unwrap_or(u32::MAX);
        let mode = Mode::Permits { size: size.unwrap_or(take), take };
        HolderInfo::new(text(holder), count, left).with_mode(mode)
    };
    Ok(Inspection::new(holders.into_iter().map(info)).with_size(size))
}

/// Returns the digits that the ids of a holder's permits begin with.
fn digits(holder: HolderId) -> String {
    let mut digits = String::with_capacity(HOLDER_DIGITS);
    for byte in &holder.manager().as_bytes()[..8] {
        // A String takes whatever is written to it.
        let _ = write!(digits, "{byte:02x}");
    }
    // A number is drawn for each acquire, so 6 bytes last.
    let _ = write!(digits, "{:012x}", holder.number() & 0xffff_ffff_ffff);
    digits
}

/// Returns the beginning of the holder's id, as far as these digits have it; for a permit of Redisson, its digits.
fn text(digits: &str) -> String {
    let number = digits.get(16..HOLDER_DIGITS).and_then(|hex| u64::from_str_radix(hex, 16).ok());
    match (digits.get(..8), digits.get(8..12), digits.get(12..16), number) {
        (Some(a), Some(b), Some(c), Some(number)) => format!("{a}-{b}-{c}-:{number}"),
        _ => digits.to_owned(),
    }
}
