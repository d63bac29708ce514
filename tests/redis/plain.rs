//! Plain locks: the layout of `SET NX PX`, which other clients share.

use super::errors::{lease_url, set_user};
use super::{exists, millis, refused_only};
use kit::look::{calls, channel};
use kit::{Cluster, Reply, Server, eventually, within};
use leasehold::guard::Script;
use leasehold::store::{ConnectOptions, Mark, Name, RedisStore, Store};
use leasehold::testing::Harness;
use leasehold::{Builder, ErrorKind, Layout, Lease, LeaseManager, Loss, Once};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(30);
const T: Duration = Duration::from_secs(2);

mod redis {
    leasehold::conformance_suite!(
        #[tokio::test]
        super::Conformance(kit::Server::start())
    );
}

struct Conformance(Server);

#[async_trait::async_trait]
impl Harness for Conformance {
    async fn store(&self) -> Arc<dyn Store> {
        let options = ConnectOptions::new().ttl(LONG).layout(Layout::Plain);
        Arc::new(RedisStore::connect_with(&self.0.url(), &options).await.expect("a server"))
    }

    async fn lose(&self, name: &Name) {
        assert_eq!(self.0.command(&["DEL", name.as_str()]).int(), 1);
    }

    async fn occupy(&self, name: &Name) -> bool {
        self.0.command(&["HSET", name.as_str(), "a", "1"]).int() == 1
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }
}

fn plain() -> Builder {
    LeaseManager::builder().layout(Layout::Plain).ttl(T)
}

async fn connect(server: &Server) -> LeaseManager {
    plain().connect(&server.url()).await.expect("a manager")
}

/// Takes a name as every client of this recipe does.
fn set_by_hand(server: &Server, key: &str, value: &str, ttl: Duration) -> bool {
    let ttl = ttl.as_millis().to_string();
    matches!(server.command(&["SET", key, value, "NX", "PX", &ttl]), Reply::Text(_))
}

/// Releases a name as every client of this recipe does.
fn release_by_hand(server: &Server, key: &str, value: &str) -> bool {
    let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    server.command(&["EVAL", script, "1", key, value]).int() == 1
}

#[tokio::test]
async fn key_is_a_string_with_the_holder_id() {
    let server = Server::start();
    let leases = connect(&server).await;
    for fencing in [true, false] {
        let leases = plain().fencing(fencing).connect(&server.url()).await.expect("a manager");
        let lease = leases.lock("job").lock().await.expect("a lease");
        assert_eq!(server.command(&["GET", "job"]).text(), lease.holder_id().to_string());
        let left = server.command(&["PTTL", "job"]).int();
        assert!((1..=2_000).contains(&left), "{left}");
        assert_eq!(lease.fence().is_some(), fencing);
        lease.unlock().await.expect("a release");
        assert!(!exists(&server, "job"));
    }
    let seen = leases.inspect("job").await.expect("an answer");
    assert!(seen.is_none(), "{seen:?}");
}

#[tokio::test]
async fn raw_clients_and_leases_exclude_each_other() {
    let server = Server::start();
    let (fenced, bare) =
        (connect(&server).await, plain().fencing(false).connect(&server.url()).await.unwrap());
    for leases in [&fenced, &bare] {
        let lease = leases.lock("job").lock().await.expect("a lease");
        assert!(!set_by_hand(&server, "job", "peer", LONG));
        lease.unlock().await.expect("a release");
        assert!(set_by_hand(&server, "job", "peer", LONG));
        let mut lock = leases.lock("job");
        assert!(lock.try_lock().await.expect("an answer").is_none());
        let start = Instant::now();
        assert!(lock.lock_timeout(millis(300)).await.expect("an answer").is_none());
        assert!(start.elapsed() >= millis(300));
        let seen = leases.inspect("job").await.expect("an answer").expect("a holder");
        assert_eq!((&*seen.holder, seen.hold_count), ("peer", 1));
        assert!(seen.remaining.is_some_and(|left| left > LONG / 2));
        // Without a message, by the poll interval.
        let waits = lock.lock();
        assert!(release_by_hand(&server, "job", "peer"));
        let lease = within(LONG, waits).await.expect("a lease");
        assert!(!release_by_hand(&server, "job", "peer"));
        lease.unlock().await.expect("a release");
    }
}

