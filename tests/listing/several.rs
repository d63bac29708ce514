//! A quorum of real servers.

use super::{LONG, names};
use kit::{Server, within};
use leasehold::{ErrorKind, LeaseManager};
use std::time::Duration;

const T: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_a_majority_are_found_while_a_majority_answers() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let builder = LeaseManager::builder().ttl(T);
    let leases = builder.connect(urls.join(",")).await.expect("a manager");
    // The nodes count when they have been up for a time to live.
    tokio::time::sleep(T + Duration::from_secs(2)).await;
    let held = (
        leases.lock("lock").lock().await.expect("a lease"),
        leases.rw_lock("rw").read().await.expect("a lease"),
    );
    assert_eq!(names(&leases, "").await, ["lock", "rw"]);
    // One that only a minority has.
    servers[2].command(&["HSET", "left", "0f0e0d0c-9abc-4def-8123-456789abcdef:7.3", "1"]);
    assert_eq!(names(&leases, "").await, ["left", "lock", "rw"]);
    assert!(leases.inspect("left").await.expect("an answer").is_none());
    servers[0].kill();
    assert_eq!(names(&leases, "").await, ["left", "lock", "rw"]);
    servers[1].kill();
    let mut listing = leases.list("");
    let mut last = within(LONG, listing.next()).await;
    while let Some(Ok(_)) = &last {
        last = within(LONG, listing.next()).await;
    }
    let error = last.expect("an error").expect_err("an outage");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("only 1 of 3 nodes"), "{error}");
    drop(held);
}
