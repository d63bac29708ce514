//! Steals from Redisson, which has no inbox: it learns of them by its next call, or by its watchdog.

use crate::scenarios;
use crate::world::{LONG, World};
use kit::{look, within};
use leasehold::ErrorKind;
use std::time::{Duration, Instant};

const WHY: &str = "it hangs";

scenarios! {
    lock_of_redisson_is_stolen: on_a_server in_a_cluster;
    watchdog_of_a_stolen_lock_stops: on_a_server;
    redisson_is_only_waited_for_before_a_steal: on_a_server;
    read_write_lock_of_redisson_is_not_stolen: on_a_server in_a_cluster;
}

async fn lock_of_redisson_is_stolen(world: &World) {
    let ttl = Duration::from_secs(60);
    let (leases, java) = (world.rust(ttl).await, world.java(ttl).await);
    let (name, a) = (&*world.name("stolen"), java.on("a"));
    a.call("lock", &[name]).await.ok();
    a.call("lock", &[name]).await.ok();
    assert_eq!(world.held(name).1, 2, "entered twice");
    let waiter = java.on("b").begin("lock", &[name]);
    world.awaited(name, 1).await;

    let lease = leases.lock(name).steal(WHY).await.expect("an answer").expect("none between");
    let ours = (lease.holder_id().to_string(), 1);
    assert_eq!(world.held(name), ours);
    assert!(!a.call("isHeldByCurrentThread", &[name]).await.truth());
    assert_eq!(a.call("getHoldCount", &[name]).await.number::<u32>(), 0);
    assert!(a.call("isLocked", &[name]).await.truth());
    for _ in 0..2 {
        a.call("unlock", &[name]).await.threw("IllegalMonitorStateException");
    }
    assert!(!a.call("tryLock", &[name]).await.truth(), "it does not enter again");
    assert_eq!(world.held(name), ours, "the old holder frees nothing");
    assert!(!waiter.is_done(), "a steal overtakes those that wait");
    lease.unlock().await.expect("still held");
    within(LONG, waiter.done()).await.ok();
    java.on("b").call("unlock", &[name]).await.ok();
    assert!(!world.exists(name));
}

/// It renews every second, and would set a time to live of three.
async fn watchdog_of_a_stolen_lock_stops(world: &World) {
    let watchdog = Duration::from_secs(3);
    let (leases, java) = (world.rust(watchdog * 20).await, world.java(watchdog).await);
    let name = &*world.name("stolen");
    java.on("a").call("lock", &[name]).await.ok();
    let mut server = world.connection(name);
    let mut scripts =
        || ["eval", "evalsha"].map(|word| look::calls(&mut server, word)).iter().sum::<i64>();
    let before = scripts();
    tokio::time::sleep(watchdog).await;
    assert!(scripts() > before, "its renewals are seen");

    let lease = leases.lock(name).steal(WHY).await.expect("an answer").expect("none between");
    // One more at most, which finds that the lock is not its own.
    tokio::time::sleep(watchdog).await;
    let before = scripts();
    tokio::time::sleep(watchdog * 2).await;
    assert_eq!(scripts(), before, "it renews no more, and ours is not due");
    assert!(world.pttl(name) > 40_000, "{} ms: it was never Java's time to live", world.pttl(name));
    lease.check().expect("held");
    lease.unlock().await.expect("still held");
    java.on("a").call("lock", &[name]).await.ok();
    java.on("a").call("unlock", &[name]).await.ok();
}

async fn redisson_is_only_waited_for_before_a_steal(world: &World) {
    let ttl = Duration::from_secs(60);
    let (leases, java) = (world.rust(ttl).await, world.java(ttl).await);
    let (name, a) = (&*world.name("polite"), java.on("a"));
    // It knows nothing of the wish, but releases.
    a.call("lock", &[name]).await.ok();
    let mut lock = leases.lock(name);
    let stealing = tokio::spawn(async move { lock.steal_after(LONG, WHY).await });
    world.awaited(name, 1).await;
    a.call("unlock", &[name]).await.ok();
    let lease = within(LONG / 3, stealing).await.expect("no panic").expect("an answer");
    lease.expect("released").unlock().await.expect("still held");
    // And it does not.
    a.call("lock", &[name]).await.ok();
    let (start, patience) = (Instant::now(), Duration::from_secs(1));
    let lease = leases.lock(name).steal_after(patience, WHY).await.expect("an answer");
    let lease = lease.expect("none between");
    assert!(start.elapsed() >= patience, "{:?}", start.elapsed());
    a.call("unlock", &[name]).await.threw("IllegalMonitorStateException");
    lease.unlock().await.expect("still held");
}

async fn read_write_lock_of_redisson_is_not_stolen(world: &World) {
    let ttl = Duration::from_secs(60);
    let (leases, java) = (world.rust(ttl).await, world.java(ttl).await);
    for which in ["read", "write"] {
        let name = &*world.name(which);
        java.on("a").call("readWrite", &[name, which, "lock"]).await.ok();
        let error = leases.lock(name).steal(WHY).await.expect_err("another kind of lock");
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        // It is forced open, and then it is free for all.
        assert!(leases.force_unlock(name, WHY).await.expect("an answer"));
        let unlocked = java.on("a").call("readWrite", &[name, which, "unlock"]).await;
        unlocked.threw("IllegalMonitorStateException");
        let lease = leases.rw_lock(name).try_write().await.expect("an answer").expect("free");
        lease.unlock().await.expect("still held");
    }
}
