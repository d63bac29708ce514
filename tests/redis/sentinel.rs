//! A real primary with two replicas and three sentinels.

use super::refused_only;
use kit::reached::Must;
use kit::stub::list;
use kit::{Sentinels, Server, Stub, eventually, look, within};
use leasehold::store::{Name, Store};
use leasehold::testing::Harness;
use leasehold::{ErrorKind, Lease, LeaseManager, Loss};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);
/// So long that a renewal by the clock, after a third of it, comes too late for any wait of [`LONG`]: what is
/// seen earlier is the verification after a failover.
const TTL: Duration = Duration::from_secs(120);
/// No failover because the machine has stalled.
const CALM: &str = "sentinel down-after-milliseconds leases 60000";

/// One for all tests that leave it as it was; their names differ.
static SHARED: LazyLock<Sentinels> = LazyLock::new(|| {
    let all = Sentinels::start(CALM);
    // An expired key stays in memory until a command asks for it: the harder case.
    all.servers[0].command(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    all
});

pub(super) async fn shared() -> &'static Sentinels {
    // Starting takes seconds, in which the runtime must not stand still.
    tokio::task::spawn_blocking(|| LazyLock::force(&SHARED)).await.expect("sentinels")
}

async fn own(lines: &'static str) -> Sentinels {
    tokio::task::spawn_blocking(move || Sentinels::start(lines)).await.expect("sentinels")
}

async fn own_to_cut() -> Sentinels {
    tokio::task::spawn_blocking(Sentinels::start_to_cut).await.expect("sentinels")
}

mod redis {
    leasehold::conformance_suite!(
        #[tokio::test]
        super::Conformance(super::shared().await)
    );
}

struct Conformance(&'static Sentinels);

#[async_trait::async_trait]
impl Harness for Conformance {
    async fn store(&self) -> Arc<dyn Store> {
        let store = leasehold::testing::redis_store(&self.0.url(), Duration::from_secs(30)).await;
        store.expect("the primary is there")
    }

    async fn lose(&self, name: &Name) {
        assert_eq!(self.0.servers[0].command(&["DEL", name.as_str()]).int(), 1);
    }

    async fn occupy(&self, name: &Name) -> bool {
        let reply = self.0.servers[0].command(&["SET", name.as_str(), "7"]);
        assert_eq!(reply.text(), "OK");
        true
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }
}

async fn connect(all: &Sentinels, ttl: Duration) -> LeaseManager {
    LeaseManager::builder().ttl(ttl).connect(&all.url()).await.expect("a manager")
}

async fn lock(leases: &LeaseManager, name: &str) -> Lease {
    within(LONG, leases.lock(name).lock()).await.expect("a lease")
}

/// Waits until the replicas have a key.
async fn replicated(all: &Sentinels, key: &str) {
    eventually(LONG, || {
        all.servers[1..].iter().all(|server| server.command(&["EXISTS", key]).int() == 1)
    })
    .await;
}

async fn failed_over(all: Sentinels, old: u16) -> Sentinels {
    let waiting = tokio::task::spawn_blocking(move || {
        all.failed_over(old);
        all
    });
    waiting.await.expect("another primary")
}

/// When the key ends by itself, in milliseconds of the clock on the wall.
fn expires(server: &kit::Server, key: &str) -> i64 {
    server.command(&["PEXPIRETIME", key]).int()
}

/// The lease is on another primary, and was renewed there: verified, not merely copied with the end it had `before`.
async fn verified(all: &Sentinels, lease: &Lease, before: i64) {
    let primary = all.primary();
    eventually(LONG, || expires(primary, lease.name()) > before).await;
    assert!(lease.check().is_ok());
}

/// What begins a failover.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cause {
    Asked,
    /// The primary waits for the replica, which Valkey can since version 9.
    Coordinated,
    Killed,
}

