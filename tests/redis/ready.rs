//! Readiness: whether names can be acquired, by the store and the error.

use crate::errors::{app, lease_url, set_user};
use kit::{Server, within};
use leasehold::{Builder, ErrorKind, LeaseManager, Preflight};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const T: Duration = Duration::from_secs(2);
/// Only ends a test that hangs.
const LONG: Duration = Duration::from_secs(60);

fn builder() -> Builder {
    LeaseManager::builder().ttl(T).preflight(Preflight::off())
}

/// Asks again and again until the manager is not ready, or is.
async fn until_ready_is(leases: &LeaseManager, ready: bool, what: &str) -> Vec<ErrorKind> {
    let start = Instant::now();
    let mut kinds = Vec::new();
    within(LONG, async {
        while leases.health().is_ready() != ready {
            match leases.lock("job").try_lock().await {
                Ok(lease) => drop(lease),
                Err(error) if kinds.contains(&error.kind()) => {}
                Err(error) => kinds.push(error.kind()),
            }
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    println!("{what}: ready {ready} after {:?}, {kinds:?}", start.elapsed());
    assert!(ready || start.elapsed() >= T, "{what}: too early, {:?}", start.elapsed());
    assert!(leases.health().is_live(), "{what}");
    kinds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_until_a_server_refuses_every_name_and_again_after() {
    type Commands = &'static [&'static [&'static str]];
    let table: [(&str, Commands, Commands, ErrorKind); 5] = [
        (
            "a refused login",
            &[
                &["ACL", "SETUSER", "lease", "resetpass", ">other"],
                &["CLIENT", "KILL", "USER", "lease"],
            ],
            &[&["ACL", "SETUSER", "lease", "resetpass", ">secret"]],
            ErrorKind::Denied,
        ),
        (
            "a replica",
            &[&["REPLICAOF", "127.0.0.1", "1"]],
            &[&["REPLICAOF", "NO", "ONE"]],
            ErrorKind::Rejected,
        ),
        (
            "a replica without its primary",
            &[
                &["CONFIG", "SET", "replica-serve-stale-data", "no"],
                &["REPLICAOF", "127.0.0.1", "1"],
            ],
            &[&["REPLICAOF", "NO", "ONE"]],
            ErrorKind::Unavailable,
        ),
        (
            "a full memory",
            &[&["CONFIG", "SET", "maxmemory", "1"]],
            &[&["CONFIG", "SET", "maxmemory", "0"]],
            ErrorKind::Rejected,
        ),
        (
            "too few replicas",
            &[&["CONFIG", "SET", "min-replicas-to-write", "1"]],
            &[&["CONFIG", "SET", "min-replicas-to-write", "0"]],
            ErrorKind::Rejected,
        ),
    ];
    for (what, begin, end, kind) in table {
        let server = Server::start();
        set_user(&server, &["~*", "&*", "+@all"]);
        let leases = builder().connect(&lease_url(&server)).await.expect("a manager");
        // Where renewals are served, they do not show that names can be acquired.
        let held = leases.lock("held").lock().await.expect("a lease");
        let mut operator = server.connection();
        begin
            .iter()
            .for_each(|words| assert_eq!(operator.command(words).error(), None, "{words:?}"));
        let kinds = until_ready_is(&leases, false, what).await;
        assert!(kinds.contains(&kind), "{what}: {kinds:?}");
        end.iter().for_each(|words| assert_eq!(operator.command(words).error(), None, "{words:?}"));
        until_ready_is(&leases, true, what).await;
        drop(held);
        leases.close().await.ok();
    }
}

#[tokio::test]
async fn ready_is_false_without_a_command_of_the_kind_that_is_used() {
    let server = Server::start_with(&["--rename-command", "ZADD", ""]);
    let leases = builder().connect(server.url()).await.expect("a manager");
    within(LONG, async {
        while leases.health().is_ready() {
            let error = leases.semaphore("permits", 1).try_acquire().await.expect_err("no ZADD");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    // Locks work, so that a service which uses both is ready.
    drop(leases.lock("job").lock().await.expect("a lease"));
    assert!(leases.health().is_ready());
    leases.close().await.expect("closed");
}

/// Names may come from the users of a service.
#[tokio::test]
async fn ready_although_one_name_is_denied_or_of_another_type() {
    let server = Server::start();
    set_user(&server, &["~app:job*", "~redisson_lock_token:*", "~text", "&*", "+@all"]);
    server.command(&["SET", "app:job:text", "not a lock"]);
    let leases = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    let start = Instant::now();
    while start.elapsed() < T * 2 {
        for (name, kind) in [("other", ErrorKind::Denied), ("job:text", ErrorKind::WrongType)] {
            let error = leases.lock(name).try_lock().await.expect_err(name);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(leases.health().is_ready(), "{name}");
        }
        sleep(Duration::from_millis(50)).await;
    }
    leases.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_while_a_majority_of_a_quorum_serves() {
    let servers = [0, 1, 2].map(|_| Server::start());
    servers.iter().for_each(|server| set_user(server, &["~*", "&*", "+@all"]));
    let urls = servers.each_ref().map(lease_url).join(",");
    let leases = builder().connect(&urls).await.expect("a manager");
    // A server that has just started counts after the time to live.
    sleep(T + Duration::from_secs(2)).await;
    let refuse = |server: &Server| {
        server.command(&["ACL", "SETUSER", "lease", "resetpass", ">other"]);
        server.command(&["CLIENT", "KILL", "USER", "lease"]);
    };
    refuse(&servers[0]);
    let start = Instant::now();
    while start.elapsed() < T * 2 {
        drop(within(LONG, leases.lock("job").lock()).await.expect("two of three"));
        assert!(leases.health().is_ready());
    }
    refuse(&servers[1]);
    let kinds = until_ready_is(&leases, false, "two of three refuse").await;
    assert!(kinds.contains(&ErrorKind::Denied), "{kinds:?}");
    for server in &servers[..2] {
        server.command(&["ACL", "SETUSER", "lease", "resetpass", ">secret"]);
    }
    until_ready_is(&leases, true, "two of three refused").await;
    leases.close().await.ok();
}

/// Each call gives up before its request has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_is_false_in_an_outage_of_short_calls_that_name_it() {
    let server = Server::start();
    let leases = builder().connect(server.url()).await.expect("a manager");
    drop(leases.lock("job").lock().await.expect("a lease"));
    server.kill();
    let mut last = None;
    within(LONG, async {
        while leases.health().is_ready() {
            match leases.lock("job").lock_timeout(Duration::from_millis(20)).await {
                Ok(lease) => assert!(lease.is_none()),
                Err(error) => last = Some(error),
            }
        }
    })
    .await;
    let error = last.expect("an outage");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("connection refused"), "{error}");
    assert!(std::error::Error::source(&error).is_some(), "{error:?}");
    server.restart();
    until_ready_is(&leases, true, "a restart").await;
    leases.close().await.ok();
}
