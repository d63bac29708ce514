//! More than one server: a primary with replicas and sentinels, and a cluster.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::relay::{Relay, Traffic};
use super::resp::{Reply, Resp};
use super::server::Server;

/// How long servers may take to find each other, or to agree on a new primary.
const AGREEMENT: Duration = Duration::from_secs(30);

/// What the sentinels call the primary.
pub const SERVICE: &str = "leases";

/// Waits, without a runtime, until `condition` holds.
#[track_caller]
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    until_or(what, String::new, condition);
}

/// The same, and tells more if it does not.
#[track_caller]
fn until_or(what: &str, why: impl Fn() -> String, condition: impl FnMut() -> bool) {
    until_within(AGREEMENT, what, why, condition);
}

#[track_caller]
fn until_within(
    limit: Duration,
    what: &str,
    why: impl Fn() -> String,
    mut condition: impl FnMut() -> bool,
) {
    let start = Instant::now();
    while !condition() {
        let late = start.elapsed() >= limit;
        assert!(!late, "{what} did not come true within {limit:?}\n{}", why());
        thread::sleep(Duration::from_millis(20));
    }
}

fn field(server: &Server, section: &str, name: &str) -> String {
    let Ok(mut connection) = Resp::try_connect(server.port()) else { return String::new() };
    let Ok(Reply::Text(info)) = connection.try_command(&["INFO", section]) else {
        return String::new();
    };
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().to_owned()
}

/// Whether a replica is in step with its primary.
fn follows(server: &Server) -> bool {
    field(server, "replication", "master_link_status") == "up"
}

/// A primary, two replicas and three sentinels.
pub struct Sentinels {
    /// The first is the primary at the start.
    pub servers: Vec<Server>,
    pub sentinels: Vec<Server>,
    /// What the replicas hear of the primary passes through these at first, if there are any.
    pipes: Vec<Relay>,
}

impl Sentinels {
    /// With more lines for the sentinels.
    #[track_caller]
    pub fn start(lines: &str) -> Self {
        Self::start_as(lines, false)
    }

    /// Ready for [`cut_replicas`](Self::cut_replicas).
    #[track_caller]
    pub fn start_to_cut() -> Self {
        // The sentinels would soon mend that the replicas follow the pipes.
        Self::start_as("sentinel failover-timeout leases 120000", true)
    }

    #[track_caller]
    fn start_as(lines: &str, piped: bool) -> Self {
        let options = ["--repl-diskless-sync-delay", "0"];
        let primary = Server::start_with(&options);
        let pipes: Vec<Relay> = if piped {
            (0..2).map(|_| Relay::of_bytes(primary.port())).collect()
        } else {
            Vec::new()
        };
        let mut servers = vec![primary];
        for index in 0..2 {
            let port = pipes.get(index).map_or(servers[0].port(), Relay::port).to_string();
            let of = [&options[..], &["--replicaof", "127.0.0.1", &port]].concat();
            servers.push(Server::start_with(&of));
        }
        let (replicas, primary) = (&servers[1..], &servers[0]);
        until("the replicas are in step", || {
            replicas.iter().all(follows) && field(primary, "replication", "connected_slaves") == "2"
        });
        let port = primary.port();
        let config = format!(
            "sentinel monitor {SERVICE} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {SERVICE} 1500\n\
             sentinel failover-timeout {SERVICE} 4000\n{lines}\n"
        );
        let sentinels: Vec<Server> = (0..3).map(|_| Server::start_sentinel(&config)).collect();
        let all = Self { servers, sentinels, pipes };
        until("the sentinels know each other and the replicas", || {
            all.sentinels.iter().all(|sentinel| {
                let state =
                    Resp::connect(sentinel.port()).command(&["SENTINEL", "MASTER", SERVICE]);
                let state = state.pairs();
                let is = |name: &str, value: &str| {
                    state.iter().any(|(key, found)| key == name && found == value)
                };
                is("num-other-sentinels", "2") && is("num-slaves", "2") && is("flags", "master")
            })
        });
        all
    }