/// Without a time to live a waiter asks by the poll interval; with one it asks when that ends.
#[tokio::test]
async fn waiter_asks_when_the_time_of_a_peer_ends() {
    let server = Server::start();
    let leases = plain().max_poll_interval(LONG * 2).connect(&server.url()).await.unwrap();
    assert!(set_by_hand(&server, "job", "peer", millis(700)));
    let start = Instant::now();
    let lease = within(LONG, leases.lock("job").lock()).await.expect("a lease");
    assert!((millis(500)..LONG).contains(&start.elapsed()), "{:?}", start.elapsed());
    lease.unlock().await.expect("a release");

    server.command(&["SET", "job", "peer"]);
    let leases = plain().max_poll_interval(millis(100)).connect(&server.url()).await.unwrap();
    let mut lock = leases.lock("job");
    assert!(lock.lock_timeout(millis(300)).await.expect("an answer").is_none());
    let seen = leases.inspect("job").await.expect("an answer").expect("a holder");
    assert_eq!(seen.remaining, None);
    let waits = lock.lock();
    server.command(&["DEL", "job"]);
    within(LONG, waits).await.expect("a lease").unlock().await.expect("a release");
}

/// ShedLock without `safeUpdate` deletes whatever is there.
#[tokio::test]
async fn blind_deletion_is_a_loss_at_the_next_renewal() {
    let server = Server::start();
    let leases = connect(&server).await;
    let lease = leases.lock("job").lock().await.expect("a lease");
    let start = Instant::now();
    server.command(&["DEL", "job"]);
    assert_eq!(within(LONG, lease.lost()).await, Loss::Gone);
    assert!(start.elapsed() < T, "{:?}", start.elapsed());

    let lease = leases.lock("other").lock().await.expect("a lease");
    server.command(&["SET", "other", "peer", "PX", "30000"]);
    assert_eq!(within(LONG, lease.lost()).await, Loss::Taken);
    drop(lease);
    assert_eq!(server.command(&["GET", "other"]).text(), "peer");
}

#[tokio::test]
async fn late_release_leaves_the_key_of_a_peer() {
    let server = Server::start();
    let leases = plain().ttl(LONG).connect(&server.url()).await.unwrap();
    let lease = leases.lock("job").lock().await.expect("a lease");
    server.command(&["SET", "job", "peer", "PX", "30000"]);
    drop(lease.unlock().await);
    // One from a batch, too.
    let names = ["a", "b", "c"];
    let mut held = Vec::new();
    for name in names {
        held.push(leases.lock(name).lock().await.expect("a lease"));
        server.command(&["SET", name, "peer", "PX", "30000"]);
    }
    let mut releases = JoinSet::new();
    held.into_iter().for_each(|lease: Lease| drop(releases.spawn(lease.unlock())));
    while let Some(released) = releases.join_next().await {
        drop(released);
    }
    tokio::time::sleep(millis(300)).await;
    for name in names.iter().chain(&["job"]) {
        assert_eq!(server.command(&["GET", name]).text(), "peer", "{name}");
        assert!(server.command(&["PTTL", name]).int() > 20_000);
    }
}

#[tokio::test]
async fn watchdog_keeps_the_key_over_three_times_its_time() {
    let server = Server::start();
    let leases = connect(&server).await;
    let lease = leases.lock("job").lock().await.expect("a lease");
    let start = Instant::now();
    while start.elapsed() < T * 3 {
        assert!(!set_by_hand(&server, "job", "peer", LONG));
        assert!(server.command(&["PTTL", "job"]).int() <= 2_000);
        tokio::time::sleep(millis(50)).await;
    }
    lease.check().expect("still held");
    lease.unlock().await.expect("a release");
}

