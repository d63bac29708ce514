//! Elections on ZooKeeper when the leader's session ends and it comes back: one leads at a time.

use kit::relay::{Relay, Traffic};
use kit::zookeeper::{Look, ZooKeeper};
use kit::{connect_in_the_end, eventually, within};
use leasehold::clock::{Clock, Instant};
use leasehold::{CancellationToken, Leadership, LeaseManager};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

const T: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(30);

/// A term, as its leader believed in it.
#[derive(Clone, Debug)]
struct Term {
    number: u64,
    leader: usize,
    from: Instant,
    /// When a check was last good.
    until: Instant,
}

/// The terms so far, in the order in which they began.
type Terms = Arc<Mutex<Vec<Term>>>;

/// Leads until its body is dropped, and notes for how long it believed.
async fn leads(me: &Leadership, leader: usize, terms: &Terms) -> ControlFlow<()> {
    let clock = Clock::system();
    let number = me.term().expect("a term");
    let at = {
        let mut terms = terms.lock().expect("no panic");
        let now = clock.now();
        terms.push(Term { number, leader, from: now, until: now });
        terms.len() - 1
    };
    loop {
        let now = clock.now();
        if me.check().is_ok() {
            terms.lock().expect("no panic")[at].until = now;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A candidate behind a relay of its own.
struct Candidate {
    relay: Relay,
    stop: CancellationToken,
    leading: JoinHandle<leasehold::Result<()>>,
}

impl Candidate {
    async fn stand(server: &ZooKeeper, number: usize, terms: &Terms) -> Self {
        let relay = Relay::to_server(server.port(0));
        let leases = connect_in_the_end(LeaseManager::builder().ttl(T), &relay.url()).await;
        let (stop, terms) = (CancellationToken::new(), Arc::clone(terms));
        let election = leases.election("job");
        let mut candidate = election.candidate(number.to_string()).until(stop.clone());
        let leading = tokio::spawn(async move {
            candidate.lead(async move |me| leads(me, number, &terms).await).await
        });
        Self { relay, stop, leading }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leader_whose_session_ends_never_leads_beside_the_next() {
    let server = ZooKeeper::start();
    let terms = Terms::default();
    let mut candidates = Vec::new();
    for number in 0..3 {
        candidates.push(Candidate::stand(&server, number, &terms).await);
    }
    let observer = connect_in_the_end(LeaseManager::builder().ttl(T), &server.url()).await;
    let mut view = observer.election("job").observe();
    let seen = tokio::spawn(async move {
        let mut seen = Vec::new();
        loop {
            let leader = view.changed().await;
            if leader.stale_since.is_none() && leader.value.as_deref() == Some("over") {
                return seen;
            }
            seen.extend(leader.term);
        }
    });
    let count = || terms.lock().expect("no panic").len();
    eventually(LONG, || count() == 1).await;
    for round in 1..=4 {
        let leader = terms.lock().expect("no panic").last().expect("one leads").leader;
        // Be anywhere in the rhythm of the heartbeat.
        tokio::time::sleep(T / 7 * round).await;
        candidates[leader].relay.set(Traffic::Hold);
        eventually(LONG, || count() as u32 > round).await;
        // It comes back, with what it had on its way, while the next one leads.
        candidates[leader].relay.set(Traffic::Pass);
        tokio::time::sleep(T / 2).await;
    }
    let look = Look::at(&server.hosts()).await;
    look.until_nodes("job", 3).await;
    assert_eq!(count(), 5, "{terms:?}");
    for candidate in candidates {
        assert!(!candidate.leading.is_finished(), "it never ends by itself");
        candidate.stop.cancel();
        within(LONG, candidate.leading).await.expect("no panic").expect("it ends well");
    }
    let mut over = observer.election("job").candidate("over");
    let over = within(LONG, over.campaign()).await.expect("free");
    let seen = within(LONG, seen).await.expect("no panic");
    let terms = terms.lock().expect("no panic").clone();
    for pair in terms.windows(2) {
        let [before, after] = pair else { continue };
        assert!(before.until < after.from, "two led at once: {before:?}, {after:?}");
        assert!(before.number < after.number, "terms grow: {before:?}, {after:?}");
    }
    assert!(seen.is_sorted(), "{seen:?}");
    println!("{} terms, of which {seen:?} were seen", terms.len());
    over.resign().await.expect("released");
    look.until_nodes("job", 0).await;
}
