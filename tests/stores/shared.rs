//! Read-write locks and semaphores on every store that has them, with two managers for two processes. A store without
//! them refuses.

use super::family::{LONG, Pair};
use kit::within;
use leasehold::{ErrorKind, Fate, Upgraded};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// Runs each test on each store of a list.
macro_rules! on_stores {
    ($($test:ident: $($store:ident)*;)*) => {
        $(mod $test {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $store() {
                let story = async { super::$test(super::Pair::$store().await).await };
                super::within(super::LONG * 2, story).await;
            })*
        })*
    };
}

on_stores! {
    writers_are_alone_and_readers_share: memory redis cluster quorum zookeeper;
    never_more_permits_out_than_there_are: memory redis cluster zookeeper;
    resize_is_known_to_all_processes: memory redis cluster;
    quorum_refuses_permits_and_names_the_way_out: quorum;
}

async fn writers_are_alone_and_readers_share(pair: Pair) {
    let (inside, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let changed = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for task in 0..8usize {
        let mut lock = pair.leases[task % 2].rw_lock("rw");
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        let changed = Arc::clone(&changed);
        tasks.push(tokio::spawn(async move {
            for round in 0..12 {
                if (task + round) % 4 == 0 {
                    let edit = lock.write().await.expect("granted in the end");
                    assert_eq!(inside.swap(-1, Ordering::SeqCst), 0, "a writer is alone");
                    sleep(Duration::from_millis(2)).await;
                    edit.check().expect("held");
                    assert_eq!(inside.swap(1, Ordering::SeqCst), -1);
                    let page = edit.downgrade().await.expect("a read lease");
                    sleep(Duration::from_millis(2)).await;
                    page.check().expect("held");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    page.unlock().await.expect("released");
                } else {
                    let page = lock.read().await.expect("granted in the end");
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    assert!(others >= 0, "no writer is there");
                    most.fetch_max(others + 1, Ordering::SeqCst);
                    sleep(Duration::from_millis(3)).await;
                    page.check().expect("held");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    match page.try_upgrade().await.expect("an answer") {
                        Upgraded::Read(page) => page.unlock().await.expect("released"),
                        Upgraded::Write(edit) => {
                            assert_eq!(inside.swap(-1, Ordering::SeqCst), 0, "an upgrade");
                            changed.fetch_add(1, Ordering::SeqCst);
                            sleep(Duration::from_millis(1)).await;
                            assert_eq!(inside.swap(0, Ordering::SeqCst), -1);
                            edit.unlock().await.expect("released");
                        }
                    }
                }
            }
        }));
    }
    for task in tasks {
        within(LONG, task).await.expect("no panic");
    }
    assert!(most.load(Ordering::SeqCst) > 1, "readers share");
    let page = pair.leases[0].rw_lock("rw").read().await.expect("free");
    let other = pair.leases[1].lock("rw").try_lock().await.expect_err("of another kind");
    assert_eq!(other.kind(), ErrorKind::WrongType);
    let Upgraded::Write(edit) = page.try_upgrade().await.expect("an answer") else {
        panic!("nothing else reads");
    };
    assert!(pair.leases[1].rw_lock("rw").try_read().await.expect("an answer").is_none());
    edit.unlock().await.expect("released");
    assert!(pair.leases[0].holders("rw").await.expect("an answer").is_empty());
}

async fn never_more_permits_out_than_there_are(pair: Pair) {
    let (out, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for task in 0..8u32 {
        let pool = pair.leases[task as usize % 2].semaphore("pool", 4);
        let (out, most) = (Arc::clone(&out), Arc::clone(&most));
        tasks.push(tokio::spawn(async move {
            for round in 0..12 {
                let count = (task + round) % 3 + 1;
                let permit = pool.acquire_many(count).await.expect("granted in the end");
                let now = out.fetch_add(count, Ordering::SeqCst) + count;
                assert!(now <= 4, "{now} of 4 are out");
                most.fetch_max(now, Ordering::SeqCst);
                sleep(Duration::from_millis(2)).await;
                permit.check().expect("held");
                out.fetch_sub(count, Ordering::SeqCst);
                if round % 2 == 0 {
                    permit.unlock().await.expect("released");
                }
            }
        }));
    }
    for task in tasks {
        within(LONG, task).await.expect("no panic");
    }
    assert_eq!(most.load(Ordering::SeqCst), 4, "all are of use");
    // Dropped permits are released in the background.
    let all = pair.leases[0].semaphore("pool", 4).acquire_many(4).await.expect("all are free");
    let usage = pair.leases[1].semaphore("pool", 4).usage().await.expect("an answer");
    assert_eq!((usage.size, usage.free(), usage.holders), (4, 0, 1));
    let error = pair.leases[1].semaphore("pool", 5).acquire().await.expect_err("another size");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    all.unlock().await.expect("released");
    assert!(pair.leases[1].force_unlock("pool", "test").await.is_ok());
    let _permit = pair.leases[1].semaphore("pool", 5).acquire().await.expect("a new size");
}

async fn resize_is_known_to_all_processes(pair: Pair) {
    let [here, there] = pair.leases.each_ref().map(|leases| leases.semaphore("pool", 2));
    let first = here.acquire_many(2).await.expect("permits");
    let waits = tokio::spawn({
        let there = there.clone();
        async move { there.acquire_many(2).await.expect("granted in the end") }
    });
    sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished());
    here.resize(4).await.expect("set");
    // Sooner than the first could expire.
    let second = within(Duration::from_secs(4), waits).await.expect("no panic");
    let usage = there.usage().await.expect("an answer");
    assert_eq!((here.size(), there.size(), usage.size, usage.free()), (4, 2, 4, 0));

    there.resize(1).await.expect("set");
    first.unlock().await.expect("released");
    second.check().expect("held");
    assert!(here.try_acquire().await.expect("an answer").is_none(), "two of one are out");
    second.unlock().await.expect("released");
    let one = here.try_acquire().await.expect("an answer").expect("it is free");
    assert!(there.try_acquire().await.expect("an answer").is_none());
    let error = pair.leases[1].semaphore("pool", 3).acquire().await.expect_err("never a size");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    one.unlock().await.expect("released");
}

async fn quorum_refuses_permits_and_names_the_way_out(pair: Pair) {
    let pool = pair.leases[0].semaphore("n", 2);
    let mut errors = vec![pool.acquire().await.expect_err("no semaphores")];
    errors.push(pool.try_acquire().await.expect_err("no semaphores"));
    errors.push(pool.resize(3).await.expect_err("no semaphores"));
    errors.push(pool.usage().await.expect_err("no semaphores"));
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.fate(), Fate::NotExecuted);
        let text = error.to_string();
        assert!(text.contains("three holders") && text.contains("`slots`"), "{text}");
    }
    let slots = pair.leases[0].slots("n", 2);
    let (one, two) = (slots.take().await.expect("free"), slots.take().await.expect("free"));
    assert!(pair.leases[1].slots("n", 2).try_take().await.expect("an answer").is_none());
    drop((one, two));
}
