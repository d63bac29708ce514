//! One connection to one server, which carries a session for a while.
//!
//! The client library would reconnect by itself: after pauses that double without a bound, perhaps first to the
//! server that was just lost, and with whatever timeout that server gives. So here each of its clients serves for one
//! connection, and the [`Session`](super::Session) makes the next.
//!
//! # Invariants
//!
//! 1. **A lost link does nothing more.** The library's task ends with it, so it never takes the session away from
//!    the next link.
//! 2. **A kept session is never closed.** The library closes a session with the last handle on its client. The task keeps
//!    a handle until it has ended, unless [`Link::close`] takes it away.
//! 3. **[`Link::gone`] fires before the task's parts are dropped.** A watch of the library panics when they are.

use super::auth::User;
use super::url::Address;
use crate::util::backoff::Backoff;
use crate::util::sync::Mutex;
use spawns_core::{Spawn, Task, enter};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;
use zookeeper_client::{Client, Error as ZkError, SessionInfo, SessionState};

/// Shorter pauses of a busy machine must not cost a connection.
const SHORTEST_SILENCE: Duration = Duration::from_millis(500);
/// The bounds of the time that one server may take to open a session.
const OPENING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// The longest time that one server may take to resume a session.
const LONGEST_RESUMING: Duration = Duration::from_secs(2);
/// The bounds of the pauses between two rounds of all servers.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Returns for how long a server may be silent. After that and one failed try, there is time for another before a lease
/// ends.
pub(super) fn silence(session: Duration) -> Duration {
    (session / 5).max(SHORTEST_SILENCE.min(session / 4))
}

/// Returns how long one server may take to open a session.
pub(super) fn opening(session: Duration) -> Duration {
    (session / 6).clamp(OPENING.0, OPENING.1)
}

/// Returns how long one server may take to resume a session: longer once all servers have failed.
pub(super) fn resuming(session: Duration, round: u32) -> Duration {
    let first = (session / 6).max(SHORTEST_SILENCE.min(session / 4));
    let most = if round == 0 { first } else { session * 2 / 5 };
    most.min(LONGEST_RESUMING)
}

/// A handle on the client, which must outlive the task that needs it.
type Anchor = Arc<Mutex<Option<Client>>>;

/// A connection to one server.
pub(in crate::store::zookeeper) struct Link {
    pub(in crate::store::zookeeper) client: Client,
    /// The server.
    pub(super) host: String,
    gone: CancellationToken,
    /// While this is empty, the last handle closes the session.
    anchor: Anchor,
    task: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.anchor.lock().is_some() {
            self.cut();
        }
    }
}

impl Link {
    /// Connects for a new session, which is closed with the link until it is [kept](Self::keep_session).
    pub(in crate::store::zookeeper) async fn open(
        host: &str,
        address: &Address,
    ) -> Result<Self, ZkError> {
        Self::connect(host, address, None, opening(address.session)).await
    }

    /// Connects to resume a session.
    pub(super) async fn resume(
        host: &str,
        address: &Address,
        session: SessionInfo,
        limit: Duration,
    ) -> Result<Self, ZkError> {
        let link = Self::connect(host, address, Some(session), limit).await?;
        link.keep_session();
        // This server may be behind the last one; no reader may miss a node that existed there.
        let sync = tokio::time::timeout(limit, link.client.sync("/"));
        sync.await.map_err(|_| ZkError::Timeout)??;
        Ok(link)
    }

    async fn connect(
        host: &str,
        address: &Address,
        session: Option<SessionInfo>,
        limit: Duration,
    ) -> Result<Self, ZkError> {
        let mut connector = Client::connector()
            .with_session_timeout(address.session)
            .with_connection_timeout(silence(address.session))
            .with_fail_eagerly();
        if let Some(user) = &address.user {
            connector = connector.with_auth(User::SCHEME, user.secret());
        }
        if let Some(session) = session {
            connector = connector.with_session(session);
        }
        let spawner = Spawner::default();
        let mut connecting = pin!(connector.connect(host));
        let connecting = poll_fn(|context| {
            let _scope = enter(&spawner);
            connecting.as_mut().poll(context)
        });
        let client =
            tokio::time::timeout(limit, connecting).await.map_err(|_| ZkError::Timeout)??;
        let Spawner { gone, anchor, task } = spawner;
        let Some(task) = task.lock().take() else {
            return Err(ZkError::UnexpectedError("the client has no task".to_owned()));
        };
        Ok(Self { client, host: host.to_owned(), gone, anchor, task })
    }

