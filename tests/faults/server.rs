//! What a server does to those who hold and wait: keys that go away, connections and scripts that are
//! lost under load, and stepped clocks. Asserted are what the holder is told, what a waiter gets, and by when.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use kit::fault::{
    LONG, Resource, boottime, connect, end_of, exists, let_in, lock, millis, renewal, undisturbed,
    wait_for, watch,
};
use kit::look::{calls, channel, subscribers};
use kit::step_clock::StepClock;
use kit::{Reply, Resp, Server, eventually};
use leasehold::{ErrorKind, LeaseManager, LeaseState, Loss};
use tokio::task::JoinSet;

/// For a round trip, a wake-up and the scheduler.
const ROOM: Duration = millis(500);
const JAVA: &str = "5e1f3a54-5c1b-4b0e-9a39-0f5d1c0a7b11:47";

/// How long a lost key can stay unknown: until the next renewal, and the time of its attempt.
fn bound(t: Duration) -> Duration {
    t / 3 + t / 6 + ROOM
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_deleted_lets_a_waiter_in_and_warns_the_holder() {
    // The poll bound would be 800 ms by itself.
    const T: Duration = millis(2_400);
    const POLL: Duration = millis(200);
    undisturbed(|| async {
        let server = Server::start();
        let leases = connect(&server.url(), T).await;
        let others = LeaseManager::builder().ttl(T).max_poll_interval(POLL);
        let others = others.connect(&server.url()).await.expect("a manager");
        let mut connection = server.connection();
        let mut resource = Resource::default();
        for command in [&["DEL", "job"][..], &["UNLINK", "job"], &["FLUSHALL"], &["FLUSHDB"]] {
            let lease = lock(&leases, "job").await;
            assert!(resource.write(&lease));
            renewal(&server, "job").await;
            let (lost, waiting) = (watch(&lease), wait_for(&others, "job"));
            // It looks once before it subscribes, and once after.
            eventually(LONG, || subscribers(&mut connection, &channel("job")) == 1).await;
            tokio::time::sleep(POLL).await;
            assert!(!waiting.is_finished());
            let start = boottime();
            assert_eq!(server.command(command).error(), None);
            let (next, entered) = let_in(waiting).await;
            assert!(entered - start < POLL + ROOM, "{command:?}: {:?}", entered - start);
            assert!(resource.write(&next), "{command:?}: the fence did not grow");
            assert!(!resource.write(&lease), "{command:?}: the older fence");
            let (loss, reported) = lost.await.expect("no panic");
            assert_eq!(loss, Loss::Taken, "{command:?}");
            assert!(reported - start < bound(T), "{command:?}: {:?}", reported - start);
            // Its holder never creates it again, and does not release it.
            drop(lease);
            renewal(&server, "job").await;
            next.unlock().await.expect("a release");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eviction_by_volatile_lru_is_found_and_the_next_fence_larger() {
    const T: Duration = millis(1_500);
    undisturbed(|| async {
        let server =
            Server::start_with(&["--maxmemory", "3mb", "--maxmemory-policy", "volatile-lru"]);
        let leases = connect(&server.url(), T).await;
        let others = connect(&server.url(), T).await;
        let lease = lock(&leases, "job").await;
        let (lost, waiting) = (watch(&lease), wait_for(&others, "job"));
        let mut connection = server.connection();
        let filler = "x".repeat(10_000);
        let mut filled = 0;
        // Nothing else may be evicted but what has a time to live: the lock and its fence.
        while connection.command(&["EXISTS", "job"]).int() == 1 {
            filled += 1;
            assert!(filled < 1_000, "it is never evicted");
            connection.command(&["SET", &format!("filler:{filled}"), &filler]);
        }
        let evicted = boottime();
        // The waiter's next look finds room for another lock, or none.
        let (next, looked) = waiting.await.expect("no panic");
        assert!(looked < evicted + T / 3 + ROOM, "{:?}", looked - evicted);
        let (loss, reported) = lost.await.expect("no panic");
        assert!(reported < evicted + bound(T), "{:?}", reported - evicted);
        match next {
            Ok(next) => {
                assert!(matches!(loss, Loss::Gone | Loss::Taken), "{loss:?}");
                assert!(next.fence() > lease.fence());
            }
            Err(error) => {
                assert_eq!(loss, Loss::Gone);
                assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
            }
        }
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        let next = lock(&others, "job").await;
        assert!(next.fence() > lease.fence());
        drop((lease, next));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_behind_a_key_that_never_expires_polls() {
    const T: Duration = millis(2_400);
    const POLL: Duration = millis(200);
    undisturbed(|| async {
        let server = Server::start();
        let builder = LeaseManager::builder().ttl(T).max_poll_interval(POLL);
        let leases = builder.connect(&server.url()).await.expect("a manager");
        // A lock of ours whose holder is gone, and one of another program.
        lock(&leases, "ours").await.forget();
        server.command(&["HSET", "java", JAVA, "1"]);
        assert_eq!(server.command(&["PERSIST", "ours"]), Reply::Int(1));
        let waiting = ["ours", "java"].map(|name| (name, wait_for(&leases, name)));
        tokio::time::sleep(T * 5 / 4).await;
        for (name, waiting) in waiting {
            assert!(!waiting.is_finished(), "{name}: it is still held");
            let start = boottime();
            server.command(&["DEL", name]);
            let (next, entered) = waiting.await.expect("no panic");
            assert!(entered - start < POLL + ROOM, "{name}: {:?}", entered - start);
            next.expect("a lease").unlock().await.expect("a release");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_ending_while_a_server_with_aof_is_down_fires_in_time() {
    const T: Duration = millis(1_500);
    undisturbed(|| async {
        let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
        let leases = connect(&server.url(), T).await;
        let others = connect(&server.url(), T).await;
        let lease = lock(&leases, "job").await;
        let lost = watch(&lease);
        renewal(&server, "job").await;
        let end = end_of(&server, "job");
        server.kill();
        let (loss, reported) = lost.await.expect("no panic");
        assert_eq!(loss, Loss::Expired);
        assert!(reported < end, "{:?} too late", reported - end);
        tokio::time::sleep(end.saturating_sub(boottime())).await;
        server.restart();
        let restarted = boottime();
        let next = loop {
            // An answer may need a reconnect, which delays the first caller that locks.
            match others.lock("job").lock().await {
                Ok(next) => break next,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        };
        assert!(boottime() - restarted < T + ROOM, "{:?}", boottime() - restarted);
        assert!(next.fence() > lease.fence());
        drop(lease);
        renewal(&server, "job").await;
        next.unlock().await.expect("a release");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_shows_nothing_of_lost_scripts_and_connections() {
    const TIME: Duration = millis(700);
    let cases: [&[&str]; 3] = [
        &["SCRIPT", "FLUSH"],
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        &["CLIENT", "KILL", "TYPE", "pubsub"],
    ];
    for harm in cases {
        let server = Server::start();
        let (inside, fence) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            let leases = connect(&server.url(), Duration::from_secs(5)).await;
            for _ in 0..3 {
                let (leases, inside, fence) = (leases.clone(), inside.clone(), fence.clone());
                let (over, turns) = (over.clone(), turns.clone());
                tasks.spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        let lease = leases.lock("job").lock().await.expect("a lease");
                        assert!(!inside.swap(true, Ordering::SeqCst), "two are in");
                        let own = lease.fence().expect("fencing is on");
                        assert!(fence.swap(own, Ordering::SeqCst) < own, "the fence did not grow");
                        turns.fetch_add(1, Ordering::Relaxed);
                        tokio::task::yield_now().await;
                        inside.store(false, Ordering::SeqCst);
                        // A release whose connection was just killed is done again.
                        lease.unlock().await.expect("a release");
                    }
                });
            }
        }
        let mut connection = server.connection();
        let (start, mut harmed) = (boottime(), 0);
        // However slow the machine is, some of both.
        let enough = |harmed| harmed > 5 && turns.load(Ordering::Relaxed) > 30;
        while boottime() - start < TIME || !enough(harmed) {
            assert!(boottime() - start < LONG, "{harm:?}: {harmed} times in {turns:?} turns");
            assert_eq!(connection.command(harm).error(), None);
            harmed += 1;
            tokio::time::sleep(millis(20)).await;
        }
        over.store(true, Ordering::Relaxed);
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
        eventually(LONG, || connection.command(&["EXISTS", "job"]).int() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriber_whose_buffer_ran_over_misses_no_release() {
    // Only a message, or the reconnect, can wake a waiter in time.
    const NEVER: Duration = Duration::from_secs(60);
    undisturbed(|| async {
        let server = Server::start();
        let limit = ["CONFIG", "SET", "client-output-buffer-limit", "pubsub 100000 0 0"];
        assert_eq!(server.command(&limit).error(), None);
        let leases = connect(&server.url(), Duration::from_secs(30)).await;
        let others = LeaseManager::builder().max_poll_interval(NEVER);
        let others = others.connect(&server.url()).await.expect("a manager");
        let mut connection = server.connection();
        // Of names of their own: a late word of the first release would wake the second waiter once more.
        for (name, release_in_the_gap) in [("job:1", false), ("job:2", true)] {
            let lease = lock(&leases, name).await;
            let asked = calls(&mut connection, "evalsha");
            let waiting = wait_for(&others, name);
            let channel = channel(name);
            // Once before it subscribes, and once after.
            eventually(LONG, || calls(&mut connection, "evalsha") >= asked + 2).await;
            let ids = |connection: &mut Resp| {
                let list = connection.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text();
                let id = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
                list.lines().map(id).collect::<Vec<_>>()
            };
            // Each manager has one for its inbox, and the waiter's runtime one of its own, which takes the channel.
            eventually(LONG, || {
                ids(&mut connection).len() == 3 && subscribers(&mut connection, &channel) == 1
            })
            .await;
            let before = ids(&mut connection);
            connection.command(&["PUBLISH", &channel, &"x".repeat(1_000_000)]);
            if release_in_the_gap {
                drop(lease);
            } else {
                eventually(LONG, || {
                    let now = ids(&mut connection);
                    // The other manager's connection stays.
                    now.len() == before.len() && now != before
                })
                .await;
                assert!(!waiting.is_finished());
                lease.unlock().await.expect("a release");
            }
            // Which is awaited for less than `NEVER`, and than the time to live.
            let_in(waiting).await.0.unlock().await.expect("a release");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_stepped_forward_lets_others_in_and_the_fence_grows() {
    const T: Duration = millis(2_000);
    undisturbed(|| async {
        let clock = StepClock::start();
        let server = &clock.server;
        let leases = connect(&server.url(), T).await;
        let others = connect(&server.url(), T).await;
        let mut resource = Resource::default();
        let lease = lock(&leases, "job").await;
        assert!(resource.write(&lease));
        let lost = watch(&lease);
        renewal(server, "job").await;
        let waiting = wait_for(&others, "job");
        tokio::time::sleep(millis(20)).await;
        clock.forward(Duration::from_secs(60));
        let stepped = boottime();
        assert!(!exists(server, "job"), "the step ends it at once");
        // The waiter asks after the poll bound, which is T/3, because no message comes.
        let (next, entered) = let_in(waiting).await;
        assert!(entered < stepped + T / 3 + ROOM, "{:?}", entered - stepped);
        assert!(resource.write(&next));
        // Both may believe to hold now. Only the resource can tell them apart.
        assert!(!resource.write(&lease), "the older fence");
        let (loss, reported) = lost.await.expect("no panic");
        assert!(matches!(loss, Loss::Taken | Loss::Gone), "{loss:?}");
        assert!(reported < stepped + bound(T), "{:?}", reported - stepped);
        drop(lease);
        renewal(server, "job").await;
        next.check().expect("the step is over for the new one");
        next.unlock().await.expect("a release");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_stepped_back_is_put_right_by_a_renewal() {
    // The poll bound would be a second by itself.
    const T: Duration = millis(3_000);
    const POLL: Duration = millis(300);
    undisturbed(|| async {
        let clock = StepClock::start();
        let server = &clock.server;
        let leases = connect(&server.url(), T).await;
        let others = LeaseManager::builder().ttl(T).max_poll_interval(POLL);
        let others = others.connect(&server.url()).await.expect("a manager");
        let lease = lock(&leases, "job").await;
        let left = || server.command(&["PTTL", "job"]).int();
        renewal(server, "job").await;
        clock.back(Duration::from_secs(3_600));
        let stepped = boottime();
        assert!(left() > 3_000_000, "the step makes it an hour longer");
        let waiting = wait_for(&others, "job");
        eventually(LONG, || left() <= 3_000).await;
        assert!(boottime() - stepped < bound(T), "{:?}", boottime() - stepped);
        assert_eq!(lease.state(), LeaseState::Held);

        // Without a renewal it is an hour. A waiter asks after the poll bound all the same.
        lease.forget();
        let mut later = left();
        assert_eq!(server.command(&["PEXPIRE", "job", "3600000"]), Reply::Int(1));
        tokio::time::sleep(POLL * 2).await;
        assert!(!waiting.is_finished());
        later = later.max(left());
        assert!(later > 3_000_000);
        server.command(&["DEL", "job"]);
        let deleted = boottime();
        let (next, entered) = waiting.await.expect("no panic");
        assert!(entered < deleted + POLL + ROOM, "{:?}", entered - deleted);
        // The clock is behind the last fence, which is remembered.
        let next = next.expect("a lease");
        let shown = server.command(&["TIME"]).list();
        let shown = shown[0].int().unsigned_abs() * 1_000_000;
        assert!(next.fence().expect("fencing is on") > shown + 3_000_000_000);
        next.unlock().await.expect("a release");
    })
    .await;
}
