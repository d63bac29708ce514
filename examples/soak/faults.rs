//! The faults: a plan that follows from the seed, and those who carry it out.
//!
//! Each holder process and each server has a lane of its own, in which one fault follows another.

use crate::common::Mode;
use crate::crew::Slot;
use crate::history::{What, now};
use crate::random::Random;
use crate::stage::{Backend, Log};
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub struct Fault {
    /// Since the start of the run.
    pub at: Duration,
    pub lasts: Duration,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Process(Process, Reach),
    Server(ServerFault),
}

/// Which of a process's proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    All,
    One(usize),
}

/// What can happen to one holder process and its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    BlackHole,
    HoldRequests,
    HoldReplies,
    LoseReplies,
    Delay,
    Drip,
    Duplicate,
    Refuse,
    Cut,
    LoseOneReply,
    LoseOneRequest,
    Kill,
    Freeze,
}

/// What can happen to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFault {
    Crash,
    Freeze,
    KillClients,
    KillSubscribers,
    PauseClients,
    Sleep,
    FlushScripts,
    OutOfMemory,
    Denied,
    TooFewReplicas,
    ReadOnly,
    FlushAll,
    /// Of the name with this number.
    Delete(usize),
}

/// Kinds and how many of each are in a deck. Breaks of the network are commoner than those that lose keys, and
/// those that keep requests back commonest: only then does the server's time to live run out with the holder's.
const PROCESS: &[(Process, usize)] = &[
    (Process::BlackHole, 6),
    (Process::HoldRequests, 5),
    (Process::HoldReplies, 2),
    (Process::LoseReplies, 1),
    (Process::Delay, 2),
    (Process::Drip, 1),
    (Process::Duplicate, 2),
    (Process::Refuse, 5),
    (Process::Cut, 3),
    (Process::LoseOneReply, 3),
    (Process::LoseOneRequest, 2),
    (Process::Kill, 3),
    (Process::Freeze, 4),
];

const SERVER: &[(ServerFault, usize)] = &[
    (ServerFault::Crash, 2),
    (ServerFault::Freeze, 2),
    (ServerFault::KillClients, 2),
    (ServerFault::KillSubscribers, 1),
    (ServerFault::PauseClients, 1),
    (ServerFault::Sleep, 1),
    (ServerFault::FlushScripts, 1),
    (ServerFault::OutOfMemory, 1),
    (ServerFault::Denied, 1),
    (ServerFault::TooFewReplicas, 1),
    (ServerFault::ReadOnly, 1),
    (ServerFault::FlushAll, 1),
    (ServerFault::Delete(0), 2),
];

/// Deals kinds from a shuffled deck, so that a short run sees nearly all of them.
struct Deck<T> {
    whole: Vec<T>,
    left: Vec<T>,
}

impl<T: Copy> Deck<T> {
    fn new(kinds: &[(T, usize)]) -> Self {
        let whole = kinds.iter().flat_map(|(kind, count)| vec![*kind; *count]).collect();
        Self { whole, left: Vec::new() }
    }

    fn deal(&mut self, random: &mut Random) -> T {
        if self.left.is_empty() {
            self.left = self.whole.clone();
            random.shuffle(&mut self.left);
        }
        self.left.pop().expect("a deck is never empty")
    }
}

/// The lanes of the processes, then those of the servers.
pub struct Plan {
    pub processes: Vec<Vec<Fault>>,
    pub servers: Vec<Vec<Fault>>,
}

