//! Fair locks on a real server: their keys, scripts, permissions and batches, and the order among processes.

use super::errors::{app, lease_url, set_user};
use super::{refused_only, script};
use kit::order::{Kind, Order, lined};
use kit::{Cluster, Reply, Server, within};
use leasehold::{ErrorKind, LeaseManager};
use std::sync::LazyLock;
use std::time::Duration;
use tokio::task::JoinSet;

static ACQUIRE: LazyLock<String> = LazyLock::new(|| script("line_acquire"));
static RELEASE: LazyLock<String> = LazyLock::new(|| script("line_release"));
static LEAVE: LazyLock<String> = LazyLock::new(|| script("line_leave"));

const LONG: Duration = Duration::from_secs(30);
const T: Duration = Duration::from_secs(3);
const KEYS: [&str; 3] = ["n", "leasehold_line:{n}", "leasehold_lapse:{n}"];

async fn connect(server: &Server) -> LeaseManager {
    LeaseManager::builder().ttl(T).connect(&server.url()).await.expect("a manager")
}

/// All keys of the server, without those of fencing tokens. Each has a time to live.
fn keys(server: &Server) -> Vec<String> {
    let all = server.command(&["KEYS", "*"]).list().into_iter().map(Reply::text);
    let mut keys: Vec<_> = all.filter(|key| !key.starts_with("redisson_lock_token")).collect();
    for key in &keys {
        assert_ne!(server.command(&["PTTL", key]).int(), -1, "{key} would stay");
    }
    keys.sort();
    keys
}

#[tokio::test]
async fn keys_of_a_line_exist_only_while_one_waits() {
    let server = Server::start();
    let (leases, other) = (connect(&server).await, connect(&server).await);
    let lease = leases.fair_lock("n").lock().await.expect("a lease");
    assert_eq!(keys(&server), ["n"]);
    let field = server.command(&["HKEYS", "n"]).list().remove(0).text();
    assert_eq!(field, lease.holder_id().to_string());
    assert!(leases.fair_lock("n").try_lock().await.expect("an answer").is_none());
    assert!(other.lock("n").try_lock().await.expect("an answer").is_none());
    assert_eq!(keys(&server), ["n"]);
    let mut lock = other.fair_lock("n");
    let waits = tokio::spawn(async move { lock.lock().await.expect("a lease") });
    lined(&leases, "n", 1).await;
    assert_eq!(keys(&server), [KEYS[2], KEYS[1], KEYS[0]]);
    assert!(server.command(&["PTTL", KEYS[1]]).int() <= 2 * 3_000);
    lease.unlock().await.expect("a release");
    let lease = within(T / 3, waits).await.expect("woken by the message");
    assert_eq!(keys(&server), ["n"]);
    lease.unlock().await.expect("a release");
    assert_eq!(keys(&server), [""; 0]);
}

/// Runs a script by hand.
fn run(server: &Server, script: &str, keys: &[&str], args: &[&str]) -> Reply {
    let count = keys.len().to_string();
    server.command(&[&["EVAL", script, &count], keys, args].concat())
}

