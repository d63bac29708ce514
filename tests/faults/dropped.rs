//! Whatever future is dropped, after however many polls, with the server's replies there at once or held on
//! the way, and the name free or held: the next one gets in, and nothing is left.
//!
//! T is 30 s, so that a key that goes was released and did not expire.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use kit::look::{channels, others};
use kit::{Mode, Proxy, Reply, Resp, Server, eventually, lock, millis, within};
use leasehold::LeaseManager;

/// Much less than T.
const SOON: Duration = Duration::from_secs(8);

/// Polls a future some times, with a pause after each, then drops it.
async fn polls<F: Future>(count: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..count {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        // A reply on loopback is there by then, or not: both are of interest.
        tokio::time::sleep(millis(1)).await;
    }
    None
}

/// The holder of the name while another task's future is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Not,
    Elsewhere,
    Here,
}

/// Looks for keys without a time to live, all the time.
struct Sampler {
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<usize>>,
}

impl Sampler {
    fn of(server: &Server) -> Self {
        let script = "local n = 0
            for _, key in ipairs(redis.call('KEYS', '*')) do
              if redis.call('PTTL', key) == -1 then n = n + 1 end
            end
            return n";
        let over = Arc::new(AtomicBool::new(false));
        let (stop, mut connection) = (Arc::clone(&over), server.connection());
        let thread = thread::spawn(move || {
            let mut endless = 0;
            while !stop.load(Ordering::Relaxed) {
                endless += connection.command(&["EVAL", script, "0"]).int() as usize;
                thread::sleep(millis(1));
            }
            endless
        });
        Self { over, thread: Some(thread) }
    }

    fn endless(mut self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("no panic")
    }
}

/// A manager behind a proxy, and another of a process whose way to the server is sound.
struct Setup {
    server: Server,
    proxy: Proxy,
    leases: LeaseManager,
    others: LeaseManager,
    connection: Resp,
}

impl Setup {
    async fn new() -> Self {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let builder = LeaseManager::builder().fencing(false);
        let leases = builder.clone().connect(&proxy.url()).await.expect("a manager");
        let others = builder.connect(&server.url()).await.expect("a manager");
        let connection = server.connection();
        Self { server, proxy, leases, others, connection }
    }

    /// The next one gets in soon, in another process and in this one, where no place in the line is left.
    async fn is_free(&mut self, name: &str, what: &str) {
        for leases in [&self.others, &self.leases] {
            let lease = leases.lock(name).lock_timeout(SOON).await;
            let lease = lease.unwrap_or_else(|error| panic!("{what}: {error:?}"));
            let lease = lease.unwrap_or_else(|| panic!("{what}: it is held still"));
            lease.unlock().await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        }
        let lease = self.leases.lock(name).try_lock().await.expect("an answer");
        lease.unwrap_or_else(|| panic!("{what}: somebody is in line")).unlock().await.expect(what);
        let left = self.connection.command(&["EXISTS", name]).int();
        assert_eq!(left, 0, "{what}");
    }

    /// Nothing is renewed or released anymore, and no task listens but for notes to its manager.
    async fn ends_at_rest(mut self, what: &str) {
        let none = |connection: &mut Resp| {
            let keys = connection.command(&["KEYS", "*"]).list().into_iter().map(Reply::text);
            // What is left is why a lock was forced open.
            keys.filter(|key| !key.starts_with("leasehold_note:")).count() == 0
                && channels(connection).is_empty()
        };
        let connection = &mut self.connection;
        eventually(SOON, || none(connection)).await;
        // After a reconnect every lease that is believed to be held is verified at once.
        let before = others(connection);
        let about = || self.proxy.requests().iter().filter(|text| text.contains(" job:")).count();
        let asked = about();
        self.proxy.close_all();
        eventually(SOON, || others(connection) >= before - 1).await;
        tokio::time::sleep(millis(200)).await;
        assert_eq!(about(), asked, "{what}: somebody asks about it still");
    }
}

