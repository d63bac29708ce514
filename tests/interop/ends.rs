//! How holds end: watchdogs that keep them, crashes, shutdowns, force, leases that are fixed, and keys that go.

use crate::peer::now;
use crate::scenarios;
use crate::world::{LONG, World, waits};
use kit::holder::Holder;
use kit::{eventually, within};
use leasehold::{ErrorKind, LeaseManager, Loss};
use std::time::Duration;

const T: Duration = Duration::from_secs(3);
/// How much later than by its clock a waiter may come in on a busy machine: the poll bound, and a second.
const LATE: Duration = Duration::from_secs(2);

scenarios! {
    watchdogs_keep_what_is_held: on_a_server in_a_cluster;
    killed_holder_is_followed_when_the_lease_ends: on_a_server in_a_cluster;
    client_that_is_shut_down_is_followed_when_the_lease_ends: on_a_server in_a_cluster;
    manager_that_is_closed_is_followed_at_once: on_a_server in_a_cluster;
    redisson_takes_a_lease_by_force: on_a_server in_a_cluster;
    waiter_behind_a_local_hold_is_woken_by_redissons_force: on_a_server;
    leasehold_takes_a_lock_by_force: on_a_server in_a_cluster;
    lock_without_a_watchdog_ends_by_itself: on_a_server in_a_cluster;
    deleted_keys_are_noticed_by_their_holders: on_a_server in_a_cluster;
    flush_is_noticed_by_the_holders: on_a_server;
    removed_time_to_live_is_put_back: on_a_server in_a_cluster;
    listeners_hear_of_releases_and_expiries: on_a_server;
}

