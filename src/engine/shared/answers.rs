//! Whether the store answers: to one call, for one name, and in each shard of it. At the end of a timed call that decides whether
//! others have the name, or the store is silent.

use super::core::Core;
use crate::clock::Instant;
use crate::engine::machine::name::Silence;
use crate::error::{Error, Result};
use crate::store::{Acquired, Name};
use crate::util::reached::Rare;
use crate::util::sync::Mutex;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The last answers of each shard of the store. There are as many as the store has shards, whatever the number of names.
#[derive(Default)]
pub(crate) struct Answers {
    /// The nanosecond, by the clock, of the last request to shard 0 that was granted or found the name held; 0 if there is
    /// none. Most stores have no other shard.
    first: AtomicU64,
    others: Mutex<HashMap<usize, Instant>>,
    /// The last failure of each shard, and when it came.
    failures: Mutex<HashMap<usize, (Instant, Error)>>,
}

impl Answers {
    /// Records that a request of `sent` was granted, or found the name held. Answers come in any order.
    fn answered(&self, shard: usize, sent: Instant) {
        if shard == 0 {
            self.first.fetch_max(sent.to_nanos().max(1), Ordering::Relaxed);
        } else {
            let mut others = self.others.lock();
            let last = others.entry(shard).or_insert(sent);
            *last = sent.max(*last);
        }
    }

    /// Returns when the last such request was sent.
    fn last(&self, shard: usize) -> Option<Instant> {
        if shard == 0 {
            let last = self.first.load(Ordering::Relaxed);
            (last > 0).then(|| Instant::at_nanos(last))
        } else {
            self.others.lock().get(&shard).copied()
        }
    }

    /// Records a failure that came at `now`.
    fn failed(&self, shard: usize, now: Instant, failure: &Error) {
        self.failures.lock().insert(shard, (now, failure.without_source()));
    }

    /// Returns the last failure, if it came at `since` or later, and no request that was sent after it was answered.
    fn failure(&self, shard: usize, since: Instant) -> Option<Error> {
        let failures = self.failures.lock();
        let (at, failure) = failures.get(&shard)?;
        let is_last = *at >= since && self.last(shard).is_none_or(|last| last <= *at);
        is_last.then(|| failure.clone())
    }
}

/// A call that waits for a limited time.
#[derive(Clone, Copy)]
pub(crate) struct Timed {
    pub(crate) start: Instant,
    pub(crate) limit: Duration,
}

/// Returns the shard of the store that keeps a name. It is only a hint, so a panic here counts as shard 0.
fn shard(core: &Core, name: &Name) -> usize {
    catch_unwind(AssertUnwindSafe(|| core.store.shard(name))).unwrap_or_default()
}

/// Records the answer to an acquire that was sent at `sent`, also one that no call waits for any more. A refusal does not
/// show that the store grants names.
pub(in crate::engine) fn note_answer(
    core: &Core,
    name: &Name,
    sent: Instant,
    answer: &Result<Acquired>,
) {
    match answer {
        Ok(_) => core.answers.answered(shard(core, name), sent),
        Err(error) => note_failure(core, name, error),
    }
}

/// Records how a request has failed, if that says that its shard of the store is out of reach.
pub(in crate::engine) fn note_failure(core: &Core, name: &Name, error: &Error) {
    if error.is_unavailable() || error.is_for_all_names() {
        core.answers.failed(shard(core, name), core.now(), error);
    }
}

/// Returns whether the shard of the store that keeps a name has granted an acquire, or found another holder, within the
/// last attempt, and nothing has failed there since.
pub(crate) fn has_answered(core: &Core, name: &Name) -> bool {
    let shard = shard(core, name);
    core.answers.last(shard).is_some_and(|last| {
        let age = core.now().saturating_duration_since(last);
        age < core.timing.attempt && core.answers.failure(shard, last).is_none()
    })
}

