//! What the watchdog must look at when: one entry for those that were renewed together, one for each other
//! hold, and one for each batch that is being renewed.

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
    holds: BTreeMap<Key, Arc<Hold>>,
    /// Holds that are due together. Who has moved or ended since is still among them, and does nothing when its
    /// time has come: to look for it would cost more.
    groups: BTreeMap<Key, Vec<Arc<Hold>>>,
    /// By when each batch must be answered.
    batches: BTreeMap<Key, Arc<Batch>>,
    last_key: u64,
    /// Until when the watchdog sleeps. Only an entry before that needs to wake it.
    armed: Option<Instant>,
}

pub(super) type Key = (Instant, u64);

/// Holds that were renewed together and are due together again. Each believes that it stands there from the
/// moment that it joins, so the group is put in when this is dropped: also in a panic.
pub(super) struct Group<'a> {
    schedule: &'a Schedule,
    pub(super) at: Instant,
    holds: Vec<Arc<Hold>>,
}

impl Group<'_> {
    /// Takes in a hold that stands nowhere.
    pub(super) fn join(&mut self, hold: &Arc<Hold>) {
        self.holds.push(Arc::clone(hold));
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        self.schedule.put_group(self.at, std::mem::take(&mut self.holds));
    }
}

/// What is due, taken out of the schedule; holds with the time at which they stood.
pub(super) struct Due {
    pub(super) holds: Vec<(Instant, Arc<Hold>)>,
    pub(super) batches: Vec<Arc<Batch>>,
}

fn first_of<V>(entries: &BTreeMap<Key, V>) -> Option<Instant> {
    entries.first_key_value().map(|((at, _), _)| *at)
}

impl Entries {
    fn first(&self) -> Option<Instant> {
        let all = [first_of(&self.holds), first_of(&self.groups), first_of(&self.batches)];
        all.into_iter().flatten().min()
    }

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

    /// Puts something in at `at`, and wakes the watchdog if it sleeps for longer.
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

    /// Moves a hold from one time to another; `None` is outside.
    pub(super) fn set(&self, hold: &Arc<Hold>, from: Option<Instant>, to: Option<Instant>) {
        let id = hold.number;
        let remove =
            |entries: &mut Entries| from.and_then(|from| entries.holds.remove(&(from, id)));
        let removed = match to {
            Some(to) => self.insert(to, |entries| {
                let removed = remove(entries);
                entries.holds.insert((to, id), Arc::clone(hold));
                removed
            }),
            None => remove(&mut self.lock()),
        };
        // Not while the entries are locked.
        drop(removed);
    }

    /// A group of up to `size` that will be due at `at`.
    pub(super) fn group(&self, at: Instant, size: usize) -> Group<'_> {
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

    /// A batch leaves that must be answered by `until`.
    pub(super) fn put(&self, batch: &Arc<Batch>, until: Instant) -> Key {
        self.insert(until, |entries| {
            let key = entries.key(until);
            entries.batches.insert(key, Arc::clone(batch));
            key
        })
    }

    /// A batch was answered.
    pub(super) fn remove(&self, key: Key) {
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
        self.lock().take(Instant::MAX, usize::MAX)
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

#[cfg(test)]
mod tests {
    use super::super::state::State;
    use super::*;
    use crate::store::{HolderId, Name};
    use std::time::Duration;
    use uuid::Uuid;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn hold(number: u64) -> Arc<Hold> {
        let state = State::granted(at(0), at(1), None, None);
        let (name, token) = (Name::new("n").unwrap(), HolderId::new(Uuid::nil(), number));
        Hold::new(name, token, None, state, None)
    }

    fn put_group(schedule: &Schedule, millis: u64, numbers: impl Iterator<Item = u64>) {
        let mut group = schedule.group(at(millis), 0);
        numbers.for_each(|number| group.join(&hold(number)));
    }

    fn numbers(taken: &[(Instant, Arc<Hold>)]) -> Vec<u64> {
        taken.iter().map(|(_, hold)| hold.token.number()).collect()
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
        assert_eq!((taken[0].0, taken[2].0), (at(10), at(20)), "with the time at which they stood");
        assert!(schedule.due(at(39)).holds.is_empty());
        assert_eq!(numbers(&schedule.all()), [5, 6]);
        assert!(schedule.lock().first().is_none());
    }

    /// As in a hand-off: the next holder may come before the last one has gone.
    #[test]
    fn holds_of_one_token_and_time_stand_apart() {
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
    fn what_there_is_no_room_for_stays_where_it_was() {
        let schedule = Schedule::default();
        schedule.set(&hold(1), None, Some(at(10)));
        put_group(&schedule, 10, 2..6);
        assert_eq!(numbers(&schedule.soon(at(10), 3)), [1, 2, 3]);
        assert!(schedule.soon(at(10), 0).is_empty());
        assert_eq!(schedule.lock().first(), Some(at(10)));
        assert_eq!(numbers(&schedule.due(at(10)).holds), [4, 5]);
    }

    #[test]
    fn a_group_of_none_is_no_entry() {
        let schedule = Schedule::default();
        put_group(&schedule, 10, 0..0);
        assert!(schedule.lock().first().is_none() && schedule.lock().armed.is_none());
    }

    /// Passed on, a hold has the number of the one before it, and may stand where that one stood in a group.
    #[test]
    fn who_stands_in_a_group_can_move() {
        let schedule = Schedule::default();
        let moved = hold(1);
        let mut group = schedule.group(at(10), 2);
        group.join(&moved);
        group.join(&hold(2));
        drop(group);
        schedule.set(&moved, Some(at(10)), Some(at(20)));
        assert_eq!(numbers(&schedule.due(at(10)).holds), [1, 2], "it is for the hold to know");
        assert_eq!(numbers(&schedule.due(at(20)).holds), [1]);
    }
}