async fn watchdogs_keep_what_is_held(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let [javas, rusts] = ["javas", "rusts"].map(|start| world.name(start));
    let thread = java.on("a");
    thread.call("lock", &[&javas]).await.ok();
    let lease = leases.lock(&*rusts).lock().await.expect("a lease");
    let task = waits(&leases, &javas);
    let waiter = java.on("b").begin("lock", &[&rusts]);
    let (start, mut lowest) = (now(), [i64::MAX; 2]);
    while now() - start < T * 3 {
        for (name, lowest) in [&javas, &rusts].into_iter().zip(&mut lowest) {
            let left = world.pttl(name);
            assert!(left > 0, "{name} has no time to live: {left}");
            *lowest = left.min(*lowest);
        }
        assert!(!task.is_finished() && !waiter.is_done(), "two are in");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.note(&format!("over 3 T the least time to live was {lowest:?} of {} ms", T.as_millis()));
    lease.check().expect("renewed");
    let unlocked = thread.call("unlock", &[&javas]).await;
    let released = now();
    lease.unlock().await.expect("renewed");
    let (granted, _lease) = within(LONG, task).await.expect("no panic");
    assert!(granted > unlocked.began, "two were in");
    let granted = within(LONG, waiter.done()).await;
    assert!(granted.ended > released, "two were in");
    unlocked.ok();
}

async fn killed_holder_is_followed_when_the_lease_ends(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let [javas, rusts] = ["javas", "rusts"].map(|start| world.name(start));
    let jvm = world.own_jvm().await;
    let doomed = world.java_in(&jvm, T, "", "default").await;
    doomed.on("a").call("lock", &[&javas]).await.ok();
    let mut holder = Holder::start();
    holder.hold(&world.url(), T, &rusts).await;
    let task = waits(&leases, &javas);
    let waiter = java.on("b").begin("lock", &[&rusts]);
    world.awaited(&javas, 1).await;
    world.awaited(&rusts, 1).await;

    let killed = now();
    jvm.kill();
    holder.signal(rustix::process::Signal::KILL);
    let left = |name: &str| Duration::from_millis(world.pttl(name).unsigned_abs());
    let [java_left, rust_left] = [left(&javas), left(&rusts)];
    let asked = now();
    let (granted, _lease) = within(LONG, task).await.expect("no panic");
    let waited = within(LONG, waiter.done()).await.ended;
    world.note(&format!(
        "after kill -9 of Java Rust is in after {:.2?} ({java_left:.2?} were left), of Rust Java after {:.2?} ({rust_left:.2?})",
        granted - killed,
        waited - killed
    ));
    for (granted, left) in [(granted, java_left), (waited, rust_left)] {
        assert!(granted + Duration::from_millis(5) > killed + left, "before the lease ended");
        assert!(granted < asked + left + LATE, "{:?} after the end", granted - asked - left);
    }
}

async fn client_that_is_shut_down_is_followed_when_the_lease_ends(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let (name, thread) = (&*world.name("shut-down"), java.on("a"));
    thread.call("lock", &[name]).await.ok();
    let task = waits(&leases, name);
    world.awaited(name, 1).await;
    let start = now();
    thread.call("shutdown", &[]).await.ok();
    let (granted, _lease) = within(LONG, task).await.expect("no panic");
    world.note(&format!("after a shutdown of Redisson Rust is in after {:.2?}", granted - start));
    assert!(granted - start < T + LATE, "{:?}", granted - start);
}

async fn manager_that_is_closed_is_followed_at_once(world: &World) {
    // A clock would take the rest of a minute.
    let ttl = Duration::from_secs(60);
    let (leases, java) = (world.rust(ttl).await, world.java(ttl).await);
    let name = &*world.name("closed");
    let lease = leases.lock(name).lock().await.expect("a lease");
    let waiter = java.on("a").begin("lock", &[name]);
    world.awaited(name, 1).await;
    let start = now();
    // The grace passes, as the lease is kept.
    leases.close().await.expect("released");
    let granted = within(LONG, waiter.done()).await.ended;
    world.note(&format!("after close() Java is in after {:.2?}", granted - start));
    assert_eq!(lease.check().expect_err("closed").loss(), Some(Loss::Closed));
    assert!(granted - start < ttl / 6, "{:?}", granted - start);
    java.on("a").call("unlock", &[name]).await.ok();
}

async fn redisson_takes_a_lease_by_force(world: &World) {
    let ttl = Duration::from_secs(6);
    let (leases, java) = (world.rust(ttl).await, world.java(ttl).await);
    let [alone, followed] = ["alone", "followed"].map(|start| world.name(start));
    let lease = leases.lock(&*alone).lock().await.expect("a lease");
    let other = leases.lock(&*followed).lock().await.expect("a lease");
    let waiter = java.on("b").begin("lock", &[&followed]);
    world.awaited(&followed, 1).await;

    let start = now();
    for name in [&alone, &followed] {
        assert!(java.on("a").call("forceUnlock", &[name]).await.truth());
    }
    let granted = within(LONG, waiter.done()).await;
    let waited = granted.ended - start;
    granted.ok();
    assert_eq!(within(LONG, lease.lost()).await, Loss::Gone);
    let reported = now() - start;
    assert_eq!(within(LONG, other.lost()).await, Loss::Taken);
    world.note(&format!(
        "after forceUnlock Java is in after {waited:.1?}; Rust learns it after {reported:.2?} and {:.2?}, T = {ttl:?}",
        now() - start
    ));
    assert!(waited < ttl / 3 && now() - start < ttl * 2 / 3, "{waited:?}, {reported:?}");
    let holder = world.held(&followed);
    for lease in [lease, other] {
        assert_eq!(lease.unlock().await.expect_err("lost").kind(), ErrorKind::Lost);
    }
    assert_eq!(world.held(&followed), holder, "the old holder frees nothing");
    java.on("b").call("unlock", &[&followed]).await.ok();
}

/// The hold that it waits for is of its own process, and the message comes from another.
async fn waiter_behind_a_local_hold_is_woken_by_redissons_force(world: &World) {
    let ttl = Duration::from_secs(9);
    let (leases, java) = (world.rust(ttl).await, world.java(ttl).await);
    let name = &*world.name("behind");
    let lease = leases.lock(name).lock().await.expect("a lease");
    let task = waits(&leases, name);
    // Just renewed: the next renewal, which finds out as well, is T/3 away.
    let mut last = world.pttl(name);
    eventually(LONG, || {
        let left = world.pttl(name);
        std::mem::replace(&mut last, left) < left
    })
    .await;
    let start = now();
    assert!(java.on("a").call("forceUnlock", &[name]).await.truth());
    let (granted, next) = within(LONG, task).await.expect("no panic");
    let waited = granted - start;
    world.note(&format!(
        "a waiter behind a local hold is in {waited:.2?} after forceUnlock, T = {ttl:?}"
    ));
    assert!(next.fence() > lease.fence());
    assert!(waited < ttl / 9, "{waited:?}: not woken, but by the renewal");
}

async fn leasehold_takes_a_lock_by_force(world: &World) {
    let ttl = Duration::from_secs(60);
    let patient = LeaseManager::builder().ttl(ttl).max_poll_interval(ttl);
    let (leases, others) = (world.rust(ttl).await, world.rust_with(patient).await);
    let java = world.java(ttl).await;
    let [one, two] = ["one", "two"].map(|start| world.name(start));
    for name in [&one, &two] {
        java.on("a").call("lock", &[name]).await.ok();
    }
    let waiter = java.on("b").begin("lock", &[&one]);
    let task = waits(&others, &two);
    world.awaited(&one, 1).await;
    world.awaited(&two, 1).await;
    let start = now();
    for name in [&one, &two] {
        assert!(leases.force_unlock(&**name, "test").await.expect("an answer"));
    }
    let granted = within(LONG, waiter.done()).await.ended;
    let (entered, lease) = within(LONG, task).await.expect("no panic");
    world.note(&format!(
        "after force_unlock Java is in after {:.1?}, Rust after {:.1?}",
        granted - start,
        entered - start
    ));
    assert!(granted - start < ttl / 6 && entered - start < ttl / 6, "not woken");
    for name in [&one, &two] {
        let holder = world.held(name);
        java.on("a").call("unlock", &[name]).await.threw("IllegalMonitorStateException");
        assert_eq!(world.held(name), holder, "the old holder frees nothing");
    }
    lease.unlock().await.expect("still held");
    java.on("b").call("unlock", &[&one]).await.ok();
}

async fn lock_without_a_watchdog_ends_by_itself(world: &World) {
    let ttl = Duration::from_secs(60);
    let (leases, java) = (world.rust(ttl).await, world.java(ttl).await);
    let (name, thread) = (&*world.name("fixed"), java.on("a"));
    let locked = thread.call("lockFor", &[name, "2000"]).await;
    let (granted, lease) = within(LONG, waits(&leases, name)).await.expect("no panic");
    let held = granted - locked.began;
    locked.ok();
    world.note(&format!("behind lock(2 s) Rust is in after {held:.2?}"));
    assert!(
        held > Duration::from_millis(1_990) && held < Duration::from_secs(2) + LATE,
        "{held:?}"
    );
    thread.call("unlock", &[name]).await.threw("IllegalMonitorStateException");
    lease.check().expect("Java's late unlock frees nothing");

    // Java waits with a bound, and then with one that is long enough.
    let short = thread.call("tryLockFor", &[name, "500", "1000"]).await;
    let waited = short.ended - short.began;
    assert!(!short.truth() && waited > Duration::from_millis(490), "{waited:?}");
    let long = thread.begin("tryLockFor", &[name, "30000", "1500"]);
    world.awaited(name, 1).await;
    lease.unlock().await.expect("a release");
    let long = within(LONG, long.done()).await;
    let ended = long.ended;
    assert!(long.truth());
    assert!((1..=1_500).contains(&world.pttl(name)), "a lease of 1.5 s");
    let (granted, _lease) = within(LONG, waits(&leases, name)).await.expect("no panic");
    assert!(granted < ended + Duration::from_millis(1_500) + LATE, "{:?}", granted - ended);
}

/// Both directions of a key that goes; T/3 is the poll bound, too.
async fn goes(world: &World, go: impl Fn(&str)) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let (name, thread) = (&*world.name("goes"), java.on("a"));
    let lease = leases.lock(name).lock().await.expect("a lease");
    let waiter = thread.begin("lock", &[name]);
    world.awaited(name, 1).await;
    let start = now();
    go(name);
    let loss = within(LONG, lease.lost()).await;
    let reported = now() - start;
    let granted = within(LONG, waiter.done()).await;
    world.note(&format!(
        "Rust learns of {loss:?} after {reported:.2?}; Java is in after {:.2?}",
        granted.ended - start
    ));
    assert!(
        [Loss::Gone, Loss::Taken].contains(&loss) && reported < T * 2 / 3,
        "{loss:?}, {reported:?}"
    );
    // Nothing is published: Java goes by the time to live that it has seen.
    assert!(granted.ended - start < T + LATE, "{:?}", granted.ended - start);
    granted.ok();
    lease.unlock().await.expect_err("lost");

    let task = waits(&leases, name);
    world.awaited(name, 1).await;
    let start = now();
    go(name);
    let (granted, lease) = within(LONG, task).await.expect("no panic");
    let waited = granted - start;
    world.note(&format!("Rust is in after {waited:.2?}"));
    assert!(waited < T / 3 + LATE, "{waited:?}");
    thread.call("unlock", &[name]).await.threw("IllegalMonitorStateException");
    lease.unlock().await.expect("the old holder frees nothing");
}

