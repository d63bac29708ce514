//! One Redis server; and what can be done to one that is among others.

use super::{Harm, Key, Servers, Strike};
use crate::faults::ServerKind;
use crate::line::Line;
use kit::soak::leases::Kind;
use kit::{Reply, Resp, Server};
use std::io;
use std::thread;
use std::time::Duration;

/// A server alone.
pub struct One {
    server: Server,
    label: &'static str,
    /// Whether the keys survive a restart.
    durable: bool,
}

impl One {
    /// Two servers: one keeps its keys on disk, the other loses them with each crash.
    pub fn two() -> Vec<Box<dyn Servers>> {
        // Without fsync no write is ever put off, so a kill of the process loses none.
        let kept = Server::start_with(&["--appendonly", "yes", "--appendfsync", "no"]);
        vec![
            Box::new(Self { server: kept, label: "durable", durable: true }),
            Box::new(Self { server: Server::start(), label: "volatile", durable: false }),
        ]
    }
}

impl Servers for One {
    fn lines(&self) -> Vec<Line> {
        vec![Line::to_redis(self.server.port())]
    }

    fn url(&self, ports: &[u16]) -> String {
        format!("redis://127.0.0.1:{}", ports[0])
    }

    fn strike(&self, fault: Strike<'_>) -> Harm {
        let Strike { kind, at, lasts, names } = fault;
        match kind {
            ServerKind::Delete => {
                send(&self.server, &["DEL", &names[at], &format!("{{{}}}:timeout", names[at])]);
            }
            _ => strike_server(&self.server, kind, lasts),
        }
        let wiped = match kind {
            ServerKind::Crash if !self.durable => names.to_vec(),
            ServerKind::FlushAll => names.to_vec(),
            ServerKind::Delete => vec![names[at].clone()],
            _ => Vec::new(),
        };
        Harm { wiped, ..Harm::default() }
    }

    fn looker<'a>(&'a self, _: &'a [String]) -> Box<dyn FnMut() -> io::Result<Vec<Key>> + 'a> {
        let mut look = Look::new(&self.server);
        Box::new(move || look.keys())
    }

    fn left_over(&self) -> Result<Vec<String>, String> {
        left_on(&self.server, self.label)
    }

    fn counts(&self, name: &str) -> Vec<u64> {
        counts_on(&self.server, name)
    }
}

/// One command; an error is of no interest to those who break things, but whoever looks on may want to know.
pub fn send(server: &Server, words: &[&str]) {
    let sent = Resp::try_connect(server.port()).and_then(|mut server| server.try_command(words));
    if let Err(error) = sent {
        eprintln!("{words:?}: {error}");
    }
}

/// Breaks one server for a while, with all its faults that are of one server.
pub fn strike_server(server: &Server, kind: ServerKind, lasts: Duration) {
    let millis = lasts.as_millis().to_string();
    let send = |words: &[&str]| send(server, words);
    match kind {
        ServerKind::Crash => server.kill(),
        ServerKind::Freeze => server.pause(),
        ServerKind::KillClients => return send(&["CLIENT", "KILL", "TYPE", "normal"]),
        ServerKind::KillSubscribers => return send(&["CLIENT", "KILL", "TYPE", "pubsub"]),
        ServerKind::FlushScripts => return send(&["SCRIPT", "FLUSH"]),
        ServerKind::FlushAll => return send(&["FLUSHALL"]),
        ServerKind::Sleep => return send(&["DEBUG", "SLEEP", &lasts.as_secs_f64().to_string()]),
        ServerKind::PauseClients => send(&["CLIENT", "PAUSE", &millis]),
        ServerKind::OutOfMemory => send(&["CONFIG", "SET", "maxmemory", "1"]),
        ServerKind::Denied => send(&["ACL", "SETUSER", "default", "-hset", "-pexpire"]),
        ServerKind::TooFewReplicas => send(&["CONFIG", "SET", "min-replicas-to-write", "1"]),
        ServerKind::ReadOnly => send(&["REPLICAOF", "127.0.0.1", "1"]),
        _ => return eprintln!("{kind:?} is no fault of one server"),
    }
    thread::sleep(lasts);
    match kind {
        ServerKind::Crash => server.restart(),
        ServerKind::Freeze => server.resume(),
        ServerKind::OutOfMemory => send(&["CONFIG", "SET", "maxmemory", "0"]),
        ServerKind::Denied => send(&["ACL", "SETUSER", "default", "+@all"]),
        ServerKind::TooFewReplicas => send(&["CONFIG", "SET", "min-replicas-to-write", "0"]),
        ServerKind::ReadOnly => send(&["REPLICAOF", "NO", "ONE"]),
        _ => {}
    }
}

