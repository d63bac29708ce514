//! Turns of one waiter beside a crowd of 32 in one process of the other language.
//!
//! The crowd does nothing but lock, stay inside for a while, and unlock. The one locks, unlocks and pauses. Nine tenths of
//! its waits must be over by the time in which the crowd could have been served twice, and a tenth of a second. The waits are
//! few, so more of them may be late by chance: two standard deviations are allowed.

use crate::peer::now;
use crate::scenarios;
use crate::world::{World, length, spread};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const T: Duration = Duration::from_secs(30);
const MANY: u32 = 32;
const PAUSE: Duration = Duration::from_millis(100);
const SLACK: Duration = Duration::from_millis(100);

scenarios! {
    java_has_turns_beside_many_of_rust_that_stay_long: on_a_server;
    java_has_turns_beside_many_of_rust_that_hardly_stay: on_a_quiet_server;
    rust_has_turns_beside_many_of_java_that_stay_long: on_a_server;
    rust_has_turns_beside_many_of_java_that_hardly_stay: on_a_quiet_server;
}

const STAYS_LONG: [u64; 2] = [100, 25];
const HARDLY_STAYS: [u64; 2] = [1, 0];
/// In these seconds there are some 30 to 60 waits, most far below the mean and a few far above. Of 10, a tenth would be chance.
const OF_MANY: u64 = 6;

async fn java_has_turns_beside_many_of_rust_that_stay_long(world: &World) {
    let [one, other] = STAYS_LONG.map(|inside| one_java(world, inside, length(20)));
    let (one, other) = tokio::join!(one, other);
    judge(world, "Java beside 32 of Rust", &mut [one, other]);
}

async fn java_has_turns_beside_many_of_rust_that_hardly_stay(world: &World) {
    let mut all = Vec::new();
    for inside in HARDLY_STAYS {
        all.push(one_java(world, inside, length(OF_MANY)).await);
    }
    judge(world, "Java beside 32 of Rust", &mut all);
}

async fn rust_has_turns_beside_many_of_java_that_stay_long(world: &World) {
    let [one, other] = STAYS_LONG.map(|inside| one_rust(world, inside, length(20)));
    let (one, other) = tokio::join!(one, other);
    judge(world, "Rust beside 32 of Java", &mut [one, other]);
}

async fn rust_has_turns_beside_many_of_java_that_hardly_stay(world: &World) {
    let mut all = Vec::new();
    for inside in HARDLY_STAYS {
        all.push(one_rust(world, inside, length(OF_MANY)).await);
    }
    judge(world, "Rust beside 32 of Java", &mut all);
}

/// What came of one run.
struct Run {
    inside: u64,
    /// When the crowd had gone.
    end: Duration,
    /// When each call of the one began, and when it was granted.
    waits: Vec<(Duration, Duration)>,
    /// In which time each of the crowd was served once.
    round: Duration,
}

async fn one_java(world: &World, inside: u64, length: Duration) -> Run {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let name = &*world.name("turns");
    let turns = Arc::new(AtomicU32::new(0));
    let start = now();
    let millis = [inside * 1_000, as_millis(PAUSE), as_millis(length)].map(|n| n.to_string());
    let tasks: Vec<_> = (0..MANY)
        .map(|_| {
            let (mut lock, turns) = (leases.lock(name), Arc::clone(&turns));
            tokio::spawn(async move {
                while now() - start < length {
                    let lease = lock.lock().await.expect("a lease");
                    stay(inside).await;
                    lease.unlock().await.expect("a release");
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let one = java.on("a").begin("hammer", &[name, "1", &millis[0], &millis[1], &millis[2]]);
    for task in tasks {
        task.await.expect("no panic");
    }
    let end = now();
    let waits = waits(&one.done().await.ok());
    let round = (end - start) * MANY / turns.load(Ordering::Relaxed).max(1);
    Run { inside, end, waits, round }
}

async fn one_rust(world: &World, inside: u64, length: Duration) -> Run {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let name = &*world.name("turns");
    let millis = [inside * 1_000, as_millis(length)].map(|n| n.to_string());
    let start = now();
    let many = MANY.to_string();
    let threads = java.on("a").begin("hammer", &[name, &many, &millis[0], "0", &millis[1]]);
    let mut lock = leases.lock(name);
    let mut own = Vec::new();
    while !threads.is_done() {
        let began = now();
        let lease = lock.lock().await.expect("a lease");
        own.push((began, now()));
        stay(inside).await;
        lease.unlock().await.expect("a release");
        tokio::time::sleep(PAUSE).await;
    }
    let done = threads.done().await;
    let end = done.ended;
    let turns = u32::try_from(waits(&done.ok()).len()).expect("a number of turns");
    Run { inside, end, waits: own, round: (end - start) * MANY / turns.max(1) }
}

fn as_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a short time")
}

async fn stay(inside: u64) {
    if inside > 0 {
        tokio::time::sleep(Duration::from_millis(inside)).await;
    }
}

/// As the agent tells them.
fn waits(text: &str) -> Vec<(Duration, Duration)> {
    let nanos = |text: &str| Duration::from_nanos(text.parse().expect("a time"));
    let pair = |text: &str| {
        let (began, granted) = text.split_once(':').expect("two times");
        (nanos(began), nanos(granted))
    };
    text.split_whitespace().map(pair).collect()
}

#[track_caller]
fn judge(world: &World, who: &str, runs: &mut [Run]) {
    let mut failed = Vec::new();
    for Run { inside, end, waits, round } in runs {
        let bound = *round * 2 + SLACK;
        // A wait that the end of the crowd has cut short counts if it was too long already.
        let mut times: Vec<Duration> = waits
            .iter()
            .filter(|(began, _)| began < end)
            .map(|(began, granted)| (*granted <= *end, (*granted).min(*end) - *began))
            .filter_map(|(whole, wait)| (whole || wait > bound).then_some(wait))
            .collect();
        if times.is_empty() {
            failed.push(format!("{inside} ms: no turn at all"));
            continue;
        }
        let (p50, p90, max) = spread(&mut times);
        let line = format!(
            "{who}, {inside} ms inside: {} turns, waits p50 {p50:.1?}, p90 {p90:.1?}, max {max:.1?}; \
             the crowd is served in {round:.1?}, bound {bound:.1?}",
            times.len()
        );
        world.note(&line);
        let number = times.len() as f64;
        let late = times.iter().filter(|time| **time > bound).count() as f64;
        if late > number / 10.0 + 2.0 * (number * 0.1 * 0.9).sqrt() {
            failed.push(line);
        }
    }
    assert!(failed.is_empty(), "too few turns: {failed:#?}");
}
