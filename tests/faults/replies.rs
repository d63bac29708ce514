//! A server, or something on the way to it, that answers one request wrongly: each class of error, and
//! nonsense, for each kind of request. What is held stays held, errors have their kind, nothing is left.

use std::sync::Arc;
use std::time::Duration;

use kit::look::{channel, subscribers};
use kit::{Mode, Proxy, Server, eventually, millis, within};
use leasehold::{Builder, Error, ErrorKind, Fate, Lease, LeaseManager, LeaseState, Loss, Result};
use tokio::task::JoinSet;

use ErrorKind::{Denied, Invalid, Protocol, Rejected, Unavailable, WrongType};

const LONG: Duration = Duration::from_secs(10);
/// Where nothing else is said. A gap between two attempts is up to a sixtieth of it at first.
const T: Duration = Duration::from_secs(8);
/// Less than T: nothing expires within it.
const SOON: Duration = Duration::from_secs(5);

/// The refusals of a server that speaks Redis, and the error kind of each.
const REFUSALS: [(&str, ErrorKind); 20] = [
    ("LOADING Redis is loading the dataset in memory", Unavailable),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL.", Unavailable),
    (
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        Unavailable,
    ),
    ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable),
    ("CLUSTERDOWN The cluster is down", Unavailable),
    // Nonsense from a server that is not part of a cluster.
    ("MOVED 3999 127.0.0.1:6381", Unavailable),
    ("ASK 3999 127.0.0.1:6381", Unavailable),
    ("ERR max number of clients reached", Unavailable),
    ("ERR something that no version of Redis has said yet", Unavailable),
    ("READONLY You can't write against a read only replica.", Rejected),
    ("OOM command not allowed when used memory > 'maxmemory'.", Rejected),
    ("MISCONF Redis is configured to save RDB snapshots, but it cannot persist on disk.", Rejected),
    ("NOREPLICAS Not enough good replicas to write.", Rejected),
    ("NOPERM this user has no permissions to run the 'evalsha' command", Denied),
    ("NOAUTH Authentication required.", Denied),
    ("WRONGPASS invalid username-password pair or user is disabled.", Denied),
    ("ERR The user executing the script can't run this command or subcommand", Denied),
    ("ERR ACL failure in script: User u has no permissions to run the 'hset' command", Denied),
    ("WRONGTYPE Operation against a key holding the wrong kind of value", WrongType),
    ("CROSSSLOT Keys in request don't hash to the same slot", Invalid),
];

