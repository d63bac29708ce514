//! Uncontended `lock` + `unlock` against its floor: the same two scripts with the same arguments, run
//! bare through the same client library with the same socket options.
//!
//! Prints the ratio first, from short blocks that alternate between the two, because the machine's
//! mood changes over the seconds that criterion gives to each.

mod bare;

use bare::Loaded;
use criterion::{Criterion, criterion_group};
use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};
use kit::look::calls;
use kit::{Resp, Server};
use leasehold::{LeaseManager, Lock};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Acquire and release without a lock library.
#[derive(Clone)]
struct Bare {
    client: Client,
    scripts: Loaded,
    fenced: bool,
}

impl Bare {
    async fn connect(url: &str, fenced: bool) -> Self {
        let client = bare::client(url).await.expect("connected");
        let scripts = Loaded::new(&client).await.expect("loaded");
        Self { client, scripts, fenced }
    }

    async fn call(&self, words: Vec<Value>) {
        let command = CustomCommand::new_static("EVALSHA", ClusterHash::Offset(2), false);
        let _: Value = self.client.custom(command, words).await.expect("an answer");
    }

    async fn pair(&self, name: &str) {
        self.call(self.scripts.acquire(name, self.fenced)).await;
        self.call(self.scripts.release(name)).await;
    }
}

async fn pair(lock: &mut Lock) {
    let lease = lock.lock().await.expect("granted");
    lease.unlock().await.expect("released");
}

async fn locks(url: &str, fenced: bool) -> LeaseManager {
    LeaseManager::builder().fencing(fenced).connect(url).await.expect("connected")
}

/// The median of each, over samples taken in turn.
async fn medians(url: &str, fenced: bool) -> (Duration, Duration) {
    let bare = Bare::connect(url, fenced).await;
    let mut lock = locks(url, fenced).await.lock("leasehold");
    let (mut floors, mut ours) = (Vec::new(), Vec::new());
    for block in 0..200 {
        for _ in 0..50 {
            let start = Instant::now();
            bare.pair("bare").await;
            // The first blocks warm up the server, both clients and the processor.
            if block >= 20 {
                floors.push(start.elapsed());
            }
        }
        for _ in 0..50 {
            let start = Instant::now();
            pair(&mut lock).await;
            if block >= 20 {
                ours.push(start.elapsed());
            }
        }
    }
    (median(floors), median(ours))
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

fn print_ratio(runtime: &Runtime, url: &str) {
    println!("uncontended lock + unlock, medians of 9000 samples each, taken in turn");
    for fenced in [true, false] {
        let url = url.to_owned();
        let task = runtime.spawn(async move { medians(&url, fenced).await });
        let (floor, ours) = runtime.block_on(task).expect("measured");
        let ratio = ours.as_secs_f64() / floor.as_secs_f64();
        println!(
            "  fencing {fenced:<5}  bare scripts {floor:>10.1?}  leasehold {ours:>10.1?}  ratio {ratio:.2}"
        );
    }
}

async fn lingering(url: &str) -> LeaseManager {
    let builder = LeaseManager::builder().linger(Duration::from_millis(50));
    builder.connect(url).await.expect("connected")
}

/// Pairs of a lock for the same name again and again, with `linger`.
struct Lingering {
    /// The mean time of a pair without it, and with it.
    plain: Duration,
    lingers: Duration,
    /// The pairs with it for each grant of the store, and the scripts that the server ran for each.
    pairs: f64,
    scripts: f64,
}

impl Lingering {
    /// Measures both kinds in turn.
    async fn measure(url: &str, mut connection: Resp) -> Self {
        let plain = locks(url, true).await;
        let leases = lingering(url).await;
        let (mut asks, mut rests) = (plain.lock("plain"), leases.lock("rests"));
        let (mut times, mut measured, mut all) = ([Duration::ZERO; 2], 0, 0);
        let before = calls(&mut connection, "evalsha");
        for block in 0..100 {
            for (lock, time) in [&mut asks, &mut rests].into_iter().zip(&mut times) {
                let start = Instant::now();
                for _ in 0..500 {
                    pair(lock).await;
                }
                // The first blocks warm up.
                if block >= 10 {
                    *time += start.elapsed();
                }
            }
            measured += u32::from(block >= 10) * 500;
            all += 500;
        }
        // Each pair of the other kind is two scripts.
        let scripts = calls(&mut connection, "evalsha") - before - 2 * all;
        let grants = leases.stats().granted as f64;
        Self {
            plain: times[0] / measured,
            lingers: times[1] / measured,
            pairs: all as f64 / grants,
            scripts: scripts as f64 / grants,
        }
    }

    fn print(&self) {
        let Self { plain, lingers, pairs, scripts } = self;
        println!(
            "the same name again and again, means of 45000 pairs each, taken in turn\n  \
             without linger {plain:.1?}  with linger {lingers:.2?}, {pairs:.0} pairs and {scripts:.2} scripts for each grant of the server"
        );
    }
}

fn print_lingering(runtime: &Runtime, server: &Server) {
    let (url, connection) = (server.url(), server.connection());
    let task = runtime.spawn(async move { Lingering::measure(&url, connection).await });
    runtime.block_on(task).expect("measured").print();
}

fn uncontended(criterion: &mut Criterion) {
    let server = Server::start();
    let runtime = Runtime::new().expect("a runtime");
    print_ratio(&runtime, &server.url());
    print_lingering(&runtime, &server);

    let mut group = criterion.benchmark_group("uncontended");
    let bare = runtime.block_on(Bare::connect(&server.url(), true));
    group.bench_function("bare scripts", |bencher| {
        bencher.to_async(&runtime).iter(|| bare.pair("bare"));
    });
    for (store, url) in [("redis", server.url()), ("memory", "memory:".to_owned())] {
        let leases = runtime.block_on(locks(&url, true));
        group.bench_function(format!("lock + unlock, {store}"), |bencher| {
            bencher.to_async(&runtime).iter_custom(|times| {
                let mut lock = leases.lock("leasehold");
                async move {
                    let start = Instant::now();
                    for _ in 0..times {
                        pair(&mut lock).await;
                    }
                    start.elapsed()
                }
            });
        });
        group.bench_function(format!("nested lock + unlock, {store}"), |bencher| {
            bencher.to_async(&runtime).iter_custom(|times| {
                let mut lock = leases.lock("leasehold");
                async move {
                    let outer = lock.lock().await.expect("granted");
                    let start = Instant::now();
                    for _ in 0..times {
                        pair(&mut lock).await;
                    }
                    let elapsed = start.elapsed();
                    outer.unlock().await.expect("released");
                    elapsed
                }
            });
        });
    }
    // A hand-off in memory each time, but for a release and a grant of the store after each chain.
    let leases = runtime.block_on(lingering(&server.url()));
    group.bench_function("lock + unlock that lingers, redis", |bencher| {
        bencher.to_async(&runtime).iter_custom(|times| {
            let mut lock = leases.lock("rests");
            async move {
                let start = Instant::now();
                for _ in 0..times {
                    pair(&mut lock).await;
                }
                start.elapsed()
            }
        });
    });
    let leases = runtime.block_on(locks(&server.url(), true));
    group.bench_function("check", |bencher| {
        let lease =
            runtime.block_on(async { leases.lock("checked").lock().await }).expect("granted");
        bencher.iter(|| lease.check());
    });
    group.finish();
}

criterion_group!(benches, uncontended);
criterion::criterion_main!(benches);
