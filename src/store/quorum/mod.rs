//! Makes one store of several stores, where a majority decides: the Redlock algorithm, with a guard against restarted
//! nodes.

mod acquire;
mod connect;
mod convert;
mod holds;
mod inspect;
mod list;
mod metadata;
mod node;
mod node_modes;
mod notes;
mod release;
mod renew;
mod tally;
mod tokens;
mod wake;

pub(crate) use connect::{NodeOpener, open_quorum};
pub use tally::{NoMajority, NodeVerdict};

use super::{
    About, Acquire, Acquired, Annotate, Capabilities, Describe, Ends, Fencing, ForceRelease, Inbox,
    Inspect, Inspection, List, Mode, Name, Owner, Owners, Pages, Release, Released, RenewBatch,
    RenewCall, Renewed, Reserve, Reserved, Resize, SetVerdicts, Signal, Store, StoreFuture, Uptime,
    Wait, Wakeups, Want, steal_by_force, surely_kept,
};
use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Result};
use async_trait::async_trait;
use holds::Holds;
use node::Node;
use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;
use tally::{Answers, Tally, majority};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const NO_PERMITS: &str = "a quorum does not support semaphores, because majorities cannot count: of 3 nodes with 2 \
                          permits, three holders can each have 2; use `slots`";

const NODES: std::ops::RangeInclusive<usize> = 3..=15;
/// The least time that a node has to answer, unless the request has less.
const SHORTEST_LIMIT: Duration = Duration::from_millis(50);
/// The time limit of a query of all nodes.
const QUERY_LIMIT: Duration = Duration::from_secs(3);
/// The shortest time that nodes which are slow have in a ballot once the others have answered.
const SHORTEST_WAIT: Duration = Duration::from_millis(5);

/// Grants what a majority of N independent stores grants.
///
/// 3 nodes survive the failure of one, 5 that of two. No two nodes may be the same server. It supports read-write locks
/// if all nodes do, and no semaphores. Its grants carry [fencing tokens](crate::Lease::fence) if all nodes can
/// [reserve](Capabilities::reserves) the token that a majority has chosen, as Redis and memory can. [`quorum`](crate::guide::quorum)
/// has the promises, the limits and the costs.
///
/// ```
/// use leasehold::LeaseManager;
/// use leasehold::store::{MemoryStore, Quorum, Store};
/// use std::sync::Arc;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let nodes = (0..3).map(|_| Arc::new(MemoryStore::new()) as Arc<dyn Store>).collect();
/// let leases = LeaseManager::builder().build(Quorum::new(nodes)?)?;
/// let lease = leases.lock("orders:42").lock().await?;
/// lease.unlock().await?;
/// # Ok::<(), leasehold::Error>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[doc(alias = "redlock")]
pub struct Quorum {
    inner: Arc<Inner>,
}

struct Inner {
    nodes: Vec<Arc<Node>>,
    clock: Clock,
    /// Whether all nodes have read-write locks.
    has_shared: bool,
    /// Whether all nodes reserve a fencing token that they are given.
    has_tokens: bool,
    holds: Arc<Holds>,
    closing: CancellationToken,
    /// The number of tasks at work.
    tasks: watch::Sender<usize>,
    wake: wake::Reconnects,
}

impl Quorum {
    /// Makes a quorum of 3 to 15 nodes, each a store of its own.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for another number of nodes, and if some run on tokio's clock, others
    /// on the system's.
    pub fn new(nodes: Vec<Arc<dyn Store>>) -> Result<Self> {
        Self::check(nodes.len())?;
        let clock = nodes[0].clock();
        if nodes.iter().any(|node| node.clock().is_tokio() != clock.is_tokio()) {
            return Err(Error::invalid(
                "some nodes of the quorum run on tokio's clock, others on the system's",
            ));
        }
        let has_shared = nodes.iter().all(|node| {
            let can = node.capabilities();
            can.supports(Mode::Read) && can.supports(Mode::Write)
        });
        let abilities = nodes.iter().map(|node| node.capabilities());
        let has_tokens = connect::abilities_of_all(abilities).fencing;
        let closing = CancellationToken::new();
        let node =
            |(index, store)| Arc::new(Node::new(index, store, clock.clone(), closing.clone()));
        let nodes = nodes.into_iter().enumerate().map(node).collect();
        let (holds, tasks, wake) = Default::default();
        Ok(Self {
            inner: Arc::new(Inner {
                nodes,
                clock,
                has_shared,
                has_tokens,
                holds,
                closing,
                tasks,
                wake,
            }),
        })
    }

