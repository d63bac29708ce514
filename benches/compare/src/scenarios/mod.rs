//! One file for each scenario, and what they share.

mod contended;
mod crash;
mod herd;
mod multi;
mod processes;
mod throughput;
mod turns;
mod uncontended;
mod watchdog;

use crate::arguments::Arguments;
use crate::contender::{Boxed, Entry, Result, Runner};
use crate::process::Parent;
use crate::server::Server;
use crate::table::{Board, Sink};
use crate::targets::Targets;
use crate::{peers, pinned};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub struct Bench {
    pub arguments: Arguments,
    pub server: Server,
    /// For the scenario on a cluster, if it is wanted.
    pub cluster: Option<Server>,
    pub contenders: Vec<Connected>,
    pub sink: Sink,
    pub targets: Targets,
}

/// A contender, and its connection or why there is none.
pub struct Connected {
    pub entry: Entry,
    pub runner: Result<Box<dyn Runner>>,
}

impl Bench {
    pub async fn new(
        arguments: Arguments,
        server: Server,
        cluster: Option<Server>,
    ) -> Result<Self> {
        let sink = Sink::open(arguments.json.as_deref())?;
        let mut contenders = Vec::new();
        for entry in peers::all() {
            if arguments.wants_contender(&entry) {
                server.keyspace_events(entry.events);
                let runner = (entry.connect)(server.url()).await;
                contenders.push(Connected { entry, runner });
            }
        }
        server.keyspace_events(false);
        // Of a few contenders, some figures cannot be had.
        let targets = Targets::default().strict(arguments.only.is_empty());
        Ok(Self { arguments, server, cluster, contenders, sink, targets })
    }

    pub async fn run(&mut self) {
        let start = Instant::now();
        if !self.arguments.pinned {
            self.print_legend();
        }
        if self.arguments.wants("1") {
            uncontended::run(self).await;
            self.run_pinned("1").await;
        }
        for (scenario, tasks) in [("2", 64), ("2b", 512)] {
            if self.arguments.wants(scenario) {
                throughput::run(self, scenario, tasks).await;
                self.run_pinned(scenario).await;
            }
        }
        if self.arguments.wants("3") {
            contended::run(self).await;
        }
        if self.arguments.wants("3b") {
            herd::run(self).await;
        }
        if self.arguments.wants("4") {
            processes::run(self).await;
        }
        if self.arguments.wants("5") {
            watchdog::run(self).await;
        }
        if self.arguments.wants("6") {
            turns::run(self).await;
            self.run_pinned("6").await;
        }
        if self.arguments.wants("6b") {
            crash::run(self).await;
        }
        if self.arguments.wants("6c") {
            turns::run_on_a_cluster(self).await;
        }
        if self.arguments.wants("7") {
            multi::run(self).await;
        }
        if !self.arguments.pinned {
            println!("\nmeasured for {:.0} s", start.elapsed().as_secs_f64());
        }
    }

    /// Runs a scenario again, with client and server on one core, if it is one of those.
    async fn run_pinned(&mut self, scenario: &str) {
        if self.arguments.wants_pinned(scenario) {
            pinned::run(&self.arguments, &mut self.sink, scenario).await;
        }
    }

    /// Whether all targets that were measured are met. On one core none is judged.
    pub fn finish(self) -> bool {
        self.arguments.pinned || self.targets.print()
    }

    fn print_legend(&self) {
        let info: String = self.server.command(&["INFO", "server"]);
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        println!("Redis {} on loopback, {cores} cores", version.unwrap_or("?"));
        println!("medians of n rounds taken in turn (smallest..largest)");
        println!(
            "pinned: the same with client and server on one core, so that no core has to be woken\n"
        );
        let line = |one: &Connected| vec![one.entry.id.to_owned(), one.entry.about.to_owned()];
        for words in self.contenders.iter().map(line) {
            println!("  {:<20} {}", words[0], words[1]);
        }
    }
}

/// A worker process's part in one of the scenarios.
pub async fn work(job: Value, parent: Parent) -> Result<()> {
    match job["job"].as_str() {
        Some("contend") => processes::work(job, parent).await,
        Some("watchdog") => watchdog::work(job, parent).await,
        Some("turns") => turns::work(job, parent).await,
        Some("crash") => crash::work(job, parent).await,
        other => Err(format!("there is no job {other:?}")),
    }
}

