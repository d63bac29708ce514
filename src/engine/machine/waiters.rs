//! The waiters of a name, in the order of their numbers.

use super::pulse::Pulse;
use crate::clock::Instant;
use crate::store::Mode;
use std::collections::VecDeque;
use std::time::Duration;

/// What a call wants that may have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Demand {
    pub(in crate::engine) mode: Mode,
    /// The time of its arrival.
    pub(in crate::engine) arrived: Instant,
    /// Whether it takes part in the line of the name.
    pub(in crate::engine) fair: bool,
    /// The time for which its hold keeps the name closed beyond T if it is not released.
    pub(in crate::engine) lock_delay: Duration,
}

/// A waiter in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Waiter {
    pub(super) demand: Demand,
    /// Its last pulse.
    pub(super) pulse: Pulse,
    /// Whether an offer wakes it. False while it has given no pulse since it was woken.
    pub(super) listens: bool,
}

/// The number of slots that are kept though no waiter is in them.
const SLACK: usize = 64;

/// The waiters of a name in FIFO order. Most enter at the end and leave at the front, which takes a sorted queue half of the
/// instructions that it takes a tree.
#[derive(Default)]
pub(in crate::engine) struct Waiters {
    /// Each with its number. One that left from the middle leaves an empty slot, so that leaving does not move all that are
    /// behind it. The first and the last slot are never empty.
    slots: VecDeque<(u64, Option<Waiter>)>,
    /// The number of slots with a waiter.
    count: usize,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the index of the slot of this number, or the one at which it would be.
    fn find(&self, waiter_no: u64) -> Result<usize, usize> {
        match (self.slots.front(), self.slots.back()) {
            (Some((first, _)), _) if *first == waiter_no => Ok(0),
            (_, Some((last, _))) if *last < waiter_no => Err(self.slots.len()),
            _ => self.slots.binary_search_by_key(&waiter_no, |(waiter_no, _)| *waiter_no),
        }
    }

    pub(super) fn get(&self, waiter_no: u64) -> Option<&Waiter> {
        self.slots.get(self.find(waiter_no).ok()?)?.1.as_ref()
    }

    pub(super) fn get_mut(&mut self, waiter_no: u64) -> Option<&mut Waiter> {
        let index = self.find(waiter_no).ok()?;
        self.slots.get_mut(index)?.1.as_mut()
    }

    /// Returns the waiter with this number; if there is none, it enters at its place.
    pub(super) fn get_or_insert_with(
        &mut self,
        waiter_no: u64,
        new: impl FnOnce() -> Waiter,
    ) -> &mut Waiter {
        let index = self.find(waiter_no).unwrap_or_else(|index| {
            self.slots.insert(index, (waiter_no, None));
            index
        });
        let slot = &mut self.slots[index].1;
        self.count += usize::from(slot.is_none());
        slot.get_or_insert_with(new)
    }

    /// Removes the waiter with this number.
    pub(super) fn remove(&mut self, waiter_no: u64) -> Option<Waiter> {
        let index = self.find(waiter_no).ok()?;
        let removed = self.slots.get_mut(index)?.1.take()?;
        self.count -= 1;
        while let Some((_, None)) = self.slots.front() {
            self.slots.pop_front();
        }
        while let Some((_, None)) = self.slots.back() {
            self.slots.pop_back();
        }
        let slack = 2 * self.count + SLACK;
        if self.slots.len() > slack {
            self.slots.retain(|(_, waiter)| waiter.is_some());
        }
        if self.slots.capacity() > 2 * slack {
            self.slots.shrink_to(slack);
        }
        Some(removed)
    }

    /// Returns the first waiter, and its number.
    pub(super) fn first(&self) -> Option<(u64, &Waiter)> {
        self.iter().next()
    }

    /// Returns the waiters in FIFO order, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Waiter)> {
        self.slots.iter().filter_map(|(waiter_no, waiter)| Some((*waiter_no, waiter.as_ref()?)))
    }

    /// Returns the waiters in FIFO order to change, with their numbers.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Waiter)> {
        self.slots.iter_mut().filter_map(|(waiter_no, waiter)| Some((*waiter_no, waiter.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn waiter(millis: u64) -> Waiter {
        let arrived = Instant::ZERO + Duration::from_millis(millis);
        let lock_delay = Duration::ZERO;
        let demand = Demand { mode: Mode::Exclusive, arrived, fair: false, lock_delay };
        Waiter { demand, pulse: Pulse::until(arrived), listens: false }
    }

    /// Enters and leaves 20 000 times in an order without pattern, beside a tree.
    #[test]
    fn waiters_are_in_the_order_of_numbers() {
        let (mut waiters, mut tree) = (Waiters::default(), BTreeMap::new());
        let mut random = 1_u64;
        for round in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
            // The queue grows to hundreds, and shrinks again.
            let (waiter_no, grows) = ((random >> 33) % 800, (round / 2000) % 2 == 0);
            if (random >> 20).is_multiple_of(4) != grows {
                let entered =
                    waiters.get_or_insert_with(waiter_no, || waiter(round)).demand.arrived;
                let expected = tree.entry(waiter_no).or_insert_with(|| waiter(round));
                assert_eq!(entered, expected.demand.arrived, "one that is there stays");
            } else {
                let left = waiters.remove(waiter_no).map(|waiter| waiter.demand.arrived);
                assert_eq!(left, tree.remove(&waiter_no).map(|waiter| waiter.demand.arrived));
            }
            assert_eq!(waiters.len(), tree.len());
            assert_eq!(waiters.first().map(|first| first.0), tree.keys().next().copied());
            assert_eq!(waiters.get(waiter_no).is_some(), tree.contains_key(&waiter_no));
            assert!(waiters.slots.len() <= 2 * waiters.len() + SLACK);
            if round % 100 == 0 {
                assert!(waiters.iter().map(|(waiter_no, _)| waiter_no).eq(tree.keys().copied()));
            }
        }
        for waiter_no in 0..800 {
            waiters.remove(waiter_no);
        }
        assert!(waiters.is_empty() && waiters.slots.is_empty());
        assert!(waiters.slots.capacity() <= 2 * SLACK, "an empty queue keeps no memory");
    }

    #[test]
    fn waiter_that_comes_back_is_where_it_was() {
        let mut waiters = Waiters::default();
        for waiter_no in [1, 2, 3] {
            waiters.get_or_insert_with(waiter_no, || waiter(waiter_no));
        }
        assert!(waiters.remove(2).is_some() && waiters.remove(2).is_none());
        assert!(waiters.get(2).is_none());
        waiters.get_or_insert_with(2, || waiter(2));
        let numbers: Vec<_> = waiters.iter_mut().map(|(waiter_no, _)| waiter_no).collect();
        assert_eq!(numbers, [1, 2, 3]);
    }
}
