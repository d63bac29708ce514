//! The locks that are built from exclusive locks, on every store: several names at once, and numbered slots. Two
//! managers stand for two processes.

use kit::zookeeper::ZooKeeper;
use kit::{Cluster, Server, connect_in_the_end, within};
use leasehold::store::MemoryStore;
use leasehold::{ErrorKind, LeaseManager, Slot};
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const LONG: Duration = Duration::from_secs(60);
const T: Duration = Duration::from_secs(6);

/// Two managers on one store, and what keeps it running.
pub struct Pair {
    pub leases: [LeaseManager; 2],
    _servers: Box<dyn Send + Sync>,
}

impl Pair {
    async fn connect(url: &str, servers: impl Send + Sync + 'static) -> Self {
        let connect = || connect_in_the_end(LeaseManager::builder().ttl(T), url);
        Self { leases: [connect().await, connect().await], _servers: Box::new(servers) }
    }

    pub async fn memory() -> Self {
        let store = MemoryStore::new();
        let build = || LeaseManager::builder().build(store.clone()).expect("good settings");
        Self { leases: [build(), build()], _servers: Box::new(()) }
    }

    pub async fn redis() -> Self {
        let server = Server::start();
        Self::connect(&server.url(), server).await
    }

    pub async fn cluster() -> Self {
        let start = tokio::task::spawn_blocking(Cluster::start);
        let cluster = start.await.expect("a cluster");
        Self::connect(&cluster.url(), cluster).await
    }

    pub async fn quorum() -> Self {
        let servers = [Server::start(), Server::start(), Server::start()];
        let urls = servers.each_ref().map(Server::url).join(",");
        let pair = Self::connect(&urls, servers).await;
        // A node counts once it has been up for T.
        while pair.leases[0].lock("ready").lock().await.is_err() {}
        pair
    }

    pub async fn zookeeper() -> Self {
        let server = ZooKeeper::start();
        Self::connect(&server.url(), server).await
    }
}

/// Runs each test on each store.
macro_rules! on_every_store {
    ($($test:ident)*) => {
        $(mod $test {
            on_every_store!(@stores $test: memory redis cluster quorum zookeeper);
        })*
    };
    (@stores $test:ident: $($store:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $store() {
            super::within(super::LONG * 2, async { super::$test(super::Pair::$store().await).await }).await;
        })*
    };
}

on_every_store! {
    sets_that_overlap_exclude_each_other
    slots_are_taken_once_and_come_back
    fair_locks_go_in_order_or_are_refused
}

async fn sets_that_overlap_exclude_each_other(pair: Pair) {
    const NAMES: usize = 4;
    let inside: Arc<Mutex<HashSet<String>>> = Arc::default();
    let mut tasks = Vec::new();
    for task in 0..6 {
        let (leases, inside) = (pair.leases[task % 2].clone(), Arc::clone(&inside));
        tasks.push(tokio::spawn(async move {
            for round in 0..8 {
                let first = task + round;
                let size = 1 + (task + round) % 3;
                let names: Vec<_> =
                    (0..size).map(|step| format!("set:{}", (first + step * 3) % NAMES)).collect();
                let mut lock = leases.multi_lock(&names).expect("good names");
                let lease = lock.lock().await.expect("granted in the end");
                for name in &names {
                    let alone = inside.lock().expect("no panic").insert(name.clone());
                    assert!(alone, "{name} has two holders");
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
                lease.check().expect("held");
                for name in &names {
                    inside.lock().expect("no panic").remove(name);
                }
                lease.unlock().await.expect("released");
            }
        }));
    }
    for task in tasks {
        within(LONG, task).await.expect("no panic");
    }
    let all = pair.leases[0].multi_lock((0..NAMES).map(|name| format!("set:{name}")));
    let lease =
        all.expect("good names").try_lock().await.expect("an answer").expect("all are free");
    let other = pair.leases[1].lock("set:2").try_lock().await.expect("an answer");
    assert!(other.is_none(), "a name of the set is a lock");
    lease.unlock().await.expect("released");
}

async fn fair_locks_go_in_order_or_are_refused(pair: Pair) {
    let lease = match pair.leases[0].fair_lock("fair").try_lock().await {
        Ok(lease) => lease.expect("free"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("use `lock`"), "{error}");
            let error = pair.leases[0].waiters("fair").await.expect_err("there is no line");
            return assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    };
    assert!(pair.leases[1].lock("fair").try_lock().await.expect("an answer").is_none());
    let (order, mut tasks) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
    for place in 0..4 {
        let (mut lock, order) = (pair.leases[1 - place % 2].fair_lock("fair"), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let lease = lock.lock().await.expect("granted in the end");
            order.lock().expect("no panic").push(place);
            tokio::time::sleep(Duration::from_millis(20)).await;
            lease.unlock().await.expect("released");
        }));
        // Far longer than a request travels: on some of these stores nothing else shows that one waits.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    lease.unlock().await.expect("released");
    for task in tasks {
        within(LONG, task).await.expect("no panic");
    }
    assert_eq!(*order.lock().expect("no panic"), [0, 1, 2, 3]);
}

async fn slots_are_taken_once_and_come_back(pair: Pair) {
    let [here, there] = pair.leases.each_ref().map(|leases| leases.slots("worker", 4));
    let mut taken: Vec<Slot> = Vec::new();
    for slots in [&here, &there, &here, &there] {
        taken.push(slots.try_take().await.expect("an answer").expect("one is free"));
    }
    let indexes: BTreeSet<u32> = taken.iter().map(Slot::index).collect();
    assert_eq!(indexes, (0..4).collect());
    assert!(here.try_take().await.expect("an answer").is_none());
    let name = format!("worker#{}", taken[1].index());
    assert!(pair.leases[0].lock(name).try_lock().await.expect("an answer").is_none());

    let waiting = tokio::spawn(async move { here.take().await.expect("granted in the end") });
    let freed = taken.pop().expect("four are taken");
    let (index, fence) = (freed.index(), freed.fence());
    freed.unlock().await.expect("released");
    let slot = within(LONG, waiting).await.expect("no panic");
    assert_eq!(slot.index(), index);
    assert!(fence.is_none() || slot.fence() > fence);
}
