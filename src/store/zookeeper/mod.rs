//! Keeps leases on a ZooKeeper server or ensemble.
//!
//! Each name has a directory of ephemeral sequential nodes, its queue. The first node holds a lock, and each waiter watches
//! the node before its own. One session serves all leases of a manager.
//!
//! The guide has the promises and the costs. `tree/queue.rs` explains who has a name, `session/liveness.rs` for how
//! long a lease is valid, `lock/acquire.rs` how a name is acquired, `lock/convert.rs` how a reader becomes the writer,
//! `lock/waiter.rs` how a waiter waits, `session/mod.rs` and `session/link.rs` how a session outlives its connections.

mod lock;
mod session;
mod tree;

pub(crate) use session::examine::examine;
pub(crate) use session::url::Address;

use super::connect::options::in_task;
use super::{
    About, Acquire, Acquired, Annotate, Capabilities, ConnectOptions, Describe, Ends, ForceRelease,
    Inspect, Inspection, Line, List, Mode, Name, Owner, Owners, Pages, Release, Released,
    RenewBatch, RenewCall, Renewed, Resize, Signal, Store, StoreFuture, Target, Topic, Uptime,
    Wait, Wakeups,
};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::util::sync::Mutex;
use async_trait::async_trait;
use lock::holds::Holds;
use lock::list::ZooKeeperPages;
use lock::recipe::Recipe;
use lock::waiter::Waiter;
use lock::{acquire, inspect, metadata, renew};
use session::errors::{in_time, no_session};
use session::sessions::Sessions;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use tree::names::Role;

/// The most leases of one renewal.
const BATCH_SIZE: usize = 1000;

/// Keeps leases on a ZooKeeper server or ensemble.
///
/// [`LeaseManager::connect`](crate::LeaseManager::connect) makes one by itself. Connect one yourself to wrap it in a store
/// of your own. [`zookeeper`](crate::guide::zookeeper) describes its promises and its costs.
///
/// ```no_run
/// # async fn connected() -> leasehold::Result<()> {
/// use leasehold::LeaseManager;
/// use leasehold::store::{ConnectOptions, ZooKeeperStore};
/// use std::time::Duration;
///
/// // The session's timeout is a third longer: 8 s.
/// let ttl = Duration::from_secs(6);
/// let options = ConnectOptions::new().ttl(ttl);
/// let store = ZooKeeperStore::connect_with("zookeeper://127.0.0.1:2181", &options).await?;
/// let leases = LeaseManager::builder().ttl(ttl).build(store)?;
/// # drop(leases);
/// # Ok(())
/// # }
/// ```
pub struct ZooKeeperStore {
    recipe: Arc<Recipe>,
    attempt: Duration,
    reconnects: Signal,
    /// The runtime of the session.
    runtime: Handle,
    /// Each waiter's task has a clone; `idle` closes when all have ended.
    busy: Mutex<Option<mpsc::Sender<()>>>,
    idle: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl ZooKeeperStore {
    /// Connects to the servers of a URL, on the current runtime, with the default settings.
    ///
    /// As [`connect_with`](Self::connect_with). The session's timeout is 40 s then.
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

    /// Connects to the servers of a URL, on the current runtime.
    ///
    /// The URLs are those of [`LeaseManager::connect`](crate::LeaseManager::connect) for ZooKeeper. The session lives
    /// and dies with the runtime. Its timeout is a third longer than the [time to live](ConnectOptions::ttl), which is
    /// the longest that a lease of this store can have.
    ///
    /// # Errors
    ///
    /// As [`LeaseManager::connect`](crate::LeaseManager::connect), and
    /// [`Unsupported`](ErrorKind::Unsupported) for settings that only Redis has.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the connections are closed.
    pub async fn connect_with(url: &str, options: &ConnectOptions) -> Result<Self> {
        let common = options.common()?;
        common.remote.refuse_all_but_prefix("ZooKeeper")?;
        let address = Address::parse(url, &common.remote.prefix, common.ttl / 3 * 4)?;
        // ZooKeeper's sessions do not follow tokio's clock.
        in_task(Self::open(address, Clock::system())).await
    }

    /// Connects on the current runtime.
    pub(crate) async fn open(address: Address, clock: Clock) -> Result<Self> {
        let names = address.names.clone();
        let longest = address.lease_time();
        let attempt = (address.session / 8).max(Duration::from_millis(250));
        let reconnects = Signal::new();
        let sessions = Sessions::start(address, clock.clone(), reconnects.clone()).await?;
        let closed = sessions.closed.clone();
        let holds = Arc::new(Holds::new(clock.clone(), longest));
        let expiring = Arc::clone(&holds);
        let in_names = names.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = expiring.expire(&in_names) => {}
                () = closed.cancelled() => {}
            }
        });
        let waiters = Mutex::default();
        let recipe = Arc::new(Recipe { clock, names, longest, sessions, holds, waiters });
        let (busy, idle) = mpsc::channel(1);
        Ok(Self {
            recipe,
            attempt,
            reconnects,
            runtime: Handle::current(),
            busy: Mutex::new(Some(busy)),
            idle: tokio::sync::Mutex::new(idle),
        })
    }

    /// Runs a request on the runtime of the session. There its timers live as long as the session does, even if the
    /// runtime of the caller ends.
    fn run<T, F>(&self, request: impl FnOnce(Arc<Recipe>) -> F) -> StoreFuture<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let request = request(Arc::clone(&self.recipe)).in_current_span();
        let runtime = self.runtime.clone();
        Box::pin(async move {
            runtime.spawn(request).await.unwrap_or_else(|error| {
                let gone = "the runtime of the session with ZooKeeper has ended, or a request has panicked";
                Err(Error::new(ErrorKind::Unavailable, gone).with_source(error))
            })
        })
    }

    /// Has an observer woken when the description of the holder may have changed.
    fn observe(&self, name: Name) -> Result<Option<Wakeups>> {
        self.recipe.sessions.current().map_err(|_| no_session())?;
        let Some(busy) = self.busy.lock().clone() else { return Err(no_session()) };
        let recipe = Arc::clone(&self.recipe);
        let closed = self.recipe.sessions.closed.clone();
        let signal = Signal::new();
        let attempt = self.attempt;
        let heard = signal.clone();
        let left = CancellationToken::new();
        let watching = left.clone();
        self.runtime.spawn(async move {
            tokio::select! {
                () = metadata::observe(&recipe, &name, &heard, attempt) => {}
                () = watching.cancelled() => {}
                () = closed.cancelled() => {}
            }
            drop(busy);
        });
        Ok(Some(Wakeups::new(signal, left.drop_guard())))
    }
}

