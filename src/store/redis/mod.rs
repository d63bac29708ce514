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

use super::options::{Common, in_task};
use super::{
    Acquire, Acquired, Capabilities, ConnectOptions, Fencing, ForceRelease, HolderId, Inspect,
    Inspection, Name, Release, Released, RenewBatch, Renewal, Renewed, Signal, Store, StoreFuture,
    Target, Wait, Wakeups, failed,
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
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Level;
use wakeups::Hub;

/// So many microseconds pass between two grants of a name, with a release in between.
const LONGEST_FENCE_BLOCK: u32 = 64;

/// Keeps leases on a Redis server, or on those of a Sentinel or Cluster deployment.
///
/// [`LeaseManager::connect`](crate::LeaseManager::connect) makes one by itself. Connect one yourself to wrap it in a store
/// of your own, to count, to limit or to change what is asked of it.
///
/// ```no_run
/// # async fn connected() -> leasehold::Result<()> {
/// use leasehold::LeaseManager;
/// use leasehold::store::RedisStore;
///
/// let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
/// let leases = LeaseManager::builder().build(store)?;
/// # drop(leases);
/// # Ok(())
/// # }
/// ```
pub struct RedisStore {
    clock: Clock,
    keys: Keys,
    attempt: Duration,
    lanes: Lanes,
    locks: Link,
    renewals: Link,
    hub: Hub,
    reconnects: Signal,
    scripts: &'static Scripts,
    /// None where there is one server.
    routes: Option<Arc<Routes>>,
    /// Ends the watch over the routes.
    routing: CancellationToken,
    /// Where the connections live, and all waiting for them happens.
    runtime: Handle,
}

impl RedisStore {
    /// Connects to the server or servers of a URL, on the current runtime, with the default settings.
    ///
    /// As [`connect_with`](Self::connect_with).
    ///
    /// # Errors
    ///
    /// As [`connect_with`](Self::connect_with).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was connected is disconnected.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, &ConnectOptions::new()).await
    }

    /// Connects to the server or servers of a URL, on the current runtime, and tries out what locks will need.
    ///
    /// The URLs are those of [`LeaseManager::connect`](crate::LeaseManager::connect) for Redis; a list of them is a
    /// [`Quorum`](super::Quorum), and no `RedisStore`. The connections live and die with the runtime.
    ///
    /// # Errors
    ///
    /// As [`LeaseManager::connect`](crate::LeaseManager::connect).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was connected is disconnected.
    pub async fn connect_with(url: &str, options: &ConnectOptions) -> Result<Self> {
        let Common { ttl, attempt, remote } = options.common()?;
        let address = Address::parse(url, &remote.prefix, ttl, attempt)?.with(&remote)?;
        in_task(Self::open(address, Clock::system())).await
    }

    /// Connects on the current runtime and tries out what locks will need.
    pub(crate) async fn open(address: Address, clock: Clock) -> Result<Self> {
        let (attempt, keys) = (address.attempt, Keys::new(&address.prefix));
        let reconnects = Signal::new();
        let routing = CancellationToken::new();
        let failing = routing.clone().drop_guard();
        let routes = Routes::start(&address, &reconnects, &routing).await?;
        let scripts = match &routes {
            Some(routes) if routes.sharded => &SHARDED,
            _ => &PLAIN,
        };
        let replicas = address.replicas;
        let dial = Dial { address, routes: routes.clone(), reconnects: reconnects.clone() };
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
            store.close(attempt).await;
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
        let (target, timeout) = (Target::exclusive(name.clone()), self.attempt);
        let holder = HolderId::new(uuid::Uuid::new_v4(), 0);
        let ttl = Duration::from_secs(5);
        // The shortest memory: the fence's key is gone a millisecond later.
        let fencing = Some(Fencing::new(1, Some(Duration::from_millis(1))));
        let acquire = Acquire::new(target.clone(), holder, ttl, timeout).with_fencing(fencing);
        match self.acquire(acquire.clone()).await {
            Err(error) if replies::is_key_out_of_reach(&error) => {
                let prefix = self.keys.prefix().to_owned();
                trace::later(Level::WARN, || {
                    move || {
                        tracing::warn!(
                            prefix,
                            %error,
                            "this user may not touch the prefix followed by leasehold-probe:, so its permissions were \
                             not checked; if all locks are denied, the prefix does not fit the user"
                        );
                    }
                });
                return Ok(());
            }
            result => drop(result?),
        }
        let again = self.acquire(acquire).await;
        let by_text = self.run_on(&BY_TEXT, &name, timeout).await;
        let renewal = Renewal::new(target.clone(), holder);
        let renewed = self.renew(RenewBatch::new(vec![renewal], ttl, timeout)).await;
        let release = Release::new(target.clone(), holder, 0, timeout);
        let released = self.release(release.clone()).await;
        // Of what is not there one asks whether it is gone or taken.
        let gone = self.release(release).await;
        let forced = self.force_release(ForceRelease::new(target, timeout)).await;
        again?;
        by_text?;
        renewed?.verdicts.into_iter().collect::<Result<Vec<_>>>()?;
        released?;
        gone?;
        forced.map(drop)
    }

    /// Runs a script that has the key of `name` and no arguments.
    async fn run_on(
        &self,
        script: &'static Script,
        name: &Name,
        timeout: Duration,
    ) -> Result<Vec<Element>> {
        let mut call = Call::default();
        call.key(&self.keys.lock(name));
        let link = self.locks.clone();
        self.at_home(async move { link.run(script, call, timeout).await }).await
    }

    /// For how many seconds the server has been up, and the id of this run of it.
    async fn run_of_server(&self, timeout: Duration) -> Result<(i64, String)> {
        let link = self.locks.clone();
        self.at_home(async move {
            let mut reply = link.run(&AGE, Call::default(), timeout).await?.into_iter();
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
        Capabilities::default()
            .with_longest_fence_block(LONGEST_FENCE_BLOCK)
            .with_renewal_batch(BATCH_SIZE)
            .with_sharded(self.renewals.is_cluster())
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
        match request.target.require_exclusive() {
            Ok(()) => self.lanes.acquire(request),
            Err(error) => failed(error),
        }
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        match request.target.require_exclusive() {
            Ok(()) => self.lanes.release(request),
            Err(error) => failed(error),
        }
    }

    fn renew(&self, batch: RenewBatch) -> StoreFuture<Renewed> {
        let (link, clock, keys) = (self.renewals.clone(), self.clock.clone(), self.keys.clone());
        Box::pin(renewals::renew(Caller { link, clock, keys }, batch))
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        request.target.require_exclusive()?;
        let reply = self.run_on(&INSPECT, &request.target.name, request.timeout).await?;
        replies::inspection(&reply)
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        request.target.require_exclusive()?;
        let script = &self.scripts.force;
        match self.run_on(script, &request.target.name, request.timeout).await?.first() {
            Some(Element::Int(deleted)) => Ok(*deleted > 0),
            _ => Err(replies::nonsense()),
        }
    }

    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        request.target.require_exclusive()?;
        let channel = self.keys.channel(&request.target.name).concat();
        let subscribed = timeout(request.timeout, self.hub.subscribe(channel)).await;
        subscribed.unwrap_or_else(|_| Err(Error::silent())).map(Some)
    }

    fn reconnects(&self) -> Option<Signal> {
        Some(self.reconnects.clone())
    }

    /// By the server's uptime alone, whatever it keeps on disk: a file can be another one, cut short, or behind.
    /// Whole seconds, so up to one less than it is.
    async fn age(&self, timeout: Duration) -> Result<Option<Duration>> {
        let up = self.run_of_server(timeout).await?.0;
        // The server rounds both its start and its time down.
        Ok(Some(Duration::from_secs(u64::try_from(up).unwrap_or(0).saturating_sub(1))))
    }

    async fn server_id(&self, timeout: Duration) -> Result<Option<String>> {
        let id = self.run_of_server(timeout).await?.1;
        Ok(Some(id).filter(|id| !id.is_empty()))
    }

    async fn close(&self, timeout: Duration) {
        self.routing.cancel();
        self.lanes.close(timeout * 2).await;
        self.locks.close().await;
        self.renewals.close().await;
        self.hub.close(timeout).await;
    }
}
