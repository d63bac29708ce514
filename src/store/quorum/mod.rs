//! A store made of several, of which a majority decides: the Redlock algorithm, made safe.

mod acquire;
mod holds;
mod node;
mod opening;
mod place;
mod release;
mod renew;
mod same;
mod tally;
mod wake;

pub(crate) use opening::Opening;
pub use tally::{NoMajority, NodeVerdict};

use super::{
    Acquire, Acquired, Capabilities, ForceRelease, Holding, Inspect, Inspection, Name, Release,
    Released, RenewBatch, Renewed, Signal, Store, StoreFuture, Wait, Wakeups,
};
use crate::clock::Clock;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use async_trait::async_trait;
use holds::Holds;
use node::Node;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tally::{Answers, Tally, majority};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const NODES: std::ops::RangeInclusive<usize> = 3..=15;
/// No node gets less time for its answer, unless the request has less.
const SHORTEST_LIMIT: Duration = Duration::from_millis(50);
/// How long looking at all nodes may take.
const LOOK_LIMIT: Duration = Duration::from_secs(3);

/// A store made of N independent stores: what a majority of them grants is granted.
///
/// Independent means: no replication between them, none of them shares a fate (power, host, operator's mistake)
/// with another, and no two are the same server. A list of URLs that names a server twice is refused. If the addresses
/// of two nodes lead to one server later, by DNS or a proxy, that server votes once, and the log and errors name the two.
///
/// 3 nodes survive the failure of one, 5 that of two. An even number survives no more
/// than the odd one below it.
///
/// ```
/// use leasehold::LeaseManager;
/// use leasehold::store::{MemoryStore, Quorum, Store};
/// use std::sync::Arc;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let nodes = (0..3).map(|_| Arc::new(MemoryStore::new()) as Arc<dyn Store>).collect();
/// let leases = LeaseManager::builder().store(Quorum::new(nodes)?)?;
/// let lease = leases.lock("orders:42").lock().await?;
/// lease.unlock().await?;
/// # Ok::<(), leasehold::Error>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # What is promised
///
/// What [`LeaseManager`](crate::LeaseManager#what-is-promised) promises, while at most a minority of the nodes
/// is down, slow, or restarts, even without its keys. The reason: two holders at one time would need two
/// majorities, which have a node in common; that node granted the second while the first one's time to live
/// ran, so it had forgotten the first. But no grant and no renewal counts unless its node says *after it*
/// that it has forgotten nothing for a whole time to live (see [`Store::age`]). A Redis server says that when it has
/// been up for as long, also if it keeps its keys on disk: a disk can be replaced by an empty one, and an append-only
/// file can lack the last second.
///
/// - A lease lives exactly while a majority confirms its renewals, each round as one: its deadline counts from
///   before the first send of the round.
/// - A node that was down, or comes back empty, gets the keys of living holds back at their next renewal, and
///   counts again when it has been up for the time to live. So restarts one after the other cost no lease, if
///   T and one renewal (T/3) lie between them.
/// - What did not become a majority is released on every node, as is a late grant, until it is confirmed or
///   has expired. The next attempt has another token at the nodes (`<uuid>:<number>.<node>.<attempt>`), so that a
///   late release cannot undo a later grant. A key of one's own that is left at a node is released there
///   before the name is asked for again: it never votes against its owner.
/// - When several ask at once and none gets a majority, they give back and try again after a random
///   pause, which grows.
///
/// # What is not
///
/// - **Fencing tokens.** Each node could count, but not all of them alike, so a majority's numbers do not
///   grow in the order of the grants. [`Lease::fence`](crate::Lease::fence) is `None`. Where a
///   resource must refuse late writes, use a store that has fencing tokens.
/// - **Lost keys without a restart.** A flush, an eviction or a `DEL` on a running node goes unnoticed: if the
///   holder has just a majority, the node can help another one in. Use `noeviction`.
/// - **A wiped majority.** When the leases are lost on a majority of the nodes, all holders are told at the next
///   renewal; nothing new is granted for T after the restart.
/// - **Addresses that move to a server that was no node before**, or to several servers in turn. Such a server counts
///   by its own age, though it knows nothing of what the one before it has granted: stop the old one, and give its
///   address to the new one T later.
/// - **Clocks** that are stepped, on a node or here; and pauses between `check` and a write.
/// - **Different times to live.** All who share names must use the same T, since a node counts again after
///   the T of whoever asks.
///
/// # Costs
///
/// Two round trips for a grant: one to all nodes at once, then one for the age of those that granted (shared by
/// all grants that wait for it). Renewals the same, for each batch. One for a release, a nested acquire two. The slowest
/// of the fastest majority sets the pace. Each node has half of the request's time-out, T/20 unless T is below
/// 2.5 s or above 200 s, but 50 ms at least; what a slower one answers changes no verdict, but is not lost: grants are
/// given back, missing keys made again.
///
/// Waiters are woken when a majority of the nodes says so, by a minority's word after a short while, and by
/// the clock at the poll bound whatever is lost.
///
/// The work goes on in tasks of the runtime that asks. If that ends, what was taken without a majority expires.
pub struct Quorum {
    inner: Arc<Inner>,
}

