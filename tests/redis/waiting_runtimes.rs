//! Each runtime that waits has a connection of its own for wake-ups. A channel is subscribed once in a process.

use kit::look::{channel, others, subscribers};
use kit::resp::Resp;
use kit::server::free_port;
use kit::{Proxy, Server, eventually, within};
use leasehold::LeaseManager;
use leasehold::store::{Name, RedisStore, Store, Target, Wait, Wakeups};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

const LONG: Duration = Duration::from_secs(20);
/// A wake-up by message, on a machine that does other work too.
const SOON: Duration = Duration::from_secs(1);
const NAME: &str = "job";

/// A runtime that runs only while it is asked to.
fn stop_and_go() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// A store whose own runtime always runs.
struct World {
    server: Server,
    connection: Resp,
    home: Runtime,
    store: Arc<RedisStore>,
    /// The number of connections of its own runtime.
    own_connections: usize,
}

impl World {
    fn new() -> Self {
        let server = Server::start();
        let url = server.url();
        Self::at(server, &url)
    }

    /// A world whose store reaches its server by this URL.
    fn at(server: Server, url: &str) -> Self {
        let home = threads();
        let store = home.block_on(RedisStore::connect(url)).expect("a store");
        let mut connection = server.connection();
        let own_connections = others(&mut connection);
        Self { server, connection, home, store: Arc::new(store), own_connections }
    }

    fn until(&mut self, is: impl Fn(&mut Resp) -> bool) {
        let connection = &mut self.connection;
        self.home.block_on(eventually(LONG, || is(connection)));
    }

    /// Waits until the channel is subscribed by this many connections.
    fn until_subscribed(&mut self, total: i64) {
        self.until(|connection| subscribers(connection, &channel(NAME)) == total);
    }

    /// Subscribes on a runtime that has, or then gets, its own connection, and waits until that has the channel.
    fn subscribe_at(&mut self, runtime: &Runtime) -> Wakeups {
        let count = others(&mut self.connection);
        let wakeups = runtime.block_on(subscribe(Arc::clone(&self.store)));
        let connection = &mut self.connection;
        let oldest = ids(connection)[0];
        runtime.block_on(eventually(LONG, || {
            let newest = ids(connection).into_iter().max_by_key(|client| client.id);
            others(connection) == count + 1
                && newest.is_some_and(|client| client.id > oldest.id && client.channels == 1)
                && subscribers(connection, &channel(NAME)) == 1
        }));
        // The new connection may have woken it.
        self.publish();
        let heard = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            heard(wakeups).await.1
        };
        runtime.block_on(heard)
    }

    fn publish(&self) {
        self.server.command(&["PUBLISH", &channel(NAME), "0"]);
    }

    fn close(mut self) {
        self.home.block_on(self.store.close(SOON));
        self.until(|connection| others(connection) == 0);
    }
}

#[derive(Clone, Copy)]
struct Client {
    id: u64,
    channels: u64,
}

fn ids(connection: &mut Resp) -> Vec<Client> {
    let list = connection.command(&["CLIENT", "LIST"]).text();
    let field = |line: &str, name: &str| {
        let value = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.and_then(|value| value.parse().ok()).expect("a number")
    };
    let mut clients: Vec<Client> = list
        .lines()
        .map(|line| Client { id: field(line, "id"), channels: field(line, "sub") })
        .collect();
    clients.sort_by_key(|client| client.id);
    clients
}

async fn subscribe(store: Arc<RedisStore>) -> Wakeups {
    let target = Target::exclusive(Name::new(NAME).expect("a name"));
    let wait = Wait::new(target, None, LONG);
    store.subscribe(wait).await.expect("subscribed").expect("the store has wake-ups")
}

/// Waits for a message. How long that took.
async fn heard(mut wakeups: Wakeups) -> (Duration, Wakeups) {
    let start = Instant::now();
    within(LONG, wakeups.recv()).await;
    (start.elapsed(), wakeups)
}

#[test]
fn connection_comes_with_a_runtimes_first_wait_and_goes_with_it() {
    let mut world = World::new();
    let home = world.own_connections;
    let first = threads();
    let wakeups = world.subscribe_at(&first);
    assert_eq!(others(&mut world.connection), home + 1);
    world.publish();
    let (took, wakeups) = first.block_on(heard(wakeups));
    assert!(took < SOON, "{took:?}");
    drop(wakeups);
    world.until_subscribed(0);
    // It is used again.
    let wakeups = first.block_on(subscribe(Arc::clone(&world.store)));
    world.publish();
    let (took, wakeups) = first.block_on(heard(wakeups));
    assert!(took < SOON, "{took:?}");
    assert_eq!(others(&mut world.connection), home + 1);
    drop(first);
    world.until(|connection| others(connection) == home);
    drop(wakeups);
    world.until_subscribed(0);
    world.close();
}

/// The runtime of the store waits, and needs no other connection.
#[test]
fn runtime_of_the_store_waits_on_its_own_connection() {
    let mut world = World::new();
    let home = world.own_connections;
    let wakeups = world.home.block_on(subscribe(Arc::clone(&world.store)));
    world.publish();
    let (took, _wakeups) = world.home.block_on(heard(wakeups));
    assert!(took < SOON, "{took:?}");
    assert_eq!(others(&mut world.connection), home);
    world.close();
}