/// Looks at a server over a connection that is made anew when it breaks.
pub struct Look<'a> {
    server: &'a Server,
    connection: Option<Resp>,
}

impl<'a> Look<'a> {
    pub fn new(server: &'a Server) -> Self {
        Self { server, connection: None }
    }

    /// All keys at one instant.
    pub fn keys(&mut self) -> io::Result<Vec<Key>> {
        Ok(self.keys_and_role()?.0)
    }

    /// And whether it is a primary, which one alone is too.
    fn keys_and_role(&mut self) -> io::Result<(Vec<Key>, bool)> {
        let looked = self.look();
        if looked.is_err() {
            self.connection = None;
        }
        looked
    }

    fn look(&mut self) -> io::Result<(Vec<Key>, bool)> {
        // In a cluster, a key of a slot on its way may be out of reach.
        // A reader is there as long as its own key, and a permit as long as its score says.
        const LOOK: &str = "
            local found, time = {}, redis.call('TIME')
            local now = time[1] * 1000 + math.floor(time[2] / 1000)
            local function tokens_of(key, kind)
                local tokens = {}
                if kind == 'zset' then
                    for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, now, '+inf')) do
                        local hex = string.gsub(id, '.', function(c)
                            return string.format('%02x', string.byte(c))
                        end)
                        local a, b, c = hex:sub(1, 8), hex:sub(9, 12), hex:sub(13, 16)
                        local number = tonumber(hex:sub(17, 28), 16)
                        table.insert(tokens, a .. '-' .. b .. '-' .. c .. '-:' .. string.format('%d', number))
                    end
                elseif kind == 'hash' then
                    local shared = redis.call('HEXISTS', key, 'mode') == 1
                    for _, field in ipairs(redis.call('HKEYS', key)) do
                        local own = '{' .. key .. '}:' .. field .. ':rwlock_timeout:1'
                        if string.sub(field, -6) == ':write' then
                            table.insert(tokens, string.sub(field, 1, -7))
                        elseif not shared or field ~= 'mode' and redis.pcall('PTTL', own) ~= -2 then
                            table.insert(tokens, field)
                        end
                    end
                end
                return tokens
            end
            for _, key in ipairs(redis.call('KEYS', '*')) do
                local kind, ttl, tokens = redis.pcall('TYPE', key), -3, { ARGV[1] }
                if not kind.err then
                    ttl, tokens = redis.call('PTTL', key), tokens_of(key, kind.ok)
                end
                table.insert(found, { key, ttl, tokens })
            end
            return { redis.call('ROLE')[1], found }";
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Resp::try_connect(self.server.port())?),
        };
        let reply = connection.try_command(&["EVAL", LOOK, "0", Key::UNKNOWN])?;
        if let Some(error) = reply.error() {
            return Err(io::Error::other(error.to_owned()));
        }
        let [role, found] = <[Reply; 2]>::try_from(reply.list())
            .map_err(|_| io::Error::other("no role and no keys"))?;
        let key = |reply: Reply| {
            let [name, ttl, tokens] = reply.list().try_into().ok()?;
            let tokens = tokens.list().into_iter().map(Reply::text).collect();
            Some(Key { name: name.text(), ttl: ttl.int(), tokens })
        };
        Ok((found.list().into_iter().filter_map(key).collect(), role.text() == "master"))
    }
}