struct Inner {
    nodes: Vec<Arc<Node>>,
    clock: Clock,
    holds: Arc<Holds>,
    closing: CancellationToken,
    /// How many tasks are at work.
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
        let closing = CancellationToken::new();
        let node =
            |(index, store)| Arc::new(Node::new(index, store, clock.clone(), closing.clone()));
        let nodes = nodes.into_iter().enumerate().map(node).collect();
        let (holds, tasks, wake) = Default::default();
        Ok(Self { inner: Arc::new(Inner { nodes, clock, holds, closing, tasks, wake }) })
    }

    /// Whether a quorum can have as many nodes.
    pub(crate) fn check(count: usize) -> Result<()> {
        if NODES.contains(&count) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a quorum of {count} makes no sense; give it 3 to 15 nodes, best 3 or 5: two would not survive the failure of one"
        )))
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stores: Vec<_> = self.inner.nodes.iter().map(|node| &node.store).collect();
        f.debug_struct("Quorum").field("nodes", &stores).finish_non_exhaustive()
    }
}

/// How long one node may take for its answer.
fn node_limit(timeout: Duration) -> Duration {
    (timeout / 2).max(SHORTEST_LIMIT).min(timeout)
}

/// Counts as a task at work for as long as it lives.
struct Working(Arc<Inner>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.tasks.send_modify(|tasks| *tasks -= 1);
    }
}

impl Inner {
    fn majority(&self) -> usize {
        majority(self.nodes.len())
    }

    /// Runs a task that whoever asked may give up, but not stop.
    fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime nobody could await the answer either.
        let Ok(runtime) = Handle::try_current() else { return };
        self.tasks.send_modify(|tasks| *tasks += 1);
        let working = Working(Arc::clone(self));
        runtime.spawn(async move {
            let _working = working;
            work.await;
        });
    }

    /// Has all nodes asked at once.
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

    /// Looks at all nodes by calls that borrow their store.
    async fn look<T: Send + 'static>(
        self: &Arc<Self>,
        limit: Duration,
        call: impl AsyncCall<T> + 'static,
    ) -> Tally<T> {
        let call = Arc::new(call);
        let mut tally = self.ask(|node, answers| {
            let call = Arc::clone(&call);
            async move { answers.give(node.index, call.call(Arc::clone(&node.store)).await) }
        });
        tally.collect(limit, |_| false).await;
        tally
    }
}

/// A call on a store that borrows it.
trait AsyncCall<T>: Send + Sync {
    fn call(&self, store: Arc<dyn Store>) -> StoreFuture<T>;
}