impl fmt::Debug for ZooKeeperStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperStore")
            .field("root", &self.recipe.names.root)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for ZooKeeperStore {
    fn clock(&self) -> Clock {
        self.recipe.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        // A subscription is a node in the queue, so the store announces nothing.
        Capabilities::default()
            .with_announces(false)
            .with_fence_blocks(false)
            .with_time_left(false)
            .with_steals(true)
            .with_line(Line::Queue)
            .with_renewal_batch(BATCH_SIZE)
            .with_mode(Mode::Read)
            .with_mode(Mode::Write)
            .with_mode(Mode::Permits { size: 1, take: 1 })
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        let (request, steal) = request.split_steal();
        self.run(|recipe| async move {
            match steal {
                None => acquire::acquire(&recipe, request).await,
                // It deletes the node of the holder and acquires: a waiter may come between.
                Some(steal) => inspect::steal(&recipe, request, steal).await,
            }
        })
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        match (request.ends, request.target.mode) {
            (Ends::Hold, _) => self.run(|recipe| async move { recipe.release(request).await }),
            (Ends::Arrival, Mode::Exclusive) => {
                Box::pin(std::future::ready(request.require_hold().map(|()| Released::done(0))))
            }
            // A waiter leaves its place when it drops its wake-ups.
            (Ends::Arrival, Mode::Read | Mode::Write | Mode::Permits { .. }) => {
                Box::pin(std::future::ready(Ok(Released::done(0))))
            }
        }
    }

    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        let renew = |batch: RenewBatch| -> StoreFuture<Renewed> {
            self.run(|recipe| async move { renew::renew(&recipe, batch).await })
        };
        RenewCall::divide(batch, BATCH_SIZE, |_| 0, renew)
    }

    /// Refuses: the names of the holders' nodes contain the size.
    async fn resize(&self, _: Resize) -> Result<Option<u32>> {
        let message = "on ZooKeeper a semaphore keeps its size while it is in use; wait until it is idle, or use another name";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        match request.about {
            About::Holders => {}
            About::Line => return Err(request.unsupported()),
            About::Note(_) => return Ok(Inspection::default()),
        }
        self.run(move |recipe| async move {
            let limit = recipe.read_limit(request.timeout);
            in_time(limit, inspect::inspect(&recipe, &request.target)).await
        })
        .await
    }

    async fn annotate(&self, request: Annotate) -> Result<bool> {
        self.run(move |recipe| async move {
            in_time(request.timeout, metadata::annotate(&recipe, request)).await
        })
        .await
    }

    async fn describe(&self, request: Describe) -> Result<()> {
        self.run(move |recipe| async move {
            in_time(request.timeout, metadata::describe(&recipe, &request)).await
        })
        .await
    }

    async fn owners(&self, request: Owners) -> Result<Vec<Option<Owner>>> {
        self.run(move |recipe| async move {
            let limit = recipe.read_limit(request.timeout);
            in_time(limit, metadata::owners(&recipe, &request)).await
        })
        .await
    }

    fn list(&self, request: List) -> Result<Box<dyn Pages>> {
        let recipe = Arc::clone(&self.recipe);
        Ok(Box::new(ZooKeeperPages::new(recipe, self.runtime.clone(), request)))
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        self.run(move |recipe| async move {
            let limit = recipe.read_limit(request.timeout);
            in_time(limit, inspect::force_release(&recipe, &request)).await
        })
        .await
    }

    /// Puts a waiter into the queue; a later acquire of this store takes its node over. A listener without a holder id
    /// would only delay the waiters, so it gets no wake-ups.
    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        match request.topic {
            Topic::Release => {}
            Topic::Metadata => return self.observe(request.target.name),
        }
        if request.holder.is_none() {
            return Ok(None);
        }
        let Target { name, mode } = request.target;
        self.recipe.sessions.current()?;
        let Some(busy) = self.busy.lock().clone() else { return Err(no_session()) };
        let waiter = Waiter::new(self.recipe.names.lock(&name), Role::of(mode), self.attempt);
        self.recipe.waiters.lock().entry(name.clone()).or_default().push(Arc::clone(&waiter));
        let kept = QueuedNode { recipe: Arc::clone(&self.recipe), name, waiter };
        let waiter = Arc::clone(&kept.waiter);
        let recipe = Arc::clone(&self.recipe);
        self.runtime.spawn(async move {
            waiter.run(&recipe.sessions).await;
            drop(busy);
        });
        Ok(Some(Wakeups::new(kept.waiter.signal.clone(), kept)))
    }

    fn reconnects(&self) -> Option<Signal> {
        Some(self.reconnects.clone())
    }

    /// Returns no age, because the ensemble loses no confirmed write: a quorum of the ensemble has each write on disk before it is confirmed. An ensemble has
    /// several servers, so it names none.
    async fn uptime(&self, _: Duration) -> Result<Uptime> {
        Ok(Uptime::new(None))
    }

    /// Closes the session. Without that, the session of remaining holds ends by its timeout.
    async fn close(&self, timeout: Duration) {
        for waiter in self.recipe.waiters.lock().values().flatten() {
            waiter.left.cancel();
        }
        self.busy.lock().take();
        let mut idle = self.idle.lock().await;
        let _ = tokio::time::timeout(timeout, idle.recv()).await;
        self.recipe.sessions.close(self.recipe.holds.is_empty());
        let _ = tokio::time::timeout(timeout, self.recipe.sessions.until_ended()).await;
        self.recipe.holds.forget();
    }
}

/// Has its waiter leave the queue when it is dropped.
struct QueuedNode {
    recipe: Arc<Recipe>,
    name: Name,
    waiter: Arc<Waiter>,
}

impl Drop for QueuedNode {
    fn drop(&mut self) {
        let mut waiters = self.recipe.waiters.lock();
        if let Some(of_name) = waiters.get_mut(&self.name) {
            of_name.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
            if of_name.is_empty() {
                waiters.remove(&self.name);
            }
        }
        drop(waiters);
        self.waiter.left.cancel();
    }
}
