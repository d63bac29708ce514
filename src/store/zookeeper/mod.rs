//! Leases on a ZooKeeper server or ensemble.
//!
//! Per lock one directory, in it ephemeral sequential nodes; the first in the line holds, and each waiter
//! watches the one before it. One session serves all leases of a manager.
//!
//! Its promises and costs are in the guide; why a lease is believed for
//! so long, in `proof.rs`; how one is taken, in `recipe.rs`; how one waits, in `place.rs`; how a session outlives
//! its connections, in `session.rs` and `link.rs`.

mod address;
mod directories;
mod errors;
mod holds;
mod link;
mod names;
mod nodes;
mod place;
mod proof;
mod recipe;
mod renew;
mod session;
mod sessions;
mod ticks;
mod user;

pub(crate) use address::Address;

use super::options::in_task;
use super::{
    Acquire, Acquired, Capabilities, ConnectOptions, ForceRelease, Inspect, Inspection, Name,
    Release, Released, RenewBatch, Renewed, Signal, Store, StoreFuture, Wait, Wakeups,
};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use async_trait::async_trait;
use errors::{in_time, no_session};
use holds::Holds;
use place::Place;
use recipe::Recipe;
use sessions::Sessions;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::Instrument;

/// How many leases one renewal looks at.
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
    /// Where the session lives.
    runtime: Handle,
    /// Each place's task has a copy.
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
    ///
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was connected is disconnected.
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
    ///
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was connected is disconnected.
    pub async fn connect_with(url: &str, options: &ConnectOptions) -> Result<Self> {
        let common = options.common()?;
        common.remote.refuse_all_but_prefix("ZooKeeper")?;
        let address = Address::parse(url, &common.remote.prefix, common.ttl / 3 * 4)?;
        // Its sessions do not live by tokio's clock.
        in_task(Self::open(address, Clock::system())).await
    }

    /// Connects on the current runtime.
    pub(crate) async fn open(address: Address, clock: Clock) -> Result<Self> {
        let (names, longest) = (address.names.clone(), address.lease_time());
        let attempt = (address.session / 8).max(Duration::from_millis(250));
        let reconnects = Signal::new();
        let sessions = Sessions::start(address, clock.clone(), reconnects.clone()).await?;
        let closed = sessions.closed.clone();
        let holds = Arc::new(Holds::new(clock.clone(), longest));
        let (expiring, in_names) = (Arc::clone(&holds), names.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = expiring.expire(&in_names) => {}
                () = closed.cancelled() => {}
            }
        });
        let places = Mutex::default();
        let recipe = Arc::new(Recipe { clock, names, longest, sessions, holds, places });
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

    /// Runs a request where the session lives: there its timers last as long as the session does, whatever becomes of
    /// the runtime that asks.
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

    fn busy(&self) -> std::sync::MutexGuard<'_, Option<mpsc::Sender<()>>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
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
        // To subscribe is to have a place in its line, so it announces nothing.
        Capabilities::default()
            .with_announces(false)
            .with_fence_blocks(false)
            .with_time_left(false)
            .with_renewal_batch(BATCH_SIZE)
    }

    /// Every name is on every member.
    fn shard(&self, _: &Name) -> usize {
        0
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        self.run(|recipe| async move { recipe.acquire(request).await })
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        self.run(|recipe| async move { recipe.release(request).await })
    }

    fn renew(&self, batch: RenewBatch) -> StoreFuture<Renewed> {
        self.run(|recipe| async move { recipe.renew(batch).await })
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        request.target.require_exclusive()?;
        self.run(move |recipe| async move {
            let limit = recipe.look_limit(request.timeout);
            in_time(limit, recipe.inspect(&request.target.name)).await
        })
        .await
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        request.target.require_exclusive()?;
        self.run(move |recipe| async move {
            let limit = recipe.look_limit(request.timeout);
            in_time(limit, recipe.force(&request.target.name)).await
        })
        .await
    }

    /// Begins to get into the line; a later acquire of this store takes the place over. Who only listens would stand
    /// in the way of those who wait, so it is told nothing.
    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        request.target.require_exclusive()?;
        if request.holder.is_none() {
            return Ok(None);
        }
        let name = request.target.name;
        self.recipe.sessions.current()?;
        let Some(busy) = self.busy().clone() else { return Err(no_session()) };
        let place = Place::new(self.recipe.names.lock(&name), self.attempt);
        self.recipe.places().entry(name.clone()).or_default().push(Arc::clone(&place));
        let kept = Kept { recipe: Arc::clone(&self.recipe), name, place };
        let (place, recipe) = (Arc::clone(&kept.place), Arc::clone(&self.recipe));
        self.runtime.spawn(async move {
            place.keep(&recipe.sessions).await;
            drop(busy);
        });
        Ok(Some(Wakeups::new(kept.place.signal.clone(), kept)))
    }

    fn reconnects(&self) -> Option<Signal> {
        Some(self.reconnects.clone())
    }

    /// Never forgets: an ensemble grants only what a quorum of it has on disk.
    async fn age(&self, _: Duration) -> Result<Option<Duration>> {
        Ok(None)
    }

    /// Tells none: it is several.
    async fn server_id(&self, _: Duration) -> Result<Option<String>> {
        Ok(None)
    }

    /// What is held stays until the session ends by itself.
    async fn close(&self, timeout: Duration) {
        for place in self.recipe.places().values().flatten() {
            place.left.cancel();
        }
        self.busy().take();
        let mut idle = self.idle.lock().await;
        let _ = tokio::time::timeout(timeout, idle.recv()).await;
        self.recipe.sessions.close(self.recipe.holds.is_empty());
        let _ = tokio::time::timeout(timeout, self.recipe.sessions.until_ended()).await;
        self.recipe.holds.forget();
    }
}

/// A place that somebody wants to have.
struct Kept {
    recipe: Arc<Recipe>,
    name: Name,
    place: Arc<Place>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut places = self.recipe.places();
        if let Some(here) = places.get_mut(&self.name) {
            here.retain(|place| !Arc::ptr_eq(place, &self.place));
            if here.is_empty() {
                places.remove(&self.name);
            }
        }
        drop(places);
        self.place.left.cancel();
    }
}
