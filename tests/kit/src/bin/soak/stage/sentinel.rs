//! A primary, two replicas and three sentinels.
//!
//! Replication is asynchronous, so a failover may lose what was granted just before it, and a primary that was
//! replaced goes on granting until it learns of that; leasehold promises only to tell the old holder at the first
//! contact with the new primary. Each failover is told to the oracle as such.

use super::one::{counts_on, left_on, look_at_primaries, send, strike_server};
use super::{Harm, Key, Servers, Strike};
use crate::faults::ServerKind;
use crate::line::Line;
use kit::soak::history::{nanos, now};
use kit::topology::SERVICE;
use kit::{Cluster, Reply, Sentinels, Server};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub const SERVERS: usize = 3;
/// So long a leader waits for replicas to follow.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(6);

pub struct Guarded {
    all: Sentinels,
    calm: Mutex<Calm>,
}

/// When everything was last in its place, and under which epoch.
struct Calm {
    at: u64,
    epoch: u64,
}

impl Guarded {
    pub fn start() -> Vec<Box<dyn Servers>> {
        // On a busy machine, servers stand still for a second without being dead.
        let timeout = FAILOVER_TIMEOUT.as_millis();
        let all = Sentinels::start(&format!(
            "sentinel down-after-milliseconds {SERVICE} 2500\nsentinel failover-timeout {SERVICE} {timeout}"
        ));
        let calm = Mutex::new(Calm { at: now(), epoch: all.epoch() });
        vec![Box::new(Self { all, calm })]
    }

    fn replica(&self, at: usize) -> &Server {
        let primary = self.all.primary_port();
        let replicas: Vec<_> =
            self.all.servers.iter().filter(|server| server.port() != primary).collect();
        replicas[at % replicas.len()]
    }

    /// The primary goes away, and comes back when another has taken its place.
    fn replace(&self, away: impl Fn(&Server), back: impl Fn(&Server)) -> (u64, u64) {
        let (old, from, epoch) = (self.all.primary(), now(), self.all.epoch());
        away(old);
        self.all.failed_over_since(epoch);
        let until = now();
        back(old);
        (from, until)
    }

    /// As an operator does it.
    fn fail_over(&self) -> (u64, u64) {
        let epoch = self.all.epoch();
        let from = self.ask_for_failover();
        self.all.failed_over_since(epoch);
        (from, now())
    }

    /// As an operator does it; the other replica stays with the old primary, and until that is given up, the sentinels do
    /// not agree. So both primaries have a replica at times, and grant.
    ///
    /// It is over for the holders when there is a new primary, and they have had time to hear of it.
    fn split_failover(&self) -> (u64, u64) {
        const PROMOTION: Duration = Duration::from_secs(30);
        const HEARD: Duration = Duration::from_secs(3);
        // Then the leader among the sentinels tells all replicas once more.
        const SPLIT: Duration = FAILOVER_TIMEOUT.saturating_sub(Duration::from_millis(500));
        let (epoch, old) = (self.all.epoch(), self.all.primary_port());
        let replicas: Vec<_> =
            self.all.servers.iter().filter(|server| server.port() != old).collect();
        let from = self.ask_for_failover();
        let start = Instant::now();
        while start.elapsed() < PROMOTION {
            if let Some(new) = replicas.iter().position(|server| Cluster::is_primary(server)) {
                let (faithful, until) = (replicas[1 - new], now() + nanos(HEARD));
                send(faithful, &["ACL", "SETUSER", "default", "-replicaof", "-slaveof"]);
                thread::sleep(SPLIT);
                send(faithful, &["ACL", "SETUSER", "default", "+@all"]);
                self.all.failed_over_since(epoch);
                return (from, until);
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.all.failed_over_since(epoch);
        (from, now())
    }

    /// Waits until all is in its place; returns when one primary replaced another, if any did. Should the machine
    /// stand still for so long that the sentinels take a primary for dead, that may have been at any time.
    fn settle(&self, own: Option<(u64, u64)>, before: u64, after: u64) -> Option<(u64, u64)> {
        self.all.settled();
        let (at, epoch) = (now(), self.all.epoch());
        let mut calm = self.calm.lock().unwrap_or_else(PoisonError::into_inner);
        let last = std::mem::replace(&mut *calm, Calm { at, epoch });
        if before == last.epoch && after == epoch {
            return own;
        }
        Some((last.at, at))
    }

    /// A restarted server begins as what it was at first; the sentinels would put that right after ten seconds.
    fn restart_as_replica(&self, server: &Server) {
        server.restart();
        let primary = self.all.primary_port().to_string();
        send(server, &["REPLICAOF", "127.0.0.1", &primary]);
    }

    /// Asks for a failover, which is refused while the last one is not over; returns when it began.
    fn ask_for_failover(&self) -> u64 {
        let start = Instant::now();
        let words = ["SENTINEL", "FAILOVER", SERVICE];
        loop {
            let from = now();
            let reply = self.all.sentinels[0].command(&words);
            if reply == Reply::Text("OK".to_owned()) {
                return from;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no failover: {reply:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Servers for Guarded {
    /// Holders ask the sentinels, who name the servers' own addresses.
    fn lines(&self) -> Vec<Line> {
        Vec::new()
    }

    fn url(&self, _: &[u16]) -> String {
        self.all.url()
    }

    fn strike(&self, fault: Strike<'_>) -> Harm {
        let Strike { kind, at, lasts, .. } = fault;
        let before = self.all.epoch();
        let mut own = None;
        match kind {
            ServerKind::SplitFailover => own = Some(self.split_failover()),
            ServerKind::Failover => own = Some(self.fail_over()),
            ServerKind::CrashPrimary => {
                own = Some(self.replace(Server::kill, |old| self.restart_as_replica(old)));
            }
            ServerKind::FreezePrimary => own = Some(self.replace(Server::pause, Server::resume)),
            ServerKind::CrashReplica => {
                let replica = self.replica(at);
                replica.kill();
                thread::sleep(lasts);
                self.restart_as_replica(replica);
            }
            ServerKind::FreezeReplica => strike_server(self.replica(at), ServerKind::Freeze, lasts),
            ServerKind::CrashSentinel => {
                strike_server(&self.all.sentinels[at], ServerKind::Crash, lasts);
            }
            ServerKind::FreezeSentinel => {
                strike_server(&self.all.sentinels[at], ServerKind::Freeze, lasts);
            }
            _ => strike_server(self.all.primary(), kind, lasts),
        }
        // What follows an epoch that is not the one before comes of itself.
        let after = if own.is_some() { self.all.epoch() } else { before };
        let replaced = self.settle(own, before, after);
        let known = kind == ServerKind::SplitFailover && replaced == own;
        Harm { wiped: Vec::new(), replaced, known }
    }

    /// As the only primary has it; with two, nobody can say what is free.
    fn looker<'a>(&'a self, _: &'a [String]) -> Box<dyn FnMut() -> io::Result<Vec<Key>> + 'a> {
        look_at_primaries(&self.all.servers, 1)
    }

    fn left_over(&self) -> Result<Vec<String>, String> {
        left_on(self.all.primary(), "the primary")
    }

    fn counts(&self, name: &str) -> Vec<u64> {
        counts_on(self.all.primary(), name)
    }
}
