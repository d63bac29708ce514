//! What this process has of the locks, or may have: each entry dies by itself, and takes its node along.
//!
//! A session is kept alive for all leases together, so the server ends none of them alone. This does: an
//! entry that is not renewed within the time to live that was asked for is deleted here. Should the whole
//! process end, so does its session.

use super::names::{Names, Who};
use super::session::Session;
use crate::clock::{Clock, Instant};
use crate::store::{Name, Token};
use crate::trace;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tracing::Level;

/// A node that is ours, or may be.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) session: Arc<Session>,
    /// `None` while its creation is under way, or if its outcome is unknown.
    pub(super) path: Option<String>,
    /// It was the first in the line.
    pub(super) granted: bool,
    /// There may be nodes with its token besides `path`; without a path there may.
    pub(super) doubtful: bool,
    pub(super) fence: Option<u64>,
    pub(super) expires: Instant,
}

type Key = (Name, Token);

#[derive(Debug)]
pub(super) struct Holds {
    clock: Clock,
    own: Mutex<HashMap<Key, Own>>,
    /// An entry came that may be the first to end.
    earlier: Notify,
}

impl Holds {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, own: Mutex::default(), earlier: Notify::new() }
    }

    pub(super) fn find(&self, name: &Name, token: Token) -> Option<Own> {
        self.lock().get(&(name.clone(), token)).cloned()
    }

    pub(super) fn put(&self, name: &Name, token: Token, own: Own) {
        self.lock().insert((name.clone(), token), own);
        self.earlier.notify_one();
    }

    /// Changes an entry, if it is still there; whether it is.
    pub(super) fn change(&self, name: &Name, token: Token, change: impl FnOnce(&mut Own)) -> bool {
        let mut own = self.lock();
        let Some(entry) = own.get_mut(&(name.clone(), token)) else { return false };
        let expires = entry.expires;
        change(entry);
        if entry.expires < expires {
            self.earlier.notify_one();
        }
        true
    }

    pub(super) fn remove(&self, name: &Name, token: Token) {
        self.lock().remove(&(name.clone(), token));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Forgets all without deleting anything.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Own>> {
        // No code between lock and unlock can leave the map half changed.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes what has outlived its time to live, for ever.
    pub(super) async fn expire(&self, names: &Names) {
        loop {
            let now = self.clock.now();
            for ((name, token), own) in self.take_expired(now) {
                let directory = names.lock(&name);
                trace::later(Level::DEBUG, || {
                    move || tracing::debug!(name = name.as_str(), "not renewed; deleted")
                });
                tokio::spawn(async move { give_back(&own, &directory, token).await });
            }
            let first = self.lock().values().map(|own| own.expires).min();
            let first = async {
                match first {
                    Some(first) => self.clock.sleep_until(first).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = first => {}
                () = self.earlier.notified() => {}
            }
        }
    }

    fn take_expired(&self, now: Instant) -> Vec<(Key, Own)> {
        self.lock().extract_if(|_, own| own.expires <= now).collect()
    }
}

async fn give_back(own: &Own, directory: &str, token: Token) {
    let delete = || async move {
        if let Some(path) = &own.path {
            own.session.delete(path).await?;
        }
        if own.doubtful {
            own.session.sweep(directory, Who::Acquire(token)).await?;
        }
        Ok(())
    };
    own.session.see_through(delete).await;
}