impl Plan {
    pub fn new(seed: u64, length: Duration, processes: usize, names: &[usize]) -> Self {
        let mut random = Random::part(seed, 77);
        // Dealt by turns in time, so that all lanes together see each kind soon.
        let mut deck = Deck::new(PROCESS);
        let mut lanes = vec![Vec::new(); processes];
        deal(&mut lanes, length, 600..5000, &mut random, |random, _| {
            let kind = deck.deal(random);
            let reach =
                if random.once_in(2) { Reach::All } else { Reach::One(random.below(names.len())) };
            let lasts = match kind {
                Process::Kill => random.millis(50..1500),
                Process::Cut | Process::LoseOneReply | Process::LoseOneRequest => {
                    random.millis(50..300)
                }
                Process::Freeze if random.once_in(5) => random.millis(2000..6000),
                Process::Freeze => random.millis(300..2000),
                _ if random.once_in(3) => random.millis(30..350),
                _ => random.millis(500..3000),
            };
            (lasts, Kind::Process(kind, reach))
        });
        let mut decks: Vec<_> = names.iter().map(|_| Deck::new(SERVER)).collect();
        let mut server_lanes = vec![Vec::new(); names.len()];
        deal(&mut server_lanes, length, 1000..3500, &mut random, |random, lane| {
            let kind = match decks[lane].deal(random) {
                ServerFault::Delete(_) => ServerFault::Delete(random.below(names[lane])),
                kind => kind,
            };
            let lasts =
                if random.once_in(2) { random.millis(50..350) } else { random.millis(350..2000) };
            (lasts, Kind::Server(kind))
        });
        Self { processes: lanes, servers: server_lanes }
    }

    pub fn faults(&self) -> impl Iterator<Item = (String, &Fault)> {
        let processes = self.processes.iter().enumerate();
        let servers = self.servers.iter().enumerate();
        let processes = processes
            .flat_map(|(lane, faults)| faults.iter().map(move |fault| (format!("p{lane}"), fault)));
        processes.chain(
            servers.flat_map(|(lane, faults)| {
                faults.iter().map(move |fault| (format!("s{lane}"), fault))
            }),
        )
    }
}

/// Fills lanes with faults until `length`, always the one that is earliest.
fn deal(
    lanes: &mut [Vec<Fault>],
    length: Duration,
    gaps: std::ops::Range<u64>,
    random: &mut Random,
    mut next: impl FnMut(&mut Random, usize) -> (Duration, Kind),
) {
    let mut free: Vec<Duration> = lanes.iter().map(|_| Duration::from_secs(1)).collect();
    loop {
        let lane = (0..lanes.len()).min_by_key(|lane| free[*lane]).expect("there are lanes");
        let at = free[lane] + random.millis(gaps.clone());
        if at >= length {
            return;
        }
        let (lasts, kind) = next(random, lane);
        let lasts = lasts.min(length - at);
        free[lane] = at + lasts;
        lanes[lane].push(Fault { at, lasts, kind });
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match &self.kind {
            Kind::Process(kind, Reach::All) => format!("{kind:?}"),
            Kind::Process(kind, Reach::One(server)) => format!("{kind:?} to s{server}"),
            Kind::Server(kind) => format!("{kind:?}"),
        };
        write!(f, "at {:.3} s for {:.3} s: {word}", self.at.as_secs_f64(), self.lasts.as_secs_f64())
    }
}

/// Carries out the faults of one process.
pub fn break_process(
    slot: &Slot,
    faults: &[Fault],
    start: Instant,
    log: &Log,
) -> Result<(), String> {
    for fault in faults {
        let Kind::Process(kind, reach) = fault.kind else { continue };
        sleep_until(start + fault.at);
        let on = slot.who();
        let proxies = slot.proxies.iter().enumerate();
        let proxies: Vec<_> = proxies
            .filter(|(at, _)| reach == Reach::All || reach == Reach::One(*at))
            .map(|(_, proxy)| proxy)
            .collect();
        let at = now();
        let set = |mode| proxies.iter().for_each(|proxy| proxy.set(mode));
        match kind {
            Process::BlackHole => set(Mode::BlackHole),
            Process::HoldRequests => set(Mode::HoldRequests),
            Process::HoldReplies => set(Mode::HoldReplies),
            Process::LoseReplies => set(Mode::DropReplies),
            Process::Delay => set(Mode::Delay(Duration::from_millis(40))),
            Process::Drip => set(Mode::Drip),
            Process::Duplicate => set(Mode::Duplicate),
            Process::Refuse => set(Mode::Refuse),
            Process::Cut => proxies.iter().for_each(|proxy| proxy.close_all()),
            Process::LoseOneReply => {
                proxies.iter().for_each(|proxy| proxy.drop_reply_of(1, "EVALSHA"))
            }
            Process::LoseOneRequest => {
                proxies.iter().for_each(|proxy| proxy.drop_request(1, "EVALSHA"))
            }
            Process::Kill => slot.kill(),
            Process::Freeze => slot.freeze(),
        }
        thread::sleep(fault.lasts);
        match kind {
            Process::Kill => slot.restart()?,
            Process::Freeze => slot.thaw(),
            Process::LoseReplies => {
                // The client cannot know which replies are missing.
                proxies.iter().for_each(|proxy| proxy.close_all());
                set(Mode::Pass);
            }
            _ => set(Mode::Pass),
        }
        log.write(at, What::Fault { until: now(), on, kind: format!("{kind:?}") });
    }
    Ok(())
}

