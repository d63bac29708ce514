//! The slot of a live hold among the occupants of its name.

use std::num::NonZeroU64;

/// The slot of a live hold among the occupants of its name: the number that its
/// [`Turn`](crate::engine::acquire::turn::Turn) had before the grant.
///
/// It is neither `Clone` nor `Copy`: it goes from the turn to the hold, and from hold to hold.
/// [`NameState::leave`](super::name::NameState::leave) ends it, which admits the waiters that it blocked.
#[derive(Debug)]
pub(in crate::engine) struct HolderSlot(NonZeroU64);

impl HolderSlot {
    /// Creates the slot of a number that the queue has drawn; the first one is 1. `Option<HolderSlot>` is no larger than
    /// the number, which counts in each hold.
    pub(in crate::engine) fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    pub(in crate::engine) fn number(&self) -> u64 {
        self.0.get()
    }
}
