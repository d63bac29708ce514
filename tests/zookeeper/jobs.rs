//! Jobs on ZooKeeper, whose nodes have no time to live.

use kit::connect_in_the_end;
use kit::zookeeper::{Look, ZooKeeper};
use leasehold::{ErrorKind, Lease, LeaseManager};
use std::time::Duration;

const T: Duration = Duration::from_secs(2);

async fn connect(url: &str) -> LeaseManager {
    connect_in_the_end(LeaseManager::builder().ttl(T), url).await
}

#[tokio::test]
async fn jobs_and_times_without_a_holder_are_refused() {
    let server = ZooKeeper::start();
    let (leases, look) = (connect(&server.url()).await, Look::at(&server.hosts()).await);
    let job = leases.once("job").run(async |_: &Lease| -> Result<(), ()> { panic!("it runs") });
    let error = job.await.expect_err("unsupported");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = leases.lock("job").lock_delay(T).lock().await.expect_err("unsupported");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = leases.lock("job").min_hold(T).lock().await.expect_err("unsupported");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(look.nodes("job").await.is_empty());
}
