//! Everybody who is measured, each by its documented default usage. Where a peer polls, a variant that polls
//! every 5 ms stands beside it in the scenarios with contention.

mod floor_fred;
mod floor_redis;
mod leasehold;
mod rlock;
mod rslock;

use crate::connector;
use crate::contender::{Entry, Role};
use floor_fred::Way;
use std::time::Duration;

pub use floor_fred::{BATCH, TOKEN};

/// For peers that ask for one; long enough that no hold of ours comes near it.
const TTL: Duration = Duration::from_secs(10);
const EAGER: Option<Duration> = Some(Duration::from_millis(5));

const SCRIPTS: &[&str] = &["evalsha", "eval"];
const SET_AND_SCRIPTS: &[&str] = &["set", "evalsha", "eval"];

pub fn ids() -> Vec<&'static str> {
    all().iter().map(|entry| entry.id).collect()
}

pub fn all() -> Vec<Entry> {
    let entry =
        |id, about, role, sends, connect| Entry { id, about, role, sends, events: false, connect };
    vec![
        entry(
            "leasehold",
            "the default: with fencing tokens",
            Role::Ours,
            SCRIPTS,
            connector!(|url| leasehold::connect(url, true)),
        ),
        entry(
            "leasehold-plain",
            "without fencing tokens",
            Role::Ours,
            SCRIPTS,
            connector!(|url| leasehold::connect(url, false)),
        ),
        entry(
            "floor-fred",
            "leasehold's two scripts, bare through its client",
            Role::Floor,
            SCRIPTS,
            connector!(|url| floor_fred::connect(
                url,
                Way::Scripts { fenced: true, timeout: false }
            )),
        ),
        entry(
            "floor-fred-plain",
            "the same without fencing tokens",
            Role::Floor,
            SCRIPTS,
            connector!(|url| floor_fred::connect(
                url,
                Way::Scripts { fenced: false, timeout: false }
            )),
        ),
        entry(
            "floor-fred-timeout",
            "floor-fred with a time limit on each command, as leasehold has it",
            Role::Floor,
            SCRIPTS,
            connector!(|url| floor_fred::connect(
                url,
                Way::Scripts { fenced: true, timeout: true }
            )),
        ),
        entry(
            "set-fred",
            "SET NX PX and compare-and-delete, through fred",
            Role::Floor,
            SET_AND_SCRIPTS,
            connector!(|url| floor_fred::connect(url, Way::Set)),
        ),
        entry(
            "set-redis-rs",
            "the same through redis-rs",
            Role::Floor,
            SET_AND_SCRIPTS,
            connector!(floor_redis::connect),
        ),
        entry(
            "rslock",
            "polls, 0..200 ms",
            Role::Peer,
            SET_AND_SCRIPTS,
            connector!(|url| rslock::connect(url, None)),
        ),
        entry(
            "rslock-5ms",
            "polls, 0..5 ms",
            Role::Eager,
            SET_AND_SCRIPTS,
            connector!(|url| rslock::connect(url, EAGER)),
        ),
        entry(
            "rlock",
            "polls, 100 ms",
            Role::Peer,
            SET_AND_SCRIPTS,
            connector!(|url| rlock::connect(url, None)),
        ),
        entry(
            "rlock-5ms",
            "polls, 5 ms",
            Role::Eager,
            SET_AND_SCRIPTS,
            connector!(|url| rlock::connect(url, EAGER)),
        ),
    ]
}
