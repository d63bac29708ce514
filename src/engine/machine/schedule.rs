//! The watchdog's schedule. It has one entry for each group of holds that were renewed together,
//! one for each other hold, and one for each batch that is being renewed.

use super::hold::RenewalAttempt;
use crate::clock::{Instant, Sleeper};
use crate::engine::shared::hold::{Hold, HoldNo};
use crate::util::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;

/// The entries by time. Changes are O(log n), and acquiring and releasing a lease in a loop does
/// not wake the watchdog each time.
#[derive(Default)]
pub(crate) struct Schedule {
    entries: Mutex<Entries>,
    earlier: Notify,
}

#[derive(Default)]
struct Entries {
    holds: BTreeMap<(Instant, HoldNo), Arc<Hold>>,
    /// Holds that are due together. May contain stale entries; they are ignored when due, because
    /// removing them would cost more.
    groups: BTreeMap<Key, Vec<Arc<Hold>>>,
    /// Batches in flight, by the time at which each must be answered.
    batches: BTreeMap<Key, Arc<Batch>>,
    last_key: u64,
    /// The time until which the watchdog sleeps. Only an earlier entry wakes it.
    armed: Option<Instant>,
}

/// A hold and its renewal attempt.
#[derive(Clone)]
pub(in crate::engine) struct Renewing {
    pub(in crate::engine) hold: Arc<Hold>,
    pub(in crate::engine) attempt: RenewalAttempt,
}

/// The holds that one call renews.
pub(in crate::engine) type Batch = Vec<Renewing>;

/// A call to be sent. It is in the schedule, where the watchdog finds it if it is not answered.
pub(in crate::engine) struct Call {
    pub(in crate::engine) batch: Arc<Batch>,
    /// The end of an attempt for holds with enough time.
    pub(in crate::engine) attempt_deadline: Instant,
    /// The end of this attempt: no attempt outlives the first `C` of its holds.
    pub(in crate::engine) until: Instant,
    pub(in crate::engine) key: Key,
}

impl Call {
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

pub(in crate::engine) type Key = (Instant, u64);

/// Holds that were renewed together and are due together again. Each hold counts as scheduled from
/// the moment it joins, so the group is inserted on drop, even in a panic.
pub(in crate::engine) struct Group<'a> {
    schedule: &'a Schedule,
    pub(in crate::engine) at: Instant,
    holds: Vec<Arc<Hold>>,
}

impl Group<'_> {
    /// Adds a hold that is not in the schedule.
    pub(in crate::engine) fn join(&mut self, hold: &Arc<Hold>) {
        self.holds.push(Arc::clone(hold));
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        self.schedule.put_group(self.at, std::mem::take(&mut self.holds));
    }
}

/// The due entries, taken out of the schedule. Each hold comes with its time in the schedule.
pub(in crate::engine) struct Due {
    pub(in crate::engine) holds: Vec<(Instant, Arc<Hold>)>,
    pub(in crate::engine) batches: Vec<Arc<Batch>>,
}

fn first_of<K: Ord, V>(entries: &BTreeMap<(Instant, K), V>) -> Option<Instant> {
    entries.first_key_value().map(|((at, _), _)| *at)
}

impl Entries {
    fn first(&self) -> Option<Instant> {
        let all = [first_of(&self.holds), first_of(&self.groups), first_of(&self.batches)];
        all.into_iter().flatten().min()
    }

