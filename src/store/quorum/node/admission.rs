//! Bounds what a node may keep without an answer.

use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::util::sync::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The most acquires that may be open at a node that answers nothing.
const MOST: usize = 1024;

/// The acquires that are open at a node, and how long it has answered nothing.
///
/// An acquire is open from its admission until it is known to have no effect any more, or to have the effect that a hold
/// relies on. A node that answers nothing for half the time limit of a request gets no more than [`MOST`] of them, so what
/// this process keeps for it is bounded however long that lasts. Those that are open show when it answers again.
#[derive(Default)]
pub(in crate::store::quorum) struct Admission(Mutex<State>);

#[derive(Default)]
struct State {
    open: usize,
    /// When the first request after the last answer was sent.
    unanswered_since: Option<Instant>,
}

/// Counts as an open acquire for as long as it lives.
pub(super) struct Permit(Arc<Admission>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.0.lock().open -= 1;
    }
}

impl Admission {
    /// Admits an acquire, unless the node [refuses](Self::refuses) it.
    pub(super) fn admit(self: &Arc<Self>, now: Instant, limit: Duration) -> Option<Permit> {
        let mut state = self.0.lock();
        if state.refuses(now, limit) {
            return None;
        }
        if state.open == 0 {
            // Nothing shows whether it is still silent.
            state.unanswered_since = None;
        }
        state.open += 1;
        Some(Permit(Arc::clone(self)))
    }

    /// Returns whether the node has answered nothing for half the time limit of a request, with many acquires open.
    pub(in crate::store::quorum) fn refuses(&self, now: Instant, limit: Duration) -> bool {
        self.0.lock().refuses(now, limit)
    }

    /// Returns whether the node has answered nothing for half the time limit of a request.
    pub(in crate::store::quorum) fn is_silent(&self, now: Instant, limit: Duration) -> bool {
        self.0.lock().is_silent(now, limit)
    }

    pub(super) fn sent(&self, now: Instant) {
        self.0.lock().unanswered_since.get_or_insert(now);
    }

    /// Records the verdict of a request, which need not be one that was [sent](Self::sent).
    pub(super) fn answered<T>(&self, verdict: &Result<T>) {
        if !verdict.as_ref().is_err_and(Error::is_unavailable) {
            self.0.lock().unanswered_since = None;
        }
    }
}

impl State {
    fn refuses(&self, now: Instant, limit: Duration) -> bool {
        self.open >= MOST && self.is_silent(now, limit)
    }

    fn is_silent(&self, now: Instant, limit: Duration) -> bool {
        let silent = |since| now.saturating_duration_since(since) >= limit / 2;
        self.unanswered_since.is_some_and(silent)
    }
}

/// Returns the error of a request that was not sent, because the node answers nothing.
pub(in crate::store::quorum) fn refused() -> Error {
    let message = "not asked, because it answers nothing and many requests wait for it";
    Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const LIMIT: Duration = Duration::from_secs(1);

    #[test]
    fn silent_node_has_a_bounded_number_of_acquires() {
        let (admission, start) = (Arc::new(Admission::default()), Clock::system().now());
        let admit = |now| admission.admit(now, LIMIT);
        let mut open: Vec<Permit> = (0..MOST + 1).map(|_| admit(start).unwrap()).collect();
        admission.sent(start);
        admission.sent(start + LIMIT / 4);
        let later = start + LIMIT / 2;
        let soon = start + (LIMIT / 2 - Duration::from_nanos(1));
        assert!(admit(soon).is_some(), "it may still answer");
        assert!(admit(later).is_none());
        open.truncate(MOST - 1);
        open.push(admit(later).expect("one of many is over"));
        assert!(admission.refuses(later, LIMIT));
        admission.answered(&Err::<(), _>(refused()));
        assert!(admission.refuses(later, LIMIT));
        for answer in [Ok(()), Err(Error::invalid("it says no"))] {
            admission.sent(start);
            assert!(admission.refuses(later, LIMIT));
            admission.answered(&answer);
            assert!(!admission.refuses(later, LIMIT));
        }
    }

    #[test]
    fn silence_is_forgotten_when_nothing_is_open() {
        let (admission, start) = (Arc::new(Admission::default()), Clock::system().now());
        drop(admission.admit(start, LIMIT));
        admission.sent(start);
        let open: Vec<_> = (0..MOST + 1).map(|_| admission.admit(start + LIMIT, LIMIT)).collect();
        assert!(open.iter().all(Option::is_some));
    }
}
