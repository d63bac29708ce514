//! What all requests of a store share, and releases.
//!
//! # Invariants
//!
//! 1. **A hold belongs to one session.** When that is over the hold is gone, whatever the next session finds.
//! 2. **Recorded before it is sent.** Before a node is made, an entry in [`Holds`] records that it may exist. When the
//!    entry expires, its node is deleted. So a request that is dropped, or whose answer is lost, leaves nothing for longer
//!    than the time to live.

use super::holds::{Holds, OwnNode};
use super::renew::absence;
use super::waiter::Waiter;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::zookeeper::session::errors::in_time;
use crate::store::zookeeper::session::sessions::Sessions;
use crate::store::zookeeper::session::{Session, nodes};
use crate::store::zookeeper::tree::names::{Names, NodeOwner};
use crate::store::{HolderId, Keep, Name, Release, Released};
use crate::util::reached::Rare;
use crate::util::sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Runs the requests of a store.
#[derive(Debug)]
pub(in crate::store::zookeeper) struct Recipe {
    pub(in crate::store::zookeeper) clock: Clock,
    pub(in crate::store::zookeeper) names: Names,
    /// The longest time to live.
    pub(in crate::store::zookeeper) longest: Duration,
    pub(in crate::store::zookeeper) sessions: Sessions,
    pub(in crate::store::zookeeper) holds: Arc<Holds>,
    pub(in crate::store::zookeeper) waiters: Mutex<HashMap<Name, Vec<Arc<Waiter>>>>,
}

impl Drop for Recipe {
    /// Closes the sessions: all requests are answered and all waiters have left.
    fn drop(&mut self) {
        self.sessions.close(self.holds.is_empty());
    }
}

impl Recipe {
    /// Returns the time limit of a read, on which no lease depends.
    pub(in crate::store::zookeeper) fn read_limit(&self, timeout: Duration) -> Duration {
        let Ok(session) = self.sessions.current() else { return timeout };
        (session.round_trip() * 4).clamp(timeout, timeout * 2)
    }

    pub(super) fn check_ttl(&self, ttl: Duration) -> Result<()> {
        if ttl <= self.longest {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a time to live of {ttl:?} is longer than the {:?} that the session allows",
            self.longest
        )))
    }

    pub(in crate::store::zookeeper) async fn release(&self, request: Release) -> Result<Released> {
        if request.keep.is_some() {
            // A node has no time to live.
            return Err(Keep::unsupported());
        }
        in_time(request.timeout, async {
            let session = self.sessions.current()?;
            let released = self.delete_or_record(&session, &request).await?;
            if released {
                // The watch of the next waiter wakes it.
                return Ok(Released::done(0));
            }
            Ok(Released::NotYours(absence(self, &request.target).await))
        })
        .await
    }

    /// Deletes the node, or records a hold count. Returns whether the node existed.
    async fn delete_or_record(&self, session: &Arc<Session>, request: &Release) -> Result<bool> {
        let Release { target, holder, count, .. } = request;
        let name = &target.name;
        let own = self.holds.find(name, *holder).filter(|own| !own.session.is_over());
        let Some(own) = own else {
            self.holds.remove(name, *holder);
            // There should be no node that this process does not know; make sure.
            let sweep = *count == 0;
            return if sweep { self.sweep(session, name, *holder).await } else { Ok(false) };
        };
        let mut there = false;
        if *count > 0 {
            let own = self.located(name, *holder, own).await?;
            if let (Some(path), true) = (&own.path, own.granted) {
                there = nodes::write(&own.session, path, &own.data(*holder, *count)).await?;
            }
            // A change of the mode may have renamed the node meanwhile.
            if !there && !self.holds.remove_unmoved(name, *holder, Some(&own)) {
                return Err(changing());
            }
            return Ok(there);
        }
        if let Some(path) = &own.path {
            there = nodes::delete(&own.session, path).await?;
        }
        if own.doubtful || own.changing {
            // If this is refused halfway, the node above stays deleted.
            let swept = self.sweep(&own.session, name, *holder).await;
            there |= swept.map_err(|error| error.with_fate(Fate::Unknown))?;
        }
        own.session.directories.mark_unused(&self.names.lock(name));
        self.holds.remove(name, *holder);
        Ok(there)
    }

    /// Returns the entry with the path that its node has, if a change of its mode has left that unknown.
    pub(super) async fn located(
        &self,
        name: &Name,
        holder: HolderId,
        own: OwnNode,
    ) -> Result<OwnNode> {
        if !own.changing {
            return Ok(own);
        }
        let directory = self.names.lock(name);
        let queue = nodes::synced_children(&own.session, &directory).await?;
        let there = own.name().and_then(|name| queue.get(name));
        let child = there.or_else(|| queue.of(NodeOwner::Acquire(holder)).next());
        let path = child.map(|child| format!("{directory}/{}", child.name));
        Ok(OwnNode { path, ..own })
    }

    pub(in crate::store::zookeeper) async fn sweep(
        &self,
        session: &Session,
        name: &Name,
        holder: HolderId,
    ) -> Result<bool> {
        let owner = NodeOwner::Acquire(holder);
        let swept = nodes::sweep(session, &self.names.lock(name), owner).await;
        Rare::ZooKeeperSwept.reached_if(|| matches!(swept, Ok(true)));
        swept
    }
}

/// Returns the error of a request that has met a change of the mode: the node has another path now.
pub(super) fn changing() -> Error {
    Error::new(ErrorKind::Unavailable, "the mode of the hold is being changed")
}
