//! Keeps leases on a Redis server, or on a fleet of them, in the layout of Redisson's `RLock`, or as plain strings.
//!
//! The key (prefix + name) is a hash of one field, holder id -> hold count, with a time to live; in `Layout::Plain` it is a
//! string, the holder id. The layout chooses the scripts and the capabilities, and nothing else. Acquires
//! and releases go through one batcher for each runtime (in a cluster, also for each slot): requests that arrive while
//! calls are in flight wait, and leave as one call. Renewals and subscriptions have connections of their own. In a fleet
//! each server has its own connections, and the routes choose the server.

mod checks;
mod link;
mod listing;
mod pubsub;
mod scripts;
mod send;
mod topology;

pub(crate) use checks::examine::examine;
pub(crate) use link::address::Address;
#[cfg(feature = "testing")]
pub use link::in_process::{InProcessServer, ServerReply};

use super::connect::layout::Layout;
use super::connect::options::{Common, in_task};
use super::connect::remote::Replicas;
use super::contract::mode::Kind;
use super::{
    About, Acquire, Acquired, Annotate, Arrival, Capabilities, ConnectOptions, Describe, Ends,
    ForceRelease, Inbox, Inspect, Inspection, Line, List, Mode, Name, Owner, Owners, Pages,
    Release, Released, RenewBatch, RenewCall, Renewal, Renewed, Reserve, Reserved, Resize,
    SetVerdicts, Signal, Store, StoreFuture, Topic, Uptime, Wait, Wakeups, Want, failed,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use async_trait::async_trait;
use checks::settings::Checkup;
use listing::RedisPages;
use pubsub::subscriptions::Subscriptions;
use scripts::keys::Keys;
use scripts::lock::Codec;
use scripts::permits::{MOST_PERMITS, too_many};
use scripts::reply::Element;
use scripts::set::AcquireAll;
use scripts::{
    Script, ScriptCall, Scripts, UPTIME, line, managers, metadata, modes, notes, tokens,
};
use send::batch::{BATCH_SIZE, RuntimeBatchers};
use send::renew::{RENEWALS_PER_CALL, RenewContext};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use topology::routes::Routes;
use topology::{Connection, Connector};
use uuid::Uuid;

/// At least so many microseconds pass between two grants of a name, with a release in between.
const LONGEST_FENCE_BLOCK: u32 = 64;

/// Returns the abilities of a layout.
fn abilities(layout: Layout) -> Capabilities {
    let can = Capabilities::default()
        .with_longest_fence_block(LONGEST_FENCE_BLOCK)
        .with_renewal_batch(RENEWALS_PER_CALL)
        .with_steals(true)
        .with_keeps(true)
        .with_own_ttl(true)
        .with_reserves(true);
    match layout {
        Layout::Redisson => can
            .with_lingers(true)
            .with_line(Line::Arrivals)
            .with_mode(Mode::Read)
            .with_mode(Mode::Write)
            .with_mode(Mode::Permits { size: 1, take: 1 }),
        Layout::Plain => can
            .with_counts(false)
            .with_reason_against_read_write(NO_READ_WRITE)
            .with_reason_against_permits(NO_PERMITS),
    }
}

/// Why a plain lock has no readers, and no permits.
const NO_READ_WRITE: &str = "a lock of Layout::Plain is a string, which has no readers; use `lock`, or a manager with \
                             Layout::Redisson and names of its own";
const NO_PERMITS: &str = "a lock of Layout::Plain is a string, which has no permits; use `slots`, or a manager with \
                          Layout::Redisson and names of its own";

/// Keeps leases on a Redis server, or on those of a Sentinel or Cluster deployment.
///
/// [`LeaseManager::connect`](crate::LeaseManager::connect) makes one by itself. Connect one yourself to wrap it in a
/// store of your own, which counts, limits or changes the requests.
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
    batchers: RuntimeBatchers,
    caller: EngineCaller,
    renewals: Connection,
    subscriptions: Subscriptions,
    reconnects: Signal,
    scripts: &'static Scripts,
    /// Those of the layout.
    can: Capabilities,
    layout: Layout,
    /// The replicas that must confirm a grant before it counts.
    replicas: Option<Replicas>,
    /// `None` for a single server.
    routes: Option<Arc<Routes>>,
    /// Ends the refreshes of the routes.
    routing: CancellationToken,
}