#[test]
fn line_scripts_with_a_bad_argument_write_nothing() {
    let server = Server::start();
    let fence = "redisson_lock_token:{n}";
    let good = ["m:1", "30000", "5", "1000", "8", "60000"];
    let bad = [
        (0, &["", "m", "m:x", ":1"][..]),
        (1, &["", "x", "1.5", "0", "-1", "31536000001", "nan"]),
        (2, &["", "x", "1.5", "-1", "nan"]),
        (3, &["", "x", "1.5", "-1", "31536000001", "nan"]),
        (4, &["", "x", "1.5", "0", "-1", "1000001", "nan"]),
        (5, &["", "x", "1.5", "-1", "nan"]),
    ];
    for (index, values) in bad {
        for value in values {
            // The holder id is read only for a place.
            if index == 0 {
                run(&server, &ACQUIRE, &KEYS, &["other:1", "30000", "0", "0"]);
            }
            let mut args = good;
            args[index] = value;
            let reply = run(&server, &ACQUIRE, &[&KEYS[..], &[fence]].concat(), &args);
            let text = reply.error().unwrap_or_else(|| panic!("{index} {value:?}: {reply:?}"));
            assert!(text.contains("LEASEHOLD bad argument"), "{text}");
            server.command(&["DEL", "n"]);
            assert_eq!(keys(&server), [""; 0], "{index} {value:?}");
        }
    }
    run(&server, &ACQUIRE, &KEYS, &["m:1", "30000", "0", "0"]);
    for args in [["m:1", "x", "1"], ["m:1", "1", "-1"]] {
        assert!(run(&server, &RELEASE, &KEYS, &args).error().is_some(), "{args:?}");
        assert_eq!(server.command(&["EXISTS", "n"]).int(), 1, "checked first");
    }
    for args in [["m", "0", "0"], ["m:1", "x", "1"], ["m:1", "1", "-1"]] {
        assert!(run(&server, &LEAVE, &KEYS, &args).error().is_some(), "{args:?}");
    }
}

/// A place that cannot be kept for a while is none: no key stays without a time to live.
#[test]
fn place_that_cannot_expire_is_not_kept() {
    let server = Server::start();
    for (user, denied) in [("one", "-pexpire"), ("two", "-hset"), ("three", "-zadd")] {
        run(&server, &ACQUIRE, &KEYS, &["holder:1", "30000", "0", "0"]);
        server.command(&["ACL", "SETUSER", user, "on", "nopass", "~*", "&*", "+@all", denied]);
        let mut connection = server.connection();
        assert_eq!(connection.command(&["AUTH", user, "x"]).text(), "OK");
        let words = [&["EVAL", &ACQUIRE, "3"], &KEYS[..], &["m:1", "30000", "0", "1000"]].concat();
        let reply = connection.command(&words);
        // In the words of Redis 7.0, and of later servers.
        let is_refusal =
            |text: &str| text.contains("can't run") || text.contains("no permissions to run");
        assert!(reply.error().is_some_and(is_refusal), "{denied}: {reply:?}");
        assert_eq!(keys(&server), ["n"], "{denied}");
    }
}

