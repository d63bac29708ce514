//! One holder at a time, and what each side sees of the other's hold.

use crate::peer::now;
use crate::scenarios;
use crate::world::{LONG, World, waits};
use kit::{eventually, within};
use leasehold::LeaseManager;
use std::time::Duration;

const T: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_millis(300);

scenarios! {
    only_the_holder_gets_in: on_a_server in_a_cluster;
    fair_locks_are_locks_of_java: on_a_server in_a_cluster;
    sets_and_slots_are_locks_of_java: on_a_server in_a_cluster;
    nested_holds_count_on_both_sides: on_a_server in_a_cluster;
    waiters_of_both_sides_get_in_after_one_release: on_a_server;
    interrupted_wait_leaves_nothing: on_a_server;
}

async fn only_the_holder_gets_in(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let (name, thread) = (&*world.name("held"), java.on("a"));
    let held = async |method: &str| thread.call(method, &[name]).await;

    // Rust holds.
    let lease = leases.lock(name).lock().await.expect("a lease");
    assert!(!held("tryLock").await.truth());
    let timed = thread.call("tryLockFor", &[name, "300", "-1"]).await;
    let waited = timed.ended - timed.began;
    assert!(!timed.truth());
    // Redisson counts in milliseconds of the wall clock.
    assert!(waited > WAIT - Duration::from_millis(10) && waited < T / 3, "{waited:?}");
    assert!(held("isLocked").await.truth());
    assert!(!held("isHeldByCurrentThread").await.truth());
    assert_eq!(held("getHoldCount").await.number::<u32>(), 0);
    let left = held("remainTimeToLive").await.number::<u64>();
    assert!((1..=30_000).contains(&left), "{left}");
    held("unlock").await.threw("IllegalMonitorStateException");
    lease.check().expect("still held");
    let (holder, count) = world.held(name);
    let (manager, number) = holder.split_once(':').expect("a manager and a number");
    assert!(manager.len() == 36 && number.parse::<u64>().is_ok() && count == 1, "{holder}");
    lease.unlock().await.expect("a release");

    // Java holds.
    assert!(held("tryLock").await.truth());
    assert!(leases.lock(name).try_lock().await.expect("an answer").is_none());
    let start = now();
    assert!(leases.lock(name).lock_timeout(WAIT).await.expect("an answer").is_none());
    let waited = now() - start;
    assert!(waited >= WAIT && waited < T / 3, "{waited:?}");
    let seen = leases.inspect(name).await.expect("an answer").expect("a holder");
    assert_eq!((&seen.holder, seen.hold_count), (&world.held(name).0, 1));
    assert!(held("isHeldByCurrentThread").await.truth());
    held("unlock").await.ok();
    assert!(!world.exists(name));
    drop(leases.lock(name).try_lock().await.expect("an answer").expect("it is free"));
}