    pub fn url(&self) -> String {
        self.url_as("", "")
    }

    /// With `user:password@` for the servers, and more of a query, which begins with `&`.
    pub fn url_as(&self, user: &str, query: &str) -> String {
        let [one, two, three] = [0, 1, 2].map(|index| self.sentinels[index].port());
        format!(
            "redis-sentinel://{user}127.0.0.1:{one}?node=127.0.0.1:{two}&node=127.0.0.1:{three}\
             &sentinelServiceName={SERVICE}{query}"
        )
    }

    /// The port of the primary by the word of a sentinel.
    pub fn primary_port(&self) -> u16 {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
        let address = self.sentinels[0].command(&words).list();
        address[1].clone().text().parse().expect("a port")
    }

    /// The primary by the word of a sentinel.
    pub fn primary(&self) -> &Server {
        let port = self.primary_port();
        self.servers.iter().find(|server| server.port() == port).expect("one of ours")
    }

    /// Cuts the replicas off; what the primary writes from now on never reaches them.
    pub fn cut_replicas(&self) {
        assert!(!self.pipes.is_empty(), "started without pipes");
        self.pipes.iter().for_each(|pipe| pipe.set(Traffic::Hold));
    }

    /// Waits until another than `old` is the primary, by the word of all sentinels and its own.
    #[track_caller]
    pub fn failed_over(&self, old: u16) {
        let logs = || self.sentinels.iter().map(Server::log).collect::<Vec<_>>().join("\n\n");
        until_or("another primary", logs, || {
            let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
            let ports: Vec<String> = self
                .sentinels
                .iter()
                .map(|sentinel| sentinel.command(&words).list()[1].clone().text())
                .collect();
            ports.iter().all(|port| *port == ports[0] && *port != old.to_string())
                && field(self.primary(), "replication", "role") == "master"
        });
    }

    /// By the word of all sentinels, if they agree: the primary's port, and how often it was replaced, or so.
    fn agreed(&self) -> Option<(String, u64)> {
        let words = ["SENTINEL", "MASTER", SERVICE];
        let mut agreed: Option<(String, u64)> = None;
        for sentinel in &self.sentinels {
            let state = Resp::try_connect(sentinel.port()).ok()?.try_command(&words).ok()?.pairs();
            let get = |name: &str| {
                state.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
            };
            let word = (get("port")?, get("config-epoch")?.parse().ok()?);
            if agreed.replace(word.clone()).is_some_and(|before| before != word) {
                return None;
            }
        }
        agreed
    }

    /// Grows with each failover; asked when all sentinels are there.
    #[track_caller]
    pub fn epoch(&self) -> u64 {
        let mut agreed = None;
        until("the sentinels agree", || {
            agreed = self.agreed();
            agreed.is_some()
        });
        agreed.map_or(0, |(_, epoch)| epoch)
    }

    /// The last lines of their logs.
    fn last_words(&self) -> String {
        let tail = |sentinel: &Server| {
            let log = sentinel.log();
            let lines: Vec<&str> = log.lines().rev().take(15).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        self.sentinels.iter().map(tail).collect::<Vec<_>>().join("\n\n")
    }

    /// Waits until all sentinels know of a failover after that epoch.
    #[track_caller]
    pub fn failed_over_since(&self, epoch: u64) {
        /// On a busy machine an election may fail, and the next one takes place twice the time-out later.
        const ELECTIONS: Duration = Duration::from_secs(90);
        until_within(
            ELECTIONS,
            "another primary",
            || self.last_words(),
            || {
                self.agreed().is_some_and(|(_, now)| now > epoch)
                    && field(self.primary(), "replication", "role") == "master"
            },
        );
    }

    /// Waits until the primary of which all sentinels speak is the only one, and the others are in step with it.
    #[track_caller]
    pub fn settled(&self) {
        until_or(
            "replicas in step with one primary",
            || self.last_words(),
            || {
                let Some((primary, _)) = self.agreed() else { return false };
                self.servers.iter().all(|server| {
                    if server.port().to_string() == primary {
                        field(server, "replication", "role") == "master"
                            && field(server, "replication", "connected_slaves") == "2"
                    } else {
                        follows(server) && field(server, "replication", "master_port") == primary
                    }
                })
            },
        );
    }
}

/// Three primaries and a replica for each.
pub struct Cluster {
    /// The primaries at the start come first, their replicas in the same order after them.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// One that takes no node for dead because the machine has stalled.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&["--cluster-node-timeout", "60000"])
    }

