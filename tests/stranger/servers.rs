//! Redis, a quorum of three and ZooKeeper, in real time, with servers that are killed, paused and cut off.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kit::zookeeper::{TICK, ZooKeeper};
use kit::{Mode, Proxy, Server};

use crate::history::{Act, Backend, Clock, Deed, History, Log};
use crate::plan::{Plan, Size, Trouble};
use crate::reached::Runs;
use crate::trial::{self, Stage, Tally};
use crate::world::{Breaker, Site};

/// How late the machine may be.
const SLACK: Duration = Duration::from_millis(800);
/// What counts as a stall of the machine.
const STALL: Duration = Duration::from_millis(40);
/// How many plans run at one time, on the same servers.
const TOGETHER: usize = 5;

/// A Redis server behind a proxy.
struct Node {
    server: Server,
    proxy: Proxy,
    /// One thing goes wrong at a time.
    turn: Mutex<()>,
}

impl Node {
    fn start(options: &[&str]) -> Self {
        let server = Server::start_with(options);
        let proxy = Proxy::start(server.port());
        proxy.forget_requests();
        Self { server, proxy, turn: Mutex::new(()) }
    }

    fn strike(&self, trouble: Trouble) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let cut = |mode: Mode, length: Duration| {
            self.proxy.set(mode);
            thread::sleep(length);
            if mode == Mode::DropReplies {
                // No network loses some replies of a connection and passes on the next ones.
                self.proxy.close_all();
            }
            self.proxy.set(Mode::Pass);
        };
        match trouble {
            Trouble::Outage(length) => {
                self.server.kill();
                thread::sleep(length);
                self.server.restart();
            }
            Trouble::Hang(length) => {
                self.server.pause();
                thread::sleep(length);
                self.server.resume();
            }
            Trouble::HoldReplies(length) => {
                let modes = [
                    Mode::HoldReplies,
                    Mode::HoldRequests,
                    Mode::BlackHole,
                    Mode::DropReplies,
                    Mode::Refuse,
                ];
                cut(modes[length.subsec_micros() as usize % modes.len()], length);
            }
            Trouble::RunLate(length) => cut(Mode::HoldRequests, length),
            Trouble::LoseReplies(1) => cut(Mode::Duplicate, Duration::from_millis(500)),
            Trouble::LoseReplies(times) => {
                for time in 1..=times {
                    self.proxy.drop_reply_of(time * 2, "EVALSHA");
                }
                thread::sleep(Duration::from_millis(300));
            }
            Trouble::Slow { by, span } => cut(Mode::Delay(by), span),
            Trouble::Restart => {
                self.server.kill();
                self.server.restart();
            }
        }
    }
}

impl Breaker for Node {
    fn strike(&self, trouble: Trouble) {
        Self::strike(self, trouble);
    }
}

/// Strikes one node after the other.
struct Nodes {
    nodes: Vec<Node>,
    next: AtomicUsize,
}

impl Breaker for Nodes {
    fn strike(&self, trouble: Trouble) {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.nodes[next % self.nodes.len()].strike(trouble);
    }
}

/// Strikes one member after the other.
struct Ensemble {
    servers: ZooKeeper,
    next: AtomicUsize,
    turn: Mutex<()>,
}

impl Breaker for Ensemble {
    fn strike(&self, trouble: Trouble) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = self.next.fetch_add(1, Ordering::Relaxed) % 3;
        match trouble {
            Trouble::Outage(_) | Trouble::Restart => {
                self.servers.kill(peer);
                self.servers.launch(peer);
                self.servers.wait_for(&[0, 1, 2]);
            }
            Trouble::Hang(length)
            | Trouble::HoldReplies(length)
            | Trouble::Slow { span: length, .. } => {
                self.servers.freeze(peer);
                thread::sleep(length);
                self.servers.thaw(peer);
                self.servers.wait_for(&[0, 1, 2]);
            }
            Trouble::LoseReplies(_) | Trouble::RunLate(_) => {}
        }
    }
}

/// Notes in each history when the machine stood still.
struct Stalls(Arc<AtomicBool>);

