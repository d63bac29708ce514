//! Releases what a node may have and no hold relies on, again and again.

use super::Node;
use super::queue::{Lane, Sweeping};
use crate::store::Name;
use crate::util::reached::Rare;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The number of queues that are swept at once while the node answers.
const AT_ONCE: usize = 100;

/// Sweeps until nothing is left, unless another task does already. One task sweeps for all requests of a node.
///
/// Every request ends with this: what it leaves is swept, whichever runtime has ended since.
pub(super) async fn sweep(node: &Arc<Node>, limit: Duration) {
    if let Some(sweeping) = node.queues.begin_sweep() {
        // Boxed, so that the other tasks stay small.
        Box::pin(sweep_to_the_end(Arc::clone(node), sweeping, limit)).await;
    }
}

/// Sweeps until nothing is left.
pub(in crate::store::quorum) async fn sweep_to_the_end(
    node: Arc<Node>,
    mut sweeping: Sweeping,
    limit: Duration,
) {
    let mut round = 0;
    while !sweeping.is_over() {
        tokio::select! {
            () = sleep(limit.max(Duration::from_millis(1))) => {}
            () = node.closing.cancelled() => {}
        }
        let mut owed = sweeping.owed(limit);
        // Each time another queue comes first: there may be one that this node never answers for.
        let first = round % owed.len().max(1);
        owed.rotate_left(first);
        round += 1;
        sweep_once(&node, owed, limit).await;
        if node.closing.is_cancelled() {
            return;
        }
    }
}

/// Releases the holder ids of these queues, until the node does not answer.
async fn sweep_once(node: &Arc<Node>, mut owed: Vec<(Name, Lane)>, limit: Duration) {
    Rare::QuorumSwept.reached_if(|| !owed.is_empty());
    // A silent node is asked once.
    let mut count = 1;
    while !owed.is_empty() {
        let mut releases = JoinSet::new();
        for (name, lane) in owed.split_off(owed.len().saturating_sub(count)) {
            let node = Arc::clone(node);
            releases
                .spawn(async move { node.queues.head_of(&name, lane).await.flush(limit).await });
        }
        count = AT_ONCE;
        let mut answered = false;
        while let Some(flushed) = releases.join_next().await {
            answered |= flushed.unwrap_or(false);
        }
        if !answered {
            return;
        }
    }
}
