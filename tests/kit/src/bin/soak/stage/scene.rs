//! What a run on a store is made of: its servers, its names, and the faults that suit it.

use super::cluster::{self, Slots};
use super::ensemble::{self, Ensemble};
use super::one::One;
use super::quorum::{self, Quorum};
use super::sentinel::{self, Guarded};
use super::{Backend, House, Servers};
use crate::faults::{Process, ServerKind};
use std::ops::Range;
use std::time::Duration;

pub struct Scene {
    pub store: &'static str,
    pub houses: &'static [House],
    /// How many proxies each holder process has.
    pub lines: usize,
    /// Kinds, and how many of each are in a deck.
    pub process_faults: &'static [(Process, usize)],
    pub server_faults: &'static [(ServerKind, usize)],
    /// Between two faults of one store's servers, in milliseconds.
    pub gaps: Range<u64>,
    raise: fn() -> Vec<Box<dyn Servers>>,
}

impl Scene {
    pub const STORES: &str = "redis, sentinel, cluster, quorum or zookeeper";

    pub fn of(store: &str) -> Result<&'static Self, String> {
        match store {
            "redis" => Ok(&REDIS),
            "sentinel" => Ok(&SENTINEL),
            "cluster" => Ok(&CLUSTER),
            "quorum" => Ok(&QUORUM),
            "zookeeper" => Ok(&ZOOKEEPER),
            _ => Err(format!("--store {store}: write {}", Self::STORES)),
        }
    }

    /// Starts the servers.
    pub fn raise(&self) -> Vec<Backend> {
        let servers = (self.raise)();
        let backend = |(house, servers): (&'static House, _)| Backend {
            house,
            servers,
            names: house.names.iter().map(|name| name.to_string()).collect(),
        };
        self.houses.iter().zip(servers).map(backend).collect()
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Names of all kinds, for a store that puts no names together.
const MORE_NAMES: &[&str] = &[
    "fir",
    "ash",
    "birch",
    "cedar",
    "dogwood",
    "elm",
    "rw-larch",
    "rw-maple",
    "pool3-oak",
    "lead-yew",
    "job-yew",
    "loot-yew",
];

/// As [`MORE_NAMES`], with one lock less.
const NAMES: &[&str] = MORE_NAMES.split_at(1).1;

/// One whose engine counts with the time to live as it is.
const fn house(
    label: &'static str,
    ttl: Duration,
    nodes: usize,
    names: &'static [&'static str],
) -> House {
    House { label, ttl, engine_ttl: ttl, replicas: 0, names, nodes }
}

/// Breaks of the network are commoner than those that lose keys, and those that keep requests back commonest:
/// only then does the server's time to live run out with the holder's.
const BEHIND_PROXIES: &[(Process, usize)] = &[
    (Process::BlackHole, 6),
    (Process::HoldRequests, 5),
    (Process::HoldReplies, 2),
    (Process::LoseReplies, 1),
    (Process::Delay, 2),
    (Process::Drip, 1),
    (Process::Duplicate, 3),
    (Process::Refuse, 5),
    (Process::Cut, 3),
    (Process::LoseOneReply, 3),
    (Process::LoseOneRequest, 2),
    (Process::Kill, 3),
    (Process::Freeze, 7),
    (Process::Silence, 2),
    (Process::BlockLog, 2),
    (Process::SlowLog, 1),
    (Process::PanicInLog, 1),
    (Process::EndRuntime, 2),
    (Process::UnwindRuntime, 2),
    (Process::Burst, 2),
    (Process::Flood, 1),
];

/// Two servers of their own, side by side.
static REDIS: Scene = Scene {
    store: "redis",
    houses: &[
        house("durable", SECOND, 1, NAMES),
        house(
            "volatile",
            Duration::from_secs(3),
            1,
            &[
                "fir",
                "hazel",
                "juniper",
                "rw-pine",
                "pool5-rowan",
                "lead-aspen",
                "job-aspen",
                "loot-aspen",
            ],
        ),
    ],
    lines: 2,
    process_faults: BEHIND_PROXIES,
    server_faults: &[
        (ServerKind::Crash, 2),
        (ServerKind::Freeze, 2),
        (ServerKind::KillClients, 2),
        (ServerKind::KillSubscribers, 1),
        (ServerKind::PauseClients, 1),
        (ServerKind::Sleep, 1),
        (ServerKind::FlushScripts, 1),
        (ServerKind::OutOfMemory, 1),
        (ServerKind::Denied, 1),
        (ServerKind::TooFewReplicas, 1),
        (ServerKind::ReadOnly, 1),
        (ServerKind::FlushAll, 1),
        (ServerKind::Delete, 2),
    ],
    gaps: 1000..3500,
    raise: One::two,
};

