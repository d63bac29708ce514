//! Locks of several keys in a cluster that moves their slot: some keys are on one server, some on the other.

use super::cluster::shared;
use kit::order::lined;
use kit::reached::Must;
use kit::{Cluster, eventually, within};
use leasehold::{ErrorKind, Lease, LeaseManager, LeaseState, Loss};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(20);
const T: Duration = Duration::from_secs(3);

async fn connect(cluster: &Cluster) -> LeaseManager {
    LeaseManager::builder().ttl(T).connect(&cluster.url()).await.expect("a manager")
}

fn timeout_key(lease: &Lease) -> String {
    format!("{{{}}}:{}:rwlock_timeout:1", lease.name(), lease.holder_id())
}

/// Begins to move the slot of a lease, and moves these of its keys.
fn move_some(cluster: &Cluster, lease: &Lease, keys: &[&str]) {
    cluster.begin_move(cluster.slot(lease.name()), 0, 1);
    keys.iter().for_each(|key| cluster.move_key(key, 0, 1));
}

fn move_rest(cluster: &Cluster, name: &str) {
    cluster.end_move(cluster.slot(name), 0, 1);
}

/// Holds leases for longer than their time to live.
async fn outlive(leases: &[Lease]) {
    let mut losses = JoinSet::new();
    leases.iter().for_each(|lease| drop(losses.spawn(lease.lost())));
    let lost = tokio::time::timeout(T + T / 2, losses.join_next()).await;
    assert!(lost.is_err(), "{lost:?}: {leases:?}");
    assert!(leases.iter().all(|lease| lease.state() == LeaseState::Held), "{leases:?}");
}

/// Releases leases while their keys are apart, and moves the rest.
async fn release_and_move_rest(cluster: &Cluster, leases: Vec<Lease>) -> Vec<String> {
    let names: Vec<String> = leases.iter().map(|lease| lease.name().to_owned()).collect();
    let mut unlocks = JoinSet::new();
    leases.into_iter().for_each(|lease| drop(unlocks.spawn(lease.unlock())));
    for result in within(LONG, unlocks.join_all()).await {
        result.expect("released");
    }
    for name in &names {
        move_rest(cluster, name);
    }
    names
}

#[tokio::test]
async fn read_write_locks_outlive_a_slot_that_stays_half_moved() {
    let _reached = Must::reach("RedisRenewalKeyByKey");
    let cluster = shared().await;
    let leases = connect(cluster).await;
    let name = |start| cluster.name_on(0, start);
    let mut held = Vec::new();
    for start in ["read-hash", "read-timeout"] {
        held.push(leases.rw_lock(name(start)).read().await.expect("a lease").into_lease());
    }
    for start in ["write-here", "write-there"] {
        held.push(leases.rw_lock(name(start)).write().await.expect("a lease").into_lease());
    }
    move_some(cluster, &held[0], &[held[0].name()]);
    move_some(cluster, &held[1], &[&timeout_key(&held[1])]);
    move_some(cluster, &held[2], &[]);
    move_some(cluster, &held[3], &[held[3].name()]);
    outlive(&held).await;
    for name in release_and_move_rest(cluster, held).await {
        let lease = within(LONG, leases.rw_lock(&name).write()).await.expect("it is free");
        lease.unlock().await.expect("released");
    }
}

#[tokio::test]
async fn nested_read_write_locks_are_left_in_a_half_moved_slot() {
    let cluster = shared().await;
    let leases = connect(cluster).await;
    let (reads, writes) = (cluster.name_on(0, "read-nest"), cluster.name_on(0, "write-nest"));
    let (mut reads, mut writes) = (leases.rw_lock(reads), leases.rw_lock(writes));
    let (page, edit) = (reads.read().await.expect("one"), writes.write().await.expect("one"));
    let (inner_page, inner_edit) =
        (reads.read().await.expect("entered"), writes.write().await.expect("entered"));
    move_some(cluster, &page, &[&timeout_key(&page)]);
    move_some(cluster, &edit, &[]);
    within(T, inner_page.unlock()).await.expect("left");
    within(T, inner_edit.unlock()).await.expect("left");
    // The count is recorded in the background.
    let one = kit::Reply::Text("1".to_owned());
    let hash = || cluster.nodes[0].command(&["HVALS", edit.name()]).list();
    eventually(T, || hash().contains(&one)).await;
    release_and_move_rest(cluster, vec![page.into_lease(), edit.into_lease()]).await;
}