/// In a full memory a waiter waits without a place.
#[test]
fn place_that_has_no_memory_is_none() {
    let server = Server::start();
    run(&server, &ACQUIRE, &KEYS, &["holder:1", "30000", "0", "0"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let reply = run(&server, &ACQUIRE, &KEYS, &["m:1", "30000", "0", "1000"]);
    assert!(matches!(reply, Reply::Int(..=-4)), "{reply:?}");
    assert_eq!(keys(&server), ["n"]);
    assert!(matches!(run(&server, &RELEASE, &KEYS, &["holder:1", "5", "1000"]), Reply::Int(0)));
}

/// What another client keeps under the keys of a line is an error, and stays.
#[test]
fn line_of_another_type_is_an_error() {
    let server = Server::start();
    for key in &KEYS[1..] {
        server.command(&["SET", key, "somebody's", "PX", "60000"]);
        run(&server, &ACQUIRE, &KEYS[..], &["holder:1", "30000", "0", "0"]);
        let reply = run(&server, &ACQUIRE, &KEYS, &["m:1", "30000", "0", "1000"]);
        assert!(reply.error().is_some_and(|text| text.contains("WRONGTYPE")), "{reply:?}");
        assert_eq!(server.command(&["GET", key]).text(), "somebody's");
        server.command(&["FLUSHALL"]);
    }
}

/// A release runs to its end, whatever is wrong with the line.
#[test]
fn release_does_not_depend_on_the_line() {
    let server = Server::start();
    run(&server, &ACQUIRE, &KEYS, &["m:1", "30000", "0", "0"]);
    server.command(&["SET", KEYS[1], "somebody's", "PX", "60000"]);
    assert_eq!(run(&server, &RELEASE, &KEYS, &["m:1", "7", "1000"]), Reply::Int(0));
    assert_eq!(server.command(&["EXISTS", "n"]).int(), 0);
    assert_eq!(run(&server, &RELEASE, &KEYS, &["m:1", "7", "1000"]), Reply::Int(-1));
}

/// The permissions that the guide lists for them, and no more.
#[tokio::test]
async fn permissions_of_the_guide_are_enough_for_a_line() {
    let server = Server::start();
    let mut permissions = kit::permissions::of_one_server();
    set_user(&server, &permissions);
    let leases = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    let error = leases.fair_lock("app:n").lock().await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    permissions.extend(kit::permissions::of_fair_locks());
    set_user(&server, &permissions);
    let other = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    server.command(&["ACL", "LOG", "RESET"]);
    let lease = leases.fair_lock("app:n").lock().await.expect("a lease");
    let wait = |leases: &LeaseManager| {
        let mut lock = leases.fair_lock("app:n");
        tokio::spawn(async move { lock.lock().await.expect("a lease") })
    };
    let first = wait(&other);
    lined(&leases, "app:n", 1).await;
    let second = wait(&leases);
    tokio::time::sleep(T / 2).await;
    lease.unlock().await.expect("a release");
    let lease = within(T / 3, first).await.expect("woken by the message");
    lined(&leases, "app:n", 1).await;
    second.abort();
    lined(&leases, "app:n", 0).await;
    lease.unlock().await.expect("a release");
    refused_only(&server, &[]);
}

/// Fair requests beside plain ones, in the same calls of the batcher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair_and_plain_requests_share_a_connection() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut tasks = JoinSet::new();
    for i in 0..100 {
        let leases = leases.clone();
        tasks.spawn(async move {
            for round in 0..5 {
                let name = format!("n{}", (i + round) % 60);
                let lease = match i % 2 {
                    0 => leases.fair_lock(&name).lock().await,
                    _ => leases.lock(&name).lock().await,
                };
                let lease = lease.expect("a lease");
                assert!(lease.fence().is_some());
                lease.unlock().await.expect("a release");
            }
        });
    }
    while let Some(task) = within(LONG, tasks.join_next()).await {
        task.expect("no panic");
    }
    assert_eq!(keys(&server), [""; 0]);
}

#[tokio::test]
async fn line_is_in_the_slot_of_its_lock() {
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.expect("a cluster");
    let connect = || async {
        let builder = LeaseManager::builder().ttl(T);
        kit::connect_in_the_end(builder, &cluster.url()).await
    };
    let (leases, other) = (connect().await, connect().await);
    for name in ["n", "a{b}c", "{b}", "some:name"] {
        let lease = leases.fair_lock(name).lock().await.expect("a lease");
        let mut lock = other.fair_lock(name);
        let waits = tokio::spawn(async move { lock.lock().await.expect("a lease") });
        lined(&leases, name, 1).await;
        lease.unlock().await.expect("a release");
        let lease = within(T / 3, waits).await.expect("woken by the message");
        lease.unlock().await.expect("a release");
        assert!(leases.waiters(name).await.expect("an answer").is_empty());
    }
}

/// Four managers with eight tasks each, which lock again and again: the order of the grants against that of the arrivals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_four_managers_are_served_in_order() {
    let server = Server::start();
    let order = Order::of(&server, &LeaseManager::builder().ttl(T), Kind::Fair, T).await;
    let (grants, changes) = (order.grants(), order.changes());
    let (worst, slowest) = (order.worst(), order.slowest_round_trip());
    println!(
        "{grants} grants, {changes} to another manager; passed by {worst:?}, round trips up to {slowest:?}"
    );
    assert!(changes > grants / 10, "{changes} of {grants}");
    assert!(worst <= slowest * 2, "one was passed by {worst:?}, with round trips of {slowest:?}");
}
