//! Turns for a waiter of another process beside a crowd of tasks that want the same name all the time, however far away
//! the waiter is, and however long each holds.
//!
//! `LEASEHOLD_TURNS=60 cargo test --release --test turns -- --nocapture` measures for 60 seconds
//! each, one after the other, and prints the result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::look::channel;
use kit::{Pace, Pipe, Reply, Resp, Server, millis};
use leasehold::LeaseManager;
use tokio::task::JoinSet;

const TASKS: usize = 32;
const NAME: &str = "job";
const JAVA: &str = "5e1f3a54-5c1b-4b0e-9a39-0f5d1c0a7b11:47";

const fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

#[derive(Clone, Copy, Debug)]
enum Other {
    /// A manager so far away, one way.
    Far(Duration),
    /// A client that asks so long after a message, as Redisson's threads do.
    Slow(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Scene {
    inside: Duration,
    other: Other,
}

/// What came of a scene.
struct Outcome {
    /// The time in which the crowd serves each of its tasks once, alone.
    round: Duration,
    /// Turns of the crowd in a second, alone and beside the rival.
    alone: f64,
    beside: f64,
    waits: Vec<Duration>,
}

impl Outcome {
    fn share(&self, share: f64) -> Duration {
        let count = self.waits.len() as f64 * share;
        self.waits[(count.ceil() as usize).max(1) - 1]
    }

    fn bound(&self) -> Duration {
        2 * self.round + millis(100)
    }
}

impl Scene {
    fn play(self, time: Duration) -> Outcome {
        let server = Server::start();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let (over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let leases = runtime.block_on(LeaseManager::connect(&server.url())).expect("a manager");
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (mut lock, inside) = (leases.lock(NAME), self.inside);
            let (over, turns) = (Arc::clone(&over), Arc::clone(&turns));
            tasks.spawn_on(
                async move {
                    while !over.load(Ordering::Relaxed) {
                        let lease = lock.lock().await.expect("a lease");
                        if !inside.is_zero() {
                            tokio::time::sleep(inside).await;
                        }
                        turns.fetch_add(1, Ordering::Relaxed);
                        lease.unlock().await.expect("held");
                    }
                },
                runtime.handle(),
            );
        }
        let rate = |time: Duration| {
            let (start, before) = (Instant::now(), turns.load(Ordering::Relaxed));
            thread::sleep(time);
            let made = turns.load(Ordering::Relaxed) - before;
            made as f64 / start.elapsed().as_secs_f64()
        };
        let alone = rate(time / 4);
        let other = {
            let (over, server) = (Arc::clone(&over), server.port());
            thread::spawn(move || self.other.want(server, self.inside, &over))
        };
        let beside = rate(time);
        over.store(true, Ordering::Relaxed);
        let mut waits = other.join().expect("the rival gets its turns");
        waits.sort();
        runtime.block_on(async {
            while let Some(task) = tasks.join_next().await {
                task.expect("no panic");
            }
            leases.close().await.expect("closed");
        });
        let round = Duration::from_secs_f64(TASKS as f64 / alone);
        Outcome { round, alone, beside, waits }
    }
}

impl Other {
    /// Takes turns until it is over; returns how long it waited for each.
    fn want(self, port: u16, inside: Duration, over: &AtomicBool) -> Vec<Duration> {
        // It is away for a while after each turn.
        let away = millis(20);
        let mut waits = Vec::new();
        match self {
            Self::Far(one_way) => {
                let pipe = Pipe::start(port);
                pipe.set(Pace { latency: one_way, ..Pace::default() });
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(async {
                    let leases = LeaseManager::connect(&pipe.url()).await.expect("a manager");
                    let mut lock = leases.lock(NAME);
                    while !over.load(Ordering::Relaxed) {
                        let start = Instant::now();
                        let lease = lock.lock().await.expect("a lease");
                        waits.push(start.elapsed());
                        tokio::time::sleep(inside).await;
                        lease.unlock().await.expect("held");
                        tokio::time::sleep(away).await;
                    }
                });
            }
            Self::Slow(reaction) => {
                let mut commands = Resp::connect(port);
                while !over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    let mut messages = Resp::connect(port);
                    messages.subscribe(&channel(NAME));
                    while !commands.command(&["EVAL", TAKE, "1", NAME, JAVA]).is_nil() {
                        messages.next_message(Duration::from_secs(30));
                        thread::sleep(reaction);
                    }
                    drop(messages);
                    waits.push(start.elapsed());
                    thread::sleep(inside);
                    let given = commands.command(&["EVAL", GIVE, "1", NAME, JAVA, &channel(NAME)]);
                    assert_eq!(given, Reply::Int(1));
                    thread::sleep(away);
                }
            }
        }
        waits
    }
}

/// Takes the lock as Redisson does: `nil`, or the holder's time to live.
const TAKE: &str =
    "if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PTTL', KEYS[1]) end
    redis.call('HINCRBY', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], 30000) return nil";
