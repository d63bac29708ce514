//! What holders report about themselves.

use super::State;
use super::wake::wake_observers;
use crate::clock::Instant;
use crate::error::Result;
use crate::store::contract::mode::Kind;
use crate::store::{Annotate, Describe, Owner, Owners};

/// Keeps the description of a manager, or deletes it.
pub(super) fn describe(state: &mut State, request: Describe, now: Instant) {
    state.managers.retain(|_, (_, until)| *until > now);
    let key = request.key();
    match request.owner {
        Some(owner) => drop(state.managers.insert(key, (owner, now + request.ttl))),
        None => drop(state.managers.remove(&key)),
    }
}

/// Returns the descriptions of managers.
pub(super) fn owners(state: &State, request: &Owners, now: Instant) -> Vec<Option<Owner>> {
    let owner = |manager: &String| {
        let (owner, until) = state.managers.get(manager)?;
        (*until > now).then(|| owner.clone())
    };
    request.managers.iter().map(owner).collect()
}

/// Writes what a holder reports, or deletes it. Returns whether it has the name.
pub(super) fn annotate(state: &mut State, request: Annotate, now: Instant) -> Result<bool> {
    let Annotate { target, holder, metadata, ttl, .. } = request;
    state.shared_as(&target.name, Kind::Lock, now)?;
    let Ok(entry) = state.own(&target.name, holder, now) else { return Ok(false) };
    let Some(metadata) = metadata else {
        let deleted = entry.metadata.take().is_some();
        wake_observers(state, &target.name);
        return Ok(deleted);
    };
    let known = entry.metadata.as_ref().map(|(known, _)| known.revision);
    if known.is_none_or(|known| known < metadata.revision) {
        entry.metadata = Some((Box::new(metadata), now + ttl));
        wake_observers(state, &target.name);
    }
    Ok(true)
}
