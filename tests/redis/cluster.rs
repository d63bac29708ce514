//! A real cluster of three primaries and three replicas.

use super::refused_only;
use kit::{Cluster, Mode, Proxy, Resp, Server, Stub, eventually, look, permissions, within};
use leasehold::store::{Name, Store};
use leasehold::testing::Harness;
use leasehold::{ErrorKind, Lease, LeaseManager, LeaseState, Loss};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

/// One cluster for all tests that leave it as it was; their names differ.
static SHARED: LazyLock<Cluster> = LazyLock::new(|| {
    let cluster = Cluster::start();
    for node in &cluster.nodes[..3] {
        // An expired key stays in memory until a command asks for it: the harder case.
        node.command(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    }
    cluster
});

pub(super) async fn shared() -> &'static Cluster {
    // Starting takes seconds, in which the runtime must not stand still.
    tokio::task::spawn_blocking(|| LazyLock::force(&SHARED)).await.expect("a cluster")
}

async fn own() -> Cluster {
    tokio::task::spawn_blocking(Cluster::start).await.expect("a cluster")
}

async fn quick() -> Cluster {
    tokio::task::spawn_blocking(Cluster::start_quick).await.expect("a cluster")
}

mod redis {
    leasehold::conformance_suite!(
        #[tokio::test]
        super::Conformance(super::shared().await)
    );
}

struct Conformance(&'static Cluster);

/// Servers before Valkey 9 have no option for more. `tests/servers` runs this on Valkey 9.
#[tokio::test]
async fn database_of_a_cluster_is_refused_or_apart() {
    let cluster = shared().await;
    let in_database =
        |cluster: &Cluster, database: u8| cluster.url().replacen('?', &format!("/{database}?"), 1);
    let error = LeaseManager::connect(&in_database(cluster, 2)).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("database"), "{error}");
    let leases = LeaseManager::connect(&in_database(cluster, 0)).await.expect("the default");
    leases.close().await.expect("closed");
    if cluster.nodes[0].check_is("Valkey 9").is_err() {
        return;
    }
    let cluster = tokio::task::spawn_blocking(|| Cluster::start_with_databases(4)).await;
    let cluster = cluster.expect("a cluster");
    let connect = async |database: u8| {
        // So that only a message wakes a waiter in time.
        let leases = LeaseManager::builder().max_poll_interval(LONG * 3);
        leases.connect(&in_database(&cluster, database)).await.expect("a manager")
    };
    let [zero, two, other_two] = [connect(0).await, connect(2).await, connect(2).await];
    let lease = zero.lock("job").lock().await.expect("a lease");
    let mut second = two.lock("job");
    let second = within(LONG, second.lock()).await.expect("another database");
    assert!(other_two.lock("job").try_lock().await.expect("an answer").is_none());
    // A waiter is woken over the channels, which the databases share.
    let mut waiter = other_two.lock("job");
    let (third, unlocked) = tokio::join!(within(LONG, waiter.lock()), second.unlock());
    unlocked.expect("released");
    third.expect("woken").unlock().await.expect("released");
    lease.unlock().await.expect("released");
    for leases in [zero, two, other_two] {
        leases.close().await.expect("closed");
    }
}

#[async_trait::async_trait]
impl Harness for Conformance {
    async fn store(&self) -> Arc<dyn Store> {
        let store = leasehold::testing::redis_store(&self.0.url(), Duration::from_secs(30)).await;
        store.expect("the cluster is there")
    }

    async fn lose(&self, name: &Name) {
        let deleted = self.0.command(name.as_str(), &["DEL", name.as_str()]);
        assert_eq!(deleted.int(), 1);
    }

    async fn occupy(&self, name: &Name) -> bool {
        let reply = self.0.command(name.as_str(), &["SET", name.as_str(), "7"]);
        assert_eq!(reply.text(), "OK");
        true
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }
}

#[tokio::test]
async fn all_keys_of_a_name_are_in_one_slot_with_braces_and_without() {
    let cluster = shared().await;
    let leases = LeaseManager::connect(&cluster.url()).await.expect("a manager");
    for name in ["orders:42", "{tenant}orders", "x{tenant}y", "a{b}{c}", "naïve ☕"] {
        let lease = leases.lock(name).lock().await.expect("a lease");
        assert!(lease.fence().is_some());
        let [fence, channel] = ["redisson_lock_token:", "redisson_lock__channel:"].map(|kind| {
            if name.contains('{') { format!("{kind}{name}") } else { format!("{kind}{{{name}}}") }
        });
        let keys = [name.to_owned(), fence.clone(), channel];
        let slots = keys.map(|key| cluster.slot(&key));
        assert_eq!(slots, [slots[0]; 3], "{name}");
        let node = cluster.node_of(name);
        assert_eq!(node.command(&["EXISTS", name, &fence]).int(), 2, "{name}");
        lease.unlock().await.expect("released");
    }
    leases.close().await.expect("closed");
}

#[tokio::test]
async fn server_that_is_in_no_cluster_says_so() {
    let server = kit::Server::start();
    let url = server.url().replace("redis://", "redis-cluster://");
    let error = LeaseManager::connect(&url).await.expect_err("no cluster");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    assert!(error.to_string().contains("not part of a cluster"), "{error}");
}

async fn connect(cluster: &Cluster, ttl: Duration) -> LeaseManager {
    LeaseManager::builder().ttl(ttl).connect(&cluster.url()).await.expect("a manager")
}

async fn lock(leases: &LeaseManager, name: &str) -> Lease {
    within(LONG, leases.lock(name).lock()).await.expect("a lease")
}

#[tokio::test]
async fn calls_that_wait_are_sent_together_only_if_they_share_a_slot() {
    let cluster = own().await;
    let leases = connect(&cluster, Duration::from_secs(30)).await;
    let all_at_once = async |names: Vec<String>| {
        let mut tasks = tokio::task::JoinSet::new();
        for name in names {
            let mut handle = leases.lock(&name);
            tasks.spawn(async move { handle.lock().await.expect("a lease") });
        }
        for lease in within(LONG, tasks.join_all()).await {
            lease.unlock().await.expect("released");
        }
    };
    let calls = || {
        let count = |node: &kit::Server| look::calls(&mut node.connection(), "evalsha");
        cluster.nodes.iter().map(count).sum::<i64>()
    };
    all_at_once((0..200).map(|number| format!("apart-{number}")).collect()).await;
    let before = calls();
    all_at_once((0..200).map(|number| format!("{{together}}{number}")).collect()).await;
    // 200 releases, one after the other, and few calls for the grants.
    assert!(calls() - before < 300, "{} calls", calls() - before);
    leases.close().await.expect("closed");
}

