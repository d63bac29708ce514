//! The end of a hold, for those that look at it.

use super::hold::{Phase, State};
use crate::error::{Error, Loss};

/// The end of a release.
pub(crate) enum Ended {
    Confirmed,
    /// The release has found that the hold was lost before.
    Lost(Loss),
    /// It is not confirmed, and the key is left to expire.
    Failed(Error),
}

impl State {
    /// Returns whether it was handed off to a waiter that has not accepted it.
    pub(in crate::engine) fn is_offered(&self) -> bool {
        self.offered
    }

    pub(in crate::engine) fn release_error(&self) -> Option<Error> {
        self.release_error.clone()
    }

    /// Returns the loss, also one that only the release has found.
    pub(in crate::engine) fn loss(&self) -> Option<Loss> {
        match self.phase {
            Phase::Lost(loss) => Some(loss),
            _ => self.found_lost,
        }
    }

    /// Returns how the release ended, once the hold is released.
    pub(in crate::engine) fn end_of_release(&self) -> Ended {
        match self.found_lost {
            Some(loss) => Ended::Lost(loss),
            None if self.answered => Ended::Confirmed,
            None => Ended::Failed(self.release_error().unwrap_or_else(Error::silent)),
        }
    }
}
