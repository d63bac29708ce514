//! What holders report about themselves.

use super::State;
use crate::clock::Instant;
use crate::error::Result;
use crate::store::Annotate;
use crate::store::mode::Kind;

impl State {
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
