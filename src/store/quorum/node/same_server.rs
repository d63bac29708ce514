//! Finds nodes whose addresses lead to one server.
//!
//! Such a server votes once in any case. To locks and writers it does so because each node has holder ids of its own: a
//! node that meets the key of its twin abstains, and does not seem to have another holder. Readers share a name, so a vote
//! for a reader counts only with the id of the server, which is requested after it.

use super::Node;
use super::voters::twin_error;
use crate::error::{Fate, Result};
use crate::store::Acquired;
use crate::store::quorum::QUERY_LIMIT;
use crate::store::quorum::tally::Tally;
use crate::util::trace;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::Level;

fn is_same_server(one: &Node, other: &Node) -> bool {
    let server = |node: &Node| node.server.lock().clone();
    one.index != other.index && server(one).is_some_and(|id| server(other) == Some(id))
}

/// Requests the server ids of all nodes, and logs those that are the same.
pub(in crate::store::quorum) async fn find_shared_servers(nodes: &[Arc<Node>]) {
    let mut asked = JoinSet::new();
    for node in nodes.iter().map(Arc::clone) {
        asked.spawn(async move {
            let uptime = timeout(QUERY_LIMIT, node.store.uptime(QUERY_LIMIT)).await;
            *node.server.lock() = uptime.ok().and_then(Result::ok).and_then(|uptime| uptime.server);
        });
    }
    while asked.join_next().await.is_some() {}
    for (at, node) in nodes.iter().enumerate() {
        for other in nodes[..at].iter().filter(|other| is_same_server(other, node)) {
            let first = other.index + 1;
            let second = node.index + 1;
            trace::later(Level::ERROR, || {
                move || {
                    tracing::error!(
                        "node {first} and node {second} lead to one server, which votes once"
                    )
                }
            });
        }
    }
}

/// Replaces the vote of a node that meets the key of another node at the same server by an error.
pub(in crate::store::quorum) fn abstain(nodes: &[Arc<Node>], tally: &mut Tally<Acquired>) {
    let answer = |tally: &Tally<Acquired>, node: &Node| match tally.answers[node.index] {
        Some(Ok(answer)) => Some(answer),
        _ => None,
    };
    let granted = |node: &&Arc<Node>| matches!(answer(tally, node), Some(Acquired::Granted { .. }));
    let granted: Vec<_> = nodes.iter().filter(granted).collect();
    for node in nodes {
        if matches!(answer(tally, node), Some(Acquired::Held { .. }))
            && let Some(twin) = granted.iter().find(|other| is_same_server(other, node))
        {
            tally.answers[node.index] = Some(Err(twin_error(twin.index, Fate::NotExecuted)));
        }
    }
}
