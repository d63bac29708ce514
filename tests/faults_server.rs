//! What a server does to those who hold and wait: refusals, stalls, lost keys, cut connections and
//! stepped clocks. Asserted are what the holder is told, what a waiter gets, and by when.
#![cfg(all(feature = "redis", target_os = "linux"))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use common::fault::{
    LONG, Resource, boottime, connect, end_of, exists, lock, millis, owner, renewal, undisturbed,
    wait_for, watch,
};
use common::look::{calls, channel, subscribers};
use common::step_clock::StepClock;
use common::{Reply, Resp, Server, eventually};
use leasehold::{ErrorKind, LeaseManager, LeaseState, Loss};
use tokio::task::JoinSet;

/// For a round trip, a wake-up and the scheduler.
const ROOM: Duration = millis(150);
const JAVA: &str = "5e1f3a54-5c1b-4b0e-9a39-0f5d1c0a7b11:47";

/// How long a lost key can stay unknown: until the next renewal, and the time of its attempt.
fn told_by(t: Duration) -> Duration {
    t / 3 + t / 6 + ROOM
}

fn config(server: &Server, name: &str, value: &str) {
    assert_eq!(server.command(&["CONFIG", "SET", name, value]).error(), None);
}

// --- keys that go away

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_key_is_deleted_a_waiter_enters_by_the_poll_bound_and_the_holder_learns_of_it() {
    const T: Duration = millis(1_500);
    const POLL: Duration = millis(200);
    undisturbed(|| async {
        let server = Server::start();
        let leases = connect(&server.url(), T).await;
        let rivals = LeaseManager::builder().ttl(T).poll_bound(POLL);
        let rivals = rivals.connect(&server.url()).await.expect("a manager");
        let mut resource = Resource::default();
        for command in [&["DEL", "job"][..], &["UNLINK", "job"], &["FLUSHALL"], &["FLUSHDB"]] {
            let lease = lock(&leases, "job").await;
            assert!(resource.write(&lease));
            renewal(&server, "job").await;
            let (lost, waiting) = (watch(&lease), wait_for(&rivals, "job"));
            let start = boottime();
            assert_eq!(server.command(command).error(), None);
            let (next, entered) = waiting.await.expect("no panic");
            let next = next.expect("a lease");
            assert!(entered - start < POLL + ROOM, "{command:?}: {:?}", entered - start);
            assert!(resource.write(&next), "{command:?}: the fence did not grow");
            assert!(!resource.write(&lease), "{command:?}: the older fence");
            let (loss, told) = lost.await.expect("no panic");
            assert_eq!(loss, Loss::Taken, "{command:?}");
            assert!(told - start < told_by(T), "{command:?}: {:?}", told - start);
            // Never made again, nor given back, by the one who had it.
            drop(lease);
            renewal(&server, "job").await;
            next.unlock().await.expect("a release");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_by_volatile_lru_is_told_and_the_next_fence_is_larger() {
    const T: Duration = millis(1_500);
    undisturbed(|| async {
        let server =
            Server::start_with(&["--maxmemory", "3mb", "--maxmemory-policy", "volatile-lru"]);
        let leases = connect(&server.url(), T).await;
        let rivals = connect(&server.url(), T).await;
        let lease = lock(&leases, "job").await;
        let (lost, waiting) = (watch(&lease), wait_for(&rivals, "job"));
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
        let (loss, told) = lost.await.expect("no panic");
        assert!(told < evicted + told_by(T), "{:?}", told - evicted);
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
        config(&server, "maxmemory", "0");
        let next = lock(&rivals, "job").await;
        assert!(next.fence() > lease.fence());
        drop((lease, next));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_key_that_never_expires_a_waiter_polls_and_takes_nothing() {
    const T: Duration = millis(600);
    const POLL: Duration = millis(200);
    undisturbed(|| async {
        let server = Server::start();
        let builder = LeaseManager::builder().ttl(T).poll_bound(POLL);
        let leases = builder.connect(&server.url()).await.expect("a manager");
        // A lock of ours whose holder is gone, and one of another program.
        lock(&leases, "ours").await.forget();
        server.command(&["HSET", "java", JAVA, "1"]);
        assert_eq!(server.command(&["PERSIST", "ours"]), Reply::Int(1));
        let waiting = ["ours", "java"].map(|name| (name, wait_for(&leases, name)));
        tokio::time::sleep(T * 2).await;
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
async fn what_ends_while_a_server_with_aof_is_down_is_told_in_time_and_free_after_it() {
    const T: Duration = millis(1_000);
    undisturbed(|| async {
        let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
        let leases = connect(&server.url(), T).await;
        let rivals = connect(&server.url(), T).await;
        let lease = lock(&leases, "job").await;
        let lost = watch(&lease);
        renewal(&server, "job").await;
        let end = end_of(&server, "job");
        server.kill();
        let (loss, told) = lost.await.expect("no panic");
        assert_eq!(loss, Loss::Expired);
        assert!(told < end, "{:?} too late", told - end);
        tokio::time::sleep(end.saturating_sub(boottime())).await;
        server.restart();
        let restarted = boottime();
        let next = loop {
            // An answer may take a reconnect, which who locks first runs into.
            match rivals.lock("job").lock().await {
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

// --- refusals

/// A way to refuse every renewal from now on, and its end.
struct Refusal {
    what: &'static str,
    options: &'static [&'static str],
    begin: &'static [&'static [&'static str]],
    end: &'static [&'static [&'static str]],
    /// What somebody who locks meanwhile may be told.
    told: &'static [ErrorKind],
}

const REFUSALS: [Refusal; 6] = [
    Refusal {
        what: "NOREPLICAS",
        options: &[],
        begin: &[&["CONFIG", "SET", "min-replicas-to-write", "1"]],
        end: &[&["CONFIG", "SET", "min-replicas-to-write", "0"]],
        told: &[ErrorKind::Rejected],
    },
    Refusal {
        what: "READONLY",
        options: &[],
        begin: &[&["REPLICAOF", "127.0.0.1", "1"]],
        end: &[&["REPLICAOF", "NO", "ONE"]],
        told: &[ErrorKind::Rejected, ErrorKind::Unavailable],
    },
    Refusal {
        // The directory, which is removed, is one of its own.
        what: "MISCONF",
        options: &["--save", "3600 1"],
        begin: &[&["BGSAVE"]],
        end: &[&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]],
        told: &[ErrorKind::Rejected],
    },
    Refusal {
        what: "a right that is missing",
        options: &[],
        begin: &[&["ACL", "SETUSER", "default", "-pexpire"]],
        end: &[&["ACL", "SETUSER", "default", "+pexpire"]],
        told: &[ErrorKind::Denied],
    },
    Refusal {
        // Who is connected stays so: only new connections are asked for it.
        what: "NOAUTH",
        options: &[],
        begin: &[
            &["CONFIG", "SET", "requirepass", "secret"],
            &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        ],
        end: &[&["CONFIG", "SET", "requirepass", ""]],
        told: &[ErrorKind::Denied, ErrorKind::Unavailable],
    },
    Refusal {
        what: "no room for clients",
        options: &[],
        begin: &[
            &["CONFIG", "SET", "maxclients", "1"],
            &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        ],
        end: &[&["CONFIG", "SET", "maxclients", "100"]],
        told: &[ErrorKind::Unavailable],
    },
];

impl Refusal {
    /// A server for it; the directory is its own.
    fn server(&self) -> (Server, tempfile::TempDir) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().to_str().expect("a path in UTF-8");
        let server = Server::start_with(&[self.options, &["--dir", path]].concat());
        (server, dir)
    }

    fn run(commands: &[&[&str]], connection: &mut Resp) {
        for command in commands {
            let reply = connection.command(command);
            assert_eq!(reply.error(), None, "{command:?}");
        }
    }

    async fn begin(&self, connection: &mut Resp, dir: &tempfile::TempDir) {
        if self.what == "MISCONF" {
            std::fs::remove_dir_all(dir.path()).expect("the directory can be removed");
        }
        Self::run(self.begin, connection);
        if self.what == "MISCONF" {
            let info = || connection.command(&["INFO", "persistence"]).text();
            eventually(LONG, {
                let mut info = info;
                move || info().contains("rdb_last_bgsave_status:err")
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_every_renewal_is_refused_the_token_fires_at_c_and_neither_before_nor_later() {
    const T: Duration = millis(1_500);
    let mut all = JoinSet::new();
    for refusal in &REFUSALS {
        all.spawn(undisturbed(move || async move {
            let what = refusal.what;
            let (server, dir) = refusal.server();
            let mut connection = server.connection();
            let leases = connect(&server.url(), T).await;
            let rivals = connect(&server.url(), T).await;
            let lease = lock(&leases, "job").await;
            let lost = watch(&lease);
            renewal(&server, "job").await;
            let now = boottime();
            let left = connection.command(&["PTTL", "job"]).int();
            let end = now + millis(u64::try_from(left).expect("it was just renewed"));
            refusal.begin(&mut connection, &dir).await;
            // In the middle of it, too, the lease is held, whatever the errors say.
            tokio::time::sleep(T / 2).await;
            lease.check().expect("it is ours until its time is over");
            let error = rivals.lock("other").lock().await.expect_err("refused");
            assert!(refusal.told.contains(&error.kind()), "{what}: {error}");

            let (loss, told) = lost.await.expect("no panic");
            assert_eq!(loss, Loss::Expired, "{what}");
            assert!(told < end, "{what}: {:?} too late", told - end);
            // The grace, 1 % and 2 ms; some for the way of the renewal.
            let c = end - T / 10 - T / 100 - millis(2 + 30);
            assert!(told > c, "{what}: {:?} before its time", c - told);
            // Tried again, but not in a loop without pauses.
            let count = calls(&mut connection, "evalsha");
            assert!(count < 200, "{what}: {count} calls");
            let info = connection.command(&["INFO", "stats"]).text();
            let opened = info.lines().find_map(|line| {
                line.strip_prefix("total_connections_received:")?.trim().parse().ok()
            });
            let opened: u32 = opened.expect("a number of connections");
            // Eight connections, each anew after T/20; without a pause it would be thousands.
            assert!(opened < 500, "{what}: {opened} connections");

            Refusal::run(refusal.end, &mut connection);
            let healed = boottime();
            let next = loop {
                // The waiters' connections may still be on their way back.
                match rivals.lock("job").lock().await {
                    Ok(next) => break next,
                    Err(error) => assert!(refusal.told.contains(&error.kind()), "{what}: {error}"),
                }
                tokio::time::sleep(millis(5)).await;
            };
            assert!(boottime() - healed < T * 2, "{what}: {:?}", boottime() - healed);
            assert!(next.fence() > lease.fence(), "{what}");
            next.unlock().await.expect("a release");
        }));
    }
    all.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_that_end_before_c_cost_no_lease() {
    const T: Duration = millis(3_000);
    let mut all = JoinSet::new();
    for refusal in &REFUSALS {
        all.spawn(undisturbed(move || async move {
            let what = refusal.what;
            let (server, dir) = refusal.server();
            let mut connection = server.connection();
            let leases = connect(&server.url(), T).await;
            let lease = lock(&leases, "job").await;
            let token = owner(&server, "job");
            let lost = watch(&lease);
            renewal(&server, "job").await;
            refusal.begin(&mut connection, &dir).await;
            // At the reconnect, or when the next renewal is due.
            eventually(LONG, || lease.state() != LeaseState::Held).await;
            assert_eq!(lease.state(), LeaseState::AtRisk, "{what}");
            Refusal::run(refusal.end, &mut connection);
            eventually(LONG, || lease.state() != LeaseState::AtRisk).await;
            assert_eq!(lease.state(), LeaseState::Held, "{what}");
            let found = connection.command(&["HGETALL", "job"]).pairs().remove(0).0;
            assert_eq!(found, token, "{what}");
            assert!(!lost.is_finished(), "{what}");
            lease.unlock().await.expect("a release");
        }));
    }
    all.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_a_long_loading_costs_no_lease() {
    const T: Duration = millis(3_000);
    undisturbed(|| async {
        // Half a millisecond for each of 1600 keys.
        let server = Server::start_with(&[
            "--key-load-delay",
            "500",
            "--loading-process-events-interval-bytes",
            "1024",
        ]);
        let fill = "for i = 1, 1600 do redis.call('SET', 'filler:' .. i, string.rep('x', 100)) end";
        server.command(&["EVAL", fill, "0"]);
        let leases = connect(&server.url(), T).await;
        let rivals = connect(&server.url(), T).await;
        let lease = lock(&leases, "job").await;
        let token = owner(&server, "job");
        let waiting = wait_for(&rivals, "job");
        renewal(&server, "job").await;
        server.command(&["SAVE"]);
        server.restart();
        let loading = || {
            let reply = server.command(&["PTTL", "job"]);
            reply.error().is_some_and(|text| text.starts_with("LOADING"))
        };
        assert!(loading(), "it is not loading");
        eventually(LONG, || !loading()).await;
        renewal(&server, "job").await;
        lease.check().expect("held");
        assert_eq!(owner(&server, "job"), token);
        assert!(!waiting.is_finished());
        lease.unlock().await.expect("a release");
        let (next, _) = waiting.await.expect("no panic");
        next.expect("a lease").unlock().await.expect("a release");
    })
    .await;
}

// --- stalls

/// A way to keep the server from answering for a while.
#[derive(Clone, Copy, Debug)]
enum Stall {
    Stop,
    Pause,
    Sleep,
    Script,
}

const STALLS: [Stall; 4] = [Stall::Stop, Stall::Pause, Stall::Sleep, Stall::Script];

impl Stall {
    /// Begins it; it is over when what this returns is.
    fn begin(self, server: &Arc<Server>, time: Duration) -> tokio::task::JoinHandle<()> {
        let server = Arc::clone(server);
        let millis = time.as_millis().to_string();
        match self {
            Stall::Stop => server.pause(),
            Stall::Pause => {
                server.command(&["CLIENT", "PAUSE", &millis, "ALL"]);
            }
            Stall::Sleep => {
                let mut connection = server.connection();
                let seconds = time.as_secs_f64().to_string();
                connection.send(&["DEBUG", "SLEEP", &seconds]).expect("sent");
            }
            // Not interrupted, as it has not reached its time limit of 5 s.
            Stall::Script => {
                let spin = "local t = redis.call('TIME') local stop = t[1] * 1000 + t[2] / 1000 + \
                            ARGV[1] repeat t = redis.call('TIME') until \
                            t[1] * 1000 + t[2] / 1000 >= stop";
                server.connection().send(&["EVAL", spin, "0", &millis]).expect("sent");
            }
        }
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            if let Stall::Stop = self {
                server.resume();
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_longer_than_an_attempt_costs_no_lease() {
    const T: Duration = millis(3_000);
    // From a renewal on: the next one, after at most T/3, has no answer within its T/10.
    const TIME: Duration = millis(1_500);
    let mut all = JoinSet::new();
    for stall in STALLS {
        all.spawn(undisturbed(move || async move {
            let server = Arc::new(Server::start());
            let leases = connect(&server.url(), T).await;
            let rivals = connect(&server.url(), T).await;
            let lease = lock(&leases, "job").await;
            let token = owner(&server, "job");
            renewal(&server, "job").await;
            let waiting = wait_for(&rivals, "job");
            tokio::time::sleep(millis(20)).await;
            let over = stall.begin(&server, TIME);
            eventually(LONG, || lease.state() != LeaseState::Held).await;
            assert_eq!(lease.state(), LeaseState::AtRisk, "{stall:?}");
            over.await.expect("no panic");
            eventually(LONG, || lease.state() != LeaseState::AtRisk).await;
            assert_eq!(lease.state(), LeaseState::Held, "{stall:?}");
            assert_eq!(owner(&server, "job"), token);
            assert!(!waiting.is_finished());
            lease.unlock().await.expect("a release");
            let (next, _) = waiting.await.expect("no panic");
            next.expect("a lease").unlock().await.expect("a release");
        }));
    }
    all.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_longer_than_c_fires_the_token_before_the_end_and_what_runs_late_harms_nobody() {
    const T: Duration = millis(1_000);
    const TIME: Duration = millis(1_600);
    let mut all = JoinSet::new();
    for stall in STALLS {
        all.spawn(undisturbed(move || async move {
            let server = Arc::new(Server::start());
            let leases = connect(&server.url(), T).await;
            // Its T is that long that the stall is no outage to who waits.
            let rivals = connect(&server.url(), T * 10).await;
            let lease = lock(&leases, "job").await;
            let token = owner(&server, "job");
            let lost = watch(&lease);
            renewal(&server, "job").await;
            let waiting = wait_for(&rivals, "job");
            tokio::time::sleep(millis(20)).await;
            // What was sent, and is not run yet, would otherwise make the end later.
            let end = boottime() + T;
            let over = stall.begin(&server, TIME);
            let (loss, told) = lost.await.expect("no panic");
            assert_eq!(loss, Loss::Expired, "{stall:?}");
            assert!(told < end, "{stall:?}: {:?} too late", told - end);
            over.await.expect("no panic");
            // Renewals that were sent in time run now, when the key is there no more.
            let mut connection = server.connection();
            let start = boottime();
            while boottime() - start < T / 3 {
                let there = connection.command(&["HEXISTS", "job", &token]).int();
                assert_eq!(there, 0, "{stall:?}: the key was made again");
                tokio::time::sleep(millis(2)).await;
            }
            let (next, entered) = waiting.await.expect("no panic");
            let next = next.expect("a lease");
            assert!(entered > told, "{stall:?}");
            assert!(next.fence() > lease.fence());
            drop(lease);
            leases.close().await.expect("nothing to release");
            assert_ne!(owner(&server, "job"), token);
            next.check().expect("held");
            next.unlock().await.expect("a release");
        }));
    }
    all.join_all().await;
}

// --- load

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_nothing_is_seen_of_forgotten_scripts_and_killed_connections() {
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
        let mut crowd = JoinSet::new();
        for _ in 0..3 {
            let leases = connect(&server.url(), Duration::from_secs(5)).await;
            for _ in 0..3 {
                let (leases, inside, fence) = (leases.clone(), inside.clone(), fence.clone());
                let (over, turns) = (over.clone(), turns.clone());
                crowd.spawn(async move {
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
        while boottime() - start < TIME {
            assert_eq!(connection.command(harm).error(), None);
            harmed += 1;
            tokio::time::sleep(millis(20)).await;
        }
        over.store(true, Ordering::Relaxed);
        while let Some(done) = crowd.join_next().await {
            done.expect("no panic");
        }
        let turns = turns.load(Ordering::Relaxed);
        assert!(harmed > 5 && turns > 30, "{harm:?}: {harmed} times in {turns} turns");
        eventually(LONG, || connection.command(&["EXISTS", "job"]).int() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_whose_output_buffer_ran_over_is_subscribed_anew_and_misses_no_release() {
    // Only a message, or the reconnect, can wake anyone in time.
    const NEVER: Duration = Duration::from_secs(60);
    undisturbed(|| async {
        let server = Server::start();
        config(&server, "client-output-buffer-limit", "pubsub 100000 0 0");
        let leases = connect(&server.url(), Duration::from_secs(30)).await;
        let rivals = LeaseManager::builder().poll_bound(NEVER);
        let rivals = rivals.connect(&server.url()).await.expect("a manager");
        let mut connection = server.connection();
        for release_in_the_gap in [false, true] {
            let lease = lock(&leases, "job").await;
            let waiting = wait_for(&rivals, "job");
            let listening = ["PUBSUB", "NUMSUB", &channel("job")].map(str::to_owned);
            eventually(LONG, || subscribers(&mut connection, &listening[2]) == 1).await;
            let ids = |connection: &mut Resp| {
                let list = connection.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text();
                let id = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
                list.lines().map(id).collect::<Vec<_>>()
            };
            let before = ids(&mut connection);
            connection.command(&["PUBLISH", &listening[2], &"x".repeat(1_000_000)]);
            let released = if release_in_the_gap {
                drop(lease);
                boottime()
            } else {
                eventually(LONG, || {
                    let now = ids(&mut connection);
                    !now.is_empty() && now.iter().all(|id| !before.contains(id))
                })
                .await;
                assert!(!waiting.is_finished());
                let at = boottime();
                lease.unlock().await.expect("a release");
                at
            };
            let (next, entered) = waiting.await.expect("no panic");
            let took = entered.saturating_sub(released);
            assert!(took < Duration::from_secs(4), "{took:?}");
            next.expect("a lease").unlock().await.expect("a release");
        }
    })
    .await;
}

// --- clocks

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_stepped_forward_lets_a_rival_in_early_and_the_fence_tells_who_is_late() {
    const T: Duration = millis(2_000);
    undisturbed(|| async {
        let clock = StepClock::start();
        let server = &clock.server;
        let leases = connect(&server.url(), T).await;
        let rivals = connect(&server.url(), T).await;
        let mut resource = Resource::default();
        let lease = lock(&leases, "job").await;
        assert!(resource.write(&lease));
        let lost = watch(&lease);
        renewal(server, "job").await;
        let waiting = wait_for(&rivals, "job");
        tokio::time::sleep(millis(20)).await;
        clock.forward(Duration::from_secs(60));
        let stepped = boottime();
        assert!(!exists(server, "job"), "the step ends it at once");
        // The waiter looks at the poll bound, which is T/3, for nobody tells.
        let (next, entered) = waiting.await.expect("no panic");
        let next = next.expect("a lease");
        assert!(entered < stepped + T / 3 + ROOM, "{:?}", entered - stepped);
        assert!(resource.write(&next));
        // Both may be in by now, which only the resource can tell.
        assert!(!resource.write(&lease), "the older fence");
        let (loss, told) = lost.await.expect("no panic");
        assert!(matches!(loss, Loss::Taken | Loss::Gone), "{loss:?}");
        assert!(told < stepped + told_by(T), "{:?}", told - stepped);
        drop(lease);
        renewal(server, "job").await;
        next.check().expect("the step is over for the new one");
        next.unlock().await.expect("a release");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_stepped_back_is_put_right_by_a_renewal_and_makes_nobody_sleep_longer() {
    const T: Duration = millis(1_500);
    const POLL: Duration = millis(300);
    undisturbed(|| async {
        let clock = StepClock::start();
        let server = &clock.server;
        let leases = connect(&server.url(), T).await;
        let rivals = LeaseManager::builder().ttl(T).poll_bound(POLL);
        let rivals = rivals.connect(&server.url()).await.expect("a manager");
        let lease = lock(&leases, "job").await;
        let left = || server.command(&["PTTL", "job"]).int();
        renewal(server, "job").await;
        clock.back(Duration::from_secs(3_600));
        let stepped = boottime();
        assert!(left() > 3_000_000, "the step makes it an hour longer");
        let waiting = wait_for(&rivals, "job");
        eventually(LONG, || left() <= 1_500).await;
        assert!(boottime() - stepped < told_by(T), "{:?}", boottime() - stepped);
        assert_eq!(lease.state(), LeaseState::Held);

        // Where nobody renews, it is an hour; a waiter looks at its poll bound all the same.
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
