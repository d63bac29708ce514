//! Jobs on ZooKeeper, whose nodes have no time to live.

use kit::connect_in_the_end;
use kit::zookeeper::{Look, ZooKeeper};
use leasehold::{ErrorKind, Lease, LeaseManager};
use std::time::{Duration, Instant};

const T: Duration = Duration::from_secs(2);

async fn connect(url: &str) -> LeaseManager {
    connect_in_the_end(LeaseManager::builder().ttl(T), url).await
}

#[tokio::test]
async fn jobs_and_delays_are_refused_before_anything_is_made() {
    let server = ZooKeeper::start();
    let (leases, look) = (connect(&server.url()).await, Look::at(&server.hosts()).await);
    let job = leases.once("job").run(async |_: &Lease| -> Result<(), ()> { panic!("it runs") });
    let error = job.await.expect_err("unsupported");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = leases.lock("job").lock_delay(T).lock().await.expect_err("unsupported");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(look.nodes("job").await.is_empty());
}

#[tokio::test]
async fn process_keeps_a_min_hold_until_its_end_or_close() {
    let server = ZooKeeper::start();
    let (leases, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let min = T * 2;
    let start = Instant::now();
    let mut lock = leases.lock("n").min_hold(min);
    lock.lock().await.expect("free").unlock().await.expect("released");
    assert!(lock.try_lock().await.expect("an answer").is_none());
    assert!(other.lock("n").try_lock().await.expect("an answer").is_none());
    let lease = other.lock("n").lock().await.expect("it opens");
    let took = start.elapsed();
    assert!(took >= min && took < min + T, "{took:?}");
    lease.unlock().await.expect("released");

    let mut lock = leases.lock("m").min_hold(Duration::from_secs(600));
    drop(lock.lock().await.expect("free"));
    assert!(other.lock("m").try_lock().await.expect("an answer").is_none());
    leases.close().await.expect("all is released");
    assert!(other.lock("m").try_lock().await.expect("an answer").is_some());
}
