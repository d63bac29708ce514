//! A rolling deploy that changes settings: two managers with other times to live, or that remember fencing tokens for other
//! times, on the same names.

use kit::{Mode, Proxy, Server, within};
use leasehold::{Lease, LeaseManager, LeaseState, Loss, Permit, ReadLease, WriteLease};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(10);
/// Only ends a test that hangs.
const LIMIT: Duration = Duration::from_secs(120);

async fn connect(url: &str, ttl: Duration) -> LeaseManager {
    LeaseManager::builder().ttl(ttl).connect(url).await.expect("a manager")
}

/// A lease of any kind.
enum Held {
    Exclusive(Lease),
    Read(ReadLease),
    Write(WriteLease),
    Permit(Permit),
}

impl Held {
    fn lease(&self) -> &Lease {
        match self {
            Held::Exclusive(lease) => lease,
            Held::Read(lease) => lease,
            Held::Write(lease) => lease,
            Held::Permit(lease) => lease,
        }
    }
}

/// The kinds of which one holder keeps the others out.
const ALONE: [&str; 4] = ["lock", "fair", "write", "permit"];

/// Acquires a name that is of this kind, and waits for it if need be.
async fn acquire(leases: &LeaseManager, kind: &str, name: &str) -> Held {
    match kind {
        "lock" => Held::Exclusive(leases.lock(name).lock().await.expect("a lease")),
        "fair" => Held::Exclusive(leases.fair_lock(name).lock().await.expect("a lease")),
        "write" => Held::Write(leases.rw_lock(name).write().await.expect("a lease")),
        "read" => Held::Read(leases.rw_lock(name).read().await.expect("a lease")),
        "permit" => Held::Permit(leases.semaphore(name, 1).acquire().await.expect("a permit")),
        other => panic!("{other} is no kind"),
    }
}

/// The process that holds the name is cut off. Its token fires in time, and the other one, with another time to live, enters
/// after the holder's.
async fn follow(url: &str, holder: Duration, waiter: Duration) {
    let port = url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let proxy = Proxy::start(port);
    let (here, there) = (connect(&proxy.url(), holder).await, connect(url, waiter).await);
    let mut waits = JoinSet::new();
    let mut held = Vec::new();
    for kind in ALONE {
        held.push(acquire(&here, kind, kind).await);
        let there = there.clone();
        waits.spawn(async move {
            let next = within(LIMIT, acquire(&there, kind, kind)).await;
            (kind, next, Instant::now())
        });
    }
    // The last confirmation is no older than a renewal period when the requests end.
    let cut = Instant::now();
    proxy.set(Mode::BlackHole);
    for lease in &held {
        assert_eq!(lease.lease().lost().await, Loss::Expired);
    }
    let fired = Instant::now();
    while let Some(entered) = waits.join_next().await {
        let (kind, _next, at) = entered.expect("no panic");
        let after = at - cut;
        println!("T = {holder:?} and {waiter:?}, {kind}: entered {after:?} after the cut");
        assert!(at > fired, "{kind}: entered before the tokens had fired");
        assert!(after > holder / 2, "{kind}: entered after {after:?}, too soon");
        // By the time to live of the holder, not by its own.
        assert!(holder > waiter || after < waiter, "{kind}: entered after {after:?}, too late");
    }
}

#[tokio::test]
async fn ttl_of_the_holder_counts_for_a_waiter_with_another() {
    let server = Server::start();
    follow(&server.url(), SHORT, LONG).await;
    follow(&server.url(), LONG, SHORT).await;
}

#[tokio::test]
async fn leases_of_two_ttls_are_kept_side_by_side() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let short = connect(&server.url(), SHORT).await;
    let long = connect(&proxy.url(), LONG).await;
    let mut held = Vec::new();
    for leases in [&short, &long] {
        held.push(acquire(leases, "read", "rw").await);
        let pool = leases.semaphore("pool", 2);
        held.push(Held::Permit(pool.acquire().await.expect("a permit")));
    }
    // Renewals of the short ones come between those of the long ones, for longer than a long one lives.
    let mut rw = short.rw_lock("rw");
    assert!(rw.write_timeout(LONG + SHORT).await.expect("an answer").is_none());
    assert!(held.iter().all(|held| held.lease().state() == LeaseState::Held));
    assert!(short.semaphore("pool", 2).try_acquire().await.expect("an answer").is_none());

    // The processes with the old setting end; those with the new one go on.
    short.close().await.expect("a release");
    let next = connect(&server.url(), SHORT).await;
    let mut rw = next.rw_lock("rw");
    assert!(rw.write_timeout(2 * SHORT).await.expect("an answer").is_none());
    assert!(held[2..].iter().all(|held| held.lease().state() == LeaseState::Held));
    proxy.set(Mode::BlackHole);
    let waits =
        tokio::spawn(async move { within(LIMIT, rw.write()).await.map(|_| Instant::now()) });
    assert_eq!(held[2].lease().lost().await, Loss::Expired);
    let fired = Instant::now();
    assert!(waits.await.expect("no panic").expect("a lease") > fired);
}

#[tokio::test]
async fn fences_grow_where_they_are_remembered_for_other_times() {
    let server = Server::start();
    let remembering = async |retention| {
        let builder = LeaseManager::builder().ttl(SHORT).fence_retention(Some(retention));
        builder.connect(&server.url()).await.expect("a manager")
    };
    let (brief, lasting) = (remembering(2 * SHORT).await, remembering(360 * LONG).await);
    let mut last = 0;
    for round in 0..6 {
        let leases = if round % 2 == 0 { &brief } else { &lasting };
        let lease = leases.lock("a").lock().await.expect("a lease");
        let fence = lease.fence().expect("a token");
        assert!(fence > last, "round {round}: {fence} after {last}");
        last = fence;
        lease.unlock().await.expect("a release");
        let left = server.command(&["PTTL", "redisson_lock_token:{a}"]).int();
        println!("round {round}: the token is remembered for {left} ms");
        // Never forever, and no shorter than by the shorter one.
        assert!(left > SHORT.as_millis() as i64, "round {round}: {left} ms");
    }
}