#[tokio::test]
async fn failover_costs_no_lease_that_a_replica_has() {
    for cause in [Cause::Asked, Cause::Coordinated, Cause::Killed] {
        let all = own("").await;
        if cause == Cause::Coordinated && all.servers[0].check_is("Valkey 9").is_err() {
            continue;
        }
        let leases = connect(&all, TTL).await;
        let lease = lock(&leases, "job").await;
        replicated(&all, "job").await;
        let waiter = tokio::spawn({
            let mut handle = connect(&all, TTL).await.lock("job");
            async move { handle.lock().await }
        });
        let old = all.primary_port();
        let end = expires(&all.servers[0], lease.name());
        let words: &[&str] = match cause {
            Cause::Asked => &[],
            Cause::Coordinated => &["COORDINATED"],
            Cause::Killed => {
                all.servers[0].kill();
                &[]
            }
        };
        if cause != Cause::Killed {
            let failover = ["SENTINEL", "FAILOVER", kit::topology::SERVICE];
            let asked = all.sentinels[0].command(&[&failover[..], words].concat());
            assert_eq!(asked, kit::Reply::Text("OK".to_owned()), "{cause:?}");
        }
        let all = failed_over(all, old).await;
        verified(&all, &lease, end).await;
        let fence = lease.fence();
        lease.unlock().await.expect("not lost");
        let next = within(LONG, waiter).await.expect("no panic").expect("a lease");
        assert!(next.fence() > fence, "{:?} after {fence:?}", next.fence());
        assert_eq!(all.primary().command(&["EXISTS", "job"]).int(), 1);
        next.unlock().await.expect("released");
    }
}

/// No client can promise this: the grant was lost with the primary.
#[tokio::test]
async fn grant_no_replica_has_is_gone_at_first_contact_after_failover() {
    for frozen in [false, true] {
        let all = own_to_cut().await;
        let (leases, contenders) = (connect(&all, TTL).await, connect(&all, TTL).await);
        all.cut_replicas();
        let lease = lock(&leases, "job").await;
        let lost = tokio::spawn(lease.lost());
        let old = all.primary_port();
        if frozen {
            all.servers[0].pause();
        } else {
            all.servers[0].kill();
        }
        let all = failed_over(all, old).await;
        let promoted = Instant::now();
        let cause = within(LONG, lost).await.expect("no panic");
        // Not at the end of its time, and for what happened.
        assert_eq!(cause, Loss::Gone);
        println!("frozen: {frozen}; told {:?} after the promotion was seen", promoted.elapsed());
        let contender = lock(&contenders, "job").await;
        assert!(
            contender.fence() > lease.fence(),
            "{:?} after {:?}",
            contender.fence(),
            lease.fence()
        );
        assert_eq!(lease.unlock().await.expect_err("lost").kind(), ErrorKind::Lost);
        assert!(contender.check().is_ok());
        contender.unlock().await.expect("released");
        if frozen {
            all.servers[0].resume();
        }
    }
}

