//! The servers that the run is played on, and those who watch them.

use crate::common::{Resp, Server};
use crate::history::{Event, What, Words, now};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A server, and the names whose locks are kept there.
pub struct Backend {
    pub label: &'static str,
    pub server: Server,
    /// Whether the keys survive a restart.
    pub durable: bool,
    pub ttl: Duration,
    pub names: Vec<String>,
}

impl Backend {
    /// The names on the durable and on the volatile server.
    pub const NAMES: [&[&str]; 2] =
        [&["ash", "birch", "cedar", "dogwood", "elm"], &["fir", "hazel", "juniper"]];

    /// Two servers: one keeps its keys on disk, the other loses them with each crash.
    pub fn two() -> Vec<Self> {
        // Without fsync no write is ever put off, so a kill of the process loses none.
        let kept = Server::start_with(&["--appendonly", "yes", "--appendfsync", "no"]);
        let servers = [("durable", kept, 1), ("volatile", Server::start(), 3)];
        let backend = |((label, server, ttl), names): ((_, _, _), &&[&str])| Self {
            label,
            server,
            durable: label == "durable",
            ttl: Duration::from_secs(ttl),
            names: names.iter().map(|name| name.to_string()).collect(),
        };
        servers.into_iter().zip(&Self::NAMES).map(backend).collect()
    }

    /// One command; an error is of no interest to those who break things.
    pub fn command(&self, words: &[&str]) -> io::Result<()> {
        Resp::try_connect(self.server.port())?.try_command(words).map(drop)
    }
}

/// What the parent writes down.
#[derive(Default)]
pub struct Log(Mutex<Vec<Event>>);

impl Log {
    pub fn write(&self, at: u64, what: What) {
        let event = Event { at, who: "soak".to_owned(), what };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Looks at the keys of a server again and again: which names are free, and whether anything has no end.
pub fn watch(backend: &Backend, log: &Log, stop: &AtomicBool) {
    /// A gap longer than this may hide a whole lease.
    const BLIND: u64 = 100_000_000;
    /// Free for less is of no interest.
    const SHORT: u64 = 150_000_000;
    let mut connection = None;
    let mut free: Vec<Option<(u64, u64)>> = vec![None; backend.names.len()];
    let close = |name: &String, span: Option<(u64, u64)>| {
        if let Some((from, until)) = span
            && until - from > SHORT
        {
            log.write(from, What::Free { until, name: name.clone() });
        }
    };
    while !stop.load(Ordering::Relaxed) {
        let before = now();
        let seen = look(backend, &mut connection);
        let after = now();
        if seen.is_err() {
            connection = None;
        }
        let ttls = seen.unwrap_or_default();
        for (at, name) in backend.names.iter().enumerate() {
            let absent = ttls.iter().all(|(key, _)| key != name)
                && after - before < BLIND
                && connection.is_some();
            free[at] = match free[at].take() {
                Some((from, until)) if absent && before - until < BLIND => Some((from, before)),
                span => {
                    close(name, span);
                    absent.then_some((after, after))
                }
            };
        }
        for (key, ttl) in ttls {
            if ttl == -1 {
                log.write(after, What::Undying { key: Words(key) });
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    for (name, span) in backend.names.iter().zip(free) {
        close(name, span);
    }
}

/// All keys and their times to live, at one instant.
fn look(backend: &Backend, connection: &mut Option<Resp>) -> io::Result<Vec<(String, i64)>> {
    const LOOK: &str = "
        local found = {}
        for _, key in ipairs(redis.call('KEYS', '*')) do
            table.insert(found, key)
            table.insert(found, redis.call('PTTL', key))
        end
        return found";
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(Resp::try_connect(backend.server.port())?),
    };
    let reply = connection.try_command(&["EVAL", LOOK, "0"])?;
    if let Some(error) = reply.error() {
        return Err(io::Error::other(error.to_owned()));
    }
    let pairs = reply.pairs();
    Ok(pairs.into_iter().filter_map(|(key, ttl)| Some((key, ttl.parse().ok()?))).collect())
}

/// What is left on a server that should hold nothing: locks, and channels.
pub fn left_over(backend: &Backend) -> Result<Vec<String>, String> {
    let mut connection = backend.server.connection();
    let mut left = Vec::new();
    let keys = connection.try_command(&["KEYS", "*"]).map_err(|error| error.to_string())?;
    for key in keys.list() {
        let key = key.text();
        // The last fencing token of each name is remembered.
        if !key.starts_with("redisson_lock_token:") {
            left.push(format!("the key {key} on {}", backend.label));
        }
    }
    let channels =
        connection.try_command(&["PUBSUB", "CHANNELS"]).map_err(|error| error.to_string())?;
    left.extend(
        channels
            .list()
            .into_iter()
            .map(|channel| format!("the channel {} on {}", channel.text(), backend.label)),
    );
    Ok(left)
}

/// The hold counts of a name on the server.
pub fn counts(backend: &Backend, name: &str) -> Vec<u64> {
    let fields = backend.server.command(&["HGETALL", name]).pairs();
    fields.iter().filter_map(|(_, count)| count.parse().ok()).collect()
}