    /// Takes out the first `count` holds that are due by `until`.
    fn take(&mut self, until: Instant, count: usize) -> Vec<(Instant, Arc<Hold>)> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let (hold, group) = (first_of(&self.holds), first_of(&self.groups));
            let Some(at) = hold.into_iter().chain(group).min().filter(|at| *at <= until) else {
                break;
            };
            if hold == Some(at) {
                taken.extend(self.holds.pop_first().map(|(_, hold)| (at, hold)));
            } else if let Some((key, mut group)) = self.groups.pop_first() {
                let rest = group.split_off(group.len().min(count - taken.len()));
                if !rest.is_empty() {
                    self.groups.insert(key, rest);
                }
                taken.extend(group.into_iter().map(|hold| (at, hold)));
            }
        }
        taken
    }

    fn key(&mut self, at: Instant) -> Key {
        self.last_key += 1;
        (at, self.last_key)
    }

    /// Returns whether an entry inserted at `at` must wake the watchdog.
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
        self.entries.lock()
    }

    /// Inserts an entry at `at`, and wakes the watchdog if it sleeps for longer.
    fn insert<R>(&self, at: Instant, insert: impl FnOnce(&mut Entries) -> R) -> R {
        let mut entries = self.lock();
        let result = insert(&mut entries);
        let wake = entries.arm(at);
        drop(entries);
        if wake {
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
        self.replace((hold.number, from), (hold, to));
    }

    /// Removes a hold from one time, and inserts another one at another time; `None` means not in the schedule.
    pub(in crate::engine) fn replace(
        &self,
        (last, from): (HoldNo, Option<Instant>),
        (next, to): (&Arc<Hold>, Option<Instant>),
    ) {
        let remove =
            |entries: &mut Entries| from.and_then(|from| entries.holds.remove(&(from, last)));
        let removed = match to {
            Some(to) => self.insert(to, |entries| {
                let removed = remove(entries);
                entries.holds.insert((to, next.number), Arc::clone(next));
                removed
            }),
            None => remove(&mut self.lock()),
        };
        // Dropped without the lock.
        drop(removed);
    }

    /// Returns a group of up to `size` holds that is due at `at`.
    pub(in crate::engine) fn group(&self, at: Instant, size: usize) -> Group<'_> {
        Group { schedule: self, at, holds: Vec::with_capacity(size) }
    }

    fn put_group(&self, at: Instant, holds: Vec<Arc<Hold>>) {
        if holds.is_empty() {
            return;
        }
        self.insert(at, |entries| {
            let key = entries.key(at);
            entries.groups.insert(key, holds);
        });
    }

    /// Inserts a batch that must be answered by `until`.
    pub(super) fn put(&self, batch: &Arc<Batch>, until: Instant) -> Key {
        self.insert(until, |entries| {
            let key = entries.key(until);
            entries.batches.insert(key, Arc::clone(batch));
            key
        })
    }

    /// Removes a batch that was answered.
    pub(in crate::engine) fn remove(&self, key: Key) {
        let removed = self.lock().batches.remove(&key);
        drop(removed);
    }

    /// Returns the time of the first entry.
    pub(in crate::engine) fn first(&self) -> Option<Instant> {
        self.lock().first()
    }

    /// Returns for how long the first entry has been due.
    pub(in crate::engine) fn overdue(&self, now: Instant) -> Duration {
        self.first().map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }

    /// Takes out all entries that are due.
    pub(in crate::engine) fn due(&self, now: Instant) -> Due {
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
    pub(in crate::engine) fn soon(
        &self,
        until: Instant,
        count: usize,
    ) -> Vec<(Instant, Arc<Hold>)> {
        self.lock().take(until, count)
    }

    /// Takes out all holds that are not being renewed.
    pub(in crate::engine) fn all(&self) -> Vec<(Instant, Arc<Hold>)> {
        self.lock().take(Instant::MAX, usize::MAX)
    }

    /// Sleeps until the first entry is due or an earlier one is inserted.
    pub(in crate::engine) async fn wait(&self, sleeper: &mut Sleeper) {
        let next = {
            let mut entries = self.lock();
            let now = sleeper.now();
            // An armed time stays armed, even when its entry has gone: one wakeup for nothing is
            // cheaper than a wakeup by the next lease.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::machine::hold::State;
    use crate::engine::shared::options::Options;
    use crate::store::{HolderId, Name, Target};
    use std::time::Duration;
    use uuid::Uuid;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn hold(number: u64) -> Arc<Hold> {
        let state = State::granted(at(0), at(1), None, None);
        let (name, holder) = (Name::new("n").unwrap(), HolderId::new(Uuid::nil(), number));
        Hold::new(Target::exclusive(name), Options::default(), (holder, None), at(0), state, None)
    }

    fn put_group(schedule: &Schedule, millis: u64, numbers: impl Iterator<Item = u64>) {
        let mut group = schedule.group(at(millis), 0);
        numbers.for_each(|number| group.join(&hold(number)));
    }

    fn numbers(taken: &[(Instant, Arc<Hold>)]) -> Vec<u64> {
        taken.iter().map(|(_, hold)| hold.holder.number()).collect()
    }

    #[test]
    fn holds_and_groups_come_in_the_order_of_their_times() {
        let schedule = Schedule::default();
        put_group(&schedule, 20, 2..4);
        schedule.set(&hold(4), None, Some(at(30)));
        schedule.set(&hold(1), None, Some(at(10)));
        put_group(&schedule, 40, 5..7);
        let taken = schedule.soon(at(30), usize::MAX);
        assert_eq!(numbers(&taken), [1, 2, 3, 4]);
        assert_eq!((taken[0].0, taken[2].0), (at(10), at(20)), "with the time in the schedule");
        assert!(schedule.due(at(39)).holds.is_empty());
        assert_eq!(numbers(&schedule.all()), [5, 6]);
        assert!(schedule.lock().first().is_none());
    }

    /// As in a hand-off: the next hold may be scheduled before the last one is removed.
    #[test]
    fn holds_of_one_id_and_time_have_separate_entries() {
        let schedule = Schedule::default();
        let (last, next) = (hold(1), hold(1));
        schedule.set(&last, None, Some(at(10)));
        schedule.set(&next, None, Some(at(10)));
        schedule.set(&last, Some(at(10)), None);
        let due = schedule.due(at(10)).holds;
        assert_eq!(due.len(), 1);
        assert!(Arc::ptr_eq(&due[0].1, &next));
    }

    #[test]
    fn holds_beyond_the_count_stay_in_the_schedule() {
        let schedule = Schedule::default();
        schedule.set(&hold(1), None, Some(at(10)));
        put_group(&schedule, 10, 2..6);
        assert_eq!(numbers(&schedule.soon(at(10), 3)), [1, 2, 3]);
        assert!(schedule.soon(at(10), 0).is_empty());
        assert_eq!(schedule.lock().first(), Some(at(10)));
        assert_eq!(numbers(&schedule.due(at(10)).holds), [4, 5]);
    }

    #[test]
    fn group_without_holds_is_no_entry() {
        let schedule = Schedule::default();
        put_group(&schedule, 10, 0..0);
        assert!(schedule.lock().first().is_none() && schedule.lock().armed.is_none());
    }

    /// A hold that moves leaves a stale entry in its group.
    #[test]
    fn hold_in_a_group_can_move() {
        let schedule = Schedule::default();
        let moved = hold(1);
        let mut group = schedule.group(at(10), 2);
        group.join(&moved);
        group.join(&hold(2));
        drop(group);
        schedule.set(&moved, Some(at(10)), Some(at(20)));
        assert_eq!(
            numbers(&schedule.due(at(10)).holds),
            [1, 2],
            "the hold ignores the stale entry"
        );
        assert_eq!(numbers(&schedule.due(at(20)).holds), [1]);
    }
}
