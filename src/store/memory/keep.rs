//! Names that a mark keeps closed.

use super::State;
use super::wake::wake;
use crate::clock::Instant;
use crate::store::{Keep, Release, Released};

/// Releases a name and leaves a mark.
pub(super) fn close(
    state: &mut State,
    request: &Release,
    Keep { mark, time, .. }: Keep,
    now: Instant,
) -> Released {
    let name = &request.target.name;
    let holder = request.holder;
    let own = state.entry(name, now).filter(|entry| entry.holder == holder);
    if own.and_then(|entry| entry.closed).is_some_and(|(other, _)| other == mark) {
        return Released::done(0);
    }
    match state.own(name, holder, now) {
        Err(absence) => Released::NotYours(absence),
        Ok(entry) => {
            (entry.closed, entry.expires) = (Some((mark, now)), now + time);
            Released::done(wake(state, name, Some(holder)))
        }
    }
}