#[test]
fn channel_of_two_runtimes_is_subscribed_once_and_wakes_both() {
    let mut world = World::new();
    let (first, second) = (threads(), threads());
    let one = world.subscribe_at(&first);
    let other = second.block_on(subscribe(Arc::clone(&world.store)));
    // Until the first one has left.
    world.until_subscribed(1);
    for (one, other) in [(one, other)] {
        let waiting = (first.spawn(heard(one)), second.spawn(heard(other)));
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        world.publish();
        for waiting in [waiting.0, waiting.1] {
            world.home.block_on(within(LONG, waiting)).expect("no panic");
        }
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }
    world.until_subscribed(0);
    let home = world.own_connections;
    drop((first, second));
    world.until(|connection| others(connection) == home);
    world.close();
}

/// The subscription was made on a runtime that ends, and the waiter is on another one.
#[test]
fn channel_of_a_runtime_that_ends_moves_and_wakes_its_waiters() {
    let mut world = World::new();
    let (first, second) = (threads(), threads());
    let wakeups = world.subscribe_at(&first);
    let waiting = second.spawn(heard(wakeups));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());
    drop(first);
    // Messages may have been missed.
    let (_, wakeups) = world.home.block_on(within(SOON, waiting)).expect("no panic");
    world.until_subscribed(1);
    let waiting = second.spawn(heard(wakeups));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished(), "it is woken once");
    world.publish();
    drop(world.home.block_on(within(SOON, waiting)).expect("no panic"));
    world.until_subscribed(0);
    world.close();
}

/// As one whose threads are all blocked.
#[test]
fn runtime_that_is_not_driven_delays_no_other() {
    let mut world = World::new();
    let (stopped, other) = (stop_and_go(), threads());
    let one = world.subscribe_at(&stopped);
    for _ in 0..3 {
        let wakeups = other.block_on(subscribe(Arc::clone(&world.store)));
        let waiting = other.spawn(heard(wakeups));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        world.publish();
        drop(world.home.block_on(within(SOON, waiting)).expect("no panic"));
    }
    // Its own connection still has the channel, until it is driven again.
    assert_eq!(subscribers(&mut world.connection, &channel(NAME)), 2);
    let connection = &mut world.connection;
    stopped.block_on(eventually(LONG, || subscribers(connection, &channel(NAME)) == 1));
    let (took, one) = stopped.block_on(heard(one));
    assert!(took < SOON, "it was woken: {took:?}");
    drop(one);
    world.until_subscribed(0);
    drop(stopped);
    world.close();
}

#[test]
fn close_waits_for_no_stopped_runtime_for_long() {
    let mut world = World::new();
    let stopped = stop_and_go();
    let wakeups = world.subscribe_at(&stopped);
    let start = Instant::now();
    world.home.block_on(world.store.close(Duration::from_millis(300)));
    assert!(start.elapsed() < SOON * 2, "{:?}", start.elapsed());
    drop((wakeups, stopped));
    world.until(|connection| others(connection) == 0);
}

/// The server cuts the connection of a runtime, and no other one can be made for a while.
#[test]
fn runtime_without_its_connection_hears_by_the_default_one() {
    let server = Server::start();
    let port = server.port();
    let proxy = Proxy::start(port);
    let mut world = World::at(server, &proxy.url());
    let (home, first) = (world.own_connections, threads());
    let one = world.subscribe_at(&first);
    let newest = |connection: &mut Resp| {
        ids(connection).into_iter().max_by_key(|client| client.id).expect("a client")
    };
    let own = newest(&mut world.connection).id.to_string();
    proxy.lead_new_to(free_port());
    world.server.command(&["CLIENT", "KILL", "ID", &own]);
    world.until(|connection| others(connection) == home);
    // Until the client has seen it.
    std::thread::sleep(Duration::from_millis(100));
    let mut waiting = [one, first.block_on(subscribe(Arc::clone(&world.store)))];
    world.until_subscribed(1);
    first.block_on(async {
        // They are woken once, because messages may have been missed.
        for wakeups in &mut waiting {
            let _ = tokio::time::timeout(Duration::from_millis(100), wakeups.recv()).await;
        }
    });
    world.publish();
    for wakeups in &mut waiting {
        first.block_on(within(SOON, wakeups.recv()));
    }
    proxy.lead_new_to(port);
    world.until(|connection| others(connection) == home + 1);
    // A waiter that comes then has it there again.
    let start = Instant::now();
    while newest(&mut world.connection).channels == 0 {
        assert!(start.elapsed() < LONG, "it stays at the default one");
        waiting[0] = first.block_on(subscribe(Arc::clone(&world.store)));
        std::thread::sleep(Duration::from_millis(20));
    }
    world.until_subscribed(1);
    drop(waiting);
    world.until_subscribed(0);
    drop(first);
    world.close();
}

