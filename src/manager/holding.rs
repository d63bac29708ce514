//! What a manager holds, for an operator.

use crate::engine::{Core, Hold};
use crate::locks::lease::LeaseState;
use crate::store::{HolderId, Mode};
use std::sync::Arc;
use std::time::Duration;

/// A hold of this manager: see [`LeaseManager::holdings`](crate::LeaseManager::holdings).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// The name.
    pub name: String,
    /// The mode.
    pub mode: Mode,
    /// Held, at risk, or lost with a lease that was not dropped yet.
    pub state: LeaseState,
    /// The time for which the holder may rely on it; zero when lost.
    pub remaining: Duration,
    /// The time since the grant, the hand-off, or the change of the mode.
    pub age: Duration,
    /// The id of the holder, as [`Lease::holder_id`](crate::Lease::holder_id) returns it.
    pub holder: HolderId,
    /// The fencing token.
    pub fence: Option<u64>,
    /// The number of leases that share the hold.
    pub hold_count: u32,
    /// The number of calls of this manager that wait for the name.
    pub waiters: usize,
    /// The class of the name.
    pub class: &'static str,
    /// The label of the handle.
    pub label: Option<String>,
}

impl Holding {
    /// Returns the entry of a hold; `None` if no lease uses it.
    pub(super) fn of(core: &Arc<Core>, hold: &Arc<Hold>, waiters: usize) -> Option<Self> {
        let state = LeaseState::of(hold.in_use(core)?);
        Some(Self {
            name: hold.name.to_string(),
            mode: hold.mode,
            state,
            remaining: hold.remaining(core),
            age: hold.held(core.now()),
            holder: hold.holder,
            fence: hold.fence,
            hold_count: hold.count(),
            waiters,
            class: hold.options.class(),
            label: hold.options.label().map(|label| label.to_string()),
        })
    }
}
