//! The place of a live hold in the queue.

use crate::store::Name;
use std::fmt;
use std::sync::Arc;

/// The owner of seats: the queue.
pub(super) trait Seats: Send + Sync {
    /// Ends the turn or the seat of this number.
    fn leave(&self, name: &Name, number: u64);
}

/// The place of a live hold among the holds of its name. Dropping it removes the hold from the
/// queue and admits the waiters that it blocked.
///
/// A [`Turn`](super::turn::Turn) has one before the grant.
pub(super) struct Seat {
    seats: Arc<dyn Seats>,
    pub(super) name: Name,
    pub(super) number: u64,
}

impl Seat {
    pub(super) fn new(seats: Arc<dyn Seats>, name: Name, number: u64) -> Self {
        Self { seats, name, number }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.leave(&self.name, self.number);
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("name", &self.name).field("number", &self.number).finish()
    }
}
