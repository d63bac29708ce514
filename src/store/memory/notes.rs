//! Steals, wishes and notes.

use super::{Entry, MemoryStore, State};
use crate::clock::Instant;
use crate::error::Result;
use crate::store::contract::note::NOTE_KEPT;
use crate::store::{
    Absence, Acquire, Acquired, Act, ForceRelease, Hint, HolderId, InboxSender, Name, Note, Steal,
    Want,
};
use std::time::SystemTime;
use uuid::Uuid;

/// A note, and the holders for which it was left.
#[derive(Debug)]
pub(super) struct Left {
    note: Note,
    from: Vec<String>,
    /// The new holder of a steal.
    to: Option<HolderId>,
    expires: Instant,
}

/// Removes the inbox of a manager when it is dropped.
pub(super) struct InboxGuard {
    pub(super) store: MemoryStore,
    pub(super) manager: Uuid,
}

impl Drop for InboxGuard {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        // The manager may have a newer one.
        if state.inboxes.get(&self.manager).is_some_and(InboxSender::is_closed) {
            state.inboxes.remove(&self.manager);
        }
    }
}

impl Left {
    pub(super) fn is_live(&self, now: Instant) -> bool {
        self.expires > now
    }

    /// Returns whether it is for this holder. A hold at a node of a quorum has an id for each attempt, which begins alike.
    fn is_for(&self, holder: HolderId) -> bool {
        let holder = holder.to_string();
        let is_own = |rest: &str| rest.is_empty() || rest.starts_with('.');
        self.from.iter().any(|from| from.strip_prefix(&*holder).is_some_and(is_own))
    }
}

pub(super) fn steal(
    state: &mut State,
    acquire: &Acquire,
    Steal { from, reason }: &Steal,
    now: Instant,
) -> Result<Acquired> {
    Steal::check_mode(acquire.target.mode)?;
    let name = &acquire.target.name;
    state.shared_as(name, acquire.target.mode.kind(), now)?;
    let expires = now + acquire.ttl;
    let done = state.notes.get(name).is_some_and(|left| left.to == Some(acquire.holder));
    match state.entry(name, now) {
        None => return Ok(Acquired::NotYours(Absence::Gone)),
        Some(entry) if entry.holder == acquire.holder && entry.closed.is_none() => {
            entry.expires = expires;
            return Ok(Acquired::granted(now, entry.fence));
        }
        Some(entry) if entry.holder.to_string() == *from && entry.closed.is_none() && !done => {}
        Some(entry) => {
            let left = entry.expires.saturating_duration_since(now);
            return Ok(Acquired::held(Some(left)));
        }
    }
    let fence = acquire.fencing.map(|fencing| state.fence(name, fencing, now));
    let entry =
        Entry { holder: acquire.holder, count: 1, fence, expires, metadata: None, closed: None };
    state.holds.insert(name.clone(), entry);
    state.takes(name, now);
    let note = Note::new(Act::Stolen, reason.clone(), SystemTime::now());
    leave_note(state, name, note.with_fence_to_beat(fence), vec![from.clone()], now);
    if let Some(left) = state.notes.get_mut(name) {
        left.to = Some(acquire.holder);
    }
    Ok(Acquired::granted(now, fence))
}

pub(super) fn want(state: &mut State, request: &Want, now: Instant) -> Result<bool> {
    let Want { target, from, reason, only_resting, .. } = request;
    Steal::check_mode(target.mode)?;
    state.shared_as(&target.name, target.mode.kind(), now)?;
    if *only_resting {
        let holder = state.entry(&target.name, now).map(|entry| entry.holder);
        let holder = holder.filter(|holder| holder.lingers());
        if let Some(inbox) = holder.and_then(|holder| state.inboxes.get(&holder.manager())) {
            inbox.send(Hint::Yield(target.name.clone()));
        }
        return Ok(holder.is_some());
    }
    let is_holder =
        state.entry(&target.name, now).is_some_and(|entry| entry.holder.to_string() == *from);
    if is_holder {
        let note = Note::new(Act::Wanted, reason.clone(), SystemTime::now());
        leave_note(state, &target.name, note, vec![from.clone()], now);
    }
    Ok(is_holder)
}

/// Leaves a note for the holders of a name that is about to be freed.
pub(super) fn note_forced(state: &mut State, request: &ForceRelease, now: Instant) {
    let ForceRelease { target, reason: Some(reason), act, .. } = request else { return };
    let mut from: Vec<String> =
        state.entry(&target.name, now).iter().map(|entry| entry.holder.to_string()).collect();
    if let Some(shared) = state.shared.get(&target.name) {
        from.extend(shared.inspect(now).holders.into_iter().map(|holder| holder.holder));
    }
    if !from.is_empty() {
        let note = Note::new(*act, reason.clone(), SystemTime::now());
        leave_note(state, &target.name, note, from, now);
    }
}

fn leave_note(state: &mut State, name: &Name, note: Note, from: Vec<String>, now: Instant) {
    for holder in &from {
        let manager = holder.split_once(':').and_then(|(id, _)| id.parse().ok());
        if let Some(inbox) = manager.and_then(|manager| state.inboxes.get(&manager)) {
            inbox.send(match note.act {
                Act::Wanted => Hint::Want(name.clone()),
                Act::Stolen | Act::Forced => Hint::Verify(name.clone()),
            });
        }
    }
    state.notes.insert(name.clone(), Left { note, from, to: None, expires: now + NOTE_KEPT });
}

/// Returns the note about a name, if it was left for this holder.
pub(super) fn note(state: &State, name: &Name, holder: HolderId, now: Instant) -> Option<Note> {
    let left = state.notes.get(name).filter(|left| left.is_live(now))?;
    left.is_for(holder).then(|| left.note.clone())
}

/// Returns why a holder does not find its hold, if a note says it.
pub(super) fn noted(
    state: &State,
    name: &Name,
    holder: HolderId,
    absence: Absence,
    now: Instant,
) -> Absence {
    let left = state.notes.get(name).filter(|left| left.is_live(now) && left.is_for(holder));
    left.and_then(|left| left.note.act.absence()).unwrap_or(absence)
}
