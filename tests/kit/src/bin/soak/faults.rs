//! The faults: a plan that follows from the seed, and the tasks that carry it out.
//!
//! Each holder process and each server has a lane of its own, in which one fault follows another.

use crate::random::Random;
use crate::stage::{Backend, Harm, Log, Scene, Strike};
use crate::workers::Slot;
use kit::soak::history::{What, nanos, now};
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub struct Fault {
    /// Since the start of the run; later if the one before took longer to mend.
    pub at: Duration,
    pub lasts: Duration,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Process(Process, Reach),
    /// With the number of the server or of the name that it meets.
    Server(ServerKind, usize),
}

impl Kind {
    fn is_inner(&self) -> bool {
        matches!(self, Self::Process(kind, _) if Process::INNER.contains(kind))
    }
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
    /// The answer to one request of this kind, for ZooKeeper.
    LoseOneCreation,
    LoseOneDeletion,
    LoseOneWrite,
    Kill,
    Freeze,
    /// Of the process itself, while the rest of it works on.
    BlockLog,
    SlowLog,
    PanicInLog,
    EndRuntime,
    UnwindRuntime,
    Burst,
    /// Many calls during an outage.
    Flood,
    /// Connections with subscriptions say nothing more.
    Silence,
}

impl Process {
    /// Those that come from inside, for the time after, whatever else happens meanwhile.
    pub const INNER: [Self; 6] = [
        Self::BlockLog,
        Self::SlowLog,
        Self::PanicInLog,
        Self::EndRuntime,
        Self::UnwindRuntime,
        Self::Burst,
    ];
}

/// What can happen to the servers of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
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
    /// Of a name.
    Delete,
    /// All but one, of a quorum or an ensemble.
    CrashMajority,
    FreezeMajority,
    /// With ZooKeeper, the leader and a follower.
    CrashPrimary,
    FreezePrimary,
    CrashReplica,
    FreezeReplica,
    CrashSentinel,
    FreezeSentinel,
    /// As an operator asks for it.
    Failover,
    /// The slot of a name goes to another primary.
    MoveSlot,
    /// The slot of many names goes, and stays between two primaries with some of its keys on each.
    HalfMoveSlot,
    /// As an operator asks for it, while a replica stands still: the sentinels do not agree.
    SplitFailover,
}

impl ServerKind {
    fn is_of_a_name(self) -> bool {
        matches!(self, Self::Delete | Self::MoveSlot)
    }
}

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
    pub fn new(seed: u64, length: Duration, processes: usize, scene: &Scene) -> Self {
        let mut random = Random::part(seed, 77);
        // Dealt by turns in time, so that all lanes together see each kind soon.
        let mut deck = Deck::new(scene.process_faults);
        let mut lanes = vec![Vec::new(); processes];
        deal(&mut lanes, length, 600..4500, &mut random, |random, _| {
            let kind = deck.deal(random);
            let reach = if random.once_in(2) || scene.lines == 0 {
                Reach::All
            } else {
                Reach::One(random.below(scene.lines))
            };
            let reach = if kind == Process::Flood { Reach::All } else { reach };
            let lasts = match kind {
                Process::Kill => random.millis(50..1500),
                Process::Cut
                | Process::LoseOneReply
                | Process::LoseOneRequest
                | Process::LoseOneCreation
                | Process::LoseOneDeletion
                | Process::LoseOneWrite => random.millis(50..300),
                // For as long as it may go unnoticed, and more.
                Process::Silence => random.millis(4000..5000),
                // Much longer than what was asked for in it is swept.
                Process::Flood => random.millis(7000..8000),
                _ if Process::INNER.contains(&kind) => random.millis(2000..6000),
                Process::Freeze if random.once_in(5) => random.millis(2000..6000),
                Process::Freeze => random.millis(300..2000),
                _ if random.once_in(3) => random.millis(30..350),
                _ => random.millis(500..3000),
            };
            (lasts, Kind::Process(kind, reach))
        });
        let mut decks: Vec<_> =
            scene.houses.iter().map(|_| Deck::new(scene.server_faults)).collect();
        let mut server_lanes = vec![Vec::new(); decks.len()];
        deal(&mut server_lanes, length, scene.gaps.clone(), &mut random, |random, lane| {
            let (kind, house) = (decks[lane].deal(random), &scene.houses[lane]);
            let choice = if kind.is_of_a_name() { house.names.len() } else { house.nodes };
            let at = if choice > 1 { random.below(choice) } else { 0 };
            let lasts = match kind {
                // For as long as a lease lives, which may just have been renewed.
                ServerKind::HalfMoveSlot => random.millis(4000..5000),
                // For longer than some leases have.
                ServerKind::Freeze if random.once_in(5) => random.millis(2000..4000),
                _ if random.once_in(2) => random.millis(50..350),
                _ => random.millis(350..2000),
            };
            (lasts, Kind::Server(kind, at))
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
        free[lane] = if kind.is_inner() { at } else { at + lasts };
        lanes[lane].push(Fault { at, lasts, kind });
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match &self.kind {
            Kind::Process(kind, Reach::All) => format!("{kind:?}"),
            Kind::Process(kind, Reach::One(server)) => format!("{kind:?} to s{server}"),
            Kind::Server(kind, at) => format!("{kind:?}({at})"),
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
        let lines = slot.lines.iter().enumerate();
        let lines: Vec<_> = lines
            .filter(|(at, _)| reach == Reach::All || reach == Reach::One(*at))
            .map(|(_, line)| line)
            .collect();
        let at = now();
        if Process::INNER.contains(&kind) {
            slot.send(&format!("fault {kind:?} {}", fault.lasts.as_millis()));
            let until = at + nanos(fault.lasts);
            log.write(at, What::Fault { until, on, kind: format!("{kind:?}") });
            continue;
        }
        if kind == Process::Flood {
            slot.send(&format!("fault {kind:?} {}", fault.lasts.as_millis()));
        }
        match kind {
            Process::Kill => slot.kill(),
            Process::Freeze => slot.freeze(),
            _ => lines.iter().for_each(|line| line.breaks(kind)),
        }
        thread::sleep(fault.lasts);
        match kind {
            Process::Kill => slot.restart()?,
            Process::Freeze => slot.thaw(),
            _ => lines.iter().for_each(|line| line.mend(kind)),
        }
        log.write(at, What::Fault { until: now(), on, kind: format!("{kind:?}") });
    }
    Ok(())
}

/// Carries out the faults of one store's servers, one after the other.
pub fn break_servers(backend: &Backend, faults: &[Fault], start: Instant, log: &Log) {
    for fault in faults {
        let Kind::Server(kind, which) = fault.kind else { continue };
        sleep_until(start + fault.at);
        let (at, names) = (now(), &backend.names);
        let strike = Strike { kind, at: which, lasts: fault.lasts, names };
        let Harm { wiped, replaced, known } = backend.servers.strike(strike);
        let until = now();
        for name in wiped {
            log.write(at, What::Wiped { until, name });
        }
        if let Some((from, until)) = replaced {
            for name in names.iter().cloned() {
                let what = match known {
                    true => What::Succeeded { until, name },
                    false => What::Replaced { until, name },
                };
                log.write(from, what);
            }
        }
        let on = backend.house.label.to_owned();
        log.write(at, What::Fault { until, on, kind: format!("{kind:?}({which})") });
    }
}

fn sleep_until(at: Instant) {
    thread::sleep(at.saturating_duration_since(Instant::now()));
}
