//! A call that renews many holds, and what came of it: told to all of them at once.
//!
//! To tell each of them costs as much as to write the call. So a call that renewed all is written down here, and
//! a hold reads that when it is next looked at, in most cases at its next renewal.
//!
//! # Invariants
//!
//! 1. A hold joins only when nothing but the next renewal could come of a success: it is plainly held, and
//!    nobody waits for a change of it.
//! 2. Whoever changes a hold whose round is open makes it a round in which each is told by itself.
//! 3. Once written down, a success is read before anything else is done to a hold.
//!
//! So it makes no difference when a hold reads it. Lock order: a hold's state, then its round, then the schedule.

use super::Inner;
use crate::clock::Instant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(super) struct Round {
    course: Mutex<Course>,
}

#[derive(Debug, Default)]
enum Course {
    #[default]
    Open,
    /// Each of its holds is told by itself.
    OneByOne,
    Renewed(Confirmed),
}

/// A success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Confirmed {
    /// When the call left.
    pub(super) sent: Instant,
    /// When to renew again.
    pub(super) next: Instant,
}

impl Round {
    fn lock(&self) -> MutexGuard<'_, Course> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The success, if there is one yet.
    pub(super) fn confirmed(&self) -> Option<Confirmed> {
        match *self.lock() {
            Course::Renewed(confirmed) => Some(confirmed),
            Course::Open | Course::OneByOne => None,
        }
    }

    /// Has each of its holds told by itself, unless there has been a success already.
    pub(super) fn one_by_one(&self) -> Option<Confirmed> {
        let mut course = self.lock();
        match *course {
            Course::Renewed(confirmed) => Some(confirmed),
            Course::Open | Course::OneByOne => {
                *course = Course::OneByOne;
                None
            }
        }
    }

    /// Writes a success down, if all may be told at once and `schedule` has put them in for the next renewal.
    pub(super) fn conclude(&self, confirmed: Confirmed, schedule: impl FnOnce() -> bool) -> bool {
        let mut course = self.lock();
        let done = matches!(*course, Course::Open) && schedule();
        if done {
            *course = Course::Renewed(confirmed);
        }
        done
    }
}

/// A round that holds may join, if they may believe until then.
#[derive(Clone, Copy)]
pub(super) struct Open<'a> {
    pub(super) round: &'a Arc<Round>,
    pub(super) whole: Instant,
}

impl Inner {
    /// Reads what came of its round.
    pub(super) fn take(&mut self, Confirmed { sent, next }: Confirmed) {
        // Only forward, also by a store that is wrong about when it sent something.
        self.state.confirm(sent.max(self.state.confirmed()), next);
        self.scheduled = Some(next);
        self.round = None;
    }

    /// To be told by itself what comes of its round.
    pub(super) fn leave_round(&mut self) {
        if let Some(confirmed) = self.round.take().and_then(|round| round.one_by_one()) {
            self.take(confirmed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::State;
    use super::*;
    use std::time::Duration;

    fn confirmed() -> Confirmed {
        let sent = Instant::ZERO;
        Confirmed { sent, next: sent + Duration::from_secs(10) }
    }

    #[test]
    fn a_success_is_written_down_once_the_holds_are_in_the_schedule() {
        let round = Round::default();
        assert_eq!(round.confirmed(), None);
        assert!(!round.conclude(confirmed(), || false), "the batch is not there any more");
        assert_eq!(round.confirmed(), None);
        assert!(round.conclude(confirmed(), || true));
        assert_eq!(round.confirmed(), Some(confirmed()));
        assert_eq!(round.one_by_one(), Some(confirmed()), "who changes a hold now reads it first");
        assert_eq!(round.confirmed(), Some(confirmed()));
    }

    #[test]
    fn after_a_change_each_is_told_by_itself() {
        let round = Round::default();
        assert_eq!(round.one_by_one(), None);
        assert!(!round.conclude(confirmed(), || unreachable!("they are not all due together")));
        assert_eq!(round.one_by_one(), None);
        assert_eq!(round.confirmed(), None);
    }

    /// It may be written down between the look at the round and the change.
    #[test]
    fn success_written_down_meanwhile_is_read_before_a_change() {
        let (sent, next) = (Instant::ZERO + Duration::from_secs(10), Instant::MAX);
        let round = Arc::new(Round::default());
        let state = State::granted(Instant::ZERO, Instant::ZERO, None, None);
        let mut inner = Inner {
            scheduled: None,
            watched: false,
            state,
            round: Some(Arc::clone(&round)),
            turn: None,
        };
        assert!(round.conclude(Confirmed { sent, next }, || true));
        inner.leave_round();
        assert_eq!((inner.state.confirmed(), inner.scheduled), (sent, Some(next)));
        assert!(inner.round.is_none());
        inner.take(Confirmed { sent: Instant::ZERO, next });
        assert_eq!(inner.state.confirmed(), sent, "only forward");
    }
}
