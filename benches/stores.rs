//! What a lock costs on each store: one table, from servers that this bench starts.
//!
//! ```sh
//! cargo bench --features zookeeper --bench stores
//! ```
//!
//! Not a sampling bench: it runs each store once, for some ten seconds, and prints medians and 99th percentiles.

use kit::Server;
use kit::topology::{Cluster, Sentinels};
use kit::zookeeper::ZooKeeper;
use leasehold::{Lease, LeaseManager};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Few ZooKeeper servers give sessions of less.
const TTL: Duration = Duration::from_secs(4);
const PAIRS: usize = 500;
const CHANGES: usize = 100;
const CRASHES: usize = 2;

type Times = Vec<Duration>;

fn main() {
    // They are started outside the runtime: their starts wait.
    let (one, ensemble) = (Server::start(), ZooKeeper::ensemble());
    let (sentinels, cluster) = (Sentinels::start(""), Cluster::start());
    let nodes: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let list: Vec<String> = nodes.iter().map(Server::url).collect();
    let stores = [
        ("memory", "memory:".to_owned()),
        ("one Redis", one.url()),
        ("Sentinel, 2 replicas", sentinels.url()),
        ("Cluster, 3 primaries", cluster.url()),
        ("quorum of 3", list.join(",")),
        ("ZooKeeper, 3 members", ensemble.url()),
    ];
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    println!(
        "T = {TTL:?}; p50 / p99 in ms; one server of a quorum counts when it has been up for T\n"
    );
    println!(
        "{:<22} {:>15} {:>15} {:>17} {:>17} {:>15}",
        "store", "lock", "unlock", "next at home", "next elsewhere", "after a crash"
    );
    for (name, url) in stores {
        let row = runtime.block_on(measure(&url));
        println!(
            "{name:<22} {:>15} {:>15} {:>17} {:>17} {:>15}",
            row[0], row[1], row[2], row[3], row[4]
        );
    }
}

async fn measure(url: &str) -> [String; 5] {
    let here = LeaseManager::builder().ttl(TTL).connect(url).await.expect("connected");
    // Two managers share no memory: the other stands for another process, where there can be one.
    let there = match url {
        "memory:" => here.clone(),
        url => LeaseManager::builder().ttl(TTL).connect(url).await.expect("connected"),
    };
    // Until nodes that were just started count, and this runtime has its connections.
    warm_up(&here).await;
    warm_up(&there).await;
    let (mut locks, mut unlocks) = (Times::new(), Times::new());
    for _ in 0..PAIRS {
        let start = Instant::now();
        let lease = here.lock("alone").lock().await.expect("a lease");
        locks.push(start.elapsed());
        let start = Instant::now();
        lease.unlock().await.expect("a release");
        unlocks.push(start.elapsed());
    }
    let mut home = changes(&here, &here, CHANGES).await;
    let mut elsewhere = changes(&here, &there, CHANGES).await;
    let mut crashes = Times::new();
    for _ in 0..CRASHES {
        let lease = here.lock("crash").lock().await.expect("a lease");
        let next = wait(&there, "crash").await;
        let start = Instant::now();
        // Nothing is given back, as by a process that is gone.
        lease.forget();
        let (at, lease) = next.await.expect("no panic");
        crashes.push(at - start);
        lease.unlock().await.expect("a release");
    }
    let longest = crashes.iter().max().copied().unwrap_or_default();
    let local = url == "memory:";
    let row = [
        both(&mut locks),
        both(&mut unlocks),
        both(&mut home),
        if local { "-".to_owned() } else { both(&mut elsewhere) },
        format!("{:.2} s", longest.as_secs_f64()),
    ];
    let _ = (here.close().await, there.close().await);
    row
}

async fn warm_up(leases: &LeaseManager) {
    let start = Instant::now();
    let mut done = 0;
    while done < 50 {
        match leases.lock("warm").lock().await {
            Ok(lease) => {
                let _ = lease.unlock().await;
                done += 1;
            }
            Err(error) => {
                assert!(start.elapsed() < 4 * TTL, "{error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Somebody who waits for a name; when it got it.
async fn wait(leases: &LeaseManager, name: &'static str) -> JoinHandle<(Instant, Lease)> {
    let mut lock = leases.lock(name);
    let waiter = tokio::spawn(async move {
        let lease = lock.lock().await.expect("a lease");
        (Instant::now(), lease)
    });
    // Until it waits for a message; nothing tells that from outside.
    sleep(Duration::from_millis(30)).await;
    waiter
}

/// From an unlock to the grant of whoever waits.
async fn changes(from: &LeaseManager, to: &LeaseManager, count: usize) -> Times {
    let mut times = Times::new();
    for _ in 0..count {
        let lease = from.lock("next").lock().await.expect("a lease");
        let next = wait(to, "next").await;
        let start = Instant::now();
        lease.unlock().await.expect("a release");
        let (at, lease) = next.await.expect("no panic");
        times.push(at.saturating_duration_since(start));
        lease.unlock().await.expect("a release");
    }
    times
}

fn both(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
    format!("{:.3} / {:.3}", at(50), at(99))
}
