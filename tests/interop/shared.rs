//! Read-write locks and semaphores, used by both sides under one name.

use crate::peer::now;
use crate::scenarios;
use crate::world::{LONG, World};
use kit::within;
use leasehold::{ErrorKind, Loss, Upgraded};
use std::time::Duration;

const T: Duration = Duration::from_secs(6);
/// What a waiter without a wake-up would wait for, on the side of Java.
const WATCHDOG: Duration = Duration::from_secs(60);
/// A wake-up that came is not later than this.
const SOON: Duration = Duration::from_secs(5);

scenarios! {
    readers_and_writers_of_both_sides_exclude_each_other: on_a_server in_a_cluster;
    waiting_readers_and_writers_are_woken_by_the_other_side: on_a_server in_a_cluster;
    modes_that_change_are_known_to_java: on_a_server;
    readers_of_both_sides_are_renewed_beside_each_other: on_a_server;
    permits_are_counted_on_both_sides: on_a_server in_a_cluster;
    permits_of_a_java_lease_that_ends_come_back: on_a_server;
    size_set_on_one_side_is_that_of_the_other: on_a_server in_a_cluster;
}

async fn readers_and_writers_of_both_sides_exclude_each_other(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(WATCHDOG).await);
    let (name, thread) = (&*world.name("rw"), java.on("a"));
    let java_tries =
        async |which| thread.call("readWrite", &[name, which, "tryLock"]).await.truth();
    let java_unlocks = async |which| thread.call("readWrite", &[name, which, "unlock"]).await.ok();
    let mut lock = leases.rw_lock(name);

    // Rust reads.
    let page = lock.read().await.expect("a lease");
    assert!(!java_tries("write").await);
    assert!(java_tries("read").await);
    assert_eq!(leases.holders(name).await.expect("an answer").len(), 2);
    java_unlocks("read").await;
    page.check().expect("Java's unlock leaves it alone");
    assert_eq!(leases.holders(name).await.expect("an answer").len(), 1);
    page.unlock().await.expect("a release");
    assert!(!world.exists(name));

    // Rust writes.
    let edit = lock.write().await.expect("a lease");
    assert!(!java_tries("read").await && !java_tries("write").await);
    edit.unlock().await.expect("a release");
    assert!(!world.exists(name));

    // Java reads.
    assert!(java_tries("read").await);
    assert!(lock.try_write().await.expect("an answer").is_none());
    let page = lock.try_read().await.expect("an answer").expect("readers share");
    page.unlock().await.expect("a release");
    assert!(world.exists(name), "Java reads on");
    java_unlocks("read").await;

    // Java writes.
    assert!(java_tries("write").await);
    assert!(lock.try_read().await.expect("an answer").is_none());
    assert!(lock.try_write().await.expect("an answer").is_none());
    java_unlocks("write").await;
    drop(lock.try_write().await.expect("an answer").expect("it is free"));
}