    /// Returns an error unless a quorum can have so many nodes.
    pub(crate) fn check(count: usize) -> Result<()> {
        if NODES.contains(&count) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a quorum needs 3 to 15 nodes, best 3 or 5, but got {count}: two would not survive the failure of one"
        )))
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stores: Vec<_> = self.inner.nodes.iter().map(|node| &node.store).collect();
        f.debug_struct("Quorum").field("nodes", &stores).finish_non_exhaustive()
    }
}

/// Returns the time limit of one node.
fn node_limit(timeout: Duration) -> Duration {
    (timeout / 2).max(SHORTEST_LIMIT).min(timeout)
}

/// Returns whether too little of the time to live is left for a grant to be of use.
fn stale(ttl: Duration, sent: Instant, now: Instant) -> bool {
    surely_kept(ttl).saturating_sub(now.saturating_duration_since(sent)) < ttl / 2
}

/// Returns a random number in [0, 1).
fn random() -> f64 {
    // The other half has bits that are the same in all UUIDs.
    let bits = (Uuid::new_v4().as_u128() >> 64) as u64;
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Counts as a task at work for as long as it lives.
struct TaskGuard(Arc<Inner>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.tasks.send_modify(|tasks| *tasks -= 1);
    }
}

impl Inner {
    /// Refuses a mode that the quorum does not have.
    fn require(&self, mode: Mode) -> Result<()> {
        match mode {
            // Any two majorities have a node in common, which grants one of two that exclude each other.
            Mode::Exclusive => Ok(()),
            Mode::Read | Mode::Write if self.has_shared => Ok(()),
            Mode::Read | Mode::Write => Err(mode.unsupported()),
            Mode::Permits { .. } => Err(Error::new(ErrorKind::Unsupported, NO_PERMITS)),
        }
    }

    /// Returns the fencing tokens that a grant reserves; `None` for none.
    fn fencing_of(&self, request: &Acquire) -> Option<Fencing> {
        let one = |fencing: Fencing| match request.target.mode {
            // A reader is not handed off.
            Mode::Read => Fencing { block: 1, ..fencing },
            _ => fencing,
        };
        request.fencing.filter(|_| self.has_tokens).map(one)
    }

    fn majority(&self) -> usize {
        majority(self.nodes.len())
    }

