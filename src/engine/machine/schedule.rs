//! The watchdog's schedule: what is due when. It has one entry for each group of holds that were renewed together, one for
//! each other hold, and one for each batch that is being renewed.

use crate::clock::Instant;
use std::collections::BTreeMap;

/// The entries by time: holds `H` with their numbers `N`, and batches `B`. Changes are O(log n), and acquiring and releasing a
/// lease in a loop does not wake the watchdog each time.
pub(in crate::engine) struct Entries<N, H, B> {
    holds: BTreeMap<(Instant, N), H>,
    /// Holds that are due together. May contain stale entries; they are ignored when due, because
    /// removing them would cost more.
    groups: BTreeMap<Key, Vec<H>>,
    /// Batches in flight, by the time at which each must be answered.
    batches: BTreeMap<Key, B>,
    last_key: u64,
    /// The time until which the watchdog sleeps. Only an earlier entry wakes it.
    armed: Option<Instant>,
}

pub(in crate::engine) type Key = (Instant, u64);

/// The due entries, taken out of the schedule. Each hold comes with its time in the schedule.
pub(in crate::engine) struct DueEntries<H, B> {
    pub(in crate::engine) holds: Vec<(Instant, H)>,
    pub(in crate::engine) batches: Vec<B>,
}

fn first_of<K: Ord, V>(entries: &BTreeMap<(Instant, K), V>) -> Option<Instant> {
    entries.first_key_value().map(|((at, _), _)| *at)
}

impl<N, H, B> Default for Entries<N, H, B> {
    fn default() -> Self {
        Self {
            holds: BTreeMap::new(),
            groups: BTreeMap::new(),
            batches: BTreeMap::new(),
            last_key: 0,
            armed: None,
        }
    }
}

impl<N: Ord, H, B> Entries<N, H, B> {
    /// Returns the time of the first entry.
    pub(in crate::engine) fn first(&self) -> Option<Instant> {
        let all = [first_of(&self.holds), first_of(&self.groups), first_of(&self.batches)];
        all.into_iter().flatten().min()
    }

    /// Inserts a hold.
    pub(in crate::engine) fn insert(&mut self, at: Instant, number: N, hold: H) {
        self.holds.insert((at, number), hold);
    }

    /// Removes a hold, unless it is in a group.
    pub(in crate::engine) fn remove(&mut self, at: Instant, number: N) -> Option<H> {
        self.holds.remove(&(at, number))
    }

    /// Inserts holds that are due together.
    pub(in crate::engine) fn insert_group(&mut self, at: Instant, holds: Vec<H>) {
        let key = self.key(at);
        self.groups.insert(key, holds);
    }

    /// Inserts a batch that must be answered by `until`.
    pub(in crate::engine) fn insert_batch(&mut self, until: Instant, batch: B) -> Key {
        let key = self.key(until);
        self.batches.insert(key, batch);
        key
    }

    /// Removes a batch that was answered.
    pub(in crate::engine) fn remove_batch(&mut self, key: Key) -> Option<B> {
        self.batches.remove(&key)
    }

    /// Removes and returns all entries that are due.
    pub(in crate::engine) fn due(&mut self, now: Instant) -> DueEntries<H, B> {
        let mut due = DueEntries { holds: self.soon(now, usize::MAX), batches: Vec::new() };
        while let Some(first) = self.batches.first_entry()
            && first.key().0 <= now
        {
            due.batches.push(first.remove());
        }
        due
    }

    /// Removes and returns the first `count` holds that are due by `until`.
    pub(in crate::engine) fn soon(&mut self, until: Instant, count: usize) -> Vec<(Instant, H)> {
        let mut soon = Vec::new();
        while soon.len() < count {
            let hold = first_of(&self.holds);
            let group = first_of(&self.groups);
            let Some(at) = hold.into_iter().chain(group).min().filter(|at| *at <= until) else {
                break;
            };
            if hold == Some(at) {
                soon.extend(self.holds.pop_first().map(|(_, hold)| (at, hold)));
            } else if let Some((key, mut group)) = self.groups.pop_first() {
                let rest = group.split_off(group.len().min(count - soon.len()));
                if !rest.is_empty() {
                    self.groups.insert(key, rest);
                }
                soon.extend(group.into_iter().map(|hold| (at, hold)));
            }
        }
        soon
    }