impl<T, F: Fn(Arc<dyn Store>) -> StoreFuture<T> + Send + Sync> AsyncCall<T> for F {
    fn call(&self, store: Arc<dyn Store>) -> StoreFuture<T> {
        self(store)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Quorum {
    fn clock(&self) -> Clock {
        self.inner.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let all = || self.inner.nodes.iter().map(|node| node.store.capabilities());
        Capabilities::default()
            .with_fencing(false)
            // There is none to reserve.
            .with_longest_fence_block(1)
            .with_time_left(all().all(|node| node.time_left))
            .with_wakeups(all().any(|node| node.wakeups))
            .with_announces(all().all(|node| node.announces))
            .with_renewal_batch(all().map(|node| node.renewal_batch).min().unwrap_or(1))
    }

    /// Every name is at every node.
    fn shard(&self, _: &Name) -> usize {
        0
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        Arc::clone(&self.inner).acquire(request)
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        Box::pin(Arc::clone(&self.inner).release(request))
    }

    fn renew(&self, batch: RenewBatch) -> StoreFuture<Renewed> {
        Box::pin(Arc::clone(&self.inner).renew(batch))
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        request.target.require_exclusive()?;
        let limit = request.timeout;
        let tally = self.inner.look(limit, move |store: Arc<dyn Store>| -> StoreFuture<_> {
            let request = request.clone();
            Box::pin(async move { store.inspect(request).await.map(Inspection::into_holder) })
        });
        let tally = tally.await;
        let mut found: Vec<Holding> = tally.verdicts().flatten().cloned().collect();
        for holding in &mut found {
            // Who holds is the same in every attempt.
            if let Some((holder, _)) = holding.holder.split_once('.') {
                holding.holder = holder.to_owned();
            }
        }
        // Of those that a majority has at least, the least.
        found.sort_by_key(|holding| std::cmp::Reverse(holding.remaining));
        let majority = tally.majority();
        for holding in &found {
            let mut same = found.iter().filter(|other| other.holder == holding.holder);
            if let Some(last) = same.nth(majority - 1) {
                return Ok(Inspection::new([last.clone()]));
            }
        }
        let votes = tally.votes(Option::is_some);
        // Nobody has a majority, whatever the silent ones have.
        let silent = votes.failed + votes.pending;
        let most = found.iter().map(|holding| {
            found.iter().filter(|other| other.holder == holding.holder).count() + silent
        });
        if most.max().unwrap_or(silent) < majority {
            return Ok(Inspection::default());
        }
        Err(tally.no_majority(|holding| if holding.is_some() { "held" } else { "free" }))
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        request.target.require_exclusive()?;
        let limit = request.timeout;
        let tally = self.inner.look(limit, move |store: Arc<dyn Store>| -> StoreFuture<_> {
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
        request.target.require_exclusive()?;
        wake::subscribe(&self.inner.nodes, request).await
    }

    fn reconnects(&self) -> Option<Signal> {
        self.inner.wake.listen(&self.inner.nodes)
    }

    /// Tells that of the majority that remembers longest.
    async fn age(&self, timeout: Duration) -> Result<Option<Duration>> {
        let tally = self.inner.look(timeout, move |store: Arc<dyn Store>| -> StoreFuture<_> {
            Box::pin(async move { store.age(timeout).await })
        });
        let tally = tally.await;
        let mut ages: Vec<Option<Duration>> = tally.verdicts().copied().collect();
        // `None` is longest.
        ages.sort_by_key(|age| std::cmp::Reverse(age.unwrap_or(Duration::MAX)));
        match ages.get(tally.majority() - 1) {
            Some(age) => Ok(*age),
            None => Err(tally.no_majority(|_| "up")),
        }
    }

    /// Tells none: it is several.
    async fn server_id(&self, _: Duration) -> Result<Option<String>> {
        Ok(None)
    }

    async fn close(&self, timeout: Duration) {
        self.inner.closing.cancel();
        // What is under way is bounded; what is owed is tried once more.
        let mut tasks = self.inner.tasks.subscribe();
        let _ = tokio::time::timeout(timeout, tasks.wait_for(|tasks| *tasks == 0)).await;
        let tally = self.inner.look(timeout, move |store: Arc<dyn Store>| -> StoreFuture<_> {
            Box::pin(async move {
                store.close(timeout).await;
                Ok(())
            })
        });
        drop(tally.await);
    }
}