/// Carries out the faults of one server.
pub fn break_server(backend: &Backend, faults: &[Fault], start: Instant, log: &Log) {
    for fault in faults {
        let Kind::Server(kind) = fault.kind else { continue };
        sleep_until(start + fault.at);
        let at = now();
        let millis = fault.lasts.as_millis().to_string();
        let tell = |words: &[&str]| {
            if let Err(error) = backend.command(words) {
                eprintln!("{}: {words:?}: {error}", backend.label);
            }
        };
        match kind {
            ServerFault::Crash => backend.server.kill(),
            ServerFault::Freeze => backend.server.pause(),
            ServerFault::KillClients => tell(&["CLIENT", "KILL", "TYPE", "normal"]),
            ServerFault::KillSubscribers => tell(&["CLIENT", "KILL", "TYPE", "pubsub"]),
            ServerFault::PauseClients => tell(&["CLIENT", "PAUSE", &millis]),
            ServerFault::Sleep => tell(&["DEBUG", "SLEEP", &fault.lasts.as_secs_f64().to_string()]),
            ServerFault::FlushScripts => tell(&["SCRIPT", "FLUSH"]),
            ServerFault::OutOfMemory => tell(&["CONFIG", "SET", "maxmemory", "1"]),
            ServerFault::Denied => tell(&["ACL", "SETUSER", "default", "-hset", "-pexpire"]),
            ServerFault::TooFewReplicas => tell(&["CONFIG", "SET", "min-replicas-to-write", "1"]),
            ServerFault::ReadOnly => tell(&["REPLICAOF", "127.0.0.1", "1"]),
            ServerFault::FlushAll => tell(&["FLUSHALL"]),
            ServerFault::Delete(name) => tell(&["DEL", &backend.names[name]]),
        }
        let has_effect_at_once = matches!(
            kind,
            ServerFault::KillClients
                | ServerFault::KillSubscribers
                | ServerFault::FlushScripts
                | ServerFault::FlushAll
                | ServerFault::Delete(_)
        );
        if !has_effect_at_once && kind != ServerFault::Sleep {
            thread::sleep(fault.lasts);
        }
        match kind {
            ServerFault::Crash => backend.server.restart(),
            ServerFault::Freeze => backend.server.resume(),
            ServerFault::OutOfMemory => tell(&["CONFIG", "SET", "maxmemory", "0"]),
            ServerFault::Denied => tell(&["ACL", "SETUSER", "default", "+@all"]),
            ServerFault::TooFewReplicas => tell(&["CONFIG", "SET", "min-replicas-to-write", "0"]),
            ServerFault::ReadOnly => tell(&["REPLICAOF", "NO", "ONE"]),
            _ => {}
        }
        let until = now();
        let wiped: &[String] = match kind {
            ServerFault::Crash if !backend.durable => &backend.names,
            ServerFault::FlushAll => &backend.names,
            ServerFault::Delete(name) => &backend.names[name..=name],
            _ => &[],
        };
        for name in wiped {
            log.write(at, What::Wiped { until, name: name.clone() });
        }
        log.write(
            at,
            What::Fault { until, on: backend.label.to_owned(), kind: format!("{kind:?}") },
        );
    }
}

fn sleep_until(at: Instant) {
    thread::sleep(at.saturating_duration_since(Instant::now()));
}
