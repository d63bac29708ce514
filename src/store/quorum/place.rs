//! Standing in line at a node: one request for a name at a time, and what is left there of ours.

use super::node::Node;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Acquired, HolderId, Name, Release, Released, StoreFuture, Target};
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
    token: HolderId,
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

    pub(super) fn find(&mut self, token: HolderId) -> Option<&mut Leftover> {
        self.leftovers().iter_mut().find(|leftover| leftover.token == token)
    }

    pub(super) fn forget(&mut self, token: HolderId) {
        self.leftovers().retain(|leftover| leftover.token != token);
    }

    /// Whether a release is still to be confirmed.
    pub(super) fn owes(&mut self) -> bool {
        self.leftovers().iter().any(|leftover| leftover.owed)
    }

    pub(super) fn owe(&mut self, token: HolderId, until: Instant) {
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
    pub(super) fn owe_all(&mut self, token: HolderId) {
        for leftover in self.leftovers() {
            leftover.owed |= leftover.token.in_round(0) == token.in_round(0);
        }
    }

    /// An acquire is about to leave; it is owed until somebody wants to keep it.
    pub(super) fn sending(&mut self, token: HolderId, until: Instant) {
        self.owe(token, until);
        if let Some(leftover) = self.find(token) {
            leftover.unanswered += 1;
        }
    }

    pub(super) fn answered(&mut self, token: HolderId, verdict: &Result<Acquired>) {
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
    pub(super) fn keep(&mut self, token: HolderId) {
        if let Some(leftover) = self.find(token) {
            leftover.owed = false;
            if leftover.unanswered == 0 {
                self.forget(token);
            }
        }
    }

    /// Releases a token once. It stays a leftover if it may be there still, or come there yet.
    pub(super) async fn release(&mut self, token: HolderId, limit: Duration) -> Result<Released> {
        let request = Release::new(Target::exclusive(self.name.clone()), token, 0, limit);
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
        let owed: Vec<HolderId> =
            self.leftovers().iter().filter(|left| left.owed).map(|left| left.token).collect();
        for token in owed {
            let _ = self.release(token, limit).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::error::ErrorKind;
    use crate::store::{Acquire, Inspect, MemoryStore, Store};
    use tokio_util::sync::CancellationToken;
    use uuid::Uuid;

    const T: Duration = Duration::from_secs(30);

    fn node() -> (Arc<Node>, Name) {
        let store = Arc::new(MemoryStore::new());
        let clock = store.clock();
        let node = Node::new(0, store, clock, CancellationToken::new());
        (Arc::new(node), Name::new("job").unwrap())
    }

    /// Polls once.
    async fn waits<T>(future: impl Future<Output = T>) -> bool {
        timeout(Duration::ZERO, future).await.is_err()
    }

    fn token(number: u64) -> HolderId {
        HolderId::new(Uuid::from_u128(7), number)
    }

    fn error(fate: Fate) -> Result<Acquired> {
        Err(Error::new(ErrorKind::Unavailable, "out of order").with_fate(fate))
    }

    fn granted(clock: &Clock) -> Result<Acquired> {
        Ok(Acquired::granted(clock.now(), None))
    }

    async fn take(node: &Node, name: &Name, token: HolderId) {
        let request = Acquire::new(Target::exclusive(name.clone()), token, T, T);
        assert!(matches!(node.store.acquire(request).await, Ok(Acquired::Granted { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_and_an_empty_line_is_forgotten() {
        let (node, name) = node();
        let first = node.place(&name).await;
        let mut second = Box::pin(node.place(&name));
        assert!(waits(&mut second).await);
        drop(first);
        assert_eq!(node.lines().len(), 1, "somebody is in it");
        let mut second = second.await;
        let mut third = Box::pin(node.place(&name));
        assert!(waits(&mut third).await, "two at the head");
        second.owe(token(1), node.clock.now() + T);
        drop(second);
        let mut third = third.await;
        assert!(third.owes());
        drop(third);
        assert_eq!(node.lines().len(), 1, "something is owed");
        let mut last = node.place(&name).await;
        last.forget(token(1));
        assert!(!last.owes());
        drop(last);
        assert!(node.lines().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn hold_that_may_be_at_the_node_is_owed_until_one_keeps_it() {
        let (node, name) = node();
        let until = node.clock.now() + T;
        let mut place = node.place(&name).await;
        let held = Ok(Acquired::held(None));
        for answer in [error(Fate::NotExecuted), held] {
            place.sending(token(1), until);
            place.answered(token(1), &answer);
            assert!(place.find(token(1)).is_none(), "{answer:?}: nothing is there");
        }
        for answer in [error(Fate::Unknown), granted(&node.clock)] {
            place.sending(token(1), until);
            place.answered(token(1), &answer);
            assert!(place.owes(), "{answer:?}: it is there, perhaps");
            place.keep(token(1));
            assert!(!place.owes());
            // What has no answer yet may still come, after a release even.
            assert_eq!(place.find(token(1)).is_some(), answer.is_err(), "{answer:?}");
            place.forget(token(1));
        }
        // An answer to the second of two leaves the first.
        place.sending(token(1), until);
        place.sending(token(1), until);
        place.answered(token(1), &error(Fate::NotExecuted));
        assert!(place.find(token(1)).is_some());
        place.answered(token(1), &error(Fate::NotExecuted));
        assert!(place.find(token(1)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn all_attempts_of_one_hold_are_owed_together() {
        let (node, name) = node();
        let until = node.clock.now() + T;
        let mut place = node.place(&name).await;
        for kept in [token(1), token(1).in_round(1), token(2)] {
            place.sending(kept, until);
            place.answered(kept, &error(Fate::Unknown));
            place.keep(kept);
        }
        place.owe(token(3), until);
        place.owe_all(token(1).in_round(2));
        let mut owed = |token| place.find(token).unwrap().owed;
        assert_eq!([1, 2, 3].map(|number| owed(token(number))), [true, false, true]);
        assert!(owed(token(1).in_round(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_release_undoes_one_acquire() {
        let (node, name) = node();
        let until = node.clock.now() + T;
        for (sent, there, over) in [
            (0, true, true),
            (0, false, true),
            (1, true, true),
            (1, false, false),
            (2, true, false),
            (2, false, false),
        ] {
            let mut place = node.place(&name).await;
            place.owe(token(1), until);
            for _ in 0..sent {
                place.sending(token(1), until);
            }
            if there {
                take(&node, &name, token(1)).await;
            }
            let released = place.release(token(1), T).await;
            assert_eq!(matches!(released, Ok(Released::Done { .. })), there, "{released:?}");
            assert_eq!(place.find(token(1)).is_none(), over, "{sent} sent, there: {there}");
            place.forget(token(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn owed_release_is_done_or_expired_before_the_name_is_asked_for() {
        let (node, name) = node();
        let now = node.clock.now();
        let mut place = node.place(&name).await;
        take(&node, &name, token(1)).await;
        place.owe(token(1), now + T);
        place.sending(token(2), now + T);
        place.sending(token(3), now);
        place.flush(T).await;
        assert!(
            node.store
                .inspect(Inspect::new(Target::exclusive(name), T))
                .await
                .unwrap()
                .holders
                .is_empty()
        );
        assert!(place.find(token(1)).is_none() && place.find(token(3)).is_none());
        assert!(place.find(token(2)).is_some(), "it may still come");
    }
}
