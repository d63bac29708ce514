//! The description of a holder: written at all nodes, and known when a majority has it.

use super::tally::Tally;
use super::{Inner, node_limit};
use crate::error::Result;
use crate::store::{Annotate, Describe, HolderInfo, Metadata, Owner, Owners, Store, StoreFuture};
use std::sync::Arc;

/// Writes at all nodes that have the hold. Returns whether a majority has it.
pub(super) async fn annotate(inner: &Arc<Inner>, request: Annotate) -> Result<bool> {
    request.require_exclusive()?;
    let limit = node_limit(request.timeout);
    let holder = inner.holds.holder_of(request.holder);
    let deletes = request.metadata.is_none();
    let mut tally = inner.ask(|node, answers| {
        let holder = node.holder_id(holder);
        let request = Annotate { holder, timeout: limit, ..request.clone() };
        async move {
            let written = tokio::time::timeout(limit, node.store.annotate(request)).await;
            let written = written.unwrap_or_else(|_| Err(super::node::queue::timed_out()));
            answers.send(node.index, written);
        }
    });
    let majority = tally.majority();
    let enough = |tally: &Tally<bool>| {
        let votes = tally.votes(|there| *there);
        votes.yes >= majority || votes.no >= majority
    };
    tally.collect(request.timeout, enough).await;
    let votes = tally.votes(|there| *there);
    match (votes.yes >= majority, votes.no >= majority) {
        (true, _) => Ok(true),
        (_, true) => Ok(deletes && votes.yes > 0),
        _ => Err(tally.no_majority(|there| if *there { "written" } else { "not held" })),
    }
}

/// Keeps the description of a manager at all nodes. One of them is enough to find it.
pub(super) async fn describe(inner: &Arc<Inner>, request: Describe) -> Result<()> {
    let limit = node_limit(request.timeout);
    let mut tally = inner.ask(|node, answers| {
        let request = Describe { timeout: limit, ..request.clone() };
        async move {
            let written = tokio::time::timeout(limit, node.store.describe(request)).await;
            let written = written.unwrap_or_else(|_| Err(super::node::queue::timed_out()));
            answers.send(node.index, written);
        }
    });
    // Nothing waits for it, so all nodes may answer.
    let all = |tally: &Tally<()>| tally.votes(|()| true).pending == 0;
    tally.collect(request.timeout, all).await;
    if tally.votes(|()| true).yes > 0 { Ok(()) } else { Err(tally.no_majority(|()| "described")) }
}

/// Returns the descriptions of managers, each from any node that has it.
pub(super) async fn owners(inner: &Arc<Inner>, request: Owners) -> Result<Vec<Option<Owner>>> {
    let limit = request.timeout;
    let count = request.managers.len();
    let tally = inner.query_all(limit, move |store: Arc<dyn Store>| -> StoreFuture<_> {
        let request = request.clone();
        Box::pin(async move { store.owners(request).await })
    });
    let tally = tally.await;
    let mut found = vec![None; count];
    let mut answers = 0;
    for owners in tally.verdicts() {
        answers += 1;
        for (found, owner) in found.iter_mut().zip(owners) {
            *found = found.take().or_else(|| owner.clone());
        }
    }
    if answers > 0 { Ok(found) } else { Err(tally.no_majority(|_| "described")) }
}

/// Returns the newest of what the nodes have of one holder. What a majority has written is among it, since a majority was
/// asked.
pub(super) fn newest(same: &[&HolderInfo]) -> Option<Metadata> {
    let written = same.iter().filter_map(|info| info.metadata.as_deref());
    written.max_by_key(|metadata| metadata.revision).cloned()
}