const GIVE: &str = "assert(redis.call('HGET', KEYS[1], ARGV[1]) == '1')
    redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[2], '0') return 1";

fn report(scene: Scene, outcome: &Outcome) {
    let Outcome { round, alone, beside, waits } = outcome;
    println!(
        "{:>6?} inside, {:<14} round {round:>8.1?}, rival: {:>4} turns, waits p50 {:>7.1?} p90 {:>7.1?} max {:>7.1?}, \
         bound {:>7.1?}; crowd {alone:.0}/s alone, {beside:.0}/s beside it",
        scene.inside,
        format!("{:?}", scene.other),
        waits.len(),
        outcome.share(0.5),
        outcome.share(0.9),
        outcome.share(1.0),
        outcome.bound(),
    );
}

#[test]
fn waiter_elsewhere_gets_its_turn_after_two_rounds() {
    let others = [
        Other::Far(micros(250)),
        Other::Far(millis(1)),
        Other::Far(millis(3)),
        Other::Slow(millis(3)),
        Other::Slow(millis(6)),
    ];
    let scenes = |inside: u64| others.map(|other| Scene { inside: millis(inside), other });
    let seconds = std::env::var("LEASEHOLD_TURNS").ok().map(|text| text.parse().expect("seconds"));
    let mut outcomes = Vec::new();
    if let Some(seconds) = seconds {
        for scene in [0, 1, 25, 100].into_iter().flat_map(scenes) {
            outcomes.push((scene, scene.play(Duration::from_secs(seconds))));
            let (scene, outcome) = outcomes.last().expect("pushed");
            report(*scene, outcome);
        }
    } else {
        // Those that hold for long cost little, and go on at the same time.
        let begin = |scene: Scene| thread::spawn(move || scene.play(Duration::from_secs(11)));
        let long = scenes(25).map(|scene| (scene, begin(scene)));
        // A round trip that is longer than the longest pause of those who hold for a moment only.
        let far = Scene { inside: millis(25), other: Other::Far(millis(30)) };
        let played = begin(far);
        for (scene, played) in long {
            outcomes.push((scene, played.join().expect("the rival gets its turns")));
        }
        let outcome = played.join().expect("the rival gets its turns");
        report(far, &outcome);
        assert!(outcome.waits.len() >= 5, "{far:?}: {} turns", outcome.waits.len());
        for scene in [scenes(0)[2], scenes(1)[3]] {
            outcomes.push((scene, scene.play(Duration::from_secs(3))));
        }
        for (scene, outcome) in &outcomes {
            report(*scene, outcome);
        }
    }
    for (scene, outcome) in &outcomes {
        assert!(outcome.waits.len() >= 5, "{scene:?}: {} turns", outcome.waits.len());
        let waits = outcome.share(0.9);
        assert!(waits <= outcome.bound(), "{scene:?}: p90 is {waits:?} of {:?}", outcome.bound());
    }
}
