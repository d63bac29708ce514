//! Read-write locks and semaphores on a ZooKeeper server: the order of arrival, what each waiter watches, and what is left.

use kit::relay::{Relay, Traffic, request};
use kit::zookeeper::{Look, ZooKeeper, directory};
use kit::{connect_in_the_end, within};
use leasehold::{ErrorKind, LeaseManager, Loss, Upgraded};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Ten of the server's ticks.
const T: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(20);
/// The kind of a request that lists a directory.
const LIST: i32 = 8;

async fn connect(url: &str) -> LeaseManager {
    // A waiter is woken, or it is late.
    connect_in_the_end(LeaseManager::builder().ttl(T * 5).max_poll_interval(LONG * 3), url).await
}

/// Waiters of a manager each, which tell when they have the name, and keep it until they are told.
struct Line<'a> {
    server: &'a ZooKeeper,
    look: Look,
    sender: mpsc::UnboundedSender<(&'static str, Option<u64>)>,
    entered: mpsc::UnboundedReceiver<(&'static str, Option<u64>)>,
    waiters: Vec<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl<'a> Line<'a> {
    async fn at(server: &'a ZooKeeper) -> Self {
        let (sender, entered) = mpsc::unbounded_channel();
        let look = Look::at(&server.hosts()).await;
        Self { server, look, sender, entered, waiters: Vec::new() }
    }

    /// Adds one that reads, writes, or takes a number of four permits, and waits until it has a node.
    async fn add(&mut self, what: &'static str) {
        let leases = connect(&self.server.url()).await;
        let (leave, mut left) = mpsc::channel::<()>(1);
        let sender = self.sender.clone();
        let nodes = self.look.nodes("job").await.len();
        let waiter = tokio::spawn(async move {
            macro_rules! keep {
                ($lease:expr) => {{
                    let lease = $lease.expect("granted in the end");
                    sender.send((what, lease.fence())).expect("a receiver counts");
                    left.recv().await;
                    lease.check().expect("held");
                    lease.unlock().await.expect("released");
                }};
            }
            match what.chars().next() {
                Some('r') => keep!(leases.rw_lock("job").read().await),
                Some('w') => keep!(leases.rw_lock("job").write().await),
                _ => {
                    let count = what[..1].parse().expect("a number");
                    keep!(leases.semaphore("job", 4).acquire_many(count).await)
                }
            }
        });
        self.waiters.push((leave, waiter));
        self.look.until_nodes("job", nodes + 1).await;
    }

    async fn next(&mut self) -> (&'static str, Option<u64>) {
        within(LONG, self.entered.recv()).await.expect("one enters")
    }

    /// Has nobody entered in a while.
    async fn nobody(&mut self) {
        let entered = tokio::time::timeout(Duration::from_millis(300), self.entered.recv()).await;
        assert!(entered.is_err(), "{entered:?}");
    }

    async fn leave(&mut self, number: usize) {
        self.waiters[number].0.send(()).await.expect("it keeps the name");
    }

    /// Waits until so many watches are set.
    async fn watches(&self, count: u64) {
        kit::eventually(LONG, || self.server.number(0, "zk_watch_count") >= count).await;
        assert_eq!(self.server.number(0, "zk_watch_count"), count);
    }

    async fn end(self) {
        for (_, waiter) in self.waiters {
            within(LONG, waiter).await.expect("it ends well");
        }
        self.look.until_nodes("job", 0).await;
    }
}

#[tokio::test]
async fn readers_and_writers_enter_in_order_watching_one_node() {
    let server = ZooKeeper::start();
    let mut line = Line::at(&server).await;
    line.add("w0").await;
    let (_, first) = line.next().await;
    for what in ["r1", "r2", "w3", "r4", "w5"] {
        line.add(what).await;
    }
    // Both readers watch the writer, and each other one the node before it.
    line.watches(5).await;
    let watches = server.ask(0, "wchs").expect("the server tells its watches");
    assert!(watches.contains("5 connections watching 4 paths"), "{watches}");
    line.nobody().await;
    line.leave(0).await;
    let mut readers = [line.next().await, line.next().await];
    readers.sort_unstable();
    assert_eq!(readers.map(|(what, _)| what), ["r1", "r2"]);
    assert!(first < readers[0].1 && readers[0].1 < readers[1].1, "{first:?}, {readers:?}");
    line.nobody().await;
    // The writer waits for both, in either order.
    line.leave(2).await;
    line.nobody().await;
    line.leave(1).await;
    let mut last = readers[1].1;
    for (number, what) in [(3, "w3"), (4, "r4"), (5, "w5")] {
        let (entered, fence) = line.next().await;
        assert_eq!(entered, what);
        assert!(fence > last, "{last:?}, then {fence:?}");
        last = fence;
        line.nobody().await;
        line.leave(number).await;
    }
    line.end().await;
}

#[tokio::test]
async fn permits_are_taken_in_order_also_by_one_who_wants_many() {
    let server = ZooKeeper::start();
    let mut line = Line::at(&server).await;
    line.add("3 a").await;
    assert_eq!(line.next().await, ("3 a", None));
    for what in ["3 b", "1 c", "2 d"] {
        line.add(what).await;
    }
    // The first watches the directory, and each other one the node before it.
    line.watches(3).await;
    line.nobody().await;
    let other = connect(&server.url()).await.semaphore("job", 4);
    assert!(other.try_acquire().await.expect("an answer").is_none(), "one is free, for the first");
    let usage = other.usage().await.expect("an answer");
    assert_eq!((usage.size, usage.free(), usage.holders), (4, 1, 1));
    line.leave(0).await;
    let mut entered = [line.next().await.0, line.next().await.0];
    entered.sort_unstable();
    assert_eq!(entered, ["1 c", "3 b"]);
    line.nobody().await;
    line.leave(1).await;
    assert_eq!(line.next().await.0, "2 d");
    for number in [2, 3] {
        line.leave(number).await;
    }
    line.end().await;
}

#[tokio::test]
async fn release_of_a_permit_wakes_few_waiters() {
    const WAITERS: usize = 10;
    let server = ZooKeeper::start();
    let (relay, look) = (Relay::to_server(server.port(0)), Look::at(&server.hosts()).await);
    let holder = connect(&server.url()).await;
    let permit = holder.semaphore("job", 1).acquire().await.expect("free");
    let (sender, mut entered) = mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        let (leases, sender) = (connect(&relay.url()).await, sender.clone());
        waiters.push(tokio::spawn(async move {
            let permit = leases.semaphore("job", 1).acquire().await.expect("granted in the end");
            sender.send(number).expect("a receiver counts");
            std::future::pending::<()>().await;
            drop(permit);
        }));
        look.until_nodes("job", number + 2).await;
    }
    kit::eventually(LONG, || server.number(0, "zk_watch_count") >= WAITERS as u64).await;
    let before = relay.times_of(LIST).len();
    permit.unlock().await.expect("released");
    assert_eq!(within(LONG, entered.recv()).await, Some(0));
    // The next one has set its watch.
    kit::eventually(LONG, || server.number(0, "zk_watch_count") >= WAITERS as u64 - 1).await;
    tokio::time::sleep(T / 4).await;
    let lists = relay.times_of(LIST).len() - before;
    assert!((1..WAITERS).contains(&lists), "{lists} lists by {WAITERS} waiters");
    waiters.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn downgrade_keeps_the_place_and_lets_only_readers_in() {
    let server = ZooKeeper::start();
    let mut line = Line::at(&server).await;
    let edit = connect(&server.url()).await.rw_lock("job").write().await.expect("free");
    line.add("r0").await;
    line.add("w1").await;
    line.add("r2").await;
    let (fence, mut before) = (edit.fence(), line.look.nodes("job").await);
    let page = edit.downgrade().await.expect("a reader");
    let (beside, joined) = line.next().await;
    assert_eq!((beside, page.fence()), ("r0", fence), "a writer that reads keeps its token");
    assert!(joined > fence);
    line.nobody().await;
    let mut after = line.look.nodes("job").await;
    let number = |name: &String| name.rsplit_once('~').expect("numbered").1.to_owned();
    before.sort_by_key(number);
    after.sort_by_key(number);
    assert_eq!(
        before.iter().map(number).collect::<Vec<_>>(),
        after.iter().map(number).collect::<Vec<_>>()
    );
    assert!(before[0].starts_with("x~") && after[0].starts_with('r'), "{before:?}, {after:?}");
    page.check().expect("held");
    page.unlock().await.expect("released");
    line.nobody().await;
    line.leave(0).await;
    let (what, writer) = line.next().await;
    assert_eq!(what, "w1");
    assert!(writer > fence);
    line.leave(1).await;
    let (what, reader) = line.next().await;
    assert_eq!(what, "r2");
    assert!(reader > writer);
    line.leave(2).await;
    line.end().await;
}

#[tokio::test]
async fn upgrade_is_for_a_reader_that_is_alone_in_the_queue() {
    let server = ZooKeeper::start();
    let mut line = Line::at(&server).await;
    let page = connect(&server.url()).await.rw_lock("job").read().await.expect("free");
    line.add("r0").await;
    let (beside, fence) = line.next().await;
    assert!(beside == "r0" && fence > page.fence());
    let Upgraded::Read(page) = page.try_upgrade().await.expect("an answer") else {
        panic!("another reads");
    };
    line.leave(0).await;
    line.look.until_nodes("job", 1).await;
    line.add("w1").await;
    let Upgraded::Read(page) = page.try_upgrade().await.expect("an answer") else {
        panic!("another waits to write");
    };
    page.unlock().await.expect("released");
    line.next().await;
    line.leave(1).await;
    line.look.until_nodes("job", 0).await;
    let page = connect(&server.url()).await.rw_lock("job").read().await.expect("free");
    let fence = page.fence();
    let Upgraded::Write(edit) = page.try_upgrade().await.expect("an answer") else {
        panic!("it is alone");
    };
    assert!(edit.fence() > fence);
    line.add("r2").await;
    line.nobody().await;
    // It is renewed as any other.
    tokio::time::sleep(T * 3).await;
    edit.check().expect("held");
    let page = edit.downgrade().await.expect("a reader");
    let (beside, fence) = line.next().await;
    assert!(beside == "r2" && fence > page.fence());
    page.unlock().await.expect("released");
    line.leave(2).await;
    line.end().await;
}

/// The nodes of a process that is cut off, frozen or dead go with its session.
#[tokio::test]
async fn session_that_ends_loses_its_leases_and_no_other() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let look = Look::at(&server.hosts()).await;
    let connect = |url: String| async move {
        let builder = LeaseManager::builder().ttl(T).max_poll_interval(LONG * 3);
        connect_in_the_end(builder, &url).await
    };
    let (cut, well) = (connect(relay.url()).await, connect(server.url()).await);
    let lost = cut.rw_lock("read").read().await.expect("free");
    let kept = well.rw_lock("read").read().await.expect("beside it");
    let written = cut.rw_lock("written").write().await.expect("free");
    let pool = well.semaphore("pool", 3);
    let permit = pool.acquire().await.expect("free");
    let two = cut.semaphore("pool", 3).acquire_many(2).await.expect("free");
    let mut writer = well.rw_lock("written");
    let writing = tokio::spawn(async move { writer.write().await });
    let taking = tokio::spawn(async move { pool.acquire_many(2).await });
    look.until_nodes("written", 2).await;
    look.until_nodes("pool", 3).await;
    relay.set(Traffic::Hold);
    let next = within(LONG, writing).await.expect("it runs").expect("in the end");
    let more = within(LONG, taking).await.expect("it runs").expect("in the end");
    look.until_nodes("read", 1).await;
    for gone in [&*lost, &*written, &*two] {
        // The token has fired before the next holder was let in.
        assert!(gone.check().is_err());
        assert_eq!(within(LONG, gone.lost()).await, Loss::Expired);
    }
    for held in [&*kept, &*permit, &*next, &*more] {
        held.check().expect("held");
    }
    relay.set(Traffic::Pass);
    for lease in [&*kept, &*permit, &*next, &*more] {
        assert!(lease.remaining() > Duration::ZERO);
    }
}

#[tokio::test]
async fn waits_that_are_dropped_leave_no_node() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let look = Look::at(&server.hosts()).await;
    let (holder, leases) = (connect(&server.url()).await, connect(&relay.url()).await);
    let edit = holder.rw_lock("job").write().await.expect("free");
    let permits = holder.semaphore("pool", 2).acquire_many(2).await.expect("free");
    let pool = leases.semaphore("pool", 2);
    for round in 0..40 {
        let limit = Duration::from_micros(250 * round);
        let mut lock = leases.rw_lock("job");
        assert!(tokio::time::timeout(limit, lock.read()).await.is_err());
        assert!(tokio::time::timeout(limit, lock.write()).await.is_err());
        assert!(tokio::time::timeout(limit, pool.acquire()).await.is_err());
    }
    for name in ["job", "pool"] {
        look.until_nodes(name, 1).await;
    }
    // Also when nothing passes at that moment: all of it is sent later.
    let mut lock = leases.rw_lock("job");
    relay.set(Traffic::Hold);
    assert!(tokio::time::timeout(T / 10, lock.read()).await.is_err());
    assert!(tokio::time::timeout(T / 10, pool.acquire()).await.is_err());
    relay.set(Traffic::Pass);
    edit.unlock().await.expect("released");
    permits.unlock().await.expect("released");
    for name in ["job", "pool"] {
        look.until_nodes(name, 0).await;
    }
    // The name is free, so these are granted, or dropped halfway.
    let _other = holder.rw_lock("job").read().await.expect("free");
    for round in 0..20 {
        let limit = Duration::from_micros(100 * round);
        drop(tokio::time::timeout(limit, lock.read()).await);
        drop(tokio::time::timeout(limit, pool.acquire()).await);
    }
    look.until_nodes("job", 1).await;
    look.until_nodes("pool", 0).await;
}

