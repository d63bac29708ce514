//! Three independent Redis servers, none of which keeps anything over a restart.
//!
//! Nothing that is done here may cost exclusion: no key is taken away from a server that goes on running.

use super::one::{Look, counts_on, left_on_all, strike_server};
use super::{Harm, Key, Servers, Strike};
use crate::faults::ServerKind;
use crate::line::Line;
use kit::Server;
use std::io;
use std::thread;

pub const NODES: usize = 3;

pub struct Quorum {
    nodes: Vec<Server>,
}

impl Quorum {
    pub fn three() -> Vec<Box<dyn Servers>> {
        vec![Box::new(Self { nodes: (0..NODES).map(|_| Server::start()).collect() })]
    }

    /// All but one.
    fn majority(&self, spared: usize) -> impl Iterator<Item = &Server> {
        self.nodes.iter().enumerate().filter(move |(at, _)| *at != spared).map(|(_, node)| node)
    }
}

impl Servers for Quorum {
    fn lines(&self) -> Vec<Line> {
        self.nodes.iter().map(|node| Line::to_redis(node.port())).collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        let urls: Vec<_> = ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
        urls.join(",")
    }

    fn strike(&self, fault: Strike<'_>) -> Harm {
        let Strike { kind, at, lasts, .. } = fault;
        match kind {
            ServerKind::CrashMajority => {
                self.majority(at).for_each(Server::kill);
                thread::sleep(lasts);
                self.majority(at).for_each(Server::restart);
            }
            ServerKind::FreezeMajority => {
                self.majority(at).for_each(Server::pause);
                thread::sleep(lasts);
                self.majority(at).for_each(Server::resume);
            }
            _ => strike_server(&self.nodes[at], kind, lasts),
        }
        Harm::default()
    }

    /// A name is free if it is on no server, and somebody's if it is on any.
    fn looker<'a>(&'a self, _: &'a [String]) -> Box<dyn FnMut() -> io::Result<Vec<Key>> + 'a> {
        let mut looks: Vec<_> = self.nodes.iter().map(Look::new).collect();
        Box::new(move || {
            let keys: io::Result<Vec<_>> = looks.iter_mut().map(Look::keys).collect();
            Ok(keys?.into_iter().flatten().collect())
        })
    }

    fn left_over(&self) -> Result<Vec<String>, String> {
        left_on_all(&self.nodes)
    }

    /// As a majority of the servers has it.
    fn counts(&self, name: &str) -> Vec<u64> {
        let mut counts: Vec<_> = self.nodes.iter().map(|node| counts_on(node, name)).collect();
        counts.sort();
        // If any two are alike, the middle one is one of them.
        counts.swap_remove(NODES / 2)
    }
}