impl Stalls {
    fn watch(log: Log) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&ends);
        thread::spawn(move || {
            let mut before = log.stamp();
            while !its.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(4));
                let now = log.stamp();
                if now.at - before.at > STALL {
                    let act = Act {
                        deed: Deed::Stall,
                        manager: 0,
                        start: before,
                        end: Some(now),
                        failure: None,
                    };
                    log.write(|history| history.acts.push(act));
                }
                before = now;
            }
        });
        Self(ends)
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What came of a plan.
struct Finished {
    history: History,
    report: Option<String>,
}

/// Where plans run.
struct Ground {
    backend: Backend,
    url: String,
    ttl: Duration,
    breaker: Arc<dyn Breaker>,
}

/// Runs plans, some at a time, until the time is over.
fn try_seeds(ground: &Ground, default: Duration) {
    let reaching = Runs::begin(ground.backend, true);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let end = Instant::now() + trial::span(default);
    let given = trial::seed();
    let mut seed = given.unwrap_or_else(|| trial::first_seed(1));
    let mut runs = 0;
    let mut tally = Tally::default();
    while runs == 0 || Instant::now() < end {
        let count = if given.is_some() { 1 } else { TOGETHER };
        let logs = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for _ in 0..count {
            let mut plan = Plan::new(
                seed,
                ground.backend,
                Some(ground.ttl),
                Size { processes: 3, actors: 6, steps: 5 },
            );
            // All share the servers, and so what goes wrong.
            plan.mishaps.truncate(1);
            let site = Site::Servers {
                url: ground.url.clone(),
                breaker: Arc::clone(&ground.breaker),
                logs: Arc::clone(&logs),
            };
            let prefix = format!("s{seed}r{runs}:");
            let log = Log::new(plan.rules(SLACK), Clock::Host(kit::fault::boottime()));
            logs.lock().expect("no panic").push(log.clone());
            let stalls = Stalls::watch(log.clone());
            let stage = Stage { site, log, prefix, patience: 20 };
            tasks.push(runtime.spawn(async move {
                let history = trial::play(&plan, stage).await;
                drop(stalls);
                let report = trial::report(&plan, &history);
                Finished { history, report }
            }));
            seed += 1;
            runs += 1;
        }
        let mut reports = Vec::new();
        for task in tasks {
            let finished = runtime.block_on(task).expect("no panic");
            tally.add(&finished.history);
            reports.extend(finished.report);
        }
        if std::env::var("LEASEHOLD_STRANGER_ALL").is_ok() {
            reports.drain(..).for_each(|report| println!("{report}"));
        }
        assert!(reports.is_empty(), "{}", reports.join("\n"));
        if given.is_some() {
            break;
        }
    }
    println!("{runs} runs on {:?}, to seed {seed}\n{tally}", ground.backend);
    reaching.end();
}

#[test]
fn redis_keeps_its_promises() {
    let node = Node::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = node.proxy.url();
    let ground = Ground {
        backend: Backend::Redis,
        url,
        ttl: Duration::from_secs(1),
        breaker: Arc::new(node),
    };
    try_seeds(&ground, Duration::from_secs(6));
}

#[test]
fn quorum_keeps_its_promises() {
    let nodes: Vec<Node> = (0..3).map(|_| Node::start(&[])).collect();
    let url = nodes.iter().map(|node| node.proxy.url()).collect::<Vec<_>>().join(",");
    let ttl = Duration::from_secs(1);
    // A node counts when it has been up for a TTL.
    thread::sleep(ttl + Duration::from_secs(2));
    let ground = Ground {
        backend: Backend::Quorum,
        url,
        ttl,
        breaker: Arc::new(Nodes { nodes, next: AtomicUsize::new(0) }),
    };
    try_seeds(&ground, Duration::from_secs(6));
}

#[test]
fn zookeeper_keeps_its_promises() {
    let servers = ZooKeeper::ensemble();
    let url = servers.url();
    let ground = Ground {
        backend: Backend::ZooKeeper,
        url,
        ttl: TICK * 10,
        breaker: Arc::new(Ensemble { servers, next: AtomicUsize::new(0), turn: Mutex::new(()) }),
    };
    try_seeds(&ground, Duration::from_secs(6));
}
