//! What the server can tell about its clients and their work.

use super::resp::Resp;

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

/// Redisson's channel of a lock whose name has no brace.
pub fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// Redisson's key of the fencing token of a lock whose name has no brace.
pub fn fence_key(name: &str) -> String {
    format!("redisson_lock_token:{{{name}}}")
}
