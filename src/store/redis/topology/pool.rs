//! Connections to the servers of a fleet.

use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::Signal;
use crate::store::redis::link::address::Address;
use crate::store::redis::link::node::Node;
use crate::store::redis::scripts::reply;
use crate::util::sync::{Mutex, MutexGuard};
use fred::types::config::Server;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

/// For how long a failure to connect counts for all callers.
const RECENT: Duration = Duration::from_millis(100);
/// For how long a server to which calls were redirected keeps its connection, though it is not in the map: it may be about
/// to get its first slot, or only few servers may know yet that it has one.
pub(super) const KEPT: Duration = Duration::from_secs(10);

/// Connections to the servers of a fleet, each made when it is first needed.
pub(super) struct Pool {
    address: Address,
    reconnects: Signal,
    pub(super) nodes: Arc<Nodes>,
    /// The runtime of the connections.
    runtime: Handle,
    pub(in crate::store::redis) ended: CancellationToken,
    _end: DropGuard,
}

#[derive(Default)]
pub(super) struct Nodes(Mutex<HashMap<Server, Arc<NodeSlot>>>);

/// A server, and the connection to it once it is made.
#[derive(Default)]
pub(super) struct NodeSlot {
    node: OnceCell<Node>,
    failed: Mutex<Option<(Instant, Error)>>,
    /// When a call was last redirected to it.
    redirected: Mutex<Option<Instant>>,
}

impl NodeSlot {
    /// Connects. Concurrent callers share one attempt.
    async fn connect(&self, address: &Address, reconnects: &Signal) -> Result<Node> {
        let failed = || self.failed.lock();
        let connect = async || {
            if let Some((at, error)) = &*failed()
                && at.elapsed() < RECENT
            {
                return Err(error.clone());
            }
            match address.client().await {
                Ok(served) => Ok(Node::new(served, address, reconnects)),
                Err(error) => {
                    let error = error.with_fate(Fate::NotExecuted);
                    *failed() = Some((Instant::now(), error.clone()));
                    Err(error)
                }
            }
        };
        self.node.get_or_try_init(connect).await.cloned()
    }

    fn redirected(&self) -> MutexGuard<'_, Option<Instant>> {
        self.redirected.lock()
    }

    /// Returns whether a call was redirected to it recently.
    pub(super) fn is_new(&self) -> bool {
        let mut redirected = self.redirected();
        *redirected = redirected.filter(|at| at.elapsed() < KEPT);
        redirected.is_some()
    }
}

impl Nodes {
    fn lock(&self) -> MutexGuard<'_, HashMap<Server, Arc<NodeSlot>>> {
        self.0.lock()
    }

    pub(super) fn redirected(&self, server: &Server) {
        *self.lock().entry(server.clone()).or_default().redirected() = Some(Instant::now());
    }

    /// Returns whether calls were redirected to any server recently.
    pub(super) fn any_redirected(&self) -> bool {
        self.lock().values().any(|slot| slot.redirected().is_some())
    }

    /// Closes the connections to all servers but those to keep.
    pub(super) async fn keep_only(&self, keep: impl Fn(&Server, &NodeSlot) -> bool) {
        let mut gone = JoinSet::new();
        self.lock().retain(|server, slot| {
            let kept = keep(server, slot);
            if !kept && let Some(node) = slot.node.get().cloned() {
                gone.spawn(async move { node.close().await });
            }
            kept
        });
        // Unlike `join_all`, this does not panic when the runtime ends in the middle.
        while gone.join_next().await.is_some() {}
    }
}

impl Pool {
    /// Makes an empty pool, for connections on the current runtime.
    pub(in crate::store::redis) fn new(address: Address, reconnects: Signal) -> Self {
        let nodes = Arc::default();
        let runtime = Handle::current();
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        Self { address, reconnects, nodes, runtime, ended, _end: end }
    }

    /// Returns the connection to a server, made now if need be.
    pub(in crate::store::redis) async fn node(&self, server: &Server) -> Result<Node> {
        if self.ended.is_cancelled() {
            return Err(reply::connection_closed().with_fate(Fate::NotExecuted));
        }
        let slot = Arc::clone(self.nodes.lock().entry(server.clone()).or_default());
        if let Some(node) = slot.node.get() {
            return Ok(node.clone());
        }
        let address = self.address.of(server);
        let reconnects = self.reconnects.clone();
        let nodes = Arc::clone(&self.nodes);
        let server = server.clone();
        // In a task of its own: the caller may be dropped, and may be on another runtime.
        let connecting = self.runtime.spawn(async move {
            let node = slot.connect(&address, &reconnects).await?;
            let wanted = nodes.lock().get(&server).is_some_and(|known| Arc::ptr_eq(known, &slot));
            if !wanted {
                node.close().await;
                return Err(silent_unless_answered());
            }
            Ok(node)
        });
        connecting
            .await
            .unwrap_or_else(|_| Err(reply::connection_closed().with_fate(Fate::NotExecuted)))
    }

    pub(in crate::store::redis) async fn close(&self) {
        self.ended.cancel();
        self.nodes.keep_only(|_, _| false).await;
    }
}

pub(super) fn silent_unless_answered() -> Error {
    Error::new(ErrorKind::Unavailable, "no server can be reached that serves this name now")
        .with_fate(Fate::NotExecuted)
}
