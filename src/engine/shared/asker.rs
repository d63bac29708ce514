//! A call that asks for a name, as observers see it: it waits, and gets a lease or none.

use super::core::Core;
use super::options::{Caller, Options};
use crate::clock::Instant;
use crate::engine::acquire::set::SetCall;
use crate::error::Result;
use crate::observe::{Event, EventKind, How, Refusal};
use crate::store::{Mark, Mode, Name};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A call that asks for a name. Dropping it reports that the call was dropped, unless its end was reported before.
pub(crate) struct Asker<'a> {
    core: &'a Core,
    name: &'a Name,
    mode: Mode,
    options: &'a Options,
    start: Instant,
    /// The place of the call.
    pub(in crate::engine) caller: Caller,
    /// Whether its wait was reported.
    waits: AtomicBool,
    /// Whether its end was reported.
    ended: AtomicBool,
    /// True if the grant took the name from another holder.
    steals: AtomicBool,
    /// The set that it is a part of.
    pub(in crate::engine) set: Option<&'a SetCall>,
    /// Where it leaves what a refusal says.
    refusal: Option<&'a StoreRefusal>,
}

/// What the store said when it refused a call that asks once: the mark that keeps the name closed, if it is one. Empty if the
/// store was not asked.
pub(crate) type StoreRefusal = OnceLock<Option<Mark>>;

impl<'a> Asker<'a> {
    pub(in crate::engine) fn new(
        core: &'a Core,
        (name, mode, options): (&'a Name, Mode, &'a Options),
        (start, caller): (Instant, Caller),
    ) -> Self {
        let (waits, ended, steals) = Default::default();
        let (set, refusal) = (None, None);
        Self { core, name, mode, options, start, caller, waits, ended, steals, set, refusal }
    }

    /// Has it leave what a refusal says.
    pub(in crate::engine) fn with_refusal(mut self, refusal: Option<&'a StoreRefusal>) -> Self {
        self.refusal = refusal;
        self
    }

    /// Leaves what a refusal says.
    pub(in crate::engine) fn refused_by_store(&self, closed: Option<Mark>) {
        if let Some(refusal) = self.refusal {
            _ = refusal.set(closed);
        }
    }

    /// Makes it a part of a set, which reports only the names that were refused.
    pub(in crate::engine) fn of_set(mut self, set: Option<&'a SetCall>) -> Self {
        self.set = set;
        self
    }

    fn event(&self, kind: EventKind) -> Event {
        Event::of(self.name, kind).with_mode(self.mode).with_class(self.options.class())
    }

    /// Reports that it waits, once.
    pub(in crate::engine) fn waits(&self, ahead: impl FnOnce() -> usize) {
        if !self.waits.swap(true, Ordering::Relaxed) {
            let ahead = if self.core.board.is_observed() { ahead() } else { 0 };
            let waiting = EventKind::Waiting { ahead };
            self.core.count(self.start, waiting, |kind| self.event(kind)).finish();
        }
    }

    /// Records that its grant was another holder's.
    pub(in crate::engine) fn steals(&self) {
        self.steals.store(true, Ordering::Relaxed);
    }

    /// Returns what happens with its grant at `now`, which ends it. The caller reports it, in the right order.
    pub(in crate::engine) fn granted(
        &self,
        fence: Option<u64>,
        how: How,
        now: Instant,
    ) -> EventKind {
        self.ended.store(true, Ordering::Relaxed);
        let waited = now.saturating_duration_since(self.start);
        let how = if self.steals.load(Ordering::Relaxed) { How::Stolen } else { how };
        EventKind::Granted { waited, fence, how, was_waiting: self.waits.load(Ordering::Relaxed) }
    }

    /// Ends it, by a result that brings no new hold or reports no grant of its own.
    pub(in crate::engine) fn end<T>(&self, result: &Result<Option<T>>, once: bool) {
        let why = match result {
            // A re-entry.
            Ok(Some(_)) => None,
            // Another name of the set was refused.
            Ok(None) if self.set.is_some_and(|set| set.has_spared(self.name)) => None,
            Ok(None) if once => Some(Refusal::Busy),
            Ok(None) => Some(Refusal::TimedOut),
            Err(error) => Some(Refusal::Failed(error.clone())),
        };
        match why {
            Some(why) => self.refused(why),
            None => self.ended.store(true, Ordering::Relaxed),
        }
    }

    fn refused(&self, why: Refusal) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let now = self.core.now();
        let waited = now.saturating_duration_since(self.start);
        let was_waiting = self.waits.load(Ordering::Relaxed);
        let refused = EventKind::NotGranted { waited, why, was_waiting };
        self.core.count(now, refused, |kind| self.event(kind)).finish();
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        // Its user dropped nothing if another name of the set was refused.
        if self.set.is_some_and(SetCall::is_given_up) {
            return;
        }
        self.refused(Refusal::Dropped);
    }
}
