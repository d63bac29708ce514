//! The watchdog's schedule behind one lock, and what wakes the watchdog.

use super::core::Core;
use super::hold::{Hold, HoldNo};
use super::job::Job;
use super::queue::Deferred;
use crate::clock::{Instant, Sleeper};
use crate::engine::machine::hold::RenewalAttempt;
use crate::engine::machine::schedule::{self, Entries, Key};
use crate::observe::Recorded;
use crate::util::sync::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The schedule of the holds of a manager.
#[derive(Default)]
pub(crate) struct Schedule {
    entries: Mutex<Entries<HoldNo, Arc<Hold>, Arc<Batch>>>,
    earlier: Notify,
}

/// A hold and its renewal attempt.
#[derive(Clone)]
pub(in crate::engine) struct Renewing {
    pub(in crate::engine) hold: Arc<Hold>,
    pub(in crate::engine) attempt: RenewalAttempt,
}

/// The holds that one call renews.
pub(in crate::engine) type Batch = Vec<Renewing>;

/// The due entries, taken out of the schedule.
type DueEntries = schedule::DueEntries<Arc<Hold>, Arc<Batch>>;

/// A call to be sent. It is in the schedule, where the watchdog finds it if it is not answered.
pub(in crate::engine) struct ScheduledCall {
    pub(in crate::engine) batch: Arc<Batch>,
    /// The end of an attempt for holds with enough time.
    pub(in crate::engine) attempt_deadline: Instant,
    /// The end of this attempt: no attempt outlives the first `C` of its holds.
    pub(in crate::engine) until: Instant,
    pub(in crate::engine) key: Key,
}

impl ScheduledCall {
    pub(in crate::engine) fn new(
        schedule: &Schedule,
        batch: Batch,
        attempt_deadline: Instant,
    ) -> Self {
        let batch = Arc::new(batch);
        let first = batch.iter().map(|renewing| renewing.attempt.believed_until).min();
        let until = first.map_or(attempt_deadline, |first| first.min(attempt_deadline));
        let key = schedule.put(&batch, until);
        Self { batch, attempt_deadline, until, key }
    }
}

/// Holds that change together. The schedule gets the entry of those that are due at the same time again, and users are woken,
/// when the group is dropped, even in a panic: a waker of a user may block, and all changes are done by then.
pub(in crate::engine) struct Group<'a> {
    core: &'a Core,
    pub(in crate::engine) at: Option<Instant>,
    holds: Vec<Arc<Hold>>,
    /// The holds that tasks may wait on, and that have changed.
    pub(in crate::engine) changed: Vec<Arc<Hold>>,
    pub(in crate::engine) wakes: Wakes,
}

/// The wake-ups of calls that wait for a name, and of observers.
#[derive(Default)]
pub(crate) struct Wakes {
    pub(in crate::engine) effects: Vec<Deferred>,
    pub(in crate::engine) events: Vec<Recorded>,
}

impl Wakes {
    fn is_empty(&self) -> bool {
        self.effects.is_empty() && self.events.is_empty()
    }

    pub(in crate::engine) fn run(self, core: &Core) {
        self.effects.into_iter().for_each(|effects| core.queue.perform(effects));
        self.events.into_iter().for_each(Recorded::finish);
    }
}

impl<'a> Group<'a> {
    /// Creates a group of up to `size` holds that are due at `at`, or else at times of their own.
    pub(in crate::engine) fn new(core: &'a Core, at: Option<Instant>, size: usize) -> Self {
        let holds = Vec::with_capacity(size);
        Self { core, at, holds, changed: Vec::new(), wakes: Wakes::default() }
    }

    /// Adds a hold that is not in the schedule. It counts as scheduled from now on.
    pub(in crate::engine) fn join(&mut self, hold: &Arc<Hold>) {
        self.holds.push(Arc::clone(hold));
    }

    /// Leaves the wake-ups to the worker: its thread fires no tokens. Those of tasks that wait on a hold, as of its token,
    /// come with the end of the group all the same.
    pub(in crate::engine) fn end(mut self) {
        let wakes = std::mem::take(&mut self.wakes);
        if !wakes.is_empty() {
            self.core.submit(Job::Wake(wakes));
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            self.core.schedule.put_group(at, std::mem::take(&mut self.holds));
        }
        self.changed.iter().for_each(|hold| hold.notify());
        std::mem::take(&mut self.wakes).run(self.core);
    }
}