/// Runs scripts on the runtime of the engine, whatever the runtime of the caller is. Calls that may travel with others go
/// through the batchers instead.
#[derive(Clone)]
struct EngineCaller {
    connection: Connection,
    /// The runtime of the connections, and of all waiting for them.
    runtime: Handle,
}

impl EngineCaller {
    /// Sends a call, also if the future is dropped.
    fn run(
        &self,
        script: &'static Script,
        call: ScriptCall,
        timeout: Duration,
    ) -> impl Future<Output = Result<Vec<Element>>> + Send + use<> {
        let connection = self.connection.clone();
        let reply = self.runtime.spawn(async move { connection.run(script, call, timeout).await });
        async move { reply.await.unwrap_or_else(|_| Err(scripts::reply::connection_closed())) }
    }
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
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the connections are closed.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, &ConnectOptions::new()).await
    }

    /// Connects to the server or servers of a URL, on the current runtime, and checks the permissions that locks will need.
    ///
    /// The URLs are those of [`LeaseManager::connect`](crate::LeaseManager::connect) for Redis; a list of them is a
    /// [`Quorum`](super::Quorum), not a `RedisStore`. The connections end with the runtime.
    ///
    /// # Errors
    ///
    /// As [`LeaseManager::connect`](crate::LeaseManager::connect).
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the connections are closed.
    pub async fn connect_with(url: &str, options: &ConnectOptions) -> Result<Self> {
        let Common { ttl, attempt, remote, client_name } = options.common()?;
        let address = Address::parse(url, &remote, ttl, attempt)?;
        let address = address.named(&client_name);
        in_task(Self::open(address, Clock::system())).await
    }

    /// Connects on the current runtime and checks the permissions that locks will need.
    pub(crate) async fn open(address: Address, clock: Clock) -> Result<Self> {
        let attempt = address.attempt;
        // Boxed: futures that are nested in each other this deep reach the compiler's recursion limit in the caller's crate.
        let store = Box::pin(Self::open_untried(address, clock)).await?;
        match Box::pin(checks::permissions::check(&store)).await {
            Ok(tried) => tried.warn(store.keys.prefix()),
            Err(error) => {
                store.close(attempt).await;
                return Err(error);
            }
        }
        Ok(store)
    }

    /// Connects on the current runtime, and checks the settings of the servers, but no permissions.
    async fn open_untried(address: Address, clock: Clock) -> Result<Self> {
        let attempt = address.attempt;
        let keys = Keys::new(&address.prefix);
        let reconnects = Signal::new();
        let routing = CancellationToken::new();
        let failing = routing.clone().drop_guard();
        let routes = Routes::start(&address, &reconnects, &routing).await?;
        let sharded = routes.as_ref().is_some_and(|routes| routes.sharded);
        let scripts = Scripts::of(address.layout, sharded);
        let can = abilities(address.layout);
        let replicas = address.replicas;
        let layout = address.layout;
        let connector = Connector {
            address,
            routes: routes.clone(),
            reconnects: reconnects.clone(),
            destination: watch::Sender::default(),
        };
        let locks = connector.connect().await?;
        let renewals = match connector.connect_for_renewals().await {
            Ok(connection) => connection,
            Err(error) => {
                locks.close().await;
                return Err(error);
            }
        };
        let subscriptions = match Subscriptions::start(&connector).await {
            Ok(subscriptions) => subscriptions,
            Err(error) => {
                locks.close().await;
                renewals.close().await;
                return Err(error);
            }
        };
        let checkup = Checkup::new(&connector, locks.clone());
        let own_listeners = subscriptions.listeners();
        let codec = Codec { keys: keys.clone(), scripts, replicas, own_listeners };
        let batchers = RuntimeBatchers::start(locks.clone(), connector, codec, clock.clone());
        let store = Self {
            clock,
            keys,
            attempt,
            batchers,
            caller: EngineCaller { connection: locks, runtime: Handle::current() },
            renewals,
            subscriptions,
            reconnects,
            scripts,
            can,
            layout,
            replicas,
            routes,
            routing: failing.disarm(),
        };
        // Boxed, too.
        if let Err(error) = Box::pin(checkup.run(&store.routing)).await {
            store.close(attempt).await;
            return Err(error);
        }
        Ok(store)
    }

    /// Makes a store of a server in this process, for simulations, on the current runtime. Its user has the wake-ups.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for options that are.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn in_process(options: &ConnectOptions, server: InProcessServer) -> Result<Self> {
        let Common { ttl, attempt, remote, .. } = options.common()?;
        let address = Address::parse("redis://in-process", &remote, ttl, attempt)?;
        let keys = Keys::new(&address.prefix);
        let layout = address.layout;
        let scripts = Scripts::of(layout, false);
        let reconnects = Signal::new();
        let connection = Connection::InProcess(server);
        let (subscriptions, _) = Subscriptions::detached();
        let own_listeners = subscriptions.listeners();
        let codec = Codec { keys: keys.clone(), scripts, replicas: None, own_listeners };
        let connector = Connector {
            address,
            routes: None,
            reconnects: reconnects.clone(),
            destination: watch::Sender::default(),
        };
        let clock = Clock::tokio();
        let batchers = RuntimeBatchers::start(connection.clone(), connector, codec, clock.clone());
        let caller = EngineCaller { connection: connection.clone(), runtime: Handle::current() };
        Ok(Self {
            clock,
            keys,
            attempt,
            batchers,
            caller,
            renewals: connection,
            subscriptions,
            reconnects,
            scripts,
            can: abilities(layout),
            layout,
            replicas: None,
            routes: None,
            routing: CancellationToken::new(),
        })
    }

    /// Refuses what the layout cannot carry.
    fn check(&self, mode: Mode, arrival: Option<Arrival>) -> Result<()> {
        match arrival {
            _ if !self.can.supports(mode) => Err(self.can.unsupported(mode)),
            Some(_) if self.can.line == Line::Unordered => Err(Arrival::unsupported()),
            _ => Ok(()),
        }
    }

    /// Runs a script that has the key of `name` and no arguments.
    async fn run_on(
        &self,
        script: &'static Script,
        name: &Name,
        timeout: Duration,
    ) -> Result<Vec<Element>> {
        let mut call = ScriptCall::default();
        call.key(&self.keys.lock(name));
        self.caller.run(script, call, timeout).await
    }
}

