//! Every combination of what can happen to the first requests at each node, while two rivals take turns.

use super::*;
use leasehold::store::{
    Acquire, Acquired, Release, Released, RenewBatch, RenewCall, SetVerdicts, StoreFuture, Uptime,
};
use leasehold::{Lease, Result};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Short, so that a run is.
pub(super) const TTL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    Runs,
    RequestLost,
    ReplyLost,
    /// It runs long after its timeout, when no caller expects it.
    RunsLate,
}

pub(super) const FATES: [Fate; 4] =
    [Fate::Runs, Fate::RequestLost, Fate::ReplyLost, Fate::RunsLate];

/// A node whose first requests meet their fates, from any sender.
#[derive(Clone, Debug)]
pub(super) struct Fated {
    node: MemoryStore,
    fates: Arc<Mutex<VecDeque<Fate>>>,
}

impl Fated {
    fn new(fates: &[Fate]) -> Self {
        let node = Self::of(MemoryStore::new());
        fates.iter().for_each(|fate| node.meet(*fate));
        node
    }

    /// A way to a node, whose requests meet fates of their own.
    pub(super) fn of(node: MemoryStore) -> Self {
        Self { node, fates: Arc::default() }
    }

    /// Adds the fate of a request, after those that were added before.
    pub(super) fn meet(&self, fate: Fate) {
        self.fates.lock().expect("no panic").push_back(fate);
    }

    fn run<T: Send + 'static>(
        &self,
        timeout: Duration,
        run: impl FnOnce(&MemoryStore) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let fate = self.fates.lock().expect("no panic").pop_front().unwrap_or(Fate::Runs);
        let node = self.node.clone();
        if fate == Fate::Runs {
            return run(&node);
        }
        if fate == Fate::ReplyLost {
            drop(run(&node));
        } else if fate == Fate::RunsLate {
            tokio::spawn(async move {
                sleep(timeout * 3).await;
                let _ = run(&node).await;
            });
        }
        Box::pin(async move {
            sleep(timeout).await;
            Err(Error::new(ErrorKind::Unavailable, "no answer"))
        })
    }
}

#[async_trait::async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Fated {
    kit::delegate_store! { node:
        clock capabilities shard is_atomic resize inspect annotate describe owners
        force_release subscribe reconnects want inbox guard_key reserve list
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        self.run(request.timeout, move |node| node.acquire(request))
    }
    fn acquire_all(&self, requests: Vec<Acquire>) -> StoreFuture<SetVerdicts> {
        self.run(Duration::from_secs(1), move |node| node.acquire_all(requests))
    }
    fn release(&self, request: Release) -> StoreFuture<Released> {
        self.run(request.timeout, move |node| node.release(request))
    }
    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        let renew = |batch: RenewBatch| {
            self.run(batch.timeout, move |node| RenewCall::join(node.renew(batch.clone())))
        };
        RenewCall::divide(batch, usize::MAX, |_| 0, renew)
    }
    async fn uptime(&self, timeout: Duration) -> Result<Uptime> {
        self.node.uptime(timeout).await
    }
    async fn close(&self, _: Duration) {}
}

pub(super) fn process(nodes: &[Fated]) -> LeaseManager {
    let nodes = nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Store>);
    let quorum = Quorum::new(nodes.collect()).expect("enough nodes");
    LeaseManager::builder().ttl(TTL).build(quorum).expect("good settings")
}

/// What each of two believes to have.
type Beliefs = [RefCell<Option<Lease>>; 2];

