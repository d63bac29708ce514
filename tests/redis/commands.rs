//! Servers that lack a command: it was renamed away, or a proxy leaves it out.

use crate::errors::{app, lease_url, set_user};
use kit::trace::Trace;
use kit::{Proxy, Server, within};
use leasehold::{Error, ErrorKind, Fate, LeaseManager, Preflight};
use std::time::Duration;
use tracing::Level;

/// Only ends a test that hangs.
const LONG: Duration = Duration::from_secs(60);

fn without(command: &str) -> Server {
    Server::start_with(&["--rename-command", command, ""])
}

#[track_caller]
fn is_named(error: &Error, command: &str) {
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{command}: {error}");
    assert!(!error.is_retryable());
    let named = format!("does not know the command {command}, which leasehold needs");
    assert!(error.to_string().contains(&named), "{command}: {error}");
}

#[tokio::test]
async fn command_that_every_lock_needs_is_named_at_the_start() {
    for command in [
        "EVALSHA", "EVAL", "PTTL", "HEXISTS", "GET", "TIME", "SET", "HSET", "PEXPIRE", "HDEL",
        "EXISTS", "DEL", "PING",
    ] {
        let server = without(command);
        let error = LeaseManager::connect(&server.url()).await.expect_err(command);
        is_named(&error, command);
    }
    let options = ["--cluster-enabled", "yes", "--rename-command", "CLUSTER", ""];
    let server = Server::start_with(&options);
    let url = format!("redis-cluster://127.0.0.1:{}", server.port());
    is_named(&LeaseManager::connect(&url).await.expect_err("no map"), "CLUSTER");
}

#[tokio::test]
async fn command_that_one_kind_needs_is_named_at_its_first_call() {
    for command in ["ZADD", "HGET", "HGETALL", "ZCARD", "ZRANGE", "HKEYS"] {
        let server = without(command);
        let leases = LeaseManager::connect(&server.url()).await.expect("a manager");
        let mut lock = leases.lock("job");
        let lease = within(LONG, lock.lock()).await.expect("a lease");
        let error = match command {
            "HGETALL" => leases.inspect("job").await.err(),
            "HGET" => leases.rw_lock("rw").read().await.err(),
            "HKEYS" => {
                let _read = leases.rw_lock("rw").read().await.expect("a reader");
                leases.force_unlock("rw", "a test").await.err()
            }
            "ZRANGE" => {
                let semaphore = leases.semaphore("permits", 1);
                let _permit = semaphore.acquire().await.expect("a permit");
                semaphore.try_acquire().await.err()
            }
            _ => leases.semaphore("permits", 2).acquire().await.err(),
        };
        is_named(&error.unwrap_or_else(|| panic!("no error without {command}")), command);
        lease.unlock().await.expect("a release");
        leases.close().await.expect("closed");
    }
}

/// The server of a later connection can lack a command that the first one had. The probe is left out here, because the user
/// has no access to its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_is_named_for_a_lone_request_and_for_a_batch() {
    for command in ["PTTL", "TIME", "SET", "HSET", "PEXPIRE"] {
        let server = without(command);
        set_user(&server, &["~app:job*", "~redisson_lock_token:*", "&*", "+@all"]);
        let leases = app().connect(&lease_url(&server)).await.expect("a manager");
        let error = within(LONG, leases.lock("job").lock()).await.expect_err("a lone request");
        is_named(&error, command);
        assert_eq!(error.fate(), Fate::Unknown, "a script may have written before: {error}");
        let asked: Vec<_> = (0..50)
            .map(|at| {
                let mut lock = leases.lock(format!("job:{at}"));
                tokio::spawn(async move { lock.try_lock().await })
            })
            .collect();
        for asked in asked {
            let error = within(LONG, asked).await.expect("no panic").expect_err("a batch");
            is_named(&error, command);
        }
        let timed = leases.lock("job").lock_timeout(Duration::from_millis(500)).await;
        is_named(&timed.expect_err("a timed request"), command);
        leases.close().await.expect("closed");
    }
}

#[tokio::test]
async fn ping_is_not_needed_beside_a_password() {
    let server = Server::start_with(&["--rename-command", "PING", "", "--requirepass", "secret"]);
    let url = server.url_as("default", "secret", 0);
    let leases = LeaseManager::builder().ttl(Duration::from_secs(1)).connect(&url).await;
    let leases = leases.expect("a manager");
    let lease = leases.lock("job").lock().await.expect("a lease");
    let mut next = leases.lock("job");
    assert!(next.lock_timeout(Duration::from_secs(3)).await.expect("an answer").is_none());
    lease.check().expect("held for three times as long as it lives");
    lease.unlock().await.expect("a release");
    leases.close().await.expect("closed");
}

#[tokio::test]
async fn info_that_is_refused_in_any_words_is_a_warning() {
    let words = ["ERR unknown command 'INFO'", "ERR unsupported command 'info'", "ERR not here"];
    for words in words {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        for nth in 1..=50 {
            proxy.answer(nth, "INFO", format!("-{words}\r\n").as_bytes());
        }
        let (trace, _guard) = Trace::of_this_thread();
        let builder = LeaseManager::builder().dedicated_thread(false);
        let leases = builder.clone().connect(proxy.url()).await.expect("a manager");
        leases.close().await.expect("closed");
        let warned = trace.events().into_iter().any(|event| {
            event.level == Level::WARN
                && event.message().contains("does not let this user run INFO")
        });
        assert!(warned, "{words}");
        let refused = builder.preflight(Preflight::refuse()).connect(proxy.url()).await;
        assert_eq!(refused.expect_err("not checked").kind(), ErrorKind::Unfit, "{words}");
    }
}

#[tokio::test]
async fn sentinel_url_of_a_plain_server_is_invalid() {
    let server = Server::start();
    let url = format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName=m", server.port());
    let error = LeaseManager::connect(&url).await.expect_err("no sentinel");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let place = format!("127.0.0.1:{} is no sentinel; write redis://", server.port());
    assert!(error.to_string().contains(&place), "{error}");
}
