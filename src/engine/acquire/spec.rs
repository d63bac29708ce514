//! What a call asks for, for how long, and what it gets.

use super::SHORT_PAUSE;
use super::set::SetCall;
use crate::engine::hold::handoff;
use crate::engine::machine::count::Share;
use crate::engine::machine::policy::CallSite;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::options::{NO_OPTIONS, Options};
use crate::engine::shared::report::StoreRefusal;
use crate::store::Mode;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// The time for which the caller waits for other holders.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    Once,
    For(Duration),
    Forever,
}

impl WaitLimit {
    /// Without time to wait, it is one attempt.
    pub(crate) fn simplified(self) -> Self {
        match self {
            Self::For(Duration::ZERO) => Self::Once,
            limit => limit,
        }
    }

    /// Returns whether it is one attempt.
    pub(super) fn is_once(self) -> bool {
        matches!(self, Self::Once)
    }

    /// Returns the longest time for which the call waits.
    pub(super) fn longest_wait(self) -> Duration {
        match self {
            Self::Once => Duration::ZERO,
            Self::For(limit) => limit,
            Self::Forever => Duration::MAX,
        }
    }

    /// Returns the longest time for which the call lets waiters of other processes go first.
    pub(super) fn longest_pause(self) -> Duration {
        match self {
            Self::Once => SHORT_PAUSE,
            // The rest of the time must suffice for a request.
            Self::For(limit) => (limit / 2).max(SHORT_PAUSE),
            Self::Forever => Duration::MAX,
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireSpec<'a> {
    pub(super) mode: Mode,
    /// The options of the handle.
    pub(super) options: &'a Options,
    pub(super) caller: CallSite,
    /// The call for several names that it is a part of.
    pub(super) set: Option<&'a SetCall>,
    /// Where a call that asks once leaves what the store says to refuse it.
    pub(super) refusal: Option<&'a StoreRefusal>,
}

impl<'a> AcquireSpec<'a> {
    /// Sets the options of the handle.
    pub(crate) fn with(self, options: &'a Options) -> Self {
        Self { options, ..self }
    }

    /// Sets where the user made the call.
    pub(crate) fn at(self, caller: &'static Location<'static>) -> Self {
        Self { caller: Some(caller), ..self }
    }

    /// Returns where the user made the call.
    pub(crate) fn caller(&self) -> CallSite {
        self.caller
    }

    /// Leaves what the store says to refuse a call that asks once.
    pub(crate) fn with_refusal(self, refusal: &'a StoreRefusal) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    /// Makes it a part of a call for several names.
    pub(crate) fn of_set(self, set: &'a SetCall) -> Self {
        Self { set: Some(set), ..self }
    }
}

impl From<Mode> for AcquireSpec<'_> {
    fn from(mode: Mode) -> Self {
        Self { mode, options: &NO_OPTIONS, caller: None, set: None, refusal: None }
    }
}

/// A hold that was acquired and has no lease yet. Dropping it releases it.
pub(crate) struct Claim<'a> {
    core: &'a Arc<Core>,
    pub(super) hold: Arc<Hold>,
    share: Share,
    taken: bool,
}

impl<'a> Claim<'a> {
    pub(super) fn new(core: &'a Arc<Core>, hold: Arc<Hold>, share: Share) -> Self {
        Self { core, hold, share, taken: false }
    }

    /// Creates the claim of a hold that no other handle shares.
    pub(in crate::engine) fn of(core: &'a Arc<Core>, hold: Arc<Hold>) -> Self {
        Self::new(core, hold, Share::FIRST)
    }

    /// Returns the hold, which this still claims.
    pub(in crate::engine) fn hold(&self) -> Arc<Hold> {
        Arc::clone(&self.hold)
    }

    /// Returns the share of its handle in the hold.
    pub(crate) fn share(&self) -> Share {
        self.share
    }

    /// Returns the hold. The caller must release it from now on.
    pub(crate) fn into_hold(mut self) -> Arc<Hold> {
        self.taken = true;
        Arc::clone(&self.hold)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.taken {
            handoff::leave_in_background(self.core, &self.hold, self.share);
        }
    }
}