/// One contender, in a worker process.
async fn connect(id: &str, url: String) -> Result<Box<dyn Runner>> {
    let entry = peers::all().into_iter().find(|entry| entry.id == id);
    (entry.ok_or_else(|| format!("there is no contender {id}"))?.connect)(url).await
}

/// What a worker process needs that contends with others from `start` to `end`.
struct Post {
    runner: Box<dyn Runner>,
    name: String,
    file: PathBuf,
    start: u64,
    end: u64,
}

/// The job of such a worker.
fn post(kind: &str, server: &Server, entry: &Entry, name: String, file: &Path) -> Value {
    json!({
        "job": kind, "url": server.url(), "contender": entry.id, "name": name, "file": file,
    })
}

impl Post {
    /// Connects, warms up, says that it is ready, and waits for the start.
    async fn take(job: &Value, parent: &mut Parent) -> Result<Self> {
        let text = |key: &str| job[key].as_str().unwrap_or_default().to_owned();
        let runner = connect(&text("contender"), text("url")).await?;
        runner.sequential(format!("warm:{}", std::process::id()), 50).await?;
        parent.send(&json!({ "ready": true }));
        let go = parent.next().await;
        let time = |key: &str| go[key].as_u64().unwrap_or_default();
        let (name, file) = (text("name"), text("file").into());
        Ok(Self { runner, name, file, start: time("start"), end: time("end") })
    }
}

/// One contender's figures of one round and window.
type Measure = for<'a> fn(&'a Server, &'a Entry, usize, Duration) -> Boxed<'a, Result<Vec<Figure>>>;
type Figure = (&'static str, f64);

/// Measures each contender in turn by processes of its own, round by round.
async fn by_processes(
    (server, sink, board): (&Server, &mut Sink, &mut Board),
    chosen: &[(&Entry, &dyn Runner)],
    (rounds, window): (usize, Duration),
    measure: Measure,
) {
    for round in 0..rounds {
        for (entry, _) in in_order_of(round, chosen) {
            if board.failed(entry.id) {
                continue;
            }
            server.keyspace_events(entry.events);
            let result = measure(server, entry, round, window).await;
            server.keyspace_events(false);
            match result {
                Ok(figures) => board.add(sink, entry.id, &figures),
                Err(error) => board.fail(sink, entry.id, &error),
            }
        }
    }
}

/// All, in another order in each round: what the server has just done for one contender counts for the next.
fn in_order_of<T>(round: usize, all: &[T]) -> impl Iterator<Item = &T> {
    let count = all.len();
    // A stride without a common divisor meets each once.
    let strides: Vec<usize> = (1..count.max(2)).filter(|stride| gcd(*stride, count) == 1).collect();
    let stride = strides.get(round % strides.len().max(1)).copied().unwrap_or(1);
    (0..count).map(move |at| &all[(at * stride + round) % count])
}

fn gcd(one: usize, other: usize) -> usize {
    if other == 0 { one } else { gcd(other, one % other) }
}

/// Those of the contenders that a scenario is for; a failure to connect becomes its row.
fn choose<'a>(
    contenders: &'a [Connected],
    board: &mut Board,
    sink: &mut Sink,
    wanted: impl Fn(&Entry) -> bool,
) -> Vec<(&'a Entry, &'a dyn Runner)> {
    let mut chosen = Vec::new();
    for one in contenders.iter().filter(|one| wanted(&one.entry)) {
        board.expect(one.entry.id);
        match &one.runner {
            Ok(runner) => chosen.push((&one.entry, &**runner)),
            Err(error) => board.fail(sink, one.entry.id, error),
        }
    }
    chosen
}

/// The largest median among the peers.
fn best_peer(
    chosen: &[(&Entry, &dyn Runner)],
    board: &Board,
    metric: &str,
    fits: impl Fn(&str) -> bool,
) -> Option<f64> {
    let peers = chosen.iter().filter(|(entry, _)| entry.role.is_peer() && fits(entry.id));
    peers.filter_map(|(entry, _)| board.median(entry.id, metric)).max_by(f64::total_cmp)
}

fn ratio(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    Some(part? / whole?)
}