/// The server is not asked, and does not hear of the count either.
#[tokio::test]
async fn nested_holds_send_nothing() {
    let server = Server::start();
    let leases = plain().ttl(LONG).connect(&server.url()).await.unwrap();
    let mut lock = leases.lock("job");
    let outer = lock.lock().await.expect("a lease");
    let mut connection = server.connection();
    let scripts = calls(&mut connection, "evalsha");
    let sets = calls(&mut connection, "set");
    let mut inner = Vec::new();
    for _ in 0..5 {
        inner.push(lock.lock().await.expect("a lease"));
    }
    tokio::time::sleep(millis(200)).await;
    assert_eq!(calls(&mut connection, "evalsha"), scripts);
    assert_eq!(calls(&mut connection, "set"), sets);
    for lease in inner {
        lease.unlock().await.expect("a release");
        assert!(!set_by_hand(&server, "job", "peer", LONG));
    }
    tokio::time::sleep(millis(200)).await;
    assert_eq!(calls(&mut connection, "evalsha"), scripts);
    outer.unlock().await.expect("a release");
    assert!(set_by_hand(&server, "job", "peer", LONG));
}

/// Two processes with many tasks, and a raw client between them: one is in, and tokens grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_off_and_turns_keep_one_in_and_tokens_growing() {
    let server = Arc::new(Server::start());
    let (here, there) = (connect(&server).await, connect(&server).await);
    let (taken, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let leases = if number % 2 == 0 { here.clone() } else { there.clone() };
        let (taken, last) = (Arc::clone(&taken), Arc::clone(&last));
        tasks.spawn(async move {
            for _ in 0..50 {
                let lease = leases.lock("job").lock().await.expect("a lease");
                assert!(!taken.swap(true, Ordering::SeqCst), "two are in");
                let fence = lease.fence().expect("a token");
                assert!(last.swap(fence, Ordering::SeqCst) < fence);
                tokio::time::sleep(millis(1)).await;
                taken.store(false, Ordering::SeqCst);
                lease.unlock().await.expect("a release");
            }
        });
    }
    let (raw, busy) = (Arc::clone(&server), Arc::clone(&taken));
    let peer = tokio::task::spawn_blocking(move || {
        let mut turns = 0;
        for _ in 0..2_000 {
            if set_by_hand(&raw, "job", "peer", LONG) {
                assert!(!busy.swap(true, Ordering::SeqCst), "two are in");
                busy.store(false, Ordering::SeqCst);
                assert!(release_by_hand(&raw, "job", "peer"));
                turns += 1;
            }
        }
        turns
    });
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    println!("turns of the raw client: {}", peer.await.expect("no panic"));
    let mut connection = server.connection();
    // 400 turns, of which most were handed off.
    println!("sets: {}", calls(&mut connection, "set"));
}

