//! Wake-ups and reconnects, from any node.

use super::node::Node;
use super::tally::Tally;
use crate::error::Result;
use crate::store::{Name, Wakeups};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Between two attempts to subscribe at a node.
const RETRY: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(10);

/// Subscribes at all nodes; there when a majority has confirmed.
pub(super) async fn subscribe(nodes: &[Arc<Node>], name: &Name) -> Result<Option<Wakeups>> {
    let notify = Arc::new(Notify::new());
    let (mut tally, answers) = Tally::new(nodes.len());
    let mut listeners = JoinSet::new();
    for node in nodes {
        let (node, name, notify) = (Arc::clone(node), name.clone(), Arc::clone(&notify));
        let answers = answers.clone();
        listeners.spawn(async move {
            loop {
                let subscription = node.store.subscribe(&name).await;
                answers.give(
                    node.index,
                    subscription.as_ref().map(Option::is_some).map_err(Clone::clone),
                );
                match subscription {
                    Ok(Some(mut wakeups)) => loop {
                        wakeups.recv().await;
                        notify.notify_one();
                    },
                    Ok(None) => return,
                    Err(_) => sleep(RETRY).await,
                }
            }
        });
    }
    drop(answers);
    let majority = tally.majority();
    let enough = |tally: &Tally<bool>| {
        tally.votes(|there| *there).yes >= majority || tally.answers.iter().all(Option::is_some)
    };
    tally.collect(LIMIT, enough).await;
    let votes = tally.votes(|there| *there);
    if votes.yes > 0 {
        return Ok(Some(Wakeups::new(notify, listeners)));
    }
    if votes.no >= majority {
        return Ok(None);
    }
    Err(tally.no_majority(|there| if *there { "subscribed" } else { "has no wake-ups" }))
}

/// Tells that the connection to some node was made anew.
#[derive(Default)]
pub(super) struct Reconnects {
    notify: Arc<Notify>,
    listeners: Mutex<JoinSet<()>>,
}

impl Reconnects {
    /// Listens on the current runtime from now on, and no longer on that of an earlier call.
    pub(super) fn listen(&self, nodes: &[Arc<Node>]) -> Option<Arc<Notify>> {
        let told: Vec<_> = nodes.iter().filter_map(|node| node.store.reconnects()).collect();
        if told.is_empty() || tokio::runtime::Handle::try_current().is_err() {
            return None;
        }
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        *listeners = JoinSet::new();
        for told in told {
            let notify = Arc::clone(&self.notify);
            listeners.spawn(async move {
                loop {
                    told.notified().await;
                    notify.notify_one();
                }
            });
        }
        Some(Arc::clone(&self.notify))
    }
}
