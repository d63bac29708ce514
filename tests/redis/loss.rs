//! A lost lease is reported: in time, with the cause, and never for a mere blip.
//!
//! "In time" is measured from outside: the key's own time to live on the server, or a rival's
//! grant, is what the token must be ahead of.

use super::{JAVA, exists, lock, millis};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::look::{others, renewal};
use kit::trace::Trace;
use kit::{Mode, Proxy, Reply, Server, eventually, within};
use leasehold::{Builder, ErrorKind, Lease, LeaseManager, LeaseState, Loss};
use tokio::task::{JoinHandle, JoinSet};

const AT_RISK: &str = "a lease is at risk: its renewal failed";
const LOST: &str = "a lease is lost";
const LONG: Duration = Duration::from_secs(10);

fn ttl(ttl: Duration) -> Builder {
    LeaseManager::builder().ttl(ttl)
}

async fn connect(url: &str, t: Duration) -> LeaseManager {
    ttl(t).connect(url).await.expect("a manager")
}

/// Records the cause of a loss, and when it was reported.
fn watch(lease: &Lease) -> JoinHandle<(Loss, Instant)> {
    let lost = within(LONG, lease.lost());
    tokio::spawn(async move { (lost.await, Instant::now()) })
}

/// When the server will let the key go, at the earliest.
fn end_of(server: &Server, key: &str) -> Instant {
    let now = Instant::now();
    let left = server.command(&["PTTL", key]).int();
    now + millis(u64::try_from(left).expect("a key with a time to live"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_deleted_or_taken_is_found_by_the_next_renewal() {
    const T: Duration = millis(3_000);
    let server = Server::start();
    let leases = connect(&server.url(), T).await;
    let java = "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], ARGV[1], 1) return redis.call('PEXPIRE', KEYS[1], 30000)";
    let table: [(&[&str], Loss); 5] = [
        (&["DEL", "job"], Loss::Gone),
        (&["FLUSHALL"], Loss::Gone),
        (&["RENAME", "job", "elsewhere"], Loss::Gone),
        (&["SWAPDB", "0", "1"], Loss::Gone),
        (&["EVAL", java, "1", "job", JAVA], Loss::Taken),
    ];
    for (command, cause) in table {
        let lease = lock(&leases, "job").await;
        let lost = watch(&lease);
        let start = Instant::now();
        assert_eq!(server.command(command).error(), None);
        let (loss, at) = lost.await.expect("no panic");
        assert_eq!(loss, cause, "{command:?}");
        // Renewed every third; the rest is for a loaded machine.
        let took = at - start;
        assert!(took < T * 2 / 3, "{command:?}: told after {took:?}");
        assert_eq!(lease.state(), LeaseState::Lost);
        assert!(lease.cancellation_token().is_cancelled());
        let error = lease.unlock().await.expect_err("there is nothing to unlock");
        assert_eq!(error.loss(), Some(cause));
    }
    // Neither renewals nor the release took anything from the new holder.
    assert_eq!(server.command(&["HGET", "job", JAVA]).int(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_of_another_type_ends_the_lease_and_is_left_alone() {
    const T: Duration = millis(900);
    let server = Server::start();
    let leases = connect(&server.url(), T).await;
    let lease = lock(&leases, "job").await;
    let lost = watch(&lease);
    let end = end_of(&server, "job") + T;
    server.command(&["SET", "job", "somebody's"]);
    let (_, at) = lost.await.expect("no panic");
    assert!(at < end);
    drop(lease);
    leases.close().await.expect("nothing to release");
    assert_eq!(server.command(&["GET", "job"]).text(), "somebody's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicted_key_is_gone() {
    const T: Duration = millis(1_500);
    let options = ["--maxmemory", "3mb", "--maxmemory-policy", "volatile-ttl"];
    let server = Server::start_with(&options);
    let leases = connect(&server.url(), T).await;
    let lease = lock(&leases, "job").await;
    let lost = watch(&lease);
    let mut connection = server.connection();
    let filler = "x".repeat(10_000);
    let mut filled = 0;
    // It has the shortest time to live of all that may be evicted.
    while connection.command(&["EXISTS", "job"]).int() == 1 {
        filled += 1;
        assert!(filled < 1_000, "it is never evicted");
        connection.command(&["SET", &format!("filler:{filled}"), &filler]);
    }
    assert_eq!(lost.await.expect("no panic").0, Loss::Gone);
    drop(lease);
}

/// Breaks the connections of six holders in the same way, each at another point between two of
/// its renewals, while a rival waits for each of the names.
async fn at_six_phases(mode: Mode) {
    const T: Duration = millis(2_000);
    let server = Arc::new(Server::start());
    let mut phases = JoinSet::new();
    for phase in 0..6 {
        let server = Arc::clone(&server);
        phases.spawn(async move {
            let name = format!("job:{phase}");
            let proxy = Proxy::start(server.port());
            let leases = connect(&proxy.url(), T).await;
            let contenders = connect(&server.url(), T).await;
            let lease = lock(&leases, &name).await;
            renewal(&server, &name, LONG).await;
            tokio::time::sleep(T / 3 * phase / 6).await;

            let lost = watch(&lease);
            lease.check().expect("held");
            proxy.set(mode);
            let mut contender = contenders.lock(&name);
            let contender = tokio::spawn(async move { (contender.lock().await, Instant::now()) });
            let (loss, told) = lost.await.expect("no panic");
            assert_eq!(loss, Loss::Expired, "{mode:?}, phase {phase}");
            let sent = proxy.count("EVALSHA");
            let (next, entered) = contender.await.expect("no panic");
            let next = next.expect("the rival's lease");
            assert!(told < entered, "{mode:?}, phase {phase}: told {:?} too late", told - entered);
            assert!(next.fence() > lease.fence());
            // The key can die because nothing is sent any more.
            let took = entered - told;
            assert!(took < T, "{mode:?}, phase {phase}: entered {took:?} after");
            assert_eq!(proxy.count("EVALSHA"), sent, "{mode:?}, phase {phase}");

            // The packets that were held back arrive now, and harm no one.
            proxy.set(Mode::Pass);
            drop(lease);
            leases.close().await.expect("nothing to release");
            renewal(&server, &name, LONG).await;
            next.check().expect("the rival's");
            next.unlock().await.expect("a release");
        });
    }
    phases.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_fires_before_the_next_enters_in_a_black_hole() {
    at_six_phases(Mode::BlackHole).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_fires_before_the_next_enters_if_requests_are_held() {
    at_six_phases(Mode::HoldRequests).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_fires_before_the_next_enters_if_replies_are_held() {
    at_six_phases(Mode::HoldReplies).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_fires_before_the_next_enters_if_replies_drop() {
    at_six_phases(Mode::DropReplies).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_fires_before_the_next_enters_if_refused() {
    at_six_phases(Mode::Refuse).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reply_that_comes_late_does_not_make_the_lease_longer() {
    // An attempt may take 1.2 s, as long as the grace; the rest of the margin is 122 ms.
    const T: Duration = millis(12_000);
    const GRACE: Duration = millis(1_200);
    const LATE: Duration = millis(600);
    let mut cases = JoinSet::new();
    for name in ["first-grant", "later-grant", "renewal"] {
        cases.spawn(async move {
            let server = Server::start();
            let mut connection = server.connection();
            let proxy = Proxy::start(server.port());
            let leases = connect(&proxy.url(), T).await;
            if name == "later-grant" {
                // By then this runtime has a connection of its own, besides the manager's three.
                lock(&leases, "other").await.unlock().await.expect("a release");
                eventually(LONG, || others(&mut connection) == 4).await;
            }
            let lease = if name != "renewal" {
                proxy.set(Mode::HoldReplies);
                let mut handle = leases.lock(name);
                let granted = tokio::spawn(async move { handle.lock().await.expect("a lease") });
                eventually(LONG, || exists(&server, name)).await;
                tokio::time::sleep(LATE).await;
                proxy.set(Mode::Pass);
                granted.await.expect("no panic")
            } else {
                let lease = lock(&leases, name).await;
                proxy.set(Mode::HoldReplies);
                renewal(&server, name, LONG).await;
                tokio::time::sleep(LATE).await;
                let before = lease.remaining();
                proxy.set(Mode::Pass);
                eventually(LONG, || lease.remaining() > before).await;
                lease
            };
            // Nothing is believed, the grace included, that the server does not keep.
            let believed = Instant::now() + lease.remaining() + GRACE;
            // Each look errs on the early side, by as much as the machine delays it.
            let end = (0..10).map(|_| end_of(&server, name)).max().expect("some");
            assert!(believed < end, "{name}: {:?} too long", believed - end);
        });
    }
    cases.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_fires_within_the_ttl_when_the_server_ends_or_stalls() {
    const T: Duration = millis(3_000);
    for killed in [true, false] {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let leases = connect(&proxy.url(), T).await;
        let lease = lock(&leases, "job").await;
        renewal(&server, "job", LONG).await;
        let lost = watch(&lease);
        // No renewal may come between the look at the key and the end of the server.
        proxy.set(Mode::HoldRequests);
        tokio::time::sleep(millis(50)).await;
        let end = end_of(&server, "job");
        if killed {
            server.kill();
        } else {
            server.pause();
            proxy.set(Mode::Pass);
        }
        let (loss, at) = lost.await.expect("no panic");
        assert_eq!(loss, Loss::Expired);
        assert!(at < end, "{:?} too late", at - end);
        if killed {
            let error = lease.unlock().await.expect_err("there is nothing to unlock");
            assert_eq!(error.kind(), ErrorKind::Lost);
            continue;
        }
        // When it runs on, it is asked for nothing that would bring the key back.
        server.resume();
        eventually(LONG, || !exists(&server, "job")).await;
        let next = lock(&leases, "job").await;
        assert!(next.fence() > lease.fence());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_without_keys_loses_all_leases_at_once_for_good() {
    // The next renewal comes after 27 s at the earliest: it cannot be what tells.
    const T: Duration = Duration::from_secs(90);
    let server = Server::start();
    let leases = connect(&server.url(), T).await;
    // More than one batch of renewals.
    let mut held = Vec::new();
    for i in 0..150 {
        held.push(lock(&leases, &format!("job:{i}")).await);
    }
    let lost: Vec<_> = held.iter().map(watch).collect();
    server.restart();
    for lost in lost {
        assert_eq!(lost.await.expect("no panic").0, Loss::Gone);
    }
    assert_eq!(server.command(&["DBSIZE"]), Reply::Int(0));
    drop(held);
    let again = lock(&leases, "job:0").await;
    again.check().expect("held");
    drop(again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_that_keeps_the_keys_keeps_the_leases() {
    const T: Duration = millis(3_000);
    let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let leases = connect(&server.url(), T).await;
    let lease = lock(&leases, "job").await;
    server.restart();
    let loading = || server.command(&["PTTL", "job"]).error().is_some();
    eventually(LONG, || !loading()).await;
    assert!(exists(&server, "job"), "the restart has lost it");
    renewal(&server, "job", LONG).await;
    lease.check().expect("held");
    lease.unlock().await.expect("a release");
    assert!(!exists(&server, "job"));
}

/// The events "at risk" and "lease recovered" of a name, in their order, and no other but the
/// grant.
async fn blip(name: &str) {
    let trace = Trace::of_all_threads();
    let over = || {
        let messages = trace.messages(name);
        messages.iter().any(|message| message == "lease recovered")
    };
    eventually(LONG, over).await;
    let messages = trace.messages(name);
    let position = |text| messages.iter().position(|message| message == text);
    assert!(position(AT_RISK) < position("lease recovered"), "{messages:?}");
    assert!(position(AT_RISK).is_some(), "{messages:?}");
    assert_eq!(position(LOST), None, "{messages:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_renewals_are_a_risk_and_no_loss_if_they_end_in_time() {
    const T: Duration = millis(3_000);
    let _trace = Trace::of_all_threads();
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "lease", "on", ">secret", "~*", "&*", "+@all"]);
    let url = server.url_as("lease", "secret", 0);
    let leases = connect(&url, T).await;
    let table: [(&str, &[&str], &[&str]); 3] = [
        (
            "too-few-replicas",
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
        (
            "no-right",
            &["ACL", "SETUSER", "lease", "-pexpire"],
            &["ACL", "SETUSER", "lease", "+pexpire"],
        ),
        (
            "no-scripts",
            &["ACL", "SETUSER", "lease", "-evalsha", "-eval"],
            &["ACL", "SETUSER", "lease", "+evalsha", "+eval"],
        ),
    ];
    for (name, harm, heal) in table {
        let lease = lock(&leases, name).await;
        server.command(harm);
        eventually(LONG, || lease.state() == LeaseState::AtRisk).await;
        lease.check().expect("it is ours all the same");
        assert!(!lease.cancellation_token().is_cancelled());
        server.command(heal);
        eventually(LONG, || lease.state() == LeaseState::Held).await;
        blip(name).await;
        lease.unlock().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_outage_is_a_risk_and_no_loss() {
    const T: Duration = millis(3_000);
    let _trace = Trace::of_all_threads();
    let server = Server::start();
    for mode in [Mode::BlackHole, Mode::HoldReplies, Mode::DropReplies, Mode::Refuse] {
        let name = format!("outage:{mode:?}");
        let proxy = Proxy::start(server.port());
        let leases = connect(&proxy.url(), T).await;
        let lease = lock(&leases, &name).await;
        proxy.set(mode);
        eventually(LONG, || lease.state() == LeaseState::AtRisk).await;
        proxy.set(Mode::Pass);
        eventually(LONG, || lease.state() == LeaseState::Held).await;
        blip(&name).await;
        lease.unlock().await.expect("a release");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnect_verifies_the_lease_at_once() {
    // The next renewal would come after 27 s.
    const T: Duration = Duration::from_secs(90);
    let _trace = Trace::of_all_threads();
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = connect(&proxy.url(), T).await;
    let lease = lock(&leases, "reconnect").await;
    for by_server in [true, false] {
        server.command(&["PEXPIRE", "reconnect", "20000"]);
        if by_server {
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        } else {
            proxy.close_all();
        }
        let mut connection = server.connection();
        let renewed = || connection.command(&["PTTL", "reconnect"]).int() > 25_000;
        eventually(LONG, renewed).await;
        assert_ne!(lease.state(), LeaseState::Lost);
    }
    assert!(!Trace::of_all_threads().messages("reconnect").contains(&LOST.to_owned()));
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_killed_connection_after_another_loses_nothing() {
    const T: Duration = millis(3_000);
    let server = Server::start();
    let leases = connect(&server.url(), T).await;
    let lease = lock(&leases, "job").await;
    let mut connection = server.connection();
    let start = Instant::now();
    while start.elapsed() < T * 2 {
        connection.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        tokio::time::sleep(millis(150)).await;
        lease.check().expect("held");
    }
    lease.check().expect("held");
    eventually(LONG, || lease.state() == LeaseState::Held).await;
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_who_removes_the_time_to_live_is_put_right() {
    const T: Duration = millis(3_000);
    let server = Server::start();
    let leases = connect(&server.url(), T).await;
    let lease = lock(&leases, "job").await;
    for command in
        [&["PERSIST", "job"][..], &["PEXPIRE", "job", "600000"], &["PEXPIRE", "job", "1000"]]
    {
        assert_eq!(server.command(command), Reply::Int(1));
        let right = || (2_200..=3_000).contains(&server.command(&["PTTL", "job"]).int());
        eventually(T, right).await;
    }
    lease.check().expect("held");
    lease.unlock().await.expect("a release");
}

#[test]
fn blocked_runtime_loses_nothing() {
    const T: Duration = millis(1_000);
    let server = Server::start();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let leases = connect(&server.url(), T).await;
        let lease = lock(&leases, "job").await;
        let lost = watch(&lease);
        let owner = server.command(&["HGETALL", "job"]);
        // Nothing of this runtime runs meanwhile.
        thread::sleep(T * 2);
        lease.check().expect("held");
        assert_eq!(lease.state(), LeaseState::Held);
        assert_eq!(server.command(&["HGETALL", "job"]), owner);
        tokio::task::yield_now().await;
        assert!(!lost.is_finished());
        lease.unlock().await.expect("a release");
    });
}
