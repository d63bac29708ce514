//! What this process has of the locks, or may have: each entry dies by itself, and takes its node along.
//!
//! A session is kept alive for all leases together, so the server ends none of them alone. This does: an
//! entry that is not renewed within the time to live that was asked for is deleted here. Should the whole
//! process end, so does its session. It may come late, by a fiftieth of the longest time to live.

use super::names::{Names, Who};
use super::session::Session;
use crate::clock::{Clock, Instant};
use crate::store::{HolderId, Name};
use crate::trace;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
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

type Key = (Name, HolderId);

/// All entries are looked at in one pass, and so seldom: this part of the time to live lies between two.
const PASSES: u32 = 50;

#[derive(Debug)]
pub(super) struct Holds {
    clock: Clock,
    /// From one pass to the next, at least.
    rest: Duration,
    entries: Mutex<Entries>,
    /// The next pass is due earlier.
    earlier: Notify,
}

#[derive(Debug)]
struct Entries {
    own: HashMap<Key, Own>,
    /// When the next pass is due: no entry ends before.
    due: Instant,
}

impl Entries {
    /// Whether an entry that ends at `expires` makes the next pass due earlier.
    fn hasten(&mut self, expires: Instant) -> bool {
        let earlier = expires < self.due;
        self.due = self.due.min(expires);
        earlier
    }
}

impl Holds {
    /// For leases of this time to live.
    pub(super) fn new(clock: Clock, longest: Duration) -> Self {
        let entries = Mutex::new(Entries { own: HashMap::new(), due: Instant::MAX });
        Self { clock, rest: longest / PASSES, entries, earlier: Notify::new() }
    }

    pub(super) fn find(&self, name: &Name, token: HolderId) -> Option<Own> {
        self.lock().own.get(&(name.clone(), token)).cloned()
    }

    pub(super) fn put(&self, name: &Name, token: HolderId, own: Own) {
        let mut entries = self.lock();
        let earlier = entries.hasten(own.expires);
        entries.own.insert((name.clone(), token), own);
        drop(entries);
        if earlier {
            self.earlier.notify_one();
        }
    }

    /// Changes an entry, if it is still there; whether it is.
    pub(super) fn change(
        &self,
        name: &Name,
        token: HolderId,
        change: impl FnOnce(&mut Own),
    ) -> bool {
        let mut entries = self.lock();
        let Some(entry) = entries.own.get_mut(&(name.clone(), token)) else { return false };
        change(entry);
        let expires = entry.expires;
        let earlier = entries.hasten(expires);
        drop(entries);
        if earlier {
            self.earlier.notify_one();
        }
        true
    }

    pub(super) fn remove(&self, name: &Name, token: HolderId) {
        self.lock().own.remove(&(name.clone(), token));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().own.is_empty()
    }

    /// Forgets all without deleting anything.
    pub(super) fn forget(&self) {
        self.lock().own.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // No code between lock and unlock can leave the map half changed.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
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
            self.clock.sleep_until(now + self.rest).await;
            loop {
                let due = self.lock().due;
                tokio::select! {
                    () = self.clock.sleep_until(due) => break,
                    () = self.earlier.notified() => {}
                }
            }
        }
    }

    /// The one pass over all entries.
    fn take_expired(&self, now: Instant) -> Vec<(Key, Own)> {
        let mut entries = self.lock();
        let mut due = Instant::MAX;
        let expired = entries.own.extract_if(|_, own| {
            let expired = own.expires <= now;
            if !expired {
                due = due.min(own.expires);
            }
            expired
        });
        let expired = expired.collect();
        entries.due = due;
        expired
    }
}

async fn give_back(own: &Own, directory: &str, token: HolderId) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_is_due_earlier_only_for_what_ends_before_all_others() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut entries = Entries { own: HashMap::new(), due: Instant::MAX };
        assert!(entries.hasten(at(30)));
        assert!(!entries.hasten(at(30)));
        assert!(!entries.hasten(at(31)));
        assert_eq!(entries.due, at(30));
        assert!(entries.hasten(at(29)));
    }
}
