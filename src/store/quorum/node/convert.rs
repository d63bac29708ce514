//! Changes the mode of a hold at one node.

use super::queue::bounded;
use super::{Ballot, BallotAnswers, Node};
use crate::error::{Fate, Result};
use crate::store::quorum::holds::Holds;
use crate::store::quorum::node_modes::unsettled;
use crate::store::quorum::tally::granted;
use crate::store::{Acquire, Acquired, Fencing, HolderId, Mode, Target};
use crate::util::reached::Rare;
use std::sync::Arc;

/// Changes the mode here. Changes the writer back into a reader unless the decision is to keep it.
pub(in crate::store::quorum) async fn convert(
    node: Arc<Node>,
    holds: Arc<Holds>,
    outer: HolderId,
    request: Acquire,
    mut ballot: Ballot<bool>,
    answers: BallotAnswers,
) {
    // Kept to the end, so that no other change comes between.
    let mut head = node.queues.head(&request.target, request.holder).await;
    if ballot.is_over() {
        return;
    }
    let writes = request.target.mode == Mode::Write;
    if writes && head.find(request.holder).is_some() {
        // An acquire that may still run could make a reader of it.
        return answers.send(node.index, Err(unsettled()));
    }
    let fencing = answers.round.as_ref().map(|_| Fencing::proposal());
    let asked = Acquire { fencing, ..request.clone() };
    let verdict = change(&node, &holds, outer, &asked).await;
    let may_have_changed = match &verdict {
        Ok(verdict) => granted(verdict),
        Err(error) => error.fate() != Fate::NotExecuted,
    };
    let vote = match verdict {
        Ok(Acquired::Granted { .. }) if answers.round.is_none() => {
            node.check(&request, &ballot).await.and(verdict)
        }
        verdict => verdict,
    };
    let proposed = vote.as_ref().is_ok_and(granted);
    answers.send(node.index, vote);
    if proposed && let Some(round) = answers.round {
        node.store_tokens(&request, &mut ballot, round).await;
    }
    let keeps = ballot.decided().await == Some(true);
    if writes && may_have_changed && !keeps {
        Rare::QuorumChangeUndone.reached();
        let target = Target::new(request.target.name.clone(), Mode::Read);
        let _ = change(&node, &holds, outer, &Acquire { target, ..request }).await;
    }
    drop(head);
}

/// Sends a change of the mode, and records what is known of this node then.
pub(super) async fn change(
    node: &Node,
    holds: &Holds,
    outer: HolderId,
    request: &Acquire,
) -> Result<Acquired> {
    let mut change = None;
    holds.update(outer, |held| {
        let node_modes = held.node_modes.get_or_insert_default();
        change = node_modes.begin(node.index, request.target.mode);
    });
    let Some(change) = change else { return Err(unsettled()) };
    let verdict = bounded(request.timeout, node.store.acquire(request.clone())).await.0;
    holds.update(outer, |held| {
        held.node_modes.iter_mut().for_each(|node_modes| node_modes.end(change, &verdict));
    });
    verdict
}
