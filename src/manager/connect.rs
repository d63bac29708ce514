//! The ways to make a manager: from a URL, on a store, in memory.

use super::builder::timing_of;
use super::{Builder, LeaseManager};
use crate::clock::Clock;
use crate::engine::{Core, Engine, Timing};
use crate::error::{Error, ErrorKind, Result};
use crate::store::connect::options::{Common, in_task};
use crate::store::connect::url::Backend;
use crate::store::{MemoryStore, Owner, Store};
use crate::util::runtime;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

impl LeaseManager {
    /// Connects to the store at `url` with the default settings.
    ///
    /// | URL | connects to |
    /// |---|---|
    /// | `memory:` | a new store in this process, as [`in_memory`](LeaseManager::in_memory) |
    /// | `redis://user:password@host:6379/0` | one Redis server; `rediss://` with TLS, `redis+unix://` for a socket |
    /// | `redis-sentinel://..`, `redis-cluster://..` | a fleet of Redis servers |
    /// | `redis://a,redis://b,redis://c` | a [`Quorum`](crate::store::Quorum) of independent servers |
    /// | `zookeeper://host:2181,host:2181/path` | ZooKeeper, with the feature `zookeeper` |
    ///
    /// [`stores`](crate::guide::stores#urls) has all parts of these URLs. Use the [builder](LeaseManager::builder) for
    /// settings that do not fit in a URL. [`redis`](crate::guide::redis) lists the permissions that a Redis user needs,
    /// and what happens in a failover.
    ///
    /// Connecting runs a probe on a temporary key, so bad credentials or a command that is not allowed fail here rather
    /// than at the first lock. A missing permission for keys does not fail here, because the user may be meant for
    /// other names: check that the prefix fits the permissions.
    ///
    /// # Errors
    ///
    /// - [`Invalid`](crate::ErrorKind::Invalid): the URL cannot be read.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the URL needs a feature that is off, or the server does not know a
    ///   command.
    /// - [`Unavailable`](crate::ErrorKind::Unavailable): no server answers. Also if the server wants TLS and the URL does not, or
    ///   the reverse; the message says so, but other causes look the same.
    /// - [`Denied`](crate::ErrorKind::Denied): the password is wrong, a permission is missing, or a TLS certificate is not
    ///   trusted.
    /// - [`Rejected`](crate::ErrorKind::Rejected): the server refuses writes.
    /// - [`Unfit`](crate::ErrorKind::Unfit): a setting of the server may cost leases, and
    ///   [`Preflight::Refuse`](crate::Preflight::Refuse) is set.
    /// - [`Protocol`](crate::ErrorKind::Protocol): the reply is not that of the expected server.
    ///
    /// An error names the host and the port that failed. Nothing else of the URL ever appears in one.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the connections are closed.
    ///
    /// ```
    /// use leasehold::{ErrorKind, LeaseManager};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let leases = LeaseManager::connect("memory:").await?;
    /// let error = LeaseManager::connect("localhost:6379").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Invalid);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Creates a manager whose leases are in the memory of this process, for tests, tools and one-process services.
    ///
    /// It uses tokio's clock. Its watchdog runs on the runtime on which the manager is made, or, if it is made outside
    /// of one, on that of the first call. That runtime must keep running; if it shuts down, the work moves to the
    /// runtime of the next caller (see [`dedicated_thread`](Builder::dedicated_thread)). A runtime that pauses its time
    /// must not share the manager with another one.
    #[must_use]
    pub fn in_memory() -> Self {
        let timing = Timing::DEFAULT;
        let settings = Builder::default().settings(&timing);
        let store = Arc::new(MemoryStore::new());
        Self { engine: Engine::on_caller(Core::new(store, timing, settings, true)) }
    }