async fn waiting_readers_and_writers_are_woken_by_the_other_side(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(WATCHDOG).await);
    for (held, wanted) in [("read", "write"), ("write", "read"), ("write", "write")] {
        let name = &*world.name(&format!("rw-{held}-{wanted}"));
        let mut lock = leases.rw_lock(name);

        // Java waits for Rust.
        let lease = match held {
            "read" => lock.read().await.expect("a lease").into_lease(),
            _ => lock.write().await.expect("a lease").into_lease(),
        };
        let waiter = java.on("a").begin("readWrite", &[name, wanted, "lock"]);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!waiter.is_done());
        let start = now();
        lease.unlock().await.expect("a release");
        let done = within(LONG, waiter.done()).await;
        let woken = done.ended.saturating_sub(start);
        assert!(woken < SOON, "{held}, {wanted}: {woken:?}");
        done.ok();
        java.on("a").call("readWrite", &[name, wanted, "unlock"]).await.ok();

        // Rust waits for Java.
        java.on("a").call("readWrite", &[name, held, "lock"]).await.ok();
        let waiter = tokio::spawn({
            let mut lock = leases.rw_lock(name);
            let writes = wanted == "write";
            async move {
                match writes {
                    true => lock.write().await.expect("a lease").into_lease(),
                    false => lock.read().await.expect("a lease").into_lease(),
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!waiter.is_finished());
        java.on("a").call("readWrite", &[name, held, "unlock"]).await.ok();
        let lease = within(LONG, waiter).await.expect("no panic");
        lease.unlock().await.expect("a release");
        assert!(!world.exists(name));
    }
}

async fn modes_that_change_are_known_to_java(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(WATCHDOG).await);
    let (name, thread) = (&*world.name("rw-change"), java.on("a"));
    let mut lock = leases.rw_lock(name);
    let edit = lock.write().await.expect("a lease");
    let waiter = thread.begin("readWrite", &[name, "read", "lock"]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiter.is_done());
    let start = now();
    let page = edit.downgrade().await.expect("a read lease");
    let done = within(LONG, waiter.done()).await;
    assert!(done.ended.saturating_sub(start) < SOON, "a downgrade wakes readers of Java");
    done.ok();
    let other = java.on("b");
    assert!(!other.call("readWrite", &[name, "write", "tryLock"]).await.truth());
    let Upgraded::Read(page) = page.try_upgrade().await.expect("an answer") else {
        panic!("Java reads");
    };
    thread.call("readWrite", &[name, "read", "unlock"]).await.ok();
    let Upgraded::Write(edit) = page.try_upgrade().await.expect("an answer") else {
        panic!("nothing else reads");
    };
    assert!(!other.call("readWrite", &[name, "read", "tryLock"]).await.truth());
    edit.check().expect("held");
    edit.unlock().await.expect("a release");
    assert!(other.call("readWrite", &[name, "write", "tryLock"]).await.truth());
    other.call("readWrite", &[name, "write", "unlock"]).await.ok();
    assert!(!world.exists(name));
}

/// Java's watchdog sets its own time to live on the hash that both share.
async fn readers_of_both_sides_are_renewed_beside_each_other(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let (name, thread) = (&*world.name("rw-renew"), java.on("a"));
    let page = leases.rw_lock(name).read().await.expect("a lease");
    thread.call("readWrite", &[name, "read", "lock"]).await.ok();
    tokio::time::sleep(T * 3).await;
    page.check().expect("renewed");
    assert_eq!(leases.holders(name).await.expect("an answer").len(), 2);
    // A reader that dies leaves the others alone, and a writer enters when those have gone.
    page.into_lease().forget();
    tokio::time::sleep(T * 3 / 2).await;
    let mut writer = leases.rw_lock(name);
    assert!(writer.try_write().await.expect("an answer").is_none(), "Java reads on");
    thread.call("readWrite", &[name, "read", "unlock"]).await.ok();
    let edit = within(T * 2, writer.write()).await.expect("a lease");
    edit.unlock().await.expect("a release");
}

