//! Deterministic simulation: all of leasehold but its Redis client, in processes of a simulated world
//! where requests, replies, wake-ups, keys, clocks, processes, users' runtimes and the log go wrong, and futures are
//! left alone, judged at every moment.
//!
//! One seed is one run, entirely. `LEASEHOLD_SEED=n` repeats one and prints what happened in it;
//! `LEASEHOLD_SEEDS=n` runs so many, `LEASEHOLD_SECONDS=n` as many as fit into n seconds.

mod breaks;
mod caller;
mod hand;
mod judge;
mod log;
mod plan;
mod runtime;
mod scripts;
mod server;
mod service;
mod share;
mod story;
mod unpolled;
mod world;

use judge::Sometimes;
use kit::reached::Counts;
use leasehold::store::Layout;
use plan::LogFault;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use story::{Outcome, run, run_with};

const SEEDS: u64 = 500;
/// Of those that run the scripts.
const SCRIPTED: u64 = 300;
/// On a slow machine the run ends after this time, with fewer seeds; those that were asked for all run.
const LONGEST: Duration = Duration::from_secs(30);
/// From so many seeds on, each rare state that `tests/kit/reached.txt` wants here must be reached.
const LONG: u64 = 10_000;
/// Failures after which a run ends early.
const MANY: usize = 10;

/// Seeds that once failed, and what they found, some of it breaks made on purpose. A change of what a seed
/// decides makes other stories of them.
const MUSEUM: [(u64, &str); 13] = [
    (
        0,
        "an abandoned acquire was not swept; a nested count was relative; a fence was passed on as it was",
    ),
    (1, "the deadline counted from the reply; the grace was missing"),
    (4, "a hold was renewed that nobody had"),
    (6, "each waiter counted the silence of an outage anew"),
    (7, "calls that were ready at once let nobody else run"),
    (11, "a renewal's verdict was ignored"),
    (19, "close released nothing"),
    (29, "an unlock that nobody polled kept its process waiting for the name"),
    (31, "a hold that was handed off was not renewed"),
    (35, "a waiter that was not polled kept the turn"),
    (66, "a reply after the loss was accepted"),
    (154, "a hold was forgotten when the waiter left that it was handed off to"),
    (8123, "an unlock waited once more for a nested call that had been put aside for long"),
];

/// The same of stories in which names are shared.
const MUSEUM_OF_MODES: [(u64, &str); 6] = [
    (
        224,
        "a try was told that the store is silent, because of a call that had been dropped beside a reader",
    ),
    (3812, "the hold of a reader whose upgrade had failed was handed off to a writer"),
    (628, "the same, because of a try that had found the name held, beside a waiter"),
    (2313, "the judge: a permit was handed off to a flow whose request the store had just refused"),
    (
        3919,
        "a try found the store silent, because of what was owed for a hold that had left the queue",
    ),
    (16664, "a release that had no answer ended the silence for those that wait"),
];

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

/// A story of a seed. Whether its log is kept.
type Run = fn(u64, bool) -> Outcome;

/// Tells of a failed run, with its story.
fn report(run: Run, test: &str, seed: u64, failure: &str) -> ! {
    let again = run(seed, true);
    again.log.iter().for_each(|line| println!("{line}"));
    let repeat = format!("LEASEHOLD_SEED={seed} cargo test --test simulation {test}");
    panic!("seed {seed}, {failure}\nrepeat it: {repeat}");
}

/// What a test has run.
struct Ran {
    seeds: u64,
    /// How often each thing happened, in the order of [`Sometimes::ALL`].
    sums: Vec<u64>,
}

