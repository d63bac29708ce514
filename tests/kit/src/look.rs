//! Reports of the server about its clients and their work.

use std::time::{Duration, Instant};

use leasehold::Lease;

use super::eventually;
use super::resp::{Reply, Resp};
use super::server::Server;

/// How often a command was called since the server started or `CONFIG RESETSTAT`, calls from
/// within scripts included.
#[track_caller]
pub fn calls(connection: &mut Resp, command: &str) -> i64 {
    let stats = connection.command(&["INFO", "commandstats"]).text();
    let line = format!("cmdstat_{command}:calls=");
    stats
        .lines()
        .find_map(|text| text.strip_prefix(&line)?.split(',').next()?.parse().ok())
        .unwrap_or(0)
}

/// How many connections the server has besides this one.
#[track_caller]
pub fn others(connection: &mut Resp) -> usize {
    let list = connection.command(&["CLIENT", "LIST"]).text();
    list.lines().count() - 1
}

/// The channels that something listens to, but for the inboxes of managers.
pub fn channels(connection: &mut Resp) -> Vec<String> {
    let all = connection.command(&["PUBSUB", "CHANNELS"]).list().into_iter();
    all.map(Reply::text).filter(|channel| !channel.starts_with("leasehold_inbox:")).collect()
}

/// How many clients have subscribed to a channel.
#[track_caller]
pub fn subscribers(connection: &mut Resp, channel: &str) -> i64 {
    connection
        .command(&["PUBSUB", "NUMSUB", channel])
        .list()
        .pop()
        .expect("a channel and its number")
        .int()
}

pub fn exists(server: &Server, key: &str) -> bool {
    server.command(&["EXISTS", key]).int() == 1
}

/// Redisson's channel of a lock whose name has no brace.
pub fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// Redisson's key of the fencing token of a lock whose name has no brace.
pub fn fence_key(name: &str) -> String {
    format!("redisson_lock_token:{{{name}}}")
}

/// The owner of a lock, and the hold count that the server has.
#[track_caller]
pub fn recorded(server: &Server, name: &str) -> (String, i64) {
    let pairs = server.command(&["HGETALL", name]).pairs();
    let [(owner, count)] = pairs.try_into().expect("one owner");
    (owner, count.parse().expect("a count"))
}

/// Waits for the next renewal of a key.
pub async fn renewal(server: &Server, key: &str, limit: Duration) {
    let mut connection = server.connection();
    let mut last = i64::MAX;
    eventually(limit, || {
        let left = connection.command(&["PTTL", key]).int();
        let renewed = left > last.saturating_add(20);
        last = left;
        renewed
    })
    .await;
}

/// What is believed here ends before what the server keeps.
#[track_caller]
pub fn believes_no_longer_than_the_key_lives(lease: &Lease, server: &Server) {
    let now = Instant::now();
    let believed = now + lease.remaining();
    let asked = Instant::now();
    let left = server.command(&["PTTL", lease.name()]).int();
    let left = u64::try_from(left).expect("a key with a time to live");
    let end = asked + Duration::from_millis(left);
    assert!(believed < end, "{:?} too long", believed - end);
}