/// A node that was restarted counts again when it is as old as the time to live, in whole seconds, so the next
/// one is broken after that: apart from the faults that break two, one is broken at a time.
static QUORUM: Scene = Scene {
    store: "quorum",
    houses: &[house("quorum", Duration::from_secs(2), quorum::NODES, MORE_NAMES)],
    lines: quorum::NODES,
    process_faults: BEHIND_PROXIES,
    server_faults: &[
        (ServerKind::Crash, 4),
        (ServerKind::Freeze, 3),
        (ServerKind::KillClients, 1),
        (ServerKind::KillSubscribers, 1),
        (ServerKind::PauseClients, 1),
        (ServerKind::FlushScripts, 1),
        (ServerKind::OutOfMemory, 1),
        (ServerKind::ReadOnly, 1),
        (ServerKind::CrashMajority, 1),
        (ServerKind::FreezeMajority, 1),
    ],
    gaps: 3500..5500,
    raise: Quorum::three,
};

/// Of holders whose servers are reached without proxies.
const DIRECT: &[(Process, usize)] = &[
    (Process::Kill, 2),
    (Process::Freeze, 4),
    (Process::BlockLog, 1),
    (Process::PanicInLog, 1),
    (Process::EndRuntime, 1),
    (Process::UnwindRuntime, 1),
    (Process::Burst, 1),
];

/// A time to live that some leases survive a failover with.
static SENTINEL: Scene = Scene {
    store: "sentinel",
    houses: &[House {
        replicas: 1,
        ..house("sentinel", Duration::from_secs(5), sentinel::SERVERS, MORE_NAMES)
    }],
    lines: 0,
    process_faults: DIRECT,
    server_faults: &[
        (ServerKind::Failover, 2),
        (ServerKind::SplitFailover, 2),
        (ServerKind::CrashPrimary, 2),
        (ServerKind::FreezePrimary, 2),
        (ServerKind::CrashReplica, 2),
        (ServerKind::FreezeReplica, 1),
        (ServerKind::CrashSentinel, 1),
        (ServerKind::FreezeSentinel, 1),
        (ServerKind::KillClients, 2),
        (ServerKind::KillSubscribers, 1),
        (ServerKind::PauseClients, 1),
        (ServerKind::FlushScripts, 1),
    ],
    gaps: 1000..3500,
    raise: Guarded::start,
};

/// Names in the slots of all three primaries, and some in one slot.
static CLUSTER: Scene = Scene {
    store: "cluster",
    houses: &[house(
        "cluster",
        Duration::from_secs(3),
        cluster::NODES,
        // Those that lie together are renewed together.
        &[
            "ash",
            "birch",
            "cedar",
            "{oak}:1",
            "{oak}:2",
            "{oak}:3",
            "{oak}:4",
            "{oak}:5",
            "{oak}:6",
            "rw-larch",
            "rw-maple",
            "pool3-oak",
            "lead-yew",
            "job-yew",
            "loot-yew",
        ],
    )],
    lines: 0,
    process_faults: DIRECT,
    server_faults: &[
        (ServerKind::MoveSlot, 4),
        (ServerKind::HalfMoveSlot, 3),
        (ServerKind::Failover, 4),
        (ServerKind::CrashPrimary, 2),
        (ServerKind::FreezePrimary, 2),
        (ServerKind::CrashReplica, 1),
        (ServerKind::FreezeReplica, 1),
        (ServerKind::KillClients, 2),
        (ServerKind::KillSubscribers, 1),
        (ServerKind::PauseClients, 1),
        (ServerKind::FlushScripts, 1),
    ],
    gaps: 600..2500,
    raise: Slots::start,
};

/// A lease is believed for three quarters of the session's time-out.
static ZOOKEEPER: Scene = Scene {
    store: "zookeeper",
    houses: &[House {
        engine_ttl: Duration::from_millis(1500),
        ..house("zookeeper", Duration::from_secs(2), ensemble::PEERS, NAMES)
    }],
    lines: ensemble::PEERS,
    process_faults: &[
        (Process::BlackHole, 6),
        (Process::Refuse, 5),
        (Process::Cut, 4),
        (Process::LoseOneCreation, 2),
        (Process::LoseOneDeletion, 2),
        (Process::LoseOneWrite, 1),
        (Process::Kill, 3),
        (Process::Freeze, 5),
        (Process::BlockLog, 2),
        (Process::PanicInLog, 1),
        (Process::EndRuntime, 1),
        (Process::UnwindRuntime, 1),
        (Process::Burst, 1),
    ],
    server_faults: &[
        (ServerKind::CrashPrimary, 2),
        (ServerKind::CrashReplica, 2),
        (ServerKind::FreezePrimary, 2),
        (ServerKind::FreezeReplica, 2),
        (ServerKind::CrashMajority, 1),
        (ServerKind::FreezeMajority, 1),
        (ServerKind::Delete, 2),
    ],
    gaps: 1500..4000,
    raise: Ensemble::three,
};
