//! Read-write locks and semaphores on a real server: their keys, their permissions, and what becomes of them in faults.

use super::errors::{app, lease_url, set_user};
use kit::{Server, within};
use leasehold::{ErrorKind, LeaseManager, Loss, Upgraded};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);
const T: Duration = Duration::from_secs(3);

async fn connect(server: &Server) -> LeaseManager {
    LeaseManager::builder().ttl(T).connect(&server.url()).await.expect("a manager")
}

/// All keys of the server with their time to live in ms, without those of fencing tokens.
fn keys(server: &Server) -> Vec<(String, i64)> {
    let mut keys: Vec<_> = server
        .command(&["KEYS", "*"])
        .list()
        .into_iter()
        .map(kit::Reply::text)
        .filter(|key| !key.starts_with("redisson_lock_token"))
        .map(|key| (key.clone(), server.command(&["PTTL", &key]).int()))
        .collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn keys_are_those_of_redisson_and_none_stays() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut lock = leases.rw_lock("rw");
    let page = lock.read().await.expect("a lease");
    let holder = page.holder_id().to_string();
    let named: Vec<String> = keys(&server).into_iter().map(|(key, _)| key).collect();
    assert_eq!(named, ["rw".to_owned(), format!("{{rw}}:{holder}:rwlock_timeout:1")]);
    assert_eq!(server.command(&["HGET", "rw", "mode"]).text(), "read");
    assert_eq!(server.command(&["HGET", "rw", &holder]).text(), "1");
    let Upgraded::Write(edit) = page.try_upgrade().await.expect("an answer") else {
        panic!("alone")
    };
    assert_eq!(server.command(&["HGET", "rw", "mode"]).text(), "write");
    assert_eq!(server.command(&["HGET", "rw", &format!("{holder}:write")]).text(), "1");
    assert_eq!(server.command(&["HLEN", "rw"]).int(), 2);
    // A reader that waits leaves its arrival, for as long as it waits.
    let reader = connect(&server).await;
    assert!(reader.rw_lock("rw").read_timeout(T / 10).await.expect("an answer").is_none());
    assert!(keys(&server).iter().all(|(_, left)| *left > 0), "{:?}", keys(&server));
    edit.unlock().await.expect("a release");
    assert!(keys(&server).iter().all(|(key, _)| key.starts_with("leasehold_line")));

    let pool = leases.semaphore("pool", 3);
    let two = pool.acquire_many(2).await.expect("permits");
    assert_eq!(server.command(&["GET", "pool"]).text(), "1");
    assert_eq!(server.command(&["ZCARD", "{pool}:timeout"]).int(), 2);
    let kept = keys(&server);
    assert!(kept.iter().all(|(_, left)| *left > T.as_millis() as i64 || *left > 0), "{kept:?}");
    two.unlock().await.expect("a release");
    assert_eq!(server.command(&["GET", "pool"]).text(), "3");
    assert_eq!(server.command(&["EXISTS", "{pool}:timeout"]).int(), 0);
    assert!(leases.force_unlock("pool").await.is_ok());
    assert_eq!(server.command(&["EXISTS", "pool"]).int(), 0);
}

