//! Names that a mark keeps closed.

use super::State;
use crate::clock::Instant;
use crate::store::{Keep, Release, Released};

impl State {
    /// Releases a name and leaves a mark.
    pub(super) fn close(
        &mut self,
        request: &Release,
        Keep { mark, time, .. }: Keep,
        now: Instant,
    ) -> Released {
        let (name, holder) = (&request.target.name, request.holder);
        let own = self.entry(name, now).filter(|entry| entry.holder == holder);
        if own.and_then(|entry| entry.closed).is_some_and(|(other, _)| other == mark) {
            return Released::done(0);
        }
        match self.own(name, holder, now) {
            Err(absence) => Released::NotYours(absence),
            Ok(entry) => {
                (entry.closed, entry.expires) = (Some((mark, now)), now + time);
                Released::done(self.wake(name, Some(holder)))
            }
        }
    }
}