#[tokio::test]
async fn release_wakes_the_waiters_of_other_processes() {
    let server = Server::start();
    let builder = || plain().ttl(LONG * 2).max_poll_interval(LONG * 2);
    let here = builder().connect(&server.url()).await.expect("a manager");
    let there = builder().connect(&server.url()).await.expect("a manager");
    let lease = here.lock("job").lock().await.expect("a lease");
    let waits = tokio::spawn(async move { there.lock("job").lock().await });
    let mut connection = server.connection();
    eventually(LONG, || kit::look::subscribers(&mut connection, &channel("job")) > 0).await;
    tokio::time::sleep(millis(100)).await;
    lease.unlock().await.expect("a release");
    drop(within(LONG / 3, waits).await.expect("no panic").expect("a lease"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steal_and_force_unlock_work_on_leases_and_on_peers() {
    let server = Server::start();
    let builder = || plain().ttl(LONG);
    let here = builder().connect(&server.url()).await.expect("a manager");
    let there = builder().connect(&server.url()).await.expect("a manager");
    let old = here.lock("job").lock().await.expect("a lease");
    let new = there.lock("job").steal("it hangs").await.expect("an answer").expect("no other");
    assert_eq!(within(LONG, old.lost()).await, Loss::Stolen);
    assert!(old.fence() < new.fence());
    let note = old.note().await.expect("an answer").expect("a note");
    assert_eq!(&*note.why, "it hangs");
    drop(old);
    assert_eq!(server.command(&["GET", "job"]).text(), new.holder_id().to_string());

    assert!(here.force_unlock("job", "a test").await.expect("an answer"));
    assert_eq!(within(LONG, new.lost()).await, Loss::Revoked);
    drop(new);
    assert!(!exists(&server, "job"));
    assert!(!here.force_unlock("job", "a test").await.expect("an answer"));

    assert!(set_by_hand(&server, "job", "3f0c peer", LONG));
    let lease = here.lock("job").steal("it hangs").await.expect("an answer").expect("no other");
    assert!(!release_by_hand(&server, "job", "3f0c peer"), "its late unlock frees nothing");
    lease.unlock().await.expect("a release");
    assert!(set_by_hand(&server, "job", "peer", LONG));
    assert!(here.force_unlock("job", "a test").await.expect("an answer"));
    assert!(!exists(&server, "job"));
}

#[tokio::test]
async fn what_a_string_cannot_carry_is_unsupported() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut connection = server.connection();
    let sent = calls(&mut connection, "evalsha");
    let mut refusals = vec![
        leases.rw_lock("n").read().await.map(drop).expect_err("no readers"),
        leases.rw_lock("n").write().await.map(drop).expect_err("no writers"),
        leases.rw_lock("n").try_read().await.map(drop).expect_err("no readers"),
        leases.semaphore("n", 2).acquire().await.map(drop).expect_err("no permits"),
        leases.semaphore("n", 2).usage().await.map(drop).expect_err("no permits"),
        leases.fair_lock("n").lock().await.map(drop).expect_err("no order"),
        leases.waiters("n").await.map(drop).expect_err("no line"),
    ];
    for error in refusals.drain(..) {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("Layout::Redisson"), "what to do: {error}");
    }
    assert_eq!(calls(&mut connection, "evalsha"), sent, "before anything is sent");
    let error = plain().connect("memory:").await.map(drop).expect_err("no keys");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("layout"), "{error}");
}

#[tokio::test]
async fn layouts_refuse_each_others_keys() {
    let server = Server::start();
    let strings = connect(&server).await;
    let hashes = LeaseManager::builder().ttl(T).connect(&server.url()).await.expect("a manager");
    for (held, other) in [(&strings, &hashes), (&hashes, &strings)] {
        let lease = held.lock("job").lock().await.expect("a lease");
        let errors = [
            other.lock("job").lock().await.map(drop).expect_err("another layout"),
            other.inspect("job").await.map(drop).expect_err("another layout"),
            other.force_unlock("job", "a test").await.map(drop).expect_err("another layout"),
            other.multi_lock(["job", "z"]).expect("names").lock().await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        }
        lease.check().expect("still held");
        lease.unlock().await.expect("a release");
        assert!(!exists(&server, "z"));
    }
    let lease = strings.lock("job").lock().await.expect("a lease");
    server.command(&["DEL", "job"]);
    server.command(&["HSET", "job", "a", "1"]);
    within(LONG, lease.lost()).await;
    drop(lease);
    tokio::time::sleep(millis(200)).await;
    assert_eq!(server.command(&["HGET", "job", "a"]).text(), "1");
}

