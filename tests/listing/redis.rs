//! One server.

use super::{LONG, all, names};
use kit::reached::Must;
use kit::{Server, eventually, permissions, within};
use leasehold::{ErrorKind, Kind, Layout, Lease, LeaseManager, Once};
use std::time::Duration;

async fn manager(server: &Server, prefix: &str) -> LeaseManager {
    LeaseManager::builder().prefix(prefix).connect(&server.url()).await.expect("a manager")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinds_are_shown_by_the_shape_of_the_keys() {
    let server = Server::start();
    let leases = manager(&server, "app:").await;
    let other = manager(&server, "app:").await;
    let (mut fair, mut labelled) = (leases.fair_lock("fair"), leases.lock("{tag}lock").label("x"));
    let held = (
        fair.lock().await.expect("a lease"),
        labelled.lock().await.expect("a lease"),
        leases.rw_lock("read").read().await.expect("a lease"),
        other.rw_lock("read").read().await.expect("a lease"),
        leases.rw_lock("write{1}").write().await.expect("a lease"),
        leases.semaphore("pool", 3).acquire_many(2).await.expect("permits"),
        leases.semaphore("{t}pool", 3).acquire().await.expect("a permit"),
    );
    // A line, arrivals, a note, a semaphore that is idle, and a size that it had.
    let mut waiting = other.fair_lock("fair");
    let waiting = tokio::spawn(async move { drop(waiting.lock().await) });
    let mut writer = other.rw_lock("read");
    let writer = tokio::spawn(async move { drop(writer.write().await) });
    let forced = leases.lock("forced").lock().await.expect("a lease");
    leases.force_unlock("forced", "a test").await.expect("an answer");
    drop(forced);
    let idle = leases.semaphore("idle", 5);
    idle.acquire().await.expect("a permit").unlock().await.expect("a release");
    idle.resize(6).await.expect("resized");
    // What others have under the same prefix.
    for words in [
        &["HSET", "app:hash", "field", "1"][..],
        &["HSET", "app:mixed", "0f0e0d0c-9abc-4def-8123-456789abcdef:7", "1", "x", "1"],
        &["SET", "app:string", "0f0e0d0c-9abc-4def-8123-456789abcdef:7", "EX", "100"],
        &["ZADD", "{app:zset}:timeout", "1", "member"],
        &["SADD", "app:set", "0f0e0d0c-9abc-4def-8123-456789abcdef:7"],
        &["HSET", "apple", "0f0e0d0c-9abc-4def-8123-456789abcdef:7", "1"],
        &["HSET", "app:a{b", "0f0e0d0c-9abc-4def-8123-456789abcdef:7", "1"],
        // One of a Java client without a time to live.
        &["HSET", "app:redisson", "0f0e0d0c-9abc-4def-8123-456789abcdef:101", "1"],
        // One of its calls that are bound to no thread.
        &["HSET", "app:rx", "0f0e0d0c-9abc-4def-8123-456789abcdef:-4611686018427387904", "1"],
        &["HSET", "app:big", "0f0e0d0c-9abc-4def-8123-456789abcdef:101", "1"],
    ] {
        assert_eq!(server.command(words).error(), None, "{words:?}");
    }
    for number in 0..2_000 {
        server.command(&["HSET", "app:big", &format!("field-{number}"), "1"]);
    }
    eventually(LONG, || kit::look::exists(&server, "leasehold_line:{app:fair}")).await;
    let found = all(leases.list("")).await;
    let expected = [
        ("fair", Kind::Lock),
        ("{tag}lock", Kind::Lock),
        ("read", Kind::ReadWrite),
        ("write{1}", Kind::ReadWrite),
        ("pool", Kind::Semaphore),
        ("{t}pool", Kind::Semaphore),
        ("redisson", Kind::Lock),
        ("rx", Kind::Lock),
    ];
    assert_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)).into());
    assert_eq!(names(&leases, "r").await, ["read", "redisson", "rx"]);
    assert_eq!(names(&leases, "{t").await, ["{tag}lock", "{t}pool"]);
    // Without a prefix the auxiliary keys begin as all names do, and are none all the same.
    let bare = manager(&server, "").await;
    let found = names(&bare, "").await;
    assert!(found.iter().all(|name| name.starts_with("app")), "{found:?}");
    assert_eq!(found.len(), expected.len() + 1, "and the one that is called apple: {found:?}");
    waiting.abort();
    writer.abort();
    drop(held);
}

