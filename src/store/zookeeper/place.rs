//! A waiter's place in the line: a node that watches the one before it, and no other.
//!
//! # Invariants
//!
//! 1. A place's node belongs to its task, until somebody of this process takes it over as a hold
//!    ([`Place::take`]) or the place is left; whoever has it deletes it.
//! 2. Whoever leaves a place, at any moment, leaves no node: the task sweeps, and goes on until it has
//!    succeeded or the session is over.
//! 3. At most one node of a place stays: after a creation of unknown outcome, all but the first go.
//! 4. Only the node directly before it is watched, so a release wakes one waiter.
//! 5. Who was found to be first stays first: numbers only grow. But who then does not take the turn, while another
//!    waits, goes to the end of the line: a future that is not polled keeps nobody waiting for long.
//! 6. Who waits again after it has taken over its place, because the hold came to nothing, gets a new one: nobody
//!    would wake it otherwise. Its new node has another name, lest it finds the old one and takes it over twice.
//! 7. A place that was lost (its session ended, or somebody deleted the node) goes to the end of the line. A node
//!    of an old session may be there for a while; it is not taken for the place, for it goes with that session.

use super::errors::{Found, find, in_time, no_session};
use super::link::Pauses;
use super::names::Who;
use super::session::Session;
use super::sessions::Sessions;
use crate::error::Result;
use crate::store::Signal;
use crate::trace;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::Level;
use uuid::Uuid;
use zookeeper_client::EventType;

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) session: Arc<Session>,
    pub(super) path: String,
    pub(super) czxid: u64,
}

#[derive(Debug)]
pub(super) struct Place {
    directory: String,
    /// How long one step may take.
    attempt: Duration,
    /// Wakes the waiter.
    pub(super) signal: Signal,
    state: Mutex<State>,
    /// What was taken over turned out to be gone.
    again: Notify,
    pub(super) left: CancellationToken,
}

#[derive(Debug)]
struct State {
    /// Of its nodes.
    id: Uuid,
    node: Option<Node>,
    first: bool,
}

impl State {
    fn new(id: Uuid) -> Self {
        Self { id, node: None, first: false }
    }

    fn is_taken(&self) -> bool {
        self.first && self.node.is_none()
    }
}

impl Place {
    pub(super) fn new(directory: String, attempt: Duration) -> Arc<Self> {
        Arc::new(Self {
            directory,
            attempt,
            signal: Signal::new(),
            state: Mutex::new(State::new(Uuid::new_v4())),
            again: Notify::new(),
            left: CancellationToken::new(),
        })
    }

    /// The node, if it is the first in the line; it belongs to the caller then.
    pub(super) fn take(&self) -> Option<Node> {
        let mut state = self.lock();
        if state.first && !self.left.is_cancelled() { state.node.take() } else { None }
    }

    /// If its node was taken over, that was in vain: back to the end of the line.
    pub(super) fn queue_again(&self) {
        if self.lock().is_taken() {
            self.again.notify_one();
        }
    }

    fn lose(&self) {
        self.reset();
    }

