//! The permission to ask the store for a name.

use super::name_entry::{Member, NameEntry, Stage, can_share};
use super::queue::{Queue, QueueState};
use super::seat::Seat;
use crate::clock::Instant;
use crate::store::{Mode, Name};
use std::sync::Arc;

/// The outcome of [`Turn::keep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The turn becomes the seat of a hold.
    Yes,
    /// Another hold exists that cannot share the name with this one.
    Excluded,
    /// The name was forced open after the request was sent; the grant may be gone.
    Forced,
}

/// The permission to ask the store for a name. The hold of a grant takes over its [`Seat`]; otherwise,
/// dropping the turn ends it.
pub(crate) struct Turn {
    queue: Arc<Queue>,
    name: Name,
    number: u64,
    mode: Mode,
    /// True if a hold has the seat.
    granted: bool,
    /// Whether its hold takes part in the line of the name.
    fair: bool,
    not_before: Option<Instant>,
}

impl Queue {
    /// Returns a turn at once, unless another flow of this process waits for the name or blocks it.
    pub(crate) fn try_turn(
        self: &Arc<Self>,
        name: &Name,
        mode: Mode,
        now: Instant,
    ) -> Option<Turn> {
        let mut state = self.lock();
        let mut ended = None;
        let number = state.number();
        let member = Member::asking(number, mode, now + self.attempt);
        let turn = loop {
            match state.names.get_mut(name) {
                None => drop(state.names.insert(name.clone(), NameEntry::new(member))),
                Some(entry) if !entry.has_waiters() && entry.members.may_ask(mode) => {
                    entry.members.push(member);
                }
                // Only once: a turn that is offered now is not overdue.
                Some(entry) if ended.is_none() && entry.is_overdue(now) => {
                    ended = Some(self.reclaim(&mut state, name, now));
                    continue;
                }
                Some(_) => break None,
            }
            break Some(self.turn(&state, name, mode, number, now));
        };
        drop(state);
        if let Some(ended) = ended {
            ended.wake_all();
        }
        turn
    }

    /// Returns the turn of a number that is a member of its entry.
    pub(super) fn turn(
        self: &Arc<Self>,
        state: &QueueState,
        name: &Name,
        mode: Mode,
        number: u64,
        now: Instant,
    ) -> Turn {
        let not_before = state.pauses.not_before(name, now);
        let queue = Arc::clone(self);
        Turn { queue, name: name.clone(), number, mode, granted: false, fair: false, not_before }
    }
}

impl Turn {
    /// Returns the earliest time to ask the store, if waiters elsewhere go first.
    pub(crate) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    /// Sets whether its hold takes part in the line of the name. If so, it counts as one that waiters elsewhere listen to.
    pub(crate) fn set_fair(&mut self, fair: bool) {
        self.fair = fair;
    }

    /// Sets the time by which the next step follows. After that, waiters may reclaim the turn.
    pub(crate) fn set_due(&self, time: Instant) {
        self.with_entry(|entry, number| {
            if let Some(Member { stage: Stage::Asking { due }, .. }) = entry.members.get(number) {
                *due = time;
            }
        });
    }

    /// Records a request to the store at `now`. Returns the time of the first unanswered request,
    /// or `None` if the turn was reclaimed.
    pub(crate) fn asked(&self, now: Instant) -> Option<Instant> {
        self.with_entry(|entry, number| {
            entry.members.get(number)?;
            Some(*entry.silent_since.get_or_insert(now))
        })
        .flatten()
    }

    fn with_entry<R>(&self, change: impl FnOnce(&mut NameEntry, u64) -> R) -> Option<R> {
        let mut state = self.queue.lock();
        state.names.get_mut(&self.name).map(|entry| change(entry, self.number))
    }

    /// Keeps the turn after a grant of the request sent at `sent`, even if the turn was reclaimed
    /// meanwhile: the store cannot grant the name to the turns that replaced it and that exclude
    /// this mode.
    pub(crate) fn keep(&self, sent: Instant) -> Kept {
        let Self { name, number, .. } = self;
        let mut state = self.queue.lock();
        let heard = self.fair || state.pauses.is_heard(name);
        let served_at = heard.then_some(state.numbers);
        let own = || Member { number: *number, mode: self.mode, stage: Stage::Holding(None) };
        let is_reclaimed =
            state.names.get_mut(name).is_none_or(|entry| entry.members.get(*number).is_none());
        if is_reclaimed && state.forced >= Some(sent) {
            return Kept::Forced;
        }
        let entry = state.names.entry(name.clone()).or_insert_with(|| NameEntry::new(own()));
        let excludes =
            |member: &Member| member.number != *number && !can_share(member.mode, self.mode);
        let is_held = |member: &Member| matches!(member.stage, Stage::Holding(_));
        if entry.members.all().iter().any(|member| is_held(member) && excludes(member)) {
            return Kept::Excluded;
        }
        if entry
            .rivals_mut()
            .is_some_and(|rivals| rivals.forced.take_if(|at| *at >= sent).is_some())
        {
            return Kept::Forced;
        }
        let removed = entry.remove(|member| !excludes(member));
        match entry.members.get(*number) {
            Some(member) => member.stage = Stage::Holding(None),
            None => entry.members.push(own()),
        }
        if served_at.is_some() || entry.rivals().is_some() {
            entry.rivals_or_default().served_at = served_at;
        }
        drop(state);
        drop(removed);
        Kept::Yes
    }

    /// Returns the number of its member in the queue.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Turns it into the seat of a hold, after [`Kept::Yes`].
    pub(super) fn into_seat(mut self) -> Option<Seat> {
        self.granted = true;
        Seat::new(self.number)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.granted {
            self.queue.leave(&self.name, self.number);
        }
    }
}
