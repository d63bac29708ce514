//! The soak: holder processes, the servers of a store, random faults, and an oracle that checks the history.
//!
//! ```sh
//! cargo run --release -p leasehold-kit -- --minutes 1 --seed 7
//! cargo run --release -p leasehold-kit -- --store quorum
//! ```
//!
//! It needs redis-server in PATH, and Java with ZooKeeper's jars for `zookeeper`; it starts its own servers. Each
//! holder process runs a few flows of control that take leases of shared names, and writes down what it
//! believes. Meanwhile connections break, processes are killed and frozen, servers crash, lose their keys, are
//! replaced and lose their majority, as it suits the store (`stage/scene.rs`). In the end the oracle reads all that
//! was written down, and the program exits with 1 if it finds what must not be; read `oracle.rs` for what that
//! is. The whole history and a picture of it are left in a directory.
//!
//! Holders reach one Redis, the nodes of a quorum and the members of an ensemble through proxies of their own, which
//! break their connections. Of Sentinel and Cluster they learn the servers' own addresses, so there the network is
//! broken at the servers alone: connections are cut, clients paused, servers frozen.

mod caller;
mod faults;
mod holder;
mod inner_faults;
mod jobs;
mod leaders;
mod ledger;
mod line;
mod picture;
mod random;
mod report;
mod sets;
mod shared;
mod short_runtimes;
mod stage;
mod starved;
mod steals;
mod together;
mod unpolled;
mod worker_log;
mod workers;

use faults::Plan;
use holder::linger_of;
use kit::Server;
use kit::reached::Counts;
use kit::soak::history::{Event, What, Words, now};
use kit::soak::leases::{Kind, LONGEST_KEEP};
use kit::soak::oracle::LONG_RUN;
use kit::soak::{history, oracle};
use ledger::Ledger;
use line::Line;
use stage::{Backend, Log, Scene};
use starved::Waits;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use workers::Workers;

const USAGE: &str = "\
Breaks leasehold's servers, connections and processes at random, and judges what the holders believed.

usage: soak [--store STORE] [--minutes N | --seconds N] [--seed S] [--out DIR] [--plan]

  --store STORE redis (default), sentinel, cluster, quorum or zookeeper
  --minutes N   how long faults are injected; default 1
  --seconds N   the same in seconds, at least 5
  --seed S      which faults, and which work; default: from the clock, and printed
  --out DIR     where history and picture go; default target/soak/STORE-SEED
  --plan        print the faults of this store, seed and length, and end
  --help        print this

exit status: 0 nothing was found, 1 the oracle found something, 2 the run was not possible";

const PROCESSES: usize = 4;
/// How long a process may take to come to rest: its longest hold, and what its rivals hold meanwhile.
const REST: Duration = Duration::from_secs(60);
/// How long it may take to answer at rest.
const ANSWER: Duration = Duration::from_secs(20);

struct Options {
    scene: &'static Scene,
    length: Duration,
    seed: u64,
    out: Option<PathBuf>,
    plan_only: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|word| word == holder::HOLDER) {
        return match holder::live(&arguments[1..]) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        };
    }
    if arguments.iter().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = match Options::read(&arguments) {
        Ok(options) => options,
        Err(error) => return fail(&format!("{error}\n\n{USAGE}")),
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => fail(&error),
    }
}

fn fail(error: &str) -> ExitCode {
    eprintln!("soak: {error}");
    ExitCode::from(2)
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            scene: Scene::of("redis")?,
            length: Duration::from_secs(60),
            seed: now() % 1_000_000,
            out: None,
            plan_only: false,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            let number = |text: &String| {
                text.parse::<u64>().map_err(|_| format!("{word} {text}: not a whole number"))
            };
            match word.as_str() {
                "--store" => options.scene = Scene::of(value()?)?,
                "--minutes" => {
                    options.length = Duration::from_secs(number(value()?)?.saturating_mul(60))
                }
                "--seconds" => options.length = Duration::from_secs(number(value()?)?),
                "--seed" => options.seed = number(value()?)?,
                "--out" => options.out = Some(PathBuf::from(value()?)),
                "--plan" => options.plan_only = true,
                _ => return Err(format!("unknown argument {word:?}")),
            }
        }
        if !(5..=24 * 3600).contains(&options.length.as_secs()) {
            return Err("a run takes at least 5 seconds and at most a day".to_owned());
        }
        Ok(options)
    }
}

