//! Handles of one manager that read the same name share one hold.
//!
//! # Invariants
//!
//! 1. **As good as a grant.** A reader joins a hold only if it may rely on it for as long as on a new grant
//!    ([`State::join`](crate::engine::machine::hold::State::join)), with at most T/10 less of `max_hold`, or a tenth of
//!    it if that is shorter, and never one that is being released or changes its mode.
//! 2. **No reader overtakes.** It joins at once only if no waiter of this process is in the queue. One that waits joins when no
//!    writer is before it.
//! 3. **The store is asked each T/10.** A hold is joined no longer than that after its grant. Later readers ask for a hold
//!    of their own, which younger ones join, and an old hold is never waited for. So a writer elsewhere is served, and a
//!    process has at most one hold for each T/10 of its longest read, or for each tenth of a shorter `max_hold`.
//! 4. **Known to the store once.** Its count there is always 1, so neither a join nor a re-entry sends anything. The last
//!    lease that ends, of whichever handle, has the hold released.

use crate::engine::machine::count::Share;
use crate::engine::machine::hold::Reentry;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::report::CallReport;
use crate::observe::{How, Recorded};
use crate::store::Name;
use crate::util::reached::Rare;
use std::sync::Arc;

/// Joins the hold that readers of this name share now. Returns it with the new share.
pub(in crate::engine) fn join_youngest(
    core: &Arc<Core>,
    report: &CallReport<'_>,
    name: &Name,
) -> Option<(Arc<Hold>, Share)> {
    let hold = core.queue.joinable(name)?;
    let share = join(core, &hold, report)?;
    Some((hold, share))
}

/// Adds a lease of a handle that has none of this hold. Returns its share, or `None` if the hold cannot be joined.
pub(in crate::engine) fn join(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    report: &CallReport<'_>,
) -> Option<Share> {
    let now = core.now();
    let mut inner = hold.lock();
    // Nothing that a task waits for changes, nor the time at which the watchdog looks, so it needs no `update`.
    // After a downgrade `max_hold` counts from the grant of the writer, which may be long ago.
    let has_its_time = match (inner.state.max_until(), core.settings.max_hold) {
        (Some(end), Some(max)) => now + max <= end + core.timing.longest_chain.min(max / 10),
        _ => true,
    };
    let joins = has_its_time && inner.state.join(&core.timing, now);
    let share = joins.then(|| inner.add_share());
    let event = match share {
        Some(_) => hold.happened(core, now, report.granted(hold.fence, How::Joined, now)),
        None => Recorded::default(),
    };
    drop(inner);
    event.finish();
    if share.is_none() {
        Rare::JoinRefused.reached();
        core.queue.disband(hold);
    }
    share
}

/// Adds a lease to a share that has one. Returns why not if it cannot.
pub(in crate::engine) fn join_again(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    share: Share,
) -> Result<(), Reentry> {
    // Applies the clock.
    hold.phase(core);
    let mut inner = hold.lock();
    if inner.count_of(share) == 0 {
        return Err(Reentry::Over);
    }
    match inner.state.join_again(core.now()) {
        None => {
            if let Some(shares) = &mut inner.shares {
                shares.grow(share);
            }
            Ok(())
        }
        Some(refused) => Err(refused),
    }
}
