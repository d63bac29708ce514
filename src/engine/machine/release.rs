//! The release of a hold: what is owed to the store, and how it ended.

use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Loss, Result};
use crate::store::Absence;
use crate::util::reached::Rare;
use std::time::Duration;

/// The end of a release.
pub(crate) enum Ended {
    Confirmed,
    /// The release has found that the hold was lost before.
    Lost(Loss),
    /// It is not confirmed, and the key is left to expire.
    Failed(Error),
}

/// What is to be done for a hold that may have to be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send the release; its verdict must follow.
    Release,
    /// A request of the hold is in flight; ask again after a change.
    Busy,
    Nothing,
}

/// The work of the engine for a release that is owed to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Cleanup {
    #[default]
    Idle,
    /// The watchdog has submitted it.
    Queued,
    /// The engine releases it, one task at a time, so that the gaps between attempts hold. The watchdog may
    /// have submitted another one meanwhile.
    Running { queued: bool },
}

/// The release of a hold.
#[derive(Debug, Default)]
pub(super) struct Release {
    /// The latest time at which it is sent, if the key is still ours after the loss.
    pub(super) owed: Option<Instant>,
    /// The time until which earlier requests of the grant with an unknown fate may run.
    pub(super) unsure_until: Option<Instant>,
    cleanup: Cleanup,
    /// True if an attempt that failed may have run.
    may_have_run: bool,
    /// True if the store has answered it.
    answered: bool,
    /// Set when it found that the hold was already lost.
    found_lost: Option<Loss>,
    /// The error of the last attempt that failed.
    error: Option<Error>,
}

impl Release {
    /// Returns that of a new hold.
    pub(super) fn new(unsure_until: Option<Instant>) -> Self {
        Self { unsure_until, ..Self::default() }
    }

    /// Returns whether the watchdog has submitted the release that is owed.
    pub(super) fn is_queued(&self) -> bool {
        matches!(self.cleanup, Cleanup::Queued | Cleanup::Running { queued: true })
    }

    fn set_queued(&mut self, queued: bool) {
        self.cleanup = match self.cleanup {
            Cleanup::Running { .. } => Cleanup::Running { queued },
            _ if queued => Cleanup::Queued,
            _ => Cleanup::Idle,
        };
    }

    /// Submits it, if it is due and not submitted yet. Returns whether it did.
    pub(super) fn queue_if_due(&mut self, live: u32, now: Instant) -> bool {
        let queues = self.is_due(live, now) && !self.is_queued();
        if queues {
            self.set_queued(true);
        }
        queues
    }

    /// Begins a release by the engine. Returns whether none is running yet.
    pub(super) fn begin_background_release(&mut self) -> bool {
        let running = Cleanup::Running { queued: self.is_queued() };
        !matches!(std::mem::replace(&mut self.cleanup, running), Cleanup::Running { .. })
    }

    /// Ends a release by the engine.
    pub(super) fn end_background_release(&mut self) {
        self.cleanup = if self.is_queued() { Cleanup::Queued } else { Cleanup::Idle };
    }

    /// Owes a release by `until`, in place of any that was submitted.
    pub(super) fn owe(&mut self, until: Instant) {
        self.owed = Some(until);
        self.set_queued(false);
    }

    /// Returns whether it is owed, and is to be sent now: no lease is left, or its time has come.
    pub(super) fn is_due(&self, live: u32, now: Instant) -> bool {
        self.owed.is_some_and(|at| live == 0 || at <= now)
    }

    /// Returns the time at which it is given up and the key is left to expire, whatever is in flight: that may be in a future
    /// that is not polled.
    pub(super) fn abandoned_at(&self, deadline: Instant, attempt: Duration) -> Instant {
        self.owed.map_or(deadline, |owed| deadline.max(owed + attempt * 3))
    }

    /// Records that the key is left to expire although a release is owed.
    pub(super) fn leave_to_expire(&mut self) {
        Rare::LeftToExpire.reached();
        self.owed = None;
        let message =
            "the lease was lost while it was in use, so its name stays closed for its lock delay";
        self.error = Some(Error::new(ErrorKind::Unavailable, message));
    }

    /// Reads the verdict on an attempt. If an earlier one may have run, a key of another kind was made after it. Otherwise an
    /// attempt that met one has released nothing.
    pub(super) fn read(&mut self, verdict: Result<Option<Absence>>) -> Result<Option<Absence>> {
        verdict.or_else(|error| match error.kind() {
            ErrorKind::WrongType if self.may_have_run => Ok(Some(Absence::Taken)),
            kind => {
                let is_refused = kind == ErrorKind::WrongType;
                self.may_have_run |= error.fate() != Fate::NotExecuted && !is_refused;
                self.error = Some(error.clone());
                Err(error)
            }
        })
    }

    /// Applies an answer of the store. With `is_kept` the store surely keeps the key until now, if no request has released it.
    /// With `is_done` the release was to leave a mark. Returns the result for the caller that waits for it.
    pub(super) fn answered(
        &mut self,
        absence: Option<Absence>,
        is_kept: bool,
        is_done: bool,
    ) -> Result<()> {
        self.answered = true;
        self.error = None;
        let Some(absence) = absence else { return Ok(()) };
        if self.may_have_run && is_done {
            let message = "the store did not confirm that the name is closed";
            let error = Error::new(ErrorKind::Unavailable, message);
            self.answered = false;
            self.error = Some(error.clone());
            return Err(error);
        }
        if self.may_have_run && is_kept {
            // An earlier request whose answer was lost has released it.
            Rare::ReleaseHadRun.reached();
            return Ok(());
        }
        Rare::ReleaseFoundLoss.reached();
        self.found_lost = Some(absence.into());
        Err(Error::lost(absence.into()))
    }

    pub(super) fn error(&self) -> Option<Error> {
        self.error.clone()
    }

    pub(super) fn found_lost(&self) -> Option<Loss> {
        self.found_lost
    }

    /// Returns how it ended, once the hold is released.
    pub(super) fn end(&self) -> Ended {
        match self.found_lost {
            Some(loss) => Ended::Lost(loss),
            None if self.answered => Ended::Confirmed,
            None => Ended::Failed(self.error().unwrap_or_else(Error::silent)),
        }
    }
}
