//! A holder process: tasks that take leases of a few shared names in all the ways there are, and write
//! down what they believe.
//!
//! Nothing is believed without a look: a task calls `check()` before each step, and notes the time *before*
//! the call. A loss is final, so one Ok vouches for all the time back to the grant. Some tasks never call
//! `check()` and go by the token alone.
//!
//! Its parent tells it by lines what to do next; when the parent is gone, it ends.

use crate::diary::{Belief, Diary};
use crate::history::{What, Words, nanos, now};
use crate::ledger::Ledger;
use crate::random::Random;
use leasehold::{Lease, LeaseManager, LeaseState, Lock, Loss};
use std::collections::HashMap;
use std::io::BufRead;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The hidden first argument of the program.
pub const HOLDER: &str = "holder";
/// So many flows of control are in a process.
const TASKS: u64 = 10;
/// So many of them hold for longer than the time to live, so that an outage meets somebody who feels it.
const LONG_HOLDERS: u64 = 2;

/// What the process is to do; each word is answered by the same word when it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
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
struct Place {
    name: String,
    ttl: Duration,
    leases: LeaseManager,
}

struct Process {
    diary: Arc<Diary>,
    places: Vec<Place>,
    ledger_port: u16,
    orders: watch::Receiver<Order>,
}

/// A server as a holder process is told of it: `<ttl in ms>:<port>:<name>,<name>..`.
struct Backend {
    ttl: Duration,
    port: u16,
    names: Vec<String>,
}

impl Backend {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        Some(Self {
            ttl: Duration::from_millis(parts.next()?.parse().ok()?),
            port: parts.next()?.parse().ok()?,
            names: parts.next()?.split(',').map(str::to_owned).collect(),
        })
    }
}

/// The life of a holder process; the arguments are those that [`crate::crew`] gives.
pub fn live(arguments: &[String]) -> Result<(), String> {
    let [who, seed, file, ledger_port, backends @ ..] = arguments else {
        return Err("a holder process is started by the soak alone".to_owned());
    };
    let seed = seed.parse().map_err(|_| "the seed is a number")?;
    let ledger_port = ledger_port.parse().map_err(|_| "the ledger's port is a number")?;
    let backends: Option<Vec<_>> = backends.iter().map(|text| Backend::read(text)).collect();
    let backends = backends.ok_or("a server is <ttl in ms>:<port>:<names>")?;
    let diary = Arc::new(Diary::open(who, file).map_err(|error| format!("{file}: {error}"))?);
    watch_for_stalls(Arc::clone(&diary));
    let orders = listen();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let mut places = Vec::new();
        for backend in backends {
            let leases = connect(&backend).await;
            introduce(&leases, who, &diary).await;
            places.extend(backend.names.into_iter().map(|name| Place {
                name,
                ttl: backend.ttl,
                leases: leases.clone(),
            }));
        }
        let process = Arc::new(Process { diary, places, ledger_port, orders });
        process.work(seed).await
    })
}