    /// Runs a task that goes on if its caller is dropped.
    fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime no caller could await the answer either.
        let Ok(runtime) = Handle::try_current() else { return };
        self.tasks.send_modify(|tasks| *tasks += 1);
        let guard = TaskGuard(Arc::clone(self));
        // A future that is awaited by the block that captures it takes its space twice.
        let work = Box::pin(work);
        runtime.spawn(async move {
            let _guard = guard;
            work.await;
        });
    }

    /// Sends a request to all nodes at once.
    fn ask<T: Send + 'static, F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        ask: impl Fn(Arc<Node>, Answers<T>) -> F,
    ) -> Tally<T> {
        let (tally, answers) = Tally::new(self.nodes.len());
        for node in &self.nodes {
            self.spawn(ask(Arc::clone(node), answers.clone()));
        }
        tally
    }

    /// Queries all nodes.
    async fn query_all<T: Send + 'static>(
        self: &Arc<Self>,
        limit: Duration,
        call: impl Fn(Arc<dyn Store>) -> StoreFuture<T> + Send + Sync + 'static,
    ) -> Tally<T> {
        let call = Arc::new(call);
        let mut tally = self.ask(|node, answers| {
            let call = Arc::clone(&call);
            async move { answers.send(node.index, call(Arc::clone(&node.store)).await) }
        });
        tally.collect(limit, |_| false).await;
        tally
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Quorum {
    fn clock(&self) -> Clock {
        self.inner.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let nodes = self.inner.nodes.iter().map(|node| node.store.capabilities());
        let abilities = connect::abilities_of_all(nodes);
        let modes = [Mode::Read, Mode::Write].into_iter().filter(|_| self.inner.has_shared);
        modes
            .fold(abilities, Capabilities::with_mode)
            .with_reason_against_permits(NO_PERMITS)
            // A quorum is no node of another one.
            .with_reserves(false)
            .with_steals(true)
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        let inner = Arc::clone(&self.inner);
        match request.split_steal() {
            (request, None) => acquire::acquire(inner, request),
            // It releases by force and acquires, each by a majority: another may come between.
            (request, Some(steal)) => {
                let store = Self { inner };
                Box::pin(async move { steal_by_force(&store, request, steal).await })
            }
        }
    }

    fn acquire_all(&self, _: Vec<Acquire>) -> StoreFuture<SetVerdicts> {
        Acquire::all_unsupported()
    }

    fn is_atomic(&self, _: &[&Name]) -> bool {
        false
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        let inner = Arc::clone(&self.inner);
        match (request.ends, request.target.mode) {
            (Ends::Hold, _) => Box::pin(release::release(inner, request)),
            (Ends::Arrival, Mode::Write) => Box::pin(release::release_arrival(inner, request)),
            (Ends::Arrival, Mode::Exclusive) => {
                Box::pin(ready(request.require_hold().map(|()| Released::done(0))))
            }
            // Only writers have arrivals at the nodes.
            (Ends::Arrival, Mode::Read | Mode::Permits { .. }) => {
                Box::pin(ready(Ok(Released::done(0))))
            }
        }
    }

    fn shard(&self, _: &Name) -> usize {
        // Every name is at every node.
        0
    }

    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        let size = self.capabilities().renewal_batch;
        let renew = |batch| -> StoreFuture<Renewed> {
            Box::pin(renew::renew(Arc::clone(&self.inner), batch))
        };
        RenewCall::divide(batch, size, |_| 0, renew)
    }

    async fn resize(&self, request: Resize) -> Result<Option<u32>> {
        Err(Mode::Permits { size: request.size, take: 1 }.unsupported())
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        match request.about {
            About::Holders => inspect::inspect(&self.inner, request).await,
            // Majorities would disagree about the first.
            About::Line => Err(request.unsupported()),
            About::Note(holder) => {
                Ok(Inspection::default()
                    .with_note(notes::note(&self.inner, request, holder).await?))
            }
        }
    }

    async fn annotate(&self, request: Annotate) -> Result<bool> {
        metadata::annotate(&self.inner, request).await
    }

    async fn describe(&self, request: Describe) -> Result<()> {
        metadata::describe(&self.inner, request).await
    }

    async fn owners(&self, request: Owners) -> Result<Vec<Option<Owner>>> {
        metadata::owners(&self.inner, request).await
    }

    /// Returns the names at any node: those that only a minority has, too.
    fn list(&self, request: List) -> Result<Box<dyn Pages>> {
        let nodes = self.inner.nodes.iter().map(|node| Arc::clone(&node.store));
        Ok(Box::new(list::QuorumPages::new(nodes, request)))
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        self.inner.require(request.target.mode)?;
        let limit = request.timeout;
        let tally = self.inner.query_all(limit, move |store: Arc<dyn Store>| -> StoreFuture<_> {
            let request = request.clone();
            Box::pin(async move { store.force_release(request).await })
        });
        let tally = tally.await;
        let votes = tally.votes(|held| *held);
        if votes.yes + votes.no < self.inner.majority() {
            return Err(tally.no_majority(|held| if *held { "deleted" } else { "free" }));
        }
        Ok(votes.yes > 0)
    }

    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        self.inner.require(request.target.mode)?;
        wake::subscribe(&self.inner.nodes, request).await
    }

    fn reconnects(&self) -> Option<Signal> {
        self.inner.wake.listen(&self.inner.nodes)
    }

    async fn want(&self, request: Want) -> Result<bool> {
        notes::want(&self.inner, request).await
    }

    fn inbox(&self, manager: Uuid) -> Option<Inbox> {
        notes::inbox(&self.inner, manager)
    }

    fn guard_key(&self, _: &Name) -> Option<String> {
        None
    }

    /// Returns the age that a majority has at least. A quorum has several servers, so it names none.
    async fn uptime(&self, timeout: Duration) -> Result<Uptime> {
        let tally = self.inner.query_all(timeout, move |store: Arc<dyn Store>| -> StoreFuture<_> {
            Box::pin(async move { store.uptime(timeout).await })
        });
        let tally = tally.await;
        let mut ages: Vec<Option<Duration>> = tally.verdicts().map(|uptime| uptime.age).collect();
        // `None` is the longest.
        ages.sort_by_key(|age| std::cmp::Reverse(age.unwrap_or(Duration::MAX)));
        match ages.get(tally.majority() - 1) {
            Some(age) => Ok(Uptime::new(*age)),
            None => Err(tally.no_majority(|_| "up")),
        }
    }

    async fn reserve(&self, _: Reserve) -> Result<Reserved> {
        Err(Reserve::unsupported())
    }

    async fn close(&self, timeout: Duration) {
        self.inner.closing.cancel();
        // Requests under way are bounded. Releases that are owed are tried once more.
        let mut tasks = self.inner.tasks.subscribe();
        let _ = tokio::time::timeout(timeout, tasks.wait_for(|tasks| *tasks == 0)).await;
        let tally = self.inner.query_all(timeout, move |store: Arc<dyn Store>| -> StoreFuture<_> {
            Box::pin(async move {
                store.close(timeout).await;
                Ok(())
            })
        });
        drop(tally.await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_below_one() {
        let numbers: Vec<f64> = (0..2000).map(|_| random()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = numbers.iter().sum::<f64>() / 2000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
    }
}