#[tokio::test]
async fn sentinels_that_do_not_know_the_primary_say_so() {
    let all = shared().await;
    let url = all.url().replace("sentinelServiceName=leases", "sentinelServiceName=other");
    let error = LeaseManager::connect(&url).await.expect_err("no such primary");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    let nobody = "redis-sentinel://127.0.0.1:1?sentinelServiceName=leases";
    let error = LeaseManager::connect(nobody).await.expect_err("nobody");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

/// The same cut as above, but the grant had to be seen by a replica: it never counted.
#[tokio::test]
async fn grant_that_no_replica_has_is_refused_if_replicas_are_asked() {
    let all = own_to_cut().await;
    let careful = || {
        let builder = LeaseManager::builder().ttl(TTL);
        builder.replicas(1, Duration::from_millis(500))
    };
    let leases = careful().connect(&all.url()).await.expect("a manager");
    let first = lock(&leases, "before").await;
    // It is on a replica as soon as it is granted, but not on a known one.
    let there = |server: &kit::Server| server.command(&["EXISTS", "before"]).int() == 1;
    assert!(all.servers[1..].iter().any(there));

    all.cut_replicas();
    let error = leases.lock("job").lock().await.expect_err("no replica has it");
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error:?}");
    assert!(error.to_string().contains("too few replicas"), "{error}");
    // Given back long before its time to live ends.
    let start = Instant::now();
    eventually(LONG, || all.servers[0].command(&["EXISTS", "job"]).int() == 0).await;
    assert!(start.elapsed() < TTL / 4, "{:?}", start.elapsed());
    // Without the condition, it is granted.
    let plain = connect(&all, TTL).await;
    let lost = lock(&plain, "job").await;

    let end = expires(&all.servers[0], first.name());
    all.servers[0].kill();
    let old = all.servers[0].port();
    let all = failed_over(all, old).await;
    assert_eq!(within(LONG, lost.lost()).await, Loss::Gone);
    verified(&all, &first, end).await;
    let next = lock(&leases, "job").await;
    assert!(next.fence() > lost.fence());
    first.unlock().await.expect("not lost");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn closed_manager_leaves_no_connection_behind() {
    let all = own(CALM).await;
    // Sentinels name their connections.
    let clients = |server: &kit::Server| {
        let list = ["normal", "pubsub"].map(|kind| {
            let list = server.command(&["CLIENT", "LIST", "TYPE", kind]).text();
            let ours =
                |line: &&str| !line.contains("name=sentinel-") && !line.contains("cmd=client|");
            list.lines().filter(ours).count()
        });
        list[0] + list[1]
    };
    let count = || all.servers.iter().chain(&all.sentinels).map(clients).sum::<usize>();
    eventually(LONG, || count() == 0).await;
    let leases = connect(&all, Duration::from_secs(3)).await;
    let lease = lock(&leases, "job").await;
    let waiter = tokio::spawn({
        let mut handle = leases.lock("job");
        async move { handle.lock().await }
    });
    // Some rounds of asking.
    tokio::time::sleep(Duration::from_secs(3)).await;
    // Two for scripts and one for wake-ups, one more for each runtime, and one to each sentinel; more for a
    // moment when they are asked.
    eventually(LONG, || (6..=12).contains(&count())).await;
    lease.unlock().await.expect("released");
    drop(waiter.await.expect("no panic").expect("a lease"));
    leases.close().await.expect("closed");
    eventually(LONG, || count() == 0).await;
    // Without closing it.
    let leases = connect(&all, Duration::from_secs(3)).await;
    drop(lock(&leases, "job").await);
    drop(leases);
    eventually(LONG, || count() == 0).await;
}

/// The permissions that the documentation names, and no others.
#[tokio::test]
async fn documented_permissions_are_enough_for_all_servers() {
    let all = own(CALM).await;
    for server in &all.servers {
        server.command(
            &"ACL SETUSER lease on >secret resetkeys resetchannels ~app:* \
              ~redisson_lock_token:{app:* ~leasehold_note:{app:* &redisson_lock__channel:{app:* \
              &leasehold_inbox:app:* -@all +eval +evalsha +hset +hdel +hexists +exists +hgetall +pexpire +pttl +time +get +set +del +publish +subscribe \
              +unsubscribe +wait"
                .split_whitespace()
                .collect::<Vec<_>>(),
        );
    }
    for sentinel in &all.sentinels {
        let words = "ACL SETUSER watch on >hidden resetchannels &+switch-master -@all \
                     +sentinel|master +sentinel|get-master-addr-by-name +subscribe";
        let done = sentinel.command(&words.split_whitespace().collect::<Vec<_>>());
        assert_eq!(done, kit::Reply::Text("OK".to_owned()));
        sentinel.command(&["ACL", "SETUSER", "default", "resetpass", ">closed"]);
    }
    let sentinels = "&sentinelUsername=watch&sentinelPassword=hidden";
    let url = all.url_as("lease:secret@", sentinels);
    let builder = || {
        let builder = LeaseManager::builder().prefix("app:").ttl(Duration::from_secs(20));
        builder.replicas(1, Duration::from_millis(500))
    };
    let leases = builder().connect(&url).await.expect("a manager");
    let contenders = builder().connect(&url).await.expect("a manager");
    let lease = lock(&leases, "job").await;
    let waiter = tokio::spawn({
        let mut handle = contenders.lock("job");
        async move { handle.lock().await }
    });
    let channel = look::channel("app:job");
    let mut connection = all.servers[0].connection();
    eventually(LONG, || look::subscribers(&mut connection, &channel) == 1).await;
    lease.unlock().await.expect("released");
    let lease = within(LONG, waiter).await.expect("no panic").expect("a lease");
    assert!(contenders.inspect("job").await.expect("an answer").is_some());
    assert!(leases.force_unlock("job", "test").await.expect("done"));
    drop(lease);
    // What was refused is what the client asks for and goes on without.
    for server in &all.servers {
        refused_only(server, &["leasehold_meta:", "pubsub|numsub"]);
    }
    for (user, query, kind) in [
        ("lease:wrong@", sentinels, ErrorKind::Denied),
        ("lease:secret@", "&sentinelUsername=watch&sentinelPassword=wrong", ErrorKind::Denied),
        ("lease:secret@", "", ErrorKind::Denied),
    ] {
        let error = builder().connect(&all.url_as(user, query)).await.expect_err("refused");
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        // The error reports whose password is meant.
        let of_sentinels = error.to_string().contains("sentinelPassword");
        assert_eq!(of_sentinels, user == "lease:secret@", "{error}");
    }
}

/// The answers of a sentinel: the epoch, the address in `MASTER`, and that in `GET-MASTER-ADDR-BY-NAME`.
type Word = Arc<Mutex<(u64, u16, u16)>>;

fn sentinel(word: (u64, u16, u16), delay: Duration) -> (Stub, Word) {
    let word = Arc::new(Mutex::new(word));
    let seen = Arc::clone(&word);
    let stub = Stub::start(None, move |words| {
        let (epoch, master, address) = *seen.lock().expect("no panic");
        let question = words.get(1)?.to_ascii_uppercase();
        if question == "MASTER" || question == "GET-MASTER-ADDR-BY-NAME" {
            std::thread::sleep(delay);
        }
        let (epoch, master, address) = (epoch.to_string(), master.to_string(), address.to_string());
        match &*question {
            "MASTER" => Some(list(&["ip", "127.0.0.1", "port", &master, "config-epoch", &epoch])),
            "GET-MASTER-ADDR-BY-NAME" => Some(list(&["127.0.0.1", &address])),
            _ => None,
        }
    });
    (stub, word)
}

async fn by(sentinels: &[&Stub]) -> LeaseManager {
    let [first, rest @ ..] = sentinels else { panic!("no sentinel") };
    let nodes: String =
        rest.iter().map(|stub| format!("&node=127.0.0.1:{}", stub.port())).collect();
    let port = first.port();
    let url = format!("redis-sentinel://127.0.0.1:{port}?sentinelServiceName=leases{nodes}");
    let start = Instant::now();
    loop {
        // So short that the sentinels are asked often. A stall of the machine may be longer than an attempt.
        match LeaseManager::builder().ttl(Duration::from_secs(3)).connect(&url).await {
            Ok(leases) => return leases,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
    }
}

fn has(server: &Server, key: &str) -> bool {
    server.command(&["EXISTS", key]).int() == 1
}

/// By how much an answer comes after another one.
const LATER: Duration = Duration::from_millis(60);

/// Until all replicas follow the new primary, the sentinel that leads the failover names the old one in `MASTER`,
/// with the new epoch.
#[tokio::test]
async fn sentinel_that_leads_names_the_new_primary_in_a_failover() {
    let [old, new] = [(); 2].map(|()| Server::start());
    let (leader, _) = sentinel((1, old.port(), new.port()), Duration::ZERO);
    let (other, _) = sentinel((1, new.port(), new.port()), LATER);
    let leases = by(&[&leader, &other]).await;
    let lease = lock(&leases, "job").await;
    assert!(has(&new, "job") && !has(&old, "job"));
    lease.unlock().await.expect("released");
}

/// A switch between the two questions gives the new address with the old epoch. Nobody wins by being first, and who
/// was replaced does not come back in that epoch.
#[tokio::test]
async fn primary_not_named_before_counts_of_two_in_one_epoch() {
    let [old, new] = [(); 2].map(|()| Server::start());
    let (quick, _) = sentinel((1, old.port(), old.port()), Duration::ZERO);
    let (slow, word) = sentinel((1, old.port(), old.port()), LATER);
    let leases = by(&[&quick, &slow]).await;
    lock(&leases, "before").await.unlock().await.expect("released");
    *word.lock().expect("no panic") = (1, new.port(), new.port());
    let mut number = 0;
    let mut enter = async || {
        number += 1;
        let name = format!("job:{number}");
        let lease = lock(&leases, &name).await;
        let there = has(&new, &name);
        assert_ne!(there, has(&old, &name));
        // Lost, if the switch came in between.
        if let Err(error) = lease.unlock().await {
            assert!(!there && error.kind() == ErrorKind::Lost, "{error}");
        }
        there
    };
    let start = Instant::now();
    while !enter().await {
        assert!(start.elapsed() < LONG, "it is never asked");
        tokio::time::sleep(LATER).await;
    }
    // Several times of asking later.
    for _ in 0..50 {
        assert!(enter().await, "it is back at the old one");
        tokio::time::sleep(LATER).await;
    }
}

/// The others are slow, as far away as they are, or because of a slow credentials provider.
#[tokio::test]
async fn sentinel_that_missed_a_failover_does_not_win_by_speed() {
    let [old, new] = [(); 2].map(|()| Server::start());
    let (stale, _) = sentinel((1, old.port(), old.port()), Duration::ZERO);
    let [(one, _), (two, _)] =
        [(); 2].map(|()| sentinel((2, new.port(), new.port()), Duration::from_millis(150)));
    let leases = by(&[&stale, &one, &two]).await;
    // Several times of asking.
    for number in 0..60 {
        let name = format!("job:{number}");
        let lease = lock(&leases, &name).await;
        assert!(has(&new, &name) && !has(&old, &name), "{number}");
        lease.unlock().await.expect("released");
        tokio::time::sleep(LATER).await;
    }
}

/// After `SENTINEL REMOVE` and `MONITOR` epochs begin again; one sentinel that was forgotten still has the old one.
#[tokio::test]
async fn sentinel_that_was_forgotten_does_not_win_with_a_replica() {
    let primary = Server::start();
    let port = primary.port().to_string();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &port]);
    eventually(LONG, || replica.command(&["ROLE"]).list()[3].clone().text() == "connected").await;
    let [(forgotten, word), (other, _)] =
        [(); 2].map(|()| sentinel((0, primary.port(), primary.port()), Duration::ZERO));
    let leases = by(&[&forgotten, &other]).await;
    let lease = lock(&leases, "job").await;
    *word.lock().expect("no panic") = (7, replica.port(), replica.port());
    // Several times of asking.
    for number in 0..50 {
        lock(&leases, &format!("job:{number}")).await.unlock().await.expect("released");
        tokio::time::sleep(LATER).await;
    }
    lease.check().expect("held all the time");
    lease.unlock().await.expect("released");
}

/// Between the demotion of a primary and the word of who is the next, nothing is refused for good.
#[tokio::test]
async fn demoted_primary_is_waited_out() {
    let _reached = Must::reach("RedisReadOnly");
    let all = own(CALM).await;
    let leases = connect(&all, TTL).await;
    let held = lock(&leases, "held").await;
    let port = all.servers[1].port().to_string();
    all.servers[0].command(&["REPLICAOF", "127.0.0.1", &port]);
    let error = leases.lock("job").try_lock().await.expect_err("a replica");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let waiter = tokio::spawn({
        let mut handle = leases.lock("job");
        async move { handle.lock().await }
    });
    let mut connection = all.servers[0].connection();
    connection.command(&["CONFIG", "RESETSTAT"]);
    eventually(LONG, || {
        connection.command(&["INFO", "errorstats"]).text().contains("errorstat_READONLY")
    })
    .await;
    all.servers[0].command(&["REPLICAOF", "NO", "ONE"]);
    let lease = within(LONG, waiter).await.expect("no panic").expect("a lease");
    lease.unlock().await.expect("released");
    assert!(held.check().is_ok());
}
