//! Forwards wake-ups and reconnects from all nodes.

use super::node::Node;
use super::node::same_server::find_shared_servers;
use super::tally::Tally;
use crate::error::Result;
use crate::store::{Signal, StoreFuture, Wait, Wakeups};
use crate::util::sync::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The pause between two attempts to subscribe at a node.
const RETRY: Duration = Duration::from_secs(1);

/// How long a message of a minority waits for more messages. It may come from a process that got no majority and released,
/// even from this one. If such messages woke waiters at once, the waiters would keep each other awake. So the time from
/// one wake-up to the next doubles while they come that fast.
const FIRST_WAIT: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Subscribes a waiter or an observer at all nodes.
pub(super) async fn subscribe(nodes: &[Arc<Node>], request: Wait) -> Result<Option<Wakeups>> {
    let timeout = request.timeout;
    listen(nodes, timeout, move |node| {
        let holder = request.holder.map(|holder| node.holder_id(holder));
        let request = Wait { holder, ..request.clone() };
        let store = Arc::clone(&node.store);
        Box::pin(async move { store.subscribe(request).await })
    })
    .await
}

/// Subscribes at all nodes. Returns when a majority has confirmed, or all have answered.
pub(super) async fn listen(
    nodes: &[Arc<Node>],
    limit: Duration,
    subscribe: impl Fn(&Node) -> StoreFuture<Option<Wakeups>> + Clone + Send + 'static,
) -> Result<Option<Wakeups>> {
    let signal = Signal::new();
    let (heard, messages) = mpsc::unbounded_channel();
    let (mut tally, answers) = Tally::new(nodes.len());
    let mut listeners = JoinSet::new();
    listeners.spawn(gather(messages, tally.majority(), signal.clone()));
    for node in nodes {
        let node = Arc::clone(node);
        let heard = heard.clone();
        let answers = answers.clone();
        let subscribe = subscribe.clone();
        listeners.spawn(async move {
            loop {
                let subscription = subscribe(&node).await;
                let there = subscription.as_ref().map(Option::is_some).map_err(Clone::clone);
                answers.send(node.index, there);
                match subscription {
                    Ok(Some(mut wakeups)) => loop {
                        wakeups.recv().await;
                        if heard.send(node.index).is_err() {
                            return;
                        }
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
    tally.collect(limit, enough).await;
    let votes = tally.votes(|there| *there);
    if votes.yes > 0 {
        return Ok(Some(Wakeups::new(signal, listeners)));
    }
    if votes.no >= majority {
        return Ok(None);
    }
    Err(tally.no_majority(|there| if *there { "subscribed" } else { "has no wake-ups" }))
}

/// Wakes the waiter when a majority sent messages, or a while after a minority did, but not too often.
async fn gather(mut messages: mpsc::UnboundedReceiver<usize>, majority: usize, signal: Signal) {
    let mut wait = FIRST_WAIT;
    let mut last: Option<Instant> = None;
    while let Some(first) = messages.recv().await {
        let mut heard = HashSet::from([first]);
        let more = async {
            while heard.len() < majority
                && let Some(node) = messages.recv().await
            {
                heard.insert(node);
            }
        };
        let _ = timeout(wait, more).await;
        if let Some(last) = last {
            sleep_until(last + wait).await;
            let fast = last.elapsed() < 4 * wait;
            wait = if fast { (wait * 2).min(LONGEST_WAIT) } else { FIRST_WAIT };
        }
        last = Some(Instant::now());
        signal.set();
    }
}

/// Reports that the connection to some node was made again.
#[derive(Default)]
pub(super) struct Reconnects {
    signal: Signal,
    listeners: Mutex<JoinSet<()>>,
}

impl Reconnects {
    /// Listens on the current runtime from now on, and no longer on that of an earlier call.
    pub(super) fn listen(&self, nodes: &[Arc<Node>]) -> Option<Signal> {
        let reconnected: Vec<_> = nodes.iter().filter_map(|node| node.store.reconnects()).collect();
        if reconnected.is_empty() || tokio::runtime::Handle::try_current().is_err() {
            return None;
        }
        let mut listeners = self.listeners.lock();
        *listeners = JoinSet::new();
        let changed = Arc::new(Notify::new());
        for reconnected in reconnected {
            let signal = self.signal.clone();
            let changed = Arc::clone(&changed);
            listeners.spawn(async move {
                loop {
                    reconnected.recv().await;
                    signal.set();
                    // Its address may lead to another server now.
                    changed.notify_one();
                }
            });
        }
        let nodes = nodes.to_vec();
        listeners.spawn(async move {
            loop {
                find_shared_servers(&nodes).await;
                changed.notified().await;
            }
        });
        Some(self.signal.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a waiter is woken by messages, which come at these milliseconds from these nodes of three.
    async fn woken(messages: &[(u64, usize)]) -> Vec<u64> {
        let signal = Signal::new();
        let (heard, inbox) = mpsc::unbounded_channel();
        let gathering = tokio::spawn(gather(inbox, 2, signal.clone()));
        let start = Instant::now();
        let end = start + Duration::from_secs(1);
        let mut at = Vec::new();
        let send = async {
            for (millis, node) in messages {
                sleep_until(start + Duration::from_millis(*millis)).await;
                heard.send(*node).unwrap();
            }
        };
        let hear = async {
            while tokio::time::timeout_at(end, signal.recv()).await.is_ok() {
                at.push(start.elapsed().as_millis() as u64);
            }
        };
        tokio::join!(send, hear);
        gathering.abort();
        at
    }

    #[tokio::test(start_paused = true)]
    async fn majority_wakes_at_once_a_minority_after_a_moment() {
        assert_eq!(woken(&[(20, 0), (20, 1)]).await, [20]);
        assert_eq!(woken(&[(20, 0), (23, 1)]).await, [23]);
        assert_eq!(woken(&[(20, 0)]).await, [25]);
        assert_eq!(woken(&[(20, 0), (23, 0)]).await, [25], "one node, twice");
    }

    /// The wait for a second node doubles from the next message on. It starts again after a pause of four times its
    /// length.
    #[tokio::test(start_paused = true)]
    async fn fast_messages_wake_less_and_less_often() {
        let stream: Vec<(u64, usize)> = (0..400).map(|millis| (millis, 0)).collect();
        assert_eq!(woken(&stream).await[..6], [5, 11, 22, 43, 84, 165]);
        assert_eq!(woken(&[(0, 0), (0, 1), (100, 0)]).await, [0, 105]);
        // Ten milliseconds after the last two came fast.
        assert_eq!(woken(&[(0, 0), (0, 1), (6, 0), (6, 1), (20, 0)]).await[2], 30);
    }
}
