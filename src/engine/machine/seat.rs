//! The place of a live hold in the queue.

use std::num::NonZeroU64;

/// The place of a live hold among the holds of its name: the number that its
/// [`Turn`](crate::engine::acquire::turn::Turn) had before the grant.
///
/// It is neither `Clone` nor `Copy`: it passes from the turn to the hold, and from hold to hold.
/// `Queue::leave` ends it, which admits the waiters that it blocked.
#[derive(Debug)]
pub(in crate::engine) struct Seat(NonZeroU64);

impl Seat {
    /// Creates the seat of a number that the queue has drawn; the first one is 1. `Option<Seat>` is no larger than
    /// the number, which counts in each hold.
    pub(in crate::engine) fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    pub(in crate::engine) fn number(&self) -> u64 {
        self.0.get()
    }
}
