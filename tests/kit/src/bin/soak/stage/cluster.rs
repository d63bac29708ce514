//! Three primaries and a replica for each, which keep their keys on disk.
//!
//! A replica takes over only when it is asked to, and after its primary has told it everything. So nothing that is done here may cost exclusion.

use super::one::{counts_on, left_on_all, look_at_primaries, strike_server};
use super::{Harm, Key, Servers, Strike, is_tied};
use crate::faults::ServerKind;
use crate::line::Line;
use kit::{Cluster, Server};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

pub const NODES: usize = 6;

pub struct Slots {
    cluster: Cluster,
}

impl Slots {
    pub fn start() -> Vec<Box<dyn Servers>> {
        vec![Box::new(Self { cluster: Cluster::start_durable() })]
    }

    /// One of those who serve, or of those who follow.
    fn node(&self, primary: bool, at: usize) -> usize {
        let nodes = &self.cluster.nodes;
        let of_role: Vec<usize> =
            (0..nodes.len()).filter(|node| Cluster::is_primary(&nodes[*node]) == primary).collect();
        of_role[at % of_role.len()]
    }

    /// A replica and its primary change places, when it has all that the primary had.
    fn fail_over(&self, replica: &Server) {
        /// The server itself gives up after five seconds; to ask meanwhile would begin it anew.
        const PATIENCE: Duration = Duration::from_secs(6);
        for _ in 0..5 {
            // Refused while the link to the primary is down.
            replica.command(&["CLUSTER", "FAILOVER"]);
            let start = Instant::now();
            while start.elapsed() < PATIENCE {
                if Cluster::is_primary(replica) {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        eprintln!("the replica does not take over:\n{}", replica.log());
    }

    /// The slot of a name goes to another primary, with keys on both sides for a while.
    fn move_slot(&self, name: &str, to: usize, lasts: Duration) {
        let (cluster, from) = (&self.cluster, self.cluster.index_of(name));
        let others: Vec<usize> =
            (0..3).map(|at| self.node(true, at)).filter(|node| *node != from).collect();
        let (slot, to) = (cluster.slot(name), others[to % others.len()]);
        cluster.begin_move(slot, from, to);
        thread::sleep(lasts / 2);
        cluster.move_key(name, from, to);
        thread::sleep(lasts / 2);
        cluster.end_move_between(slot, from, to);
    }

    /// The slot of several names goes to another primary, with half of the names moved and the others not for a while.
    fn half_move_slot(&self, names: &[String], to: usize, lasts: Duration) {
        let together: Vec<_> = names.iter().filter(|name| is_tied(name)).collect();
        let (cluster, first) = (&self.cluster, together[0]);
        let (slot, from) = (cluster.slot(first), cluster.index_of(first));
        let moved = together.iter().cycle().skip(to).step_by(2).take(together.len() / 2);
        let to = (0..3).map(|at| self.node(true, at)).find(|node| *node != from);
        let to = to.expect("three primaries");
        cluster.begin_move(slot, from, to);
        thread::sleep(Duration::from_millis(50));
        moved.for_each(|name| cluster.move_key(name, from, to));
        thread::sleep(lasts);
        cluster.end_move_between(slot, from, to);
    }
}

impl Servers for Slots {
    /// Holders are told the nodes' own addresses.
    fn lines(&self) -> Vec<Line> {
        Vec::new()
    }

    fn url(&self, _: &[u16]) -> String {
        self.cluster.url()
    }

    fn strike(&self, fault: Strike<'_>) -> Harm {
        let Strike { kind, at, lasts, names } = fault;
        let node = |primary| &self.cluster.nodes[self.node(primary, at)];
        match kind {
            ServerKind::Failover => self.fail_over(node(false)),
            ServerKind::HalfMoveSlot => self.half_move_slot(names, at, lasts),
            ServerKind::MoveSlot => self.move_slot(&names[at], lasts.as_millis() as usize, lasts),
            ServerKind::CrashPrimary => strike_server(node(true), ServerKind::Crash, lasts),
            ServerKind::FreezePrimary => strike_server(node(true), ServerKind::Freeze, lasts),
            ServerKind::CrashReplica => strike_server(node(false), ServerKind::Crash, lasts),
            ServerKind::FreezeReplica => strike_server(node(false), ServerKind::Freeze, lasts),
            _ => strike_server(node(true), kind, lasts),
        }
        self.cluster.settled();
        Harm::default()
    }

    /// As the primaries have it.
    fn looker<'a>(&'a self, _: &'a [String]) -> Box<dyn FnMut() -> io::Result<Vec<Key>> + 'a> {
        look_at_primaries(&self.cluster.nodes, 3)
    }

    fn left_over(&self) -> Result<Vec<String>, String> {
        left_on_all(&self.cluster.nodes)
    }

    fn counts(&self, name: &str) -> Vec<u64> {
        counts_on(self.cluster.node_of(name), name)
    }
}