async fn life(me: usize, leases: LeaseManager, beliefs: &Beliefs, fates: &dyn std::fmt::Debug) {
    let start = Instant::now();
    let lease = loop {
        // An outage of the first requests may end in an error. The caller asks again.
        if let Ok(Some(lease)) = leases.lock("job").lock_timeout(TTL * 3).await {
            break lease;
        }
        assert!(start.elapsed() < TTL * 12, "{me} got nowhere: {fates:?}");
    };
    // No await since the grant.
    if let Some(other) = &*beliefs[1 - me].borrow() {
        assert!(other.check().is_err(), "two believe: {fates:?}");
    }
    *beliefs[me].borrow_mut() = Some(lease);
    // Long enough for a renewal.
    sleep(TTL / 2).await;
    let lease = beliefs[me].borrow_mut().take().expect("put there");
    // The outcome is reported, and may be a loss.
    let _ = lease.unlock().await;
}

fn run(fates: &[[Fate; 3]], restart: Option<(usize, Duration)>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let nodes: Vec<Fated> = (0..3)
            .map(|node| Fated::new(&fates.iter().map(|f| f[node]).collect::<Vec<_>>()))
            .collect();
        let beliefs = Beliefs::default();
        let (a, b) = (process(&nodes), process(&nodes));
        let label = (fates, restart);
        let restarting = async {
            if let Some((node, at)) = restart {
                sleep(at).await;
                nodes[node].node.restart();
            }
        };
        let later = async {
            sleep(MOMENT).await;
            life(1, b, &beliefs, &label).await;
        };
        tokio::join!(life(0, a, &beliefs, &label), later, restarting);
        // A late request and its time to live.
        sleep(TTL * 2).await;
        for node in &nodes {
            assert!(node.node.is_empty(), "left behind: {label:?}");
        }
        let again = process(&nodes).lock("job").try_lock().await;
        assert!(matches!(again, Ok(Some(_))), "{again:?}: {label:?}");
    });
}

/// All pairs of fates.
fn pairs() -> Vec<[Fate; 2]> {
    FATES.into_iter().flat_map(|a| FATES.into_iter().map(move |b| [a, b])).collect()
}

/// The first two requests at each of three nodes: 816 combinations, for the nodes are alike. But their
/// tasks are not, who come one after the other: so each also the other way round.
fn two_requests_each(part: usize) {
    let pairs = pairs();
    let mut runs = 0;
    for (i, a) in pairs.iter().enumerate() {
        for (j, b) in pairs.iter().enumerate().skip(i) {
            for c in &pairs[j..] {
                if runs % 4 == part {
                    run(&[[a[0], b[0], c[0]], [a[1], b[1], c[1]]], None);
                    run(&[[c[0], b[0], a[0]], [c[1], b[1], a[1]]], None);
                }
                runs += 1;
            }
        }
    }
    assert_eq!(runs, 816);
}

#[test]
fn whatever_becomes_of_two_requests_each_1() {
    two_requests_each(0);
}

#[test]
fn whatever_becomes_of_two_requests_each_2() {
    two_requests_each(1);
}

#[test]
fn whatever_becomes_of_two_requests_each_3() {
    two_requests_each(2);
}

#[test]
fn whatever_becomes_of_two_requests_each_4() {
    two_requests_each(3);
}

/// Deeper, at one node.
#[test]
fn whatever_becomes_of_five_requests_at_one_node() {
    for node in 0..3 {
        for number in 0..4usize.pow(5) {
            let fate = |depth: u32| FATES[number / 4usize.pow(depth) % 4];
            let fates: Vec<[Fate; 3]> = (0..5)
                .map(|depth| {
                    let mut fates = [Fate::Runs; 3];
                    fates[node] = fate(depth);
                    fates
                })
                .collect();
            // The same at each node by symmetry, but for the order of the tasks: a part of them elsewhere.
            if node == 0 || number % 8 == node {
                run(&fates, None);
            }
        }
    }
}

/// Node 1 restarts empty, at any of many moments, while the first request at each meets any fate.
#[test]
fn whatever_becomes_of_the_first_requests_when_a_node_restarts() {
    for [a, b] in pairs() {
        for c in FATES {
            for at in [0, 30, 90, 200, 400, 600, 900] {
                run(&[[a, b, c]], Some((0, Duration::from_millis(at))));
            }
        }
    }
}