/// The time to live of a reader is on the other server: it must not count as one that has lapsed.
#[tokio::test]
async fn reader_that_leaves_a_half_moved_slot_ends_no_other_reader() {
    let _reached = Must::reach("RedisWithOneKey");
    let cluster = shared().await;
    let (leases, other) = (connect(cluster).await, connect(cluster).await);
    let mut left = Vec::new();
    for there in [false, true] {
        let name = cluster.name_on(0, &format!("readers-{there}"));
        let first = leases.rw_lock(&name).read().await.expect("a lease").into_lease();
        let second = other.rw_lock(&name).read().await.expect("a lease").into_lease();
        let (mine, theirs) = (timeout_key(&first), timeout_key(&second));
        let moved = if there { vec![&*name, &mine] } else { vec![&*theirs] };
        move_some(cluster, &first, &moved);
        within(LONG, first.unlock()).await.expect("released");
        let mut node = cluster.nodes[usize::from(there)].connection();
        node.command(&["ASKING"]);
        let field = second.holder_id().to_string();
        assert_eq!(node.command(&["HEXISTS", &name, &field]).int(), 1, "{there}");
        left.push(second);
    }
    outlive(&left).await;
    for second in left {
        let mut lock = leases.rw_lock(second.name());
        move_rest(cluster, second.name());
        let free = lock.write_timeout(Duration::from_millis(50)).await.expect("an answer");
        assert!(free.is_none(), "two holders");
        second.unlock().await.expect("released");
        within(LONG, lock.write()).await.expect("it is free").unlock().await.expect("released");
    }
}

/// A part of a renewal is none.
#[tokio::test]
async fn reader_without_its_time_is_not_renewed_in_a_half_moved_slot() {
    let cluster = shared().await;
    let leases = connect(cluster).await;
    let name = cluster.name_on(0, "read-gone");
    let page = leases.rw_lock(&name).read().await.expect("a lease").into_lease();
    let key = timeout_key(&page);
    move_some(cluster, &page, &[&key]);
    let mut target = cluster.nodes[1].connection();
    target.command(&["ASKING"]);
    assert_eq!(target.command(&["DEL", &key]).int(), 1);
    assert_eq!(within(T + T / 2, page.lost()).await, Loss::Expired);
    // Made again on either side, it would be in the way of the key that is moved.
    target.command(&["ASKING"]);
    assert_eq!(target.command(&["EXISTS", &key]).int(), 0);
    drop(page);
    move_rest(cluster, &name);
}

#[tokio::test]
async fn permits_outlive_a_slot_that_stays_half_moved() {
    let cluster = shared().await;
    let leases = connect(cluster).await;
    let mut held = Vec::new();
    for start in ["counter", "permits", "kept"] {
        let pool = leases.semaphore(cluster.name_on(0, start), 3);
        held.push(pool.acquire_many(2).await.expect("permits").into_lease());
    }
    let out = |lease: &Lease| format!("{{{}}}:timeout", lease.name());
    move_some(cluster, &held[0], &[held[0].name()]);
    move_some(cluster, &held[1], &[&out(&held[1])]);
    move_some(cluster, &held[2], &[held[2].name()]);
    outlive(&held).await;
    let kept = held.pop().expect("the third");
    for name in release_and_move_rest(cluster, held).await {
        let pool = leases.semaphore(&name, 3);
        assert_eq!(within(LONG, pool.usage()).await.expect("an answer").free(), 3);
        let three = within(LONG, pool.acquire_many(3)).await.expect("they are free");
        assert_eq!(pool.usage().await.expect("an answer").free(), 0);
        three.unlock().await.expect("released");
        assert_eq!(cluster.command(&name, &["GET", &name]).text(), "3");
    }
    move_rest(cluster, kept.name());
    let pool = leases.semaphore(kept.name(), 3);
    assert_eq!(within(LONG, pool.usage()).await.expect("an answer").free(), 1);
    kept.unlock().await.expect("released");
    assert_eq!(pool.usage().await.expect("an answer").free(), 3);
}