    /// One in which no replica takes over unasked, and no node forgets anything in a restart.
    #[track_caller]
    pub fn start_durable() -> Self {
        let kept = ["--appendonly", "yes", "--appendfsync", "no"];
        // A primary's replica gets votes once in twice this time, also if it is asked to take over.
        let asked = ["--cluster-node-timeout", "3000", "--cluster-replica-no-failover", "yes"];
        Self::start_with(&[asked, kept].concat())
    }

    /// One that replaces a dead primary soon.
    #[track_caller]
    pub fn start_quick() -> Self {
        Self::start_with(&["--cluster-node-timeout", "2000"])
    }

    /// One of several databases, which servers before Valkey 9 do not have.
    #[track_caller]
    pub fn start_with_databases(count: u32) -> Self {
        let databases = ["--cluster-databases", &count.to_string()];
        Self::start_with(&[&["--cluster-node-timeout", "60000"][..], &databases].concat())
    }

    #[track_caller]
    fn start_node(options: &[&str]) -> Server {
        // The port is chosen at each start.
        let own = ["--cluster-enabled", "yes", "--cluster-port", ""];
        // A replica counts once it has heard of its primary, a ping at least.
        let quick = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
        let partial = ["--cluster-require-full-coverage", "no"];
        Server::start_with(&[&own[..], &quick, &partial, options].concat())
    }

    /// Adds a node that has no slots, and tells its index.
    #[track_caller]
    pub fn add_node(&mut self) -> usize {
        self.nodes.push(Self::start_node(&[]));
        let last = self.nodes.len() - 1;
        self.meet(&self.nodes[last]);
        let known = self.nodes.len().to_string();
        until("all know the new node", || {
            self.nodes.iter().all(|node| self.info(node, "cluster_known_nodes") == known)
        });
        // It answers CLUSTERDOWN until it knows the owner of each slot, and for 2 s after its start.
        until("the new node is up", || self.info(&self.nodes[last], "cluster_state") == "ok");
        last
    }

