//! Fencing tokens beside a Redisson `RFencedLock`: one key, one sequence.

use crate::peer::Thread;
use crate::scenarios;
use crate::world::World;
use leasehold::LeaseManager;
use std::time::Duration;

const T: Duration = Duration::from_secs(30);

scenarios! {
    tokens_of_both_sides_grow_together: on_a_server in_a_cluster;
    tokens_of_redisson_never_start_again: on_a_server in_a_cluster;
    tokens_of_an_idle_name_go_on_only_if_kept_forever: on_a_server in_a_cluster;
}

async fn rusts(leases: &LeaseManager, name: &str) -> u64 {
    let mut lock = leases.lock(name);
    let lease = lock.lock().await.expect("a lease");
    let fence = lease.fence().expect("fencing is on");
    // A nested lease has the same.
    let nested = lock.lock().await.expect("a lease");
    assert_eq!(nested.fence(), Some(fence));
    nested.unlock().await.expect("a release");
    lease.unlock().await.expect("a release");
    fence
}

async fn javas(thread: &Thread, name: &str) -> u64 {
    let fence = thread.call("fencedLock", &[name]).await.number();
    // A nested hold has a token of its own.
    let nested: u64 = thread.call("fencedLock", &[name]).await.number();
    assert!(nested > fence, "{nested} after {fence}");
    for _ in 0..2 {
        thread.call("fencedUnlock", &[name]).await.ok();
    }
    nested
}

async fn tokens_of_both_sides_grow_together(world: &World) {
    let java = world.java(T).await;
    let thread = java.on("a");
    for (retention, ends) in [(Some(Duration::from_secs(86_400)), true), (None, false)] {
        let builder = LeaseManager::builder().ttl(T).fence_retention(retention);
        let leases = world.rust_with(builder).await;
        for java_first in [true, false] {
            let name = &*world.name("fenced");
            let mut last = 0;
            for turn in 0..12 {
                let is_javas = (turn % 2 == 0) == java_first;
                let fence = match is_javas {
                    true => javas(&thread, name).await,
                    false => rusts(&leases, name).await,
                };
                assert!(fence > last, "{fence} after {last}, turn {turn}");
                last = fence;
            }
            let key = format!("redisson_lock_token:{{{name}}}");
            assert!(world.command(&key, &["GET", &key]).int().unsigned_abs() >= last);
            // A counter that Redisson began has no end, whatever leasehold remembers for how long.
            let left = world.pttl(&key);
            assert_eq!(left > 0, ends && !java_first, "{left}; {retention:?}, {java_first}");
        }
    }
}

/// Its counter is used by Java alone for longer than leasehold would remember it.
async fn tokens_of_redisson_never_start_again(world: &World) {
    let ttl = Duration::from_secs(1);
    let (java, name) = (world.java(ttl).await, &*world.name("counted"));
    let builder = LeaseManager::builder().ttl(ttl).fence_retention(Some(ttl * 2));
    let leases = world.rust_with(builder).await;
    let thread = java.on("a");
    let mut last = javas(&thread, name).await;
    for turn in 0..9 {
        let fence = match turn {
            1 => rusts(&leases, name).await,
            _ => javas(&thread, name).await,
        };
        assert!(fence > last, "{fence} after {last}, turn {turn}");
        last = fence;
        tokio::time::sleep(ttl / 2).await;
    }
    assert!(rusts(&leases, name).await > last);
}

/// A name that leasehold locked first, and that nobody locks for longer than most managers remember.
async fn tokens_of_an_idle_name_go_on_only_if_kept_forever(world: &World) {
    let ttl = Duration::from_secs(1);
    let (java, key) = (world.java(T).await, |name: &str| format!("redisson_lock_token:{{{name}}}"));
    let thread = java.on("a");
    let with = |retention| LeaseManager::builder().ttl(ttl).fence_retention(retention);
    let (forgets, keeps) =
        (world.rust_with(with(Some(ttl * 2))).await, world.rust_with(with(None)).await);
    let (idle, kept) = (&*world.name("idle"), &*world.name("kept"));
    rusts(&forgets, idle).await;
    let last = rusts(&keeps, kept).await;
    kit::eventually(T, || world.pttl(&key(idle)) == -2).await;
    assert_eq!(world.pttl(&key(kept)), -1);
    assert!(javas(&thread, kept).await > last);
    // As the guide says: `None` is needed.
    assert_eq!(javas(&thread, idle).await, 2, "Redisson begins again, and locks twice");
    assert!(rusts(&forgets, idle).await > last);
}