/// Runs so many seeds, or those that were asked for. Returns `None` after a single seed.
fn run_seeds(run: Run, test: &str, seeds: u64, longest: Duration) -> Option<Ran> {
    if let Some(seed) = number("LEASEHOLD_SEED") {
        let outcome = run(seed, true);
        outcome.log.iter().for_each(|line| println!("{line}"));
        assert_eq!(outcome.failure, None, "seed {seed}");
        return None;
    }
    let asked = number("LEASEHOLD_SEEDS");
    let most = number("LEASEHOLD_SECONDS").map(Duration::from_secs);
    let seeds = asked.unwrap_or(if most.is_some() { u64::MAX } else { seeds });
    let most = most.or(asked.is_none().then_some(longest));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let (next, failed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let counts = [const { AtomicU64::new(0) }; Sometimes::ALL.len()];
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let late = most.is_some_and(|most| start.elapsed() > most);
                    if late || failed.lock().expect("no panic").len() >= MANY {
                        return;
                    }
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let outcome = run(seed, false);
                    for (sum, count) in counts.iter().zip(outcome.counts) {
                        sum.fetch_add(count, Ordering::Relaxed);
                    }
                    if let Some(failure) = outcome.failure {
                        failed.lock().expect("no panic").push((seed, failure));
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().expect("no panic");
    failed.sort();
    if let Some((seed, failure)) = failed.first() {
        let rest = failed.iter().map(|(seed, failure)| format!("\nseed {seed}, {failure}"));
        let all = format!("{failure}; all that failed:{}", rest.collect::<String>());
        report(run, test, *seed, &all);
    }
    let seeds = next.load(Ordering::Relaxed).min(seeds);
    let time = start.elapsed().as_secs_f64();
    println!("{seeds} seeds in {time:.1} s, {:.0} in a second", seeds as f64 / time);
    let mut sums = Vec::new();
    for (what, count) in Sometimes::ALL.iter().zip(&counts) {
        let count = count.load(Ordering::Relaxed);
        println!("{what:?}: {count}");
        assert!(count > 0 || seeds < 1000, "{what:?} never happened");
        sums.push(count);
    }
    Some(Ran { seeds, sums })
}

#[test]
fn whatever_goes_wrong_the_promises_hold() {
    let Some(ran) = run_seeds(run, "whatever_goes_wrong", SEEDS, LONGEST) else { return };
    let mut reached = Counts::of_this_process();
    for (what, count) in Sometimes::ALL.iter().zip(ran.sums) {
        reached.add(&format!("world.{what:?}"), count);
    }
    reached.report("simulation");
    let missing = reached.missing("simulation");
    assert!(missing.is_empty() || ran.seeds < LONG, "never reached: {missing:?}");
}

/// The layout that the scripts of a seed have.
fn layout_of(seed: u64) -> Layout {
    if seed.is_multiple_of(4) { Layout::Plain } else { Layout::Redisson }
}

fn run_scripts(seed: u64, keep_log: bool) -> Outcome {
    run_with(seed, keep_log, |plan| plan.run_scripts(layout_of(seed)))
}

#[test]
fn scripts_decide_as_the_simulated_server_does() {
    run_seeds(run_scripts, "scripts_decide", SCRIPTED, LONGEST / 2);
}

#[test]
fn seed_makes_the_same_story_each_time() {
    for seed in 1_000_000..1_000_036 {
        // The last of them run the scripts.
        let run: Run = if seed < 1_000_030 { run } else { run_scripts };
        let (first, second) = (run(seed, true), run(seed, true));
        let parts = first.log.iter().zip(&second.log);
        let differs = parts.enumerate().find(|(_, (first, second))| first != second);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.log.len(), second.log.len(), "seed {seed}");
    }
}

/// But for a log that blocks: closing waits for it, for a while.
#[test]
fn whatever_the_log_does_the_story_is_the_same() {
    for seed in 2_000_000..2_000_006 {
        let story = |log: Option<LogFault>| {
            let outcome = run_with(seed, true, |plan| {
                (plan.log, plan.log_panics_in_calls) = (log, None);
            });
            assert_eq!(outcome.failure, None, "seed {seed}, {log:?}");
            outcome.log
        };
        let reported = story(None);
        assert_eq!(story(Some(LogFault::Panic)), reported, "seed {seed}");
        assert_eq!(story(Some(LogFault::Slow)), reported, "seed {seed}");
        let blocked = story(Some(LogFault::Block));
        let closed = reported.iter().position(|line| line.contains(" ends its connections"));
        let same = closed.unwrap_or(reported.len());
        assert_eq!(blocked[..same], reported[..same], "seed {seed}");
    }
}

#[test]
fn what_once_failed_does_not_fail_again() {
    for (seed, found) in MUSEUM {
        // In those days nobody shared a name.
        let alone = |plan: &mut plan::Plan| (plan.sharers, plan.services) = (0, 0);
        if let Some(failure) = run_with(seed, false, alone).failure {
            println!("it had found: {found}");
            panic!("seed {seed}, {failure}");
        }
    }
    for (seed, found) in MUSEUM_OF_MODES {
        if let Some(failure) = run_with(seed, false, |plan| plan.services = 0).failure {
            println!("it had found: {found}");
            panic!("seed {seed}, {failure}");
        }
    }
}
