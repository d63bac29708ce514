//! Fleets that come back with all addresses new: only the URL leads to them.

use kit::{Cluster, Proxy, Sentinels, Server, eventually, within};
use leasehold::{ErrorKind, Lease, LeaseManager};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const T: Duration = Duration::from_secs(4);
const CALM: &str = "sentinel down-after-milliseconds leases 60000";

async fn connect(url: &str) -> LeaseManager {
    let builder = LeaseManager::builder().ttl(T).max_poll_interval(Duration::from_secs(60));
    kit::connect_in_the_end(builder, url).await
}

/// Locks as a service does that tries again while the store is unavailable.
async fn lock(leases: &LeaseManager, name: &str) -> Lease {
    let start = Instant::now();
    loop {
        match leases.lock(name).lock().await {
            Ok(lease) => return lease,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert!(start.elapsed() < LONG, "{error}");
            }
        }
    }
}

/// The old servers die, and the seed leads to the new ones. Returns what is still connected to none.
async fn move_to_new_servers(
    leases: &LeaseManager,
    stale: &LeaseManager,
    old: &[&Server],
    lead: impl FnOnce(),
) {
    let lease = lock(leases, "job").await;
    lock(stale, "other").await.unlock().await.expect("a release");
    let fence = lease.fence();
    old.iter().for_each(|server| server.kill());
    lead();
    let killed = Instant::now();
    within(LONG, lease.lost()).await;
    assert!(killed.elapsed() < T + Duration::from_millis(500), "{:?}", killed.elapsed());
    let next = lock(leases, "job").await;
    assert!(next.fence() > fence, "tokens do not go back");
    // A waiter hears of a release by message, long before the clock.
    let mut waits = leases.lock("job");
    let waiter = tokio::spawn(async move { waits.lock().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    next.unlock().await.expect("a release");
    within(LONG, waiter).await.expect("no panic").expect("a lease").forget();
    // Without an address that leads there, nothing finds the new servers.
    let error = stale.lock("other").lock().await.expect_err("all are gone");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// How soon a waiter of one manager hears that another has released.
async fn wakes(leases: &LeaseManager, there: &LeaseManager, subscribed: impl Fn() -> bool) {
    let held = lock(there, "woken").await;
    let mut waits = leases.lock("woken");
    let waiter = tokio::spawn(async move { (waits.lock().await, Instant::now()) });
    eventually(LONG, subscribed).await;
    held.unlock().await.expect("a release");
    let released = Instant::now();
    let (lease, at) = within(LONG, waiter).await.expect("no panic");
    lease.expect("a lease").unlock().await.expect("a release");
    assert!(at.saturating_duration_since(released) < Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_are_all_new_are_found_by_the_url() {
    let start = || tokio::task::spawn_blocking(|| Sentinels::start(CALM));
    let old = start().await.expect("sentinels");
    let seed = Proxy::start(old.sentinels[0].port());
    let url = format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName=leases", seed.port());
    let (leases, stale) = (connect(&url).await, connect(&old.url()).await);
    let new = start().await.expect("sentinels");
    let all: Vec<&Server> = old.servers.iter().chain(&old.sentinels).collect();
    move_to_new_servers(&leases, &stale, &all, || seed.lead_to(new.sentinels[0].port())).await;
    let there = connect(&new.url()).await;
    let channel = kit::look::channel("woken");
    wakes(&leases, &there, || {
        kit::look::subscribers(&mut new.servers[0].connection(), &channel) >= 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_that_is_all_new_is_found_by_the_url() {
    let start = || tokio::task::spawn_blocking(Cluster::start);
    let old = start().await.expect("a cluster");
    let seed = Proxy::start(old.nodes[0].port());
    let url = format!("redis-cluster://127.0.0.1:{}", seed.port());
    let (leases, stale) = (connect(&url).await, connect(&old.url()).await);
    let new = start().await.expect("a cluster");
    let all: Vec<&Server> = old.nodes.iter().collect();
    move_to_new_servers(&leases, &stale, &all, || seed.lead_to(new.nodes[0].port())).await;
    let there = connect(&new.url()).await;
    let channel = kit::look::channel("woken");
    wakes(&leases, &there, || {
        let reply = new.command("woken", &["PUBSUB", "SHARDNUMSUB", &channel]);
        reply.list().pop().is_some_and(|count| count.int() >= 1)
    })
    .await;
}
