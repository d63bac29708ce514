//! A holder process: tasks that take leases of a few shared names in all the ways there are, and write
//! down what they believe.
//!
//! Nothing is believed without a look: a task calls `check()` before each step, and notes the time *before*
//! the call. A loss is final, so one Ok vouches for all the time back to the grant. Some tasks never call
//! `check()` and go by the token alone.
//!
//! Its parent sends it commands, a line each. When the parent is gone, it ends.

use crate::caller::Caller;
use crate::inner_faults::{InnerFaults, unwind};
use crate::ledger::Ledger;
use crate::random::Random;
use crate::short_runtimes;
use crate::starved::{self, Waits};
use crate::worker_log::WorkerLog;
use kit::reached::Counts;
use kit::soak::history::{What, Words, now};
use kit::soak::leases::Kind;
use leasehold::{ErrorKind, Lease, LeaseManager, Lock};
use std::collections::HashMap;
use std::io::BufRead;
use std::mem::discriminant;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;

/// The hidden first argument of the program.
pub const HOLDER: &str = "holder";
/// So many flows of control are in a process.
const TASKS: u64 = 14;
/// The part of the seed that says who drives the watchdogs.
const DEDICATED_THREAD: u64 = 500;
/// The part of the seed that says how the first runtime ends.
const FIRST_RUNTIME: u64 = 502;
/// The part of the seed that says whether replicas must have a grant.
const REPLICAS: u64 = 503;
/// The part of the seed that says whether its locks linger.
const LINGERS: u64 = 506;
/// The part of the seed that says how much is logged: a log that is broken is to be used.
const WHOLE_LOG: u64 = 504;
/// The part of the seed of the one that takes two names of one slot.
const TOGETHER: u64 = 501;
const SETS: u64 = 502;
/// The parts of the seed of those who share names.
pub const SHARERS: Range<u64> = 600..610;
/// Those of candidates, of those who run jobs, and of thieves.
const CANDIDATES: Range<u64> = 700..704;
const JOB_RUNNERS: Range<u64> = 710..712;
const THIEVES: Range<u64> = 720..723;
/// So many of them hold for longer than the time to live, so that an outage meets somebody who feels it.
const LONG_HOLDERS: u64 = 2;

/// What the process is to do; each word is answered by the same word when it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    Work,
    /// End what is under way, take nothing more.
    Rest,
    /// Take these names, each this often.
    Hold(Vec<(String, u32)>),
    /// Give one of each back.
    Lower,
    /// Give all back.
    Release,
    Exit,
}

/// A name and the manager that takes it.
pub struct Place {
    pub name: String,
    pub ttl: Duration,
    pub leases: LeaseManager,
    /// Which of the process's stores, and so of its managers.
    pub store: usize,
}

pub struct Process {
    pub log: Arc<WorkerLog>,
    pub places: Vec<Place>,
    /// The names that several share.
    pub shared: Vec<Place>,
    /// Elections, jobs, and names that are stolen.
    pub led: Vec<Place>,
    pub jobs: Vec<Place>,
    pub loot: Vec<Place>,
    ledger_port: u16,
    pub inner_faults: Arc<InnerFaults>,
    pub orders: watch::Receiver<Order>,
}

/// A store as a holder process is told of it: `<ttl in ms> <replicas> <name>,<name>.. <url>`.
struct Backend {
    ttl: Duration,
    replicas: u32,
    names: Vec<String>,
    url: String,
}

impl Backend {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        Some(Self {
            ttl: Duration::from_millis(parts.next()?.parse().ok()?),
            replicas: parts.next()?.parse().ok()?,
            names: parts.next()?.split(',').map(str::to_owned).collect(),
            url: parts.next()?.to_owned(),
        })
    }
}

