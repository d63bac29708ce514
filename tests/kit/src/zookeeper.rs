//! ZooKeeper servers of the test's own, alone or as an ensemble.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::relay::{Relay, Traffic};
use super::server::{dying_with_parent, free_port, spawn};

/// Where Debian puts them; the environment's `ZOOKEEPER_CLASSPATH` goes before.
const JARS: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar";
/// A JVM on a busy machine takes its time.
const STARTUP: Duration = Duration::from_secs(30);
/// The servers' tick; a session lasts for 2 of them at least.
pub const TICK: Duration = Duration::from_millis(200);
/// Of an ensemble's members: 5 s of silence.
pub const SLOWLY: u32 = 25;

/// One server or several; they end when this value is dropped.
pub struct ZooKeeper {
    peers: Vec<Peer>,
    /// After how many ticks of silence the members of an ensemble give each other up.
    sync_limit: u32,
    /// More lines for the configuration.
    extra: String,
    /// Removed when the members have ended.
    _dir: TempDir,
}

/// What the members of an ensemble reach each other by.
pub struct Links(Vec<Link>);

struct Link {
    from: usize,
    to: usize,
    quorum: Relay,
    /// A member that calls one with a higher number is called back. Without this link, a member that was
    /// refused once is never called again by a leader that has found its majority meanwhile.
    election: Relay,
}

impl Links {
    fn new(ports: &[Ports]) -> Self {
        let peers = 0..ports.len();
        let pairs = peers.clone().flat_map(|from| peers.clone().map(move |to| (from, to)));
        let links = pairs.filter(|(from, to)| from != to).map(|(from, to)| Link {
            from,
            to,
            quorum: Relay::of_bytes(ports[to].quorum),
            election: Relay::of_elections(ports[to].election),
        });
        Self(links.collect())
    }

    /// Where a member finds itself and the others.
    fn seen_by(&self, peer: usize, ports: &[Ports]) -> Vec<Ports> {
        let mut seen = ports.to_vec();
        for Link { to, quorum, election, .. } in self.0.iter().filter(|link| link.from == peer) {
            seen[*to] = Ports { quorum: quorum.port(), election: election.port() };
        }
        seen
    }

    /// What passes between a member and the others, whoever of them has called.
    pub fn set(&self, peer: usize, traffic: Traffic) {
        for link in self.0.iter().filter(|link| link.from == peer || link.to == peer) {
            link.set(traffic);
        }
    }

    /// Closes all connections between members and makes all links work again, so an election follows.
    ///
    /// Until a member notices, it tells its mode as before, so [`ZooKeeper::wait_for`] may return too soon.
    pub fn heal(&self) {
        for traffic in [Traffic::Refuse, Traffic::Pass] {
            self.0.iter().for_each(|link| link.set(traffic));
        }
    }
}

impl Link {
    fn set(&self, traffic: Traffic) {
        self.quorum.set(traffic);
        self.election.set(traffic);
    }
}

struct Peer {
    dir: PathBuf,
    port: u16,
    process: Mutex<Option<Child>>,
}

/// Where the members of an ensemble reach each other.
#[derive(Clone, Copy, Debug)]
struct Ports {
    quorum: u16,
    election: u16,
}

impl ZooKeeper {
    /// One server.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// One server with more lines in its configuration.
    #[track_caller]
    pub fn start_with(extra: &str) -> Self {
        for _ in 0..5 {
            let mut servers = Self::prepare(1);
            servers.extra = extra.to_owned();
            servers.configure(0, &[]);
            servers.launch(0);
            if servers.wait_for(&[0]) {
                return servers;
            }
        }
        panic!("no ZooKeeper server came up; is something wrong with {}?", jars());
    }

    /// Three servers that see each other.
    #[track_caller]
    pub fn ensemble() -> Self {
        Self::ensemble_that_notices(SLOWLY)
    }

    /// Three servers that notice after so many ticks that one of them is silent.
    #[track_caller]
    pub fn ensemble_that_notices(sync_limit: u32) -> Self {
        for _ in 0..5 {
            let mut servers = Self::prepare(3);
            servers.sync_limit = sync_limit;
            let ports = Self::ports();
            for peer in 0..3 {
                servers.configure(peer, &ports);
                servers.launch(peer);
            }
            if servers.wait_for(&[0, 1, 2]) {
                return servers;
            }
        }
        panic!("no ensemble of ZooKeeper servers came up; is something wrong with {}?", jars());
    }

