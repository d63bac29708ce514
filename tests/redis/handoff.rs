//! Hand-offs in the processes of one name, seen from the server: cheap, fair, and one holder.

use super::{JAVA, lock, millis};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::look::{calls, channel};
use kit::{Pace, Pipe, Reply, Resp, Server, eventually, within};
use leasehold::{Builder, LeaseManager};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(20);

async fn connect(builder: Builder, server: &Server) -> LeaseManager {
    builder.connect(&server.url()).await.expect("a manager")
}

/// What is to be true of all holders of one name, wherever they are.
#[derive(Default)]
struct Room {
    taken: AtomicBool,
    fence: AtomicU64,
    /// How often one was in.
    turns: AtomicUsize,
    /// The most turns of others that one has waited for.
    worst: AtomicUsize,
}

impl Room {
    fn turns(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }

    /// Enters, when there had been so many turns as one asked for it.
    fn enter(&self, fence: Option<u64>, asked: usize) {
        assert!(!self.taken.swap(true, Ordering::SeqCst), "two are in");
        if let Some(fence) = fence {
            let before = self.fence.swap(fence, Ordering::SeqCst);
            assert!(before < fence, "{fence} after {before}");
        }
        let waited = self.turns.fetch_add(1, Ordering::SeqCst) - asked;
        self.worst.fetch_max(waited, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.taken.store(false, Ordering::SeqCst);
    }

    fn worst(&self) -> usize {
        self.worst.load(Ordering::SeqCst)
    }
}

/// Tasks that lock "job" again and again; how often they got it.
struct Callers {
    tasks: JoinSet<()>,
    turns: Arc<AtomicUsize>,
}

impl Callers {
    fn gather(leases: &LeaseManager, room: &Arc<Room>, over: &Arc<AtomicBool>) -> Self {
        let mut callers = Self { tasks: JoinSet::new(), turns: Arc::default() };
        for i in 0..8 {
            let mut lock = leases.lock("job");
            let (room, over) = (Arc::clone(room), Arc::clone(over));
            let turns = Arc::clone(&callers.turns);
            callers.tasks.spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let asked = room.turns();
                    let lease = lock.lock().await.expect("a lease");
                    room.enter(lease.fence(), asked);
                    tokio::task::yield_now().await;
                    lease.check().expect("it is held");
                    room.leave();
                    turns.fetch_add(1, Ordering::Relaxed);
                    if i % 2 == 0 {
                        lease.unlock().await.expect("a release");
                    } else {
                        drop(lease);
                    }
                }
            });
        }
        callers
    }

    async fn turns(mut self) -> usize {
        while let Some(task) = within(LONG, self.tasks.join_next()).await {
            task.expect("no panic");
        }
        self.turns.load(Ordering::Relaxed)
    }
}