#[tokio::test]
async fn lease_follows_its_slot() {
    let cluster = shared().await;
    let leases = connect(cluster, Duration::from_secs(12)).await;
    let name = cluster.name_on(0, "moving");
    let mut handle = leases.lock(&name);
    let lease = handle.lock().await.expect("a lease");
    let slot = cluster.slot(&name);
    cluster.begin_move(slot, 0, 1);
    cluster.end_move(slot, 0, 1);
    let inner = handle.lock().await.expect("entered again");
    eventually(LONG, || cluster.nodes[1].command(&["HVALS", &name]).list()[0].int() == 2).await;
    inner.unlock().await.expect("left");
    // The count was sent on, and went: it did not knock at the old door until somebody told the news.
    let errors = cluster.nodes[0].command(&["INFO", "errorstats"]).text();
    let moved = errors.lines().find_map(|line| line.strip_prefix("errorstat_MOVED:count="));
    let moved: u32 = moved.expect("sent on").trim().parse().expect("a number");
    assert!(moved < 50, "{moved}");
    // The time to live rises only by a renewal, which finds the slot's new place.
    let mut last = i64::MAX;
    eventually(LONG, || {
        let left = cluster.nodes[1].command(&["PTTL", &name]).int();
        std::mem::replace(&mut last, left) < left
    })
    .await;
    assert_eq!(lease.state(), LeaseState::Held);
    lease.unlock().await.expect("released");
    assert_eq!(cluster.nodes[1].command(&["EXISTS", &name]).int(), 0);
    let next = lock(&leases, &name).await;
    assert_eq!(cluster.nodes[1].command(&["EXISTS", &name]).int(), 1);
    next.unlock().await.expect("released");
    leases.close().await.expect("closed");
}

#[tokio::test]
async fn slot_on_its_way_is_served_by_both_nodes() {
    let cluster = shared().await;
    let leases = connect(cluster, Duration::from_secs(30)).await;
    let tag = cluster.name_on(0, "asked");
    let (old, new) = (format!("{{{tag}}}old"), format!("{{{tag}}}new"));
    let (slot, fence) = (cluster.slot(&old), format!("redisson_lock_token:{old}"));
    let held = lock(&leases, &old).await;
    cluster.begin_move(slot, 0, 1);

    // A name that is not there yet: the old node sends us on with ASK.
    let plain = LeaseManager::builder().fencing(false).connect(&cluster.url()).await;
    let plain = plain.expect("a manager");
    let lease = lock(&plain, &new).await;
    let mut target = cluster.nodes[1].connection();
    target.command(&["ASKING"]);
    assert_eq!(target.command(&["EXISTS", &new]).int(), 1);
    lease.unlock().await.expect("released");
    plain.close().await.expect("closed");

    // Lock and fencing token are on two nodes for a while: TRYAGAIN.
    cluster.move_key(&old, 0, 1);
    let contender = {
        let (leases, old) = (connect(cluster, Duration::from_secs(30)).await, old.clone());
        tokio::spawn(async move { leases.lock(&old).try_lock().await })
    };
    let mut asked = cluster.nodes[0].connection();
    eventually(LONG, || {
        let errors = asked.command(&["INFO", "errorstats"]).text();
        errors.contains("errorstat_TRYAGAIN")
    })
    .await;
    cluster.move_key(&fence, 0, 1);
    let refused = within(LONG, contender).await.expect("no panic").expect("an answer");
    assert!(refused.is_none(), "two holders");
    // With a fencing token there are two keys, and a server takes no call on two that it lacks: this waits
    // for the end of the move.
    let mut waiter = tokio::spawn({
        let mut handle = leases.lock(&new);
        async move { handle.lock().await }
    });
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut waiter).await.is_err());
    cluster.end_move(slot, 0, 1);
    let lease = within(LONG, waiter).await.expect("no panic").expect("a lease");
    lease.unlock().await.expect("released");
    assert_eq!(held.state(), LeaseState::Held);
    held.unlock().await.expect("released");
    leases.close().await.expect("closed");
}

/// A resharding that takes its time, or broke off: of the leases of one tag some are here, some there.
#[tokio::test]
async fn slot_that_stays_half_moved_costs_no_lease_and_no_unlock() {
    const T: Duration = Duration::from_secs(3);
    let cluster = shared().await;
    let builder = LeaseManager::builder().ttl(T);
    let plain = builder.clone().fencing(false).connect(&cluster.url()).await.expect("a manager");
    // The memory of the token is prolonged with every second renewal.
    let fenced = builder.fence_retention(Some(T * 2)).connect(&cluster.url()).await;
    let fenced = fenced.expect("a manager");
    let tag = cluster.name_on(0, "half");
    let slot = cluster.slot(&tag);
    let mut leases = Vec::new();
    for i in 0..8 {
        leases.push(lock(&plain, &format!("{{{tag}}}:{i}")).await);
    }
    leases.push(lock(&fenced, &format!("{{{tag}}}:fenced")).await);
    cluster.begin_move(slot, 0, 1);
    for lease in &leases[5..] {
        cluster.move_key(lease.name(), 0, 1);
    }
    tokio::time::sleep(T + T / 2).await;
    for lease in &leases {
        assert_eq!(lease.state(), LeaseState::Held, "{}", lease.name());
    }
    // A fenced acquire of a free name has to wait for the end of the move, but nobody waits for it.
    let mut free = fenced.lock(format!("{{{tag}}}:free"));
    let waiter = tokio::spawn(async move { free.lock().await });
    let mut unlocks = tokio::task::JoinSet::new();
    for lease in leases {
        unlocks.spawn(lease.unlock());
    }
    for result in within(LONG, unlocks.join_all()).await {
        result.expect("released");
    }
    assert!(!waiter.is_finished());
    cluster.end_move(slot, 0, 1);
    let lease = within(LONG, waiter).await.expect("no panic").expect("a lease");
    lease.unlock().await.expect("released");
}