#[tokio::test]
async fn semaphore_has_one_size_until_it_is_forced_open() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let (here, there) = (connect(&server.url()).await, connect(&server.url()).await);
    let permit = here.semaphore("pool", 3).acquire().await.expect("free");
    let other = there.semaphore("pool", 4);
    let refused = async || {
        let error = other.try_acquire().await.expect_err("another size");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let text = error.to_string();
        assert!(text.contains("3 permits") && text.contains("use one size"), "{text}");
    };
    refused().await;
    permit.unlock().await.expect("released");
    refused().await;
    let (data, _) = look.0.get_data(&directory("pool")).await.expect("the directory");
    assert_eq!(data, b"permits 3");
    there.force_unlock("pool", "test").await.expect("an answer");
    let _permit = other.try_acquire().await.expect("an answer").expect("free");
    let usage = here.semaphore("pool", 4).usage().await.expect("an answer");
    assert_eq!((usage.size, usage.free()), (4, 3));
    let holders = here.holders("pool").await.expect("an answer");
    assert_eq!(holders.len(), 1);
    assert!(there.force_unlock("pool", "test").await.expect("an answer"));
    look.until_nodes("pool", 0).await;
}

#[tokio::test]
async fn lost_answers_leave_one_node_of_each_kind() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let (leases, look) = (connect(&relay.url()).await, Look::at(&server.hosts()).await);
    for (number, kind) in
        [request::CREATE, LIST, request::CREATE, request::CREATE].into_iter().enumerate()
    {
        drop(leases.rw_lock("job").read().await.expect("free").unlock().await);
        drop(leases.semaphore("pool", 2).acquire().await.expect("free").unlock().await);
        relay.lose_reply_of(kind);
        if number % 2 == 0 {
            let page = within(LONG, leases.rw_lock("job").read()).await.expect("in the end");
            assert_eq!(look.nodes("job").await.len(), 1);
            page.unlock().await.expect("released");
        } else {
            let permit = within(LONG, leases.semaphore("pool", 2).acquire()).await;
            assert_eq!(look.nodes("pool").await.len(), 1);
            permit.expect("in the end").unlock().await.expect("released");
        }
        assert_eq!(relay.lost(), number + 1);
        look.until_nodes("job", 0).await;
        look.until_nodes("pool", 0).await;
    }
}
