//! Notes and hints, which each node keeps on its own.

use super::Inner;
use super::node::Node;
use crate::error::Result;
use crate::store::{About, HolderId, Inbox, Inspect, Note, StoreFuture, Want};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Reports to a holder at each node. Returns whether a majority of them have it.
pub(super) async fn want(inner: &Arc<Inner>, request: Want) -> Result<bool> {
    inner.require(request.target.mode)?;
    let limit = request.timeout;
    let mut tally = inner.ask(move |node: Arc<Node>, answers| {
        let request = request.clone();
        async move { answers.send(node.index, want_at(&node, request).await) }
    });
    tally.collect(limit, |_| false).await;
    let votes = tally.votes(|done| *done);
    if votes.yes + votes.no < inner.majority() {
        return Err(tally.no_majority(|done| if *done { "reported" } else { "not the holder" }));
    }
    Ok(votes.yes >= inner.majority())
}

/// Returns the newest note that a node has for the holder.
pub(super) async fn note(
    inner: &Arc<Inner>,
    request: Inspect,
    holder: HolderId,
) -> Result<Option<Note>> {
    let limit = request.timeout;
    let mut tally = inner.ask(move |node: Arc<Node>, answers| {
        let request = request.clone().with_about(About::Note(node.holder_id(holder)));
        async move {
            let note = node.store.inspect(request).await.map(|inspection| inspection.note);
            answers.send(node.index, note);
        }
    });
    tally.collect(limit, |_| false).await;
    let votes = tally.votes(Option::is_some);
    if votes.yes == 0 && votes.no < inner.majority() {
        return Err(tally.no_majority(|note| if note.is_some() { "a note" } else { "no note" }));
    }
    Ok(tally.verdicts().flatten().max_by_key(|note| note.at).cloned())
}

/// Listens to the inboxes at all nodes, on the current runtime.
pub(super) fn inbox(inner: &Inner, manager: Uuid) -> Option<Inbox> {
    Handle::try_current().ok()?;
    let inboxes: Vec<_> = inner.nodes.iter().filter_map(|node| node.store.inbox(manager)).collect();
    if inboxes.is_empty() {
        return None;
    }
    let mut listeners = JoinSet::new();
    let mut senders = Vec::new();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (sender, inbox) = Inbox::new(stop);
    for mut inbox in inboxes {
        let sender = sender.clone();
        senders.push(async move {
            while let Some(hint) = inbox.recv().await {
                sender.send(hint);
            }
        });
    }
    senders.into_iter().for_each(|forward| drop(listeners.spawn(forward)));
    tokio::spawn(async move {
        // Ends with the inbox, and ends the listeners.
        let _ = stopped.await;
        drop(listeners);
    });
    Some(inbox)
}

/// Reports to the holder at one node, where its id has the number of the node, and of an attempt.
async fn want_at(node: &Node, request: Want) -> Result<bool> {
    let inspect = Inspect::new(request.target.clone(), request.timeout);
    let holder = node.store.inspect(inspect).await?.into_holder();
    let is_own = |id: &String| id.split('.').next() == Some(&*request.from);
    match holder.map(|holder| holder.holder).filter(is_own) {
        Some(from) => {
            let store = Arc::clone(&node.store);
            let request = Want { from, ..request };
            let want: StoreFuture<bool> = Box::pin(async move { store.want(request).await });
            want.await
        }
        None => Ok(false),
    }
}
