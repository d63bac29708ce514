//! Leases on a Redis server, or a fleet of them, laid out as Redisson lays out its `RLock`.
//!
//! The key (prefix + name) is a hash of one field, token -> hold count, with a time to live. Acquires
//! and releases go through one lane for each runtime (in a cluster, and each slot): while calls are in
//! flight, what arrives waits and leaves as one call. Renewals and subscriptions have connections of their
//! own. In a fleet every server has its own connections, and who is asked is up to its routes.

mod ask;
mod clerks;
mod connect;
mod discover;
mod fleet;
mod keys;
mod lane;
mod lanes;
mod lines;
mod link;
mod renewals;
mod replies;
mod requests;
mod routes;
mod scripts;
mod sentinels;
mod slots;
mod tls;
mod turn;
mod url;
mod wakeups;

pub(crate) use connect::Address;

use super::{
    Acquire, Acquired, Capabilities, Fencing, HolderId, Holding, Mode, Name, Release, Released,
    Renewal, Renewed, Store, StoreFuture, Wakeups,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::trace;
use async_trait::async_trait;
use keys::Keys;
use lanes::Lanes;
use lines::BATCH_SIZE;
use link::{Dial, Link};
use renewals::Caller;
use replies::Element;
use requests::Wire;
use routes::Routes;
use scripts::{AGE, BY_TEXT, Call, INSPECT, PLAIN, SHARDED, Script, Scripts, slot};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::Level;
use wakeups::Hub;

/// So many microseconds pass between two grants of a name, with a release in between.
const LONGEST_FENCE_BLOCK: u32 = 64;

pub(crate) struct RedisStore {
    clock: Clock,
    keys: Keys,
    attempt: Duration,
    lanes: Lanes,
    locks: Link,
    renewals: Link,
    hub: Hub,
    reconnects: Arc<Notify>,
    scripts: &'static Scripts,
    /// None where there is one server.
    routes: Option<Arc<Routes>>,
    /// Ends the watch over the routes.
    routing: CancellationToken,
    /// Where the connections live, and all waiting for them happens.
    runtime: Handle,
}

impl RedisStore {
    /// Connects on the current runtime and tries out what locks will need.
    pub(crate) async fn connect(address: Address, clock: Clock) -> Result<Self> {
        let (attempt, keys) = (address.attempt, Keys::new(&address.prefix));
        let reconnects = Arc::new(Notify::new());
        let routing = CancellationToken::new();
        let failing = routing.clone().drop_guard();
        let routes = Routes::start(&address, &reconnects, &routing).await?;
        let scripts = match &routes {
            Some(routes) if routes.sharded => &SHARDED,
            _ => &PLAIN,
        };
        let replicas = address.replicas;
        let dial = Dial { address, routes: routes.clone(), reconnects: Arc::clone(&reconnects) };
        let locks = dial.link().await?;
        let renewals = match dial.link().await {
            Ok(link) => link,
            Err(error) => {
                locks.close().await;
                return Err(error);
            }
        };
        let hub = match Hub::start(&dial).await {
            Ok(hub) => hub,
            Err(error) => {
                locks.close().await;
                renewals.close().await;
                return Err(error);
            }
        };
        let wire = Wire { keys: keys.clone(), scripts, replicas, hub: hub.clone() };
        let lanes = Lanes::start(locks.clone(), dial, wire, clock.clone());
        let store = Self {
            clock,
            keys,
            attempt,
            lanes,
            locks,
            renewals,
            hub,
            reconnects,
            scripts,
            routes,
            routing: failing.disarm(),
            runtime: Handle::current(),
        };
        if let Err(error) = store.try_out().await {
            store.close().await;
            return Err(error);
        }
        Ok(store)
    }

    /// Does once what it will do later, with a lock of a name of its own, so that a missing right shows at the
    /// start. A user that may not touch this key, but others, passes.
    ///
    /// In a cluster one server is enough: of the others some may be away, which only their names must feel.
    async fn try_out(&self) -> Result<()> {
        let mut result = Ok(());
        for name in self.probes()? {
            result = self.try_out_with(name).await;
            if !result.as_ref().is_err_and(Error::is_unavailable) {
                break;
            }
        }
        result
    }

    /// Names to try out, one for each server.
    fn probes(&self) -> Result<Vec<Name>> {
        let name = || Name::new(&format!("leasehold-probe:{}", uuid::Uuid::new_v4()));
        let servers = match &self.routes {
            Some(routes) if routes.is_cluster() => routes.servers().len(),
            _ => 1,
        };
        let (mut names, mut seen) = (Vec::new(), Vec::new());
        // A server with few slots may be left out.
        for _ in 0..servers * 16 {
            let name = name()?;
            let server = self.shard(&name);
            if !seen.contains(&server) {
                seen.push(server);
                names.push(name);
            }
        }
        Ok(names)
    }

    async fn try_out_with(&self, name: Name) -> Result<()> {
        let token = HolderId::new(uuid::Uuid::new_v4(), 0);
        let (mode, count, timeout) = (Mode::Exclusive, 1, self.attempt);
        let ttl = Duration::from_secs(5);
        // The shortest memory: the fence's key is gone a millisecond later.
        let fencing = Some(Fencing { block: 1, retention: Some(Duration::from_millis(1)) });
        let acquire = Acquire { name: name.clone(), token, mode, count, ttl, fencing, timeout };
        match self.acquire(acquire.clone()).await {
            Err(error) if replies::is_key_out_of_reach(&error) => {
                trace::later(
                    Level::DEBUG,
                    || move || tracing::debug!(%error, "rights not tried out"),
                );
                return Ok(());
            }
            result => drop(result?),
        }
        let again = self.acquire(acquire).await;
        let by_text = self.run_on(&BY_TEXT, &name).await;
        let renewal = Renewal { name: name.clone(), token, ttl, fence_retention: None };
        let renewed = self.renew(vec![renewal], timeout).await;
        let release = Release { name: name.clone(), token, count: 0, timeout };
        let released = self.release(release.clone()).await;
        // Of what is not there one asks whether it is gone or taken.
        let gone = self.release(release).await;
        let forced = self.force_release(&name).await;
        again?;
        by_text?;
        renewed?.verdicts.into_iter().collect::<Result<Vec<_>>>()?;
        released?;
        gone?;
        forced.map(drop)
    }

    /// Runs a script that has the key of `name` and no arguments.
    async fn run_on(&self, script: &'static Script, name: &Name) -> Result<Vec<Element>> {
        let mut call = Call::default();
        call.key(&self.keys.lock(name));
        let (link, attempt) = (self.locks.clone(), self.attempt);
        self.at_home(async move { link.run(script, call, attempt).await }).await
    }

    /// For how many seconds the server has been up, and the id of this run of it.
    async fn run_of_server(&self) -> Result<(i64, String)> {
        let (link, attempt) = (self.locks.clone(), self.attempt);
        self.at_home(async move {
            let mut reply = link.run(&AGE, Call::default(), attempt).await?.into_iter();
            match (reply.next(), reply.next()) {
                (Some(Element::Int(up)), Some(Element::Text(id))) => Ok((up, id)),
                _ => Err(replies::nonsense()),
            }
        })
        .await
    }

    /// Runs on the engine's runtime, whatever that of the caller is like.
    async fn at_home<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.runtime.spawn(work).await.unwrap_or_else(|_| Err(replies::gone()))
    }
}