/// The field of a hash of locks.
fn holder(number: usize) -> String {
    format!("0f0e0d0c-9abc-4def-8123-456789abcdef:{number}")
}

/// Adds so many fields to a hash.
fn add_holders(server: &Server, key: &str, numbers: std::ops::Range<usize>) {
    let numbers: Vec<_> = numbers.collect();
    for some in numbers.chunks(1_000) {
        let mut words = vec!["HSET".to_owned(), key.to_owned()];
        words.extend(some.iter().flat_map(|number| [holder(*number), "1".to_owned()]));
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        assert_eq!(server.command(&words).error(), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_in_a_hash_that_has_shrunk_is_found() {
    let server = Server::start();
    let leases = manager(&server, "").await;
    add_holders(&server, "pool", 0..4_000);
    // Until this child has ended, the server keeps the tables of its hashes as large as they are.
    server.command(&["CONFIG", "SET", "rdb-key-save-delay", "60000000"]);
    assert_eq!(server.command(&["BGSAVE"]).error(), None);
    let mut number = 0;
    // A field that is not among the first ones.
    let first = |server: &Server, count: &str| {
        let page = server.command(&["HSCAN", "pool", "0", "COUNT", count]);
        let fields = page.list().remove(1).list();
        fields.into_iter().map(kit::Reply::text).collect::<Vec<_>>()
    };
    let early = first(&server, "1000");
    while early.contains(&holder(number)) {
        number += 1;
    }
    for other in (0..4_000).filter(|other| *other != number) {
        server.command(&["HDEL", "pool", &holder(other)]);
    }
    assert!(first(&server, "8").is_empty(), "its table is sparse");
    let found = all(leases.list("")).await;
    assert_eq!(found, [("pool".to_owned(), Kind::Lock)].into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_keys_are_marked() {
    let server = Server::start();
    let leases = manager(&server, "").await;
    add_holders(&server, "large", 0..10_001);
    add_holders(&server, "small", 0..10_000);
    for number in 0..10_001 {
        let id = format!("{number:032}");
        let pool = if number == 0 { "{b}:timeout" } else { "{a}:timeout" };
        assert_eq!(server.command(&["ZADD", pool, "1", &id]).error(), None);
    }
    server.command(&["ZADD", "{a}:timeout", "1", &"f".repeat(32)]);
    let mut found = std::collections::BTreeMap::new();
    let mut listing = leases.list("");
    while let Some(listed) = within(LONG, listing.next()).await {
        let listed = listed.expect("a name");
        found.insert(listed.name.to_string(), listed.is_large);
    }
    let expected = [("a", true), ("b", false), ("large", true), ("small", false)];
    assert_eq!(found, expected.map(|(name, is_large)| (name.to_owned(), is_large)).into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefix_is_taken_as_it_is() {
    let server = Server::start();
    let leases = manager(&server, "a[b]*?\\:").await;
    let mut held = Vec::new();
    for name in ["*x", "?x", "[a-z]x", "\\x", "xx", "^x", "[^a]x"] {
        held.push(leases.lock(name).lock().await.expect("a lease"));
    }
    for name in ["*", "?", "[a-z]", "\\", "^", "[^a]"] {
        assert_eq!(names(&leases, name).await, [format!("{name}x")], "{name}");
    }
    assert_eq!(names(&leases, "").await.len(), 7);
    assert_eq!(names(&leases, "y").await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_names_are_in_use() {
    let server = Server::start();
    let leases = manager(&server, "").await;
    let keep = Duration::from_secs(60);
    let job = leases.once("nightly").keep(keep);
    let ran = job.run(async |_: &Lease| Ok::<(), ()>(())).await;
    assert!(matches!(ran, Ok(Once::Ran(()))), "{ran:?}");
    assert_eq!(names(&leases, "").await, ["nightly"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_layout_lists_strings_that_expire() {
    let server = Server::start();
    let plain = LeaseManager::builder().prefix("p:").layout(Layout::Plain);
    let plain = plain.connect(&server.url()).await.expect("a manager");
    let redisson = manager(&server, "p:").await;
    let held = (
        plain.lock("own").lock().await.expect("a lease"),
        redisson.lock("hash").lock().await.expect("a lease"),
    );
    server.command(&["SET", "p:python", "a-token", "PX", "60000"]);
    server.command(&["SET", "p:setting", "on"]);
    assert_eq!(names(&plain, "").await, ["own", "python"]);
    assert_eq!(names(&redisson, "").await, ["hash"]);
    drop(held);
}

/// What a listing returned before it ended with an error of permissions.
struct Refused {
    names: Vec<String>,
    error: String,
}

async fn names_and_error(leases: &LeaseManager) -> Refused {
    let mut names = Vec::new();
    let mut listing = leases.list("");
    loop {
        match within(LONG, listing.next()).await.expect("an error at the end") {
            Ok(listed) => names.push(listed.name.to_string()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
                names.sort();
                return Refused { names, error: error.to_string() };
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_of_the_guide_are_enough_to_list() {
    let server = Server::start();
    let set_user = |words: &[&str]| {
        let words = [&["ACL", "SETUSER", "lease", "reset", "on", ">secret"], words].concat();
        assert_eq!(server.command(&words).error(), None);
    };
    let mut allowed = permissions::of_one_server();
    allowed.extend(permissions::of_shared_names());
    set_user(&allowed);
    let url = server.url_as("lease", "secret", 0);
    let leases = LeaseManager::builder().prefix("app:").connect(&url).await.expect("a manager");
    let held = (
        leases.lock("lock").lock().await.expect("a lease"),
        leases.semaphore("pool", 1).acquire().await.expect("a permit"),
    );
    let error = within(LONG, leases.list("").next()).await.expect("an error").expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("`+scan +hscan"), "{error}");
    allowed.extend(permissions::of_listing());
    set_user(&allowed);
    assert_eq!(names(&leases, "").await, ["lock", "pool"]);
    // What the user may not look at is an error, after all that was found.
    server.command(&["HSET", "ap", "0f0e0d0c-9abc-4def-8123-456789abcdef:7", "1"]);
    let wider = LeaseManager::builder().connect(&url).await.expect("a manager");
    let found = names_and_error(&wider).await;
    assert_eq!(found.names, ["app:lock", "app:pool"]);
    assert!(found.error.contains("the key \"ap\""), "{}", found.error);
    for without in ["-zrange", "-hscan"] {
        set_user(&[&allowed[..], &[without]].concat());
        let found = names_and_error(&leases).await;
        let left = if without == "-zrange" { "lock" } else { "pool" };
        assert_eq!(found.names, [left], "{without}: {}", found.error);
        assert!(found.error.contains("+hscan +hlen +zrange"), "{}", found.error);
    }
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listing_begins_again_after_a_lost_connection() {
    let _reached = Must::reach("RedisWalkAgain");
    let server = Server::start();
    let leases = manager(&server, "").await;
    let mut held = Vec::new();
    for number in 0..300 {
        held.push(leases.lock(format!("n{number}")).lock().await.expect("a lease"));
    }
    let mut listing = leases.list("n").page_size(10);
    let mut found = 0;
    while let Some(listed) = within(LONG, listing.next()).await {
        listed.expect("a name");
        found += 1;
        if found == 100 {
            server.kill_clients();
        }
    }
    assert_eq!(found, 300, "each of them once");
}