    /// Returns a builder, for settings other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Connects to the store at `url`, as [`LeaseManager::connect`] describes.
    ///
    /// # Errors
    ///
    /// - All errors of [`LeaseManager::connect`].
    /// - [`Invalid`](ErrorKind::Invalid): a setting is out of range, or two settings contradict each other.
    /// - [`Unsupported`](ErrorKind::Unsupported): the store does not support a setting, or has no fencing tokens
    ///   although [`require_fencing`](Builder::require_fencing) or [`fence_retention`](Builder::fence_retention) is
    ///   set.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the connections are closed.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<LeaseManager> {
        runtime::need();
        let (timing, settings) = self.checked()?;
        let needed = self.needs_fencing();
        let owner = self.owner.clone();
        let manager = Uuid::new_v4();
        let client_name = match &owner {
            Some(owner) => Common::client_name(owner, manager),
            None => Common::client_name(&Owner::new(""), manager),
        };
        let Timing { ttl, attempt, .. } = timing;
        let common = Common { ttl, attempt, remote: self.remote, client_name };
        let observers = self.observers;
        let backend = Backend::parse(url.as_ref(), &common)?;
        let timing = match backend.lease_time() {
            Some(lease_time) => timing_of(lease_time, self.grace)?,
            None => timing,
        };
        let remote = backend.dedicated_thread();
        let engine = if self.dedicated_thread.unwrap_or(remote) {
            Engine::on_own_threads(async move || {
                let store = open(backend, Clock::system(), needed, timing.attempt).await?;
                let core = Core::of_manager(manager, store, timing, settings, false);
                describe(&core, owner);
                core.introduce().await;
                observers.start(&core.board).map(|()| core)
            })
            .await?
        } else {
            // A server's time goes on during a suspend; what is in memory may follow a paused clock.
            let clock = if remote { Clock::system() } else { Clock::tokio() };
            let store = in_task(open(backend, clock, needed, timing.attempt)).await?;
            let core = Core::of_manager(manager, store, timing, settings, true);
            describe(&core, owner);
            core.introduce().await;
            observers.start(&core.board)?;
            Engine::on_caller(core)
        };
        Ok(LeaseManager { engine })
    }

    /// Builds a manager on `store`: a store of your own, a [`Quorum`](crate::store::Quorum), or a [`MemoryStore`] that
    /// several managers share.
    ///
    /// If the store uses tokio's clock, the work runs on the runtime on which the manager is made, or, if it is made
    /// outside of one, on that of the first call. Otherwise it runs on threads of its own.
    ///
    /// # Errors
    ///
    /// - [`Invalid`](ErrorKind::Invalid): a setting is out of range, or two settings contradict each other.
    /// - [`Unsupported`](ErrorKind::Unsupported): a setting is for stores with a URL, such as
    ///   [`prefix`](Builder::prefix), or `store` has no fencing tokens although
    ///   [`require_fencing`](Builder::require_fencing) or [`fence_retention`](Builder::fence_retention) is set.
    /// - [`Unavailable`](ErrorKind::Unavailable): a thread could not be started.
    pub fn build(self, store: impl Store) -> Result<LeaseManager> {
        let (timing, settings) = self.checked()?;
        self.remote.refuse("a store that is given to `build`")?;
        check_fencing(&store, self.needs_fencing())?;
        let dedicated_thread = self.dedicated_thread.unwrap_or(!store.clock().is_tokio());
        let core = Core::new(Arc::new(store), timing, settings, !dedicated_thread);
        describe(&core, self.owner);
        self.observers.start(&core.board)?;
        Ok(LeaseManager { engine: Engine::new(core)? })
    }
}

fn describe(core: &Core, owner: Option<Owner>) {
    if let Some(owner) = owner {
        core.describer.describe(owner);
    }
}

/// Connects, and checks that the store has what the settings need.
async fn open(
    backend: Backend,
    clock: Clock,
    needed: Option<&'static str>,
    timeout: Duration,
) -> Result<Arc<dyn Store>> {
    let store = backend.open(clock).await?;
    let checked = check_fencing(&*store, needed);
    if checked.is_err() {
        store.close(timeout).await;
    }
    checked.map(|()| store)
}

fn check_fencing(store: &dyn Store, needed: Option<&str>) -> Result<()> {
    let Some(setting) = needed.filter(|_| !store.capabilities().fencing) else { return Ok(()) };
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "{setting} is set, but this store has no fencing tokens; leave it out, or use a store that has them"
        ),
    ))
}
