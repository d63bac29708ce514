//! Renews a hold because a call needs to know that it is there, and waits for that.

use crate::engine::machine::hold::{Phase, State};
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::error::{Error, Result};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;

/// Renews the hold at once. Waits until the store has confirmed a renewal that was sent after
/// this call began, or the hold is over.
pub(crate) async fn renew_now(core: &Arc<Core>, hold: &Arc<Hold>) {
    let start = core.now();
    hold.until(|_| {
        let sure = hold.confirmed() >= start || hold.remaining(core).is_zero();
        if !sure {
            hold.update(core, State::renew_at);
        }
        sure.then_some(())
    })
    .await;
}

/// Waits until at least `min` remains. Fails if the hold is lost before that, or `min` can
/// never remain.
pub(crate) async fn until_remaining(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    min: Duration,
) -> Result<()> {
    if min > core.timing.ttl / 2 {
        return Err(Error::invalid(format!(
            "{min:?} cannot be ensured with a time to live of {:?}; ask for at most half of it",
            core.timing.ttl
        )));
    }
    core.ensure_running();
    consume_budget().await;
    if hold.remaining(core) < min {
        // With a long grace none may be due yet. One that has failed is retried in its own time.
        hold.update(core, |state, now| {
            if state.phase() == Phase::Held {
                state.renew_at(now);
            }
        });
    }
    loop {
        hold.check(core)?;
        if hold.remaining(core) >= min {
            return Ok(());
        }
        if hold.ends_before(core.now() + min) {
            return Err(Error::invalid(format!(
                "max_hold ends this lease in less than {min:?}; ask for less, or release it and lock again"
            )));
        }
        // A renewal is in flight or due. The next check sees a change before this line; a later one wakes this task.
        let changed = hold.changed();
        if hold.check(core).is_ok() && hold.remaining(core) < min {
            core.attend(pin!(changed)).await;
        }
    }
}
