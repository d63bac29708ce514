//! Acquires.
//!
//! # Invariants
//!
//! 1. **The queue decides** ([`Queue`]), by a list that was requested after the node was made.
//! 2. **A refused acquire leaves at once.** An acquire that is not granted deletes its own node. Only a subscription
//!    ([`Waiter`](super::waiter::Waiter)) keeps a node in the queue, and the next acquire of this process in the same mode
//!    takes that over.
//! 3. **A grant is a write that the ensemble has confirmed**: the creation, or the holder id written to the node.
//! 4. **No grant beside a node that is not leasehold's**, as far as a list shows that was requested with that write, or at
//!    most [`RECENT`] before it. A node that comes later changes nothing about a hold.

use super::convert::{Converted, convert};
use super::holds::OwnNode;
use super::recipe::Recipe;
use super::renew::absence;
use super::size::claim_size;
use crate::clock::Instant;
use crate::error::{Error, Fate, Result};
use crate::store::contract::mode::Kind;
use crate::store::zookeeper::session::errors::{in_time, no_session};
use crate::store::zookeeper::session::{Session, nodes};
use crate::store::zookeeper::tree::names::{NodeOwner, Role, record};
use crate::store::zookeeper::tree::queue::{Queue, Standing};
use crate::store::{Acquire, Acquired, Mode};
use crate::util::reached::Rare;
use std::sync::Arc;
use std::time::Duration;

/// The age up to which the list in which a waiter was granted need not be repeated.
const RECENT: Duration = Duration::from_millis(20);

pub(in crate::store::zookeeper) async fn acquire(
    recipe: &Recipe,
    request: Acquire,
) -> Result<Acquired> {
    if let Mode::Permits { size, take } = request.target.mode
        && !(1..=size).contains(&take)
    {
        return Err(Error::not_so_many(take, size));
    }
    request.require_no_line()?;
    recipe.check_ttl(request.ttl)?;
    let asked = recipe.clock.now();
    let converts = request.converts;
    let limit = limit(recipe, &request);
    let verdict = in_time(limit, async {
        let session = recipe.sessions.fresh(limit).await?;
        AcquireAttempt { recipe, request: &request, session, asked }.run().await
    });
    verdict.await.map_err(|error| match recipe.holds.find(&request.target.name, request.holder) {
        // The entry of a hold can end while its mode is changed.
        None if converts => error.with_fate(Fate::Unknown),
        None => error.with_fate(Fate::NotExecuted),
        // It was refused halfway, so there may still be a node.
        Some(own) if !own.granted => error.with_fate(Fate::Unknown),
        Some(_) => error,
    })
}

