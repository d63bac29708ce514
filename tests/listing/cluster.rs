//! A cluster, whose slots move meanwhile, and a primary that is replaced.

use super::{LONG, names};
use kit::{Cluster, Sentinels, within};
use leasehold::LeaseManager;
use std::collections::BTreeSet;
use std::time::Duration;

async fn manager(url: &str) -> LeaseManager {
    LeaseManager::builder().ttl(Duration::from_secs(20)).connect(url).await.expect("a manager")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_all_primaries_are_found_also_of_a_slot_that_moves() {
    let cluster = Cluster::start();
    let leases = manager(&cluster.url()).await;
    let mut held = Vec::new();
    let mut all = BTreeSet::new();
    for number in 0..60 {
        let name = format!("n{number}");
        held.push(leases.lock(&name).lock().await.expect("a lease"));
        all.insert(name);
    }
    assert_eq!(names(&leases, "n").await.into_iter().collect::<BTreeSet<_>>(), all);

    // The server of slot 0 is walked over first.
    let on = |name: &str| cluster.index_of(name);
    let begin = (0..3).find(|node| cluster.is_agreed(0, *node)).expect("it has an owner");
    let mut listing = leases.list("n").page_size(1);
    let mut found = BTreeSet::new();
    let before: BTreeSet<_> = all.iter().filter(|name| on(name) == begin).cloned().collect();
    let moved = loop {
        let name = within(LONG, listing.next()).await.expect("more").expect("a name").name;
        found.insert(name.to_string());
        if on(name.as_str()) != begin {
            assert!(found.is_superset(&before), "that server was walked over");
            // It was not reached yet, and goes to the server that was.
            break all.iter().find(|name| on(name) != begin && !found.contains(*name)).cloned();
        }
    };
    let moved = moved.expect("there are more");
    let (slot, from) = (cluster.slot(&moved), on(&moved));
    cluster.begin_move(slot, from, begin);
    cluster.end_move(slot, from, begin);
    while let Some(listed) = within(LONG, listing.next()).await {
        let name = listed.expect("a name").name.to_string();
        assert!(found.insert(name.clone()), "{name} is there twice");
    }
    assert_eq!(found, all, "{moved} was moved from {from} to {begin}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_in_the_middle_leaves_out_no_name() {
    let sentinels = Sentinels::start("");
    let leases = manager(&sentinels.url()).await;
    let mut held = Vec::new();
    for number in 0..200 {
        held.push(leases.lock(format!("n{number}")).lock().await.expect("a lease"));
    }
    let old = sentinels.primary_port();
    let mut listing = leases.list("n").page_size(5);
    let mut found = BTreeSet::new();
    while found.len() < 50 {
        let listed = within(LONG, listing.next()).await.expect("more").expect("a name");
        found.insert(listed.name.to_string());
    }
    let mut connection = sentinels.primary().connection();
    // All writes are at a replica, or a name would be lost with the primary.
    connection.command(&["WAIT", "1", "10000"]);
    sentinels.primary().kill();
    while let Some(listed) = within(LONG, listing.next()).await {
        found.insert(listed.expect("a name").name.to_string());
    }
    assert_ne!(sentinels.primary_port(), old);
    assert_eq!(found.len(), 200);
}