    /// Three servers that see each other as long as the links between them work.
    #[track_caller]
    pub fn linked() -> (Self, Links) {
        for _ in 0..5 {
            let servers = Self::prepare(3);
            let ports = Self::ports();
            let links = Links::new(&ports);
            for peer in 0..3 {
                servers.configure(peer, &links.seen_by(peer, &ports));
                servers.launch(peer);
            }
            if servers.wait_for(&[0, 1, 2]) {
                return (servers, links);
            }
        }
        panic!("no ensemble of ZooKeeper servers came up; is something wrong with {}?", jars());
    }

    /// Free ports for three members.
    fn ports() -> [Ports; 3] {
        [(); 3].map(|()| Ports { quorum: free_port(), election: free_port() })
    }

    /// Directories and ports for so many; nothing runs yet.
    #[track_caller]
    fn prepare(count: usize) -> Self {
        require_zookeeper();
        let dir = tempfile::Builder::new().prefix("leasehold-zk-").tempdir();
        let dir = dir.expect("a temporary directory for the servers");
        crate::janitor::remove_in_the_end(dir.path());
        let peers = (0..count).map(|peer| {
            let dir = dir.path().join(format!("n{peer}"));
            fs::create_dir_all(dir.join("data")).expect("a directory for the server's data");
            Peer { dir, port: free_port(), process: Mutex::new(None) }
        });
        let peers = peers.collect();
        Self { peers, sync_limit: SLOWLY, extra: String::new(), _dir: dir }
    }

    /// Writes a member's configuration, with the ports by which it finds all members, itself included.
    fn configure(&self, peer: usize, ports: &[Ports]) {
        let Peer { dir, port, .. } = &self.peers[peer];
        let Self { sync_limit, extra, .. } = self;
        let mut text = format!(
            "tickTime={}\ninitLimit=50\nsyncLimit={sync_limit}\ndataDir={}\nclientPort={port}\n\
             clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\nmaxSessionTimeout=100000\n{extra}\n",
            TICK.as_millis(),
            dir.join("data").display(),
        );
        for (number, Ports { quorum, election }) in ports.iter().enumerate() {
            text += &format!("server.{}=127.0.0.1:{quorum}:{election}\n", number + 1);
        }
        fs::write(dir.join("zoo.cfg"), text).expect("a configuration");
        if !ports.is_empty() {
            fs::write(dir.join("data/myid"), (peer + 1).to_string()).expect("a member's number");
        }
    }

    /// Starts a member, or starts it again on its old data.
    pub fn launch(&self, peer: usize) {
        let dir = &self.peers[peer].dir;
        let log = fs::File::options().create(true).append(true).open(dir.join("log"));
        let log = log.expect("a log for the server");
        let mut command = dying_with_parent("java");
        command
            .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"])
            .args(["-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.forceSync=no"])
            .args(["-cp", &jars()])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(dir.join("zoo.cfg"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("one more handle on the log"))
            .stderr(log);
        *self.process(peer) = Some(spawn(command).expect("java starts"));
    }

    /// Restarts the one server with one more line in its configuration, which counts more than one before.
    pub fn restart_with(&self, line: &str) {
        self.kill(0);
        let config = self.peers[0].dir.join("zoo.cfg");
        let text = fs::read_to_string(&config).expect("a configuration");
        fs::write(&config, format!("{text}{line}\n")).expect("a configuration");
        self.launch(0);
        assert!(self.wait_for(&[0]), "it starts again");
    }

    /// Restarts a server that stands alone, with an empty data folder.
    pub fn wipe(&self, peer: usize) {
        self.kill(peer);
        let data = self.peers[peer].dir.join("data");
        fs::remove_dir_all(&data).expect("a directory of our own");
        fs::create_dir_all(&data).expect("a directory for the server's data");
        self.launch(peer);
        assert!(self.wait_for(&[peer]), "it starts again");
    }

    /// Waits until these members serve clients; false if one has ended.
    pub fn wait_for(&self, peers: &[usize]) -> bool {
        let start = Instant::now();
        for &peer in peers {
            while self.mode(peer).is_none() {
                let ended = self.process(peer).as_mut().map(|child| child.try_wait());
                if matches!(ended, Some(Ok(Some(_)))) {
                    return false;
                }
                assert!(start.elapsed() < STARTUP, "it does not start:\n{}", self.log(peer));
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        true
    }

    pub fn log(&self, peer: usize) -> String {
        fs::read_to_string(self.peers[peer].dir.join("log")).unwrap_or_default()
    }

    /// `leader`, `follower` or `standalone`; `None` if it does not serve.
    pub fn mode(&self, peer: usize) -> Option<String> {
        let answer = self.ask(peer, "srvr")?;
        let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "))?;
        Some(mode.to_owned())
    }

    pub fn leader(&self) -> usize {
        let mut peers = 0..self.peers.len();
        let leads = |peer: &usize| self.mode(*peer).as_deref() == Some("leader");
        peers.find(leads).expect("an ensemble has a leader")
    }

    /// A number that `mntr` tells.
    pub fn number(&self, peer: usize, key: &str) -> u64 {
        let answer = self.ask(peer, "mntr").expect("the server tells its numbers");
        let value = answer.lines().find_map(|line| {
            let (name, value) = line.split_once('\t')?;
            (name == key).then(|| value.trim().parse::<u64>().ok())?
        });
        value.unwrap_or_else(|| panic!("no {key} in\n{answer}"))
    }

    /// Asks with one of the four-letter words.
    pub fn ask(&self, peer: usize, word: &str) -> Option<String> {
        let limit = Duration::from_millis(500);
        let mut stream = TcpStream::connect_timeout(&self.socket(peer), limit).ok()?;
        stream.set_read_timeout(Some(limit)).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn socket(&self, peer: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.peers[peer].port))
    }

    pub fn port(&self, peer: usize) -> u16 {
        self.peers[peer].port
    }

    /// Of one member.
    pub fn url_of(&self, peer: usize) -> String {
        format!("zookeeper://127.0.0.1:{}", self.peers[peer].port)
    }

    /// Of all members.
    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.hosts())
    }