async fn permits_are_counted_on_both_sides(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(WATCHDOG).await);
    let (name, thread) = (&*world.name("permits"), java.on("a"));
    let call =
        async |operation: &str, word: &str| thread.call("permits", &[name, operation, word]).await;
    let pool = leases.semaphore(name, 3);

    let two = pool.acquire_many(2).await.expect("permits");
    assert!(!call("trySetPermits", "5").await.truth(), "it is there already");
    assert_eq!(call("availablePermits", "").await.number::<u32>(), 1);
    let id = call("acquire", "").await.ok();
    assert!(pool.try_acquire().await.expect("an answer").is_none());
    let usage = pool.usage().await.expect("an answer");
    assert_eq!((usage.size, usage.held, usage.holders), (3, 3, 2));

    // Rust waits for Java.
    let waiter = tokio::spawn({
        let pool = pool.clone();
        async move { pool.acquire().await.expect("a permit") }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished());
    call("release", &id).await.ok();
    let one = within(LONG, waiter).await.expect("no panic");

    // Java waits for Rust.
    let waiter = java.on("b").begin("permits", &[name, "acquire", ""]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_done());
    let start = now();
    two.unlock().await.expect("a release");
    let done = within(LONG, waiter.done()).await;
    assert!(done.ended.saturating_sub(start) < SOON);
    let id = done.ok();
    assert_eq!(call("availablePermits", "").await.number::<u32>(), 1);
    call("release", &id).await.ok();
    one.unlock().await.expect("a release");
    assert_eq!(call("availablePermits", "").await.number::<u32>(), 3);

    // Java has made it, without an end.
    let made = &*world.name("permits-of-java");
    assert!(thread.call("permits", &[made, "trySetPermits", "2"]).await.truth());
    let error = leases.semaphore(made, 3).acquire().await.expect_err("another size");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let permit = leases.semaphore(made, 2).acquire().await.expect("a permit");
    assert_eq!(world.pttl(made), -1, "it stays without an end");
    permit.unlock().await.expect("a release");
    assert_eq!(thread.call("permits", &[made, "availablePermits", ""]).await.number::<u32>(), 2);
}

async fn permits_of_a_java_lease_that_ends_come_back(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(WATCHDOG).await);
    let (name, thread) = (&*world.name("permits-end"), java.on("a"));
    let pool = leases.semaphore(name, 2);
    let mine = pool.acquire().await.expect("a permit");
    thread.call("permits", &[name, "acquireFor", "2000"]).await.ok();
    let start = now();
    let other = within(LONG, pool.acquire()).await.expect("a permit");
    let waited = now() - start;
    assert!(waited > Duration::from_secs(1) && waited < SOON, "{waited:?}");
    tokio::time::sleep(T * 2).await;
    mine.check().expect("renewed");
    other.check().expect("renewed");
    assert!(!world.command(name, &["DEL", name, &format!("{{{name}}}:timeout")]).is_nil());
    assert_eq!(within(LONG, mine.lost()).await, Loss::Gone);
}

async fn size_set_on_one_side_is_that_of_the_other(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(WATCHDOG).await);
    let (name, thread) = (&*world.name("permits-size"), java.on("a"));
    let call =
        async |operation: &str, word: &str| thread.call("permits", &[name, operation, word]).await;
    let pool = leases.semaphore(name, 2);
    let two = pool.acquire_many(2).await.expect("permits");

    // Java waits, and enters when Rust adds one.
    let waiter = java.on("b").begin("permits", &[name, "acquire", ""]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_done());
    let start = now();
    pool.resize(3).await.expect("an answer");
    let done = within(LONG, waiter.done()).await;
    assert!(done.ended.saturating_sub(start) < SOON);
    let id = done.ok();
    assert_eq!(call("availablePermits", "").await.number::<i32>(), 0);
    pool.resize(1).await.expect("an answer");
    call("release", &id).await.ok();
    assert!(pool.try_acquire().await.expect("an answer").is_none(), "two of one are out");

    // Java adds some.
    call("setPermits", "4").await.ok();
    assert_eq!(call("availablePermits", "").await.number::<i32>(), 2);
    let usage = pool.usage().await.expect("an answer");
    assert_eq!((usage.size, usage.held), (4, 2));
    let error = leases.semaphore(name, 3).try_acquire_many(3).await;
    assert!(error.expect("a former size").is_none());
    let rest = leases.semaphore(name, 4).acquire_many(2).await.expect("permits");
    assert_eq!(call("availablePermits", "").await.number::<i32>(), 0);
    two.unlock().await.expect("a release");
    rest.unlock().await.expect("a release");
    assert_eq!(call("availablePermits", "").await.number::<i32>(), 4);
}
