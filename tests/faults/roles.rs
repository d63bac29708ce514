//! A server that refuses by its role, behind an address that leads to another one by now: a service, a managed endpoint. It
//! keeps its connections.

use std::time::Duration;

use kit::fault::{LONG, connect, exists, lock, millis};
use kit::trace::{Trace, Traced};
use kit::{Proxy, Server, eventually};
use leasehold::{ErrorKind, LeaseManager, LeaseState, Owner};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::Level;

const T: Duration = millis(3_000);

/// A primary, its replica, and the address that leads to the primary.
struct Pair {
    old: Server,
    new: Server,
    proxy: Proxy,
}

impl Pair {
    async fn start(options: &[&str]) -> Self {
        let options = [&["--repl-diskless-sync-delay", "0"], options].concat();
        let (old, new) = (Server::start_with(&options), Server::start_with(&options));
        new.command(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]);
        let is_online = || old.command(&["INFO", "replication"]).text().contains("state=online");
        eventually(LONG, is_online).await;
        let proxy = Proxy::start(old.port());
        Self { old, new, proxy }
    }

    /// Promotes the replica and demotes the primary to one of `master`. New connections lead to the next primary.
    fn switch(&self, master: u16) {
        self.new.command(&["REPLICAOF", "NO", "ONE"]);
        self.proxy.lead_new_to(self.new.port());
        self.old.command(&["REPLICAOF", "127.0.0.1", &master.to_string()]);
    }
}

/// Returns how many of some concurrent calls were granted.
async fn granted(leases: &LeaseManager) -> usize {
    let mut calls = JoinSet::new();
    for n in 0..10 {
        let mut lock = leases.lock(format!("free {n}"));
        calls.spawn(async move { matches!(lock.try_lock().await, Ok(Some(_))) });
    }
    calls.join_all().await.into_iter().filter(|granted| *granted).count()
}

/// Tries again and again until all calls of a round are granted. Returns whether that came true.
async fn all_granted_in_the_end(leases: &LeaseManager) -> bool {
    for _ in 0..200 {
        if granted(leases).await == 10 {
            return true;
        }
        sleep(millis(20)).await;
    }
    false
}

