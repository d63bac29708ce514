//! Keeps a waiter's node in the queue of a name. It watches the node that it waits for, and no other.
//!
//! # Invariants
//!
//! 1. A waiter's node belongs to its task, until an acquire of this process takes it over as a hold
//!    ([`Waiter::take`]) or the waiter leaves. Its owner deletes it.
//! 2. A waiter that leaves, at any moment, leaves no node behind: the task sweeps until it has succeeded or the session
//!    is over.
//! 3. At most one node of a waiter stays: after a creation of unknown outcome, all but the first are deleted.
//! 4. Only one node is watched ([`Standing::Behind`]), so a release wakes one waiter, or the readers that it lets in. The first
//!    that waits for permits watches the directory, because any of several nodes may bring them, and is the only one that
//!    does.
//! 5. A waiter that was found to be granted stays granted (`tree/queue.rs`). But one that does not take its turn while another
//!    waits goes to the end of the queue: a future that is not polled delays the others only briefly.
//! 6. A waiter that waits again after its node was taken over, because the hold came to nothing, gets a new node:
//!    otherwise nothing would wake it. The new node has another name, so that the waiter does not find the old node and
//!    have it taken over twice.
//! 7. A waiter whose node was lost (its session ended, or another client deleted it) goes to the end of the queue. A node
//!    of an old session may still exist for a while. It does not count, because it ends with that session.

use crate::clock::Instant;
use crate::error::{ErrorKind, Result};
use crate::store::Signal;
use crate::store::zookeeper::session::errors::{Found, find, in_time, no_session};
use crate::store::zookeeper::session::sessions::Sessions;
use crate::store::zookeeper::session::{Session, nodes};
use crate::store::zookeeper::tree::names::{NodeOwner, Role};
use crate::store::zookeeper::tree::queue::{Queue, Standing};
use crate::util::backoff::Backoff;
use crate::util::reached::Rare;
use crate::util::sync::Mutex;
use crate::util::trace;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::Level;
use uuid::Uuid;
use zookeeper_client::EventType;

/// The node of a waiter.
#[derive(Clone, Debug)]
pub(in crate::store::zookeeper) struct Node {
    pub(in crate::store::zookeeper) session: Arc<Session>,
    pub(in crate::store::zookeeper) path: String,
    pub(in crate::store::zookeeper) czxid: u64,
}

impl Node {
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// A waiter in the queue of a name.
#[derive(Debug)]
pub(in crate::store::zookeeper) struct Waiter {
    directory: String,
    /// What its nodes are.
    pub(in crate::store::zookeeper) role: Role,
    /// The time limit of one step.
    attempt: Duration,
    /// Wakes the waiter.
    pub(in crate::store::zookeeper) signal: Signal,
    state: Mutex<State>,
    /// Is notified when the hold that took over the node came to nothing.
    requeued: Notify,
    /// Fires when the waiter leaves.
    pub(in crate::store::zookeeper) left: CancellationToken,
}

#[derive(Debug)]
struct State {
    /// The id in the names of its nodes.
    id: Uuid,
    node: Option<Node>,
    /// When the list was requested in which its node was granted.
    granted: Option<Instant>,
}

impl State {
    fn new(id: Uuid) -> Self {
        Self { id, node: None, granted: None }
    }

