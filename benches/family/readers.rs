//! Readers of a process that join a hold, and a writer that waits beside a stream of them.

use super::{Bench, in_turn, rate};
use leasehold::LeaseManager;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::RwLock;
use tokio::task::{JoinSet, yield_now};

/// How often a join is repeated between two looks at the clock.
const JOINS: u32 = 100;
const READERS: usize = 64;

/// What a reader costs that joins another one.
pub(super) async fn alone(bench: &mut Bench) {
    let leases = bench.connect().await;
    let (mut first, mut second) = (leases.rw_lock("join"), leases.rw_lock("join"));
    let page = first.read().await.expect("granted");
    let before = bench.requests();
    for _ in 0..JOINS {
        second.read().await.expect("joined").unlock().await.expect("left");
    }
    let sent = bench.requests() - before;
    bench.targets.at_most("read join + unlock, requests", 0.0, Some(sent as f64));
    bench.targets.beside(format!("in {JOINS} of them"));

    let lock = RwLock::new(());
    let own = lock.read().await;
    let joins = async || {
        for _ in 0..JOINS {
            second.read().await.expect("joined").unlock().await.expect("left");
        }
    };
    let reads = async || {
        for _ in 0..JOINS {
            drop(lock.read().await);
        }
    };
    let (ours, tokios) = in_turn((bench.pick(200, 10), 5), joins, reads).await;
    drop((own, page));
    let each = |nanos: f64| nanos / f64::from(JOINS) / 1e3;
    bench.targets.at_most("read join + unlock, us", 3.0, Some(each(ours)));
    bench.targets.beside(format!("tokio's RwLock {:.3}", each(tokios)));
}

pub(super) async fn together(bench: &mut Bench) {
    many(bench).await;
    writer(bench).await;
}

/// How many reads the tasks of a process get done, on the same server as if others had the name, too.
async fn many(bench: &mut Bench) {
    let span = bench.pick(Duration::from_secs(3), Duration::from_millis(200));
    let lock = Arc::new(RwLock::new(()));
    for overlaps in [true, false] {
        let tokios = rate((READERS, span), |ends| {
            let lock = Arc::clone(&lock);
            async move {
                let mut reads = 0;
                while ends.go_on() {
                    let page = lock.read().await;
                    if overlaps {
                        yield_now().await;
                    }
                    drop(page);
                    reads += 1;
                }
                reads
            }
        });
        let tokios = tokios.await;
        for (store, leases) in
            [("memory", LeaseManager::in_memory()), ("Redis", bench.connect().await)]
        {
            let ours = rate((READERS, span), |ends| {
                let mut lock = leases.rw_lock("reads");
                async move {
                    let mut reads = 0;
                    while ends.go_on() {
                        let page = lock.read().await.expect("granted");
                        if overlaps {
                            yield_now().await;
                        }
                        drop(page);
                        reads += 1;
                    }
                    reads
                }
            });
            let ours = ours.await / 1e6;
            if overlaps {
                let title = format!("{READERS} readers that overlap, {store}, M joins/s");
                bench.targets.at_least(&title, 1.0, Some(ours));
            } else {
                // Now and then none is left: the hold is released, and the next reader asks the store.
                let title = format!("{READERS} readers that may not overlap, {store}, M reads/s");
                bench.targets.record(&title, ours);
            }
            bench.targets.beside(format!("tokio's RwLock {:.2}", tokios / 1e6));
        }
    }
}

const T: Duration = Duration::from_secs(3);
/// The longest wait between two requests of a waiter.
const POLL: Duration = Duration::from_millis(500);
const MANAGERS: u64 = 4;

/// How long a reader of the stream stays.
fn stay(round: u64) -> Duration {
    Duration::from_millis(2 + round * 37 % 50)
}

/// The longest wait of a writer beside four managers, each of which always has four readers.
async fn writer(bench: &mut Bench) {
    let builder = LeaseManager::builder().ttl(T).max_poll_interval(POLL);
    let connect = async || builder.clone().connect(&bench.server.url()).await.expect("connected");
    let (ends, longest) = (super::Ends::default(), Arc::new(AtomicU64::new(0)));
    let mut stream = JoinSet::new();
    for manager in 0..MANAGERS {
        let leases = connect().await;
        for reader in 0..4 {
            let (mut lock, ends, longest) =
                (leases.rw_lock("stream"), ends.clone(), Arc::clone(&longest));
            stream.spawn(async move {
                let mut round = manager * 11 + reader * 3;
                while ends.go_on() {
                    let page = lock.read().await.expect("granted");
                    let since = Instant::now();
                    tokio::time::sleep(stay(round)).await;
                    drop(page);
                    longest.fetch_max(since.elapsed().as_micros() as u64, Ordering::Relaxed);
                    round += 1;
                }
            });
        }
    }
    let mut lock = connect().await.rw_lock("stream");
    let mut worst = Duration::ZERO;
    for _ in 0..bench.pick(100, 3) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let start = Instant::now();
        let edit = lock.write().await.expect("granted");
        worst = worst.max(start.elapsed());
        edit.unlock().await.expect("released");
    }
    ends.0.store(true, Ordering::Relaxed);
    stream.join_all().await;
    let read = Duration::from_micros(longest.load(Ordering::Relaxed));
    let bound = read + T / 10 + POLL;
    let part = worst.as_secs_f64() / bound.as_secs_f64();
    bench.targets.at_most(
        "writer's longest wait under a stream of readers / bound",
        1.0,
        Some(part),
    );
    bench.targets.beside(format!(
        "{worst:.0?} of {bound:.0?}; tokio's RwLock {:.0?}",
        tokios_writer(bench.pick(100, 3)).await
    ));
}

/// The same for a lock of one process.
async fn tokios_writer(times: u32) -> Duration {
    let (ends, lock) = (super::Ends::default(), Arc::new(RwLock::new(())));
    let mut stream = JoinSet::new();
    for reader in 0..MANAGERS * 4 {
        let (lock, ends) = (Arc::clone(&lock), ends.clone());
        stream.spawn(async move {
            let mut round = reader * 3;
            while ends.go_on() {
                let page = lock.read().await;
                tokio::time::sleep(stay(round)).await;
                drop(page);
                round += 1;
            }
        });
    }
    let mut worst = Duration::ZERO;
    for _ in 0..times {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let start = Instant::now();
        drop(lock.write().await);
        worst = worst.max(start.elapsed());
    }
    ends.0.store(true, Ordering::Relaxed);
    stream.join_all().await;
    worst
}
