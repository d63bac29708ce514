//! Makes what a node has of a living hold what it should be, after a renewal.

use super::Node;
use super::convert::change;
use super::queue::bounded;
use crate::store::quorum::holds::Holds;
use crate::store::{Acquire, Acquired, Arrival, HolderId, Mode, Release, Target};
use crate::util::reached::Rare;
use crate::util::trace;
use std::sync::Arc;
use std::time::Duration;
use tracing::Level;

/// The waiting time of a hold that is there already: no arrival in an order of waiters comes before it.
const AGES: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A living hold whose state at a node may not be what it should be.
pub(super) struct Repair {
    pub(super) holds: Arc<Holds>,
    pub(super) target: Target,
    pub(super) outer: HolderId,
    pub(super) ttl: Duration,
    pub(super) limit: Duration,
}

/// Makes the key of a living hold again, where there is none.
pub(super) async fn heal(node: Arc<Node>, repair: Repair) {
    let Repair { holds, target, outer, ttl, limit } = repair;
    let mut head = node.queues.head(&target, outer).await;
    // A release that comes from here on waits behind this request.
    let Some(hold) = holds.living(outer) else { return };
    let holder = node.holder_id(hold.holder);
    let target = Target::new(target.name, hold.mode);
    let arrival = Some(Arrival::new(AGES, Duration::ZERO));
    let request = Acquire::new(target, holder, ttl, limit).with_arrival(arrival);
    hold.key_nodes.add(node.index);
    head.sending(&request, node.clock.now());
    let verdict = head.acquire(&request).await.0;
    head.answered(holder, &verdict);
    head.keep(holder);
    trace::later(Level::DEBUG, || {
        let node = node.index + 1;
        let verdict = verdict.clone();
        move || tracing::debug!(node, ?verdict, "made again")
    });
    if !matches!(verdict, Ok(Acquired::Granted { .. })) {
        return;
    }
    Rare::QuorumHealed.reached();
    if hold.mode == Mode::Write && head.find(holder).is_none() {
        holds.update(outer, |hold| {
            hold.node_modes.iter_mut().for_each(|node_modes| node_modes.made_writer(node.index));
        });
    }
    if hold.count > 1 {
        let request = Release::new(request.target, holder, hold.count, limit);
        let _ = bounded(limit, node.store.release(request)).await;
    }
}

/// Changes the mode of a living hold here to what the others have.
pub(super) async fn set_right(node: Arc<Node>, repair: Repair) {
    let Repair { holds, target, outer, ttl, limit } = repair;
    let mut head = node.queues.head(&target, outer).await;
    let Some(held) = holds.living(outer).filter(|held| held.strays(node.index)) else { return };
    let holder = node.holder_id(held.holder);
    if held.mode == Mode::Write && head.find(holder).is_some() {
        return;
    }
    let target = Target::new(target.name, held.mode);
    let request = Acquire::new(target, holder, ttl, limit).with_converts(true);
    Rare::QuorumSetRight.reached();
    let _ = change(&node, &holds, outer, &request).await;
    drop(head);
}
