//! What goes into a transition of a name, and what follows from it. The caller performs the [`Effects`] after it has
//! released its lock: it drops what is gone, and then wakes.

use super::contention::LastAsk;
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

/// A list that mostly has no item, one, or the two of a hand-off, for which it allocates nothing.
#[derive(Debug)]
pub(in crate::engine) struct Few<T> {
    first: Option<T>,
    second: Option<T>,
    more: Vec<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { first: None, second: None, more: Vec::new() }
    }
}

impl<T> Few<T> {
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.second).chain(&self.more)
    }

    pub(in crate::engine) fn push(&mut self, item: T) {
        if self.first.is_none() {
            self.first = Some(item);
        } else if self.second.is_none() {
            self.second = Some(item);
        } else {
            self.more.push(item);
        }
    }

    /// Calls `f` with each item, in order. An iterator would take ten times as many instructions for an empty list.
    #[inline]
    pub(in crate::engine) fn each(self, mut f: impl FnMut(T)) {
        if let Some(first) = self.first {
            f(first);
            if let Some(second) = self.second {
                f(second);
                self.more.into_iter().for_each(f);
            }
        }
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}

/// One thing that follows from a transition. `H` is a hold.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) enum Effect<H> {
    /// A hold that the name had. It is only here to be dropped.
    Drop(H),
    /// A hold that was offered to a waiter which will not accept it: it goes to the next waiter, or is released.
    Return(H),
    /// The wake-up of the waiter of this number that brings it a hold.
    HandOff { to: u64, hold: H },
    /// The number of a waiter to wake: it has an offer, or is out of the queue until its next pulse. The number of a turn stands
    /// for the call that has it: the turn is gone.
    Wake(u64),
    /// The number of a turn whose last request no call goes on from.
    Forget(u64),
}

/// What follows from a transition, in order.
#[derive(Debug)]
pub(in crate::engine) struct Effects<H>(Few<Effect<H>>);

impl<H> Effects<H> {
    pub(super) fn push(&mut self, effect: Effect<H>) {
        self.0.push(effect);
    }

    /// Drops a hold, if there is one.
    pub(super) fn drop(&mut self, hold: Option<H>) {
        self.0.extend(hold.map(Effect::Drop));
    }

    /// Forgets a last request, if there is one.
    pub(super) fn forget(&mut self, last: Option<LastAsk>) {
        self.0.extend(last.map(|last| Effect::Forget(last.by)));
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a waiter is woken.
    pub(super) fn wakes(&self) -> bool {
        self.0.iter().any(|effect| matches!(effect, Effect::Wake(_)))
    }

    /// Calls `f` with each effect.
    pub(in crate::engine) fn each(self, f: impl FnMut(Effect<H>)) {
        self.0.each(f);
    }
}

impl<H> Default for Effects<H> {
    fn default() -> Self {
        Self(Few::default())
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
    fn few_keeps_the_order_and_allocates_from_the_third_item_on() {
        let mut few = Few::default();
        assert_eq!(few.iter().count(), 0);
        few.extend([1, 2]);
        assert_eq!((few.iter().count(), few.more.capacity()), (2, 0));
        few.push(3);
        let mut all = Vec::new();
        few.each(|item| all.push(item));
        assert_eq!(all, [1, 2, 3]);
    }
}