async fn lease_survives(pair: Pair, master: u16) {
    let leases = connect(&pair.proxy.url(), T).await;
    let held = lock(&leases, "job").await;
    // Every connection has been used.
    eventually(LONG, || exists(&pair.new, "job")).await;
    assert_eq!(granted(&leases).await, 10);
    let before = pair.proxy.connections();
    pair.switch(master);
    let works = all_granted_in_the_end(&leases).await;
    assert!(works, "calls still go to the server that was demoted");
    sleep(T * 2).await;
    assert_eq!(held.state(), LeaseState::Held);
    held.check().expect("it was kept");
    assert!(exists(&pair.new, "job"), "it is renewed at the next primary");
    let made = pair.proxy.connections() - before;
    assert!((2..=20).contains(&made), "{made} connections");
    held.unlock().await.expect("a release");
    assert!(!exists(&pair.new, "job"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_server_is_left_and_its_replicated_lease_kept() {
    let trace = Trace::of_all_threads();
    let pair = Pair::start(&[]).await;
    let (place, master) = (pair.proxy.port().to_string(), pair.new.port());
    lease_survives(pair, master).await;
    let is_reported = |event: &Traced| {
        event.level == Level::WARN
            && event.message().contains("refuses by its role")
            && event.field("server").ends_with(&place)
    };
    assert_eq!(trace.matching(is_reported).len(), 1, "one line");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_without_its_master_is_left_and_the_lease_kept() {
    let pair = Pair::start(&["--replica-serve-stale-data", "no"]).await;
    // No server is there.
    lease_survives(pair, 1).await;
}

/// A renewal only reads where it finds no lock, so a stale server refuses none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_manager_leaves_a_demoted_server_as_a_whole() {
    let pair = Pair::start(&[]).await;
    let leases = connect(&pair.proxy.url(), T).await;
    lock(&leases, "before").await.unlock().await.expect("a release");
    // No server is there, so the old one keeps its old data.
    pair.switch(1);
    let mut held = Vec::new();
    for n in 0..8 {
        let mut handle = leases.lock(format!("job {n}"));
        let lease = loop {
            match handle.try_lock().await {
                Ok(lease) => break lease.expect("nobody has it"),
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            sleep(millis(20)).await;
        };
        assert!(exists(&pair.new, &format!("job {n}")));
        held.push(lease);
    }
    sleep(T * 2).await;
    for lease in held {
        lease.check().expect("renewed at the next primary");
        lease.unlock().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_of_users_are_no_refusal() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = connect(&proxy.url(), T).await;
    let owner = Owner::new("READONLY-api");
    let other = LeaseManager::builder().ttl(T).describe(owner.clone());
    let other = other.connect(&server.url()).await.expect("a manager");
    let _held = lock(&other, "job").await;
    let before = proxy.connections();
    for _ in 0..100 {
        let holder = leases.inspect("job").await.expect("an answer").expect("held");
        assert_eq!(holder.owner.expect("described").service, owner.service);
    }
    assert_eq!(proxy.connections(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_stays_one_is_connected_to_after_pauses() {
    // The longest pause is half a second.
    const T: Duration = millis(10_000);
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = connect(&proxy.url(), T).await;
    lock(&leases, "job").await.unlock().await.expect("a release");
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let before = proxy.connections();
    let mut calls = 0;
    for _ in 0..200 {
        let error = leases.lock("job").try_lock().await.expect_err("it is a replica");
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        calls += 1;
        sleep(millis(10)).await;
    }
    let made = proxy.connections() - before;
    // At most two connections for requests, each of which is tried after 10 ms, 20 ms .. half a second.
    assert!((1..=40).contains(&made), "{made} connections in {calls} calls");
    server.command(&["REPLICAOF", "NO", "ONE"]);
    drop(lock(&leases, "job").await);
}

/// A replica loads what its new primary sends, and refuses everything else meanwhile, on its connections of before too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_loads_its_data_for_long_is_left() {
    // It looks at its connections between any two keys, each of which takes two milliseconds.
    let slow = ["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"];
    let old = Server::start_with(&slow);
    let new =
        Server::start_with(&["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"]);
    let proxy = Proxy::start(old.port());
    let leases = connect(&proxy.url(), T).await;
    assert_eq!(granted(&leases).await, 10);
    assert_eq!(new.command(&["DEBUG", "POPULATE", "10000"]).text(), "OK");
    let before = proxy.connections();
    proxy.lead_new_to(new.port());
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    let loads = || old.command(&["INFO", "persistence"]).text().contains("\r\nloading:1\r\n");
    eventually(LONG, loads).await;
    let works = all_granted_in_the_end(&leases).await;
    assert!(works && loads(), "calls go to the server that loads");
    let lease = lock(&leases, "job").await;
    assert!(exists(&new, "job"));
    lease.unlock().await.expect("a release");
    let made = proxy.connections() - before;
    assert!((2..=20).contains(&made), "{made} connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_that_the_server_closes_cost_nothing() {
    // A renewal is due after five seconds.
    const T: Duration = millis(15_000);
    let server = Server::start_with(&["--timeout", "1"]);
    let proxy = Proxy::start(server.port());
    let leases = connect(&proxy.url(), T).await;
    let held = lock(&leases, "job").await;
    let before = proxy.connections();
    for _ in 0..3 {
        sleep(millis(3_000)).await;
        drop(lock(&leases, "other").await);
    }
    assert!(proxy.connections() > before, "the server closed some");
    assert_eq!(held.state(), LeaseState::Held);
    held.unlock().await.expect("a release");
}