/// The life of a holder process; the arguments are those that [`crate::workers`] gives.
pub fn live(arguments: &[String]) -> Result<(), String> {
    let [who, seed, file, ledger_port, backends @ ..] = arguments else {
        return Err("a holder process is started by the soak alone".to_owned());
    };
    let seed: u64 = seed.parse().map_err(|_| "the seed is a number")?;
    let ledger_port = ledger_port.parse().map_err(|_| "the ledger's port is a number")?;
    let backends: Option<Vec<_>> = backends.iter().map(|text| Backend::read(text)).collect();
    let backends = backends.ok_or("a store is <ttl in ms> <replicas> <names> <url>")?;
    let log = Arc::new(WorkerLog::open(who, file).map_err(|error| format!("{file}: {error}"))?);
    write_counts(PathBuf::from(file).with_extension("reached"));
    watch_for_stalls(Arc::clone(&log));
    watch_for_starvation(Arc::clone(&log));
    let inner_faults = InnerFaults::start(Random::part(seed, WHOLE_LOG).once_in(2));
    let orders = listen(Arc::clone(&inner_faults));
    // In some processes the watchdogs run on a runtime of ours.
    let dedicated_thread = !Random::part(seed, DEDICATED_THREAD).once_in(3);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    // Of one who waits for replicas, only one of two primaries can grant.
    let replicas = Random::part(seed, REPLICAS).once_in(3);
    let lingers = Random::part(seed, LINGERS).once_in(2);
    let places = settle_in(backends, dedicated_thread, replicas, lingers, who, &log);
    let places =
        if dedicated_thread { first_runtime(seed, places)? } else { runtime.block_on(places) };
    let is_lock = |place: &Place| Kind::of(&place.name) == Kind::Lock;
    let (places, others): (_, Vec<_>) = places.into_iter().partition(is_lock);
    let mut process = Process {
        log,
        places,
        shared: Vec::new(),
        led: Vec::new(),
        jobs: Vec::new(),
        loot: Vec::new(),
        ledger_port,
        inner_faults,
        orders,
    };
    for place in others {
        match Kind::of(&place.name) {
            Kind::Election => process.led.push(place),
            Kind::Job => process.jobs.push(place),
            Kind::Loot => process.loot.push(place),
            _ => process.shared.push(place),
        }
    }
    let process = Arc::new(process);
    runtime.block_on(process.work(seed))
}

/// Writes the rare states that were reached, again and again: a SIGKILL takes the last moments.
fn write_counts(file: PathBuf) {
    thread::spawn(move || {
        loop {
            // A full disk is found by the log.
            let _ = Counts::of_this_process().write(&file);
            thread::sleep(Duration::from_millis(200));
        }
    });
}

/// Drives it on a runtime that then ends, or unwinds: who used the managers first is not who goes on using them.
fn first_runtime<T>(seed: u64, work: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let done = runtime.block_on(work);
    if Random::part(seed, FIRST_RUNTIME).once_in(2) {
        // With the runtime in it.
        let _ = catch_unwind(AssertUnwindSafe(move || {
            let _runtime = runtime;
            unwind();
        }));
    }
    Ok(done)
}

async fn settle_in(
    backends: Vec<Backend>,
    dedicated_thread: bool,
    replicas: bool,
    lingers: bool,
    who: &str,
    log: &WorkerLog,
) -> Vec<Place> {
    let mut places = Vec::new();
    for (store, mut backend) in backends.into_iter().enumerate() {
        let leases = connect(&backend, dedicated_thread, replicas, lingers).await;
        introduce(&leases, who, log).await;
        for (kind, word) in [
            (Kind::ReadWrite, "read-write locks"),
            (Kind::Semaphore { size: 1 }, "semaphores"),
            (Kind::Job, "jobs"),
        ] {
            if !supports(&leases, kind, who).await {
                let text = Words(format!("left out, because the store has none: {word}"));
                log.write(What::Seen { count: 1, text });
                let of_kind = |name: &String| discriminant(&Kind::of(name)) == discriminant(&kind);
                backend.names.retain(|name| !of_kind(name));
            }
        }
        places.extend(backend.names.into_iter().map(|name| Place {
            name,
            ttl: backend.ttl,
            leases: leases.clone(),
            store,
        }));
    }
    places
}

/// How long a lock rests at a process that lingers.
pub fn linger_of(ttl: Duration) -> Duration {
    ttl / 20
}