/// The permissions that the guide lists for them, and no more.
#[tokio::test]
async fn permissions_of_the_guide_are_enough() {
    let server = Server::start();
    let mut rights = kit::rights::of_one_server();
    set_user(&server, &rights);
    let leases = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    let error = leases.rw_lock("app:rw").read().await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let error = leases.semaphore("app:pool", 2).acquire().await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    rights.extend(kit::rights::of_shared_names());
    set_user(&server, &rights);
    let other = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    server.command(&["ACL", "LOG", "RESET"]);

    let (mut here, mut there) = (leases.rw_lock("app:rw"), other.rw_lock("app:rw"));
    let (page, beside) = (here.read().await.expect("a lease"), there.read().await.expect("one"));
    assert!(other.rw_lock("app:rw").write_timeout(T / 10).await.expect("an answer").is_none());
    beside.unlock().await.expect("a release");
    let Upgraded::Write(edit) = page.try_upgrade().await.expect("an answer") else {
        panic!("alone")
    };
    let waits = tokio::spawn(async move { there.read().await.expect("a lease") });
    tokio::time::sleep(T / 2).await;
    let page = edit.downgrade().await.expect("a read lease");
    let beside = within(T / 4, waits).await.expect("woken by the message");
    assert_eq!(other.holders("app:rw").await.expect("an answer").len(), 2);
    tokio::time::sleep(T).await;
    page.check().expect("renewed");
    assert!(leases.force_unlock("app:rw").await.expect("an answer"));
    drop((page, beside));

    let (pool, far) = (leases.semaphore("app:pool", 2), other.semaphore("app:pool", 2));
    let both = pool.acquire_many(2).await.expect("permits");
    let waits = tokio::spawn(async move { far.acquire().await.expect("a permit") });
    tokio::time::sleep(T / 2).await;
    assert_eq!(pool.usage().await.expect("an answer").free(), 0);
    both.unlock().await.expect("a release");
    let permit = within(T / 4, waits).await.expect("woken by the message");
    tokio::time::sleep(T).await;
    permit.check().expect("renewed");
    assert!(leases.force_unlock("app:pool").await.expect("an answer"));
    drop(permit);
    let optional = ["info", "client|id", "ping"].map(|name| kit::Reply::Text(name.to_owned()));
    for refused in server.command(&["ACL", "LOG", "128"]).list() {
        let items = refused.list();
        assert!(optional.iter().any(|word| items.contains(word)), "{items:?}");
    }
}

#[tokio::test]
async fn leases_outlive_a_blip_and_end_with_the_data() {
    let server = Server::start();
    let leases = connect(&server).await;
    let page = leases.rw_lock("rw").read().await.expect("a lease");
    let edit = leases.rw_lock("other").write().await.expect("a lease");
    let permits = leases.semaphore("pool", 3).acquire_many(2).await.expect("permits");
    server.pause();
    tokio::time::sleep(T / 2).await;
    server.resume();
    tokio::time::sleep(T * 2).await;
    for lease in [&*page, &*edit, &*permits] {
        lease.check().expect("renewed after the blip");
    }
    server.command(&["FLUSHALL"]);
    for lease in [&*page, &*edit, &*permits] {
        assert_eq!(within(LONG, lease.lost()).await, Loss::Gone);
    }
    drop((page, edit, permits));
    drop(within(LONG, leases.rw_lock("rw").write()).await.expect("it is free"));
}

/// Its own time to live has passed, but the hash lives as long as another reader is renewed.
#[tokio::test]
async fn dead_reader_blocks_neither_upgrade_nor_writer() {
    let server = Server::start();
    let (leases, other) = (connect(&server).await, connect(&server).await);
    let page = leases.rw_lock("rw").read().await.expect("a lease");
    other.rw_lock("rw").read().await.expect("a lease").into_lease().forget();
    assert_eq!(server.command(&["HLEN", "rw"]).int(), 3);
    let Upgraded::Still(page) = page.try_upgrade().await.expect("an answer") else {
        panic!("the other may still read");
    };
    tokio::time::sleep(T * 4 / 3).await;
    let Upgraded::Write(edit) = page.try_upgrade().await.expect("an answer") else {
        panic!("the dead reader does not count");
    };
    let page = edit.downgrade().await.expect("a read lease");
    other.rw_lock("rw").read().await.expect("a lease").into_lease().forget();
    tokio::time::sleep(T * 4 / 3).await;
    page.unlock().await.expect("a release");
    let edit = leases.rw_lock("rw").try_write().await.expect("an answer");
    drop(edit.expect("the last living reader takes the hash with it"));
}

/// The counter alone was evicted or deleted: the permits that are out still count.
#[tokio::test]
async fn counter_of_permits_is_made_again() {
    let server = Server::start();
    let leases = connect(&server).await;
    let pool = leases.semaphore("pool", 3);
    let two = pool.acquire_many(2).await.expect("permits");
    server.command(&["DEL", "pool"]);
    let one = pool.acquire().await.expect("one is left");
    assert!(pool.try_acquire().await.expect("an answer").is_none());
    server.command(&["DEL", "pool"]);
    two.unlock().await.expect("a release");
    drop(pool.acquire_many(2).await.expect("permits"));
    one.check().expect("held");
}

