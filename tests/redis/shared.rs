//! Read-write locks and semaphores on a real server: their keys, their permissions, and what becomes of them in faults.

use super::errors::{app, lease_url, set_user};
use super::refused_only;
use kit::polled::polled;
use kit::{Server, eventually, within};
use leasehold::{ErrorKind, LeaseManager, LeaseState, Loss, Upgraded};
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
        // It has expired since.
        .filter(|(_, left)| *left != -2)
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
    // -1 would be a key without a time to live.
    assert!(keys(&server).iter().all(|(_, left)| *left >= 0), "{:?}", keys(&server));
    edit.unlock().await.expect("a release");
    assert!(keys(&server).iter().all(|(key, _)| key.starts_with("leasehold_read:")));

    let pool = leases.semaphore("pool", 3);
    let two = pool.acquire_many(2).await.expect("permits");
    assert_eq!(pool.usage().await.expect("an answer").waiting, Some(0));
    assert_eq!(server.command(&["GET", "pool"]).text(), "1");
    assert_eq!(server.command(&["ZCARD", "{pool}:timeout"]).int(), 2);
    let kept = keys(&server);
    assert!(kept.iter().all(|(_, left)| *left > T.as_millis() as i64 || *left > 0), "{kept:?}");
    two.unlock().await.expect("a release");
    assert_eq!(server.command(&["GET", "pool"]).text(), "3");
    assert_eq!(server.command(&["EXISTS", "{pool}:timeout"]).int(), 0);
    assert!(leases.force_unlock("pool", "test").await.is_ok());
    assert_eq!(server.command(&["EXISTS", "pool"]).int(), 0);
}