/// What breaks at the start is mended soon: the server may be away just now.
async fn connect(
    backend: &Backend,
    dedicated_thread: bool,
    replicas: bool,
    lingers: bool,
) -> LeaseManager {
    /// How long the replicas of a primary may take to have a grant.
    const REPLICATION: Duration = Duration::from_millis(100);
    loop {
        let mut builder =
            LeaseManager::builder().ttl(backend.ttl).dedicated_thread(dedicated_thread);
        if replicas && backend.replicas > 0 {
            builder = builder.replicas(backend.replicas, REPLICATION);
        }
        // A quorum and ZooKeeper refuse it.
        if lingers && backend.url.starts_with("redis") && !backend.url.contains(',') {
            builder = builder.linger(linger_of(backend.ttl));
        }
        match builder.connect(&backend.url).await {
            Ok(leases) => return leases,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Asks once for a lease of a kind, by a name of this process.
async fn supports(leases: &LeaseManager, kind: Kind, who: &str) -> bool {
    loop {
        let asked = match kind {
            Kind::Job => {
                let job = leases.once(format!("job-of-{who}")).keep(Duration::from_millis(1));
                job.run(async |_: &Lease| Ok::<_, ()>(())).await.map(drop)
            }
            Kind::ReadWrite => leases.rw_lock(format!("rw-of-{who}")).try_read().await.map(drop),
            _ => leases.semaphore(format!("pool1-of-{who}"), 1).try_acquire().await.map(drop),
        };
        match asked {
            Err(error) if error.kind() == ErrorKind::Unsupported => return false,
            Err(_) => sleep(Duration::from_millis(50)).await,
            Ok(()) => return true,
        }
    }
}

/// Tells which tokens in the store are ours.
async fn introduce(leases: &LeaseManager, who: &str, log: &WorkerLog) {
    let mut lock = leases.lock(format!("id-of-{who}"));
    loop {
        if let Ok(lease) = lock.lock().await
            && let Ok(Some(holding)) = leases.inspect(lease.name()).await
            && let Some((id, _)) = holding.holder.split_once(':')
        {
            return log.write(What::Manager { id: id.to_owned() });
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// How much memory it takes beside that of its program, in KiB, where the system tells it.
fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Tells when this process got no time, so that a slow machine can be told from a fault of the library; and how much
/// memory it takes.
fn watch_for_stalls(log: Arc<WorkerLog>) {
    const NAP: Duration = Duration::from_millis(5);
    const WORTH_TELLING: u64 = 20_000_000;
    const LOOKS: u64 = 100_000_000;
    thread::spawn(move || {
        let (mut last, mut look) = (now(), 0);
        loop {
            thread::sleep(NAP);
            let time = now();
            if time - last > WORTH_TELLING {
                log.write(What::Stalled { ms: (time - last) / 1_000_000 });
            }
            if time >= look {
                look = time + LOOKS;
                if let Some(kib) = memory() {
                    log.write(What::Memory { kib });
                }
            }
            last = now();
        }
    });
}

/// Tells for how long its threads waited for a processor: the one of [`watch_for_stalls`] does so least of all.
fn watch_for_starvation(log: Arc<WorkerLog>) {
    thread::spawn(move || {
        let mut waits = Waits::of_process();
        loop {
            if let Some(ms) = waits.look() {
                log.write(What::Starved { ms });
            }
            thread::sleep(starved::INTERVAL);
        }
    });
}

fn listen(inner_faults: Arc<InnerFaults>) -> watch::Receiver<Order> {
    let (sender, orders) = watch::channel(Order::Work);
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            if word == "fault" {
                inner_faults.begin(rest);
                continue;
            }
            let order = match word {
                "rest" => Order::Rest,
                "hold" => Order::Hold(rest.split(' ').filter_map(counted).collect()),
                "lower" => Order::Lower,
                "release" => Order::Release,
                _ => Order::Exit,
            };
            sender.send_replace(order);
        }
        std::process::exit(0);
    });
    orders
}

fn counted(text: &str) -> Option<(String, u32)> {
    let (name, count) = text.split_once('=')?;
    Some((name.to_owned(), count.parse().ok()?))
}

impl Process {
    async fn work(self: Arc<Self>, seed: u64) -> Result<(), String> {
        let mut tasks = JoinSet::new();
        for part in 0..TASKS {
            tasks.spawn(self.caller(seed, part)?.live());
        }
        tasks.spawn(self.caller(seed, TOGETHER)?.live_together());
        tasks.spawn(self.caller(seed, SETS)?.live_in_sets());
        for part in SHARERS {
            tasks.spawn(self.caller(seed, part)?.live_shared());
        }
        for part in CANDIDATES {
            let caller = self.caller(seed, part)?;
            if part % 2 == 0 {
                tasks.spawn(caller.live_campaigning());
            } else {
                tasks.spawn(caller.live_leading());
            }
        }
        for at in 0..self.led.len() {
            tasks.spawn(Arc::clone(&self).observe(at));
        }
        for part in JOB_RUNNERS {
            tasks.spawn(self.caller(seed, part)?.live_with_jobs());
        }
        for part in THIEVES {
            tasks.spawn(self.caller(seed, part)?.live_stealing());
        }
        tasks.spawn(short_runtimes::burst(Arc::clone(&self), Random::part(seed, TASKS)));
        let host = Arc::clone(&self);
        tasks.spawn_blocking(move || short_runtimes::live(&host, seed));
        self.all_end(&mut tasks).await;
        println!("rest");
        self.hold_for_counting().await;
        for place in &self.places {
            // The second one on the same server is closed already.
            if let Err(error) = place.leases.close().await {
                self.broken(format!("close: {error}"));
            }
        }
        println!("exit");
        Ok(())
    }

    pub fn caller(self: &Arc<Self>, seed: u64, part: u64) -> Result<Caller, String> {
        let ledger = Ledger::connect(self.ledger_port, self.log.who());
        Ok(Caller {
            process: Arc::clone(self),
            random: Random::part(seed, part),
            ledger: ledger.map_err(|error| format!("the ledger: {error}"))?,
            handles: HashMap::new(),
            holds_long: part < LONG_HOLDERS,
        })
    }

    pub async fn all_end(&self, tasks: &mut JoinSet<()>) {
        while let Some(ended) = tasks.join_next().await {
            self.ended(ended);
        }
    }

    pub fn ended(&self, ended: Result<(), JoinError>) {
        if let Err(error) = ended {
            self.broken(format!("a task panicked: {error}"));
        }
    }

    /// Takes, lowers and releases as told, at known counts, for the parent to look at the store.
    async fn hold_for_counting(&self) {
        let mut held: Vec<(Lock, Vec<Lease>)> = Vec::new();
        let mut orders = self.orders.clone();
        loop {
            let order = orders.borrow_and_update().clone();
            let word = match &order {
                Order::Work | Order::Rest => "",
                Order::Hold(wanted) => {
                    for (name, count) in wanted {
                        held.push(self.take(name, *count).await);
                    }
                    "hold"
                }
                Order::Lower => {
                    for (_, leases) in &mut held {
                        if let Some(lease) = leases.pop() {
                            let _ = lease.unlock().await;
                        }
                    }
                    "lower"
                }
                Order::Release => {
                    held.clear();
                    "release"
                }
                Order::Exit => return,
            };
            if !word.is_empty() {
                let lost =
                    held.iter().flat_map(|(_, leases)| leases).any(|lease| lease.check().is_err());
                // A machine that stalls can lose leases of a second; the parent asks again then.
                println!("{}", if lost { "lost" } else { word });
            }
            if orders.changed().await.is_err() {
                return;
            }
        }
    }

    async fn take(&self, name: &str, count: u32) -> (Lock, Vec<Lease>) {
        let place = self.places.iter().find(|place| place.name == name);
        let place = place.expect("the parent names only what it told before");
        let mut lock = place.leases.lock(name);
        let mut leases = Vec::new();
        for _ in 0..count {
            match lock.lock().await {
                Ok(lease) => leases.push(lease),
                Err(error) => self.broken(format!("{name} cannot be taken at rest: {error}")),
            }
        }
        (lock, leases)
    }

    pub fn broken(&self, text: String) {
        self.log.write(What::Broken { text: Words(text) });
    }
}