impl Drop for RedisStore {
    /// Without `close`, the lanes and the hub end with their entrances; this one has none.
    fn drop(&mut self) {
        self.routing.cancel();
        let renewals = self.renewals.clone();
        self.runtime.spawn(async move { renewals.close().await });
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither hosts nor credentials.
        f.debug_struct("RedisStore").field("prefix", &self.keys.prefix()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for RedisStore {
    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let sharded = self.renewals.is_cluster();
        Capabilities {
            longest_fence_block: LONGEST_FENCE_BLOCK,
            renewal_batch: BATCH_SIZE,
            sharded,
            ..Capabilities::default()
        }
    }

    fn shard(&self, name: &Name) -> usize {
        match &self.routes {
            Some(routes) if routes.is_cluster() => {
                routes.shard(slot(self.keys.lock(name).concat().as_bytes()))
            }
            _ => 0,
        }
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        self.lanes.acquire(request)
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        self.lanes.release(request)
    }

    fn renew(&self, batch: Vec<Renewal>, timeout: Duration) -> StoreFuture<Renewed> {
        let (link, clock, keys) = (self.renewals.clone(), self.clock.clone(), self.keys.clone());
        Box::pin(renewals::renew(Caller { link, clock, keys }, batch, timeout))
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Holding>> {
        replies::holding(&self.run_on(&INSPECT, name).await?)
    }

    async fn force_release(&self, name: &Name) -> Result<bool> {
        match self.run_on(&self.scripts.force, name).await?.first() {
            Some(Element::Int(deleted)) => Ok(*deleted > 0),
            _ => Err(replies::nonsense()),
        }
    }

    async fn subscribe(&self, name: &Name) -> Result<Option<Wakeups>> {
        self.hub.subscribe(self.keys.channel(name).concat()).await.map(Some)
    }

    fn reconnects(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.reconnects))
    }

    /// By the server's uptime alone, whatever it keeps on disk: a file can be another one, cut short, or behind.
    /// Whole seconds, so up to one less than it is.
    async fn age(&self) -> Result<Option<Duration>> {
        let up = self.run_of_server().await?.0;
        // The server rounds both its start and its time down.
        Ok(Some(Duration::from_secs(u64::try_from(up).unwrap_or(0).saturating_sub(1))))
    }

    async fn server_id(&self) -> Result<Option<String>> {
        let id = self.run_of_server().await?.1;
        Ok(Some(id).filter(|id| !id.is_empty()))
    }

    async fn close(&self) {
        self.routing.cancel();
        self.lanes.close(self.attempt * 2).await;
        self.locks.close().await;
        self.renewals.close().await;
        self.hub.close(self.attempt).await;
    }
}