impl Schedule {
    /// Changes the entries for one at `at`, and wakes the watchdog if it sleeps for longer.
    fn insert<R>(
        &self,
        at: Instant,
        insert: impl FnOnce(&mut Entries<HoldNo, Arc<Hold>, Arc<Batch>>) -> R,
    ) -> R {
        let mut entries = self.entries.lock();
        let result = insert(&mut entries);
        let wakes = entries.arm(at);
        drop(entries);
        if wakes {
            self.earlier.notify_one();
        }
        result
    }

    /// Moves a hold from one time to another; `None` means not in the schedule.
    pub(in crate::engine) fn set(
        &self,
        hold: &Arc<Hold>,
        from: Option<Instant>,
        to: Option<Instant>,
    ) {
        self.replace(hold.number, from, hold, to);
    }

    /// Removes a hold from one time, and inserts another one at another time; `None` means not in the schedule.
    pub(in crate::engine) fn replace(
        &self,
        last: HoldNo,
        from: Option<Instant>,
        next: &Arc<Hold>,
        to: Option<Instant>,
    ) {
        let removed = match to {
            Some(to) => self.insert(to, |entries| {
                let removed = from.and_then(|from| entries.remove(from, last));
                entries.insert(to, next.number, Arc::clone(next));
                removed
            }),
            None => from.and_then(|from| self.entries.lock().remove(from, last)),
        };
        // Dropped without the lock.
        drop(removed);
    }

    fn put_group(&self, at: Instant, holds: Vec<Arc<Hold>>) {
        if !holds.is_empty() {
            self.insert(at, |entries| entries.insert_group(at, holds));
        }
    }

    /// Inserts a batch that must be answered by `until`.
    fn put(&self, batch: &Arc<Batch>, until: Instant) -> Key {
        self.insert(until, |entries| entries.insert_batch(until, Arc::clone(batch)))
    }

    /// Removes a batch that was answered.
    pub(in crate::engine) fn remove(&self, key: Key) {
        let removed = self.entries.lock().remove_batch(key);
        drop(removed);
    }

    /// Returns the time of the first entry.
    pub(in crate::engine) fn first(&self) -> Option<Instant> {
        self.entries.lock().first()
    }

    /// Returns for how long the first entry has been due.
    pub(in crate::engine) fn overdue(&self, now: Instant) -> Duration {
        self.first().map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }

    /// Takes out all entries that are due.
    pub(in crate::engine) fn due(&self, now: Instant) -> DueEntries {
        self.entries.lock().due(now)
    }

    /// Takes out the first `count` holds that are due by `until`.
    pub(in crate::engine) fn soon(
        &self,
        until: Instant,
        count: usize,
    ) -> Vec<(Instant, Arc<Hold>)> {
        self.entries.lock().soon(until, count)
    }

    /// Takes out all holds that are not being renewed.
    pub(in crate::engine) fn all(&self) -> Vec<(Instant, Arc<Hold>)> {
        self.soon(Instant::MAX, usize::MAX)
    }

    /// Sleeps until the first entry is due or an earlier one is inserted.
    pub(in crate::engine) async fn wait(&self, sleeper: &mut Sleeper) {
        let next = self.entries.lock().sleep_until(sleeper.now());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::machine::hold::State;
    use crate::engine::shared::hold::HolderAndFence;
    use crate::engine::shared::options::Options;
    use crate::store::{HolderId, Name, Target};
    use uuid::Uuid;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn hold(number: u64) -> Arc<Hold> {
        let state = State::granted(at(0), at(1), None, None);
        let name = Name::new("n").unwrap();
        let holder = HolderId::new(Uuid::nil(), number);
        let id = HolderAndFence { holder, fence: None };
        Hold::new(Target::exclusive(name), Options::default(), id, at(0), state, None)
    }

    /// As in a hand-off: the next hold may be scheduled before the last one is removed.
    #[test]
    fn holds_of_one_id_and_time_have_separate_entries() {
        let schedule = Schedule::default();
        let last = hold(1);
        let next = hold(1);
        schedule.set(&last, None, Some(at(10)));
        schedule.set(&next, None, Some(at(10)));
        schedule.set(&last, Some(at(10)), None);
        let due = schedule.due(at(10)).holds;
        assert_eq!(due.len(), 1);
        assert!(Arc::ptr_eq(&due[0].1, &next));
    }

    #[test]
    fn group_without_holds_is_no_entry() {
        let schedule = Schedule::default();
        schedule.put_group(at(10), Vec::new());
        assert_eq!(schedule.first(), None);
        assert!(schedule.entries.lock().arm(at(20)), "it has woken no watchdog");
    }
}
