//! Leases on a ZooKeeper ensemble that loses its leader or its majority, with a crowd on all members:
//! never do two believe at once, and what is left afterwards is nothing.

use kit::beliefs::{Belief, Beliefs, Watched};
use kit::relay::Traffic;
use kit::zookeeper::{Look, ZooKeeper};
use kit::{connect_in_the_end, within};
use leasehold::clock::{Clock, Instant};
use leasehold::{ErrorKind, Lease, LeaseManager};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Less than what members of an ensemble take to notice that one of them is silent.
const T: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(40);
const NAMES: [&str; 3] = ["a", "b", "c"];

async fn connect(url: &str, ttl: Duration) -> LeaseManager {
    connect_in_the_end(LeaseManager::builder().ttl(ttl), url).await
}

/// Flows on each member, and some that know all members, which lock a few names again and again.
struct Callers {
    beliefs: Arc<Beliefs>,
    stop: CancellationToken,
    tasks: Vec<(Arc<AtomicUsize>, JoinHandle<()>)>,
    managers: Vec<LeaseManager>,
}

impl Callers {
    async fn on(servers: &ZooKeeper, ttl: Duration) -> Self {
        let mut callers = Self {
            beliefs: Arc::new(Beliefs::start()),
            stop: CancellationToken::new(),
            tasks: Vec::new(),
            managers: Vec::new(),
        };
        for number in 0..8 {
            let url = if number < 6 { servers.url_of(number % 3) } else { servers.url() };
            let leases = connect(&url, ttl).await;
            let grants = Arc::new(AtomicUsize::new(0));
            let (beliefs, stop) = (Arc::clone(&callers.beliefs), callers.stop.clone());
            let running = roam(number, leases.clone(), ttl, beliefs, stop, Arc::clone(&grants));
            callers.tasks.push((grants, tokio::spawn(running)));
            callers.managers.push(leases);
        }
        callers.until_all_were_let_in().await;
        callers
    }