/// Looks at all keys of the primaries, if there are so many.
pub fn look_at_primaries(
    nodes: &[Server],
    count: usize,
) -> Box<dyn FnMut() -> io::Result<Vec<Key>> + '_> {
    let mut looks: Vec<_> = nodes.iter().map(Look::new).collect();
    Box::new(move || {
        let looked = looks.iter_mut().filter_map(|look| look.keys_and_role().ok());
        let primaries: Vec<_> = looked.filter(|(_, is_primary)| *is_primary).collect();
        match primaries.len() {
            found if found == count => {
                Ok(primaries.into_iter().flat_map(|(keys, _)| keys).collect())
            }
            found => Err(io::Error::other(format!("{found} primaries"))),
        }
    })
}

/// How many permits of a semaphore are out, and how many it has; one whose time is over may still be in the set.
const PERMITS: &str = "
    local free, set, time = redis.call('GET', ARGV[1]), '{' .. ARGV[1] .. '}:timeout', redis.call('TIME')
    local out = redis.call('ZCOUNT', set, time[1] * 1000 + math.floor(time[2] / 1000), '+inf')
    local all = redis.call('ZCARD', set)
    return { out, free and free + all or all == 0 and tonumber(string.match(ARGV[1], '%d+')) or -1 }";

/// What is left on one server.
pub fn left_on(server: &Server, label: &str) -> Result<Vec<String>, String> {
    let mut connection = server.connection();
    let mut ask = |words: &[&str]| -> Result<Vec<Reply>, String> {
        connection.try_command(words).map(Reply::list).map_err(|error| error.to_string())
    };
    let mut left = Vec::new();
    for key in ask(&["KEYS", "*"])? {
        let key = key.text();
        // The last fencing token of each name is remembered, and the size of an idle semaphore.
        // So is why a name was forced open, and for a while what a holder has told that was killed.
        const KEPT: [&str; 3] = ["redisson_lock_token:", "leasehold_note:", "leasehold_meta:"];
        if KEPT.iter().any(|kept| key.starts_with(kept)) {
            continue;
        }
        let untagged = key.trim_start_matches('{').replace("}:timeout", "");
        let Kind::Semaphore { size } = Kind::of(&untagged) else {
            left.push(format!("the key {key} on {label}"));
            continue;
        };
        let counted = server.command(&["EVAL", PERMITS, "0", &untagged]);
        if counted.error().is_some() {
            // A replica in a cluster does not answer.
            continue;
        }
        let numbers: Vec<i64> = counted.list().iter().map(Reply::int).collect();
        if let [out, all] = numbers[..]
            && (out, all) != (0, size.into())
        {
            left.push(format!("{out} permits of {all}, not of {size}, of {untagged} on {label}"));
        }
    }
    for kind in ["CHANNELS", "SHARDCHANNELS"] {
        for channel in ask(&["PUBSUB", kind])? {
            let channel = channel.text();
            // Sentinels greet each other on one, and managers that are still there listen to their inboxes.
            if channel != "__sentinel__:hello" && !channel.starts_with("leasehold_inbox:") {
                left.push(format!("the channel {channel} on {label}"));
            }
        }
    }
    Ok(left)
}

/// What is left on some servers, each by its number.
pub fn left_on_all(nodes: &[Server]) -> Result<Vec<String>, String> {
    let left = |(at, node)| left_on(node, &format!("node {at}"));
    let left: Result<Vec<_>, _> = nodes.iter().enumerate().map(left).collect();
    Ok(left?.concat())
}

/// The hold counts of a name on one server.
pub fn counts_on(server: &Server, name: &str) -> Vec<u64> {
    let fields = server.command(&["HGETALL", name]).pairs();
    fields.iter().filter_map(|(_, count)| count.parse().ok()).collect()
}
