//! Ends all leases of a manager.

use super::revoke::lose_all;
use crate::engine::hold::handoff;
use crate::engine::shared::core::Core;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::lifecycle::Stage;
use crate::error::{Error, Loss};
use crate::util::trace;
use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use tokio::task::coop::consume_budget;

/// The outcome of a close.
pub(crate) struct CloseOutcome {
    pub(crate) released: usize,
    /// The names that could not be released, with their errors.
    pub(crate) failed: Vec<(String, Error)>,
}

/// Fires all tokens, waits for the releases, and ends the engine.
pub(crate) async fn close(core: &Arc<Core>) -> CloseOutcome {
    core.ensure_running();
    core.set_closed();
    handoff::end_rests(core);
    // Before the first await: a close that is dropped there has fired all tokens.
    let holds = lose_everything(core);
    consume_budget().await;
    let until = core.now() + core.timing.grace + core.timing.attempt * 2;
    let until = core.life.close_by(until);
    let mut closed = CloseOutcome { released: 0, failed: Vec::new() };
    for hold in holds {
        let over = pin!(hold.until_over());
        let in_time = tokio::select! {
            biased;
            () = core.attend(over) => true,
            () = core.clock().sleep_until(until) => hold.is_over(),
        };
        let name = || hold.name.to_string();
        match hold.release_error() {
            Some(error) => closed.failed.push((name(), error)),
            None if in_time => closed.released += 1,
            None => closed.failed.push((name(), Error::silent())),
        }
    }
    tokio::select! {
        biased;
        () = core.life.until_no_call() => {}
        () = core.clock().sleep_until(until) => {}
    }
    // What takes the actions ends then. After a panic nothing takes them.
    if !core.life.has_panicked() {
        tokio::select! {
            biased;
            () = core.overruns.settled(core.clock()) => {}
            () = core.clock().sleep_until(until) => {}
        }
    }
    core.life.enter(Stage::Ending);
    let ended = pin!(async {
        core.life.until(Stage::Ended).await;
        trace::written().await;
        core.events.until_seen().await;
    });
    tokio::select! {
        biased;
        () = core.attend(ended) => {}
        () = core.clock().sleep_until(core.now() + core.timing.attempt * 2) => {}
    }
    closed
}

/// Loses all holds. Returns the holds whose end `close` waits for.
fn lose_everything(core: &Arc<Core>) -> Vec<Arc<Hold>> {
    let mut names = HashSet::new();
    let mut all = Vec::new();
    for hold in core.queue.holds() {
        if !names.insert(hold.name.clone()) {
            continue;
        }
        // A hold that was handed off meanwhile has ended; only the lost one is to be released.
        let lost = lose_all(core, &hold.name, Loss::Closed);
        let before = all.len();
        all.extend(lost.into_iter().filter(|hold| hold.loss().is_some()));
        if all.len() == before {
            all.push(hold);
        }
    }
    all
}
