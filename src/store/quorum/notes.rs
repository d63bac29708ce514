//! Notes and hints, which each node keeps on its own.

use super::Inner;
use super::node::Node;
use crate::error::Result;
use crate::store::{About, HolderId, Inbox, Inspect, Note, StoreFuture, Want};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use uuid::Uuid;

impl Inner {
    /// Reports to a holder at each node. Returns whether a majority of them have it.
    pub(super) async fn want(self: &Arc<Self>, request: Want) -> Result<bool> {
        self.require(request.target.mode)?;
        let limit = request.timeout;
        let mut tally = self.ask(move |node: Arc<Node>, answers| {
            let request = request.clone();
            async move { answers.send(node.index, tell(&node, request).await) }
        });
        tally.collect(limit, |_| false).await;
        let votes = tally.votes(|told| *told);
        if votes.yes + votes.no < self.majority() {
            return Err(tally.no_majority(|told| if *told { "told" } else { "not the holder" }));
        }
        Ok(votes.yes >= self.majority())
    }

    /// Returns the newest note that a node has for the holder.
    pub(super) async fn note(
        self: &Arc<Self>,
        request: Inspect,
        holder: HolderId,
    ) -> Result<Option<Note>> {
        let limit = request.timeout;
        let mut tally = self.ask(move |node: Arc<Node>, answers| {
            let request = request.clone().with_about(About::Note(node.holder_id(holder)));
            async move {
                let note = node.store.inspect(request).await.map(|inspection| inspection.note);
                answers.send(node.index, note);
            }
        });
        tally.collect(limit, |_| false).await;
        let votes = tally.votes(Option::is_some);
        if votes.yes == 0 && votes.no < self.majority() {
            return Err(tally.no_majority(|note| if note.is_some() { "a note" } else { "no note" }));
        }
        Ok(tally.verdicts().flatten().max_by_key(|note| note.at).cloned())
    }

    /// Listens to the inboxes at all nodes, on the current runtime.
    pub(super) fn inbox(&self, manager: Uuid) -> Option<Inbox> {
        Handle::try_current().ok()?;
        let inboxes: Vec<_> =
            self.nodes.iter().filter_map(|node| node.store.inbox(manager)).collect();
        if inboxes.is_empty() {
            return None;
        }
        let (mut listeners, mut senders) = (JoinSet::new(), Vec::new());
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
}

/// Reports to the holder at one node, where its id has the number of the node, and of an attempt.
async fn tell(node: &Node, request: Want) -> Result<bool> {
    let inspect = Inspect::new(request.target.clone(), request.timeout);
    let holder = node.store.inspect(inspect).await?.into_holder();
    let is_own = |id: &String| id.split('.').next() == Some(&*request.from);
    match holder.map(|holder| holder.holder).filter(is_own) {
        Some(from) => {
            let tell: StoreFuture<bool> = {
                let (store, request) = (Arc::clone(&node.store), Want { from, ..request });
                Box::pin(async move { store.want(request).await })
            };
            tell.await
        }
        None => Ok(false),
    }
}
