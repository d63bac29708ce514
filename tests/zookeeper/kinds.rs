//! Nodes of another kind under the name of a lease, such as those of other locks: they are reported, and left alone.

use kit::zookeeper::{Look, ZooKeeper, directory};
use kit::{connect_in_the_end, within};
use leasehold::{Error, ErrorKind, HolderInfo, LeaseManager, Loss};
use std::time::Duration;
use zookeeper_client::{Acls, CreateMode};

/// Ten of the server's ticks.
const T: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(15);

async fn connect(url: &str) -> LeaseManager {
    // A waiter is woken, or it is late.
    connect_in_the_end(LeaseManager::builder().ttl(T).max_poll_interval(LONG * 4), url).await
}

/// Waits until this hold count of `job` is recorded, and returns its holder.
pub(super) async fn counted(leases: &LeaseManager, count: u64) -> HolderInfo {
    let counted = async {
        loop {
            let holder = leases.inspect("job").await.expect("an answer").expect("held");
            if holder.hold_count == count {
                return holder;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(LONG, counted).await
}

/// Makes a node in the directory of `job`; returns its name.
async fn intrude(look: &Look, node: &str, mode: CreateMode) -> String {
    let open = Acls::anyone_all();
    let directory = directory("job");
    look.0.mkdir(&directory, &CreateMode::Container.with_acls(open)).await.expect("made");
    let path = format!("{directory}/{node}");
    let (_, sequence) = look.0.create(&path, b"", &mode.with_acls(open)).await.expect("made");
    match mode {
        CreateMode::EphemeralSequential => format!("{node}{sequence}"),
        _ => node.to_owned(),
    }
}

async fn remove(look: &Look, node: &str) {
    let path = format!("{}/{node}", directory("job"));
    look.0.delete(&path, None).await.expect("it was there");
}

#[track_caller]
fn reports_node(error: &Error, node: &str) {
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    let text = error.to_string();
    assert!(text.contains(node) && text.contains("Delete it, or choose another name"), "{text}");
}

#[tokio::test]
async fn node_of_another_kind_is_reported_and_left_alone() {
    use CreateMode::{EphemeralSequential, Persistent};
    let server = ZooKeeper::start();
    let (leases, look) = (connect(&server.url()).await, Look::at(&server.hosts()).await);
    for (node, mode) in [
        ("_c_2a5f9f6e-63c5-4d1c-8b5e-3a5d6f7a8b9c-lock-", EphemeralSequential),
        ("2a5f9f6e__READ__", EphemeralSequential),
        ("read-", EphemeralSequential),
        ("write-", EphemeralSequential),
        ("r~2a5f9f6e:1~", EphemeralSequential),
        ("leases", Persistent),
    ] {
        let node = intrude(&look, node, mode).await;
        let mut lock = leases.lock("job");
        reports_node(&lock.try_lock().await.expect_err("not granted"), &node);
        reports_node(&lock.lock_timeout(LONG).await.expect_err("not granted"), &node);
        reports_node(&within(LONG, lock.lock()).await.expect_err("not granted"), &node);
        reports_node(&leases.inspect("job").await.expect_err("not ours"), &node);
        reports_node(&leases.force_unlock("job", "test").await.expect_err("not ours"), &node);
        assert_eq!(look.nodes("job").await, std::slice::from_ref(&node));
        let other = leases.lock("job-2").try_lock().await.expect("an answer");
        assert!(other.is_some(), "the name beside it is free");
        remove(&look, &node).await;
        let lease = within(LONG, lock.lock()).await.expect("free again");
        lease.unlock().await.expect("released");
    }
}

#[tokio::test]
async fn node_of_another_kind_that_comes_later_refuses_waiters() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let (holder, leases) = (connect(&server.url()).await, connect(&server.url()).await);
    let lease = holder.lock("job").lock().await.expect("free");
    let mut lock = leases.lock("job");
    let waiter = tokio::spawn(async move { lock.lock().await });
    look.until_nodes("job", 2).await;
    let node = intrude(&look, "read-", CreateMode::EphemeralSequential).await;
    // The holder stays the holder, and is renewed.
    let mut last = Duration::MAX;
    kit::eventually(LONG, || lease.remaining() > std::mem::replace(&mut last, lease.remaining()))
        .await;
    lease.unlock().await.expect("released");
    let waited = within(LONG, waiter).await.expect("it runs");
    reports_node(&waited.expect_err("not granted"), &node);
    look.until_nodes("job", 1).await;
    assert_eq!(look.nodes("job").await, [node]);
}

#[tokio::test]
async fn holder_beside_another_kind_is_inspected_and_forced() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let (holder, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let mut lock = holder.lock("job");
    let lease = lock.lock().await.expect("free");
    let node = intrude(&look, "_c_2a5f9f6e-lock-", CreateMode::EphemeralSequential).await;
    let nested = lock.lock().await.expect("still held");
    let seen = counted(&other, 2).await;
    assert_eq!(seen.holder, lease.holder_id().to_string());
    nested.unlock().await.expect("released");
    lease.check().expect("still held");
    assert!(other.force_unlock("job", "test").await.expect("an answer"));
    assert_eq!(within(LONG, lease.lost()).await, Loss::Taken);
    assert_eq!(look.nodes("job").await, std::slice::from_ref(&node));
    // There is no hold any more, so only the node can be reported.
    reports_node(&other.inspect("job").await.expect_err("not ours"), &node);
    reports_node(&other.force_unlock("job", "test").await.expect_err("not ours"), &node);
    assert_eq!(look.nodes("job").await, [node]);
}
