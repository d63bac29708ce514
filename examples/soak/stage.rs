//! The servers that the run is played on, and those who watch them.

use crate::common::{Reply, Resp, Server};
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

/// A key as the server has it.
struct Key {
    name: String,
    ttl: i64,
    /// The field of a lock; empty for other keys.
    token: String,
}

/// What a name was like, from the first look that saw it so to the last.
struct Seen {
    from: u64,
    until: u64,
    token: Option<String>,
}

/// Looks at the keys of a server again and again: which names are free, or have an owner, and whether
/// anything has no end.
pub fn watch(backend: &Backend, log: &Log, stop: &AtomicBool) {
    /// A gap longer than this may hide a whole lease.
    const BLIND: u64 = 100_000_000;
    let mut connection = None;
    let mut spans: Vec<Option<Seen>> = backend.names.iter().map(|_| None).collect();
    while !stop.load(Ordering::Relaxed) {
        let before = now();
        let keys = look(backend, &mut connection);
        let after = now();
        let blind = keys.is_err() || after - before > BLIND;
        if keys.is_err() {
            connection = None;
        }
        let keys = keys.unwrap_or_default();
        for (name, span) in backend.names.iter().zip(&mut spans) {
            let token = keys.iter().find(|key| key.name == *name).map(|key| key.token.clone());
            match span {
                Some(seen) if !blind && seen.token == token && before - seen.until < BLIND => {
                    seen.until = before;
                }
                _ => {
                    tell(name, span.take(), log);
                    *span = (!blind).then_some(Seen { from: after, until: after, token });
                }
            }
        }
        for key in keys.into_iter().filter(|key| key.ttl == -1) {
            log.write(after, What::Undying { key: Words(key.name) });
        }
        thread::sleep(Duration::from_millis(10));
    }
    for (name, span) in backend.names.iter().zip(spans) {
        tell(name, span, log);
    }
}

/// Writes down a span that is long enough to be of interest.
fn tell(name: &str, seen: Option<Seen>, log: &Log) {
    const SHORT: u64 = 150_000_000;
    let Some(Seen { from, until, token }) = seen.filter(|seen| seen.until - seen.from > SHORT)
    else {
        return;
    };
    let name = name.to_owned();
    let token = token.as_deref().map(|token| token.split_once(':'));
    match token {
        None => log.write(from, What::Free { until, name }),
        Some(Some((id, number))) => {
            let (id, number) = (id.to_owned(), number.parse().unwrap_or_default());
            log.write(from, What::Kept { until, name, id, number });
        }
        Some(None) => {
            log.write(from, What::Left { text: Words(format!("{name}, which is no lock")) })
        }
    }
}

/// All keys, at one instant.
fn look(backend: &Backend, connection: &mut Option<Resp>) -> io::Result<Vec<Key>> {
    const LOOK: &str = "
        local found = {}
        for _, key in ipairs(redis.call('KEYS', '*')) do
            local token = redis.call('TYPE', key).ok == 'hash' and redis.call('HKEYS', key)[1] or ''
            table.insert(found, { key, redis.call('PTTL', key), token })
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
    let key = |reply: Reply| {
        let [name, ttl, token] = reply.list().try_into().ok()?;
        Some(Key { name: name.text(), ttl: ttl.int(), token: token.text() })
    };
    Ok(reply.list().into_iter().filter_map(key).collect())
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
