//! What each part of the store has last answered to acquires.

use crate::clock::Instant;
use crate::error::Error;
use crate::util::sync::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The last answers of each part of the store. There are as many as the store has parts, whatever the number of names.
#[derive(Default)]
pub(crate) struct Served {
    /// The nanosecond, by the clock, of the last request to part 0 that was granted or found the name held; 0 if there is
    /// none. Most stores have no other part.
    first: AtomicU64,
    others: Mutex<HashMap<usize, Instant>>,
    /// The last failure of each part, and when it came.
    failures: Mutex<HashMap<usize, (Instant, Error)>>,
}

impl Served {
    /// Records that a request of `sent` was granted, or found the name held. Answers come in any order.
    pub(in crate::engine) fn answered(&self, part: usize, sent: Instant) {
        if part == 0 {
            let sent = u64::try_from(sent.since_origin().as_nanos()).unwrap_or(u64::MAX);
            self.first.fetch_max(sent.max(1), Ordering::Relaxed);
        } else {
            let mut others = self.others.lock();
            let last = others.entry(part).or_insert(sent);
            *last = sent.max(*last);
        }
    }

    /// Returns when the last such request was sent.
    pub(in crate::engine) fn last(&self, part: usize) -> Option<Instant> {
        if part == 0 {
            let last = self.first.load(Ordering::Relaxed);
            (last > 0).then(|| Instant::ZERO + Duration::from_nanos(last))
        } else {
            self.others.lock().get(&part).copied()
        }
    }

    /// Records a failure that came at `now`.
    pub(in crate::engine) fn failed(&self, part: usize, now: Instant, failure: &Error) {
        self.failures.lock().insert(part, (now, failure.without_source()));
    }

    /// Returns the last failure, if it came at `since` or later, and no request that was sent after it was answered.
    pub(in crate::engine) fn failure(&self, part: usize, since: Instant) -> Option<Error> {
        let failures = self.failures.lock();
        let (at, failure) = failures.get(&part)?;
        let is_last = *at >= since && self.last(part).is_none_or(|last| last <= *at);
        is_last.then(|| failure.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answer_to_an_older_request_takes_nothing_back() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let served = Served::default();
        for part in [0, 7] {
            served.answered(part, at(20));
            served.answered(part, at(10));
            assert_eq!(served.last(part), Some(at(20)));
        }
    }
}