#[tokio::test]
async fn value_that_is_no_lock_is_left_alone() {
    let server = Server::start();
    let leases = connect(&server).await;
    for (key, words) in [
        ("text", &["SET", "text", "hello"][..]),
        ("hash", &["HSET", "hash", "a", "b"]),
        ("list", &["RPUSH", "list", "a"]),
    ] {
        server.command(words);
        let before = server.command(&["DUMP", key]);
        for error in [
            leases.rw_lock(key).read().await.map(drop),
            leases.rw_lock(key).try_write().await.map(drop),
            leases.semaphore(key, 2).acquire().await.map(drop),
            leases.semaphore(key, 2).usage().await.map(drop),
        ] {
            assert_eq!(error.expect_err("no lock").kind(), ErrorKind::WrongType, "{key}");
        }
        // A hash of one field looks like a plain lock.
        if key != "hash" {
            let error = leases.force_unlock(key).await.expect_err("no lock");
            assert_eq!(error.kind(), ErrorKind::WrongType, "{key}");
        }
        assert_eq!(server.command(&["DUMP", key]), before);
    }
}

/// As after a failover to a replica that did not have the change, or a restart from an older snapshot.
#[tokio::test]
async fn upgrade_that_the_server_lost_is_a_loss() {
    let server = Server::start();
    let leases = connect(&server).await;
    for by_unlock in [false, true] {
        let page = leases.rw_lock("rw").read().await.expect("a lease");
        let reader = format!("{{rw}}:{}:rwlock_timeout:1", page.holder_id());
        let holder = page.holder_id().to_string();
        let Upgraded::Write(edit) = page.try_upgrade().await.expect("an answer") else {
            panic!("alone")
        };
        server.command(&["HDEL", "rw", &format!("{holder}:write")]);
        server.command(&["HSET", "rw", "mode", "read", &holder, "1"]);
        server.command(&["SET", &reader, "1", "PX", "60000"]);
        if by_unlock {
            let error = edit.unlock().await.expect_err("it was no writer");
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            assert_eq!(server.command(&["EXISTS", "rw", &reader]).int(), 0);
        } else {
            assert_eq!(within(LONG, edit.lost()).await, Loss::Taken);
            server.command(&["DEL", "rw", &reader]);
        }
    }
}

#[tokio::test]
async fn full_memory_costs_no_reader_and_no_writer() {
    let server = Server::start();
    let leases = connect(&server).await;
    let page = leases.rw_lock("page").read().await.expect("a lease");
    let edit = leases.rw_lock("edit").write().await.expect("a lease");
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for write in [false, true] {
        let mut other = leases.rw_lock("other");
        let refused = match write {
            true => other.try_write().await.map(drop),
            false => other.try_read().await.map(drop),
        };
        assert_eq!(refused.expect_err("no memory").kind(), ErrorKind::Rejected);
    }
    let waits = leases.rw_lock("edit").read_timeout(T / 20).await;
    assert!(waits.expect("contention is no error").is_none());
    assert!(keys(&server).iter().all(|(key, _)| !key.contains("other")), "{:?}", keys(&server));
    tokio::time::sleep(T * 5 / 3).await;
    page.check().expect("renewed");
    edit.check().expect("renewed");
    let page = edit.downgrade().await.expect("a reader");
    let Upgraded::Write(edit) = page.try_upgrade().await.expect("an answer") else {
        panic!("alone")
    };
    edit.unlock().await.expect("a release");
}

/// Many readers are left: the release looks at few of them.
#[tokio::test]
async fn release_of_a_reader_looks_at_few_of_the_others() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut pages = Vec::new();
    for _ in 0..200 {
        pages.push(leases.rw_lock("rw").read().await.expect("a lease"));
    }
    server.command(&["CONFIG", "RESETSTAT"]);
    pages.pop().expect("a lease").unlock().await.expect("a release");
    let stats = server.command(&["INFO", "commandstats"]).text();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_pttl:calls="));
    let calls = calls.and_then(|line| line.split(',').next()?.parse::<u32>().ok());
    assert!(calls.expect("some") <= 10, "{calls:?} of 200");
}