    /// Returns whether an entry that is inserted at `at` must wake the watchdog, which then sleeps until that time.
    pub(in crate::engine) fn arm(&mut self, at: Instant) -> bool {
        let wakes = self.armed.is_none_or(|armed| at < armed);
        if wakes {
            self.armed = Some(at);
        }
        wakes
    }

    /// Returns the time until which the watchdog sleeps from `now` on.
    pub(in crate::engine) fn sleep_until(&mut self, now: Instant) -> Option<Instant> {
        // An armed time stays armed, even when its entry has gone: one wakeup for nothing is
        // cheaper than a wakeup by the next lease.
        self.armed = self.armed.filter(|armed| *armed > now).or_else(|| self.first());
        self.armed
    }

    fn key(&mut self, at: Instant) -> Key {
        self.last_key += 1;
        (at, self.last_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    type Schedule = Entries<u64, u64, &'static str>;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn insert(schedule: &mut Schedule, millis: u64, number: u64) {
        schedule.insert(at(millis), number, number);
    }

    fn numbers(holds: &[(Instant, u64)]) -> Vec<u64> {
        holds.iter().map(|(_, number)| *number).collect()
    }

    #[test]
    fn holds_and_groups_come_in_the_order_of_their_times() {
        let mut schedule = Schedule::default();
        schedule.insert_group(at(20), vec![2, 3]);
        insert(&mut schedule, 30, 4);
        insert(&mut schedule, 10, 1);
        schedule.insert_group(at(40), vec![5, 6]);
        let soon = schedule.soon(at(30), usize::MAX);
        assert_eq!(numbers(&soon), [1, 2, 3, 4]);
        assert_eq!((soon[0].0, soon[2].0), (at(10), at(20)), "with the time in the schedule");
        assert!(schedule.due(at(39)).holds.is_empty());
        assert_eq!(numbers(&schedule.soon(Instant::MAX, usize::MAX)), [5, 6]);
        assert_eq!(schedule.first(), None);
    }

    #[test]
    fn holds_beyond_the_count_stay_in_the_schedule() {
        let mut schedule = Schedule::default();
        insert(&mut schedule, 10, 1);
        schedule.insert_group(at(10), vec![2, 3, 4, 5]);
        assert_eq!(numbers(&schedule.soon(at(10), 3)), [1, 2, 3]);
        assert!(schedule.soon(at(10), 0).is_empty());
        assert_eq!(schedule.first(), Some(at(10)));
        assert_eq!(numbers(&schedule.due(at(10)).holds), [4, 5]);
    }

    /// A hold that moves leaves a stale entry in its group.
    #[test]
    fn hold_in_a_group_can_move() {
        let mut schedule = Schedule::default();
        schedule.insert_group(at(10), vec![1, 2]);
        assert_eq!(schedule.remove(at(10), 1), None);
        insert(&mut schedule, 20, 1);
        let due = schedule.due(at(10)).holds;
        assert_eq!(numbers(&due), [1, 2], "the hold ignores the stale entry");
        assert_eq!(numbers(&schedule.due(at(20)).holds), [1]);
    }

    #[test]
    fn batches_are_due_until_they_are_answered() {
        let mut schedule = Schedule::default();
        let first = schedule.insert_batch(at(10), "a");
        schedule.insert_batch(at(10), "b");
        assert_eq!(schedule.remove_batch(first), Some("a"));
        assert!(schedule.due(at(9)).batches.is_empty());
        assert_eq!(schedule.due(at(10)).batches, ["b"]);
    }

    #[test]
    fn watchdog_is_woken_by_an_earlier_entry_only() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.sleep_until(at(0)), None);
        assert!(schedule.arm(at(20)));
        insert(&mut schedule, 20, 1);
        assert_eq!(schedule.sleep_until(at(0)), Some(at(20)));
        assert!(!schedule.arm(at(20)) && !schedule.arm(at(30)) && schedule.arm(at(10)));
        schedule.remove(at(20), 1);
        assert_eq!(schedule.sleep_until(at(9)), Some(at(10)), "although it has no entry");
        assert_eq!(schedule.sleep_until(at(10)), None);
    }
}
