//! Permits, beside a plain lock and tokio's semaphore.

use super::{Bench, in_turn, rate};
use kit::{Proxy, in_line};
use leasehold::LeaseManager;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::yield_now;

pub(super) async fn alone(bench: &mut Bench) {
    pair(bench).await;
    hand_off(bench).await;
    many(bench).await;
}

async fn pair(bench: &mut Bench) {
    let leases = bench.connect().await;
    let (pool, mut lock) = (leases.semaphore("pool", 4), leases.lock("plain"));
    let permit = async || pool.acquire().await.expect("granted").unlock().await.expect("released");
    let plain = async || lock.lock().await.expect("granted").unlock().await.expect("released");
    let (permit, plain) = in_turn((bench.pick(100, 5), 50), permit, plain).await;
    bench.targets.at_most(
        "permit acquire + unlock / plain lock + unlock",
        1.4,
        Some(permit / plain),
    );
    bench.targets.beside(format!("{:.0} us / {:.0} us", permit / 1e3, plain / 1e3));
}

/// One permit goes from one task to the next.
async fn hand_off(bench: &mut Bench) {
    let proxy = Proxy::start(bench.server.port());
    let builder = LeaseManager::builder().ttl(Duration::from_secs(300));
    let leases = builder.connect(&proxy.url()).await.expect("connected");
    let pool = leases.semaphore("handed-off", 1);
    let sent = || proxy.requests().iter().filter(|words| words.contains("handed-off")).count();
    let (mut requests, hand_offs) = (0, 50);
    for _ in 0..hand_offs {
        let permit = pool.acquire().await.expect("granted");
        let next = pool.clone();
        let before = sent();
        let waits = in_line(async move { next.acquire().await.expect("handed off") });
        // It asks, subscribes if this manager has not yet, and asks once more.
        let asked = || sent() >= before + 2;
        kit::eventually(Duration::from_secs(5), asked).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        let before = sent();
        permit.unlock().await.expect("handed off");
        let permit = waits.await.expect("no panic");
        requests += sent() - before;
        permit.unlock().await.expect("released");
    }
    bench.targets.at_most("permit handed off in process, requests", 0.0, Some(requests as f64));
    bench.targets.beside(format!("in {hand_offs} of them"));
}

/// 64 tasks for 4 permits, each of which keeps its permit while others run.
pub(super) async fn together(bench: &mut Bench) {
    let span = bench.pick(Duration::from_secs(3), Duration::from_millis(200));
    let leases = bench.connect().await;
    let before = bench.requests();
    let ours = rate((64, span), |ends| {
        let pool = leases.semaphore("crowd", 4);
        async move {
            let mut changes = 0;
            while ends.go_on() {
                let permit = pool.acquire().await.expect("granted");
                yield_now().await;
                permit.unlock().await.expect("released");
                changes += 1;
            }
            changes
        }
    });
    let ours = ours.await;
    let requests = (bench.requests() - before) as f64 / (ours * span.as_secs_f64());
    let pool = Arc::new(Semaphore::new(4));
    let tokios = rate((64, span), |ends| {
        let pool = Arc::clone(&pool);
        async move {
            let mut changes = 0;
            while ends.go_on() {
                let permit = pool.acquire().await.expect("open");
                yield_now().await;
                drop(permit);
                changes += 1;
            }
            changes
        }
    });
    let tokios = tokios.await;
    bench.targets.record("64 tasks for 4 permits, M changes of holder/s", ours / 1e6);
    bench
        .targets
        .beside(format!("{requests:.3} requests for each; tokio's Semaphore {:.2}", tokios / 1e6));
}

/// Many permits of one name, acquired one after the other, and all held.
async fn many(bench: &mut Bench) {
    let permits = bench.pick(10_000, 500);
    let pool = bench.connect().await.semaphore("many", permits);
    let each = |start: Instant| start.elapsed().as_secs_f64() * 1e6 / f64::from(permits);
    let start = Instant::now();
    let mut held = Vec::new();
    for _ in 0..permits {
        held.push(pool.acquire().await.expect("granted"));
    }
    let acquired = each(start);
    let start = Instant::now();
    for permit in held {
        permit.unlock().await.expect("released");
    }
    bench.targets.record(&format!("acquire one of {permits} permits, us"), acquired);
    bench.targets.beside(format!("unlock {:.0}", each(start)));
}