/// Runs and judges; whether nothing was found.
fn run(options: &Options) -> Result<bool, String> {
    let Options { scene, length, seed, .. } = *options;
    let plan = Plan::new(seed, length, PROCESSES, scene);
    if options.plan_only {
        plan.faults().for_each(|(lane, fault)| println!("{lane} {fault}"));
        return Ok(true);
    }
    let store = scene.store;
    let usual = || Path::new("target/soak").join(format!("{store}-{seed}"));
    let dir = options.out.clone().unwrap_or_else(usual);
    clear(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    println!(
        "soak of {store} for {} s with seed {seed}: {} faults; --plan lists them",
        length.as_secs(),
        plan.faults().count()
    );
    let history = play(scene, &plan, length, seed, &dir)?;
    write(&dir, &history).map_err(|error| format!("{}: {error}", dir.display()))?;
    let verdict = oracle::judge(&history);
    let picture = dir.join("timeline.svg");
    fs::write(&picture, picture::draw(&history, &verdict))
        .map_err(|error| format!("{}: {error}", picture.display()))?;
    report::print(&history, &verdict);
    println!("history and picture are in {}", dir.display());
    let reached = reached(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let part = format!("soak-{store}");
    reached.report(&part);
    let missing = if length.as_secs() < LONG_RUN { Vec::new() } else { reached.missing(&part) };
    missing.iter().for_each(|state| println!("NEVER REACHED: {state}"));
    Ok(verdict.findings.is_empty() && missing.is_empty())
}

/// An empty directory, but for what is not ours.
fn clear(dir: &Path) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "part" || extension == "reached") {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn play(
    scene: &Scene,
    plan: &Plan,
    length: Duration,
    seed: u64,
    dir: &Path,
) -> Result<Vec<Event>, String> {
    let backends = scene.raise();
    let ledger = Server::start();
    let log = Log::default();
    let store = scene.store.to_owned();
    log.write(now(), What::Run { seed, seconds: length.as_secs(), store });
    for backend in &backends {
        for name in &backend.names {
            let server = backend.house.label.to_owned();
            let ttl_ms = backend.house.engine_ttl.as_millis() as u64;
            log.write(now(), What::Name { name: name.clone(), server, ttl_ms });
        }
    }
    let workers = Workers::start(PROCESSES, seed, dir, &backends, &ledger)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for backend in &backends {
            scope.spawn(|| stage::watch(backend, &log, &stop));
        }
        scope.spawn(|| {
            let mut waits = Waits::with_servers();
            while !stop.load(Ordering::Relaxed) {
                if let Some(ms) = waits.look() {
                    log.write(now(), What::Starved { ms });
                }
                thread::sleep(starved::INTERVAL);
            }
        });
        let played = faults(plan, length, &workers, &backends, &log)
            .and_then(|()| settle(&workers, &backends, &log));
        stop.store(true, Ordering::Relaxed);
        played
    })?;
    let sum = |count: fn(&Line) -> u64| {
        workers.slots.iter().flat_map(|slot| &slot.lines).map(count).sum::<u64>()
    };
    for (text, count) in [
        ("requests sent twice", sum(Line::requests_sent_twice)),
        ("replies or requests lost", sum(Line::lost)),
        ("reconnects", sum(Line::connections)),
    ] {
        log.write(now(), What::Seen { count, text: Words(text.to_owned()) });
    }
    // Each slot has the lines of all servers, in their order.
    for slot in &workers.slots {
        let mut lines = slot.lines.iter();
        for backend in &backends {
            for (from, until) in
                lines.by_ref().take(slot.lines.len() / backends.len()).flat_map(Line::silences)
            {
                let server = backend.house.label.to_owned();
                log.write(from, What::Silent { until, on: slot.name(), server });
            }
        }
    }
    let mut history = log.take();
    let mut ledger = Ledger::connect(ledger.port(), "soak").map_err(|error| error.to_string())?;
    for name in backends.iter().flat_map(|backend| &backend.names) {
        history.extend(ledger.writes(name, now()).map_err(|error| format!("the ledger: {error}"))?);
    }
    history.extend(parts(dir).map_err(|error| format!("{}: {error}", dir.display()))?);
    history.sort_by_key(|event| event.at);
    Ok(history)
}

