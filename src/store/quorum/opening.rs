//! A quorum whose nodes are not all up when it starts.

use super::Quorum;
use super::tally::{NoMajority, NodeVerdict, majority};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{
    Acquire, Acquired, Capabilities, Holding, Name, Release, Released, Renewal, Renewed, Store,
    StoreFuture, Wakeups,
};
use async_trait::async_trait;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Between two attempts to open a node that is down.
const RETRY: Duration = Duration::from_secs(1);

/// Opens one node.
pub(crate) type Opening = Box<dyn Fn() -> StoreFuture<Arc<dyn Store>> + Send + Sync>;

impl Quorum {
    /// Opens all nodes at once; those that are down are tried again in the background, if they are a minority.
    ///
    /// A node that refuses the credentials, or whose settings make no sense, fails the whole.
    pub(crate) async fn open(openings: Vec<Opening>, clock: Clock) -> Result<Self> {
        let count = openings.len();
        let mut tasks = JoinSet::new();
        for (index, opening) in openings.into_iter().enumerate() {
            tasks.spawn(async move {
                let opened = open(&opening).await;
                (index, opening, opened)
            });
        }
        let mut nodes: Vec<Option<Arc<dyn Store>>> = vec![None; count];
        let mut missing = Vec::new();
        let mut wrong = None;
        while let Some(task) = tasks.join_next().await {
            let gone = |error| {
                Error::new(ErrorKind::Unavailable, "opening was given up").with_source(error)
            };
            match task.map_err(gone)? {
                (index, _, Ok(store)) => nodes[index] = Some(store),
                (index, opening, Err(error)) if is_down(&error) => {
                    missing.push((index, opening, error));
                }
                (_, _, Err(error)) => wrong = Some(error),
            }
        }
        let opened = || nodes.iter().flatten().cloned().collect::<Vec<_>>();
        if let Some(error) = wrong {
            close_all(opened()).await;
            return Err(error);
        }
        if count - missing.len() < majority(count) {
            close_all(opened()).await;
            let mut verdicts = vec![NodeVerdict::Answered("up"); count];
            for (index, _, error) in missing {
                verdicts[index] = NodeVerdict::Failed(error);
            }
            return Err(NoMajority { verdicts }.into());
        }
        for (index, opening, error) in missing {
            tracing::warn!(node = index + 1, %error, "a node is down; tried again in the background");
            nodes[index] = Some(Absent::start(opening, clock.clone()));
        }
        Self::new(nodes.into_iter().flatten().collect())
    }
}

fn is_down(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Rejected)
}

/// A node that would not tell its age could never count.
async fn open(opening: &Opening) -> Result<Arc<dyn Store>> {
    let store = opening().await?;
    match store.age().await {
        Ok(_) => Ok(store),
        Err(error) => {
            store.close().await;
            Err(error)
        }
    }
}

async fn close_all(stores: Vec<Arc<dyn Store>>) {
    for store in stores {
        store.close().await;
    }
}

/// A node that is down until it could be opened.
struct Absent {
    store: OnceLock<Arc<dyn Store>>,
    clock: Clock,
    reconnects: Arc<Notify>,
}

impl Absent {
    fn start(opening: Opening, clock: Clock) -> Arc<dyn Store> {
        let absent = Arc::new(Self { store: OnceLock::new(), clock, reconnects: Arc::default() });
        tokio::spawn(fetch(Arc::downgrade(&absent), opening));
        absent
    }

    fn get(&self) -> Result<&Arc<dyn Store>> {
        let down = || Error::new(ErrorKind::Unavailable, "not reached yet");
        self.store.get().ok_or_else(|| down().with_fate(Fate::NotExecuted))
    }
}

/// Tries until the node is open, then passes its reconnects on.
async fn fetch(absent: Weak<Absent>, opening: Opening) {
    let store = loop {
        sleep(RETRY).await;
        if absent.strong_count() == 0 {
            return;
        }
        match open(&opening).await {
            Ok(store) => break store,
            Err(error) => tracing::debug!(%error, "a node is still down"),
        }
    };
    let (told, reconnects) = match absent.upgrade() {
        Some(absent) => {
            let reconnects = Arc::clone(&absent.reconnects);
            let told = store.reconnects();
            // Nobody else sets it.
            let _ = absent.store.set(Arc::clone(&store));
            (told, reconnects)
        }
        None => return store.close().await,
    };
    drop(store);
    // It is there for the first time: what is held is to be made there.
    reconnects.notify_one();
    while let Some(told) = &told
        && absent.strong_count() > 0
    {
        told.notified().await;
        reconnects.notify_one();
    }
}

impl fmt::Debug for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.store.get() {
            Some(store) => store.fmt(f),
            None => f.write_str("Absent"),
        }
    }
}

/// Asks the node if it is there.
fn pass<T: Send + 'static>(
    absent: &Absent,
    call: impl FnOnce(&Arc<dyn Store>) -> StoreFuture<T>,
) -> StoreFuture<T> {
    match absent.get() {
        Ok(store) => call(store),
        Err(error) => Box::pin(std::future::ready(Err(error))),
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Absent {
    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.get().map(|store| store.capabilities()).unwrap_or_default()
    }

    fn shard(&self, _: &Name) -> usize {
        0
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        pass(self, |store| store.acquire(request))
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        pass(self, |store| store.release(request))
    }

    fn renew(&self, batch: Vec<Renewal>, timeout: Duration) -> StoreFuture<Renewed> {
        pass(self, |store| store.renew(batch, timeout))
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Holding>> {
        self.get()?.inspect(name).await
    }

    async fn force_release(&self, name: &Name) -> Result<bool> {
        self.get()?.force_release(name).await
    }

    async fn subscribe(&self, name: &Name) -> Result<Option<Wakeups>> {
        self.get()?.subscribe(name).await
    }

    fn reconnects(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.reconnects))
    }

    async fn age(&self) -> Result<Option<Duration>> {
        self.get()?.age().await
    }

    async fn close(&self) {
        if let Ok(store) = self.get() {
            store.close().await;
        }
    }
}
