//! Jobs for the worker, as data.

use super::hold::Hold;
use super::schedule::Wakes;
use crate::clock::Instant;
use crate::store::{Acquired, HolderId, Name, Released, StoreFuture, Target};
use std::sync::Arc;
use std::time::Duration;

/// A job for the worker, as data. The public `Job` of `locks/once.rs` is another thing.
pub(crate) enum Job {
    /// Release a hold.
    Release(Arc<Hold>),
    /// Wake the calls that wait for names, and the observers, after changes that the watchdog has made.
    Wake(Wakes),
    /// Record the count of the hold that has this holder id.
    Record { name: Name, holder: HolderId },
    /// Await the release of a hold, and repeat it if need be.
    FinishRelease { hold: Arc<Hold>, verdict: StoreFuture<Released> },
    /// Await a change of the mode that no caller waits for.
    FinishChange { hold: Arc<Hold>, sent: Instant, verdict: StoreFuture<Acquired> },
    /// Await an outermost acquire that no caller waits for. Permits go to a call that waits for them; any other grant is released.
    FinishAcquire { sweep: Sweep, verdict: StoreFuture<Acquired> },
    /// Release a holder id that may have been granted, or may still be.
    Sweep(Sweep),
    /// Give up the arrival that a request of this holder id may have recorded in the line, or record that of the waiter that
    /// arrived at `next` in its stead.
    GiveUpArrival { target: Target, holder: HolderId, next: Option<Instant> },
    /// Ask the manager that has this name to give up a hold that rests.
    AskToYield(Name),
    /// Delete the description of a hold that was released.
    DeleteDescription { target: Target, holder: HolderId },
}

/// The possible grants of one holder id that no hold stands for.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    pub(in crate::engine) target: Target,
    pub(in crate::engine) holder: HolderId,
    /// The number of requests that may have been granted, or may still be.
    pub(in crate::engine) unknown: u32,
    /// The time before which no release is sent.
    pub(in crate::engine) from: Option<Instant>,
    /// The time until which the last grant may keep the name.
    pub(in crate::engine) until: Option<Instant>,
    /// True if a request may have recorded an arrival in the line.
    pub(in crate::engine) arrival_recorded: bool,
    /// The time to live of the requests beyond T.
    pub(in crate::engine) delay: Duration,
}

impl Sweep {
    pub(crate) fn new(target: Target, holder: HolderId) -> Self {
        Self {
            target,
            holder,
            unknown: 0,
            from: None,
            until: None,
            arrival_recorded: false,
            delay: Duration::ZERO,
        }
    }

    /// Returns a sweep for a hold that is over and whose grant was requested more than once.
    pub(crate) fn late(target: Target, holder: HolderId, from: Instant, until: Instant) -> Self {
        // One release cannot know which of several requests it undid.
        Self { unknown: 2, from: Some(from), until: Some(until), ..Self::new(target, holder) }
    }

    /// Adds a request that may have been granted and may keep the name until `until`.
    pub(in crate::engine) fn unsure(&mut self, until: Instant) {
        self.unknown += 1;
        self.until = self.until.max(Some(until));
    }
}
