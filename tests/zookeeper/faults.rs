//! Leases on ZooKeeper when connections, members or the quorum fail: no holder is granted a name while the one before
//! believes to hold it.

use super::ensemble::hold;
use kit::relay::{Relay, Traffic};
use kit::zookeeper::{Look, ZooKeeper};
use kit::{connect_in_the_end, within};
use leasehold::clock::{Clock, Instant};
use leasehold::{Lease, LeaseManager, Loss};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const T: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(30);

async fn connect(url: &str, ttl: Duration) -> LeaseManager {
    connect_in_the_end(LeaseManager::builder().ttl(ttl), url).await
}

/// Looks at a lease from a thread of its own, until it is lost.
struct Observer {
    thread: JoinHandle<Seen>,
    over: Arc<AtomicBool>,
}

struct Seen {
    /// The last time at which its holder could believe.
    believed: Instant,
    /// When the token had fired; the observer may have been stopped for as long before.
    fired: Option<(Instant, Duration)>,
}

impl Observer {
    fn of(lease: Lease) -> (Arc<Lease>, Self) {
        let lease = Arc::new(lease);
        let (observed, over) = (Arc::clone(&lease), Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let clock = Clock::system();
            let token = observed.cancellation_token();
            let mut seen = Seen { believed: clock.now(), fired: None };
            let mut looked = clock.now();
            while seen.fired.is_none() && !stop.load(Ordering::Relaxed) {
                let now = clock.now();
                if observed.check().is_ok() {
                    seen.believed = now;
                }
                if token.is_cancelled() {
                    let stopped = clock.now().saturating_duration_since(looked);
                    seen.fired = Some((clock.now(), stopped));
                }
                looked = now;
                thread::sleep(Duration::from_millis(1));
            }
            seen
        });
        (lease, Self { thread, over })
    }

    fn end(self) -> Seen {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the observer has seen it")
    }
}

/// One holds, `fault` happens, and another waits: it must be let in after the first was told.
async fn contest(
    holder: &LeaseManager,
    contender: &LeaseManager,
    name: &str,
    fault: impl AsyncFnOnce(),
) {
    let lease = holder.lock(name).lock().await.expect("free");
    let first = lease.fence();
    let (lease, observer) = Observer::of(lease);
    let mut lock = contender.lock(name);
    let waiting = tokio::spawn(async move {
        let lease = lock.lock().await.expect("in the end");
        (Clock::system().now(), lease)
    });
    // The heartbeat has a rhythm; be anywhere in it.
    tokio::time::sleep(T / 2).await;
    assert!(!waiting.is_finished());
    fault().await;
    let (granted, next) = within(LONG, waiting).await.expect("it runs");
    assert!(lease.check().is_err());
    let seen = observer.end();
    assert!(seen.believed < granted, "believed until {:?}, granted {granted:?}", seen.believed);
    let (fired, stopped) = seen.fired.expect("the token has fired");
    println!("{name}: granted {:?} after the token", granted.saturating_duration_since(fired));
    assert!(
        fired < granted || stopped > T / 20,
        "fired at {fired:?}, granted at {granted:?}, looked {stopped:?} before"
    );
    assert!(next.fence() > first, "{first:?}, then {:?}", next.fence());
    next.check().expect("held");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn holder_without_connection_ends_first_and_nothing_revives() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let look = Look::at(&server.hosts()).await;
    let (holder, contender) = (connect(&relay.url(), T).await, connect(&server.url(), T).await);
    let other = holder.lock("other").lock().await.expect("free");
    contest(&holder, &contender, "job", async || relay.set(Traffic::Hold)).await;
    relay.set(Traffic::Pass);
    // A new session follows, in which nothing of the old one is held.
    let lease = within(LONG, holder.lock("job").lock()).await.expect("free");
    assert!(other.check().is_err());
    let taken = contender.lock("other").try_lock().await.expect("an answer");
    assert!(taken.is_some(), "{:?}", look.nodes("other").await);
    tokio::time::sleep(T).await;
    assert!(other.check().is_err());
    drop(other);
    lease.check().expect("held");
    taken.expect("granted").check().expect("held");
    lease.unlock().await.expect("released");
    look.until_nodes("job", 0).await;
    look.until_nodes("other", 0).await;
}

/// As when a server gives it a new session unasked: the old one's nodes are there for a while.
#[tokio::test]
async fn session_that_is_over_loses_its_leases_for_good() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let holder = connect(&server.url(), T).await;
    let sessions = "/leasehold/sessions";
    let own = look.0.list_children(sessions).await.expect("the holder's session");
    assert_eq!(own.len(), 1);
    let contender = connect(&server.url(), T).await;
    contest(&holder, &contender, "job", async || {
        look.0.delete(&format!("{sessions}/{}", own[0]), None).await.expect("deleted");
    })
    .await;
    let lease = within(LONG, holder.lock("job").lock()).await.expect("free");
    lease.unlock().await.expect("released");
}

#[tokio::test]
async fn short_break_costs_no_lease_and_no_place_in_the_line() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let look = Look::at(&server.hosts()).await;
    let ttl = 5 * T;
    let (holder, waiter) = (connect(&relay.url(), ttl).await, connect(&relay.url(), ttl).await);
    let lease = holder.lock("job").lock().await.expect("free");
    let mut lock = waiter.lock("job");
    let waiting = tokio::spawn(async move { lock.lock().await });
    look.until_nodes("job", 2).await;
    let mut before = look.nodes("job").await;
    for _ in 0..3 {
        relay.set(Traffic::Refuse);
        tokio::time::sleep(Duration::from_millis(100)).await;
        relay.set(Traffic::Pass);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    lease.check().expect("held");
    let mut after = look.nodes("job").await;
    before.sort();
    after.sort();
    assert_eq!(before, after);
    lease.unlock().await.expect("released");
    let lease = within(LONG, waiting).await.expect("it runs").expect("in the end");
    lease.unlock().await.expect("released");
    look.until_nodes("job", 0).await;
}