/// Returns the error of a call that got no answer in time, with the last failure of that shard of the store if it has
/// answered nothing since.
pub(crate) fn silent(core: &Core, name: &Name) -> Error {
    Rare::EndedBySilence.reached();
    let since = Instant::ZERO + core.now().since_origin().saturating_sub(core.timing.ttl);
    let failure = core.answers.failure(shard(core, name), since);
    failure.map_or_else(Error::silent, |failure| Error::silent_since(&failure))
}

/// Returns the error of a timed call that has passed, unless others have the name. It does not know that if the store is
/// silent about the name, and has not answered another call either.
pub(crate) fn out_of_time(core: &Core, name: &Name, timed: Timed) -> Option<Error> {
    if is_silent(core, name, timed) { silent_unless_answered(core, name) } else { None }
}

/// Returns the error of a call without an answer in time, unless the store has answered another call.
pub(crate) fn silent_unless_answered(core: &Core, name: &Name) -> Option<Error> {
    (!has_answered(core, name)).then(|| {
        core.counters.silent(core.now());
        silent(core, name)
    })
}

fn is_silent(core: &Core, name: &Name, Timed { start, limit }: Timed) -> bool {
    let Some(Silence { since, heard }) = core.queue.silence(name) else { return false };
    let long = match heard {
        // It answered during the call. The answer to a request that was sent after that may just be on its way.
        Some(heard) if heard >= start => core.timing.attempt,
        // A request that was just sent is no silence: the waiter before this one may have given up a moment ago. A third:
        // waiters elsewhere may go first for half of the limit.
        Some(_) if since > start => core.timing.attempt.min(limit / 3),
        _ => return true,
    };
    core.now().saturating_duration_since(since) >= long
}

/// The time before which no silence counts for a call. A time in which it was not polled does not say that the store is silent:
/// an answer may have been there, or the next step of its request was not sent. So this moves on by such a time, and a silence
/// lasts for as long as the call was polled in it.
///
/// An atomic, because the future of the call is `Send`; no other thread uses it meanwhile.
pub(crate) struct Attention(AtomicU64);

impl Attention {
    /// The attention of a call that begins at `now`.
    pub(crate) fn new(now: Instant) -> Self {
        Self(AtomicU64::new(now.to_nanos()))
    }

    pub(crate) fn since(&self) -> Instant {
        Instant::at_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Records a poll at `now`, which was due by `due`, in a silence that began at `silent`, if there is one.
    pub(crate) fn polled(&self, silent: Option<Instant>, due: Instant, now: Instant) {
        let late = now.saturating_duration_since(due);
        if !late.is_zero() {
            let since = silent.map_or(now, |silent| silent.max(self.since()) + late);
            self.0.store(since.to_nanos(), Ordering::Relaxed);
        }
    }
}

/// The requests of one caller since the last answer of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unanswered {
    since: Option<Instant>,
    failures: u32,
}

impl Unanswered {
    /// Records an answer.
    pub(crate) fn answered(&mut self) {
        *self = Self::default();
    }

    /// Counts none of the time before `time`.
    pub(crate) fn not_before(&mut self, time: Instant) {
        self.since = self.since.map(|since| since.max(time));
    }

    /// Returns the time of the first of them, which is `asked` if there was none.
    pub(crate) fn since(&mut self, asked: Instant) -> Instant {
        *self.since.get_or_insert(asked)
    }

    /// Returns how long the store has been silent.
    pub(crate) fn lasted(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Returns the pause after one more failure.
    pub(crate) fn next_gap(&mut self, core: &Core) -> Duration {
        self.failures += 1;
        core.timing.gap(self.failures, core.jitter())
    }

    /// Returns the pause after the failure of the request of `asked`; `None` if the store will have been silent for T.
    pub(crate) fn gap(&mut self, core: &Core, asked: Instant) -> Option<Duration> {
        self.since(asked);
        let gap = self.next_gap(core);
        (self.lasted(core.now()) + gap < core.timing.ttl).then_some(gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answer_to_an_older_request_takes_nothing_back() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let answers = Answers::default();
        for shard in [0, 7] {
            answers.answered(shard, at(20));
            answers.answered(shard, at(10));
            assert_eq!(answers.last(shard), Some(at(20)));
        }
    }
}
