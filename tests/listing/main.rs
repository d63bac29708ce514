//! `LeaseManager::list` on real servers and in memory.

mod cluster;
mod ensemble;
mod redis;
mod several;

use leasehold::{Kind, LeaseManager, Listing};
use std::collections::BTreeMap;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Reads a listing to its end. No name is returned twice.
async fn all(mut listing: Listing) -> BTreeMap<String, Kind> {
    let mut names = BTreeMap::new();
    while let Some(listed) = kit::within(LONG, listing.next()).await {
        let listed = listed.expect("a name");
        let before = names.insert(listed.name.to_string(), listed.kind);
        assert_eq!(before, None, "{} is there twice", listed.name);
    }
    names
}

async fn names(leases: &LeaseManager, prefix: &str) -> Vec<String> {
    all(leases.list(prefix)).await.into_keys().collect()
}

#[tokio::test(start_paused = true)]
async fn memory_lists_what_is_held_and_no_more() {
    let leases = LeaseManager::in_memory();
    let held = (
        leases.lock("a:lock").lock().await.expect("a lease"),
        leases.rw_lock("a:rw").read().await.expect("a lease"),
        leases.semaphore("a:pool", 2).acquire().await.expect("a permit"),
        leases.lock("b:lock").lock().await.expect("a lease"),
    );
    leases.lock("a:free").lock().await.expect("a lease").unlock().await.expect("a release");
    let found = all(leases.list("a:").page_size(1)).await;
    let expected = [("a:lock", Kind::Lock), ("a:pool", Kind::Semaphore), ("a:rw", Kind::ReadWrite)];
    assert_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)).into());
    assert_eq!(names(&leases, "").await.len(), 4);
    drop(held);
    leases.close().await.expect("closed");
    let error = leases.list("").next().await.expect("an error").expect_err("closed");
    assert_eq!(error.kind(), leasehold::ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn outage_of_less_than_a_time_to_live_does_not_end_a_listing() {
    use leasehold::store::MemoryStore;
    use leasehold::testing::{Call, FaultyStore};
    let (store, faults) = FaultyStore::new(MemoryStore::new());
    let leases = LeaseManager::builder().ttl(Duration::from_secs(30)).build(store);
    let leases = leases.expect("a manager");
    let mut held = Vec::new();
    for number in 0..10 {
        held.push(leases.lock(format!("n{number}")).lock().await.expect("a lease"));
    }
    let mut listing = leases.list("n").page_size(1);
    listing.next().await.expect("a name").expect("no error");
    faults.outage(Duration::from_secs(10));
    assert_eq!(all(listing).await.len(), 9);
    assert!(faults.calls(Call::List) > 20, "{}", faults.calls(Call::List));

    let mut listing = leases.list("n");
    faults.outage(Duration::from_secs(60));
    let error = listing.next().await.expect("an error").expect_err("an outage");
    assert_eq!(error.kind(), leasehold::ErrorKind::Unavailable);
    assert!(listing.next().await.is_none(), "it has ended");
}