    /// Each once more.
    async fn until_all_were_let_in(&self) {
        let counts = || self.tasks.iter().map(|(grants, _)| grants.load(Ordering::Relaxed));
        let before: Vec<usize> = counts().collect();
        let start = std::time::Instant::now();
        while counts().zip(&before).any(|(now, before)| now <= *before) {
            let now: Vec<usize> = counts().collect();
            assert!(start.elapsed() < LONG, "{before:?}, and now {now:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// When all is well again: everybody gets in once more, then all stop, and nothing is left.
    async fn end(self, servers: &ZooKeeper, lasting: Vec<LeaseManager>) -> Vec<Belief> {
        self.until_all_were_let_in().await;
        self.stop.cancel();
        for (_, running) in self.tasks {
            within(LONG, running).await.expect("it ends well");
        }
        let look = Look::at(&servers.hosts()).await;
        for name in NAMES.into_iter().chain(KEPT) {
            look.until_nodes(name, 0).await;
        }
        for leases in self.managers.into_iter().chain(lasting) {
            leases.close().await.expect("all is released");
        }
        look.until_children("/leasehold/sessions", 0).await;
        self.beliefs.judge()
    }
}

async fn roam(
    number: usize,
    leases: LeaseManager,
    ttl: Duration,
    beliefs: Arc<Beliefs>,
    stop: CancellationToken,
    grants: Arc<AtomicUsize>,
) {
    let caller = format!("caller {number}");
    for round in number.. {
        if stop.is_cancelled() {
            return;
        }
        let mut lock = leases.lock(NAMES[round % NAMES.len()]);
        match lock.lock_timeout(ttl * 2).await {
            Ok(Some(lease)) => {
                let held = beliefs.watch(&caller, lease);
                grants.fetch_add(1, Ordering::Relaxed);
                // Some for long enough to have it in any fault.
                let most = [5, 100, 20, 700, 40][round % 5];
                let _ = tokio::time::timeout(Duration::from_millis(most), stop.cancelled()).await;
                // It may be lost.
                let _ = held.unlock().await;
            }
            Ok(None) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Acquires a name. Asks again while there is no session: a member may take longer than a lease lasts to join the others
/// again.
pub(super) async fn hold(leases: &LeaseManager, name: &str) -> Lease {
    loop {
        match leases.lock(name).lock().await {
            Ok(lease) => return lease,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
        }
    }
}

/// Names that are held for as long as nothing happens, one by a holder on each member.
const KEPT: [&str; 3] = ["kept:0", "kept:1", "kept:2"];

/// Each member has one holder, and one waiter for a name that is held on another member.
struct Keepers {
    managers: Vec<LeaseManager>,
    held: Vec<Watched>,
    waiting: Vec<JoinHandle<Watched>>,
}

impl Keepers {
    async fn on(servers: &ZooKeeper, ttl: Duration, beliefs: &Arc<Beliefs>) -> Self {
        let mut keepers = Self { managers: Vec::new(), held: Vec::new(), waiting: Vec::new() };
        for (node, name) in KEPT.into_iter().enumerate() {
            let leases = connect(&servers.url_of(node), ttl).await;
            keepers.held.push(beliefs.watch("holder", hold(&leases, name).await));
            keepers.managers.push(leases);
        }
        for (node, name) in KEPT.into_iter().enumerate() {
            let leases = connect(&servers.url_of((node + 1) % 3), ttl).await;
            let beliefs = Arc::clone(beliefs);
            keepers.managers.push(leases.clone());
            let waiting = async move { beliefs.watch("waiter", hold(&leases, name).await) };
            keepers.waiting.push(tokio::spawn(waiting));
        }
        // The heartbeats have a rhythm; be anywhere in it.
        tokio::time::sleep(ttl / 2).await;
        keepers
    }

    /// Who was let in, after the one before is told; gives it back.
    async fn next(&mut self, node: usize) -> Belief {
        let next = within(LONG, &mut self.waiting[node]).await.expect("it runs");
        assert!(self.held[node].lease().check().is_err());
        let belief = next.so_far();
        // It may be lost again meanwhile.
        let _ = next.unlock().await;
        belief
    }

    /// All were told a time to live after this at the latest: so long would no leader keep a session of which
    /// he has heard nothing more.
    fn ended_in_time(&self, fault: Instant, ttl: Duration) {
        for held in &self.held {
            let Belief { name, until, fired, .. } = held.so_far();
            let fired = fired.unwrap_or_else(|| panic!("{name}: the token has not fired"));
            println!("{name}: told {:?} after the fault", fired.saturating_duration_since(fault));
            assert!(until < fault + ttl, "{name}: believed until {until:?}, fault at {fault:?}");
            assert!(fired < fault + ttl, "{name}: fired at {fired:?}, fault at {fault:?}");
        }
    }

    /// Everything is released.
    async fn end(self) -> Vec<LeaseManager> {
        for held in self.held {
            let _ = held.unlock().await;
        }
        for waiting in self.waiting {
            if !waiting.is_finished() {
                let next = within(LONG, waiting).await.expect("it runs");
                let _ = next.unlock().await;
            }
        }
        self.managers
    }
}

fn now() -> Instant {
    Clock::system().now()
}

fn others(node: usize) -> [usize; 2] {
    [(node + 1) % 3, (node + 2) % 3]
}

#[tokio::test]
async fn leader_frozen_leases_elsewhere_outlive_a_quick_election() {
    let servers = ZooKeeper::ensemble_that_notices(5);
    let (ttl, leader) = (5 * T, servers.leader());
    let callers = Callers::on(&servers, ttl).await;
    let mut keepers = Keepers::on(&servers, ttl, &callers.beliefs).await;
    servers.freeze(leader);
    assert!(servers.wait_for(&others(leader)));
    keepers.next(leader).await;
    for node in others(leader) {
        keepers.held[node].lease().check().expect("held");
        assert!(!keepers.waiting[node].is_finished());
    }
    servers.thaw(leader);
    assert!(servers.wait_for(&[0, 1, 2]));
    let managers = keepers.end().await;
    callers.end(&servers, managers).await;
}

/// It takes longer to notice than a lease lasts.
#[tokio::test]
async fn leader_frozen_ends_holders_before_others_enter() {
    let servers = ZooKeeper::ensemble();
    let leader = servers.leader();
    let callers = Callers::on(&servers, T).await;
    let mut keepers = Keepers::on(&servers, T, &callers.beliefs).await;
    let fault = now();
    servers.freeze(leader);
    tokio::time::sleep(T).await;
    keepers.ended_in_time(fault, T);
    assert!(servers.wait_for(&others(leader)));
    // By a holder on the leader itself.
    let waits_for = (leader + 2) % 3;
    for node in (0..3).filter(|node| *node != waits_for) {
        keepers.next(node).await;
    }
    servers.thaw(leader);
    assert!(servers.wait_for(&[0, 1, 2]));
    let managers = keepers.end().await;
    callers.end(&servers, managers).await;
}

/// Each side notices only that the other is silent.
#[tokio::test]
async fn leader_cut_off_ends_holders_before_others_enter() {
    let (servers, links) = ZooKeeper::linked();
    let leader = servers.leader();
    let callers = Callers::on(&servers, T).await;
    let mut keepers = Keepers::on(&servers, T, &callers.beliefs).await;
    let fault = now();
    links.set(leader, Traffic::Hold);
    tokio::time::sleep(T).await;
    keepers.ended_in_time(fault, T);
    let waits_for = (leader + 2) % 3;
    for node in (0..3).filter(|node| *node != waits_for) {
        keepers.next(node).await;
    }
    links.heal();
    assert!(servers.wait_for(&[0, 1, 2]));
    let managers = keepers.end().await;
    callers.end(&servers, managers).await;
}

/// The others elect a new one while the old one still believes in himself, and goes on answering reads.
#[tokio::test]
async fn holder_on_a_deposed_leader_ends_before_the_next_enters() {
    let (servers, links) = ZooKeeper::linked();
    // Six seconds were too short for an election on a machine with a load of 15.
    let (ttl, leader) = (8 * T, servers.leader());
    let callers = Callers::on(&servers, ttl).await;
    let mut keepers = Keepers::on(&servers, ttl, &callers.beliefs).await;
    let fault = now();
    links.set(leader, Traffic::Orphan);
    assert!(servers.wait_for(&others(leader)));
    let next = keepers.next(leader).await;
    println!("let in {:?} after the fault", next.from.saturating_duration_since(fault));
    let last = keepers.held[leader].so_far();
    assert!(last.until < fault + ttl && last.until < next.from, "{last:?}, fault at {fault:?}");
    assert!(last.fired.is_some_and(|fired| fired < next.from), "{last:?}, {next:?}");
    for node in others(leader) {
        keepers.held[node].lease().check().expect("held");
        assert!(!keepers.waiting[node].is_finished());
    }
    links.heal();
    assert!(servers.wait_for(&[0, 1, 2]));
    let managers = keepers.end().await;
    callers.end(&servers, managers).await;
}

#[tokio::test]
async fn majority_frozen_ends_holders_before_sessions() {
    let servers = ZooKeeper::ensemble();
    let callers = Callers::on(&servers, T).await;
    let mut managers = Vec::new();
    // A leader that wakes up ends at once the sessions of which it should have heard meanwhile.
    for length in [T * 11 / 10, T * 13 / 10, T * 2] {
        let leader = servers.leader();
        let keepers = Keepers::on(&servers, T, &callers.beliefs).await;
        let fault = now();
        let frozen = [leader, (leader + 1) % 3];
        frozen.iter().for_each(|node| servers.freeze(*node));
        tokio::time::sleep(length).await;
        frozen.iter().for_each(|node| servers.thaw(*node));
        keepers.ended_in_time(fault, T);
        assert!(servers.wait_for(&[0, 1, 2]));
        managers.extend(keepers.end().await);
    }
    callers.end(&servers, managers).await;
}

#[tokio::test]
async fn holders_end_in_time_when_no_server_reaches_another() {
    let (servers, links) = ZooKeeper::linked();
    let callers = Callers::on(&servers, T).await;
    let keepers = Keepers::on(&servers, T, &callers.beliefs).await;
    let fault = now();
    (0..3).for_each(|node| links.set(node, Traffic::Hold));
    tokio::time::sleep(T).await;
    keepers.ended_in_time(fault, T);
    links.heal();
    assert!(servers.wait_for(&[0, 1, 2]));
    let managers = keepers.end().await;
    callers.end(&servers, managers).await;
}
