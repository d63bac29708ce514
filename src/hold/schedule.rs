//! What the watchdog must look at when: one entry for each hold that is not being renewed, and one for
//! each batch that is.

use super::Hold;
use super::watchdog::Batch;
use crate::clock::{Instant, Sleeper};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// O(log n) to change; taking and releasing a lease in a loop does not wake the watchdog each time.
#[derive(Default)]
pub(crate) struct Schedule {
    entries: Mutex<Entries>,
    earlier: Notify,
}

#[derive(Default)]
struct Entries {
    holds: BTreeMap<(Instant, u64), Arc<Hold>>,
    /// By when each batch must be answered.
    batches: BTreeMap<BatchKey, Arc<Batch>>,
    last_batch: u64,
    /// Until when the watchdog sleeps. Only an entry before that needs to wake it.
    armed: Option<Instant>,
}

pub(super) type BatchKey = (Instant, u64);

/// What is due, taken out of the schedule; holds with the time at which they stood.
pub(super) struct Due {
    pub(super) holds: Vec<(Instant, Arc<Hold>)>,
    pub(super) batches: Vec<Arc<Batch>>,
}

impl Entries {
    fn first(&self) -> Option<Instant> {
        let hold = self.holds.first_key_value().map(|((at, _), _)| *at);
        let batch = self.batches.first_key_value().map(|((at, _), _)| *at);
        hold.into_iter().chain(batch).min()
    }

    fn take(&mut self, until: Instant, count: usize) -> Vec<(Instant, Arc<Hold>)> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(first) = self.holds.first_entry()
            && first.key().0 <= until
        {
            let ((at, _), hold) = first.remove_entry();
            taken.push((at, hold));
        }
        taken
    }

    /// Whether the watchdog must be woken for what was put in at `at`.
    fn arm(&mut self, at: Instant) -> bool {
        let wake = self.armed.is_none_or(|armed| at < armed);
        if wake {
            self.armed = Some(at);
        }
        wake
    }
}

impl Schedule {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves a hold from one time to another; `None` is outside.
    pub(super) fn set(&self, hold: &Arc<Hold>, from: Option<Instant>, to: Option<Instant>) {
        let id = hold.token.number();
        let mut entries = self.lock();
        let removed = from.and_then(|from| entries.holds.remove(&(from, id)));
        let mut wake = false;
        if let Some(to) = to {
            entries.holds.insert((to, id), Arc::clone(hold));
            wake = entries.arm(to);
        }
        drop(entries);
        drop(removed);
        if wake {
            self.earlier.notify_one();
        }
    }

    /// A batch leaves that must be answered by `until`.
    pub(super) fn put(&self, batch: &Arc<Batch>, until: Instant) -> BatchKey {
        let mut entries = self.lock();
        entries.last_batch += 1;
        let key = (until, entries.last_batch);
        entries.batches.insert(key, Arc::clone(batch));
        let wake = entries.arm(until);
        drop(entries);
        if wake {
            self.earlier.notify_one();
        }
        key
    }

    /// A batch was answered.
    pub(super) fn remove(&self, key: BatchKey) {
        let removed = self.lock().batches.remove(&key);
        drop(removed);
    }

    /// Takes out what is due.
    pub(super) fn due(&self, now: Instant) -> Due {
        let mut entries = self.lock();
        let mut due = Due { holds: entries.take(now, usize::MAX), batches: Vec::new() };
        while let Some(first) = entries.batches.first_entry()
            && first.key().0 <= now
        {
            due.batches.push(first.remove());
        }
        due
    }

    /// Takes out the first `count` holds that are due by `until`.
    pub(super) fn soon(&self, until: Instant, count: usize) -> Vec<(Instant, Arc<Hold>)> {
        self.lock().take(until, count)
    }

    /// Takes out all holds that are not being renewed.
    pub(super) fn all(&self) -> Vec<(Instant, Arc<Hold>)> {
        let holds = std::mem::take(&mut self.lock().holds);
        holds.into_iter().map(|((at, _), hold)| (at, hold)).collect()
    }

    /// Sleeps until the first entry is due, or one that is earlier was put in.
    pub(super) async fn wait(&self, sleeper: &mut Sleeper) {
        let next = {
            let mut entries = self.lock();
            let now = sleeper.now();
            // A time that was armed stays armed, even when its entry has gone: to sleep for it in
            // vain once is cheaper than to be woken by the next lease.
            let first = entries.first();
            entries.armed = entries.armed.filter(|armed| *armed > now).or(first);
            entries.armed
        };
        let earlier = self.earlier.notified();
        match next {
            None => earlier.await,
            Some(at) => tokio::select! {
                biased;
                () = earlier => {}
                () = sleeper.until(at) => {}
            },
        }
    }
}