/// Injects all faults of the plan.
fn faults(
    plan: &Plan,
    length: Duration,
    workers: &Workers,
    backends: &[Backend],
    log: &Log,
) -> Result<(), String> {
    let start = Instant::now();
    thread::scope(|scope| {
        for (backend, faults) in backends.iter().zip(&plan.servers) {
            scope.spawn(move || faults::break_servers(backend, faults, start, log));
        }
        let lanes: Vec<_> = workers
            .slots
            .iter()
            .zip(&plan.processes)
            .map(|(slot, faults)| {
                scope.spawn(move || faults::break_process(slot, faults, start, log))
            })
            .collect();
        for lane in lanes {
            lane.join().map_err(|_| "a thread that injects faults panicked".to_owned())??;
        }
        thread::sleep((start + length).saturating_duration_since(Instant::now()));
        Ok(())
    })
}

/// Brings all to rest, and looks at what is left; then at hold counts.
fn settle(workers: &Workers, backends: &[Backend], log: &Log) -> Result<(), String> {
    let broken = |text: String| log.write(now(), What::Broken { text: Words(text) });
    let same = |word: &str| vec![word.to_owned(); PROCESSES];
    if let Err(error) = workers.order(&same("rest"), REST) {
        broken(error);
        return Ok(());
    }
    let longest = backends.iter().map(|backend| backend.house.ttl).max().unwrap_or_default();
    thread::sleep(longest.max(LONGEST_KEEP) + Duration::from_millis(500));
    look_for_leftovers(backends, log)?;
    for attempt in 1.. {
        let kept = count_holds(workers, backends, log)?;
        if kept {
            break;
        }
        if attempt == 3 {
            broken("leases were lost at rest, three times".to_owned());
            break;
        }
    }
    look_for_leftovers(backends, log)?;
    if let Err(error) = workers.order(&same("exit"), ANSWER) {
        broken(error);
    }
    Ok(())
}

fn look_for_leftovers(backends: &[Backend], log: &Log) -> Result<(), String> {
    for backend in backends {
        for text in backend.servers.left_over()? {
            log.write(now(), What::Left { text: Words(text) });
        }
    }
    Ok(())
}

/// Holds every name at a known count, and compares the store's; whether no lease was lost meanwhile.
fn count_holds(workers: &Workers, backends: &[Backend], log: &Log) -> Result<bool, String> {
    let places: Vec<(&Backend, &String)> = backends
        .iter()
        .flat_map(|backend| backend.names.iter().map(move |name| (backend, name)))
        .filter(|(_, name)| Kind::of(name) == Kind::Lock)
        .collect();
    let count = |at: usize| 1 + (at % 3) as u64;
    let mut orders = vec!["hold".to_owned(); PROCESSES];
    for (at, (_, name)) in places.iter().enumerate() {
        orders[at % PROCESSES].push_str(&format!(" {name}={}", count(at)));
    }
    let rest =
        backends.iter().map(|backend| linger_of(backend.house.ttl)).max().unwrap_or_default();
    let mut kept = true;
    let same = |word: &str| vec![word.to_owned(); PROCESSES];
    for (orders, less) in [(orders, 0), (same("lower"), 1), (same("release"), 3)] {
        let mut counted = Vec::new();
        kept &= workers.order(&orders, ANSWER)?;
        // Releases by drop, or records of counts, are under way, and holds rest. A hold that is in no history must not last for a
        // second.
        thread::sleep(Duration::from_millis(if less == 3 { 500 } else { 150 }) + rest);
        for (at, (backend, name)) in places.iter().enumerate() {
            let fields = backend.servers.counts(name);
            let (believed, stored) = (count(at).saturating_sub(less), fields.iter().sum());
            let fields = fields.len() as u64;
            counted.push(What::Counted { name: (*name).clone(), believed, stored, fields });
        }
        if kept {
            counted.into_iter().for_each(|what| log.write(now(), what));
        }
    }
    Ok(kept)
}

/// What the holder processes wrote; their files are gone then.
fn parts(dir: &Path) -> std::io::Result<Vec<Event>> {
    let mut events = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "part") {
            events.extend(history::read(&String::from_utf8_lossy(&fs::read(&path)?)));
            fs::remove_file(&path)?;
        }
    }
    Ok(events)
}

/// What the holder processes have counted; their files are gone then.
fn reached(dir: &Path) -> std::io::Result<Counts> {
    let mut counts = Counts::default();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "reached") {
            counts.add_from(&path)?;
            fs::remove_file(&path)?;
        }
    }
    Ok(counts)
}

fn write(dir: &Path, history: &[Event]) -> std::io::Result<()> {
    let mut file = BufWriter::new(fs::File::create(dir.join("history"))?);
    for event in history {
        writeln!(file, "{event}")?;
    }
    file.flush()
}
