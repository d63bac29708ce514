//! Holds that rest, on a real server: no command between two locks of a process, and what ends the rest.

use super::cluster::shared;
use super::errors::{app, lease_url, set_user};
use super::{JAVA, exists, lock_by_hand, millis, refused_only};
use kit::{Resp, Server, eventually, look, within};
use leasehold::{Builder, ErrorKind, Lease, LeaseManager};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const T: Duration = Duration::from_secs(30);
/// The longest one.
const LONG: Duration = Duration::from_secs(3);
const SHORT: Duration = Duration::from_millis(200);
const SECOND: Duration = Duration::from_secs(1);

async fn connect(server: &Server, builder: Builder) -> LeaseManager {
    builder.connect(&server.url()).await.expect("a manager")
}

fn lingering(linger: Duration) -> Builder {
    LeaseManager::builder().ttl(T).linger(linger)
}

/// Waits until the inboxes of so many managers are subscribed.
async fn inboxes(server: &Server, count: usize) {
    let there =
        || server.command(&["PUBSUB", "CHANNELS", "leasehold_inbox:*"]).list().len() == count;
    eventually(T, there).await;
}

/// Lets a hold rest.
async fn rest(leases: &LeaseManager, name: &str) {
    let lease = leases.lock(name).lock().await.expect("a lease");
    lease.unlock().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_lock_sends_no_command() {
    let server = Server::start();
    let leases = connect(&server, lingering(LONG)).await;
    inboxes(&server, 1).await;
    let mut lock = leases.lock("cart");
    rest(&leases, "cart").await;
    let mut admin = Resp::connect(server.port());
    admin.command(&["CONFIG", "RESETSTAT"]);
    let mut fence = None;
    for _ in 0..100 {
        let lease = lock.lock().await.expect("a lease");
        assert!(lease.fence() > fence);
        fence = lease.fence();
        lease.unlock().await.expect("a release");
    }
    let sent: i64 = ["evalsha", "eval", "hset", "publish"]
        .map(|command| look::calls(&mut admin, command))
        .iter()
        .sum();
    assert_eq!(sent, 0);
    assert!(exists(&server, "cart"));
    eventually(2 * LONG, || !exists(&server, "cart")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_process_is_granted_soon_after_it_asks() {
    let server = Server::start();
    for other in [lingering(LONG), LeaseManager::builder().ttl(T)] {
        let (here, there) =
            (connect(&server, lingering(LONG)).await, connect(&server, other).await);
        inboxes(&server, 2).await;
        let mut times = Vec::new();
        for round in 0..20 {
            let name = format!("cart:{round}");
            rest(&here, &name).await;
            let start = Instant::now();
            let lease = match round % 2 {
                0 => there.lock(&name).lock().await.expect("a lease"),
                _ => there.lock(&name).lock_timeout(LONG).await.expect("one").expect("a lease"),
            };
            times.push(start.elapsed());
            lease.unlock_now().await.expect("a release");
        }
        times.sort();
        println!("granted after {:?}, at most {:?}", times[10], times[19]);
        assert!(times[10] < LONG / 30, "{times:?}");
        // A refused attempt asks for the rest to end, too.
        rest(&here, "cart").await;
        assert!(there.lock("cart").try_lock().await.expect("an answer").is_none());
        eventually(LONG / 2, || !exists(&server, "cart")).await;
        // So does a set, whose names are asked for in one request.
        rest(&here, "{c}1").await;
        let start = Instant::now();
        let mut set = there.multi_lock(["{c}1", "{c}2"]).expect("a set");
        set.lock().await.expect("a lease").unlock().await.expect("a release");
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
        here.close().await.expect("an end");
        there.close().await.expect("an end");
    }
}

/// As Redisson does, which asks nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_that_asks_nobody_waits_for_the_time_at_most() {
    let server = Server::start();
    let leases = connect(&server, lingering(SHORT)).await;
    rest(&leases, "cart").await;
    let start = Instant::now();
    eventually(T, || !exists(&server, "cart")).await;
    let took = start.elapsed();
    assert!(took > SHORT / 2 && took < SHORT * 4, "{took:?}");
    // Its lock is respected.
    lock_by_hand(&server, "cart", T);
    assert!(leases.lock("cart").try_lock().await.expect("an answer").is_none());
    assert_eq!(server.command(&["HEXISTS", "cart", JAVA]).int(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_a_manager_and_unlock_now_release_at_once() {
    let server = Server::start();
    let leases = connect(&server, lingering(LONG)).await;
    let lease = leases.lock("cart").lock().await.expect("a lease");
    lease.unlock_now().await.expect("a release");
    assert!(!exists(&server, "cart"));
    rest(&leases, "cart").await;
    assert!(exists(&server, "cart"));
    leases.close().await.expect("an end");
    assert!(!exists(&server, "cart"));
    let leases = connect(&server, lingering(LONG)).await;
    drop(leases.lock("cart").lock().await.expect("a lease"));
    assert!(exists(&server, "cart"));
    drop(leases);
    eventually(LONG / 2, || !exists(&server, "cart")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steal_and_forced_release_of_what_rests_leave_nothing_wrong() {
    let server = Server::start();
    let here = connect(&server, lingering(LONG)).await;
    let there = connect(&server, LeaseManager::builder().ttl(T)).await;
    inboxes(&server, 2).await;
    rest(&here, "cart").await;
    let stolen = there.lock("cart").steal("now").await.expect("an answer").expect("none between");
    let fence = stolen.fence();
    let waits = tokio::spawn({
        let mut lock = here.lock("cart");
        async move {
            loop {
                let lease = lock.lock().await.expect("a lease");
                if lease.fence() > fence {
                    return;
                }
                // It came before the hint, and took over what rests.
                lease.lost().await;
            }
        }
    });
    tokio::time::sleep(SHORT).await;
    stolen.check().expect("held");
    assert!(!waits.is_finished());
    stolen.unlock().await.expect("a release");
    within(T, waits).await.expect("no panic");
    assert!(here.stats().lost <= 1);
    assert_eq!(there.stats().lost, 0);
    assert!(there.force_unlock("cart", "now").await.expect("an answer"));
    // Maybe before the hint: then the hold that is taken over is lost.
    match here.lock("cart").lock().await.expect("a lease").unlock_now().await {
        Ok(()) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::Lost),
    }
    let lease = here.lock("cart").lock().await.expect("a lease");
    lease.check().expect("held");
}

/// The runtime that the engine works on stands still: for longer than a rest, and for longer than T.
#[test]
fn process_that_stood_still_takes_nothing_over() {
    const T: Duration = Duration::from_secs(1);
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("one");
    runtime.block_on(async {
        let builder = LeaseManager::builder().ttl(T).linger(T / 10).dedicated_thread(false);
        let leases = connect(&server, builder).await;
        let mut lock = leases.lock("cart");
        let holder = async |lock: &mut leasehold::Lock| {
            let lease = lock.lock().await.expect("a lease");
            let holder = lease.holder_id();
            lease.unlock().await.expect("a release");
            holder
        };
        let first = holder(&mut lock).await;
        assert_eq!(holder(&mut lock).await, first);
        std::thread::sleep(T / 5);
        let second = holder(&mut lock).await;
        assert_ne!(second, first);
        std::thread::sleep(T + T / 10);
        assert!(!exists(&server, "cart"));
        lock_by_hand(&server, "cart", millis(300));
        let start = Instant::now();
        let third = holder(&mut lock).await;
        assert_ne!(third, second);
        assert!(start.elapsed() > millis(200), "{:?}", start.elapsed());
    });
}

/// The permissions that the guide lists are enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_of_the_guide_are_enough_to_linger() {
    let server = Server::start();
    set_user(&server, &kit::permissions::of_one_server());
    let connect = async || app().ttl(T).linger(LONG).connect(&lease_url(&server)).await;
    let (here, there) = (connect().await.expect("one"), connect().await.expect("one"));
    inboxes(&server, 2).await;
    server.command(&["ACL", "LOG", "RESET"]);
    rest(&here, "cart").await;
    let start = Instant::now();
    drop(there.lock("cart").lock().await.expect("a lease"));
    assert!(start.elapsed() < LONG / 3, "{:?}", start.elapsed());
    refused_only(&server, &[]);
}

/// Without `HGETALL`, no holder is known to linger, and a refusal is a refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusal_needs_no_further_permission() {
    let server = Server::start();
    let mut rules = kit::permissions::of_one_server();
    rules.push("-hgetall");
    set_user(&server, &rules);
    let leases = app().ttl(T).connect(&lease_url(&server)).await.expect("a manager");
    let other = connect(&server, lingering(SHORT).prefix("app:")).await;
    rest(&other, "cart").await;
    assert!(leases.lock("cart").try_lock().await.expect("an answer").is_none());
    let start = Instant::now();
    drop(leases.lock("cart").lock().await.expect("a lease"));
    assert!(start.elapsed() < 3 * SHORT, "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_that_asks_on_a_cluster_is_granted_soon() {
    let cluster = shared().await;
    for sharded in [false, true] {
        let channels = if sharded { "SHARDCHANNELS" } else { "CHANNELS" };
        let connect = async || {
            let builder = lingering(LONG).sharded_pubsub(sharded);
            builder.connect(&cluster.url()).await.expect("a manager")
        };
        let (here, there) = (connect().await, connect().await);
        let probe = here.lock("linger:probe").lock().await.expect("a lease");
        let inbox = format!("leasehold_inbox:{}", probe.holder_id().manager());
        let listens =
            |node: &Server| !node.command(&["PUBSUB", channels, &inbox]).list().is_empty();
        eventually(T, || cluster.nodes.iter().any(listens)).await;
        probe.unlock_now().await.expect("a release");
        let mut times = Vec::new();
        // Names of all servers.
        for round in 0..12 {
            let name = format!("linger:{round}:{sharded}");
            rest(&here, &name).await;
            let start = Instant::now();
            let lease = there.lock(&name).lock().await.expect("a lease");
            times.push(start.elapsed());
            lease.unlock_now().await.expect("a release");
        }
        times.sort();
        println!("sharded: {sharded}, granted after {:?} to {:?}", times[0], times[11]);
        assert!(times[6] < LONG / 10, "{times:?}");
    }
}

/// Locks and unlocks a name all the time, until `end`; then it keeps the lease, if it has one.
async fn churn(leases: LeaseManager, name: String, end: Arc<AtomicBool>) -> Option<Lease> {
    let mut lock = leases.lock(name);
    loop {
        let lease = lock.lock_timeout(millis(20)).await.ok().flatten();
        if end.load(Ordering::Relaxed) {
            return lease;
        }
        if let Some(lease) = lease {
            let _ = lease.unlock().await;
        }
        tokio::task::yield_now().await;
    }
}

/// The message of a steal finds a hold that rests, or is taken over at that time. The next of the chain is verified, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn steal_is_known_at_once_where_rests_are_taken_over() {
    let server = Server::start();
    let here = connect(&server, lingering(LONG)).await;
    let there = connect(&server, LeaseManager::builder().ttl(T)).await;
    inboxes(&server, 2).await;
    for round in 0..60 {
        let name = format!("cart:{round}");
        let end = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(churn(here.clone(), name.clone(), Arc::clone(&end)));
        // At another point of the churn each time.
        tokio::time::sleep(Duration::from_micros(2_000 + round * 37)).await;
        let stolen = there.lock(&name).steal("a test").await.expect("an answer");
        tokio::time::sleep(Duration::from_micros(300)).await;
        end.store(true, Ordering::Relaxed);
        let kept = task.await.expect("no panic");
        let (Some(stolen), Some(kept)) = (stolen, kept) else { continue };
        // Far less than the third of the time to live in which a renewal would find out.
        eventually(SECOND, || kept.check().is_err() || stolen.check().is_err()).await;
        stolen.unlock().await.expect("the only holder");
    }
}

/// Its hold has lost the name without having heard of it: the store says so when it is asked for the holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polite_steal_takes_over_no_hold_that_the_store_does_not_have() {
    let server = Server::start();
    let there = connect(&server, LeaseManager::builder().ttl(T)).await;
    // It is handed off to the steal, which waits for it, or rests before that.
    for lingers in [true, false] {
        let name = if lingers { "rests" } else { "held" };
        let builder = if lingers { lingering(LONG) } else { LeaseManager::builder().ttl(T) };
        let here = connect(&server, builder).await;
        let lease = here.lock(name).lock().await.expect("a lease");
        let lease = if lingers {
            lease.unlock().await.expect("a release");
            None
        } else {
            Some(lease)
        };
        server.command(&["DEL", name]);
        let other = there.lock(name).lock().await.expect("free");
        let fence = other.fence();
        other.unlock().await.expect("a release");
        let mut lock = here.lock(name);
        let steal = tokio::spawn(async move { lock.steal_after(SHORT, "a test").await });
        if let Some(lease) = lease {
            // It may be lost by now.
            tokio::select! {
                _ = lease.lost() => {}
                () = tokio::time::sleep(SHORT / 4) => {}
            }
            let _ = lease.unlock().await;
        }
        let stolen = steal.await.expect("no panic").expect("an answer").expect("a lease");
        assert!(stolen.fence() > fence, "{name}: {:?} after {fence:?}", stolen.fence());
        stolen.unlock().await.expect("a release");
    }
}