    fn is_taken(&self) -> bool {
        self.granted.is_some() && self.node.is_none()
    }
}

impl Waiter {
    pub(in crate::store::zookeeper) fn new(
        directory: String,
        role: Role,
        attempt: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            directory,
            role,
            attempt,
            signal: Signal::new(),
            state: Mutex::new(State::new(Uuid::new_v4())),
            requeued: Notify::new(),
            left: CancellationToken::new(),
        })
    }

    /// Takes the node if it is granted. It belongs to the caller then. Returns also when the list was requested in which
    /// it was.
    pub(in crate::store::zookeeper) fn take(&self) -> Option<(Node, Instant)> {
        let mut state = self.state.lock();
        let listed = state.granted.filter(|_| !self.left.is_cancelled())?;
        Some((state.node.take()?, listed))
    }

    /// Sends the waiter to the end of the queue, if its node was taken over: the hold came to nothing.
    pub(super) fn requeue(&self) {
        if self.state.lock().is_taken() {
            self.requeued.notify_one();
        }
    }

    /// Forgets its node. Returns the state before.
    fn reset(&self) -> State {
        let mut state = self.state.lock();
        // A node that was taken over belongs to a hold. This waiter must not find it again.
        let id = if state.is_taken() { Uuid::new_v4() } else { state.id };
        std::mem::replace(&mut *state, State::new(id))
    }

    /// Waits in the queue until the waiter leaves.
    pub(in crate::store::zookeeper) async fn run(&self, sessions: &Sessions) {
        let mut session = None;
        let mut pauses = Backoff::new(self.attempt / 8, self.attempt);
        let waiting = async {
            loop {
                let current = sessions.next().await;
                let current: &Arc<Session> = session.insert(current);
                tokio::select! {
                    result = self.wait_in(current) => {
                        let Err(error) = result;
                        if matches!(error.kind(), ErrorKind::WrongType | ErrorKind::Invalid) {
                            // The waiter asks, and gets the answer.
                            self.signal.set();
                        }
                        trace::later(Level::DEBUG, || {
                            move || tracing::debug!(%error, "queueing the waiter again after an error")
                        });
                        tokio::time::sleep(pauses.next()).await;
                    }
                    () = current.until_over() => drop(self.reset()),
                    () = self.requeued.notified() => {
                        Rare::ZooKeeperRequeued.reached();
                        drop(self.reset());
                    }
                }
            }
        };
        tokio::select! {
            () = waiting => {}
            () = self.left.cancelled() => {}
        }
        if let Some(session) = session {
            self.leave(&session).await;
        }
    }

    /// Enters the queue, if it is not in it yet, and waits there.
    async fn wait_in(&self, session: &Arc<Session>) -> Result<std::convert::Infallible> {
        loop {
            let node = self.state.lock().node.clone();
            let node = match node {
                Some(node) if Arc::ptr_eq(&node.session, session) => node,
                // There is no node yet, or its session ended in a pause after an error, so that it no longer counts.
                _ => {
                    drop(self.reset());
                    let node = self.find_or_create(session).await?;
                    self.state.lock().node = Some(node.clone());
                    node
                }
            };
            let listed = session.now();
            let queue = in_time(self.attempt, nodes::children(session, &self.directory)).await?;
            let Some(standing) = queue.standing(node.name())? else {
                Rare::ZooKeeperWaiterVanished.reached();
                drop(self.reset());
                continue;
            };
            match &standing {
                Standing::Granted => {
                    self.state.lock().granted = Some(listed);
                    self.signal.set();
                    self.until_turn_missed(session, &node).await?;
                }
                Standing::Behind(other) => self.until_gone(session, &node, other).await?,
                Standing::Next => self.until_changed(session, &node).await?,
            }
        }
    }

    /// Finds the node that an earlier try has made, or makes one.
    async fn find_or_create(&self, session: &Arc<Session>) -> Result<Node> {
        let owner = NodeOwner::Waiter(self.state.lock().id);
        let queue = in_time(self.attempt, nodes::synced_children(session, &self.directory)).await?;
        let mut found = None;
        for child in queue.of(owner) {
            let path = format!("{}/{}", self.directory, child.name);
            if found.is_none()
                && let Some(czxid) = in_time(self.attempt, nodes::has_made(session, &path)).await?
            {
                Rare::ZooKeeperCreationFound.reached();
                found = Some((path, czxid));
                continue;
            }
            in_time(self.attempt, nodes::delete(session, &path)).await?;
        }
        let (path, czxid) = match found {
            Some(found) => found,
            None => {
                queue.admits(self.role)?;
                let create = nodes::enqueue(session, &self.directory, self.role, owner, "");
                in_time(self.attempt, create).await?
            }
        };
        Ok(Node { session: Arc::clone(session), path, czxid })
    }

    /// Waits until the waiter has missed its turn: it was woken, but no acquire took its node over while
    /// another waiter is in the queue, so its future is not polled. Then deletes the node.
    async fn until_turn_missed(&self, session: &Session, node: &Node) -> Result<()> {
        loop {
            tokio::time::sleep(self.attempt).await;
            if self.state.lock().is_taken() {
                // The acquire decides: it keeps the node, or requeues this waiter.
                return std::future::pending().await;
            }
            let queue = in_time(self.attempt, nodes::children(session, &self.directory)).await;
            if queue.is_ok_and(|queue| queue.is_followed(node.name()))
                && let Some(node) = self.give_up_turn()
            {
                Rare::ZooKeeperTurnMissed.reached();
                trace::later(Level::DEBUG, || {
                    let directory = self.directory.clone();
                    move || tracing::debug!(%directory, "a turn was not taken")
                });
                return in_time(self.attempt, nodes::delete(session, &node.path)).await.map(drop);
            }
        }
    }

    /// Forgets its node, unless it was taken over. Returns it.
    fn give_up_turn(&self) -> Option<Node> {
        let mut state = self.state.lock();
        let node = state.node.take()?;
        state.granted = None;
        Some(node)
    }

    /// Waits until the node of another one is deleted. Behind one that waits for permits, also until it has them.
    async fn until_gone(&self, session: &Session, node: &Node, other: &str) -> Result<()> {
        let counts = matches!(self.role, Role::Permits { .. });
        let path = format!("{}/{other}", self.directory);
        loop {
            let link = in_time(self.attempt, session.link()).await?;
            let watch = find(link.client.get_and_watch_data(&path));
            let Found::Yes((_, _, watcher)) = in_time(self.attempt, watch).await? else {
                Rare::ZooKeeperGoneBeforeWatch.reached();
                return Ok(());
            };
            if counts {
                // It may have them since the list.
                let queue =
                    in_time(self.attempt, nodes::children(session, &self.directory)).await?;
                if queue.standing(node.name())? != Some(Standing::Behind(other.to_owned())) {
                    return Ok(());
                }
            }
            let event = tokio::select! {
                biased;
                // The next link does not have this watch.
                () = link.gone() => {
                    Rare::ZooKeeperWatchLost.reached();
                    return Err(no_session());
                }
                event = watcher.changed() => event,
            };
            // A change of its data is a new hold count, or a waiter that has its permits.
            if counts || event.event_type != EventType::NodeDataChanged {
                return Ok(());
            }
        }
    }

    /// Waits until a node comes or goes.
    async fn until_changed(&self, session: &Session, node: &Node) -> Result<()> {
        let link = in_time(self.attempt, session.link()).await?;
        let watch = find(link.client.list_and_watch_children(&self.directory));
        let Found::Yes((children, watcher)) = in_time(self.attempt, watch).await? else {
            return Ok(());
        };
        if Queue::new(children).standing(node.name())? != Some(Standing::Next) {
            return Ok(());
        }
        tokio::select! {
            biased;
            // The next link does not have this watch.
            () = link.gone() => {
                Rare::ZooKeeperWatchLost.reached();
                Err(no_session())
            }
            _ = watcher.changed() => Ok(()),
        }
    }

    /// Deletes its node, if it still has one.
    async fn leave(&self, session: &Arc<Session>) {
        let State { id, node, granted } = self.reset();
        match node {
            Some(node) => {
                session
                    .retry_until_done(|| async {
                        nodes::delete(session, &node.path).await.map(drop)
                    })
                    .await;
            }
            // An acquire took it over.
            None if granted.is_some() => {}
            // A creation may be in flight.
            None => {
                let owner = NodeOwner::Waiter(id);
                let sweep =
                    || async { nodes::sweep(session, &self.directory, owner).await.map(drop) };
                session.retry_until_done(sweep).await;
            }
        }
    }
}
