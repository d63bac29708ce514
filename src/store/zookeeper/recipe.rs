//! Acquires and releases.
//!
//! # Invariants
//!
//! 1. **The first in the queue holds.** Numbers grow with each node. A node goes when its owner deletes it or its
//!    session ends, and only then is the next one the first.
//! 2. **Recorded before it is sent.** Before a node is made, an entry in [`Holds`] records that it may exist. When the
//!    entry expires, its node is deleted. So a request that is dropped, or whose answer is lost, leaves nothing for longer
//!    than the time to live.
//! 3. **A hold belongs to one session.** When that is over the hold is gone, whatever the next session finds.
//! 4. **A refused acquire leaves at once.** An acquire that finds itself behind another node deletes its own. Only a
//!    subscription ([`Waiter`]) keeps a node in the queue, and the next acquire of this process takes that over.
//! 5. **A grant is a write that the ensemble has confirmed**: the creation, or the holder id written to the node.
//! 6. **No grant beside a node of another kind**, as far as a list shows that was requested with that write, or at most
//!    [`RECENT`] before it. A node that comes later changes nothing about a hold.

use super::errors::{Found, find, in_time, no_session};
use super::holds::{Holds, OwnNode};
use super::names::{Child, Names, NodeOwner, Queue, parse_record, record};
use super::session::Session;
use super::sessions::Sessions;
use super::waiter::Waiter;
use crate::clock::{Clock, Instant};
use crate::error::{Error, Fate, Result};
use crate::store::{Acquire, Acquired, HolderId, HolderInfo, Inspection, Name, Release, Released};
use crate::sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The age up to which the list in which a waiter was the first need not be repeated.
const RECENT: Duration = Duration::from_millis(20);

/// Runs the requests of a store.
#[derive(Debug)]
pub(super) struct Recipe {
    pub(super) clock: Clock,
    pub(super) names: Names,
    /// The longest time to live.
    pub(super) longest: Duration,
    pub(super) sessions: Sessions,
    pub(super) holds: Arc<Holds>,
    pub(super) waiters: Mutex<HashMap<Name, Vec<Arc<Waiter>>>>,
}

impl Drop for Recipe {
    /// Closes the sessions: all requests are answered and all waiters have left.
    fn drop(&mut self) {
        self.sessions.close(self.holds.is_empty());
    }
}

impl Recipe {
    pub(super) async fn acquire(&self, request: Acquire) -> Result<Acquired> {
        request.plain_name()?;
        self.check_ttl(request.ttl)?;
        let asked = self.clock.now();
        let limit = self.limit(&request);
        let verdict = in_time(limit, async {
            let session = self.sessions.fresh(limit).await?;
            AcquireAttempt { recipe: self, request: &request, session, asked }.run().await
        });
        verdict.await.map_err(|error| match self.holds.find(&request.target.name, request.holder) {
            None => error.with_fate(Fate::NotExecuted),
            // It was refused halfway, so there may still be a node.
            Some(own) if !own.granted => error.with_fate(Fate::Unknown),
            Some(_) => error,
        })
    }

    /// Returns the time limit of an acquire: two round trips must fit, even to a distant server.
    fn limit(&self, request: &Acquire) -> Duration {
        // A nested acquire must not outlive its hold.
        if request.count > 1 { request.timeout } else { self.read_limit(request.timeout) }
    }

    /// Returns the time limit of a read, on which no lease depends.
    pub(super) fn read_limit(&self, timeout: Duration) -> Duration {
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

    pub(super) async fn release(&self, request: Release) -> Result<Released> {
        request.target.require_exclusive()?;
        in_time(request.timeout, async {
            let session = self.sessions.current()?;
            let released = self.delete_or_lower(&session, &request).await?;
            if released {
                // The watch of the next waiter wakes it.
                return Ok(Released::done(0));
            }
            Ok(Released::NotYours(self.absence(&request.target.name).await))
        })
        .await
    }

    /// Deletes the node, or writes a lower hold count. Returns whether the node existed.
    async fn delete_or_lower(&self, session: &Arc<Session>, request: &Release) -> Result<bool> {
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
            if let (Some(path), true) = (&own.path, own.granted) {
                there = own.session.write(path, &record(*holder, *count)).await?;
            }
            if !there {
                self.holds.remove(name, *holder);
            }
            return Ok(there);
        }
        if let Some(path) = &own.path {
            there = own.session.delete(path).await?;
        }
        if own.doubtful {
            // If this is refused halfway, the node above stays deleted.
            let swept = self.sweep(&own.session, name, *holder).await;
            there |= swept.map_err(|error| error.with_fate(Fate::Unknown))?;
        }
        own.session.directories.mark_unused(&self.names.lock(name));
        self.holds.remove(name, *holder);
        Ok(there)
    }

