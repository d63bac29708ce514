//! Plain locks beside the clients that share them: redis-py, python-redis-lock, redsync and node-redlock.

use kit::server::{dying_with_parent, spawn};
use kit::{Server, within};
use leasehold::{Layout, LeaseManager, Loss};
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const T: Duration = Duration::from_secs(2);

/// A client of another language, in a process of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Peer {
    RedisPy,
    PythonRedisLock,
    Redsync,
    NodeRedlock,
}

impl Peer {
    /// Returns the prefix that names have for it.
    fn prefix(self) -> &'static str {
        if self == Self::PythonRedisLock { "lock:" } else { "" }
    }

    fn command(self) -> Command {
        let built = env::var_os("LEASEHOLD_INTEROP_PLAIN").map(PathBuf::from).unwrap_or_else(|| {
            panic!("LEASEHOLD_INTEROP_PLAIN is not set; these tests need other clients: use tests/interop/run")
        });
        let python = |library| {
            let mut command =
                dying_with_parent(built.join("venv/bin/python").to_str().expect("UTF-8"));
            command.arg(built.join("agent.py")).arg(library);
            command
        };
        match self {
            Self::RedisPy => python("redis-py"),
            Self::PythonRedisLock => python("python-redis-lock"),
            Self::Redsync => dying_with_parent(built.join("redsync").to_str().expect("UTF-8")),
            Self::NodeRedlock => {
                let mut command = dying_with_parent("node");
                command.arg(built.join("agent.mjs"));
                command
            }
        }
    }

    fn start(self, servers: &[Server]) -> Agent {
        let mut command = self.command();
        command.args(servers.iter().map(|server| server.port().to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = spawn(command).expect("the program is there");
        let input = child.stdin.take().expect("it was asked for");
        let mut output = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut greeting = String::new();
        output.read_line(&mut greeting).expect("a line");
        assert_eq!(greeting, "ready\n", "{self:?}");
        Agent(Arc::new(Mutex::new(Running { child, input, output })))
    }
}

/// A running client. Its operations block a thread that is for that.
#[derive(Clone)]
struct Agent(Arc<Mutex<Running>>);

struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Agent {
    async fn ask(&self, line: String) -> bool {
        let running = Arc::clone(&self.0);
        let answer = tokio::task::spawn_blocking(move || {
            let mut running = running.lock().expect("no panic before");
            writeln!(running.input, "{line}").expect("it listens");
            let mut answer = String::new();
            running.output.read_line(&mut answer).expect("a line");
            match answer.trim_end() {
                "true" => true,
                "false" => false,
                other => panic!("{line}: {other}"),
            }
        });
        within(LONG * 2, answer).await.expect("no panic")
    }

    async fn try_lock(&self, name: &str, ttl: Duration) -> bool {
        self.ask(format!("try {name} {}", ttl.as_millis())).await
    }

    async fn lock(&self, name: &str, ttl: Duration) -> bool {
        self.ask(format!("wait {name} {} {}", ttl.as_millis(), LONG.as_millis())).await
    }

    async fn extend(&self, name: &str, ttl: Duration) -> bool {
        self.ask(format!("extend {name} {}", ttl.as_millis())).await
    }

    async fn release(&self, name: &str) -> bool {
        self.ask(format!("release {name}")).await
    }
}

/// A peer and a manager on the same servers: one, or a quorum.
struct World {
    peer: Peer,
    agent: Agent,
    leases: LeaseManager,
    servers: Vec<Server>,
}

impl World {
    async fn start(peer: Peer, count: usize) -> Self {
        let servers: Vec<_> = (0..count).map(|_| Server::start()).collect();
        let urls: Vec<_> = servers.iter().map(Server::url).collect();
        let builder = LeaseManager::builder().layout(Layout::Plain).ttl(T).prefix(peer.prefix());
        let builder = builder.max_poll_interval(Duration::from_millis(100));
        let leases = builder.connect(urls.join(",")).await.expect("a manager");
        let agent = peer.start(&servers);
        let world = Self { peer, agent, leases, servers };
        // A node of a quorum counts once it is older than the leases that it may have lost.
        within(LONG, async {
            while world.leases.lock("warm").lock().await.is_err() {
                tokio::time::sleep(T / 10).await;
            }
        })
        .await;
        world
    }
}

/// Makes a test of a scenario for each client and each number of servers.
macro_rules! scenarios {
    ($($name:ident)+) => {$(
        mod $name {
            use super::{Peer, World};

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis_py() {
                super::$name(World::start(Peer::RedisPy, 1).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn python_redis_lock() {
                super::$name(World::start(Peer::PythonRedisLock, 1).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redsync() {
                super::$name(World::start(Peer::Redsync, 1).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn node_redlock() {
                super::$name(World::start(Peer::NodeRedlock, 1).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redsync_on_a_quorum() {
                super::$name(World::start(Peer::Redsync, 3).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn node_redlock_on_a_quorum() {
                super::$name(World::start(Peer::NodeRedlock, 3).await).await;
            }
        }
    )+};
}

scenarios! {
    each_keeps_the_other_out
    hold_of_a_peer_expires
    watchdog_keeps_a_peer_out_over_three_times_t
    late_unlocks_free_nothing
    nested_holds_keep_a_peer_out_until_the_last
}

async fn each_keeps_the_other_out(world: World) {
    let World { agent, leases, .. } = &world;
    for round in 0..5 {
        let name = format!("held:{round}");
        let mut lock = leases.lock(&name);
        let lease = lock.lock().await.expect("a lease");
        assert!(!agent.try_lock(&name, LONG).await);
        lease.unlock().await.expect("a release");
        assert!(agent.try_lock(&name, LONG).await);
        assert!(lock.try_lock().await.expect("an answer").is_none());
        let waited = lock.lock_timeout(Duration::from_millis(300)).await.expect("an answer");
        assert!(waited.is_none());
        if let [server] = &world.servers[..] {
            let seen = leases.inspect(&name).await.expect("an answer").expect("a holder");
            let key = format!("{}{name}", world.peer.prefix());
            assert_eq!(seen.holder, server.command(&["GET", &key]).text());
            assert!(seen.remaining.is_some_and(|left| left > LONG / 2), "{seen:?}");
        }
        let (other, asked) = (agent.clone(), name.clone());
        let released = tokio::spawn(async move { other.release(&asked).await });
        let lease = within(LONG, lock.lock()).await.expect("a lease");
        assert!(released.await.expect("no panic"));
        // And the other way: it waits, and gets in once we have gone.
        let (other, asked) = (agent.clone(), name.clone());
        let waits = tokio::spawn(async move { other.lock(&asked, T).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waits.is_finished());
        lease.unlock().await.expect("a release");
        assert!(within(LONG, waits).await.expect("no panic"));
        agent.release(&name).await;
    }
}

async fn hold_of_a_peer_expires(World { agent, leases, .. }: World) {
    let start = Instant::now();
    assert!(agent.try_lock("n", T).await);
    assert!(agent.extend("n", T).await);
    let lease = within(LONG, leases.lock("n").lock()).await.expect("a lease");
    assert!(start.elapsed() >= T, "{:?}", start.elapsed());
    assert!(!agent.extend("n", T).await, "it is ours");
    lease.check().expect("still held");
    lease.unlock().await.expect("a release");
}

async fn watchdog_keeps_a_peer_out_over_three_times_t(World { agent, leases, .. }: World) {
    let lease = leases.lock("n").lock().await.expect("a lease");
    let start = Instant::now();
    while start.elapsed() < T * 3 {
        assert!(!agent.try_lock("n", T).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    lease.check().expect("still held");
    lease.unlock().await.expect("a release");
    assert!(agent.try_lock("n", T).await);
}

async fn late_unlocks_free_nothing(World { agent, leases, servers, peer }: World) {
    // Theirs.
    assert!(agent.try_lock("n", T).await);
    let lease = within(LONG, leases.lock("n").lock()).await.expect("a lease");
    agent.release("n").await;
    lease.check().expect("still held");
    assert!(leases.inspect("n").await.expect("an answer").is_some());
    tokio::time::sleep(T).await;
    lease.check().expect("renewed");
    // Ours: an operator takes the key away, and the peer comes before we notice.
    let key = format!("{}n", peer.prefix());
    for server in &servers {
        server.command(&["DEL", &key]);
    }
    assert!(agent.try_lock("n", LONG).await);
    let loss = within(LONG, lease.lost()).await;
    assert!(matches!(loss, Loss::Taken | Loss::Gone), "{loss:?}");
    drop(lease);
    tokio::time::sleep(T).await;
    assert!(leases.lock("n").try_lock().await.expect("an answer").is_none());
    assert!(agent.release("n").await);
}

async fn nested_holds_keep_a_peer_out_until_the_last(World { agent, leases, .. }: World) {
    let mut lock = leases.lock("n");
    let outer = lock.lock().await.expect("a lease");
    let middle = lock.lock().await.expect("a lease");
    let inner = lock.lock().await.expect("a lease");
    for lease in [inner, middle] {
        assert!(!agent.try_lock("n", T).await);
        lease.unlock().await.expect("a release");
    }
    assert!(!agent.try_lock("n", T).await);
    outer.unlock().await.expect("a release");
    assert!(agent.try_lock("n", T).await);
    assert!(agent.release("n").await);
}
