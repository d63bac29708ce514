//! The resource that the locks guard: a counter for each name, on a server without faults, which refuses
//! fencing tokens smaller than one it has seen, when it is read as well as when it is written. It compares the
//! token of a reader with those of writers alone, because readers come in any order.
//!
//! A read must tell its token too: otherwise an old holder could write between the read and the write of
//! a new one, and both writes be accepted.

use kit::Resp;
use kit::soak::history::{Event, What};
use std::io;

/// A reader of a read-write lock.
const SHARED_READ: &str = "
local seen, writers = unpack(redis.call('HMGET', KEYS[1], 'all', 'writers'))
if tonumber(ARGV[1]) < tonumber(writers or '0') then return -1 end
if tonumber(ARGV[1]) > tonumber(seen or '0') then redis.call('HSET', KEYS[1], 'all', ARGV[1]) end
return tonumber(redis.call('GET', KEYS[2]) or '0')";

const READ: &str = "
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'all') or '0') then return -1 end
redis.call('HSET', KEYS[1], 'all', ARGV[1], 'writers', ARGV[1])
return tonumber(redis.call('GET', KEYS[2]) or '0')";

const WRITE: &str = "
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'all') or '0') then return -1 end
redis.call('HSET', KEYS[1], 'all', ARGV[1], 'writers', ARGV[1])
redis.call('SET', KEYS[2], ARGV[2])
redis.call('RPUSH', KEYS[3], ARGV[2] .. ' ' .. ARGV[1] .. ' ' .. ARGV[3])
return 0";

/// The token was smaller than one that the resource has seen.
#[derive(Debug)]
pub struct Refused;

pub struct Ledger {
    connection: Resp,
    who: String,
}

impl Ledger {
    pub fn connect(port: u16, who: &str) -> io::Result<Self> {
        Ok(Self { connection: Resp::try_connect(port)?, who: who.to_owned() })
    }

    /// Reads with the token of a reader of a read-write lock.
    pub fn read_shared(&mut self, name: &str, fence: u64) -> io::Result<Result<u64, Refused>> {
        self.call(SHARED_READ, name, &[&fence.to_string()])
    }

    pub fn read(&mut self, name: &str, fence: u64) -> io::Result<Result<u64, Refused>> {
        self.call(READ, name, &[&fence.to_string()])
    }

    pub fn write(
        &mut self,
        name: &str,
        fence: u64,
        value: u64,
    ) -> io::Result<Result<u64, Refused>> {
        let who = self.who.clone();
        self.call(WRITE, name, &[&fence.to_string(), &value.to_string(), &who])
    }

    fn call(
        &mut self,
        script: &str,
        name: &str,
        arguments: &[&str],
    ) -> io::Result<Result<u64, Refused>> {
        let keys = keys(name);
        let mut words = vec!["EVAL", script, "3", &keys[0], &keys[1], &keys[2]];
        words.extend(arguments);
        let reply = self.connection.try_command(&words)?;
        if let Some(error) = reply.error() {
            return Err(io::Error::other(error.to_owned()));
        }
        Ok(u64::try_from(reply.int()).map_err(|_| Refused))
    }

    /// All writes that were accepted for a name, in their order.
    pub fn writes(&mut self, name: &str, at: u64) -> io::Result<Vec<Event>> {
        let [_, _, log] = keys(name);
        let lines = self.connection.try_command(&["LRANGE", &log, "0", "-1"])?.list();
        let event = |line: String| {
            let mut words = line.split(' ');
            let value = words.next()?.parse().ok()?;
            let fence = words.next()?.parse().ok()?;
            let what = What::Wrote { name: name.to_owned(), value, fence };
            Some(Event { at, who: words.next()?.to_owned(), what })
        };
        Ok(lines.into_iter().filter_map(|line| event(line.text())).collect())
    }
}

fn keys(name: &str) -> [String; 3] {
    [format!("seen:{name}"), format!("value:{name}"), format!("log:{name}")]
}