/// What breaks at the start is mended soon: the server may be away just now.
async fn connect(backend: &Backend) -> LeaseManager {
    let url = format!("redis://127.0.0.1:{}", backend.port);
    loop {
        let builder = LeaseManager::builder().ttl(backend.ttl);
        match builder.connect(&url).await {
            Ok(leases) => return leases,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Tells which tokens in the store are ours.
async fn introduce(leases: &LeaseManager, who: &str, diary: &Diary) {
    let mut lock = leases.lock(format!("id-of-{who}"));
    loop {
        if let Ok(lease) = lock.lock().await
            && let Ok(Some(holding)) = leases.inspect(lease.name()).await
            && let Some((id, _)) = holding.holder.split_once(':')
        {
            return diary.write(What::Manager { id: id.to_owned() });
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Tells when this process got no time, so that a slow machine can be told from a fault of the library.
fn watch_for_stalls(diary: Arc<Diary>) {
    const NAP: Duration = Duration::from_millis(5);
    const WORTH_TELLING: u64 = 20_000_000;
    thread::spawn(move || {
        let mut last = now();
        loop {
            thread::sleep(NAP);
            let time = now();
            if time - last > WORTH_TELLING {
                diary.write(What::Stalled { ms: (time - last) / 1_000_000 });
            }
            last = now();
        }
    });
}

fn listen() -> watch::Receiver<Order> {
    let (sender, orders) = watch::channel(Order::Work);
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
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
            let ledger = Ledger::connect(self.ledger_port, self.diary.who());
            let flow = Flow {
                process: Arc::clone(&self),
                random: Random::part(seed, part),
                ledger: ledger.map_err(|error| format!("the ledger: {error}"))?,
                handles: HashMap::new(),
                holds_long: part < LONG_HOLDERS,
            };
            tasks.spawn(flow.live());
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                self.broken(format!("a task panicked: {error}"));
            }
        }
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

    fn broken(&self, text: String) {
        self.diary.write(What::Broken { text: Words(text) });
    }
}

/// One flow of control, with a handle of its own for each name.
struct Flow {
    process: Arc<Process>,
    random: Random,
    ledger: Ledger,
    handles: HashMap<usize, Lock>,
    holds_long: bool,
}

impl Flow {
    async fn live(mut self) {
        while *self.process.orders.borrow() == Order::Work {
            let at = self.random.below(self.process.places.len());
            let place = &self.process.places[at];
            let handle = self.handles.remove(&at);
            let mut lock = handle.unwrap_or_else(|| place.leases.lock(&place.name));
            self.turn(at, &mut lock).await;
            if !self.random.once_in(10) {
                self.handles.insert(at, lock);
            }
            let pause = self.random.millis(if self.holds_long { 100..1000 } else { 0..30 });
            sleep(pause).await;
        }
    }

    /// Takes the name in one of the ways, holds it for a while, and gives it back in one of the ways.
    async fn turn(&mut self, at: usize, lock: &mut Lock) {
        let process = Arc::clone(&self.process);
        let place = &process.places[at];
        let limit = self.random.millis(1..600);
        let (how, limit_ms) = match self.random.below(20) {
            0..9 => ("lock", 0),
            9..12 => ("try", 0),
            12..15 => ("timeout", limit.as_millis() as u64),
            15..18 => ("with", 0),
            // The future is dropped wherever it is then.
            _ => ("dropped", limit.as_millis() as u64),
        };
        let ask = process.diary.wanted(&place.name, how, limit_ms);
        let taken = match how {
            "with" => return self.with(place, lock, ask).await,
            "try" => lock.try_lock().await,
            "timeout" => lock.lock_timeout(limit).await,
            "dropped" => {
                timeout(limit, lock.lock()).await.map_or(Ok(None), |taken| taken.map(Some))
            }
            _ => lock.lock().await.map(Some),
        };
        let lease = match taken {
            Ok(Some(lease)) => lease,
            Ok(None) => return process.diary.gave_up(ask, "not-granted"),
            Err(error) => {
                process.diary.gave_up(ask, &error_word(&error));
                // Do not hammer what cannot answer.
                return sleep(Duration::from_millis(20)).await;
            }
        };
        let by_token = self.random.once_in(6);
        let belief = process.diary.granted(ask, &lease, by_token);
        // What ends is dropped in this order: the belief first.
        let mut held = Held { belief, lease };
        let how_long = self.how_long(place.ttl);
        if by_token {
            held.sleep(how_long).await;
        } else if self.random.once_in(20) {
            // Dropped in the middle of a step.
            let middle = how_long / 2;
            let _ =
                timeout(middle, self.steps(place, lock, &mut held.belief, &held.lease, how_long))
                    .await;
        } else {
            self.steps(place, lock, &mut held.belief, &held.lease, how_long).await;
        }
        self.end(place, held).await;
    }

    async fn with(&mut self, place: &Place, lock: &mut Lock, ask: u64) {
        let diary = Arc::clone(&self.process.diary);
        let how_long = self.how_long(place.ttl);
        let entered = lock
            .with(async |lock, lease| {
                let mut belief = diary.granted(ask, lease, false);
                self.steps(place, lock, &mut belief, lease, how_long).await;
            })
            .await;
        if let Err(error) = entered {
            diary.gave_up(ask, &error_word(&error));
        }
    }

    /// Mostly short; for the long holders, one to three times the time to live.
    fn how_long(&mut self, ttl: Duration) -> Duration {
        if self.holds_long {
            return ttl + ttl.mul_f64(self.random.below(200) as f64 / 100.0);
        }
        match self.random.below(100) {
            0..85 => self.random.millis(0..8),
            85..97 => self.random.millis(8..80),
            _ => self.random.millis(80..500),
        }
    }

    /// Works under the lease, a check before each step, until the time is over or the lease is lost.
    async fn steps(
        &mut self,
        place: &Place,
        lock: &mut Lock,
        belief: &mut Belief,
        lease: &Lease,
        how_long: Duration,
    ) {
        let until = now() + nanos(how_long);
        let mut read = None;
        let mut enters = self.random.once_in(8);
        loop {
            let before = now();
            if let Err(error) = lease.check() {
                belief.fired(error.loss());
                return self.stays_lost(lease).await;
            }
            belief.checked(before, lease.state() == LeaseState::AtRisk);
            // The resource is read in one step and written in the next.
            let fence = lease.fence().unwrap_or_default();
            let answer = match read.take() {
                None => self
                    .ledger
                    .read(&place.name, fence)
                    .map(|answer| answer.map(|value| read = Some(value))),
                Some(value) => self
                    .ledger
                    .write(&place.name, fence, value + 1)
                    .map(|answer| answer.map(|_| ())),
            };
            match answer {
                Ok(Ok(())) => {}
                Ok(Err(_refused)) => {
                    let name = place.name.clone();
                    return self.process.diary.write(What::Refused { name, fence });
                }
                Err(error) => self.process.broken(format!("the ledger does not answer: {error}")),
            }
            if enters {
                enters = false;
                self.enter_again(lock, belief, lease).await;
            }
            if before >= until {
                return;
            }
            sleep(self.random.millis(1..7)).await;
        }
    }

    async fn enter_again(&mut self, lock: &mut Lock, belief: &mut Belief, outer: &Lease) {
        let count = outer.hold_count();
        // Lost, or unknown: the next check tells.
        let Ok(inner) = lock.lock().await else { return };
        if inner.hold_count() != count + 1 {
            let found = inner.hold_count();
            self.process.broken(format!("a nested lock at hold count {count} made it {found}"));
        }
        belief.nested(&inner);
        sleep(self.random.millis(0..4)).await;
        if self.random.once_in(2) {
            drop(inner);
        } else {
            let _ = inner.unlock().await;
        }
    }

    /// A loss is final, and everything tells it.
    async fn stays_lost(&mut self, lease: &Lease) {
        for _ in 0..3 {
            if lease.check().is_ok() || !lease.token().is_cancelled() {
                self.process.broken(format!("{} was lost, and came back", lease.name()));
            }
            sleep(self.random.millis(0..20)).await;
        }
    }

    async fn end(&mut self, place: &Place, held: Held) {
        let Held { belief, lease } = held;
        let ask = belief.ask();
        drop(belief);
        match self.random.below(2000) {
            0 => {
                let diary = &self.process.diary;
                diary.write(What::Forcing { ask, name: place.name.clone() });
                if place.leases.force_unlock(&place.name).await.is_ok() {
                    diary.write(What::Forced { ask });
                }
            }
            1..20 => {
                self.process.diary.write(What::Forgot { ask });
                lease.forget();
            }
            20..600 => drop(lease),
            _ => {
                let _ = lease.unlock().await;
            }
        }
    }
}

/// A lease and what is believed of it, dropped in the right order: belief ends before anything is sent.
struct Held {
    belief: Belief,
    lease: Lease,
}

impl Held {
    /// Trusts the token alone.
    async fn sleep(&mut self, how_long: Duration) {
        let token = self.lease.token();
        if timeout(how_long, token.cancelled()).await.is_ok() {
            let loss = self.lease.check().err().and_then(|error| error.loss());
            self.belief.fired(loss);
        }
    }
}

fn error_word(error: &leasehold::Error) -> String {
    match error.loss() {
        Some(loss) => format!("lost-{}", loss_word(Some(loss))),
        None => format!("{:?}", error.kind()).to_lowercase(),
    }
}

/// A word for the history.
pub fn loss_word(loss: Option<Loss>) -> String {
    loss.map_or_else(|| "unknown".to_owned(), |loss| format!("{loss:?}").to_lowercase())
}
