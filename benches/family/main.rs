//! The lock family against its targets, each figure beside what it is compared with in the same run: tokio's own primitives,
//! which is as fast as it gets within a process, or a lock + unlock of a plain lock on the same server.
//!
//! ```sh
//! cargo bench --bench family              # a minute and a half
//! cargo bench --bench family -- --quick   # seconds, to see that it works; so does `cargo test --bench family`
//! ```
//!
//! Starts a redis-server. Ends with an error if a target is missed, but not if it is quick.

#[path = "../compare/src/aligned.rs"]
mod aligned;
#[path = "../bare/mod.rs"]
mod bare;
mod fair;
mod permits;
mod readers;
mod sets;
#[path = "../compare/src/targets.rs"]
mod targets;

use kit::{Server, look};
use leasehold::LeaseManager;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use targets::Targets;
use tokio::task::JoinSet;

fn main() -> ExitCode {
    // `cargo bench` says so, and `cargo test` does not.
    let words: Vec<String> = std::env::args().collect();
    let has = |word: &str| words.iter().any(|one| one == word);
    let quick = has("--quick") || !has("--bench");
    let server = Server::start();
    let mut bench = Bench { server, quick, targets: Targets::default() };
    // What one task does is measured where no other thread takes part, and what many do on all of them.
    let alone = tokio::runtime::Builder::new_current_thread().enable_all().build();
    alone.expect("a runtime").block_on(async {
        readers::alone(&mut bench).await;
        permits::alone(&mut bench).await;
        sets::alone(&mut bench).await;
        fair::alone(&mut bench).await;
    });
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        readers::together(&mut bench).await;
        permits::together(&mut bench).await;
        fair::together(&mut bench).await;
    });
    if bench.targets.print() || quick { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Bench {
    server: Server,
    quick: bool,
    targets: Targets,
}

impl Bench {
    /// Chooses between the value for a whole run and that for a quick one.
    fn pick<T>(&self, whole: T, quick: T) -> T {
        if self.quick { quick } else { whole }
    }

    /// Connects a manager, with a time to live within which no renewal falls into a measurement.
    async fn connect(&self) -> LeaseManager {
        let builder = LeaseManager::builder().ttl(Duration::from_secs(300));
        builder.connect(&self.server.url()).await.expect("connected")
    }

    /// Returns how many requests the server has got.
    fn requests(&self) -> i64 {
        let mut connection = self.server.connection();
        ["evalsha", "eval", "subscribe", "unsubscribe"]
            .map(|command| look::calls(&mut connection, command))
            .iter()
            .sum()
    }
}

/// Measures two things in short blocks that take turns, because the machine's mood changes. Returns the medians of one run of
/// each, in nanoseconds. The first blocks warm up.
async fn in_turn(
    (blocks, times): (usize, usize),
    mut one: impl AsyncFnMut(),
    mut other: impl AsyncFnMut(),
) -> (f64, f64) {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for block in 0..blocks + blocks / 10 {
        for (of, is_one) in [(&mut ones, true), (&mut others, false)] {
            for _ in 0..times {
                let start = Instant::now();
                if is_one {
                    one().await;
                } else {
                    other().await;
                }
                let took = start.elapsed().as_nanos();
                if block >= blocks / 10 {
                    of.push(took);
                }
            }
        }
    }
    ones.sort_unstable();
    others.sort_unstable();
    (ones[ones.len() / 2] as f64, others[others.len() / 2] as f64)
}

/// Whether tasks that repeat something go on.
#[derive(Clone, Default)]
struct Ends(Arc<AtomicBool>);

impl Ends {
    fn go_on(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

/// Runs so many tasks for a while, each of which returns what it has counted. Returns the sum of them in a second.
async fn rate<F: Future<Output = u64> + Send + 'static>(
    (tasks, span): (usize, Duration),
    task: impl Fn(Ends) -> F,
) -> f64 {
    let ends = Ends::default();
    let start = Instant::now();
    let mut set = JoinSet::new();
    (0..tasks).for_each(|_| drop(set.spawn(task(ends.clone()))));
    tokio::time::sleep(span).await;
    ends.0.store(true, Ordering::Relaxed);
    let all: u64 = set.join_all().await.iter().sum();
    all as f64 / start.elapsed().as_secs_f64()
}