#[tokio::test]
async fn fair_locks_outlive_a_slot_that_stays_half_moved() {
    let cluster = shared().await;
    let (leases, other) = (connect(cluster).await, connect(cluster).await);
    let mut held = Vec::new();
    for start in ["fair-here", "fair-there", "fair-line"] {
        let name = cluster.name_on(0, start);
        held.push(leases.fair_lock(name).lock().await.expect("a lease"));
    }
    let mut waiters = JoinSet::new();
    for leases in [&leases, &other] {
        let mut lock = leases.fair_lock(held[2].name());
        waiters.spawn(async move { lock.lock().await?.unlock().await });
    }
    // A waiter in the process of the holder has no place yet.
    lined(&leases, held[2].name(), 1).await;
    move_some(cluster, &held[0], &[]);
    move_some(cluster, &held[1], &[held[1].name()]);
    outlive(&held[..2]).await;
    move_some(cluster, &held[2], &[&format!("leasehold_line:{{{}}}", held[2].name())]);
    for name in release_and_move_rest(cluster, held).await {
        if !name.starts_with("fair-line") {
            let lease = within(LONG, leases.fair_lock(&name).lock()).await.expect("it is free");
            lease.unlock().await.expect("released");
        }
    }
    for result in within(LONG, waiters.join_all()).await {
        result.expect("it had its turn");
    }
}

/// The last of the slots that are moved.
const LAST: u16 = 255;

/// A name with this start whose slot is one of those that are moved.
fn moved_name(cluster: &Cluster, start: &str) -> String {
    let mut names = (0..).map(|number| format!("{start}-{number}"));
    names.find(|name| cluster.slot(name) <= LAST).expect("there are enough")
}

/// Moves the slots as an administrator does.
fn reshard(cluster: &Cluster, from: usize, to: usize) {
    let [source, target] = [cluster.id(from), cluster.id(to)];
    let output = Command::new("redis-cli")
        .args(["--cluster", "reshard", &format!("127.0.0.1:{}", cluster.nodes[from].port())])
        .args(["--cluster-from", &source, "--cluster-to", &target])
        .args(["--cluster-slots", &(LAST + 1).to_string(), "--cluster-yes"])
        .output()
        .expect("redis-cli");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Moves the slots at once, which Valkey can since version 9.
fn migrate(cluster: &Cluster, from: usize, to: usize) {
    let range = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "0", &LAST.to_string()];
    let target = cluster.id(to);
    let words = [&range[..], &["NODE", &target]].concat();
    assert_eq!(cluster.nodes[from].command(&words).text(), "OK");
}

/// Slots that move under load: locks of the same slots change hands meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resharding_under_load_loses_no_lease_of_any_kind() {
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.expect("a cluster");
    let cluster = Arc::new(cluster);
    let (leases, other) = (connect(&cluster).await, connect(&cluster).await);
    let name = |start: &str| moved_name(&cluster, start);
    let held = vec![
        leases.lock(name("lock")).lock().await.expect("a lease"),
        leases.fair_lock(name("fair")).lock().await.expect("a lease"),
        leases.rw_lock(name("read")).read().await.expect("a lease").into_lease(),
        leases.rw_lock(name("write")).write().await.expect("a lease").into_lease(),
        leases.semaphore(name("permits"), 3).acquire_many(2).await.expect("a lease").into_lease(),
    ];
    let (ends, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let late = Arc::new(AtomicU64::new(0));
    let mut load = JoinSet::new();
    for (leases, start) in [(&leases, "one"), (&leases, "two"), (&other, "one"), (&other, "two")] {
        let mut lock = leases.lock(name(start));
        let (ends, grants) = (Arc::clone(&ends), Arc::clone(&grants));
        let late = Arc::clone(&late);
        load.spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                let lease = within(LONG, lock.lock()).await.expect("a lease");
                // On a busy machine a slot that moves may take longer than an attempt. The release goes on then, and
                // the next call waits for it.
                if let Err(error) = lease.unlock().await {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    late.fetch_add(1, Ordering::Relaxed);
                }
                grants.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for (from, to) in [(0, 1), (1, 0)] {
        let moved = Arc::clone(&cluster);
        let can_migrate = cluster.nodes[0].check_is("Valkey 9").is_ok();
        let moves = if from == 1 && can_migrate { migrate } else { reshard };
        tokio::task::spawn_blocking(move || moves(&moved, from, to)).await.expect("moved");
        eventually(LONG, || (0..=LAST).all(|slot| cluster.is_agreed(slot, to))).await;
        let before = grants.load(Ordering::Relaxed);
        outlive(&held).await;
        assert!(grants.load(Ordering::Relaxed) > before, "nothing is granted any more");
    }
    ends.store(true, Ordering::Relaxed);
    load.join_all().await;
    let late = late.load(Ordering::Relaxed);
    assert!(late * 20 <= grants.load(Ordering::Relaxed), "{late} releases had no answer in time");
    for lease in held {
        within(LONG, lease.unlock()).await.expect("released");
    }
}