#[tokio::test]
async fn marks_are_strings_and_keep_peers_out() {
    let server = Server::start();
    let (leases, other) = (connect(&server).await, connect(&server).await);
    let run = async |leases: &LeaseManager| {
        leases
            .once("job")
            .keep(LONG)
            .run(async |_: &Lease| Ok::<_, ()>(7))
            .await
            .expect("an outcome")
    };
    assert!(matches!(run(&leases).await, Once::Ran(7)));
    let mark = server.command(&["GET", "job"]).text();
    assert!(mark.starts_with("leasehold:done 30000 "), "{mark}");
    let left = server.command(&["PTTL", "job"]).int();
    assert!(left > 20_000, "{left}");
    assert!(!set_by_hand(&server, "job", "peer", LONG));
    for leases in [&leases, &other] {
        let Once::AlreadyDone(closed) = run(leases).await else { panic!("it ran again") };
        assert_eq!(closed.mark, Mark::Done);
        assert!(mark.ends_with(&closed.by), "{closed:?}");
    }
    assert!(other.force_unlock("job", "again").await.expect("an answer"));
    assert!(matches!(run(&other).await, Once::Ran(7)));

    let mut lock = leases.lock("kept").min_hold(LONG);
    lock.lock().await.expect("a lease").unlock().await.expect("a release");
    assert!(server.command(&["GET", "kept"]).text().starts_with("leasehold:kept "));
    assert!(!set_by_hand(&server, "kept", "peer", LONG));
    assert!(lock.try_lock().await.expect("an answer").is_none());
}

/// The key has the longer time from the grant on, so a peer waits as well.
#[tokio::test]
async fn delay_after_a_crash_keeps_peers_out() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut lock = leases.lock("job").lock_delay(LONG);
    let lease = lock.lock().await.expect("a lease");
    let left = server.command(&["PTTL", "job"]).int();
    assert!(left > 30_000, "{left}");
    lease.unlock().await.expect("a release");
    assert!(set_by_hand(&server, "job", "peer", LONG));
}

#[tokio::test]
async fn guard_compares_with_the_string() {
    let server = Server::start();
    let leases = connect(&server).await;
    let script = Script::new("return redis.call('SET', KEYS[1], ARGV[1])").expect("a script");
    let lease = leases.lock("job").lock().await.expect("a lease");
    let write = |value: &str| {
        let (keys, args) = lease.guard().expect("on Redis").with(["level"], [value]);
        let count = keys.len().to_string();
        let mut words = vec!["EVAL", script.text(), &count];
        words.extend(keys.iter().map(String::as_str));
        words.extend(args.iter().map(String::as_str));
        server.command(&words)
    };
    assert_eq!(write("1").text(), "OK");
    server.command(&["SET", "job", "peer", "PX", "30000"]);
    let refused = |reply: Reply| reply.error().expect("stale").to_owned();
    assert!(refused(write("2")).starts_with("LEASEHOLD_STALE peer"));
    server.command(&["DEL", "job"]);
    assert!(refused(write("3")).starts_with("LEASEHOLD_STALE"));
    assert_eq!(server.command(&["GET", "level"]).text(), "1");
}

#[tokio::test]
async fn sets_slots_and_elections_are_plain_locks() {
    let server = Server::start();
    let leases = connect(&server).await;
    let mut set = leases.multi_lock(["a", "b"]).expect("names");
    let both = set.lock().await.expect("a set");
    assert!(!set_by_hand(&server, "a", "peer", LONG) && !set_by_hand(&server, "b", "peer", LONG));
    both.unlock().await.expect("a release");
    assert!(set_by_hand(&server, "b", "peer", LONG));
    assert!(set.try_lock().await.expect("an answer").is_none());
    assert!(!exists(&server, "a"), "all or none");

    let slots = leases.slots("worker", 2);
    let (one, two) = (slots.take().await.expect("a slot"), slots.take().await.expect("a slot"));
    assert_ne!(one.index(), two.index());
    assert!(slots.try_take().await.expect("an answer").is_none());

    let election = leases.election("leader");
    let leadership = election.candidate("here").campaign().await.expect("elected");
    leadership.proclaim("there").await.expect("written");
    let view = election.observe();
    eventually(LONG, || view.current().value.as_deref() == Some("there")).await;
    assert!(!set_by_hand(&server, "leader", "peer", LONG));
    leadership.resign().await.expect("a release");
}