#[tokio::test]
async fn leader_in_a_slot_that_is_being_moved_keeps_its_value() {
    let cluster = shared().await;
    let leases = LeaseManager::connect(&cluster.url()).await.expect("a manager");
    let name = cluster.name_on(0, "leader");
    let slot = cluster.slot(&name);
    let mut candidate = leases.election(&name).candidate("a").label("l");
    let me = candidate.campaign().await.expect("it leads");
    cluster.begin_move(slot, 0, 1);
    // Its keys are still here, and none of them can be made anew.
    me.proclaim("b").await.expect("written");
    let recorded = async || {
        let holder = leases.inspect(&name).await.expect("an answer").expect("held");
        holder.metadata.expect("told")
    };
    let during = recorded().await;
    assert_eq!((during.value.as_deref(), during.fence), (Some("b"), me.term()));
    // Now one of them is elsewhere, which is for later, and no loss.
    cluster.move_key(&name, 0, 1);
    let refused = me.proclaim("c").await.expect_err("half moved");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    cluster.end_move(slot, 0, 1);
    assert_eq!(recorded().await.value.as_deref(), Some("b"));
    me.proclaim("d").await.expect("written");
    me.resign().await.expect("released");
}

/// The node refuses what is in that slot, and serves the others.
#[tokio::test]
async fn slot_that_nobody_serves_costs_no_lease_of_another_slot() {
    const T: Duration = Duration::from_secs(3);
    let cluster = own().await;
    let leases = connect(&cluster, T).await;
    let (bad, good) = (cluster.name_on(0, "bad"), cluster.name_on(0, "good"));
    assert_ne!(cluster.slot(&bad), cluster.slot(&good));
    let lease = lock(&leases, &good).await;
    for node in &cluster.nodes {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    // The others go on telling that it is this one's.
    cluster.nodes[0].command(&["CLUSTER", "DELSLOTS", &cluster.slot(&bad).to_string()]);
    let mut asking = tokio::task::JoinSet::new();
    for asker in 0..3 {
        let mut lock = leases.lock(format!("{{{bad}}}:{asker}"));
        asking.spawn(async move {
            loop {
                let refused = lock.try_lock().await.expect_err("nobody serves it");
                assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
    tokio::time::sleep(T * 3).await;
    assert_eq!(asking.len(), 3);
    assert!(asking.try_join_next().is_none(), "they go on asking");
    lease.check().expect("its slot is served");
    asking.abort_all();
    lease.unlock().await.expect("released");
}

#[tokio::test]
async fn resharding_under_load_loses_nothing() {
    let cluster = own().await;
    let before = clients(&cluster);
    let managers = [
        connect(&cluster, Duration::from_secs(10)).await,
        connect(&cluster, Duration::from_secs(10)).await,
    ];
    let tag = cluster.name_on(0, "load");
    let slot = cluster.slot(&tag);
    let names: Vec<String> = (0..4).map(|number| format!("{{{tag}}}{number}")).collect();
    let counters: Vec<Arc<Counter>> = names.iter().map(|_| Arc::default()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = tokio::task::JoinSet::new();
    for leases in &managers {
        for (name, counter) in names.iter().zip(&counters) {
            for _ in 0..2 {
                let (mut handle, counter) = (leases.lock(name), Arc::clone(counter));
                let stop = Arc::clone(&stop);
                workers.spawn(async move {
                    let mut turns = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        let lease = handle.lock().await.expect("a lease");
                        counter.turn(lease.fence().expect("a fence")).await;
                        lease.unlock().await.expect("not lost");
                        turns += 1;
                    }
                    turns
                });
            }
        }
    }
    let moved = tokio::task::spawn_blocking(move || {
        let mut moves = 0;
        for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 2), (2, 1), (1, 0)] {
            cluster.begin_move(slot, from, to);
            // Some time with its keys on both sides, then the rest.
            for name in &names[..2] {
                for key in [name.clone(), format!("redisson_lock_token:{name}")] {
                    cluster.move_key(&key, from, to);
                }
            }
            std::thread::sleep(Duration::from_millis(150));
            cluster.end_move(slot, from, to);
            std::thread::sleep(Duration::from_millis(150));
            moves += 1;
        }
        (moves, cluster)
    });
    let (moves, cluster) = within(LONG * 2, moved).await.expect("the slot moves");
    stop.store(true, Ordering::Relaxed);
    let mut turns = 0;
    while let Some(worker) = within(LONG, workers.join_next()).await {
        turns += worker.expect("no panic");
    }
    let counted: u64 = counters.iter().map(|counter| counter.count.load(Ordering::SeqCst)).sum();
    assert_eq!(counted, turns, "an update was lost");
    assert!(moves == 6 && turns > 100, "{turns} turns");
    for leases in managers {
        leases.close().await.expect("closed");
    }
    eventually(LONG, || clients(&cluster) <= before).await;
}

/// A node that has no slot yet is in no map: calls are sent there for the slot that it is about to get.
#[tokio::test]
async fn node_about_to_get_its_first_slot_keeps_its_connections() {
    let mut cluster = own().await;
    let adding = tokio::task::spawn_blocking(move || (cluster.add_node(), cluster));
    let (new, cluster) = adding.await.expect("a node");
    let leases = LeaseManager::builder().fencing(false).connect(&cluster.url()).await;
    let leases = leases.expect("a manager");
    let [asked, moved] = [0, 1].map(|node| cluster.name_on(node, "asked"));
    let (slot, other) = (cluster.slot(&asked), cluster.slot(&moved));
    let turns = Arc::new(AtomicU64::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let (leases, asked, turns) = (leases.clone(), asked.clone(), Arc::clone(&turns));
        workers.spawn(async move {
            loop {
                let turn = turns.fetch_add(1, Ordering::Relaxed);
                let lease = leases.lock(format!("{{{asked}}}:{worker}:{turn}")).try_lock().await;
                lease.expect("an answer").expect("free").unlock().await.expect("released");
            }
        });
    }
    // The connections to the new node whose last command begins so, by their ids.
    let mut connection = cluster.nodes[new].connection();
    let mut callers = |command: &str| -> Vec<String> {
        let list = connection.command(&["CLIENT", "LIST"]).text();
        let callers = list.lines().filter(|line| line.contains(&format!(" cmd={command}")));
        callers.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    cluster.begin_move(slot, 0, new);
    eventually(LONG, || !callers("eval").is_empty()).await;
    let before = callers("eval");
    for (from, to) in [(1, 2), (2, 1), (1, 2)] {
        cluster.begin_move(other, from, to);
        cluster.end_move(other, from, to);
        // Has the map changed.
        leases.inspect(&moved).await.expect("an answer");
        let seen = turns.load(Ordering::Relaxed);
        eventually(LONG, || turns.load(Ordering::Relaxed) > seen + 100).await;
        let after = callers("");
        assert!(before.iter().all(|caller| after.contains(caller)), "{before:?} {after:?}");
    }
    // Not all servers know the new owner at once.
    cluster.end_move(slot, 0, new);
    let seen = turns.load(Ordering::Relaxed);
    eventually(LONG, || turns.load(Ordering::Relaxed) > seen + 1000).await;
    let after = callers("");
    assert!(before.iter().all(|caller| after.contains(caller)), "{before:?} {after:?}");
    assert!(workers.try_join_next().is_none(), "a call has failed");
}

/// How many connections the nodes have, besides those among themselves.
fn clients(cluster: &Cluster) -> usize {
    let count = |node: &kit::Server| {
        ["normal", "pubsub"]
            .map(|kind| node.command(&["CLIENT", "LIST", "TYPE", kind]).text().lines().count())
            .iter()
            .sum::<usize>()
    };
    cluster.nodes.iter().map(count).sum()
}

/// Counts without an atomic step, and sees that fencing tokens grow.
#[derive(Default)]
struct Counter {
    count: AtomicU64,
    fence: AtomicU64,
}

impl Counter {
    async fn turn(&self, fence: u64) {
        let before = self.fence.swap(fence, Ordering::SeqCst);
        assert!(before < fence, "{before} before {fence}");
        let count = self.count.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.count.store(count + 1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn wake_ups_follow_their_slot() {
    follow_their_slot(true).await;
}

/// Here, too, a release is heard by all, but its listeners are counted where the slot is.
#[tokio::test]
async fn wake_ups_by_plain_pub_sub_follow_their_slot() {
    follow_their_slot(false).await;
}

async fn follow_their_slot(sharded: bool) {
    let cluster = shared().await;
    let patient = || {
        let builder = LeaseManager::builder().ttl(Duration::from_secs(60));
        builder.max_poll_interval(Duration::from_secs(60)).sharded_pubsub(sharded)
    };
    let holder = patient().connect(&cluster.url()).await.expect("a manager");
    let waiting = patient().connect(&cluster.url()).await.expect("a manager");
    let name = cluster.name_on(2, if sharded { "woken" } else { "plainly-woken" });
    let question = if sharded { "SHARDNUMSUB" } else { "NUMSUB" };
    let (slot, channel) = (cluster.slot(&name), look::channel(&name));
    let lease = lock(&holder, &name).await;
    let mut waiter = tokio::spawn({
        let mut handle = waiting.lock(&name);
        async move { handle.lock().await.map(|lease| (lease, Instant::now())) }
    });
    let listeners =
        |node: usize| cluster.nodes[node].command(&["PUBSUB", question, &channel]).list()[1].int();
    eventually(LONG, || listeners(2) == 1).await;
    cluster.begin_move(slot, 2, 1);
    cluster.end_move(slot, 2, 1);
    eventually(LONG, || (listeners(1), listeners(2)) == (1, 0)).await;
    // Moves of other slots at the same time may have these two disagree for a while.
    eventually(LONG, || cluster.is_agreed(slot, 1)).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiter).await.is_err());
    let released = Instant::now();
    lease.unlock().await.expect("released");
    let (lease, granted) = within(LONG, waiter).await.expect("no panic").expect("a lease");
    // By the clock alone it would take the rest of a minute.
    assert!(granted - released < Duration::from_secs(10), "{:?}", granted - released);
    lease.unlock().await.expect("released");
    holder.close().await.expect("closed");
    waiting.close().await.expect("closed");
}

/// The server has dropped the subscriptions, and the map is as before.
#[tokio::test]
async fn wake_ups_come_again_when_a_slot_leaves_and_returns() {
    let cluster = shared().await;
    let (leases, waiting) = (
        connect(cluster, Duration::from_secs(6)).await,
        connect(cluster, Duration::from_secs(6)).await,
    );
    let name = cluster.name_on(2, "returned");
    let (slot, channel) = (cluster.slot(&name), look::channel(&name));
    let lease = lock(&leases, &name).await;
    let waiter = tokio::spawn({
        let mut handle = waiting.lock(&name);
        async move { handle.lock().await }
    });
    let listeners =
        || cluster.nodes[2].command(&["PUBSUB", "SHARDNUMSUB", &channel]).list()[1].int();
    eventually(LONG, || listeners() == 1).await;
    cluster.begin_move(slot, 2, 1);
    cluster.end_move(slot, 2, 1);
    cluster.begin_move(slot, 1, 2);
    cluster.end_move(slot, 1, 2);
    eventually(LONG, || listeners() == 1).await;
    lease.unlock().await.expect("released");
    within(LONG, waiter).await.expect("no panic").expect("a lease").unlock().await.expect("held");
    leases.close().await.expect("closed");
    waiting.close().await.expect("closed");
}

/// For a moment the new owner takes no connection.
#[tokio::test]
async fn wake_ups_come_again_when_the_new_owner_takes_connections() {
    let cluster = own().await;
    let waiting = connect(&cluster, Duration::from_secs(6)).await;
    let name = cluster.name_on(2, "crowded");
    let channel = look::channel(&name);
    let mut old = cluster.nodes[2].connection();
    old.command(&["HSET", &name, "other:1", "1"]);
    old.command(&["PEXPIRE", &name, "60000"]);
    let waiter = tokio::spawn({
        let mut handle = waiting.lock(&name);
        async move { handle.lock().await }
    });
    let listens =
        |node: &mut Resp| node.command(&["PUBSUB", "SHARDNUMSUB", &channel]).list()[1].int() == 1;
    eventually(LONG, || listens(&mut old)).await;
    // The manager has a connection for its inbox somewhere.
    let inboxes = |node: usize| {
        let words = ["PUBSUB", "SHARDCHANNELS", "leasehold_inbox:*"];
        cluster.nodes[node].command(&words).list().len()
    };
    eventually(LONG, || (0..3).any(|node| inboxes(node) == 1)).await;
    let owner = usize::from(inboxes(0) == 1);
    let (target, slot) = (cluster.id(owner), cluster.slot(&name));
    cluster.begin_move(slot, 2, owner);
    cluster.move_key(&name, 2, owner);
    let mut new = cluster.nodes[owner].connection();
    let before = new.command(&["CONFIG", "GET", "maxclients"]).list().remove(1).text();
    new.command(&["CONFIG", "SET", "maxclients", "1"]);
    for node in [&mut new, &mut old] {
        let words = ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &target];
        assert_eq!(node.command(&words).text(), "OK");
    }
    let refuses = |node: &mut Resp| {
        !node.command(&["INFO", "stats"]).text().contains("rejected_connections:0")
    };
    eventually(LONG, || refuses(&mut new)).await;
    assert!(!listens(&mut new));
    new.command(&["CONFIG", "SET", "maxclients", &before]);
    eventually(LONG, || listens(&mut new)).await;
    new.command(&["DEL", &name]);
    new.command(&["SPUBLISH", &channel, "0"]);
    within(LONG, waiter).await.expect("no panic").expect("a lease").unlock().await.expect("held");
    waiting.close().await.expect("closed");
}

#[tokio::test]
async fn subscription_nobody_needs_does_not_follow_its_slot() {
    let cluster = shared().await;
    let (holder, waiting) = (
        connect(cluster, Duration::from_secs(60)).await,
        connect(cluster, Duration::from_secs(60)).await,
    );
    let name = cluster.name_on(1, "unheard");
    let (slot, channel) = (cluster.slot(&name), look::channel(&name));
    let lease = lock(&holder, &name).await;
    let waiter = tokio::spawn({
        let mut handle = waiting.lock(&name);
        async move { handle.lock().await }
    });
    let listeners = |node: usize| {
        cluster.nodes[node].command(&["PUBSUB", "SHARDNUMSUB", &channel]).list()[1].int()
    };
    eventually(LONG, || listeners(1) == 1).await;
    // A subscription is kept for a second longer than its waiter, in which it moves.
    waiter.abort();
    let _ = waiter.await;
    cluster.begin_move(slot, 1, 2);
    cluster.end_move(slot, 1, 2);
    // It hears of the move.
    assert!(waiting.inspect(&name).await.expect("an answer").is_some());
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!((listeners(1), listeners(2)), (0, 0));
    lease.unlock().await.expect("released");
    cluster.begin_move(slot, 2, 1);
    cluster.end_move(slot, 2, 1);
    holder.close().await.expect("closed");
    waiting.close().await.expect("closed");
}

/// Two of three nodes name another owner, as they may for a while when slots and primaries change.
#[tokio::test]
async fn subscription_is_given_up_though_the_slot_only_seems_moved() {
    let cluster = Arc::new(own().await);
    let (holder, waiting) = (
        connect(&cluster, Duration::from_secs(60)).await,
        connect(&cluster, Duration::from_secs(3)).await,
    );
    let name = cluster.name_on(2, "still-here");
    let (slot, channel) = (cluster.slot(&name).to_string(), look::channel(&name));
    let lease = lock(&holder, &name).await;
    let waiter = tokio::spawn({
        let mut handle = waiting.lock(&name);
        async move { handle.lock().await }
    });
    let listeners = |node: usize| {
        cluster.nodes[node].command(&["PUBSUB", "SHARDNUMSUB", &channel]).list()[1].int()
    };
    eventually(LONG, || listeners(2) == 1).await;
    let (other, port) = (cluster.id(1), format!(":{}", cluster.nodes[1].port()));
    let say = || {
        for (at, node) in cluster.nodes[..2].iter().enumerate() {
            let reply = node.command(&["EXISTS", &name]);
            // To say it again would end the subscriptions there.
            if reply.error().map_or(at != 1, |error| !error.ends_with(&port)) {
                let words = ["CLUSTER", "SETSLOT", &slot, "NODE", &other];
                assert_eq!(node.command(&words).text(), "OK");
            }
        }
        // There, too, somebody has the name.
        cluster.nodes[1].command(&["HSET", &name, "somebody:1", "1"]);
        cluster.nodes[1].command(&["EXPIRE", &name, "60"]);
    };
    // The owner itself puts it right, so it is said again and again.
    eventually(LONG, || {
        say();
        listeners(1) == 1
    })
    .await;
    // A subscription outlives its use by a second.
    eventually(LONG, || {
        say();
        listeners(2) == 0
    })
    .await;
    waiter.abort();
    drop(lease);
}

/// A node refuses to give up a subscription that has gone with its slot, and the client library takes no refusal of that
/// for a reply to it.
#[tokio::test]
async fn refused_unsubscribe_answers_no_subscription_of_another_name() {
    let cluster = own().await;
    let moving = cluster.name_on(2, "moving");
    let slot = cluster.slot(&moving);
    let others: Vec<String> = (0..30)
        .map(|number| cluster.name_on(2, &format!("other-{number}-")))
        .filter(|name| cluster.slot(name) != slot)
        .collect();
    // On the way to this node, all takes its time.
    let proxy = Proxy::start(cluster.nodes[2].port());
    let port = proxy.port().to_string();
    let config = ["CONFIG", "SET", "cluster-announce-port", &port];
    assert_eq!(cluster.nodes[2].command(&config).text(), "OK");
    let announced = |node: &Server| {
        let slots = format!("{:?}", node.command(&["CLUSTER", "SLOTS"]));
        slots.contains(&format!("Int({port})"))
    };
    // It tells the others in a ping, which each of them gets once in half of this time.
    let timeout = |millis: &str| {
        let config = ["CONFIG", "SET", "cluster-node-timeout", millis];
        assert_eq!(cluster.nodes[2].command(&config).text(), "OK");
    };
    timeout("2000");
    eventually(LONG, || cluster.nodes.iter().all(announced)).await;
    timeout("60000");
    let patient = || {
        // A waiter without a subscription tries again after a quarter of it.
        let builder = LeaseManager::builder().ttl(Duration::from_secs(600));
        builder.max_poll_interval(Duration::from_secs(60))
    };
    let holder = patient().connect(&cluster.url()).await.expect("a manager");
    let waiting = patient().connect(&cluster.url()).await.expect("a manager");
    let wait = |name: &str| {
        let mut handle = waiting.lock(name);
        tokio::spawn(async move { handle.lock().await })
    };
    let mut connections = [1, 2].map(|node: usize| cluster.nodes[node].connection());
    let mut listeners = |node: usize, name: &str| {
        let words = ["PUBSUB", "SHARDNUMSUB", &look::channel(name)];
        connections[node - 1].command(&words).list()[1].int()
    };
    let refused = || {
        let info = cluster.nodes[2].command(&["INFO", "commandstats"]).text();
        let stats = info.lines().find(|line| line.starts_with("cmdstat_sunsubscribe:"));
        stats.is_some_and(|stats| !stats.contains("rejected_calls=0"))
    };

    let mut leases = Vec::new();
    for name in &others {
        leases.push(lock(&holder, name).await);
    }
    let moved = lock(&holder, &moving).await;
    let waiter = wait(&moving);
    eventually(LONG, || listeners(2, &moving) == 1).await;
    cluster.begin_move(slot, 2, 1);
    cluster.end_move(slot, 2, 1);
    // It hears of the move.
    assert!(waiting.inspect(&moving).await.expect("an answer").is_some());
    eventually(LONG, || listeners(1, &moving) == 1).await;
    // A second later it gives up the subscription at the old node, where others are on their way one after another.
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    let waiters: Vec<_> = others.iter().map(|name| wait(name)).collect();
    eventually(LONG, || others.iter().all(|name| listeners(2, name) == 1)).await;
    eventually(LONG, refused).await;
    proxy.set(Mode::Pass);
    for lease in leases {
        lease.unlock().await.expect("released");
    }
    for waiter in waiters {
        drop(within(LONG, waiter).await.expect("no panic").expect("a lease"));
    }
    waiter.abort();
    drop(moved);
}

#[tokio::test]
async fn node_that_is_down_delays_nobody_elses_renewals() {
    let cluster = own().await;
    let ttl = Duration::from_secs(12);
    let leases = connect(&cluster, ttl).await;
    let mut there = Vec::new();
    for number in 0..20 {
        for node in [0, 1] {
            there.push(lock(&leases, &cluster.name_on(node, &format!("up-{number}"))).await);
        }
    }
    let down = lock(&leases, &cluster.name_on(2, "down")).await;
    // Its replica too, so no server takes over.
    cluster.nodes[5].pause();
    cluster.nodes[2].pause();
    // The least that anybody had left, and for how long this test itself stood still.
    let (mut least, mut stalled) = (ttl, Duration::ZERO);
    let lost = within(LONG, down.lost());
    tokio::pin!(lost);
    let loss = loop {
        let looked = Instant::now();
        tokio::select! {
            loss = &mut lost => break loss,
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
        }
        stalled = stalled.max(looked.elapsed());
        least = there.iter().map(Lease::remaining).min().expect("leases").min(least);
    };
    assert_eq!(loss, Loss::Expired);
    let error = leases.lock(down.name()).try_lock().await.expect_err("nobody there");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost), "{error:?}");
    // Renewed after a third of their time, and told at once: with the silent node in the same calls they
    // would hear of it an attempt (T/10) later.
    let usual = ttl * 9 / 10 - ttl / 100 - ttl / 3;
    assert!(least + stalled + ttl / 20 > usual, "{least:?} of {usual:?}, stalled {stalled:?}");
    for lease in &there {
        assert_eq!(lease.state(), LeaseState::Held, "{}", lease.name());
    }
    for lease in there {
        lease.unlock().await.expect("not lost");
    }
    // Who comes now finds the others. The server that its rights are tried out with is chosen at random.
    cluster.nodes[2].kill();
    cluster.nodes[5].kill();
    for _ in 0..8 {
        let leases = connect(&cluster, ttl).await;
        lock(&leases, &cluster.name_on(1, "late")).await.unlock().await.expect("released");
    }
}

#[tokio::test]
async fn cluster_that_is_down_for_a_moment_costs_no_lease() {
    let cluster = quick().await;
    let leases = connect(&cluster, Duration::from_secs(20)).await;
    let name = cluster.name_on(0, "blip");
    let lease = lock(&leases, &name).await;
    cluster.nodes[5].kill();
    cluster.nodes[2].kill();
    for node in [0, 1] {
        cluster.nodes[node].command(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    }
    let mut asked = cluster.nodes[0].connection();
    let errors = |asked: &mut kit::Resp| asked.command(&["INFO", "errorstats"]).text();
    eventually(LONG, || {
        let info = asked.command(&["CLUSTER", "INFO"]).text();
        info.contains("cluster_state:fail")
    })
    .await;
    let waiter = tokio::spawn({
        let mut handle = leases.lock(cluster.name_on(1, "after"));
        async move { handle.lock().await }
    });
    eventually(LONG, || errors(&mut asked).contains("errorstat_CLUSTERDOWN")).await;
    for node in [0, 1] {
        cluster.nodes[node].command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    within(LONG, waiter).await.expect("no panic").expect("a lease").unlock().await.expect("ours");
    assert!(lease.check().is_ok());
    lease.unlock().await.expect("not lost");
}

#[tokio::test]
async fn killed_primary_costs_no_lease_that_its_replica_has() {
    let cluster = quick().await;
    let leases = connect(&cluster, Duration::from_secs(120)).await;
    let name = cluster.name_on(0, "killed");
    let lease = lock(&leases, &name).await;
    eventually(LONG, || {
        let replica = cluster.nodes[3].command(&["HLEN", &name]);
        replica.error().is_some_and(|error| error.starts_with("MOVED")) && {
            let mut connection = cluster.nodes[3].connection();
            connection.command(&["READONLY"]);
            connection.command(&["EXISTS", &name]).int() == 1
        }
    })
    .await;
    let fence = lease.fence();
    let waiter = tokio::spawn({
        let mut handle = connect(&cluster, Duration::from_secs(120)).await.lock(&name);
        async move { handle.lock().await }
    });
    cluster.nodes[0].kill();
    // Verified at once by the new primary, not at the next renewal.
    eventually(LONG, || {
        let promoted = cluster.nodes[3].command(&["PTTL", &name]);
        matches!(promoted, kit::Reply::Int(left) if left > 119_000)
    })
    .await;
    assert!(lease.check().is_ok());
    lease.unlock().await.expect("not lost");
    let next = within(LONG, waiter).await.expect("no panic").expect("a lease");
    assert!(next.fence() > fence);
    next.unlock().await.expect("released");
}

/// The permissions that the guide lists, and no others; those for plain pub/sub only where that is used.
#[tokio::test]
async fn permissions_of_the_guide_are_enough_for_a_cluster() {
    let cluster = own().await;
    let (one, more) = (permissions::of_one_server(), permissions::of_a_cluster());
    let (plain, sharded) =
        (permissions::of_plain_pubsub(), ["+spublish", "+ssubscribe", "+sunsubscribe"]);
    let all = [one, more].concat();
    for (user, without) in [("plain", &sharded[..]), ("sharded", &plain)] {
        let permissions = all.iter().filter(|word| !without.contains(word));
        let mut words = vec!["ACL", "SETUSER", user, "on", ">secret"];
        words.extend(permissions);
        assert_eq!(words.len(), 5 + all.len() - 3, "{words:?}");
        for node in &cluster.nodes {
            assert_eq!(node.command(&words).error(), None, "{words:?}");
        }
    }
    let key = cluster.name_on(0, "app:job");
    let (name, channel) = (key.strip_prefix("app:").expect("the prefix"), look::channel(&key));
    let slot = cluster.slot(&key);
    for (user, numbers) in [("plain", "NUMSUB"), ("sharded", "SHARDNUMSUB")] {
        let url = cluster.url().replace("//127", &format!("//{user}:secret@127"));
        let builder = || {
            let builder = LeaseManager::builder().prefix("app:").ttl(Duration::from_secs(120));
            builder.sharded_pubsub(user == "sharded")
        };
        let leases = builder().connect(&url).await.expect("a manager");
        let contenders = builder().connect(&url).await.expect("a manager");
        let lease = lock(&leases, name).await;
        let waiter = tokio::spawn({
            let mut handle = contenders.lock(name);
            async move { handle.lock().await }
        });
        let heard = || {
            let on = |node: &Server| node.command(&["PUBSUB", numbers, &channel]).list()[1].int();
            cluster.nodes.iter().map(on).sum::<i64>()
        };
        eventually(LONG, || heard() == 1).await;
        lease.unlock().await.expect("released");
        let lease = within(LONG, waiter).await.expect("no panic").expect("a lease");
        assert!(contenders.inspect(name).await.expect("an answer").is_some());
        assert!(leases.force_unlock(name, "test").await.expect("done"));
        drop(lease);
        // With a fencing token it would have to wait for the end of the move.
        let unfenced = builder().fencing(false).connect(&url).await.expect("a manager");
        cluster.begin_move(slot, 0, 1);
        lock(&unfenced, name).await.unlock().await.expect("released by ASK");
        cluster.end_move(slot, 0, 1);
        lock(&leases, name).await.unlock().await.expect("released after MOVED");
        for manager in [leases, contenders, unfenced] {
            manager.close().await.expect("nothing to release");
        }
        cluster.begin_move(slot, 1, 0);
        cluster.end_move(slot, 1, 0);
    }
    // What was refused is what the client asks for and goes on without.
    for node in &cluster.nodes {
        // `inspect` leaves out what it may not read.
        refused_only(node, &["leasehold_meta:", "pubsub|shardnumsub"]);
        node.command(&["ACL", "SETUSER", "sharded", "-cluster|slots"]);
    }
    let url = cluster.url().replace("//127", "//sharded:secret@127");
    let error = LeaseManager::builder().prefix("app:").connect(&url).await;
    assert_eq!(error.expect_err("no right to ask").kind(), ErrorKind::Denied);
}

/// A primary that is cut off from its cluster, but not from us, goes on telling the old map, and refuses calls once it
/// has noticed. Here it answers sooner than the others.
#[tokio::test]
async fn map_of_a_primary_that_was_replaced_does_not_count() {
    let [old, new] = [(); 2].map(|()| Server::start());
    let failed_over = Arc::new(AtomicBool::new(false));
    // A server of most slots, and two of one slot each, whose ports are known only when they are there.
    let ports: Arc<std::sync::OnceLock<[u16; 3]>> = Arc::default();
    let map = |ports: &[u16; 3]| {
        let range = |(first, last, port): (u16, u16, u16)| {
            format!("*3\r\n:{first}\r\n:{last}\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n")
        };
        let [a, b, c] = *ports;
        let ranges = [(0, 16_381, a), (16_382, 16_382, b), (16_383, 16_383, c)].map(range);
        format!("*3\r\n{}", ranges.concat())
    };
    let cut_off = Stub::start(Some(old.port()), {
        let (failed_over, ports) = (Arc::clone(&failed_over), Arc::clone(&ports));
        move |words| match &*words[0] {
            "CLUSTER" => ports.get().map(map),
            "EVALSHA" | "EVAL" if failed_over.load(Ordering::Acquire) => {
                Some("-CLUSTERDOWN The cluster is down\r\n".to_owned())
            }
            _ => None,
        }
    });
    // More than a quarter of an attempt.
    let delay = Arc::new(AtomicU64::new(180));
    let others = [(); 2].map(|()| {
        let (failed_over, ports) = (Arc::clone(&failed_over), Arc::clone(&ports));
        let delay = Arc::clone(&delay);
        let new = new.port();
        Stub::start(None, move |words| {
            let mut ports = *ports.get().filter(|_| words[0] == "CLUSTER")?;
            std::thread::sleep(Duration::from_millis(delay.load(Ordering::Acquire)));
            if failed_over.load(Ordering::Acquire) {
                ports[0] = new;
            }
            Some(map(&ports))
        })
    });
    let [one, two] = [others[0].port(), others[1].port()];
    ports.set([cut_off.port(), one, two]).expect("set once");
    let url = format!(
        "redis-cluster://127.0.0.1:{}?node=127.0.0.1:{one}&node=127.0.0.1:{two}",
        cut_off.port()
    );
    let connect = async || {
        let start = Instant::now();
        loop {
            // A stall of the machine may be longer than an attempt.
            match LeaseManager::builder().ttl(Duration::from_secs(6)).connect(&url).await {
                Ok(leases) => return leases,
                Err(error) => assert!(start.elapsed() < LONG, "{error}"),
            }
        }
    };
    let leases = connect().await;
    lock(&leases, "before").await.unlock().await.expect("released");
    failed_over.store(true, Ordering::Release);
    let mut served = 0;
    let mut refused = 0;
    let start = Instant::now();
    while served < 30 {
        match leases.lock(format!("job:{served}")).try_lock().await {
            Ok(Some(lease)) => {
                served += 1;
                lease.unlock().await.expect("released");
            }
            Ok(None) => panic!("nobody has it"),
            Err(error) if served == 0 => assert!(start.elapsed() < LONG, "{error}"),
            Err(_) => refused += 1,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(refused, 0, "the old map came back");
    // Whoever comes now, and asks all that are in the URL.
    delay.store(20, Ordering::Release);
    let newcomer = connect().await;
    lock(&newcomer, "after").await.unlock().await.expect("released");
}

#[tokio::test]
async fn idle_manager_makes_no_new_connections() {
    let cluster = own().await;
    let leases = connect(&cluster, Duration::from_secs(3)).await;
    let lease = lock(&leases, "job").await;
    let mut looks: Vec<_> = cluster.nodes.iter().map(Server::connection).collect();
    let mut count = |what: &str| {
        let stat = |look: &mut kit::Resp| {
            let stats = look.command(&["INFO", "stats"]).text();
            let line =
                stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
            line.expect("a line").trim().parse::<u64>().expect("a number")
        };
        let slots = |look: &mut kit::Resp| look::calls(look, "cluster|slots").unsigned_abs();
        let each: Vec<u64> = looks
            .iter_mut()
            .map(|look| if what == "connections" { stat(look) } else { slots(look) })
            .collect();
        each.iter().sum::<u64>()
    };
    // The first times of asking may still connect.
    let asked = count("slots");
    eventually(LONG, || count("slots") > asked + 6).await;
    let (before, asked) = (count("connections"), count("slots"));
    eventually(LONG, || count("slots") > asked + 6).await;
    assert_eq!(count("connections"), before);
    lease.unlock().await.expect("released");
}

/// Nodes that were to have host names, and have none, are called `?`.
#[tokio::test]
async fn nodes_without_their_host_names_are_reached() {
    let cluster = own().await;
    for node in &cluster.nodes {
        let set = node.command(&["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"]);
        assert_eq!(set.text(), "OK");
    }
    let leases = connect(&cluster, Duration::from_secs(30)).await;
    let names = [0, 1, 2].map(|node| cluster.name_on(node, "job"));
    for name in &names {
        lock(&leases, name).await.unlock().await.expect("released");
    }
    let slot = cluster.slot(&names[0]);
    cluster.begin_move(slot, 0, 1);
    cluster.end_move(slot, 0, 1);
    lock(&leases, &names[0]).await.unlock().await.expect("released after MOVED");
}

/// Names with one hash tag are on one server, which takes all or none of them in one step. Other names are taken one by one.
#[tokio::test]
async fn set_with_one_hash_tag_is_taken_in_one_step() {
    let cluster = shared().await;
    let leases = LeaseManager::connect(&cluster.url()).await.expect("a manager");
    let other = LeaseManager::connect(&cluster.url()).await.expect("a manager");
    let tag = "one-step";
    let near = ["a", "b", "c"].map(|name| format!("{{{tag}}}:{name}"));
    let far = ["a", "b", "c"].map(|name| format!("set:{tag}:{name}"));
    for (names, atomic) in [(near, true), (far, false)] {
        let mut set = leases.multi_lock(&names).expect("good names");
        assert_eq!(set.is_atomic(), atomic);
        let lease = set.lock().await.expect("granted");
        assert!(names.iter().all(|name| lease.fence(name).is_some()));
        lease.unlock().await.expect("held");
        let contender = lock(&other, &names[1]).await;
        assert!(set.try_lock().await.expect("an answer").is_none());
        if atomic {
            for name in [&names[0], &names[2]] {
                let lease = other.lock(name).try_lock().await.expect("an answer");
                lease.expect("never taken").unlock().await.expect("held");
            }
        }
        contender.unlock().await.expect("held");
        set.lock().await.expect("granted").unlock().await.expect("held");
    }
}

/// The other shards serve calls all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_shard_is_an_outage_also_for_short_calls() {
    let cluster = own().await;
    let builder = LeaseManager::builder().ttl(Duration::from_secs(6));
    let leases = builder.connect(cluster.url()).await.expect("a manager");
    let [serves, silent] = [0, 1].map(|node| cluster.name_on(node, "job"));
    for name in [&serves, &silent] {
        drop(leases.lock(name).lock().await.expect("a lease"));
    }
    cluster.nodes[1].pause();
    let start = Instant::now();
    let error = within(LONG, async {
        loop {
            drop(leases.lock(&serves).lock().await.expect("a lease"));
            match leases.lock(&silent).lock_timeout(Duration::from_millis(20)).await {
                Ok(lease) => assert!(lease.is_none()),
                Err(error) => return error,
            }
        }
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    println!("{error} after {:?}", start.elapsed());
    assert!(leases.health().is_ready(), "it serves most names");
    let other = cluster.name_on(0, "other");
    let other = leases.lock(&other).lock_timeout(Duration::from_nanos(1)).await;
    assert!(other.is_ok(), "a shard that serves: {other:?}");
    cluster.nodes[1].resume();
    drop(within(LONG, leases.lock(&silent).lock()).await.expect("a lease"));
}
