//! Records the nodes that this process has, or may have. Each entry expires by itself, and its node is deleted.
//!
//! A session is kept alive for all leases together, so the servers end no single lease. This module does: it deletes the
//! node of an entry that is not renewed within its time to live, late by at most a fiftieth of the longest time to live.
//! If the whole process ends, its session ends too.

use crate::clock::{Clock, Instant};
use crate::store::zookeeper::session::{Session, nodes};
use crate::store::zookeeper::tree::names::{Names, NodeOwner, record};
use crate::store::{HolderId, Mode, Name};
use crate::util::reached::Rare;
use crate::util::sync::Mutex;
use crate::util::trace;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tracing::Level;

/// A node that this process has, or may have.
#[derive(Clone, Debug)]
pub(in crate::store::zookeeper) struct OwnNode {
    pub(in crate::store::zookeeper) session: Arc<Session>,
    pub(in crate::store::zookeeper) mode: Mode,
    /// `None` while its creation is under way, or if its outcome is unknown.
    pub(in crate::store::zookeeper) path: Option<String>,
    /// Whether it was found to have the name.
    pub(in crate::store::zookeeper) granted: bool,
    /// Whether a change of the mode is under way, or its outcome is unknown. Then it may have another path.
    pub(in crate::store::zookeeper) changing: bool,
    /// The number of changes of its name that were begun. It can have an earlier name again.
    pub(in crate::store::zookeeper) changes: u32,
    /// Whether there may be nodes with its holder id besides `path`.
    pub(in crate::store::zookeeper) doubtful: bool,
    /// The fencing token.
    pub(in crate::store::zookeeper) token: u64,
    /// The description of its holder, as it follows the record in the data of the node.
    pub(in crate::store::zookeeper) description: Option<Arc<str>>,
    /// Whether its holder has asked for a fencing token.
    pub(in crate::store::zookeeper) fenced: bool,
    pub(in crate::store::zookeeper) expires: Instant,
}

impl OwnNode {
    /// Returns the data of the node with this hold count.
    pub(in crate::store::zookeeper) fn data(&self, holder: HolderId, count: u32) -> String {
        record(holder, count) + self.description.as_deref().unwrap_or_default()
    }

    /// Returns the name of the node, without its directory.
    pub(in crate::store::zookeeper) fn name(&self) -> Option<&str> {
        self.path.as_deref()?.rsplit('/').next()
    }
}

type Key = (Name, HolderId);

/// One pass looks at all entries, so passes are rare: at least this part of the time to live lies between two.
const PASSES: u32 = 50;

#[derive(Debug)]
pub(in crate::store::zookeeper) struct Holds {
    clock: Clock,
    /// The shortest time between two passes.
    rest: Duration,
    entries: Mutex<Entries>,
    /// Is notified when the next pass is due earlier.
    earlier: Notify,
}

#[derive(Debug)]
struct Entries {
    own: HashMap<Key, OwnNode>,
    /// When the next pass is due. No entry expires before.
    due: Instant,
}

impl Entries {
    /// Makes the next pass due at `expires` at the latest. Returns whether this is earlier than before.
    fn hasten(&mut self, expires: Instant) -> bool {
        let earlier = expires < self.due;
        self.due = self.due.min(expires);
        earlier
    }
}

impl Holds {
    /// Creates an empty record, for leases of at most this time to live.
    pub(in crate::store::zookeeper) fn new(clock: Clock, longest: Duration) -> Self {
        let entries = Mutex::new(Entries { own: HashMap::new(), due: Instant::MAX });
        Self { clock, rest: longest / PASSES, entries, earlier: Notify::new() }
    }

    pub(in crate::store::zookeeper) fn find(
        &self,
        name: &Name,
        holder: HolderId,
    ) -> Option<OwnNode> {
        self.entries.lock().own.get(&(name.clone(), holder)).cloned()
    }

    pub(in crate::store::zookeeper) fn put(&self, name: &Name, holder: HolderId, own: OwnNode) {
        let mut entries = self.entries.lock();
        let earlier = entries.hasten(own.expires);
        entries.own.insert((name.clone(), holder), own);
        drop(entries);
        if earlier {
            self.earlier.notify_one();
        }
    }

    /// Changes an entry, if it still exists. Returns whether it does.
    pub(in crate::store::zookeeper) fn update(
        &self,
        name: &Name,
        holder: HolderId,
        change: impl FnOnce(&mut OwnNode),
    ) -> bool {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.own.get_mut(&(name.clone(), holder)) else { return false };
        change(entry);
        let expires = entry.expires;
        let earlier = entries.hasten(expires);
        drop(entries);
        if earlier {
            self.earlier.notify_one();
        }
        true
    }

    pub(in crate::store::zookeeper) fn remove(&self, name: &Name, holder: HolderId) {
        self.entries.lock().own.remove(&(name.clone(), holder));
    }

    /// Removes an entry that was found as `seen`, unless a change of its mode was going on or has begun since: the node has
    /// another path then. Returns whether the entry is gone.
    pub(in crate::store::zookeeper) fn remove_unmoved(
        &self,
        name: &Name,
        holder: HolderId,
        seen: Option<&OwnNode>,
    ) -> bool {
        let mut entries = self.entries.lock();
        let key = (name.clone(), holder);
        let moves = |now: &OwnNode| {
            seen.is_some_and(|seen| seen.changing || now.changing || now.changes != seen.changes)
        };
        if entries.own.get(&key).is_some_and(moves) {
            return false;
        }
        entries.own.remove(&key);
        true
    }

    pub(in crate::store::zookeeper) fn is_empty(&self) -> bool {
        self.entries.lock().own.is_empty()
    }

    /// Forgets all entries without deleting any node.
    pub(in crate::store::zookeeper) fn forget(&self) {
        self.entries.lock().own.clear();
    }

    /// Deletes the nodes of expired entries, forever.
    pub(in crate::store::zookeeper) async fn expire(&self, names: &Names) {
        loop {
            let now = self.clock.now();
            for ((name, holder), own) in self.remove_expired(now) {
                Rare::ZooKeeperHoldExpired.reached();
                let directory = names.lock(&name);
                trace::later(Level::DEBUG, || {
                    move || tracing::debug!(name = name.as_str(), "not renewed; deleted")
                });
                tokio::spawn(async move { delete_node(&own, &directory, holder).await });
            }
            self.clock.sleep_until(now + self.rest).await;
            loop {
                let due = self.entries.lock().due;
                tokio::select! {
                    () = self.clock.sleep_until(due) => break,
                    () = self.earlier.notified() => {}
                }
            }
        }
    }

    /// Removes and returns the expired entries, in one pass over all.
    fn remove_expired(&self, now: Instant) -> Vec<(Key, OwnNode)> {
        let mut entries = self.entries.lock();
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

async fn delete_node(own: &OwnNode, directory: &str, holder: HolderId) {
    let delete = || async move {
        if let Some(path) = &own.path {
            nodes::delete(&own.session, path).await?;
        }
        if own.doubtful || own.changing {
            nodes::sweep(&own.session, directory, NodeOwner::Acquire(holder)).await?;
        }
        Ok(())
    };
    own.session.retry_until_done(delete).await;
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