impl Drop for RedisStore {
    /// Closes the connection of renewals. Without `close`, the batchers and the subscriptions end with their handles.
    fn drop(&mut self) {
        self.routing.cancel();
        let renewals = self.renewals.clone();
        self.caller.runtime.spawn(async move { renewals.close().await });
    }
}

/// Reads the seconds since the start of a server, and its id.
fn uptime_of(up: &Element, id: &Element) -> Result<Uptime> {
    let (Element::Int(up), Element::Text(id)) = (up, id) else {
        return Err(scripts::reply::malformed_reply());
    };
    // The server rounds both its start and its time down.
    let age = Duration::from_secs(u64::try_from(*up).unwrap_or(0).saturating_sub(1));
    Ok(Uptime::new(Some(age)).with_server(Some(id.clone()).filter(|id| !id.is_empty())))
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
        self.can
    }

    fn shard(&self, name: &Name) -> usize {
        match &self.routes {
            Some(routes) => routes.shard(self.renewals.slot(self.keys.lock(name))),
            None => 0,
        }
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        let (request, steal) = request.split_steal();
        if let Err(error) = self.check(request.target.mode, request.arrival) {
            return failed(error);
        }
        match (steal, request.target.mode) {
            (_, Mode::Permits { take, .. }) if take > MOST_PERMITS => failed(too_many(take)),
            (None, _) => self.batchers.send(request),
            (Some(steal), _) => notes::steal(self, request, steal),
        }
    }

    fn acquire_all(&self, requests: Vec<Acquire>) -> StoreFuture<SetVerdicts> {
        match AcquireAll::new(requests) {
            Some(Ok(request)) => self.batchers.send(request),
            Some(Err(error)) => failed(error),
            None => Box::pin(std::future::ready(Ok(Vec::new()))),
        }
    }

    fn is_atomic(&self, names: &[&Name]) -> bool {
        let slot = |name: &Name| self.renewals.slot(self.keys.lock(name));
        names.windows(2).all(|pair| slot(pair[0]) == slot(pair[1]))
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        if let Err(error) = self.check(request.target.mode, request.arrival) {
            return failed(error);
        }
        match (request.ends, request.mark()) {
            (_, Err(error)) => failed(error),
            (Ends::Hold, Ok(_)) => self.batchers.send(request),
            (Ends::Arrival, Ok(_)) if self.can.line == Line::Unordered => {
                failed(Arrival::unsupported())
            }
            (Ends::Arrival, Ok(_)) => line::release_arrival(self, request),
        }
    }

    /// Returns a call for each hundred items of a server.
    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        let connection = self.renewals.clone();
        let clock = self.clock.clone();
        let keys = self.keys.clone();
        let context = RenewContext { connection, clock, keys, scripts: self.scripts };
        let refused = batch.items.iter().find_map(|item| self.check(item.target.mode, None).err());
        let shard = |item: &Renewal| self.shard(&item.target.name);
        let renew = |batch| -> StoreFuture<Renewed> {
            match &refused {
                Some(error) => failed(error.clone()),
                None => Box::pin(send::renew::renew(context.clone(), batch)),
            }
        };
        RenewCall::divide(batch, RENEWALS_PER_CALL, shard, renew)
    }

    async fn resize(&self, request: Resize) -> Result<Option<u32>> {
        self.check(Mode::Permits { size: request.size, take: 1 }, None)?;
        modes::resize(self, &request).await
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        self.check(request.target.mode, None)?;
        match (request.about, request.target.mode.kind()) {
            (About::Holders, Kind::Lock) => metadata::inspect(self, request).await,
            (About::Holders, Kind::ReadWrite | Kind::Semaphore) => {
                modes::holders(self, request).await
            }
            (About::Line, _) if self.can.line == Line::Unordered => Err(request.unsupported()),
            (About::Line, _) => {
                Ok(Inspection::default().with_line(line::waiting(self, request).await?))
            }
            (About::Note(holder), _) => {
                Ok(Inspection::default().with_note(notes::note(self, request, holder).await?))
            }
        }
    }

    async fn annotate(&self, request: Annotate) -> Result<bool> {
        metadata::annotate(self, request).await
    }

    async fn describe(&self, request: Describe) -> Result<()> {
        managers::describe(self, request).await
    }

    async fn owners(&self, request: Owners) -> Result<Vec<Option<Owner>>> {
        managers::owners(self, request).await
    }

    fn list(&self, request: List) -> Result<Box<dyn Pages>> {
        let EngineCaller { connection, runtime } = self.caller.clone();
        let keys = self.keys.clone();
        Ok(Box::new(RedisPages::new(connection, keys, self.layout, runtime, request)))
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        self.check(request.target.mode, None)?;
        notes::force_release(self, request).await
    }

    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        self.check(request.target.mode, None)?;
        let channel = match request.topic {
            Topic::Release => self.keys.channel_of(&request.target).concat(),
            Topic::Metadata => self.keys.leader_channel(&request.target.name).concat(),
        };
        let subscribed = timeout(request.timeout, self.subscriptions.subscribe(channel)).await;
        subscribed.unwrap_or_else(|_| Err(Error::silent())).map(Some)
    }

    fn reconnects(&self) -> Option<Signal> {
        Some(self.reconnects.clone())
    }

    async fn want(&self, request: Want) -> Result<bool> {
        notes::want(self, request).await
    }

    fn inbox(&self, manager: Uuid) -> Option<Inbox> {
        let channel = format!("{}{manager}", self.keys.inbox().concat());
        Some(self.subscriptions.inbox(channel, &self.caller.runtime))
    }

    fn guard_key(&self, name: &Name) -> Option<String> {
        Some(self.keys.lock(name).concat())
    }

    /// Returns the server's uptime, whatever it keeps on disk: the file can be another one, cut short, or behind. It counts
    /// whole seconds, so it is up to a second too low.
    async fn uptime(&self, timeout: Duration) -> Result<Uptime> {
        let reply = self.caller.run(&UPTIME, ScriptCall::default(), timeout).await?;
        let [up, id, ..] = &reply[..] else { return Err(scripts::reply::malformed_reply()) };
        uptime_of(up, id)
    }

    async fn reserve(&self, request: Reserve) -> Result<Reserved> {
        // A call takes keys of one slot only.
        let size = if self.routes.is_some() { 1 } else { BATCH_SIZE };
        tokens::reserve(self, request, size).await
    }

    async fn close(&self, timeout: Duration) {
        self.routing.cancel();
        // At the same time: each of them may have to wait for a runtime that is not driven.
        tokio::join!(self.batchers.close(timeout * 2), self.subscriptions.close(timeout));
        self.caller.connection.close().await;
        self.renewals.close().await;
    }
}