    /// Forgets its node; returns what it knew.
    fn reset(&self) -> State {
        let mut state = self.lock();
        // A hold has the node that was taken over: it must not be found for the place again.
        let id = if state.is_taken() { Uuid::new_v4() } else { state.id };
        std::mem::replace(&mut *state, State::new(id))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the place until it is left.
    pub(super) async fn keep(&self, sessions: &Sessions) {
        let mut session = None;
        let mut pauses = Pauses::new(self.attempt / 8, self.attempt);
        let waiting = async {
            loop {
                let current = sessions.next().await;
                let current: &Arc<Session> = session.insert(current);
                tokio::select! {
                    result = self.wait_in(current) => {
                        let Err(error) = result;
                        trace::later(Level::DEBUG, || {
                            move || tracing::debug!(%error, "a place in the line is to be found again")
                        });
                        tokio::time::sleep(pauses.next()).await;
                    }
                    () = current.until_over() => self.lose(),
                    () = self.again.notified() => self.lose(),
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

    /// Gets into the line, if it is not in it yet, and waits in it.
    async fn wait_in(&self, session: &Arc<Session>) -> Result<std::convert::Infallible> {
        loop {
            let node = self.lock().node.clone();
            let node = match node {
                Some(node) if Arc::ptr_eq(&node.session, session) => node,
                // None yet; or its session ended in a pause after an error, and it counts no more.
                _ => {
                    self.lose();
                    let node = self.settle(session).await?;
                    self.lock().node = Some(node.clone());
                    node
                }
            };
            let Some(before) = self.before(session, &node).await? else {
                self.lose();
                continue;
            };
            match before {
                Before::Nobody => {
                    self.lock().first = true;
                    self.signal.set();
                    self.until_missed(session).await?;
                }
                Before::Node(path) => self.until_gone(session, &path).await?,
            }
        }
    }

    /// Makes its node, or finds what an earlier try has made.
    async fn settle(&self, session: &Arc<Session>) -> Result<Node> {
        let who = Who::Place(self.lock().id);
        let line = in_time(self.attempt, session.line_now(&self.directory)).await?;
        let mut found = None;
        for child in line.iter().filter(|child| child.is_of(who)) {
            let path = format!("{}/{}", self.directory, child.name);
            if found.is_none()
                && let Some(czxid) = in_time(self.attempt, session.has_made(&path)).await?
            {
                found = Some((path, czxid));
                continue;
            }
            in_time(self.attempt, session.delete(&path)).await?;
        }
        let (path, czxid) = match found {
            Some(found) => found,
            None => in_time(self.attempt, session.enqueue(&self.directory, who, "")).await?,
        };
        Ok(Node { session: Arc::clone(session), path, czxid })
    }

    /// Who is before the node; `None` if the node is gone.
    async fn before(&self, session: &Session, node: &Node) -> Result<Option<Before>> {
        let line = in_time(self.attempt, session.line(&self.directory)).await?;
        let own = node.path.rsplit('/').next();
        let Some(position) = line.iter().position(|child| Some(child.name.as_str()) == own) else {
            return Ok(None);
        };
        Ok(Some(match position.checked_sub(1) {
            None => Before::Nobody,
            Some(before) => Before::Node(format!("{}/{}", self.directory, line[before].name)),
        }))
    }

    /// Waits until it was told to be the first for too long, and did not take its turn while another waits:
    /// its future is not polled. Then it leaves, and goes to the end of the line.
    async fn until_missed(&self, session: &Session) -> Result<()> {
        loop {
            tokio::time::sleep(self.attempt).await;
            if self.lock().is_taken() {
                // Until it is to be had again.
                return std::future::pending().await;
            }
            let line = in_time(self.attempt, session.line(&self.directory)).await;
            if line.is_ok_and(|line| line.len() > 1)
                && let Some(node) = self.miss()
            {
                trace::later(Level::DEBUG, || {
                    let directory = self.directory.clone();
                    move || tracing::debug!(%directory, "a turn was not taken")
                });
                return in_time(self.attempt, session.delete(&node.path)).await.map(drop);
            }
        }
    }

    /// Forgets its node, unless it was taken.
    fn miss(&self) -> Option<Node> {
        let mut state = self.lock();
        let node = state.node.take()?;
        state.first = false;
        Some(node)
    }

    async fn until_gone(&self, session: &Session, path: &str) -> Result<()> {
        loop {
            let link = in_time(self.attempt, session.link()).await?;
            let watch = find(link.client.get_and_watch_data(path));
            let Found::Yes((_, _, watcher)) = in_time(self.attempt, watch).await? else {
                return Ok(());
            };
            let event = tokio::select! {
                biased;
                // The next link knows nothing of it.
                () = link.gone() => return Err(no_session()),
                event = watcher.changed() => event,
            };
            // Its hold count is written to it.
            if event.event_type != EventType::NodeDataChanged {
                return Ok(());
            }
        }
    }

    async fn leave(&self, session: &Arc<Session>) {
        let State { id, node, first } = self.reset();
        match node {
            Some(node) => {
                session.see_through(|| async { session.delete(&node.path).await.map(drop) }).await;
            }
            // It was taken over.
            None if first => {}
            // A creation may be on its way.
            None => {
                let who = Who::Place(id);
                let sweep = || async { session.sweep(&self.directory, who).await.map(drop) };
                session.see_through(sweep).await;
            }
        }
    }
}

enum Before {
    Nobody,
    Node(String),
}
