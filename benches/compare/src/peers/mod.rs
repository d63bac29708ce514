//! Everybody who is measured, each by its documented default usage. Where a peer polls, a variant that polls
//! every 5 ms stands beside it in the scenarios with contention.
//!
//! Left out: cf-redis-cluster-plugin 0.2.0 (waits by pub/sub, fair), which does not compile where fred has its
//! feature `unix-sockets`, as it does with leasehold.

mod async_redis_lock;
#[path = "../../../bare/mod.rs"]
mod bare;
mod batch;
mod distkit;
mod distributed_lock;
mod floor_fred;
mod floor_redis;
mod floor_waits;
mod leasehold;
mod pulse;
mod rdlock;
mod redlock;
mod rlock;
mod rslock;

use crate::connector;
use crate::contender::{Entry, Role};
use floor_fred::Way;
use std::time::Duration;

pub use batch::{batch_script, pair_in_one};
pub use pulse::Pulse;

/// For peers that ask for one; long enough that no hold of ours comes near it.
const TTL: Duration = Duration::from_secs(10);
const EAGER: Option<Duration> = Some(Duration::from_millis(5));

const SCRIPTS: &[&str] = &["evalsha", "eval"];
const SET_AND_SCRIPTS: &[&str] = &["set", "evalsha", "eval"];

/// What is measured twice, and the second time.
pub const TWICE: &str = "leasehold";
pub const AGAIN: &str = "leasehold-again";

pub fn ids() -> Vec<&'static str> {
    all().iter().map(|entry| entry.id).collect()
}

/// Ours, then the floors, then the peers.
pub fn all() -> Vec<Entry> {
    let mut all = ours_and_floors();
    all.extend(peers());
    all
}

fn ours_and_floors() -> Vec<Entry> {
    const BARE: Way = Way::Scripts { fenced: true, timeout: false };
    const PLAIN: Way = Way::Scripts { fenced: false, timeout: false };
    const LIMITED: Way = Way::Scripts { fenced: true, timeout: true };
    vec![
        Entry {
            id: "leasehold",
            about: "the default: with fencing tokens",
            role: Role::Ours,
            sends: SCRIPTS,
            events: false,
            connect: connector!(|url| leasehold::connect(url, true)),
        },
        Entry {
            id: "leasehold-plain",
            about: "without fencing tokens",
            role: Role::Ours,
            sends: SCRIPTS,
            events: false,
            connect: connector!(|url| leasehold::connect(url, false)),
        },
        Entry {
            id: "floor-fred",
            about: "leasehold's two scripts, bare through its client",
            role: Role::Floor,
            sends: SCRIPTS,
            events: false,
            connect: connector!(|url| floor_fred::connect(url, BARE)),
        },
        Entry {
            id: "floor-fred-plain",
            about: "the same without fencing tokens",
            role: Role::Floor,
            sends: SCRIPTS,
            events: false,
            connect: connector!(|url| floor_fred::connect(url, PLAIN)),
        },
        Entry {
            id: "floor-fred-timeout",
            about: "floor-fred with a time limit on each command, as leasehold has it",
            role: Role::Floor,
            sends: SCRIPTS,
            events: false,
            connect: connector!(|url| floor_fred::connect(url, LIMITED)),
        },
        Entry {
            id: "set-fred",
            about: "SET NX PX and compare-and-delete, through fred",
            role: Role::Floor,
            sends: SET_AND_SCRIPTS,
            events: false,
            connect: connector!(|url| floor_fred::connect(url, Way::Set)),
        },
        Entry {
            id: "set-redis-rs",
            about: "the same through redis-rs",
            role: Role::Floor,
            sends: SET_AND_SCRIPTS,
            events: false,
            connect: connector!(floor_redis::connect),
        },
        Entry {
            id: "floor-fred-waits",
            about: "floor-fred with a second connection for the message of a release",
            role: Role::FloorThatWaits,
            sends: SCRIPTS,
            events: false,
            connect: connector!(floor_waits::connect),
        },
        Entry {
            id: AGAIN,
            about: "leasehold a second time: what differs less than these two does not differ",
            role: Role::Again,
            sends: SCRIPTS,
            events: false,
            connect: connector!(|url| leasehold::connect(url, true)),
        },
    ]
}

/// A peer at its default, and the same asked to poll every 5 ms.
macro_rules! polling {
    ($id:literal, $sends:expr, $about:literal, $connect:path) => {
        [
            Entry {
                id: $id,
                about: $about,
                role: Role::Peer,
                sends: $sends,
                events: false,
                connect: connector!(|url| $connect(url, None)),
            },
            Entry {
                id: concat!($id, "-5ms"),
                about: "the same, polling every 5 ms",
                role: Role::Eager,
                sends: $sends,
                events: false,
                connect: connector!(|url| $connect(url, EAGER)),
            },
        ]
    };
}

fn peers() -> Vec<Entry> {
    let mut all = Vec::new();
    all.extend(polling!("rslock", SET_AND_SCRIPTS, "polls, 0..200 ms", rslock::connect));
    all.extend(polling!("rlock", SET_AND_SCRIPTS, "polls, 100 ms", rlock::connect));
    all.extend(polling!("async-redis-lock", SCRIPTS, "polls, 100 ms", async_redis_lock::connect));
    all.extend(polling!("distkit", SET_AND_SCRIPTS, "polls, 50 ms", distkit::connect));
    all.extend(polling!(
        "distributed-lock",
        SET_AND_SCRIPTS,
        "does not wait; polls here, 100 ms",
        distributed_lock::connect
    ));
    all.push(Entry {
        id: "rdlock",
        about: "waits by keyspace events, which are on for it alone",
        role: Role::Peer,
        sends: &["set", "del", "psubscribe"],
        events: true,
        connect: connector!(rdlock::connect),
    });
    all.push(Entry {
        id: "redlock",
        about: "blocking, on tokio's blocking pool; a connection for each command",
        role: Role::Blocking,
        sends: SET_AND_SCRIPTS,
        events: false,
        connect: connector!(redlock::connect),
    });
    all
}