/// The permissions that the guide lists for one server, and no more.
#[tokio::test]
async fn permissions_of_the_guide_are_enough() {
    let server = Server::start();
    set_user(&server, &kit::permissions::of_one_server());
    let builder = || plain().prefix("app:");
    let leases = builder().connect(&lease_url(&server)).await.expect("a manager");
    let bare = builder().fencing(false).connect(&lease_url(&server)).await.expect("a manager");
    server.command(&["ACL", "LOG", "RESET"]);
    for leases in [&leases, &bare] {
        let mut lock = leases.lock("job");
        let lease = lock.lock().await.expect("a lease");
        assert!(leases.lock("job").try_lock().await.expect("an answer").is_none());
        tokio::time::sleep(T).await;
        lease.check().expect("renewed");
        lease.unlock().await.expect("a release");
    }
    let lease = leases.lock("job").lock().await.expect("a lease");
    assert!(bare.force_unlock("job", "a test").await.expect("an answer"));
    drop(lease);
    refused_only(&server, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_of_plain_nodes_is_the_layout_of_redlock() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let leases = plain().connect(urls.join(",")).await.expect("a manager");
    // A node that has just started counts once it is older than the leases that it may have lost.
    let lease = within(LONG, async {
        loop {
            match leases.lock("job").lock().await {
                Ok(lease) => break lease,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            tokio::time::sleep(T / 10).await;
        }
    })
    .await;
    assert!(lease.fence().is_some(), "all nodes reserve the token");
    let holder = lease.holder_id().to_string();
    let held = |server: &Server| !set_by_hand(server, "job", "peer", millis(1));
    assert!(servers.iter().filter(|server| held(server)).count() >= 2);
    let values = servers.iter().map(|server| server.command(&["GET", "job"]));
    let ours =
        values.filter(|value| matches!(value, Reply::Text(text) if text.starts_with(&holder)));
    assert!(ours.count() >= 2);
    tokio::time::sleep(T * 3).await;
    lease.check().expect("renewed");
    lease.unlock().await.expect("a release");
    // A majority of a peer keeps us out, a minority does not. The slowest node may not have heard of the release yet.
    eventually(LONG, || set_by_hand(&servers[0], "job", "peer", LONG)).await;
    let lease = within(LONG, leases.lock("job").lock()).await.expect("a majority is free");
    lease.unlock().await.expect("a release");
    assert_eq!(servers[0].command(&["GET", "job"]).text(), "peer");
    assert!(set_by_hand(&servers[1], "job", "peer", LONG));
    assert!(leases.lock("job").try_lock().await.expect("an answer").is_none());
    let error = leases.rw_lock("rw").read().await.map(drop).expect_err("no readers");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_has_plain_locks() {
    let cluster: &Cluster = super::cluster::shared().await;
    keeps_out_and_wakes(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_of_sentinels_has_plain_locks() {
    keeps_out_and_wakes(&super::sentinel::shared().await.url()).await;
}

/// With a token and without, on names that are on several servers of a cluster.
async fn keeps_out_and_wakes(url: &str) {
    let builder = || plain().ttl(LONG).max_poll_interval(LONG);
    let here = builder().connect(url).await.expect("a manager");
    let there = builder().fencing(false).connect(url).await.expect("a manager");
    for number in 0..6 {
        let name = format!("plain:{number}");
        let lease = here.lock(&name).lock().await.expect("a lease");
        assert!(there.lock(&name).try_lock().await.expect("an answer").is_none());
        let (other, waited) = (there.clone(), name.clone());
        let waits = tokio::spawn(async move { other.lock(&waited).lock().await });
        tokio::time::sleep(millis(300)).await;
        lease.unlock().await.expect("a release");
        let lease = within(LONG / 2, waits).await.expect("no panic").expect("woken");
        lease.unlock().await.expect("a release");
    }
}