    async fn sweep(&self, session: &Session, name: &Name, holder: HolderId) -> Result<bool> {
        session.sweep(&self.names.lock(name), NodeOwner::Acquire(holder)).await
    }

    pub(super) async fn inspect(&self, name: &Name) -> Result<Inspection> {
        let session = self.sessions.current()?;
        let first = self.first(&session, name).await?;
        let held = first.and_then(|(_, data)| parse_record(&data));
        Ok(Inspection::new(held.map(|(holder, count)| HolderInfo::new(holder, count, None))))
    }

    /// Deletes the first node, even if its owner does not know yet that it is the first, but never one of another kind.
    /// Returns whether there was one.
    pub(super) async fn force(&self, name: &Name) -> Result<bool> {
        let session = self.sessions.current()?;
        match self.first(&session, name).await? {
            Some((path, _)) => session.delete(&path).await,
            None => Ok(false),
        }
    }

    /// Returns the path and the data of the first node. Beside a node of another kind it must be a holder's: a waiter is
    /// not granted there.
    async fn first(&self, session: &Session, name: &Name) -> Result<Option<(String, Vec<u8>)>> {
        let directory = self.names.lock(name);
        loop {
            let queue = session.synced_children(&directory).await?;
            let Some(first) = queue.own.first() else { return queue.alone().map(|_| None) };
            let path = format!("{directory}/{}", first.name);
            if let Found::Yes((data, _)) =
                find(session.link().await?.client.get_data(&path)).await?
            {
                if parse_record(&data).is_none() {
                    queue.alone()?;
                }
                return Ok(Some((path, data)));
            }
        }
    }
}

/// One acquire in progress.
struct AcquireAttempt<'a> {
    recipe: &'a Recipe,
    request: &'a Acquire,
    session: Arc<Session>,
    asked: Instant,
}

