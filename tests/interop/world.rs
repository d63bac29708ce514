//! Where a scenario takes place: Redis servers, a Redisson client, and lease managers.

use crate::peer::{Java, Jvm};
use kit::{Cluster, Reply, Resp, Server, eventually};
use leasehold::{Builder, Lease, LeaseManager};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// What must happen at all.
pub const LONG: Duration = Duration::from_secs(30);

#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub enum Where {
    on_a_server,
    /// For what keeps both processors busy: `tests/interop/run` lets nothing else run beside it.
    on_a_quiet_server,
    in_a_cluster,
}

enum Place {
    Server(Server),
    Cluster(Arc<Cluster>),
}

pub struct World {
    line: &'static str,
    jvm: Arc<Jvm>,
    place: Place,
}

impl World {
    pub async fn start(line: &'static str, place: Where) -> Self {
        // It takes a while, in which the runtime must not stand still.
        let start = move || {
            let place = match place {
                Where::on_a_server | Where::on_a_quiet_server => {
                    Place::Server(Server::start_with(&["--notify-keyspace-events", "Egx"]))
                }
                Where::in_a_cluster => Place::Cluster(cluster()),
            };
            Self { line, jvm: Jvm::shared(line), place }
        };
        tokio::task::spawn_blocking(start).await.expect("servers and a JVM")
    }

    /// Tells a figure.
    pub fn note(&self, text: &str) {
        let place = match self.place {
            Place::Server(_) => "server",
            Place::Cluster(_) => "cluster",
        };
        println!("interop: Redisson {}, {place}: {text}", self.line);
    }

    pub fn url(&self) -> String {
        match &self.place {
            Place::Server(server) => server.url(),
            Place::Cluster(cluster) => cluster.url(),
        }
    }

    /// Redisson in the shared JVM, with its watchdog at `ttl`.
    pub async fn java(&self, ttl: Duration) -> Java {
        self.java_in(&self.jvm, ttl, "", "default").await
    }

    /// With a prefix, and in a cluster with a mode of subscriptions.
    pub async fn java_with(&self, ttl: Duration, prefix: &str, mode: &str) -> Java {
        self.java_in(&self.jvm, ttl, prefix, mode).await
    }

    /// A JVM of its own, to be killed.
    pub async fn own_jvm(&self) -> Arc<Jvm> {
        let line = self.line;
        tokio::task::spawn_blocking(move || Jvm::start(line)).await.expect("a JVM")
    }

    pub async fn java_in(&self, jvm: &Arc<Jvm>, ttl: Duration, prefix: &str, mode: &str) -> Java {
        match &self.place {
            Place::Server(server) => jvm.client(&server.url(), ttl, prefix, "").await,
            Place::Cluster(cluster) => {
                let nodes = cluster.nodes[..2].iter().map(Server::url);
                jvm.client(&nodes.collect::<Vec<_>>().join(","), ttl, prefix, mode).await
            }
        }
    }

    pub async fn rust(&self, ttl: Duration) -> LeaseManager {
        self.rust_with(LeaseManager::builder().ttl(ttl)).await
    }

    pub async fn rust_with(&self, builder: Builder) -> LeaseManager {
        kit::connect_in_the_end(builder, &self.url()).await
    }

    /// A name of this test's own: tests share a cluster.
    pub fn name(&self, start: &str) -> String {
        format!("{start}-{}", uuid())
    }

    /// A command about a key.
    #[track_caller]
    pub fn command(&self, key: &str, words: &[&str]) -> Reply {
        match &self.place {
            Place::Server(server) => server.command(words),
            Place::Cluster(cluster) => cluster.command(key, words),
        }
    }

    /// A connection for commands about a key.
    #[track_caller]
    pub fn connection(&self, key: &str) -> Resp {
        match &self.place {
            Place::Server(server) => server.connection(),
            Place::Cluster(cluster) => cluster.node_of(key).connection(),
        }
    }

    #[track_caller]
    pub fn exists(&self, key: &str) -> bool {
        self.command(key, &["EXISTS", key]).int() == 1
    }

    #[track_caller]
    pub fn pttl(&self, key: &str) -> i64 {
        self.command(key, &["PTTL", key]).int()
    }

    /// The holder of a name, and its hold count.
    #[track_caller]
    pub fn held(&self, key: &str) -> (String, i64) {
        let pairs = self.command(key, &["HGETALL", key]).pairs();
        let [(holder, count)] = pairs.try_into().expect("one holder");
        (holder, count.parse().expect("a count"))
    }

    /// How many connections listen to the channel of a key, sharded or not.
    pub fn listeners(&self, key: &str) -> i64 {
        let braced = key.contains('{');
        let channel = match braced {
            true => format!("redisson_lock__channel:{key}"),
            false => format!("redisson_lock__channel:{{{key}}}"),
        };
        let ask = |question: &str| {
            self.command(&channel, &["PUBSUB", question, &channel]).list()[1].int()
        };
        ask("NUMSUB") + ask("SHARDNUMSUB")
    }

    /// Waits until `count` connections listen for the release of a key, and have surely seen that it is held.
    pub async fn awaited(&self, key: &str, count: i64) {
        eventually(LONG, || self.listeners(key) >= count).await;
        // A waiter that has subscribed asks once more; nothing tells when that is answered.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

fn uuid() -> u128 {
    uuid::Uuid::new_v4().as_u128() & 0xffff_ffff
}

/// One cluster for all tests that need it at the time.
fn cluster() -> Arc<Cluster> {
    static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let cluster = Arc::new(Cluster::start());
        *shared = Arc::downgrade(&cluster);
        cluster
    })
}

/// How long something goes on: so many seconds, or a minute in the long form.
pub fn length(seconds: u64) -> Duration {
    let long = std::env::var("LEASEHOLD_INTEROP").is_ok_and(|form| form == "long");
    Duration::from_secs(if long { 60 } else { seconds })
}

/// A task of this side that waits for a lock: when it got it, and the lease.
pub fn waits(leases: &LeaseManager, name: &str) -> tokio::task::JoinHandle<(Duration, Lease)> {
    let mut lock = leases.lock(name);
    tokio::spawn(async move {
        let lease = lock.lock().await.expect("a lease");
        (crate::peer::now(), lease)
    })
}

/// The middle, the ninth tenth and the largest of some times.
pub fn spread(times: &mut [Duration]) -> (Duration, Duration, Duration) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share).div_ceil(100).max(1) - 1];
    (at(50), at(90), at(100))
}
