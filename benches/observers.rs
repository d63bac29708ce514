//! What observers cost: `lock` + `unlock` of 64 tasks with a name each, with metrics, an observer or a stream of events,
//! against a manager that nothing observes.
//!
//! ```sh
//! cargo bench --bench observers                # on a Redis server that it starts, and in memory
//! cargo bench --bench observers -- --redis     # one of them
//! ```
//!
//! Not a sampling bench. All variants run in one process, in short blocks that alternate, because the machine's mood changes
//! over the seconds that a sampling bench gives to each. Each ratio is the median of the ratios within a round, and comes
//! with the range of half of the rounds. On a machine with other load, the time of the processors is the better figure. The second manager without an observer shows what the machine
//! does by itself.

use kit::Server;
use leasehold::{Event, LeaseManager, Metrics, Observer};
use metrics_exporter_prometheus::PrometheusBuilder;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// The tasks that lock at the same time, each its own name.
const TASKS: usize = 64;
const ROUNDS: usize = 120;
/// The rounds that warm up servers, connections and the processor.
const WARM_UP: usize = 10;
/// What a stream keeps.
const KEPT: usize = 10_000;

/// Counts events.
struct Count(Arc<AtomicU64>);

impl Observer for Count {
    fn event(&self, _: &Event) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Variant {
    label: &'static str,
    leases: LeaseManager,
    /// The time of each block.
    took: Vec<f64>,
    /// The time of the processor that this process has used meanwhile.
    used: Vec<f64>,
}

impl Variant {
    fn new(label: &'static str, leases: LeaseManager) -> Self {
        Self { label, leases, took: Vec::new(), used: Vec::new() }
    }
}

/// Makes each task lock and unlock so many times. Returns the time for all.
async fn lock_and_unlock(leases: &LeaseManager, times: usize) -> Duration {
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for number in 0..TASKS {
        let mut lock = leases.lock(format!("leasehold:{number}"));
        tasks.spawn(async move {
            for _ in 0..times {
                let lease = lock.lock().await.expect("granted");
                lease.unlock().await.expect("released");
            }
        });
    }
    tasks.join_all().await;
    start.elapsed()
}

async fn measure(store: &str, url: &str, times: usize) {
    let plain = async || LeaseManager::connect(url).await.expect("connected");
    let with = async |observer| {
        let built = LeaseManager::builder().observer(observer).connect(url);
        built.await.expect("connected")
    };
    let counted = Arc::new(AtomicU64::new(0));
    let (read, unread) = (plain().await, plain().await);
    let mut stream = read.events(KEPT);
    let reader = tokio::spawn(async move {
        let mut seen = 0_u64;
        while stream.next().await.is_some() {
            seen += 1;
        }
        (seen, stream.dropped())
    });
    let unread_stream = unread.events(KEPT);
    let metrics = LeaseManager::builder().observer(Metrics::new()).connect(url);
    let mut variants = [
        Variant::new("without an observer", plain().await),
        Variant::new("once more", plain().await),
        Variant::new("metrics", metrics.await.expect("connected")),
        Variant::new("an observer", with(Count(Arc::clone(&counted))).await),
        Variant::new("events(n), read", read),
        Variant::new("events(n), not read", unread),
    ];
    for round in 0..ROUNDS {
        for turn in 0..variants.len() {
            // Each comes first, second and so on equally often.
            let who = (turn + round) % variants.len();
            let variant = &mut variants[who];
            let before = processor_time();
            let took = lock_and_unlock(&variant.leases, times).await;
            let used = processor_time() - before;
            if round >= WARM_UP {
                variant.took.push(took.as_secs_f64());
                variant.used.push(used);
            }
        }
    }
    let pairs = (TASKS * times) as f64;
    let [took, used] =
        [&variants[0].took, &variants[0].used].map(|all| quantile(all, 0.5) / pairs * 1e6);
    println!(
        "{store}: {took:.2} us for lock + unlock; {used:.2} us of the processors in this process"
    );
    for variant in &variants[1..] {
        println!(
            "  {:<20} time {}   processors {}",
            variant.label,
            more(&variant.took, &variants[0].took),
            more(&variant.used, &variants[0].used),
        );
    }
    for variant in &variants {
        variant.leases.close().await.expect("closed");
    }
    let (seen, dropped) = reader.await.expect("no panic");
    println!(
        "  the observer has seen {} events, the reader {seen}, {dropped} were dropped before it",
        counted.load(Ordering::Relaxed)
    );
    drop(unread_stream);
}

/// Shows how much more these are than those of the same rounds without an observer.
fn more(these: &[f64], base: &[f64]) -> String {
    let ratios: Vec<f64> =
        these.iter().zip(base).map(|(one, base)| (one / base - 1.0) * 100.0).collect();
    let [low, middle, high] = [0.25, 0.5, 0.75].map(|share| quantile(&ratios, share));
    format!("{middle:>+5.1} % ({low:+.1} to {high:+.1})")
}

/// Returns the seconds of the processors that this process has used.
fn processor_time() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// Returns the sample below which this share of them lies.
fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

fn main() {
    let wants = |store: &str| {
        let mut named = std::env::args().filter(|word| ["--redis", "--memory"].contains(&&**word));
        let first = named.next();
        first.is_none_or(|first| first == store || named.any(|word| word == store))
    };
    let recorder = PrometheusBuilder::new().build_recorder();
    let scrape = recorder.handle();
    metrics::set_global_recorder(recorder).expect("the only one");
    // A scrape empties the buckets of the histograms; without one they would only grow.
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            scrape.run_upkeep();
        }
    });
    let server = Server::start();
    let runtime = Runtime::new().expect("a runtime");
    println!(
        "{TASKS} tasks with a name each, {ROUNDS} rounds; the time more than without an observer"
    );
    let url = server.url();
    let redis = wants("--redis");
    let memory = wants("--memory");
    let task = runtime.spawn(async move {
        if redis {
            measure("redis", &url, 100).await;
        }
        if memory {
            measure("memory", "memory:", 500).await;
        }
    });
    runtime.block_on(task).expect("measured");
}
