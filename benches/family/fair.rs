//! Fair locks: the order between processes, and what a dead waiter in front costs.

use super::Bench;
use kit::order::{Kind, Order};
use kit::{Mode, Proxy, in_line};
use leasehold::LeaseManager;
use std::time::{Duration, Instant};

const T: Duration = Duration::from_secs(3);
/// The longest wait between two requests of a waiter.
const POLL: Duration = Duration::from_millis(300);
/// For how long the place of a waiter counts that is silent: three poll intervals, which are more than two attempts.
const KEPT: Duration = Duration::from_millis(900);

/// By how much waiters pass others that came before them, in four managers with eight tasks each.
pub(super) async fn together(bench: &mut Bench) {
    let span = bench.pick(Duration::from_secs(5), Duration::from_millis(500));
    let builder = LeaseManager::builder().ttl(T);
    let fair = Order::of(&bench.server, &builder, Kind::Fair, span).await;
    let plain = Order::of(&bench.server, &builder, Kind::Plain, span).await;
    let trips = fair.worst().as_secs_f64() / fair.slowest_round_trip().as_secs_f64();
    bench.targets.at_most(
        "fair: longest that one was passed by a later one / round trip",
        2.0,
        Some(trips),
    );
    bench.targets.beside(format!(
        "{:.1?} / {:.1?}, {} grants; plain lock {:.1?}",
        fair.worst(),
        fair.slowest_round_trip(),
        fair.grants(),
        plain.worst()
    ));
}

/// How long the next in line waits after a release, if the first one has died.
pub(super) async fn alone(bench: &mut Bench) {
    let builder = LeaseManager::builder().ttl(T).max_poll_interval(POLL);
    let (mut worst, mut without) = (Duration::ZERO, Duration::ZERO);
    for round in 0..bench.pick(10, 2) {
        let name = format!("head:{round}");
        let proxy = Proxy::start(bench.server.port());
        let [holder, dies, next] =
            [bench.server.url(), proxy.url(), bench.server.url()].map(|url| {
                let builder = builder.clone();
                async move { builder.connect(&url).await.expect("connected") }
            });
        let (holder, dies, next) = tokio::join!(holder, dies, next);
        let lease = holder.lock(&name).lock().await.expect("a lease");
        let mut head = dies.fair_lock(&name);
        let head = in_line(async move { head.lock().await });
        kit::order::lined(&holder, &name, 1).await;
        let mut lock = next.fair_lock(&name);
        let waits = in_line(async move { lock.lock().await.expect("granted") });
        kit::order::lined(&holder, &name, 2).await;
        proxy.set(Mode::BlackHole);
        let start = Instant::now();
        lease.unlock().await.expect("released");
        let lease = waits.await.expect("no panic");
        worst = worst.max(start.elapsed());
        head.abort();
        // And without one in front.
        let mut lock = holder.fair_lock(&name);
        let waits = in_line(async move { lock.lock().await.expect("granted") });
        kit::order::lined(&next, &name, 1).await;
        let start = Instant::now();
        lease.unlock().await.expect("released");
        waits.await.expect("no panic").unlock().await.expect("released");
        without = without.max(start.elapsed());
        proxy.set(Mode::Refuse);
    }
    let limit = KEPT + Duration::from_millis(50);
    let title = "fair: grant behind a dead waiter, ms after the release";
    bench.targets.at_most(title, limit.as_millis() as f64, Some(worst.as_secs_f64() * 1e3));
    bench.targets.beside(format!("none in front {:.1}", without.as_secs_f64() * 1e3));
}