/// A runtime needs the I/O driver for a connection of its own. tokio says by a panic that there is none.
#[test]
fn runtime_without_io_is_found_out_once() {
    const TEST: &str = "waiting_runtimes::runtime_without_io_is_found_out_once";
    const URL: &str = "LEASEHOLD_TEST_URL";
    let Ok(url) = std::env::var(URL) else {
        let server = Server::start();
        let mut test = Command::new(std::env::current_exe().expect("this test"));
        test.args(["--exact", TEST, "--nocapture"]).env(URL, server.url());
        let output = test.output().expect("it runs");
        let (said, panics) = (output.stdout, String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success() && said.contains("1 passed"), "{said}{panics}");
        // One for requests, and one for wake-ups.
        assert_eq!(panics.matches("panicked").count(), 2, "{panics}");
        return;
    };
    let home = threads();
    let patient = || LeaseManager::builder().max_poll_interval(LONG * 3);
    let holder = home.block_on(patient().connect(&url)).expect("a manager");
    let leases = home.block_on(patient().connect(&url)).expect("a manager");
    let without_io = Builder::new_current_thread().enable_time().build().expect("a runtime");
    for _ in 0..3 {
        let held = home.block_on(holder.lock(NAME).lock()).expect("free");
        let released = home.spawn(async move {
            // For longer than a runtime pauses between two attempts to connect.
            tokio::time::sleep(Duration::from_millis(1_200)).await;
            held.unlock().await.expect("held");
            Instant::now()
        });
        let granted = without_io.block_on(async {
            let lease = within(LONG, leases.lock(NAME).lock()).await.expect("a lease");
            let granted = Instant::now();
            lease.unlock().await.expect("held");
            granted
        });
        let released = home.block_on(released).expect("no panic");
        assert!(granted.saturating_duration_since(released) < SOON);
    }
    drop(without_io);
    home.block_on(leases.close()).expect("nothing is held");
}

/// A server of a cluster accepts no more connections. Those that there are serve the waiters of all runtimes.
#[test]
fn waiter_in_a_full_fleet_hears_by_the_default_connection() {
    let bus = free_port().to_string();
    let server = Server::start_with(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
    let mut connection = server.connection();
    connection.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let home = threads();
    let is_ready = |connection: &mut Resp| {
        connection.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok")
    };
    home.block_on(eventually(LONG, || is_ready(&mut connection)));
    let url = server.url().replace("redis://", "redis-cluster://");
    let store = Arc::new(home.block_on(RedisStore::connect(&url)).expect("a store"));
    // The default subscriber connects for its first waiter.
    let one = home.block_on(subscribe(Arc::clone(&store)));
    let full = (others(&mut connection) + 1).to_string();
    assert_eq!(connection.command(&["CONFIG", "SET", "maxclients", &full]).text(), "OK");
    let first = threads();
    let start = Instant::now();
    let other = first.block_on(subscribe(Arc::clone(&store)));
    assert!(start.elapsed() < SOON * 2, "{:?}", start.elapsed());
    let mut waiting = [one, other];
    first.block_on(async {
        // Before the message.
        for wakeups in &mut waiting {
            let _ = tokio::time::timeout(Duration::from_millis(100), wakeups.recv()).await;
        }
    });
    assert_eq!(connection.command(&["SPUBLISH", &channel(NAME), "0"]).int(), 1);
    for wakeups in &mut waiting {
        first.block_on(within(SOON, wakeups.recv()));
    }
    drop((waiting, first));
    home.block_on(store.close(SOON));
}

/// Two runtimes want one name, which a third party has.
#[test]
fn two_runtimes_get_a_name_in_turn_and_leave_nothing() {
    let server = Server::start();
    let mut connection = server.connection();
    let home = threads();
    let patient = || LeaseManager::builder().max_poll_interval(Duration::from_secs(60));
    let holder = home.block_on(patient().connect(&server.url())).expect("a manager");
    let leases = home.block_on(patient().connect(&server.url())).expect("a manager");
    let runtimes = [threads(), threads()];
    let held = home.block_on(holder.lock(NAME).lock()).expect("free");
    let waiting: Vec<_> = runtimes
        .iter()
        .map(|runtime| {
            let mut shared = leases.rw_lock("rw");
            let mut exclusive = leases.lock(NAME);
            runtime.spawn(async move {
                exclusive.lock().await.expect("a lease").unlock().await.expect("held");
                shared.read().await.expect("a lease").unlock().await.expect("held");
                Instant::now()
            })
        })
        .collect();
    home.block_on(eventually(LONG, || subscribers(&mut connection, &channel(NAME)) == 1));
    std::thread::sleep(Duration::from_millis(100));
    let released = Instant::now();
    home.block_on(held.unlock()).expect("held");
    for waiting in waiting {
        let granted = home.block_on(within(LONG, waiting)).expect("no panic");
        assert!(granted - released < SOON, "{:?}", granted - released);
    }
    home.block_on(leases.close()).expect("nothing is held");
    home.block_on(holder.close()).expect("nothing is held");
    home.block_on(eventually(LONG, || others(&mut connection) == 0));
}