async fn deleted_keys_are_noticed_by_their_holders(world: &World) {
    goes(world, |name| assert_eq!(world.command(name, &["DEL", name]).int(), 1)).await;
}

async fn flush_is_noticed_by_the_holders(world: &World) {
    goes(world, |name| drop(world.command(name, &["FLUSHALL"]).text())).await;
}

async fn removed_time_to_live_is_put_back(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let [javas, rusts] = ["javas", "rusts"].map(|start| world.name(start));
    java.on("a").call("lock", &[&javas]).await.ok();
    let lease = leases.lock(&*rusts).lock().await.expect("a lease");
    for name in [&javas, &rusts] {
        assert_eq!(world.command(name, &["PERSIST", name]).int(), 1);
    }
    for name in [&javas, &rusts] {
        eventually(T, || world.pttl(name) > 0).await;
    }
    lease.unlock().await.expect("it was held all the time");
    java.on("a").call("unlock", &[&javas]).await.ok();
}

async fn listeners_hear_of_releases_and_expiries(world: &World) {
    let ttl = Duration::from_secs(1);
    let (leases, java) = (world.rust(ttl).await, world.java(ttl).await);
    let name = &*world.name("heard");
    let mut events = java.listen(name).await;
    leases.lock(name).lock().await.expect("a lease").unlock().await.expect("a release");
    let heard = within(LONG, events.recv()).await.expect("an event");
    assert_eq!(heard, ("deleted".to_owned(), name.to_owned()));
    leases.lock(name).lock().await.expect("a lease").forget();
    // What has expired is noticed at a look.
    eventually(LONG, || !world.exists(name)).await;
    let heard = within(LONG, events.recv()).await.expect("an event");
    assert_eq!(heard, ("expired".to_owned(), name.to_owned()));
}
