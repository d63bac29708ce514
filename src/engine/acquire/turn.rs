//! The permission to ask the store for a name.

use crate::clock::Instant;
use crate::engine::machine::handed_off::HandedOff;
use crate::engine::machine::members::{Member, Stage};
use crate::engine::machine::name::{NameEntry, Seeker};
use crate::engine::machine::queue::{Queue, QueueState};
use crate::engine::machine::seat::Seat;
use crate::engine::machine::seen::Seen;
use crate::engine::shared::options::Options;
use crate::store::{Mode, Name};
use std::sync::Arc;
use tokio::sync::oneshot;

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
    /// The number of its ticket, by which waiters are in order.
    ticket: u64,
    /// True if a hold has the seat.
    granted: bool,
    /// Whether its hold takes part in the line of the name.
    fair: bool,
    not_before: Option<Instant>,
    /// What the flow that asked before has learned.
    pub(in crate::engine) seen: Option<Seen>,
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
                Some(entry) if entry.may_try(mode) => {
                    entry.members.push(member);
                }
                // Only once: a turn that is offered now is not overdue.
                Some(entry) if ended.is_none() && entry.is_overdue(now) => {
                    ended = Some(self.reclaim(&mut state, name, now));
                    continue;
                }
                Some(_) => break None,
            }
            break Some(self.turn(&state, (name, mode), (number, number), now));
        };
        drop(state);
        if let Some(ended) = ended {
            ended.wake_all();
        }
        turn
    }

    /// Returns a turn at once, whatever else of this process asks for the name, holds it or waits: for a steal.
    pub(in crate::engine) fn seize(
        self: &Arc<Self>,
        name: &Name,
        mode: Mode,
        now: Instant,
    ) -> Turn {
        let mut state = self.lock();
        let number = state.number();
        let member = Member::asking(number, mode, now + self.attempt * 3);
        match state.names.get_mut(name) {
            None => drop(state.names.insert(name.clone(), NameEntry::new(member))),
            Some(entry) => entry.members.push(member),
        }
        self.turn(&state, (name, mode), (number, number), now)
    }

    /// Returns the turn of a number that is a member of its entry, for a waiter with this ticket.
    pub(in crate::engine) fn turn(
        self: &Arc<Self>,
        state: &QueueState,
        (name, mode): (&Name, Mode),
        (number, ticket): (u64, u64),
        now: Instant,
    ) -> Turn {
        let not_before = state.pauses.not_before(name, now);
        let (queue, name) = (Arc::clone(self), name.clone());
        let (granted, fair, seen) = (false, false, None);
        Turn { queue, name, number, mode, ticket, granted, fair, not_before, seen }
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
        self.with_entry(|entry, number| entry.members.set_due(number, time));
    }

    /// Records a request to the store at `now`, and that the next step follows by `due`. Returns the time of the first
    /// unanswered request, or `None` if the turn was reclaimed.
    pub(crate) fn asked(&self, now: Instant, due: Instant) -> Option<Instant> {
        self.with_entry(|entry, number| {
            entry.members.asks(number, due)?;
            Some(*entry.silent_since.get_or_insert(now))
        })
        .flatten()
    }

    /// Records that the store has refused the request: this call waits, and others have the name.
    pub(crate) fn held_elsewhere(&self) {
        self.with_entry(|entry, number| entry.members.refuse(number));
        self.queue.saw_another(&self.name);
    }

    fn with_entry<R>(&self, change: impl FnOnce(&mut NameEntry, u64) -> R) -> Option<R> {
        let mut state = self.queue.lock();
        state.names.get_mut(&self.name).map(|entry| change(entry, self.number))
    }

    /// Keeps the turn after a grant of the request sent at `sent`, by its own flow or by one before it. It keeps it even if
    /// the turn was reclaimed meanwhile: the store cannot grant the name to the turns that replaced it and that exclude
    /// this mode.
    pub(crate) fn keep(&self, sent: Instant, is_own: bool) -> Kept {
        let Self { name, number, .. } = self;
        let mut state = self.queue.lock();
        let heard = self.fair || state.pauses.is_heard(name);
        let served_at = heard.then_some(state.numbers);
        let own = || Member {
            number: *number,
            mode: self.mode,
            stage: Stage::Holding(None),
            forced: false,
            doubted: false,
        };
        let QueueState { names, forced, .. } = &mut *state;
        let was_forced = *forced >= Some(sent);
        let entry = match names.get_mut(name) {
            Some(entry) => entry,
            None if was_forced => return Kept::Forced,
            None => names.entry(name.clone()).or_insert_with(|| NameEntry::new(own())),
        };
        let member = entry.members.get(*number);
        // A member does not know what came before its own request.
        if (member.is_none() || !is_own) && was_forced {
            return Kept::Forced;
        }
        let forced = member.is_some_and(|member| member.forced);
        let excludes = |member: &Member| {
            member.is_seat() && member.number != *number && !member.mode.can_share(self.mode)
        };
        if !entry.members.can_all_share(self.mode) && entry.members.iter().any(excludes) {
            return Kept::Excluded;
        }
        if forced {
            return Kept::Forced;
        }
        let removed = entry.take_excluded(self.mode, *number);
        let seated = |member: &mut Member| member.stage = Stage::Holding(None);
        if !entry.members.change(*number, seated) {
            entry.members.push(own());
        }
        if served_at.is_some() || entry.rivals().is_some() {
            entry.rivals_or_default().served_at = served_at;
        }
        drop(state);
        drop(removed);
        Kept::Yes
    }

    /// Lets holds be handed off to the flow that has this turn.
    pub(super) fn seek(&self, options: &Options) -> oneshot::Receiver<Option<HandedOff>> {
        let (pass, passed) = oneshot::channel();
        let Self { mode, ticket, .. } = *self;
        let replaced = self.with_entry(|entry, number| {
            entry.members.get(number)?;
            let options = options.clone();
            let seeker = Seeker { number, mode, options, ticket, pass, seen: None };
            entry.rivals_or_default().seeker.replace(seeker)
        });
        drop(replaced);
        passed
    }

    /// Records what this flow knows of the store, for the next turn, if a hold is handed off to this flow.
    pub(super) fn saw(&self, seen: Seen) {
        let replaced = self.with_entry(|entry, number| {
            let seeker = entry.rivals_mut()?.seeker.as_mut()?;
            (seeker.number == number).then(|| seeker.seen.replace(seen))
        });
        drop(replaced);
    }

    /// Returns the number of its member in the queue.
    pub(in crate::engine) fn number(&self) -> u64 {
        self.number
    }

    /// Turns it into the seat of a hold, after [`Kept::Yes`].
    pub(in crate::engine) fn into_seat(mut self) -> Option<Seat> {
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
