//! Standing in line at a node: one request for a name at a time, and what is left there of ours.

use super::node::Node;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Acquired, Name, Release, Released, StoreFuture, Token};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::timeout;

/// The lines of a node.
pub(super) type Lines = Mutex<HashMap<Name, Line>>;

pub(super) type Line = Arc<AsyncMutex<Vec<Leftover>>>;

/// A token of ours that may be at the node with nobody to rely on it.
pub(super) struct Leftover {
    token: Token,
    /// Acquires without an answer: each may still run.
    unanswered: u32,
    /// To be released. A hold that lives is not, though an acquire of it may still run.
    owed: bool,
    /// By then it has expired.
    pub(super) until: Instant,
}

/// Bounds a call, and keeps it for its late answer.
pub(super) async fn bounded<T>(
    limit: Duration,
    mut call: StoreFuture<T>,
) -> (Result<T>, Option<StoreFuture<T>>) {
    match timeout(limit, &mut call).await {
        Ok(verdict) => (verdict, None),
        Err(_) => (Err(silent()), Some(call)),
    }
}

pub(super) fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "no answer in time")
}

impl Node {
    pub(super) async fn place(self: &Arc<Self>, name: &Name) -> Place {
        let line = Arc::clone(self.lines().entry(name.clone()).or_default());
        let line = Some(line.lock_owned().await);
        Place { node: Arc::clone(self), name: name.clone(), line }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Name, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place at the head of a name's line.
pub(super) struct Place {
    node: Arc<Node>,
    name: Name,
    /// `None` only while it is dropped.
    line: Option<OwnedMutexGuard<Vec<Leftover>>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let empty = self.line.take().is_none_or(|line| line.is_empty());
        let mut lines = self.node.lines();
        // Whoever waits in line has a clone.
        if empty && lines.get(&self.name).is_some_and(|line| Arc::strong_count(line) == 1) {
            lines.remove(&self.name);
        }
    }
}

impl Place {
    fn leftovers(&mut self) -> &mut Vec<Leftover> {
        match &mut self.line {
            Some(line) => line,
            None => unreachable!("a place has its line until it is dropped"),
        }
    }

    pub(super) fn find(&mut self, token: Token) -> Option<&mut Leftover> {
        self.leftovers().iter_mut().find(|leftover| leftover.token == token)
    }

    pub(super) fn forget(&mut self, token: Token) {
        self.leftovers().retain(|leftover| leftover.token != token);
    }

    /// Whether a release is still to be confirmed.
    pub(super) fn owes(&mut self) -> bool {
        self.leftovers().iter().any(|leftover| leftover.owed)
    }

    pub(super) fn owe(&mut self, token: Token, until: Instant) {
        match self.find(token) {
            Some(leftover) => {
                leftover.owed = true;
                leftover.until = leftover.until.max(until);
            }
            None => {
                self.leftovers().push(Leftover { token, unanswered: 0, owed: true, until });
            }
        }
    }

    /// Every attempt of one hold.
    pub(super) fn owe_all(&mut self, token: Token) {
        for leftover in self.leftovers() {
            leftover.owed |= leftover.token.in_round(0) == token.in_round(0);
        }
    }

    /// An acquire is about to leave; it is owed until somebody wants to keep it.
    pub(super) fn sending(&mut self, token: Token, until: Instant) {
        self.owe(token, until);
        if let Some(leftover) = self.find(token) {
            leftover.unanswered += 1;
        }
    }

    pub(super) fn answered(&mut self, token: Token, verdict: &Result<Acquired>) {
        let Some(leftover) = self.find(token) else { return };
        match verdict {
            Err(error) if error.fate() != Fate::NotExecuted => return,
            _ => leftover.unanswered = leftover.unanswered.saturating_sub(1),
        }
        if leftover.unanswered == 0 && !matches!(verdict, Ok(Acquired::Granted { .. })) {
            self.forget(token);
        }
    }

    /// A living hold relies on it.
    pub(super) fn keep(&mut self, token: Token) {
        if let Some(leftover) = self.find(token) {
            leftover.owed = false;
            if leftover.unanswered == 0 {
                self.forget(token);
            }
        }
    }

    /// Releases a token once. It stays a leftover if it may be there still, or come there yet.
    pub(super) async fn release(&mut self, token: Token, limit: Duration) -> Result<Released> {
        let request = Release { name: self.name.clone(), token, count: 0, timeout: limit };
        let call = self.node.store.release(request);
        let verdict = bounded(limit, call).await.0;
        let unanswered = self.find(token).map_or(0, |leftover| leftover.unanswered);
        let over = match &verdict {
            // Of several acquires, one release cannot know which it undid.
            Ok(Released::Done { .. }) => unanswered <= 1,
            Ok(Released::NotYours(_)) => unanswered == 0,
            Err(_) => false,
        };
        if over {
            self.forget(token);
        }
        verdict
    }

    /// Releases what is owed, before the name is asked for again.
    pub(super) async fn flush(&mut self, limit: Duration) {
        let now = self.node.clock.now();
        self.leftovers().retain(|leftover| leftover.until > now);
        let owed: Vec<Token> =
            self.leftovers().iter().filter(|left| left.owed).map(|left| left.token).collect();
        for token in owed {
            let _ = self.release(token, limit).await;
        }
    }
}
