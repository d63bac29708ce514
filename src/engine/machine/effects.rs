//! What goes into a transition of a name, and what follows from it. The caller performs the [`Effects`] after it has
//! released its lock: it drops what is gone, and then wakes.

use super::name::LastAsk;
use super::pulse::Pulse;
use crate::clock::Instant;
use std::time::Duration;

/// The numbers of a queue: of its waiters and of its occupants. None is drawn twice.
#[derive(Debug, Default)]
pub(in crate::engine) struct Numbers(u64);

impl Numbers {
    /// Draws a number. The first one is 1.
    pub(in crate::engine) fn draw(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    /// Returns the last number drawn.
    pub(in crate::engine) fn last(&self) -> u64 {
        self.0
    }
}

/// A list that is mostly empty or has one item, for which it allocates nothing.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) struct Few<T> {
    first: Option<T>,
    more: Vec<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { first: None, more: Vec::new() }
    }
}

impl<T> Few<T> {
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(in crate::engine) fn push(&mut self, item: T) {
        if self.first.is_none() {
            self.first = Some(item);
        } else {
            self.more.push(item);
        }
    }

    /// Calls `f` with each item, in order. An iterator would take ten times as many instructions for an empty list.
    pub(in crate::engine) fn each(self, mut f: impl FnMut(T)) {
        if let Some(first) = self.first {
            f(first);
            self.more.into_iter().for_each(f);
        }
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}

/// A hold that is handed off to the waiter of this number.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) struct HandOff<H> {
    pub(in crate::engine) to: u64,
    pub(in crate::engine) hold: H,
}

/// What follows from a transition. `H` is a hold.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) struct Effects<H> {
    /// Holds that the name had. They are only here to be dropped.
    pub(in crate::engine) dropped: Few<H>,
    /// Holds that were offered to a waiter which will not accept them: each goes to the next waiter, or is released.
    pub(in crate::engine) returned: Few<H>,
    /// The wake-up of a waiter that brings it a hold.
    pub(in crate::engine) handed_off: Option<HandOff<H>>,
    /// The numbers of the waiters to wake: they have an offer, or are out of the queue until their next pulse. The number of a
    /// turn stands for the call that has it: the turn is gone.
    pub(in crate::engine) woken: Few<u64>,
    /// The numbers of turns whose last request no call goes on from.
    pub(in crate::engine) forgotten: Few<u64>,
}

impl<H> Effects<H> {
    /// Forgets a last request.
    pub(in crate::engine) fn forget(&mut self, last: Option<LastAsk>) {
        self.forgotten.extend(last.map(|last| last.by));
    }
}

impl<H> Default for Effects<H> {
    fn default() -> Self {
        Self {
            dropped: Few::default(),
            returned: Few::default(),
            handed_off: None,
            woken: Few::default(),
            forgotten: Few::default(),
        }
    }
}

/// The times by which the queue acts.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Limits {
    /// The time in which a waiter must take up its offer.
    pub(in crate::engine) attempt: Duration,
    /// A waiter that has given no pulse for this long is passed over.
    pub(in crate::engine) patience: Duration,
    /// The time for which readers join a read hold.
    pub(in crate::engine) joins: Duration,
}

impl Limits {
    pub(in crate::engine) fn at(&self, now: Instant) -> Times {
        let pulse = Pulse::until(now + self.patience);
        Times { now, pulse, offer: Pulse::until(now + self.attempt) }
    }
}

/// The time of a transition.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Times {
    pub(in crate::engine) now: Instant,
    /// The pulse of a waiter that is polled now.
    pub(in crate::engine) pulse: Pulse,
    /// The pulse of a turn that is offered now.
    pub(in crate::engine) offer: Pulse,
}

/// What a transition works with.
pub(in crate::engine) struct Step<'a, H> {
    pub(in crate::engine) times: Times,
    pub(in crate::engine) numbers: &'a mut Numbers,
    pub(in crate::engine) effects: &'a mut Effects<H>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_keeps_the_order_and_allocates_from_the_second_item_on() {
        let mut few = Few::default();
        assert!(few.is_empty());
        few.push(1);
        assert_eq!((few.is_empty(), few.more.capacity()), (false, 0));
        few.extend([2, 3]);
        let mut all = Vec::new();
        few.each(|item| all.push(item));
        assert_eq!(all, [1, 2, 3]);
    }
}