    fn meet(&self, node: &Server) {
        let bus = node.command(&["CONFIG", "GET", "cluster-port"]).pairs().remove(0).1;
        let words = ["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string(), &bus];
        assert_eq!(self.nodes[0].command(&words), Reply::Text("OK".to_owned()));
    }

    #[track_caller]
    fn start_with(options: &[&str]) -> Self {
        let nodes: Vec<Server> = (0..6).map(|_| Self::start_node(options)).collect();
        let cluster = Self { nodes };
        let ok = |reply: Reply| assert_eq!(reply, Reply::Text("OK".to_owned()));
        let set = |name: &str, value: &str| {
            cluster.nodes.iter().for_each(|node| ok(node.command(&["CONFIG", "SET", name, value])));
        };
        // Nodes hear of each other within half of this time. Nobody is to be replaced for being slow now.
        let soon = [("cluster-node-timeout", "1000"), ("cluster-replica-no-failover", "yes")];
        let later = soon.map(|(name, soon)| {
            let value = cluster.nodes[0].command(&["CONFIG", "GET", name]).pairs().remove(0).1;
            set(name, soon);
            (name, value)
        });
        for (index, (first, last)) in
            [(0, 5460), (5461, 10922), (10923, 16383)].into_iter().enumerate()
        {
            let (first, last) = (first.to_string(), last.to_string());
            let node = &cluster.nodes[index];
            ok(node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]));
        }
        for (index, node) in cluster.nodes.iter().enumerate() {
            ok(node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]));
        }
        cluster.nodes[1..].iter().for_each(|node| cluster.meet(node));
        until("the nodes know each other", || {
            cluster.nodes.iter().all(|node| cluster.info(node, "cluster_known_nodes") == "6")
        });
        for index in 0..3 {
            let id = cluster.nodes[index].command(&["CLUSTER", "MYID"]).text();
            let replica = &cluster.nodes[index + 3];
            until("a node becomes a replica", || {
                replica.command(&["CLUSTER", "REPLICATE", &id]) == Reply::Text("OK".to_owned())
            });
        }
        until("the cluster is ready", || cluster.is_ready());
        later.iter().for_each(|(name, value)| set(name, value));
        until("the cluster is ready", || cluster.is_ready());
        cluster
    }

    /// Whether all agree on who serves what, and all replicas are in step.
    pub fn is_ready(&self) -> bool {
        self.nodes.iter().all(|node| {
            self.info(node, "cluster_state") == "ok"
                && self.info(node, "cluster_slots_ok") == "16384"
        }) && self.nodes.iter().filter(|node| !Self::is_primary(node)).all(follows)
            && self.nodes.iter().all(|node| self.primaries_by(node).len() == 3)
    }

    pub fn is_primary(node: &Server) -> bool {
        field(node, "replication", "role") == "master"
    }

    /// Waits until all agree again.
    #[track_caller]
    pub fn settled(&self) {
        until("the cluster is ready again", || self.is_ready());
    }

    /// The ports of the primaries that a node knows of.
    fn primaries_by(&self, node: &Server) -> Vec<u16> {
        let mut ports = Vec::new();
        for range in node.command(&["CLUSTER", "SLOTS"]).list() {
            let parts = range.list();
            let complete = parts.len() > 3;
            let port = parts[2].clone().list()[1].int();
            let port = u16::try_from(port).expect("a port");
            if complete && !ports.contains(&port) {
                ports.push(port);
            }
        }
        ports
    }

    fn info(&self, node: &Server, name: &str) -> String {
        // A server that was just restarted may still be loading.
        let Reply::Text(info) = node.command(&["CLUSTER", "INFO"]) else { return String::new() };
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().to_owned()
    }

    pub fn url(&self) -> String {
        let nodes = &self.nodes;
        format!("redis-cluster://127.0.0.1:{}?node=127.0.0.1:{}", nodes[0].port(), nodes[1].port())
    }

    pub fn slot(&self, key: &str) -> u16 {
        let slot = self.nodes[0].command(&["CLUSTER", "KEYSLOT", key]).int();
        u16::try_from(slot).expect("a slot")
    }

    /// The node that has the slot of a key, by the word of a node that lives.
    pub fn node_of(&self, key: &str) -> &Server {
        &self.nodes[self.index_of(key)]
    }

    pub fn index_of(&self, key: &str) -> usize {
        self.index_by(&self.nodes[0], self.slot(key)).expect("a slot that is served by one of ours")
    }

    /// The node that has a slot, by the word of this one.
    fn index_by(&self, node: &Server, slot: u16) -> Option<usize> {
        let ranges = node.command(&["CLUSTER", "SLOTS"]).list();
        let port = ranges.into_iter().find_map(|range| {
            let parts = range.list();
            let inside = (parts[0].int()..=parts[1].int()).contains(&i64::from(slot));
            inside.then(|| parts[2].clone().list()[1].int())
        })?;
        self.nodes.iter().position(|node| i64::from(node.port()) == port)
    }

    /// Whether the first three nodes say that a slot is this one's.
    pub fn is_agreed(&self, slot: u16, index: usize) -> bool {
        self.nodes[..3].iter().all(|node| self.index_by(node, slot) == Some(index))
    }

    /// A command about a key, to the node that has it.
    #[track_caller]
    pub fn command(&self, key: &str, words: &[&str]) -> Reply {
        self.node_of(key).command(words)
    }

    /// A name with this start whose slot one of the first three nodes has.
    pub fn name_on(&self, node: usize, start: &str) -> String {
        let names = (0..).map(|number| format!("{start}-{number}"));
        names.into_iter().find(|name| self.index_of(name) == node).expect("there are enough")
    }

    pub fn id(&self, node: usize) -> String {
        self.nodes[node].command(&["CLUSTER", "MYID"]).text()
    }

    /// The first half of moving a slot: new keys go to `to`, old ones are still at `from`.
    #[track_caller]
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let (source, target) = (self.id(from), self.id(to));
        for (node, state, other) in [(to, "IMPORTING", &source), (from, "MIGRATING", &target)] {
            let reply = self.nodes[node].command(&["CLUSTER", "SETSLOT", &slot, state, other]);
            assert_eq!(reply, Reply::Text("OK".to_owned()));
        }
    }

    /// Moves one key of a slot on its way.
    #[track_caller]
    pub fn move_key(&self, key: &str, from: usize, to: usize) {
        /// A server does nothing else meanwhile, so two that send keys to each other would wait for each other.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let port = self.nodes[to].port().to_string();
        let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        let reply = self.nodes[from].command(&words);
        assert!(
            matches!(&reply, Reply::Text(text) if text == "OK" || text == "NOKEY"),
            "{reply:?}"
        );
    }

    /// The second half of moving a slot: the rest of its keys, and the word to the first three nodes, as an administrator gives
    /// it to all: when slots move between several nodes at once, one that is not told may never believe it.
    ///
    /// Waits until all three know the epoch of the new owner. A slot that comes back before its former owner has heard of
    /// it can be lost: each of the two then says for good that the other serves it, seen in one of a hundred runs.
    #[track_caller]
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        self.end_move_between(slot, from, to);
        for node in (0..3).filter(|node| ![to, from].contains(node)) {
            self.set_slot(slot, node, to);
        }
        let id = self.id(to);
        until("the nodes know the epoch of the new owner", || {
            let own = Self::epoch_by(&self.nodes[to], &id);
            self.nodes[..3].iter().all(|node| Self::epoch_by(node, &id) == own)
        });
    }

    /// The epoch of a node by the word of another.
    fn epoch_by(node: &Server, id: &str) -> Option<String> {
        let nodes = node.command(&["CLUSTER", "NODES"]).text();
        let line = nodes.lines().find(|line| line.starts_with(id))?;
        line.split(' ').nth(6).map(str::to_owned)
    }

    /// As [`end_move`](Self::end_move), but without a word to the others, which may be replicas by now, or stand still.
    #[track_caller]
    pub fn end_move_between(&self, slot: u16, from: usize, to: usize) {
        let text = slot.to_string();
        loop {
            let words = ["CLUSTER", "GETKEYSINSLOT", &text, "100"];
            let keys = self.nodes[from].command(&words).list();
            if keys.is_empty() {
                break;
            }
            keys.into_iter().for_each(|key| self.move_key(&key.text(), from, to));
        }
        // The new owner first: it gets the newer epoch.
        for node in [to, from] {
            self.set_slot(slot, node, to);
        }
    }

    /// Tells a node whose slot it is.
    #[track_caller]
    fn set_slot(&self, slot: u16, node: usize, owner: usize) {
        let words = ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.id(owner)];
        assert_eq!(self.nodes[node].command(&words), Reply::Text("OK".to_owned()));
    }
}
