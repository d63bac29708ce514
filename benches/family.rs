//! What stays in the process: readers that join a hold, permits that are handed off, and thousands of permits of one name.
//!
//! Not a sampling bench: it runs each once, for a few seconds, and prints what it measured.

use kit::Server;
use leasehold::LeaseManager;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const SPAN: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() {
    let leases = LeaseManager::in_memory();
    println!("read join + unlock, one task: {:?}", join_alone(&leases).await);
    for readers in [2, 64] {
        let rate = joins(&leases, readers).await;
        println!("reads by {readers} tasks that overlap: {:.2} M/s in total", rate / 1e6);
    }
    println!("permit handed off, 64 tasks for 4 permits: {:?} each", hand_off(&leases).await);
    let server = Server::start();
    let leases = LeaseManager::builder().connect(&server.url()).await.expect("connected");
    for permits in [1_000, 10_000] {
        let (acquired, released) = many(&leases, permits).await;
        println!(
            "{permits} permits of one name on Redis: acquire {acquired:?}, unlock {released:?} each"
        );
    }
}

/// The median time of a join and the unlock that follows, beside a reader that stays for T/10.
async fn join_alone(leases: &LeaseManager) -> Duration {
    let (mut first, mut second) = (leases.rw_lock("join"), leases.rw_lock("join"));
    let page = first.read().await.expect("granted");
    let mut times = Vec::new();
    for _ in 0..1_000 {
        let start = Instant::now();
        for _ in 0..100 {
            let joined = second.read().await.expect("joined");
            joined.unlock().await.expect("left");
        }
        times.push(start.elapsed() / 100);
    }
    drop(page);
    times.sort();
    times[times.len() / 2]
}

/// The number of reads in a second by so many tasks. Each keeps its lease while the others run once, so that their reads
/// overlap: where none is left, the hold is released, and the next reader asks the store.
async fn joins(leases: &LeaseManager, readers: usize) -> f64 {
    let (ends, all) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..readers {
        let (mut handle, ends, all) =
            (leases.rw_lock("joins"), Arc::clone(&ends), Arc::clone(&all));
        tasks.spawn(async move {
            let mut own = 0;
            while !ends.load(Ordering::Relaxed) {
                let page = handle.read().await.expect("granted");
                tokio::task::yield_now().await;
                drop(page);
                own += 1;
            }
            all.fetch_add(own, Ordering::Relaxed);
        });
    }
    tokio::time::sleep(SPAN).await;
    ends.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    all.load(Ordering::Relaxed) as f64 / SPAN.as_secs_f64()
}

/// The time in which a permit changes hands once.
async fn hand_off(leases: &LeaseManager) -> Duration {
    let (ends, all) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let (pool, ends, all) = (leases.semaphore("pool", 4), Arc::clone(&ends), Arc::clone(&all));
        tasks.spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                pool.acquire().await.expect("granted").unlock().await.expect("released");
                all.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(SPAN).await;
    ends.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    SPAN / u32::try_from(all.load(Ordering::Relaxed)).expect("not that many")
}

/// The times in which so many permits are acquired, and unlocked, one after the other.
async fn many(leases: &LeaseManager, permits: u32) -> (Duration, Duration) {
    let pool = leases.semaphore(format!("many:{permits}"), permits);
    let start = Instant::now();
    let mut held = Vec::new();
    for _ in 0..permits {
        held.push(pool.acquire().await.expect("granted"));
    }
    let acquired = start.elapsed() / permits;
    let start = Instant::now();
    for permit in held {
        permit.unlock().await.expect("released");
    }
    (acquired, start.elapsed() / permits)
}
