//! A holder process's own way to one server, which can be broken.

use crate::faults::Process;
use kit::proxy::Silence;
use kit::relay::{Relay, Traffic, request};
use kit::soak::history::{nanos, now};
use kit::{Mode, Proxy};
use std::time::{Duration, Instant};

pub enum Line {
    Redis(Box<Proxy>),
    ZooKeeper(Relay),
}

impl Line {
    pub fn to_redis(port: u16) -> Self {
        let proxy = Proxy::start(port);
        proxy.forget_requests();
        Self::Redis(Box::new(proxy))
    }

    pub fn to_zookeeper(port: u16) -> Self {
        Self::ZooKeeper(Relay::to_server(port))
    }

    pub fn port(&self) -> u16 {
        match self {
            Self::Redis(proxy) => proxy.port(),
            Self::ZooKeeper(relay) => relay.port(),
        }
    }

    pub fn breaks(&self, kind: Process) {
        match self {
            Self::Redis(proxy) => break_proxy(proxy, kind),
            Self::ZooKeeper(relay) => break_relay(relay, kind),
        }
    }

    pub fn mend(&self, kind: Process) {
        match self {
            Self::Redis(proxy) => {
                if kind == Process::LoseReplies {
                    // The client cannot know which replies are missing.
                    proxy.close_all();
                }
                proxy.set(Mode::Pass);
            }
            Self::ZooKeeper(relay) => relay.set(Traffic::Pass),
        }
    }

    pub fn requests_sent_twice(&self) -> u64 {
        match self {
            Self::Redis(proxy) => proxy.duplicated() as u64,
            Self::ZooKeeper(_) => 0,
        }
    }

    pub fn lost(&self) -> u64 {
        match self {
            Self::Redis(proxy) => proxy.dropped() as u64,
            Self::ZooKeeper(relay) => relay.lost() as u64,
        }
    }

    /// When connections with subscriptions were silent, from when to when by the clock of the history.
    pub fn silences(&self) -> Vec<(u64, u64)> {
        let Self::Redis(proxy) = self else { return Vec::new() };
        let ago = |at: Instant| now() - nanos(at.elapsed());
        let spans = proxy.silences().into_iter();
        spans.map(|Silence { from, until }| (ago(from), until.map_or_else(now, ago))).collect()
    }

    pub fn connections(&self) -> u64 {
        match self {
            Self::Redis(proxy) => proxy.connections() as u64,
            Self::ZooKeeper(relay) => relay.connections() as u64,
        }
    }
}

fn break_proxy(proxy: &Proxy, kind: Process) {
    match kind {
        Process::BlackHole | Process::Flood => proxy.set(Mode::BlackHole),
        Process::HoldRequests => proxy.set(Mode::HoldRequests),
        Process::HoldReplies => proxy.set(Mode::HoldReplies),
        Process::LoseReplies => proxy.set(Mode::DropReplies),
        Process::Delay => proxy.set(Mode::Delay(Duration::from_millis(40))),
        Process::Drip => proxy.set(Mode::Drip),
        Process::Duplicate => proxy.set(Mode::Duplicate),
        Process::Refuse => proxy.set(Mode::Refuse),
        Process::Cut => proxy.close_all(),
        Process::LoseOneReply => proxy.drop_reply_of(1, "EVALSHA"),
        Process::LoseOneRequest => proxy.drop_request(1, "EVALSHA"),
        Process::Silence => proxy.silence_subscribers(),
        _ => {}
    }
}

/// It can hold and cut, and lose an answer.
fn break_relay(relay: &Relay, kind: Process) {
    match kind {
        Process::BlackHole => relay.set(Traffic::Hold),
        Process::Refuse => relay.set(Traffic::Refuse),
        Process::Cut => {
            relay.set(Traffic::Refuse);
            relay.set(Traffic::Pass);
        }
        Process::LoseOneCreation => relay.lose_reply_of(request::CREATE),
        Process::LoseOneDeletion => relay.lose_reply_of(request::DELETE),
        Process::LoseOneWrite => relay.lose_reply_of(request::SET_DATA),
        _ => {}
    }
}