impl AcquireAttempt<'_> {
    async fn run(self) -> Result<Acquired> {
        let Acquire { target, holder, count, .. } = self.request;
        let name = &target.name;
        let holds = &self.recipe.holds;
        let mut own = holds.find(name, *holder);
        if own.take_if(|own| own.session.is_over()).is_some() {
            holds.remove(name, *holder);
        }
        if let Some(own) = &own
            && own.granted
        {
            if let Some(path) = &own.path
                && self.session.write(path, &record(*holder, *count)).await?
            {
                return self.granted(own.clone());
            }
            holds.remove(name, *holder);
        }
        if *count > 1 {
            return Ok(Acquired::NotYours(self.recipe.absence(name).await));
        }
        match own {
            Some(own) if !own.granted => self.retry(own).await,
            _ => self.first_try().await,
        }
    }

    fn directory(&self) -> String {
        self.recipe.names.lock(&self.request.target.name)
    }

    fn owner(&self) -> NodeOwner {
        NodeOwner::Acquire(self.request.holder)
    }

    fn own(&self, path: Option<String>, czxid: u64) -> OwnNode {
        OwnNode {
            session: Arc::clone(&self.session),
            path,
            granted: false,
            doubtful: false,
            fence: self.request.fencing.map(|_| czxid),
            expires: self.recipe.clock.now() + self.request.ttl,
        }
    }

    fn granted(&self, own: OwnNode) -> Result<Acquired> {
        let Acquire { target, holder, ttl, .. } = self.request;
        let name = &target.name;
        if own.session.is_over() {
            return Err(no_session());
        }
        let (sent, fence) = (own.session.confirmed(self.asked), own.fence);
        let expires = self.recipe.clock.now() + *ttl;
        let known = self.recipe.holds.change(name, *holder, |entry| {
            *entry = OwnNode { granted: true, expires, ..own };
        });
        // Without an entry, this took so long that the entry has expired and its node is deleted.
        if known { Ok(Acquired::granted(sent, fence)) } else { Err(no_session()) }
    }

    async fn first_try(&self) -> Result<Acquired> {
        if let Some(verdict) = self.take_over_waiter().await? {
            return Ok(verdict);
        }
        let directory = self.directory();
        let queue = self.session.children(&directory).await?;
        match queue.alone() {
            Ok([]) => self.create(&directory).await,
            _ => self.refused(&queue),
        }
    }

    /// Takes over the node of a waiter of this process that is the first in the queue: it becomes the node of the hold.
    ///
    /// With a new node, the hold would be behind its own waiter forever. The waiter's node cannot be that of the hold from
    /// the start, with the holder id that subscribed: a waiter that goes on after a grant that came too late has another one.
    async fn take_over_waiter(&self) -> Result<Option<Acquired>> {
        let Acquire { target, holder, count, .. } = self.request;
        let name = &target.name;
        let taken = {
            let waiters = self.recipe.waiters.lock();
            let waiters = waiters.get(name).into_iter().flatten();
            waiters.filter_map(|waiter| Some((Arc::clone(waiter), waiter.take()?))).next()
        };
        let Some((waiter, (node, listed))) = taken else { return Ok(None) };
        if node.session.is_over() {
            return Ok(None);
        }
        let own =
            OwnNode { session: node.session, ..self.own(Some(node.path.clone()), node.czxid) };
        self.recipe.holds.put(name, *holder, own.clone());
        let (directory, data) = (self.directory(), record(*holder, *count));
        let recent = self.recipe.clock.now().saturating_duration_since(listed) <= RECENT;
        let write = own.session.write(&node.path, &data);
        // A node of another kind may have come since the list. Both are sent together.
        let list = async {
            if recent { Ok(None) } else { own.session.children(&directory).await.map(Some) }
        };
        let (written, queue) = tokio::join!(biased; write, list);
        if written? {
            return match queue? {
                Some(queue) => self.decide(own, &queue).await.map(Some),
                None => self.granted(own).map(Some),
            };
        }
        self.recipe.holds.remove(name, *holder);
        waiter.requeue();
        Ok(None)
    }

    async fn create(&self, directory: &str) -> Result<Acquired> {
        let Acquire { target, holder, count, .. } = self.request;
        let name = &target.name;
        let holds = &self.recipe.holds;
        holds.put(name, *holder, OwnNode { doubtful: true, ..self.own(None, 0) });
        let data = record(*holder, *count);
        let create = self.session.enqueue(directory, self.owner(), &data);
        // Both are sent together. If the directory was missing, the list is requested again below.
        let (created, queue) = tokio::join!(biased; create, self.session.children(directory));
        let (path, czxid) = created?;
        let own = self.own(Some(path), czxid);
        holds.change(name, *holder, |entry| *entry = own.clone());
        let mut queue = queue?;
        if position(&queue.own, &own).is_none() {
            queue = self.session.children(directory).await?;
        }
        self.decide(own, &queue).await
    }

    /// Acquires with the same holder id again, after an answer was lost.
    async fn retry(&self, mut own: OwnNode) -> Result<Acquired> {
        let directory = self.directory();
        let queue = self.session.synced_children(&directory).await?;
        if own.path.is_none() {
            let owner = self.owner();
            let Some(child) = queue.own.iter().find(|child| child.is_of(owner)) else {
                self.recipe.holds.remove(&self.request.target.name, self.request.holder);
                return self.first_try().await;
            };
            let path = format!("{directory}/{}", child.name);
            let Some(czxid) = self.session.has_made(&path).await? else {
                return Err(no_session());
            };
            own = OwnNode { doubtful: true, ..self.own(Some(path), czxid) };
        } else if let (Some(path), Some(_)) = (&own.path, position(&queue.own, &own)) {
            // A node that was taken over may not have its holder id yet.
            self.session.write(path, &record(self.request.holder, self.request.count)).await?;
        }
        self.decide(own, &queue).await
    }

    /// Grants if the node is the first in the queue and there are no nodes of another kind, and otherwise deletes it.
    async fn decide(&self, own: OwnNode, queue: &Queue) -> Result<Acquired> {
        let Acquire { target, holder, .. } = self.request;
        let name = &target.name;
        if queue.alone().is_ok_and(|queue| position(queue, &own) == Some(0)) {
            return self.granted(own);
        }
        if let Some(path) = &own.path {
            own.session.delete(path).await?;
        }
        if own.doubtful {
            self.recipe.sweep(&own.session, name, *holder).await?;
        }
        self.recipe.holds.remove(name, *holder);
        self.refused(queue)
    }

    /// Returns a refusal. Requeues this process's waiters whose node was taken over for a grant that came too late, or was
    /// deleted.
    fn refused(&self, queue: &Queue) -> Result<Acquired> {
        let waiters = self.recipe.waiters.lock();
        waiters
            .get(&self.request.target.name)
            .into_iter()
            .flatten()
            .for_each(|waiter| waiter.requeue());
        queue.alone().map(|_| Acquired::held(None))
    }
}

fn position(queue: &[Child], own: &OwnNode) -> Option<usize> {
    let name = own.path.as_deref()?.rsplit('/').next()?;
    queue.iter().position(|child| child.name == name)
}