/// Returns the time limit of an acquire: two round trips must fit, even to a distant server.
fn limit(recipe: &Recipe, request: &Acquire) -> Duration {
    // A change of the mode must not outlive its hold.
    if request.converts { request.timeout } else { recipe.read_limit(request.timeout) }
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
        let Acquire { target, holder, converts, .. } = self.request;
        let name = &target.name;
        let holds = &self.recipe.holds;
        let mut own = holds.find(name, *holder);
        if own.take_if(|own| own.session.is_over()).is_some() {
            holds.remove(name, *holder);
        }
        if let Some(own) = own.take_if(|own| own.granted) {
            if let Some(verdict) = self.again(own).await? {
                return Ok(verdict);
            }
            holds.remove(name, *holder);
        }
        if *converts {
            return Ok(Acquired::NotYours(absence(self.recipe, target).await));
        }
        match own {
            Some(own) => self.retry(own).await,
            None => self.first_try().await,
        }
    }

    /// Grants again what the holder has, or changes its mode. Returns `None` if the node is gone.
    async fn again(&self, mut own: OwnNode) -> Result<Option<Acquired>> {
        let Acquire { target, holder, converts, .. } = self.request;
        if own.mode.kind() != target.mode.kind() {
            return Err(own.mode.kind().wrong_type());
        }
        let converts =
            *converts && own.mode != target.mode && target.mode.kind() == Kind::ReadWrite;
        if converts || own.changing {
            own = match convert(self.recipe, self.request, own).await? {
                Converted::Yes(own) if converts => return self.granted(own).map(Some),
                Converted::Yes(own) => own,
                Converted::Refused => return Ok(Some(Acquired::held(None))),
                Converted::Gone => return Ok(None),
            };
        }
        // A late copy of an earlier request never changes its mode.
        if (target.mode, own.mode) == (Mode::Write, Mode::Read) {
            return Ok(Some(Acquired::held(None)));
        }
        match &own.path {
            Some(path) if nodes::write(&self.session, path, &own.data(*holder, 1)).await? => {
                self.granted(own).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn directory(&self) -> String {
        self.recipe.names.lock(&self.request.target.name)
    }

    fn role(&self) -> Role {
        Role::of(self.request.target.mode)
    }

    fn owner(&self) -> NodeOwner {
        NodeOwner::Acquire(self.request.holder)
    }

    fn own(&self, path: Option<String>, czxid: u64) -> OwnNode {
        OwnNode {
            session: Arc::clone(&self.session),
            mode: self.request.target.mode,
            path,
            granted: false,
            changing: false,
            changes: 0,
            doubtful: false,
            token: czxid,
            description: None,
            fenced: self.request.fencing.is_some() && self.role().kind() != Kind::Semaphore,
            expires: self.recipe.clock.now() + self.request.ttl,
        }
    }

    fn granted(&self, own: OwnNode) -> Result<Acquired> {
        let Acquire { target, holder, ttl, .. } = self.request;
        let name = &target.name;
        if own.session.is_over() {
            return Err(no_session());
        }
        let sent = own.session.confirmed(self.asked);
        let fence = own.fenced.then_some(own.token);
        let expires = self.recipe.clock.now() + *ttl;
        let known = self.recipe.holds.update(name, *holder, |entry| {
            let description = entry.description.take();
            *entry = OwnNode { granted: true, expires, description, ..own };
        });
        // Without an entry, this took so long that the entry has expired and its node is deleted.
        if known { Ok(Acquired::granted(sent, fence)) } else { Err(no_session()) }
    }

    async fn first_try(&self) -> Result<Acquired> {
        if let Some(verdict) = self.adopt_waiter().await? {
            return Ok(verdict);
        }
        let directory = self.directory();
        let queue = nodes::children(&self.session, &directory).await?;
        let mut admitted = queue.admits(self.role());
        if let (Ok(true), Mode::Permits { size, .. }) = (&admitted, self.request.target.mode)
            && queue.is_empty()
        {
            admitted = claim_size(&self.session, &directory, size).await.map(|()| true);
        }
        match admitted {
            Ok(true) => self.create(&directory).await,
            refused => self.refused(refused.map(drop)),
        }
    }

    /// Takes over the node of a waiter of this process that is granted: it becomes the node of the hold.
    ///
    /// With a new node, the hold would be behind its own waiter forever. The waiter's node cannot be that of the hold from
    /// the start, with the holder id that subscribed: a waiter that goes on after a grant that came too late has another one.
    async fn adopt_waiter(&self) -> Result<Option<Acquired>> {
        let Acquire { target, holder, .. } = self.request;
        let name = &target.name;
        let taken = {
            let waiters = self.recipe.waiters.lock();
            let waiters = waiters.get(name).into_iter().flatten();
            let waiters = waiters.filter(|waiter| waiter.role == self.role());
            waiters.filter_map(|waiter| Some((Arc::clone(waiter), waiter.take()?))).next()
        };
        let Some((waiter, (node, listed))) = taken else { return Ok(None) };
        if node.session.is_over() {
            return Ok(None);
        }
        let own =
            OwnNode { session: node.session, ..self.own(Some(node.path.clone()), node.czxid) };
        self.recipe.holds.put(name, *holder, own.clone());
        let directory = self.directory();
        let data = record(*holder, 1);
        let age = self.recipe.clock.now().saturating_duration_since(listed);
        let recent = age <= RECENT;
        let write = nodes::write(&own.session, &node.path, &data);
        // A node of a stranger may have come since the list. Both are sent together.
        let list = async {
            if recent {
                Ok(None)
            } else {
                nodes::children(&own.session, &directory).await.map(Some)
            }
        };
        let (written, queue) = tokio::join!(biased; write, list);
        if written? {
            Rare::ZooKeeperWaiterAdopted.reached();
            return match queue? {
                Some(queue) => self.decide(own, queue).await.map(Some),
                None => self.granted(own).map(Some),
            };
        }
        Rare::ZooKeeperAdoptedTooLate.reached();
        self.recipe.holds.remove(name, *holder);
        waiter.requeue();
        Ok(None)
    }

    async fn create(&self, directory: &str) -> Result<Acquired> {
        let Acquire { target, holder, .. } = self.request;
        let name = &target.name;
        let holds = &self.recipe.holds;
        holds.put(name, *holder, OwnNode { doubtful: true, ..self.own(None, 0) });
        let data = record(*holder, 1);
        let create = nodes::enqueue(&self.session, directory, self.role(), self.owner(), &data);
        // Both are sent together. If the directory was missing, the list is requested again below.
        let (created, queue) =
            tokio::join!(biased; create, nodes::children(&self.session, directory));
        let (path, czxid) = created?;
        let own = self.own(Some(path), czxid);
        holds.update(name, *holder, |entry| *entry = own.clone());
        let mut queue = queue?;
        if own.name().is_none_or(|name| queue.get(name).is_none()) {
            queue = nodes::children(&self.session, directory).await?;
        }
        self.decide(own, queue).await
    }

    /// Acquires with the same holder id again, after an answer was lost.
    async fn retry(&self, mut own: OwnNode) -> Result<Acquired> {
        let directory = self.directory();
        let queue = nodes::synced_children(&self.session, &directory).await?;
        if let (Some(path), Some(name)) = (&own.path, own.name())
            && queue.get(name).is_some()
        {
            // A node that was taken over may not have its holder id yet.
            nodes::write(&self.session, path, &own.data(self.request.holder, 1)).await?;
        } else if let Some(child) = queue.of(self.owner()).next() {
            let path = format!("{directory}/{}", child.name);
            let Some(czxid) = nodes::has_made(&self.session, &path).await? else {
                return Err(no_session());
            };
            Rare::ZooKeeperCreationFound.reached();
            own = OwnNode { doubtful: true, ..self.own(Some(path), czxid) };
        } else if own.path.is_none() {
            self.recipe.holds.remove(&self.request.target.name, self.request.holder);
            return self.first_try().await;
        }
        self.decide(OwnNode { changing: false, ..own }, queue).await
    }

    /// Grants if the queue does, and otherwise deletes the node.
    async fn decide(&self, own: OwnNode, queue: Queue) -> Result<Acquired> {
        let Acquire { target, holder, .. } = self.request;
        let name = &target.name;
        let standing = own.name().map_or(Ok(None), |name| queue.standing(name));
        if let Ok(Some(Standing::Granted)) = standing
            && let Some(own) = self.settle(own.clone(), queue).await?
        {
            return self.granted(own);
        }
        if let Some(path) = &own.path {
            nodes::delete(&own.session, path).await?;
        }
        if own.doubtful {
            self.recipe.sweep(&own.session, name, *holder).await?;
        }
        self.recipe.holds.remove(name, *holder);
        self.refused(standing.map(drop))
    }

    /// Does what a granted node still needs. Returns `None` if it is gone.
    async fn settle(&self, own: OwnNode, queue: Queue) -> Result<Option<OwnNode>> {
        match own.mode {
            Mode::Permits { .. } if own.name().is_some_and(|name| queue.is_followed(name)) => {
                // The one behind may have seen a node that waits.
                let Some(path) = &own.path else { return Ok(None) };
                let data = record(self.request.holder, 1);
                Ok(nodes::write(&self.session, path, &data).await?.then_some(own))
            }
            _ => Ok(Some(own)),
        }
    }

    /// Returns a refusal. Requeues this process's waiters whose node was taken over for a grant that came too late, or was
    /// deleted.
    fn refused(&self, why: Result<()>) -> Result<Acquired> {
        let waiters = self.recipe.waiters.lock();
        waiters
            .get(&self.request.target.name)
            .into_iter()
            .flatten()
            .for_each(|waiter| waiter.requeue());
        why.map(|()| Acquired::held(None))
    }
}