    pub fn hosts(&self) -> String {
        let hosts = self.peers.iter().map(|peer| format!("127.0.0.1:{}", peer.port));
        hosts.collect::<Vec<_>>().join(",")
    }

    pub fn kill(&self, peer: usize) {
        if let Some(mut child) = self.process(peer).take() {
            child.kill().expect("the server can be killed");
            child.wait().expect("the server ends");
        }
    }

    /// Stops it in the middle of whatever it does.
    pub fn freeze(&self, peer: usize) {
        self.signal(peer, Signal::STOP);
    }

    pub fn thaw(&self, peer: usize) {
        self.signal(peer, Signal::CONT);
    }

    fn signal(&self, peer: usize, signal: Signal) {
        let process = self.process(peer);
        let child = process.as_ref().expect("the server runs");
        kill_process(Pid::from_child(child), signal).expect("a signal to the server");
    }

    fn process(&self, peer: usize) -> MutexGuard<'_, Option<Child>> {
        self.peers[peer].process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ZooKeeper {
    /// Shows the members' logs if the test fails: their folders are removed.
    fn drop(&mut self) {
        for peer in 0..self.peers.len() {
            if std::thread::panicking() {
                println!("log of member {peer}:\n{}", self.log(peer));
            }
            self.kill(peer);
        }
    }
}

fn jars() -> String {
    std::env::var("ZOOKEEPER_CLASSPATH").unwrap_or_else(|_| JARS.to_owned())
}

#[track_caller]
fn require_zookeeper() {
    let java = Command::new("java").arg("-version").output();
    assert!(
        java.is_ok_and(|output| output.status.success()),
        "java is missing; install a Java runtime (tests/run does)"
    );
    for jar in jars().split(':') {
        assert!(
            jar.contains('*') || Path::new(jar).exists(),
            "{jar} is missing; install libzookeeper-java (tests/run does), or set ZOOKEEPER_CLASSPATH"
        );
    }
}

/// The directory of a lock.
pub fn directory(name: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    format!("/leasehold/locks/{}", name.bytes().map(encode).collect::<String>())
}

/// Looks at a server from outside, by a session of its own on the current runtime.
pub struct Look(pub zookeeper_client::Client);

impl Look {
    pub async fn at(hosts: &str) -> Self {
        Self(zookeeper_client::Client::connect(hosts).await.expect("a session to look"))
    }

    /// The nodes in the line of a lock, in no order.
    pub async fn nodes(&self, name: &str) -> Vec<String> {
        self.children(&directory(name)).await
    }

    /// The nodes in a directory, in no order; none if there is no directory.
    async fn children(&self, directory: &str) -> Vec<String> {
        self.0.sync("/").await.expect("the server is there");
        match self.0.list_children(directory).await {
            Ok(nodes) => nodes,
            Err(zookeeper_client::Error::NoNode) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until there are so many.
    pub async fn until_nodes(&self, name: &str, count: usize) {
        self.until_children(&directory(name), count).await;
    }

    /// Waits until there are so many.
    pub async fn until_children(&self, directory: &str, count: usize) {
        let start = Instant::now();
        loop {
            let nodes = self.children(directory).await;
            if nodes.len() == count {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(15), "not {count}, but {nodes:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