/// Replies that no Redis gives to our scripts, and the error kind of each. The fate of the request is unknown.
const NONSENSE: [(&str, &[u8], ErrorKind); 7] = [
    ("bytes that are no reply", b"\x00\xff hello\r\n\r\n", Unavailable),
    ("a web page", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", Unavailable),
    ("a simple string", b"+OK\r\n", Protocol),
    ("nil", b"$-1\r\n", Protocol),
    ("an empty list", b"*0\r\n", Protocol),
    ("too long a list", b"*2\r\n:0\r\n:0\r\n", Protocol),
    ("lists in lists", b"*1\r\n*1\r\n*1\r\n:1\r\n", Protocol),
];

const NOSCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

/// The refusal of a whole command.
fn refused(text: &str) -> Vec<u8> {
    format!("-{text}\r\n").into_bytes()
}

/// The refusal that a script met at its only item.
fn refused_inside(text: &str) -> Vec<u8> {
    format!("*1\r\n${}\r\n{text}\r\n", text.len()).into_bytes()
}

/// Every wrong answer to a request: a name, the bytes, the kind. `number` means nothing to it.
fn wrong_answers(number: i64) -> Vec<(String, Vec<u8>, ErrorKind)> {
    let mut all = Vec::new();
    for (text, kind) in REFUSALS {
        all.push((text.to_owned(), refused(text), kind));
        all.push((format!("inside: {text}"), refused_inside(text), kind));
    }
    for (what, bytes, kind) in NONSENSE {
        all.push((what.to_owned(), bytes.to_vec(), kind));
    }
    let number = format!(":{number}\r\n");
    let listed = format!("*1\r\n{number}").into_bytes();
    all.push(("a list of a number that means nothing".to_owned(), listed, Protocol));
    all.push(("a number that means nothing".to_owned(), number.into_bytes(), Protocol));
    all
}

/// A manager behind a proxy, without fencing tokens: an empty server is one without locks.
async fn behind(server: &Server, builder: Builder) -> (Proxy, LeaseManager) {
    let proxy = Proxy::start(server.port());
    let leases = builder.fencing(false).connect(&proxy.url()).await.expect("a manager");
    (proxy, leases)
}

async fn free(server: &Server, name: &str) {
    let mut connection = server.connection();
    eventually(SOON, || connection.command(&["EXISTS", name]).int() == 0).await;
}

/// The next acquire is granted at once, and leaves nothing behind.
async fn takes_turns(leases: &LeaseManager, name: &str, what: &str) {
    let lease = leases.lock(name).lock_timeout(SOON).await;
    let lease = lease.unwrap_or_else(|error| panic!("after {what}: {error:?}"));
    lease.expect(what).unlock().await.unwrap_or_else(|error| panic!("after {what}: {error:?}"));
}

#[track_caller]
fn kind<R: std::fmt::Debug>(result: Result<R>, what: &str) -> ErrorKind {
    match result {
        Err(error) => error.kind(),
        Ok(value) => panic!("{what}: expected an error, not {value:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_answered_wrongly_has_its_kind_and_leaves_nothing() {
    let server = Server::start();
    let (proxy, leases) = behind(&server, LeaseManager::builder().ttl(T)).await;
    for (number, (what, bytes, expected)) in wrong_answers(7).into_iter().enumerate() {
        // Of an attempt whose fate is not known there are sweeps, for T.
        let name = format!("job:{number}:");
        proxy.answer(1, &name, &bytes);
        let error: Error = leases.lock(&name).try_lock().await.expect_err(&what);
        assert_eq!(error.kind(), expected, "{what}: {error:?}");
        assert!(error.fate() != Fate::Executed, "{what}: {error:?}");
        assert_eq!(proxy.answered(), number + 1, "{what}: it was asked once");
        takes_turns(&leases, &name, &what).await;
        free(&server, &name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_rides_over_what_may_pass_and_reports_the_rest_at_once() {
    let server = Server::start();
    let (proxy, leases) = behind(&server, LeaseManager::builder().ttl(T)).await;
    for (number, (what, bytes, expected)) in wrong_answers(7).into_iter().enumerate() {
        let name = format!("job:{number}:");
        proxy.answer(1, &name, &bytes);
        let result = within(SOON, leases.lock(&name).lock()).await;
        if expected == Unavailable {
            let lease = result.unwrap_or_else(|error| panic!("{what}: {error:?}"));
            lease.unlock().await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        } else {
            assert_eq!(kind(result, &what), expected, "{what}");
        }
        takes_turns(&leases, &name, &what).await;
        free(&server, &name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_for_another_process_rides_over_what_may_pass() {
    let server = Arc::new(Server::start());
    let mut cases = JoinSet::new();
    for (number, (text, expected)) in REFUSALS.into_iter().enumerate() {
        let server = Arc::clone(&server);
        cases.spawn(async move {
            let name = format!("job:{number}:");
            let builder = LeaseManager::builder().ttl(T).max_poll_interval(millis(200));
            let (proxy, leases) = behind(&server, builder).await;
            let others = LeaseManager::builder().ttl(T).fencing(false).connect(&server.url()).await;
            let theirs = others.expect("a manager").lock(&name).lock().await.expect("a lease");
            let mut lock = leases.lock(&name);
            let waiter = tokio::spawn(async move { lock.lock().await });
            let mut connection = server.connection();
            eventually(SOON, || subscribers(&mut connection, &channel(&name)) == 1).await;
            // As a key: a subscription names the lock, too.
            proxy.answer(1, &format!("\r\n{name}\r\n"), &refused(text));
            eventually(SOON, || proxy.answered() == 1).await;
            if expected == Unavailable {
                theirs.unlock().await.expect("a release");
                let lease = within(SOON, waiter).await.expect("no panic").expect(text);
                lease.unlock().await.expect("a release");
            } else {
                let result = within(SOON, waiter).await.expect("no panic");
                assert_eq!(kind(result, text), expected, "{text}");
                theirs.unlock().await.expect("a release");
            }
            // The subscription lingers for a second after its last waiter.
            eventually(SOON, || subscribers(&mut connection, &channel(&name)) == 0).await;
            free(&server, &name).await;
        });
    }
    cases.join_all().await;
}

/// Holds one lease while its next renewal is answered with these bytes.
async fn renew(server: &Server, name: &str, bytes: &[u8], what: &str) -> (Proxy, Lease) {
    let (proxy, leases) = behind(server, LeaseManager::builder().ttl(millis(3_000))).await;
    let lease = leases.lock(name).lock().await.expect(what);
    // The next request with this name is its renewal.
    proxy.answer(1, name, bytes);
    eventually(LONG, || proxy.answered() == 1).await;
    (proxy, lease)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_that_is_answered_wrongly_once_costs_no_lease() {
    let server = Arc::new(Server::start());
    let mut cases = JoinSet::new();
    for (number, (what, bytes, kind)) in wrong_answers(7).into_iter().enumerate() {
        if kind == WrongType {
            continue;
        }
        let server = Arc::clone(&server);
        cases.spawn(async move {
            let name = format!("job:{number}:");
            let (proxy, lease) = renew(&server, &name, &bytes, &what).await;
            // It is asked again, and then again in its time: the watchdog has survived.
            let before = proxy.count("EVALSHA");
            eventually(LONG, || proxy.count("EVALSHA") >= before + 2).await;
            eventually(LONG, || lease.state() == LeaseState::Held).await;
            assert!(!lease.cancellation_token().is_cancelled(), "{what}");
            // A machine that stands still for an attempt's time is no matter here.
            if let Err(error) = lease.unlock().await {
                assert_eq!(error.kind(), Unavailable, "{what}: {error:?}");
            }
            free(&server, &name).await;
        });
        // Not so many at once that they hold each other up.
        while cases.len() >= 10 {
            cases.join_next().await.expect("one of them").expect("no panic");
        }
    }
    cases.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_that_finds_a_key_of_another_type_ends_the_lease() {
    let server = Server::start();
    let text = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let (_proxy, lease) = renew(&server, "job", &refused_inside(text), text).await;
    assert_eq!(within(LONG, lease.lost()).await, Loss::Taken);
    drop(lease);
    free(&server, "job").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_answered_wrongly_once_is_tried_again_and_done() {
    let server = Server::start();
    let (proxy, leases) = behind(&server, LeaseManager::builder().ttl(T)).await;
    let mut connection = server.connection();
    for (number, (what, bytes, _)) in wrong_answers(-7).into_iter().enumerate() {
        let name = format!("job:{number}:");
        for dropped in [false, true] {
            let lease = leases.lock(&name).lock().await.expect(&what);
            let answered = proxy.answered();
            proxy.answer(1, &name, &bytes);
            if dropped {
                drop(lease);
            } else {
                lease.unlock().await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
                assert_eq!(connection.command(&["EXISTS", &name]).int(), 0, "{what}");
            }
            free(&server, &name).await;
            assert_eq!(proxy.answered(), answered + 1, "{what}");
        }
        takes_turns(&leases, &name, &what).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_that_is_answered_wrongly_changes_no_count_here() {
    let server = Server::start();
    let (proxy, leases) = behind(&server, LeaseManager::builder().ttl(T)).await;
    for (number, (what, bytes, expected)) in wrong_answers(-7).into_iter().enumerate() {
        let name = format!("job:{number}:");
        let mut lock = leases.lock(&name);
        let outer = lock.lock().await.expect(&what);
        let answered = proxy.answered();
        proxy.answer(1, &name, &bytes);
        let inner = lock.lock().await.expect(&what);
        eventually(SOON, || proxy.answered() > answered).await;
        if expected == WrongType {
            // The key is no lock any more, as far as anybody here knows: whose it is is not ours to say.
            assert_eq!(within(SOON, outer.lost()).await, Loss::Taken, "{what}");
            drop((inner, outer));
            server.command(&["DEL", &name]);
        } else {
            assert_eq!(outer.hold_count(), 2, "{what}");
            inner.unlock().await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
            outer.check().unwrap_or_else(|error| panic!("{what}: {error:?}"));
            outer.unlock().await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        }
        free(&server, &name).await;
    }
}

/// The client library would close the connection after some refusals, and tell all that is under way on it the same.
#[tokio::test]
async fn refusal_reaches_no_other_that_is_under_way() {
    for text in ["LOADING Redis is loading the dataset in memory", "READONLY You can't write"] {
        let server = Server::start();
        let (proxy, leases) = behind(&server, LeaseManager::builder().ttl(T)).await;
        proxy.set(Mode::HoldReplies);
        proxy.answer(1, "refused", &refused(text));
        let try_lock = |name: &str| {
            let mut lock = leases.lock(name);
            tokio::spawn(async move { lock.try_lock().await })
        };
        let first = try_lock("refused");
        eventually(SOON, || proxy.answered() == 1).await;
        let other = try_lock("other");
        eventually(SOON, || server.command(&["EXISTS", "other"]).int() == 1).await;
        proxy.set(Mode::Pass);
        first.await.expect("no panic").expect_err(text);
        let lease = other.await.expect("no panic").expect("an answer of its own");
        lease.expect("it was free").unlock().await.expect("a release");
    }
}

/// Refusals of a script as a whole, in the words of 7.0 and of later versions.
#[tokio::test]
async fn refusal_of_a_user_costs_no_connection() {
    let server = Server::start();
    let (proxy, leases) = behind(&server, LeaseManager::builder().ttl(T)).await;
    let connections = proxy.connections();
    for text in [
        "ERR The user executing the script can't run this command or subcommand",
        "ERR ACL failure in script: User u has no permissions to run the 'hgetall' command",
    ] {
        for _ in 0..3 {
            proxy.answer(1, "asked-for", &refused(text));
            let error = leases.inspect("asked-for").await.expect_err(text);
            assert_eq!(error.kind(), Denied, "{error}");
        }
    }
    // Comes after whatever was done about the connection.
    assert!(leases.inspect("asked-for").await.expect("an answer").is_none());
    assert_eq!(proxy.connections(), connections);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_the_server_forgot_is_sent_again_unseen() {
    let server = Server::start();
    let (proxy, leases) = behind(&server, LeaseManager::builder().ttl(millis(3_000))).await;
    let mut lock = leases.lock("job");
    let evals = proxy.count("EVAL");
    let forget = |n| {
        proxy.answer(1, "job", &refused(NOSCRIPT));
        n
    };
    forget(1);
    let outer = lock.try_lock().await.expect("an answer").expect("a lease");
    let record = forget(2);
    let inner = lock.try_lock().await.expect("an answer").expect("a nested lease");
    eventually(LONG, || proxy.answered() == record).await;
    eventually(LONG, || proxy.count("EVAL") == evals + record).await;
    let record = forget(3);
    inner.unlock().await.expect("a lower count");
    eventually(LONG, || proxy.answered() == record).await;
    eventually(LONG, || proxy.count("EVAL") == evals + record).await;
    let renewal = forget(4);
    eventually(LONG, || proxy.answered() == renewal).await;
    eventually(LONG, || proxy.count("EVAL") == evals + renewal).await;
    assert_eq!(outer.state(), LeaseState::Held);
    let release = forget(5);
    outer.unlock().await.expect("a release");
    assert_eq!((proxy.answered(), proxy.count("EVAL")), (release, evals + release));
    free(&server, "job").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_of_64_megabytes_is_refused_and_the_next_is_taken() {
    const SIZE: usize = 64 << 20;
    let server = Server::start();
    let (proxy, leases) = behind(&server, LeaseManager::builder().ttl(T)).await;
    let mut bytes = format!("*1\r\n${SIZE}\r\n").into_bytes();
    bytes.resize(bytes.len() + SIZE, b'x');
    bytes.extend(b"\r\n");
    proxy.answer(1, "job", &bytes);
    let error = within(LONG, leases.lock("job").try_lock()).await.expect_err("nonsense");
    assert_eq!(error.kind(), Unavailable);
    assert_eq!(proxy.answered(), 1);
    takes_turns(&leases, "job", "a long answer").await;
    free(&server, "job").await;
}

/// Up to three requests that left as one call have an answer for none, for four, or for five.
#[tokio::test]
async fn call_with_a_wrong_number_of_answers_is_nonsense_for_all() {
    let server = Server::start();
    let (proxy, leases) = behind(&server, LeaseManager::builder().ttl(T)).await;
    takes_turns(&leases, "warm", "the start").await;
    for (round, bytes) in
        [&b"*0\r\n"[..], b"*4\r\n:0\r\n:0\r\n:0\r\n:0\r\n", b"*5\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n"]
            .iter()
            .enumerate()
    {
        let names = [0, 1, 2].map(|i| format!("call {round}, name {i}."));
        proxy.answer(1, &names[1], bytes);
        let [mut first, mut asked, mut last] = names.each_ref().map(|name| leases.lock(name));
        let (first, asked, last) =
            tokio::join!(first.try_lock(), asked.try_lock(), last.try_lock());
        assert_eq!(kind(asked, "a wrong number"), Protocol, "round {round}");
        // As a rule they were in the same call.
        for beside in [first, last] {
            match beside {
                Ok(lease) => lease.expect("free").unlock().await.expect("a release"),
                Err(error) => assert_eq!(error.kind(), Protocol, "round {round}"),
            }
        }
        assert_eq!(proxy.answered(), round + 1);
        for name in &names {
            takes_turns(&leases, name, "a wrong number").await;
            free(&server, name).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_out_of_reach_is_denied_and_spoils_no_other() {
    let server = Server::start();
    let reach = ["ACL", "SETUSER", "lease", "reset", "on", ">secret", "&*", "+@all"];
    server.command(&[&reach[..], &["~app:*", "~leasehold-probe:*"]].concat());
    let url = server.url_as("lease", "secret", 0);
    let leases = LeaseManager::builder().ttl(T).fencing(false).connect(&url).await;
    let leases = leases.expect("a manager");
    for round in 0..5 {
        let mut tasks = JoinSet::new();
        // They wait for the same connection, so they leave as one call.
        for i in 0..40 {
            let name = if i % 10 == 7 { format!("out:{i}") } else { format!("app:{i}") };
            let mut lock = leases.lock(&name);
            tasks.spawn(async move { (name, lock.lock().await) });
        }
        let mut held = Vec::new();
        for (name, result) in tasks.join_all().await {
            if name.starts_with("out") {
                assert_eq!(kind(result, &name), Denied, "{name}");
            } else {
                held.push(result.unwrap_or_else(|error| panic!("{round}, {name}: {error:?}")));
            }
        }
        drop(held);
        let mut connection = server.connection();
        eventually(SOON, || connection.command(&["KEYS", "*"]).list().is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn right_to_one_name_that_is_taken_away_costs_no_other_lease() {
    let server = Server::start();
    let reach = ["ACL", "SETUSER", "lease", "reset", "on", ">secret", "&*", "+@all"];
    server.command(&[&reach[..], &["~*"]].concat());
    let url = server.url_as("lease", "secret", 0);
    let builder = LeaseManager::builder().ttl(millis(1_500)).fencing(false);
    let leases = builder.connect(&url).await.expect("a manager");
    let mut held = Vec::new();
    for i in 0..20 {
        held.push(leases.lock(format!("app:{i}")).lock().await.expect("a lease"));
    }
    let out = leases.lock("out").lock().await.expect("a lease");
    server.command(&["ACL", "SETUSER", "lease", "resetkeys", "~app:*"]);
    assert_eq!(within(LONG, out.lost()).await, Loss::Expired);
    // They are renewed in the same calls.
    tokio::time::sleep(millis(500)).await;
    for lease in &held {
        lease.check().unwrap_or_else(|error| panic!("{}: {error:?}", lease.name()));
    }
    drop(held);
    let mut connection = server.connection();
    eventually(SOON, || connection.command(&["KEYS", "*"]).list().is_empty()).await;
}