/// Looks at the key again and again, and expects one holder with the count 1.
fn watch(mut connection: Resp, over: &Arc<AtomicBool>) -> thread::JoinHandle<usize> {
    let over = Arc::clone(over);
    thread::spawn(move || {
        let mut seen = 0;
        while !over.load(Ordering::Relaxed) {
            let fields = connection.command(&["HGETALL", "job"]).pairs();
            assert!(fields.len() <= 1, "{fields:?}");
            for (_, count) in fields {
                assert_eq!(count, "1");
                seen += 1;
            }
            thread::sleep(millis(1));
        }
        seen
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managers_share_a_name_fairly_and_at_little_cost() {
    let server = Server::start();
    let (here, there) = (
        connect(LeaseManager::builder(), &server).await,
        connect(LeaseManager::builder(), &server).await,
    );
    let mut connection = server.connection();
    connection.command(&["CONFIG", "RESETSTAT"]);
    let (room, over) = (Arc::new(Room::default()), Arc::default());
    let watching = watch(server.connection(), &over);
    let start = Instant::now();
    let both = [&here, &there].map(|leases| Callers::gather(leases, &room, &over));
    tokio::time::sleep(millis(1_500)).await;
    eventually(LONG, || room.turns() > 4_000).await;
    over.store(true, Ordering::Relaxed);
    let [ours, theirs] = both.map(Callers::turns);
    let (ours, theirs) = (ours.await, theirs.await);
    let all = ours + theirs;
    assert!(ours.min(theirs) * 4 >= all, "{ours} and {theirs}");
    let evalsha = calls(&mut connection, "evalsha");
    // A chain of hand-offs lasts 20 ms or more, and costs some calls. A busy machine has few turns in that time.
    let chains = start.elapsed().as_millis() as f64 / 20.0;
    let bound = (all as f64 * 0.1).max(chains * 4.0);
    assert!(
        (evalsha as f64) < bound,
        "{evalsha} calls for {all} turns, in the time of {chains} chains"
    );
    assert!(room.worst() * 2 < all, "one has waited for {} of {all} turns", room.worst());
    let seen = watching.join().expect("one holder at a time");
    assert!(seen > 100, "it was held {seen} times");
    here.close().await.expect("all released");
    there.close().await.expect("all released");
    assert_eq!(server.command(&["EXISTS", "job"]), Reply::Int(0));
}

/// Takes the lock as Redisson does: `nil`, or the holder's time to live.
const TAKE: &str =
    "if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PTTL', KEYS[1]) end
    redis.call('HINCRBY', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], 30000) return nil";
const GIVE: &str = "assert(redis.call('HGET', KEYS[1], ARGV[1]) == '1')
    redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[2], '0') return 1";

/// A rival of another kind: how many releases it waits for with each of its turns, woken by messages as Redisson
/// is, or asking all the time.
fn contender(server: &Server, room: Arc<Room>, listens: bool) -> thread::JoinHandle<Vec<i64>> {
    let (mut connection, mut messages) = (server.connection(), server.connection());
    if listens {
        messages.subscribe(&channel("job"));
    }
    thread::spawn(move || {
        let mut waits = Vec::new();
        for _ in 0..20 {
            let (start, released) = (Instant::now(), calls(&mut connection, "publish"));
            while !connection.command(&["EVAL", TAKE, "1", "job", JAVA]).is_nil() {
                assert!(start.elapsed() < LONG, "it starves");
                if listens {
                    messages.next_message(Duration::from_secs(1));
                }
            }
            room.enter(None, room.turns());
            waits.push(calls(&mut connection, "publish") - released);
            thread::sleep(millis(1));
            room.leave();
            let given = connection.command(&["EVAL", GIVE, "1", "job", JAVA, &channel("job")]);
            assert_eq!(given, Reply::Int(1));
            thread::sleep(millis(10));
        }
        waits
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contender_of_another_kind_gets_its_turn() {
    for listens in [true, false] {
        let server = Server::start();
        let leases = connect(LeaseManager::builder(), &server).await;
        let room = Arc::new(Room::default());
        let contender = contender(&server, Arc::clone(&room), listens);
        let over = Arc::default();
        let callers = Callers::gather(&leases, &room, &over);
        eventually(LONG * 2, || contender.is_finished() && room.turns() > 1_000).await;
        over.store(true, Ordering::Relaxed);
        let (waits, turns) = (contender.join().expect("no panic"), callers.turns().await);
        let worst = waits.iter().max().expect("some");
        assert!(*worst <= 32, "{waits:?} releases in {turns} turns, it listens: {listens}");
    }
}

/// Each waits for longer than a waiter does before it listens, and a renewal takes a round trip.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_listen_are_handed_the_lock_without_a_round_trip() {
    let server = Server::start();
    let pipe = Pipe::start(server.port());
    pipe.set(Pace { latency: millis(10), ..Pace::default() });
    let leases = LeaseManager::connect(&pipe.url()).await.expect("a manager");
    let mut connection = server.connection();
    let before = calls(&mut connection, "evalsha");
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let leases = leases.clone();
        tasks.spawn(async move {
            for _ in 0..20 {
                let lease = lock(&leases, "job").await;
                tokio::time::sleep(millis(55)).await;
                lease.unlock().await.expect("held");
            }
        });
    }
    within(LONG, tasks.join_all()).await;
    let scripts = calls(&mut connection, "evalsha") - before;
    assert!(scripts <= 10, "{scripts} for 40 holders");
}

/// A microsecond for each fencing token, and none that the clock has not reached when the next grant can come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_stay_with_the_servers_clock_and_grow_after_a_flush() {
    let server = Server::start();
    for bound in [127, 9_999] {
        let leases = connect(LeaseManager::builder().max_local_handoffs(bound), &server).await;
        let mut last = 0;
        for round in 0..300 {
            let lease = lock(&leases, "job").await;
            let fence = lease.fence().expect("a fencing token");
            assert!(fence > last, "{fence} after {last}, bound {bound}, round {round}");
            last = fence;
            lease.unlock().await.expect("held");
            if round % 100 == 99 {
                server.command(&["FLUSHALL"]);
            }
        }
        let time = server.command(&["TIME"]).list();
        let [seconds, micros]: [u64; 2] =
            [0, 1].map(|i| time[i].clone().text().parse().expect("a number"));
        assert!(last < seconds * 1_000_000 + micros, "{last} is ahead of the clock, bound {bound}");
        leases.close().await.expect("closed");
    }
}

/// Holders beyond the block that a grant has reserved have fencing tokens too, and chains are no shorter for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chain_is_longer_than_the_fence_block_of_its_grant() {
    // On a busy machine chains are shorter, because they take longer.
    let mut blocks = i64::MAX;
    for _ in 0..3 {
        blocks = blocks.min(blocks_for_a_thousand_holders().await);
        if blocks <= 2 * 1000 / 128 + 2 {
            return;
        }
    }
    panic!("{blocks} grants for 1000 holders");
}

async fn blocks_for_a_thousand_holders() -> i64 {
    let server = Server::start();
    let leases = connect(LeaseManager::builder(), &server).await;
    let room = Arc::new(Room::default());
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let (leases, room) = (leases.clone(), Arc::clone(&room));
        tasks.spawn(async move {
            for _ in 0..100 {
                let lease = lock(&leases, "job").await;
                let asked = room.turns();
                room.enter(lease.fence(), asked);
                // Longer than a fencing token stands for.
                tokio::time::sleep(millis(1)).await;
                room.leave();
                lease.unlock().await.expect("held");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    let blocks = calls(&mut server.connection(), "set");
    leases.close().await.expect("closed");
    blocks
}
