//! Where a hold is in its life, as others see it, and what may be in flight then.

use super::renewal::RenewalAttempt;
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::store::Absence;

/// The phase of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Held,
    AtRisk,
    Lost(Loss),
    /// The count is zero: the release is in flight, or will be retried.
    Releasing,
    /// The store has released it, or it is left to expire.
    Released,
}

/// The work for a hold that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DueWork {
    Nothing,
    Renew(RenewalAttempt),
    Release,
    /// Release it: its waiter did not accept it in time.
    Recalled,
}

/// The part of the state that tasks wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Visible {
    pub(super) phase: Phase,
    pub(super) confirmed: Instant,
    pub(super) busy: bool,
    pub(super) over: bool,
}

/// The request in flight that changes the hold in the store. There is at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InFlight {
    None,
    /// A change of the mode, which closes the hold itself if no lease is left at its end.
    ModeChange,
    Release,
}

/// The verdict on a change of the mode that made no hold of the new mode.
#[derive(Clone, Debug)]
pub(crate) enum ChangeVerdict {
    /// The store has changed the mode by a request sent then, and no caller waits for it any more.
    Changed {
        sent: Instant,
    },
    NotYours(Absence),
    Failed(Error),
}