/// Fair handles keep their order around a lock that Java takes and releases.
async fn fair_locks_are_locks_of_java(world: &World) {
    let (first, second, java) = (world.rust(T).await, world.rust(T).await, world.java(T).await);
    let (name, thread) = (world.name("fair"), java.on("a"));
    let java = async |method: &str| thread.call(method, &[name.as_str()]).await;
    java("lock").await.ok();
    let wait = |leases: &LeaseManager| {
        let mut lock = leases.fair_lock(&name);
        tokio::spawn(async move { lock.lock().await.expect("a lease") })
    };
    let mut waiters = Vec::new();
    for (place, leases) in [&second, &first].into_iter().enumerate() {
        waiters.push(wait(leases));
        while leases.waiters(&name).await.expect("an answer").len() <= place {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    assert!(first.fair_lock(&name).try_lock().await.expect("an answer").is_none());
    java("unlock").await.ok();
    let [older, younger] = waiters.try_into().expect("two");
    let lease = within(LONG, older).await.expect("no panic");
    assert!(!java("tryLock").await.truth());
    assert!(!younger.is_finished());
    lease.unlock().await.expect("a release");
    let lease = within(LONG, younger).await.expect("no panic");
    assert!(!java("tryLock").await.truth());
    lease.unlock().await.expect("a release");
    assert!(java("tryLock").await.truth());
    java("unlock").await.ok();
}

/// Each name of a multi-lock, and each slot, is a lock that Java knows.
async fn sets_and_slots_are_locks_of_java(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let names = ["set-a", "set-b"].map(|name| world.name(name));
    let thread = java.on("a");
    let mut set = leases.multi_lock(&names).expect("good names");

    // Rust holds both.
    let lease = set.lock().await.expect("a lease");
    for name in &names {
        assert!(!thread.call("tryLock", &[name.as_str()]).await.truth());
    }
    lease.unlock().await.expect("a release");

    // Java holds one: the set waits for it, and leaves the other one free.
    thread.call("lock", &[names[0].as_str()]).await.ok();
    assert!(set.try_lock().await.expect("an answer").is_none());
    let waiter = tokio::spawn(async move { set.lock().await.expect("a lease") });
    world.awaited(&names[0], 1).await;
    assert!(!world.exists(&names[1]));
    thread.call("unlock", &[names[0].as_str()]).await.ok();
    let lease = within(LONG, waiter).await.expect("no panic");
    lease.check().expect("held");
    lease.unlock().await.expect("a release");

    // Java holds one of two slots.
    let base = world.name("slot");
    let (slots, name) = (leases.slots(&base, 2), base + "#0");
    let taken = slots.take_index(0).await.expect("free");
    assert_eq!(taken.name(), name);
    taken.unlock().await.expect("a release");
    thread.call("lock", &[name.as_str()]).await.ok();
    assert_eq!(slots.take().await.expect("one is free").index(), 1);
    thread.call("unlock", &[name.as_str()]).await.ok();
}

async fn nested_holds_count_on_both_sides(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let (name, thread) = (&*world.name("nested"), java.on("a"));

    for count in 1..=3 {
        thread.call("lock", &[name]).await.ok();
        assert_eq!(world.held(name).1, count);
    }
    let waiter = waits(&leases, name);
    world.awaited(name, 1).await;
    for count in (1..=2).rev() {
        thread.call("unlock", &[name]).await.ok();
        assert_eq!(world.held(name).1, count);
        assert!(leases.lock(name).try_lock().await.expect("an answer").is_none());
    }
    let last = thread.call("unlock", &[name]).await;
    let (granted, lease) = within(LONG, waiter).await.expect("no panic");
    assert!(granted > last.began, "in at a hold count of 1");
    world.note(&format!("in {:?} after the last of 3 unlocks", granted - last.began));
    last.ok();
    drop(lease);

    let mut lock = leases.lock(name);
    let outer = lock.lock().await.expect("a lease");
    let inner = lock.lock().await.expect("a lease");
    eventually(LONG, || world.held(name).1 == 2).await;
    let waiter = thread.begin("lock", &[name]);
    world.awaited(name, 1).await;
    inner.unlock().await.expect("a release");
    eventually(LONG, || world.held(name).1 == 1).await;
    assert!(!waiter.is_done());
    let last = now();
    outer.unlock().await.expect("a release");
    let granted = within(LONG, waiter.done()).await;
    assert!(granted.ended > last, "in at a hold count of 1");
    assert_eq!(thread.call("getHoldCount", &[name]).await.number::<u32>(), 1);
    thread.call("unlock", &[name]).await.ok();
}

async fn waiters_of_both_sides_get_in_after_one_release(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let name = &*world.name("crowd");
    let lease = leases.lock(name).lock().await.expect("a lease");
    let threads: Vec<_> = (0..20).map(|i| java.on(&i.to_string())).collect();
    let calls: Vec<_> = threads
        .iter()
        .map(|thread| (thread.begin("lock", &[name]), thread.begin("unlock", &[name])))
        .collect();
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let waiter = waits(&leases, name);
            tokio::spawn(async move {
                let (granted, lease) = waiter.await.expect("no panic");
                let ended = now();
                lease.unlock().await.expect("a release");
                (granted, ended)
            })
        })
        .collect();
    world.awaited(name, 1).await;
    let start = now();
    lease.unlock().await.expect("a release");
    // One hold ends before the next begins.
    let mut holds = Vec::new();
    for task in tasks {
        holds.push(within(LONG, task).await.expect("no panic"));
    }
    for (locked, unlocked) in calls {
        let (locked, unlocked) =
            (within(LONG, locked.done()).await, within(LONG, unlocked.done()).await);
        holds.push((locked.ended, unlocked.began));
        locked.ok();
        unlocked.ok();
    }
    holds.sort_unstable();
    for pair in holds.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two at a time: {pair:?}");
    }
    let last = holds.last().expect("forty").0;
    world.note(&format!("20 threads and 20 tasks all in after {:?}", last - start));
}

async fn interrupted_wait_leaves_nothing(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let (name, thread) = (&*world.name("interrupted"), java.on("a"));
    let lease = leases.lock(name).lock().await.expect("a lease");
    let waiter = thread.begin("lockInterruptibly", &[name]);
    world.awaited(name, 1).await;
    thread.call("interrupt", &[]).await.ok();
    within(LONG, waiter.done()).await.threw("InterruptedException");
    lease.unlock().await.expect("a release");
    assert!(!world.exists(name));
}