#[tokio::test]
async fn leases_outlive_the_leader() {
    let servers = ZooKeeper::ensemble();
    let leader = servers.leader();
    let ttl = 5 * T;
    let (holder, contender) =
        (connect(&servers.url(), ttl).await, connect(&servers.url(), ttl).await);
    let lease = holder.lock("job").lock().await.expect("free");
    let mut lock = contender.lock("job");
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(T / 4).await;
    servers.kill(leader);
    let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
    assert!(servers.wait_for(&others));
    tokio::time::sleep(T).await;
    lease.check().expect("held");
    assert!(!waiting.is_finished());
    let first = lease.fence();
    lease.unlock().await.expect("released");
    let next = within(LONG, waiting).await.expect("it runs").expect("in the end");
    assert!(next.fence() > first, "{first:?}, then {:?}", next.fence());
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn holder_on_a_frozen_server_ends_before_the_next_enters() {
    let servers = ZooKeeper::ensemble();
    let leader = servers.leader();
    let frozen = (leader + 1) % 3;
    let (holder, contender) =
        (connect(&servers.url_of(frozen), T).await, connect(&servers.url_of(leader), T).await);
    contest(&holder, &contender, "job", async || servers.freeze(frozen)).await;
    servers.thaw(frozen);
    let lease = within(LONG, hold(&holder, "job")).await;
    lease.unlock().await.expect("released");
}

/// Its member goes on answering reads and pings for as long as it does not notice.
#[tokio::test]
async fn holder_on_a_cut_off_server_ends_before_the_next_enters() {
    for _ in 0..2 {
        // A fresh ensemble: after an election, the member that is not cut off may not be back yet, and then there is no
        // majority without the one that is.
        let (servers, links) = ZooKeeper::linked();
        let leader = servers.leader();
        let cut = (leader + 1) % 3;
        let (holder, contender) =
            (connect(&servers.url_of(cut), T).await, connect(&servers.url_of(leader), T).await);
        contest(&holder, &contender, "job", async || links.set(cut, Traffic::Hold)).await;
        links.heal();
        let lease = within(LONG, hold(&holder, "job")).await;
        lease.unlock().await.expect("released");
    }
}

/// As a frozen member, or a machine that has lost its power; the session is another's in time.
#[tokio::test]
async fn silent_server_costs_no_lease_as_long_as_there_is_another() {
    let server = ZooKeeper::start();
    let (silent, other) = (Relay::to_server(server.port(0)), Relay::to_server(server.port(0)));
    let url = format!("{},127.0.0.1:{}", silent.url(), other.port());
    // So long that no connection looks for the shortest session.
    let ttl = 5 * T;
    let mut held = Vec::new();
    for number in 0..12 {
        let leases = connect(&url, ttl).await;
        let lease = leases.lock(format!("job:{number}")).lock().await.expect("free");
        held.push((leases, lease));
    }
    let by_the_other = other.connections();
    assert!(by_the_other < held.len(), "chance has it that some are on either");
    silent.set(Traffic::Hold);
    kit::eventually(LONG, || other.connections() >= held.len()).await;
    tokio::time::sleep(ttl).await;
    for (_, lease) in &held {
        lease.check().expect("held");
    }
}

#[tokio::test]
async fn silent_server_keeps_nobody_from_connecting_to_another() {
    let server = ZooKeeper::start();
    let silent = Relay::to_server(server.port(0));
    silent.set(Traffic::Hold);
    let url = format!("{},127.0.0.1:{}", silent.url(), server.port(0));
    let connects: Vec<_> = (0..8)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { connect(&url, 20 * T).await })
        })
        .collect();
    for connecting in connects {
        within(LONG, connecting).await.expect("it is connected");
    }
}

#[tokio::test]
async fn connection_is_back_in_a_fraction_of_the_outage() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let leases = connect(&relay.url(), 15 * T).await;
    let lease = leases.lock("job").lock().await.expect("free");
    let outage = Duration::from_secs(8);
    relay.set(Traffic::Refuse);
    tokio::time::sleep(outage).await;
    relay.set(Traffic::Pass);
    // Doubled without a bound, its pauses would be as long as the outage.
    let free = within(outage / 2, leases.lock("other").lock()).await.expect("free");
    lease.check().expect("held");
    free.unlock().await.expect("released");
    lease.unlock().await.expect("released");
}

/// Its holders count on the timeout that it began with.
#[tokio::test]
async fn session_with_another_timeout_ends_the_holders() {
    let server = ZooKeeper::start();
    let leases = connect(&server.url(), 5 * T).await;
    let lease = leases.lock("job").lock().await.expect("free");
    server.restart_with(&format!("maxSessionTimeout={}", T.as_millis()));
    assert_eq!(within(LONG, lease.lost()).await, Loss::Gone);
    let contender = connect(&server.url(), T).await;
    let next = within(LONG, contender.lock("job").lock()).await.expect("free");
    assert!(leases.lock("job").try_lock().await.is_err(), "there is no session of this timeout");
    next.unlock().await.expect("released");
}
