//! What holders report about themselves.

use super::State;
use crate::clock::Instant;
use crate::error::Result;
use crate::store::contract::mode::Kind;
use crate::store::{Annotate, Describe, Owner, Owners};

impl State {
    /// Keeps the description of a manager, or deletes it.
    pub(super) fn describe(&mut self, request: Describe, now: Instant) {
        self.managers.retain(|_, (_, until)| *until > now);
        let key = request.key();
        match request.owner {
            Some(owner) => drop(self.managers.insert(key, (owner, now + request.ttl))),
            None => drop(self.managers.remove(&key)),
        }
    }

    /// Returns the descriptions of managers.
    pub(super) fn owners(&self, request: &Owners, now: Instant) -> Vec<Option<Owner>> {
        let owner = |manager: &String| {
            let (owner, until) = self.managers.get(manager)?;
            (*until > now).then(|| owner.clone())
        };
        request.managers.iter().map(owner).collect()
    }

    /// Writes what a holder reports, or deletes it. Returns whether it has the name.
    pub(super) fn annotate(&mut self, request: Annotate, now: Instant) -> Result<bool> {
        let Annotate { target, holder, metadata, ttl, .. } = request;
        self.of_kind(&target.name, Kind::Lock, now)?;
        let Ok(entry) = self.own(&target.name, holder, now) else { return Ok(false) };
        let Some(metadata) = metadata else {
            let deleted = entry.metadata.take().is_some();
            self.wake_observers(&target.name);
            return Ok(deleted);
        };
        let known = entry.metadata.as_ref().map(|(known, _)| known.revision);
        if known.is_none_or(|known| known < metadata.revision) {
            entry.metadata = Some((Box::new(metadata), now + ttl));
            self.wake_observers(&target.name);
        }
        Ok(true)
    }
}