/// Drops what `work` does with a name after one poll more each time, until it was faster or, when replies
/// are held, it has been tried often enough.
async fn dropped_at_every_poll(
    what: &str,
    held: Held,
    work: impl AsyncFn(&LeaseManager, &str, Cut<'_>) -> bool,
) {
    let mut setup = Setup::new().await;
    let sampler = Sampler::of(&setup.server);
    for replies_held in [false, true] {
        let (mut faster, mut cut_off) = (0, 0);
        for count in 0..=8 {
            let name = format!("job:{count}:{replies_held}");
            let context = format!("{what}, {held:?}, {count} polls, replies held: {replies_held}");
            let holder = match held {
                Held::Not => None,
                Held::Elsewhere => Some(lock(&setup.others, &name).await),
                Held::Here => Some(lock(&setup.leases, &name).await),
            };
            let cut = Cut { count, proxy: replies_held.then_some(&setup.proxy) };
            let done = within(SOON, work(&setup.leases, &name, cut)).await;
            setup.proxy.set(Mode::Pass);
            if let Some(holder) = holder {
                holder.check().unwrap_or_else(|error| panic!("{context}: {error:?}"));
                holder.unlock().await.unwrap_or_else(|error| panic!("{context}: {error:?}"));
            }
            setup.is_free(&name, &context).await;
            faster += usize::from(done);
            cut_off += usize::from(!done);
            if faster == 2 {
                break;
            }
        }
        assert!(cut_off > 0, "{what}: nothing was dropped");
    }
    assert_eq!(sampler.endless(), 0, "{what}: a key without a time to live was seen");
    setup.ends_at_rest(what).await;
}

/// The same for a name that is free, and one that is held elsewhere or here.
async fn dropped_whoever_holds(
    what: &str,
    work: impl AsyncFn(&LeaseManager, &str, Cut<'_>) -> bool,
) {
    for held in [Held::Not, Held::Elsewhere, Held::Here] {
        dropped_at_every_poll(what, held, &work).await;
    }
}

/// After how many polls to drop, and the proxy that is to hold the replies from then on, if one is.
#[derive(Clone, Copy)]
struct Cut<'a> {
    count: usize,
    proxy: Option<&'a Proxy>,
}

impl Cut<'_> {
    /// Whether the future was faster; what it brought is dropped.
    async fn drops<F: Future>(self, future: F) -> bool {
        if let Some(proxy) = self.proxy {
            proxy.set(Mode::HoldReplies);
        }
        polls(self.count, future).await.is_some()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_lock_leaves_nothing() {
    dropped_whoever_holds("lock", async |leases, name, cut| {
        cut.drops(leases.lock(name).lock()).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_try_lock_leaves_nothing() {
    dropped_whoever_holds("try_lock", async |leases, name, cut| {
        cut.drops(leases.lock(name).try_lock()).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_lock_timeout_leaves_nothing() {
    dropped_whoever_holds("lock_timeout", async |leases, name, cut| {
        cut.drops(leases.lock(name).lock_timeout(millis(3))).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_with_leaves_nothing() {
    dropped_whoever_holds("with", async |leases, name, cut| {
        let mut lock = leases.lock(name);
        let work = lock.with(async |lock, _| {
            let inner = lock.lock().await;
            tokio::task::yield_now().await;
            drop(inner);
        });
        cut.drops(work).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_nested_call_leaves_no_count() {
    for (what, once) in [("nested lock", false), ("nested try_lock", true)] {
        dropped_at_every_poll(what, Held::Not, async |leases, name, cut| {
            let mut lock = leases.lock(name);
            let outer = lock.lock().await.expect("a lease");
            let faster =
                if once { cut.drops(lock.try_lock()).await } else { cut.drops(lock.lock()).await };
            assert_eq!(outer.hold_count(), 1, "{what}");
            outer.check().expect("held");
            if let Some(proxy) = cut.proxy {
                proxy.set(Mode::Pass);
            }
            outer.unlock().await.expect("a release");
            faster
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_unlock_is_done_all_the_same() {
    dropped_at_every_poll("unlock", Held::Not, async |leases, name, cut| {
        cut.drops(lock(leases, name).await.unlock()).await
    })
    .await;
    dropped_at_every_poll("nested unlock", Held::Not, async |leases, name, cut| {
        let mut lock = leases.lock(name);
        let outer = lock.lock().await.expect("a lease");
        let inner = lock.lock().await.expect("a nested lease");
        let faster = cut.drops(inner.unlock()).await;
        assert_eq!(outer.hold_count(), 1);
        faster
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_unlock_with_a_waiter_behind_lets_it_in() {
    dropped_at_every_poll("unlock before a waiter", Held::Not, async |leases, name, cut| {
        let lease = lock(leases, name).await;
        let mut next = leases.lock(name);
        let mut waiting = pin!(next.lock());
        assert!(polls(1, &mut waiting).await.is_none());
        let faster = cut.drops(lease.unlock()).await;
        if let Some(proxy) = cut.proxy {
            proxy.set(Mode::Pass);
        }
        if cut.count > 0 {
            drop(within(SOON, waiting).await.expect("its turn"));
        }
        faster
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_look_or_work_leave_the_lease_alone_when_dropped() {
    dropped_at_every_poll("run", Held::Not, async |leases, name, cut| {
        let lease = lock(leases, name).await;
        let faster = cut.drops(lease.run(tokio::time::sleep(millis(3)))).await;
        lease.check().expect("held");
        faster
    })
    .await;
    dropped_at_every_poll("inspect", Held::Elsewhere, async |leases, name, cut| {
        cut.drops(leases.inspect(name)).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_force_unlock_leaves_no_lease_that_is_believed_in() {
    dropped_at_every_poll("force_unlock", Held::Not, async |leases, name, cut| {
        let lease = lock(leases, name).await;
        let faster = cut.drops(leases.force_unlock(name, "test")).await;
        assert_eq!(lease.check().is_err(), cut.count > 0, "revoked as soon as it was polled");
        faster
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_close_closes_all_the_same() {
    for replies_held in [false, true] {
        for count in 1..=5 {
            let mut setup = Setup::new().await;
            let lease = lock(&setup.leases, "job").await;
            let cut = Cut { count, proxy: replies_held.then_some(&setup.proxy) };
            cut.drops(setup.leases.close()).await;
            assert!(lease.cancellation_token().is_cancelled(), "{count} polls");
            drop(lease);
            setup.proxy.set(Mode::Pass);
            assert!(setup.leases.lock("job").try_lock().await.is_err(), "{count} polls");
            let next = lock(&setup.others, "job");
            within(SOON, next).await.unlock().await.expect("a release");
            drop(setup.leases);
            drop(setup.others);
            let connection = &mut setup.connection;
            eventually(SOON, || others(connection) == 0).await;
            assert!(connection.command(&["KEYS", "*"]).list().is_empty(), "{count} polls");
        }
    }
}
