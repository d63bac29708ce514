//! The order in which crowds of several managers get a lock, by the clock of this host.

use crate::{Server, within};
use leasehold::{Builder, LeaseManager};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(30);
const NAME: &str = "order";
const MANAGERS: usize = 4;

/// Which lock a crowd uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Fair,
}

/// What a crowd saw.
pub struct Order {
    /// When each that was granted the lock had come, and its manager, in the order of the grants.
    grants: Vec<(Instant, usize)>,
    /// By how much each was passed by one that came later.
    passed: Vec<Duration>,
    /// How long requests travelled meanwhile, there and back.
    round_trips: Vec<Duration>,
}

impl Order {
    /// Lets four managers with eight tasks each lock and unlock for a while, and until there are 500 grants.
    pub async fn of(server: &Server, builder: &Builder, kind: Kind, span: Duration) -> Self {
        let connect = async || builder.clone().connect(&server.url()).await.expect("a manager");
        let blocker = connect().await;
        let block = blocker.lock(NAME).lock().await.expect("a lease");
        let (grants, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let all = || grants.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tasks = JoinSet::new();
        for manager in 0..MANAGERS {
            let leases = connect().await;
            for task in 0..8_u64 {
                let (mut plain, mut fair) = (leases.lock(NAME), leases.fair_lock(NAME));
                let (grants, over) = (Arc::clone(&grants), Arc::clone(&over));
                tasks.spawn(async move {
                    let mut round = 0;
                    while !over.load(Ordering::Relaxed) {
                        let arrived = Instant::now();
                        let lease = match kind {
                            Kind::Plain => plain.lock().await,
                            Kind::Fair => fair.lock().await,
                        };
                        let lease = lease.expect("a lease");
                        let grant = (arrived, manager);
                        grants.lock().unwrap_or_else(PoisonError::into_inner).push(grant);
                        lease.unlock().await.expect("a release");
                        round += 1;
                        let pause = Duration::from_micros((task * 131 + round * 977) % 4_000);
                        tokio::time::sleep(pause).await;
                    }
                });
            }
        }
        if kind == Kind::Fair {
            lined(&blocker, NAME, MANAGERS).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        block.unlock().await.expect("a release");
        let mut round_trips = Vec::new();
        let start = Instant::now();
        while start.elapsed() < span || all().len() < 500 {
            let sent = Instant::now();
            blocker.inspect("elsewhere").await.expect("an answer");
            round_trips.push(sent.elapsed());
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(start.elapsed() < LONG, "too slow to measure");
        }
        // When the first goes, nobody may be left elsewhere, and the order is that of a plain lock.
        let grants = all().clone();
        over.store(true, Ordering::Relaxed);
        while let Some(task) = within(LONG, tasks.join_next()).await {
            task.expect("no panic");
        }
        let mut latest = grants[0].0;
        let mut passed = Vec::new();
        for (arrived, _) in &grants {
            passed.push(latest.saturating_duration_since(*arrived));
            latest = latest.max(*arrived);
        }
        passed.sort();
        round_trips.sort();
        Self { grants, passed, round_trips }
    }

    /// Returns how often the lock was granted.
    pub fn grants(&self) -> usize {
        self.grants.len()
    }

    /// Returns how often it went to another manager.
    pub fn changes(&self) -> usize {
        self.grants.windows(2).filter(|pair| pair[0].1 != pair[1].1).count()
    }

    /// Returns by how much one was passed at most.
    pub fn worst(&self) -> Duration {
        self.passed.last().copied().unwrap_or_default()
    }

    /// Returns how long the slowest request travelled.
    pub fn slowest_round_trip(&self) -> Duration {
        self.round_trips.last().copied().unwrap_or_default()
    }
}

/// Waits until so many managers are in the line.
pub async fn lined(leases: &LeaseManager, name: &str, count: usize) {
    within(LONG, async {
        while leases.waiters(name).await.expect("an answer").len() != count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
