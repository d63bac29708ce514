//! Releases, renewals, and changes of the size.

use super::keep::close;
use super::line::{leave, released_in_line};
use super::notes::noted;
use super::wake::wake;
use super::{Shared, State};
use crate::clock::Instant;
use crate::error::Result;
use crate::store::contract::mode::Kind;
use crate::store::{
    Mode, Release, Released, RenewBatch, Renewed, Reservation, Resize, Target, TokenVerdict,
};

pub(super) fn release(state: &mut State, request: &Release, now: Instant) -> Result<Released> {
    let Release { target, holder, count, .. } = request;
    let name = &target.name;
    let mode = target.mode;
    let keep = request.mark()?;
    let shared = state.shared_as(name, mode.kind(), now)?;
    if let Some(shared) = shared {
        let ended = shared.release(*holder, mode, *count);
        return Ok(ended.verdict(|| wake(state, name, Some(*holder))));
    }
    Ok(match keep {
        Some(keep) => close(state, request, keep, now),
        None => release_exclusive(state, request, now),
    })
}

/// Gives up an arrival.
pub(super) fn release_arrival(
    state: &mut State,
    request: &Release,
    now: Instant,
) -> Result<Released> {
    let Target { name, mode } = &request.target;
    match mode {
        Mode::Exclusive => leave(state, name, request.holder, request.arrival, now),
        Mode::Read | Mode::Write => {
            let shared = state.shared_as(name, mode.kind(), now)?;
            if shared.is_some_and(|shared| shared.leave(request.holder, *mode)) {
                wake(state, name, None);
            }
        }
        Mode::Permits { .. } => {}
    }
    Ok(Released::done(0))
}

pub(super) fn release_exclusive(state: &mut State, request: &Release, now: Instant) -> Released {
    let name = &request.target.name;
    match state.own(name, request.holder, now) {
        Err(absence) => Released::NotYours(absence),
        Ok(entry) if request.count > 0 => {
            entry.count = request.count;
            Released::done(0)
        }
        Ok(_) => {
            state.holds.remove(name);
            let listeners = wake(state, name, Some(request.holder));
            Released::done(if released_in_line(state, request, now) { 0 } else { listeners })
        }
    }
}

pub(super) fn resize(state: &mut State, request: &Resize, now: Instant) -> Result<Option<u32>> {
    let name = &request.name;
    state.shared_as(name, Kind::Semaphore, now)?;
    state.sweep(now);
    let shared = state.shared.entry(name.clone());
    let shared = shared.or_insert_with(|| Shared::new(Kind::Semaphore));
    let before = shared.resize(request, now);
    wake(state, name, None);
    Ok(before)
}

pub(super) fn renew(state: &mut State, batch: &RenewBatch, now: Instant) -> Renewed {
    let verdicts = batch.items.iter().map(|item| {
        let expires = now + batch.ttl_of(item);
        let name = &item.target.name;
        let mode = item.target.mode;
        if let Some(shared) = state.shared_as(name, mode.kind(), now)? {
            let absence = shared.renew(item.holder, mode, expires);
            return Ok(absence.map(|absence| noted(state, name, item.holder, absence, now)));
        }
        Ok(match state.own(name, item.holder, now) {
            Err(absence) => Some(noted(state, name, item.holder, absence, now)),
            Ok(entry) => {
                entry.expires = expires;
                None
            }
        })
    });
    Renewed::new(now, verdicts.collect())
}

/// Reserves a block of fencing tokens that the caller names.
pub(super) fn reserve(state: &mut State, item: &Reservation, now: Instant) -> Result<TokenVerdict> {
    let Target { name, mode } = &item.target;
    let absence = match state.shared_as(name, mode.kind(), now)? {
        Some(shared) => shared.absence_of(item.holder, *mode),
        None => state.own(name, item.holder, now).err(),
    };
    if let Some(absence) = absence {
        return Ok(TokenVerdict::NotYours(absence));
    }
    let last = state.last_fence(name);
    if last >= item.first {
        return Ok(TokenVerdict::outrun(last));
    }
    state.fences.insert(name.clone(), item.last());
    Ok(TokenVerdict::Stored)
}
