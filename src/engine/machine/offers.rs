//! The offers that waiters find at their next pulse.

use super::waiters::Waiter;
use std::collections::VecDeque;

/// An offer to a waiter. `H` is a hold.
pub(in crate::engine) enum Offer<H> {
    /// The turn of this number.
    Turn(u64),
    /// A read hold that it may join.
    Join(H, Waiter),
    /// A hold that is handed off to a waiter that was woken for another reason just before.
    Hold(H),
}

/// The offers of a name, in the order of the numbers of their waiters. There is mostly one, which a sorted queue finds, adds
/// and removes for less than half of what a tree takes. They stand beside the waiters: the end of each turn looks through
/// all offers, and there may be thousands of waiters.
pub(in crate::engine) struct Offers<H>(VecDeque<(u64, Offer<H>)>);

impl<H> Default for Offers<H> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<H> Offers<H> {
    /// Returns the index of the offer to this number, or the one at which it would be.
    fn find(&self, waiter_no: u64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&waiter_no, |(waiter_no, _)| *waiter_no)
    }

    pub(super) fn contains(&self, waiter_no: u64) -> bool {
        self.find(waiter_no).is_ok()
    }

    /// Adds an offer. Returns the one that it replaces.
    pub(super) fn insert(&mut self, waiter_no: u64, offer: Offer<H>) -> Option<Offer<H>> {
        match self.find(waiter_no) {
            Ok(index) => self.0.get_mut(index).map(|(_, before)| std::mem::replace(before, offer)),
            Err(index) => {
                self.0.insert(index, (waiter_no, offer));
                None
            }
        }
    }

    /// Removes the offer to this number.
    pub(super) fn take(&mut self, waiter_no: u64) -> Option<Offer<H>> {
        let index = self.find(waiter_no).ok()?;
        self.0.remove(index).map(|(_, offer)| offer)
    }

    /// Returns the numbers whose offer matches.
    pub(super) fn numbers(&self, mut matches: impl FnMut(&Offer<H>) -> bool) -> Vec<u64> {
        let offers = self.0.iter().filter(|(_, offer)| matches(offer));
        offers.map(|(waiter_no, _)| *waiter_no).collect()
    }

    /// Removes and returns the offers that match.
    pub(super) fn remove_all(
        &mut self,
        matches: impl FnMut(&Offer<H>) -> bool,
    ) -> Vec<(u64, Offer<H>)> {
        let numbers = self.numbers(matches);
        let taken =
            numbers.into_iter().filter_map(|waiter_no| Some((waiter_no, self.take(waiter_no)?)));
        taken.collect()
    }

    /// Removes the turns that are offered to waiters behind this one. Returns their numbers.
    pub(super) fn remove_turns_behind(&mut self, waiter_no: u64) -> Vec<u64> {
        let mut turns = Vec::new();
        self.0.retain(|(other, offer)| match offer {
            Offer::Turn(number) if *other > waiter_no => {
                turns.push(*number);
                false
            }
            _ => true,
        });
        turns
    }

    /// Returns the last number whose offer matches.
    pub(super) fn last(&self, mut matches: impl FnMut(&Offer<H>) -> bool) -> Option<u64> {
        self.0.iter().rev().find(|(_, offer)| matches(offer)).map(|(waiter_no, _)| *waiter_no)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(offer: Option<Offer<()>>) -> Option<u64> {
        match offer? {
            Offer::Turn(number) => Some(number),
            Offer::Join(..) | Offer::Hold(_) => None,
        }
    }

    #[test]
    fn offers_are_in_the_order_of_numbers() {
        let mut offers = Offers::default();
        for waiter_no in [5, 2, 9, 7] {
            assert_eq!(number(offers.insert(waiter_no, Offer::Turn(10 * waiter_no))), None);
        }
        assert_eq!(number(offers.insert(7, Offer::Turn(71))), Some(70));
        let is_big = |offer: &Offer<()>| matches!(offer, Offer::Turn(number) if *number > 40);
        assert_eq!(offers.numbers(is_big), [5, 7, 9]);
        assert_eq!(offers.last(|offer| !is_big(offer)), Some(2));
        assert!(offers.contains(5) && !offers.contains(6));
        assert_eq!((number(offers.take(5)), number(offers.take(5))), (Some(50), None));
        let taken = offers.remove_all(is_big);
        assert_eq!(taken.into_iter().map(|(waiter_no, _)| waiter_no).collect::<Vec<_>>(), [7, 9]);
        assert_eq!(offers.numbers(|_| true), [2]);
    }
}
