//! The end of a timed call: others have the name, or the store is silent.

use crate::clock::Instant;
use crate::engine::machine::name::Silence;
use crate::engine::shared::core::Core;
use crate::error::{Error, Result};
use crate::store::{Acquired, Name};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A call that waits for a limited time.
#[derive(Clone, Copy)]
pub(crate) struct Timed {
    pub(crate) start: Instant,
    pub(crate) limit: Duration,
}

impl Core {
    /// Returns the part of the store that keeps a name. It is only a hint, so a panic here counts as part 0.
    pub(in crate::engine) fn shard(&self, name: &Name) -> usize {
        catch_unwind(AssertUnwindSafe(|| self.store.shard(name))).unwrap_or_default()
    }

    /// Records the answer to an acquire that was sent at `sent`, also one that no call waits for any more. A refusal does not
    /// show that the store grants names.
    pub(super) fn note_answer(&self, name: &Name, sent: Instant, answer: &Result<Acquired>) {
        match answer {
            Ok(_) => self.served.answered(self.shard(name), sent),
            Err(error) => self.note_failure(name, error),
        }
    }

    /// Records how a request has failed, if that says that its part of the store is out of reach.
    pub(in crate::engine) fn note_failure(&self, name: &Name, error: &Error) {
        if error.is_unavailable() || error.is_for_all_names() {
            self.served.failed(self.shard(name), self.now(), error);
        }
    }

    /// Returns whether the part of the store that keeps a name has granted an acquire, or found another holder, within the
    /// last attempt, and nothing has failed there since.
    pub(crate) fn has_served(&self, name: &Name) -> bool {
        let part = self.shard(name);
        self.served.last(part).is_some_and(|last| {
            let age = self.now().saturating_duration_since(last);
            age < self.timing.attempt && self.served.failure(part, last).is_none()
        })
    }

    /// Returns the error of a call that got no answer in time, with the last failure of that part of the store if it has
    /// answered nothing since.
    pub(crate) fn silent(&self, name: &Name) -> Error {
        let since = Instant::ZERO + self.now().since_origin().saturating_sub(self.timing.ttl);
        let failure = self.served.failure(self.shard(name), since);
        failure.map_or_else(Error::silent, |failure| Error::silent_since(&failure))
    }

    /// Returns the error of a timed call that has passed, unless others have the name. It does not know that if the store is
    /// silent about the name, and has not served another call either.
    pub(crate) fn out_of_time(&self, name: &Name, timed: Timed) -> Option<Error> {
        if self.is_silent(name, timed) { self.unserved(name) } else { None }
    }

    /// Returns the error of a call without an answer in time, unless the store has served another call.
    pub(crate) fn unserved(&self, name: &Name) -> Option<Error> {
        (!self.has_served(name)).then(|| {
            self.counters.silent(self.now());
            self.silent(name)
        })
    }

    fn is_silent(&self, name: &Name, Timed { start, limit }: Timed) -> bool {
        let Some(Silence { since, heard }) = self.queue.silence(name) else { return false };
        let long = match heard {
            // It answered during the call. The answer to a request that was sent after that may just be on its way.
            Some(heard) if heard >= start => self.timing.attempt,
            // A request that was just sent is no silence: the waiter before this one may have given up a moment ago. A third:
            // waiters elsewhere may go first for half of the limit.
            Some(_) if since > start => self.timing.attempt.min(limit / 3),
            _ => return true,
        };
        self.now().saturating_duration_since(since) >= long
    }
}
