//! ZooKeeper.

use super::{all, names};
use kit::zookeeper::ZooKeeper;
use leasehold::{Kind, LeaseManager};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_with_a_node_of_leasehold_are_names_in_use() {
    let servers = ZooKeeper::start();
    let manager = async |prefix: &str| {
        let builder = LeaseManager::builder().prefix(prefix);
        builder.connect(servers.url()).await.expect("a manager")
    };
    let leases = manager("app:").await;
    assert_eq!(names(&leases, "").await, [""; 0], "there is no directory yet");
    let held = (
        leases.lock("a/b").lock().await.expect("a lease"),
        leases.rw_lock("rw").write().await.expect("a lease"),
        leases.semaphore("pool é", 2).acquire().await.expect("a permit"),
        manager("other:").await.lock("x").lock().await.expect("a lease"),
    );
    leases.lock("free").lock().await.expect("a lease").unlock().await.expect("a release");
    let expected = [("a/b", Kind::Lock), ("pool é", Kind::Semaphore), ("rw", Kind::ReadWrite)];
    let found = all(leases.list("").page_size(1)).await;
    assert_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)).into());
    assert_eq!(names(&leases, "a/").await, ["a/b"]);
    assert_eq!(names(&manager("").await, "").await.len(), 4);
    drop(held);
}