/// The permissions that the guide lists for them, and no more.
#[tokio::test]
async fn permissions_of_the_guide_are_enough() {
    let server = Server::start();
    let mut permissions = kit::permissions::of_one_server();
    set_user(&server, &permissions);
    let leases = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    let error = leases.rw_lock("app:rw").read().await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let error = leases.semaphore("app:pool", 2).acquire().await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    permissions.extend(kit::permissions::of_shared_names());
    set_user(&server, &permissions);
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
    assert!(leases.force_unlock("app:rw", "test").await.expect("an answer"));
    drop((page, beside));

    let (pool, far) = (leases.semaphore("app:pool", 2), other.semaphore("app:pool", 2));
    let both = pool.acquire_many(2).await.expect("permits");
    let waits = tokio::spawn(async move { far.acquire().await.expect("a permit") });
    tokio::time::sleep(T / 2).await;
    let usage = pool.usage().await.expect("an answer");
    assert_eq!((usage.free(), usage.waiting), (0, None));
    both.unlock().await.expect("a release");
    let permit = within(T / 4, waits).await.expect("woken by the message");
    tokio::time::sleep(T).await;
    permit.check().expect("renewed");
    assert!(leases.force_unlock("app:pool", "test").await.expect("an answer"));
    drop(permit);
    // What asks how many wait goes on without.
    refused_only(&server, &["pubsub|numsub"]);
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
    let Upgraded::Read(page) = page.try_upgrade().await.expect("an answer") else {
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
            let error = leases.force_unlock(key, "test").await.expect_err("no lock");
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

/// Redisson counts the reads of a thread that it has not unlocked, also those that have expired. Each has a time of its own.
#[tokio::test]
async fn reader_with_many_nested_reads_is_alive_by_the_last() {
    let server = Server::start();
    let leases = connect(&server).await;
    let reader = "5e1f3a54-5c1b-4b0e-9a39-0f5d1c0a7b11:1";
    // The last count is more than is looked at.
    for count in ["101", "5000", "1000000000"] {
        let mut lock = leases.rw_lock("rw");
        let page = lock.read().await.expect("a lease");
        server.command(&["HSET", "rw", reader, count]);
        let time = format!("{{rw}}:{reader}:rwlock_timeout:{count}");
        server.command(&["SET", &time, "1", "PX", "60000"]);
        let holders = leases.holders("rw").await.expect("an answer");
        assert_eq!(holders.len(), 2, "{holders:?}");
        let Upgraded::Read(page) = page.try_upgrade().await.expect("an answer") else {
            panic!("{count}: another one reads")
        };
        page.unlock().await.expect("a release");
        assert!(lock.try_write().await.expect("an answer").is_none(), "{count}: it reads on");
        assert_eq!(server.command(&["HGET", "rw", reader]).text(), count);
        server.command(&["DEL", "rw", &time]);
    }
}

/// Without a time to live, the hash would outlive the last reader.
#[tokio::test]
async fn release_gives_the_hash_its_time_to_live_again() {
    let server = Server::start();
    let leases = connect(&server).await;
    let page = leases.rw_lock("rw").read().await.expect("a lease");
    for (reader, left) in [("java:1", "9000"), ("java:2", "20000"), ("java:3", "9000")] {
        server.command(&["HSET", "rw", reader, "1"]);
        server.command(&["SET", &format!("{{rw}}:{reader}:rwlock_timeout:1"), "1", "PX", left]);
    }
    server.command(&["PERSIST", "rw"]);
    page.unlock().await.expect("a release");
    let left = server.command(&["PTTL", "rw"]).int();
    assert!((15_000..=20_000).contains(&left), "that of the last reader: {left}");
}

/// Redisson grants its read-write lock over a lock.
#[tokio::test]
async fn lock_that_redisson_writes_over_is_lost() {
    let server = Server::start();
    let leases = connect(&server).await;
    for fair in [false, true] {
        let lease = match fair {
            true => leases.fair_lock("job").lock().await.expect("a lease"),
            false => leases.lock("job").lock().await.expect("a lease"),
        };
        server.command(&["HSET", "job", "mode", "write", "java:1:write", "1"]);
        let error = lease.unlock().await.expect_err("Java writes");
        assert_eq!(error.loss(), Some(Loss::Taken), "{error}");
        assert_eq!(server.command(&["HLEN", "job"]).int(), 2, "what is left is not ours");
        server.command(&["DEL", "job"]);
    }
}

/// Many readers are left: the release looks at few of them.
#[tokio::test]
async fn release_of_a_reader_looks_at_few_of_the_others() {
    let server = Server::start();
    let leases = connect(&server).await;
    let page = leases.rw_lock("rw").read().await.expect("a lease");
    for i in 0..200 {
        let reader = format!("5e1f3a54-5c1b-4b0e-9a39-0f5d1c0a7b11:{i}");
        server.command(&["HSET", "rw", &reader, "1"]);
        server.command(&["SET", &format!("{{rw}}:{reader}:rwlock_timeout:1"), "1", "PX", "3000"]);
    }
    server.command(&["CONFIG", "RESETSTAT"]);
    page.unlock().await.expect("a release");
    let stats = server.command(&["INFO", "commandstats"]).text();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_pttl:calls="));
    let calls = calls.and_then(|line| line.split(',').next()?.parse::<u32>().ok());
    assert!(calls.expect("some") <= 10, "{calls:?} of 200");
}

/// Returns how many permits a semaphore has: those that are free and those that are out.
fn permits(server: &Server, name: &str) -> i64 {
    let free: i64 = server.command(&["GET", name]).text().parse().expect("a number");
    free + server.command(&["ZCARD", &format!("{{{name}}}:timeout")]).int()
}

/// A script ends at the command that the user may not run, and Redis does not roll back.
#[tokio::test]
async fn missing_right_costs_no_permit() {
    let server = Server::start();
    set_user(
        &server,
        &[kit::permissions::of_one_server(), kit::permissions::of_shared_names()].concat(),
    );
    let leases = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    let mut names = Vec::new();
    for right in [
        "get",
        "set",
        "time",
        "pttl",
        "pexpire",
        "zadd",
        "zrem",
        "zmscore",
        "zcard",
        "zcount",
        "zremrangebyrank",
        "exists",
        "hexists",
        "hset",
        "del",
    ] {
        let (name, fresh) = (format!("app:{right}"), format!("app:new-{right}"));
        let pool = leases.semaphore(right, 4);
        let two = pool.acquire_many(2).await.expect("permits");
        // One that has expired, which the next acquire takes.
        server.command(&["SET", &name, "1", "KEEPTTL"]);
        server.command(&["ZADD", &format!("{{{name}}}:timeout"), "1", "0123456789abcdef"]);
        server.command(&["ACL", "SETUSER", "lease", &format!("-{right}")]);
        let next = pool.try_acquire_many(2).await;
        assert_eq!(permits(&server, &name), 4, "{right}: {next:?}");
        let new = leases.semaphore(format!("new-{right}"), 4).try_acquire().await;
        assert_eq!(server.command(&["EXISTS", &fresh]).int(), i64::from(new.is_ok()), "{right}");
        let size = pool.resize(5).await;
        assert_eq!(permits(&server, &name), if size.is_ok() { 5 } else { 4 }, "{right}");
        let released = two.unlock().await;
        assert_eq!(permits(&server, &name), if size.is_ok() { 5 } else { 4 }, "{right}");
        let out = server.command(&["ZCARD", &format!("{{{name}}}:timeout")]).int();
        let left = if released.is_ok() { 0 } else { 2 } + if next.is_ok() { 2 } else { 1 };
        assert_eq!(out, left, "{right}: {next:?} {released:?}");
        for error in [next.err(), new.err(), size.err(), released.err()].into_iter().flatten() {
            assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        }
        let bare: Vec<_> = keys(&server).into_iter().filter(|(_, left)| *left == -1).collect();
        assert!(bare.is_empty(), "{right}: {bare:?}");
        server.command(&["ACL", "SETUSER", "lease", &format!("+{right}")]);
        names.push(right);
    }
    for name in names {
        let size = leases.semaphore(name, 4).usage().await.expect("an answer").size;
        let pool = leases.semaphore(name, size);
        drop(within(LONG, pool.acquire_many(size)).await.expect("all come back"));
    }
}

#[tokio::test]
async fn full_memory_costs_no_permit() {
    let server = Server::start();
    let leases = connect(&server).await;
    server.command(&["SET", "java", "3"]);
    let (pool, java) = (leases.semaphore("pool", 4), leases.semaphore("java", 3));
    let held = [pool.acquire_many(2).await, java.acquire_many(2).await].map(Result::unwrap);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let before = keys(&server).len();
    for error in [
        pool.try_acquire().await.map(drop),
        java.acquire().await.map(drop),
        leases.semaphore("new", 2).acquire().await.map(drop),
        leases.semaphore("new", 2).resize(3).await,
        pool.resize(3).await,
    ] {
        assert_eq!(error.expect_err("no memory").kind(), ErrorKind::Rejected);
    }
    assert_eq!((keys(&server).len(), permits(&server, "pool")), (before, 4));
    let start = std::time::Instant::now();
    while start.elapsed() < T * 3 / 2 {
        for permit in &held {
            assert_eq!(permit.state(), LeaseState::Held);
        }
        tokio::time::sleep(T / 300).await;
    }
    for permit in held {
        permit.unlock().await.expect("a release");
    }
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    drop(pool.try_acquire_many(4).await.expect("an answer").expect("all are free"));
    drop(java.try_acquire_many(3).await.expect("an answer").expect("all are free"));
}

/// Else the permits of a process that crashed would end with the set, and the counter would miss them for good.
#[tokio::test]
async fn permits_stay_as_long_as_a_counter_without_an_end() {
    let server = Server::start();
    let leases = connect(&server).await;
    server.command(&["SET", "made", "3"]);
    let pool = leases.semaphore("made", 3);
    let one = pool.acquire().await.expect("a permit");
    let pttl = |key| server.command(&["PTTL", key]).int();
    assert_eq!((pttl("made"), pttl("{made}:timeout")), (-1, -1));
    // A counter of ours that lost its time to live.
    let other = leases.semaphore("set", 3);
    let two = other.acquire_many(2).await.expect("permits");
    assert!((1..=86_400_000).contains(&pttl("{set}:timeout")));
    server.command(&["SET", "set", "1"]);
    let last = other.acquire().await.expect("a permit");
    assert!(pttl("{set}:timeout") > 31_536_000_000 && pttl("set") == -1);
    drop((one, two, last));
}

#[tokio::test]
async fn bundles_are_renewed_one_by_one_if_they_are_large() {
    let server = Server::start();
    let leases = connect(&server).await;
    let pool = leases.semaphore("pool", 5000);
    let error = pool.acquire_many(1001).await.expect_err("too many at once");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let mut bundles = Vec::new();
    for count in [1000, 1, 700, 700, 1, 1] {
        bundles.push(pool.acquire_many(count).await.expect("permits"));
    }
    let lost = bundles.remove(2);
    let digits = lost.holder_id().to_string();
    let number: u64 = digits.rsplit(':').next().expect("a number").parse().expect("a number");
    let script = "local n = 0 for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do \
        if string.byte(id, 14) == tonumber(ARGV[1]) % 256 then n = n + redis.call('ZREM', KEYS[1], id) end end return n";
    let words = ["EVAL", script, "1", "{pool}:timeout", &number.to_string()];
    assert_eq!(server.command(&words).int(), 700);
    assert_eq!(within(LONG, lost.lost()).await, Loss::Gone);
    tokio::time::sleep(T * 3 / 2).await;
    for bundle in &bundles {
        bundle.check().expect("renewed");
    }
}

#[tokio::test]
async fn expired_permits_are_free_however_many_they_are() {
    let server = Server::start();
    let leases = connect(&server).await;
    server.command(&["SET", "pool", "0"]);
    let script = "for i = 1, 3000 do redis.call('ZADD', KEYS[1], i, 'expired ' .. i) end";
    server.command(&["EVAL", script, "1", "{pool}:timeout"]);
    let pool = leases.semaphore("pool", 3000);
    pool.resize(1500).await.expect("an answer");
    let many = pool.try_acquire_many(1000).await.expect("an answer").expect("they have expired");
    let rest = pool.try_acquire_many(500).await.expect("an answer").expect("they have expired");
    assert!(pool.try_acquire().await.expect("an answer").is_none());
    assert_eq!(permits(&server, "pool"), 1500);
    drop((many, rest));
}

/// As Java can make it.
#[tokio::test]
async fn size_that_no_handle_can_have_is_invalid() {
    let server = Server::start();
    let leases = connect(&server).await;
    for free in ["-1", "5000000000"] {
        server.command(&["SET", "pool", free]);
        let pool = leases.semaphore("pool", 2);
        let error = pool.acquire().await.expect_err("another size");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        pool.resize(2).await.expect("an answer");
        pool.acquire_many(2).await.expect("permits").unlock().await.expect("a release");
    }
}

#[tokio::test]
async fn former_sizes_are_kept_as_long_as_the_semaphore() {
    let server = Server::start();
    let leases = connect(&server).await;
    let pttl = |key| server.command(&["PTTL", key]).int();
    let (pool, other) = (leases.semaphore("pool", 3), leases.semaphore("pool", 3));
    let one = pool.acquire().await.expect("a permit");
    pool.resize(5).await.expect("an answer");
    let sizes = "leasehold_sizes:{pool}";
    let fields = server.command(&["HKEYS", sizes]).list().into_iter().map(kit::Reply::text);
    assert_eq!(fields.collect::<Vec<_>>(), ["3"]);
    assert_eq!(server.command(&["GET", "pool"]).text(), "4");
    for key in ["pool", "{pool}:timeout", sizes] {
        assert!((86_000_000..=86_400_000).contains(&pttl(key)), "{key}");
        server.command(&["PEXPIRE", key, "60000"]);
    }
    // Who uses a former size keeps it.
    let two = other.acquire_many(2).await.expect("permits");
    for key in ["pool", "{pool}:timeout", sizes] {
        assert!((86_000_000..=86_400_000).contains(&pttl(key)), "{key}");
    }
    let forever = LeaseManager::builder().ttl(T).fence_retention(None);
    let forever = forever.connect(&server.url()).await.expect("a manager");
    forever.semaphore("kept", 2).resize(2).await.expect("an answer");
    forever.semaphore("kept", 2).resize(4).await.expect("an answer");
    assert_eq!((pttl("kept"), pttl("leasehold_sizes:{kept}")), (-1, -1));
    drop((one, two));
    for name in ["pool", "kept"] {
        leases.force_unlock(name, "test").await.expect("an answer");
    }
    assert!(keys(&server).is_empty());
}

/// The right is lost while a call waits, whose grant then ends its place in the line.
#[tokio::test]
async fn user_without_del_leaves_no_hash_forever() {
    let server = Server::start();
    let permissions =
        [kit::permissions::of_one_server(), kit::permissions::of_shared_names()].concat();
    let without =
        |right| permissions.iter().copied().filter(|word| *word != right).collect::<Vec<_>>();
    for writes in [true, false] {
        set_user(&server, &permissions);
        let contender = connect(&server).await;
        let leases = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
        let (own, theirs) = (leases.rw_lock("rw"), contender.rw_lock("app:rw"));
        let held = { theirs }.write().await.expect("a lease");
        let waiter = tokio::spawn(async move {
            let mut own = own;
            if writes { own.write().await.map(drop) } else { own.read().await.map(drop) }
        });
        let side = if writes { "leasehold_write:{app:rw}" } else { "leasehold_read:{app:rw}" };
        let waits = || server.command(&["EXISTS", side]).int() == 1;
        eventually(LONG, waits).await;
        set_user(&server, &without("+del"));
        held.unlock().await.expect("a release");
        let error = within(LONG, waiter).await.expect("no panic").expect_err("it lacks the right");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        // -1 would be a hash without a time to live.
        assert_ne!(server.command(&["PTTL", "app:rw"]).int(), -1, "{:?}", keys(&server));

        set_user(&server, &permissions);
        let mut own = leases.rw_lock("other");
        let unlocked = if writes {
            let edit = own.write().await.expect("a lease");
            set_user(&server, &without("+del"));
            edit.unlock().await
        } else {
            let page = own.read().await.expect("a lease");
            set_user(&server, &without("+del"));
            page.unlock().await
        };
        assert_eq!(unlocked.expect_err("it lacks the right").kind(), ErrorKind::Denied);
        server.command(&["FLUSHALL"]);
    }
}

/// Each call is polled once, and kept.
#[tokio::test]
async fn changes_unpolled_keep_no_name() {
    let server = Server::start();
    let (leases, other) = (connect(&server).await, connect(&server).await);
    let page = leases.rw_lock("page").read().await.expect("a lease");
    let edit = leases.rw_lock("edit").write().await.expect("a lease");
    let tokens = [page.cancellation_token(), edit.cancellation_token()];
    let (mut upgrade, mut downgrade) = (Box::pin(page.try_upgrade()), Box::pin(edit.downgrade()));
    assert!(polled(upgrade.as_mut(), 1).await.is_none());
    assert!(polled(downgrade.as_mut(), 1).await.is_none());
    assert!(tokens[1].is_cancelled(), "before a reader is in");
    for name in ["page", "edit"] {
        within(LONG, other.rw_lock(name).write()).await.expect("a lease").into_lease().forget();
    }
    assert!(tokens[0].is_cancelled());
    assert_eq!(upgrade.await.expect_err("too late").loss(), Some(Loss::Expired));
    assert_eq!(downgrade.await.expect_err("too late").loss(), Some(Loss::Expired));
}