    /// Makes the session outlive the link from now on.
    pub(super) fn keep_session(&self) {
        *self.anchor.lock() = Some(self.client.clone());
    }

    /// Waits until the connection is lost.
    pub(super) async fn until_lost(&self) {
        let mut states = self.client.state_watcher();
        if self.client.state() != SessionState::SyncConnected {
            return;
        }
        tokio::select! {
            // Even if it is connected again: the library did that, not the session.
            _ = states.changed() => {}
            () = self.gone() => {}
        }
    }

    /// Waits until the link has ended. Poll this before a watch of its client.
    pub(in crate::store::zookeeper) async fn gone(&self) {
        self.gone.cancelled().await;
    }

    /// Ends the connection, but not the session.
    pub(super) fn cut(&self) {
        self.gone.cancel();
        self.task.abort();
    }

    /// Ends the connection and the session, as soon as no other task has the link.
    pub(in crate::store::zookeeper) async fn close(self: Arc<Self>) {
        let gone = self.gone.clone();
        drop(self.anchor.lock().take());
        drop(self);
        gone.cancelled().await;
    }
}

/// Takes the library's task for the link.
#[derive(Default)]
struct Spawner {
    gone: CancellationToken,
    anchor: Anchor,
    task: Mutex<Option<AbortHandle>>,
}

impl Spawn for Spawner {
    fn spawn(&self, task: Task) {
        let gone = self.gone.clone().drop_guard();
        let future = Box::into_pin(task.future);
        let serving = Serving { _gone: gone, future, _anchor: Arc::clone(&self.anchor) };
        *self.task.lock() = Some(tokio::spawn(serving).abort_handle());
    }
}

/// The library's task. Its parts are dropped in this order.
struct Serving {
    _gone: DropGuard,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    _anchor: Anchor,
}

impl Future for Serving {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.future.as_mut().poll(context)
    }
}

/// Returns the servers in random order, but the one that was just lost as the last.
pub(super) fn hosts<'a>(address: &'a Address, lost: Option<&str>) -> Vec<&'a str> {
    let mut hosts: Vec<&str> = address.hosts.split(',').collect();
    hosts.sort_by_cached_key(|host| (Some(*host) == lost, Uuid::new_v4()));
    hosts
}

/// Returns the pauses between rounds of all servers.
pub(super) fn pauses_of_rounds(session: Duration) -> Backoff {
    Backoff::new(PAUSES.0, PAUSES.1.min(session / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(hosts: &str) -> Address {
        Address::parse(&format!("zookeeper://{hosts}"), "", Duration::from_secs(6)).unwrap()
    }

    #[test]
    fn server_that_was_just_lost_is_the_last_to_be_asked() {
        let address = address("zk1,zk2,zk3:2182");
        let mut first = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let mut order = hosts(&address, Some("zk2"));
            assert_eq!(order.pop(), Some("zk2"));
            first.insert(order[0]);
            order.sort_unstable();
            assert_eq!(order, ["zk1", "zk3:2182"]);
        }
        assert_eq!(first.len(), 2);
        assert_eq!(hosts(&address, None).len(), 3);
    }

    #[test]
    fn silent_server_is_dropped_before_a_lease_ends() {
        for millis in [1_000, 2_000, 3_000, 6_000, 30_000, 40_000] {
            let session = Duration::from_millis(millis);
            assert!(silence(session) <= session / 4, "{session:?}");
            assert!(opening(session) <= Duration::from_secs(1) + session / 6, "{session:?}");
            assert!(resuming(session, 0) <= session / 4, "{session:?}");
            assert!(resuming(session, 9) <= LONGEST_RESUMING, "{session:?}");
        }
        // A lease has three quarters of the session, less a third for its renewal and a tenth of grace.
        let session = Duration::from_secs(6);
        assert!(silence(session) + resuming(session, 0) < session * 3 / 4 * 17 / 30);
    }
}
