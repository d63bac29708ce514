//! A log that stalls or panics costs only its lines. One subscriber serves this whole process, as in
//! a service, so these tests run one after the other.

use kit::{Mode, Proxy, Server, eventually, lock};
use leasehold::store::MemoryStore;
use leasehold::testing::{Call, Fault, FaultyStore, Rule};
use leasehold::{Error, ErrorKind, Lease, LeaseManager, LeaseState, Loss};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::Duration;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

const LONG: Duration = Duration::from_secs(60);
const T: Duration = Duration::from_secs(3);

/// Where the lines go.
#[derive(Default)]
struct Log {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Default)]
struct State {
    stalled: bool,
    /// A line waits for the end of the stall.
    stuck: bool,
    /// It panics at lines with this in them.
    panics_at: Option<&'static str>,
    lines: Vec<String>,
}

impl Log {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stuck(&self) -> bool {
        self.state().stuck
    }

    fn go_on(&self) {
        self.state().stalled = false;
        self.opened.notify_all();
    }

    fn count(&self, text: &str) -> usize {
        self.state().lines.iter().filter(|line| line.contains(text)).count()
    }
}

struct Writer(&'static Log);

impl io::Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // After a panic the subscriber's buffer still has what it was about to write.
        let text = String::from_utf8_lossy(line).lines().last().unwrap_or_default().to_owned();
        let mut state = self.0.state();
        while state.stalled {
            state.stuck = true;
            state = self.0.opened.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.stuck = false;
        let panics = state.panics_at.is_some_and(|part| text.contains(part));
        state.lines.push(text);
        drop(state);
        assert!(!panics, "the log was told to panic");
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log of this test alone; it goes on at its end.
struct Alone {
    log: &'static Log,
    _one: MutexGuard<'static, ()>,
}

impl Drop for Alone {
    fn drop(&mut self) {
        *self.log.state() = State::default();
        self.log.go_on();
    }
}

fn alone() -> Alone {
    static ONE: Mutex<()> = Mutex::new(());
    static LOG: OnceLock<Log> = OnceLock::new();
    static INSTALL: Once = Once::new();
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let log = LOG.get_or_init(Log::default);
    INSTALL.call_once(|| {
        let lines = tracing_subscriber::fmt::layer().with_writer(move || Writer(log));
        // The client of Redis logs where it is, that of a test's own runtime too; those lines are not ours to keep away.
        let ours = filter_fn(|line| {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            line.target().starts_with("leasehold")
                || line.target().starts_with("fred") && name.starts_with("leasehold")
        });
        let lines = lines.with_ansi(false).with_filter(ours);
        tracing_subscriber::registry().with(lines).with(LevelFilter::WARN).init();
    });
    Alone { log, _one: one }
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "out of order")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_that_stalls_delays_neither_renewals_nor_tokens() {
    let alone = alone();
    let memory = MemoryStore::new();
    let (store, faults) = FaultyStore::new(memory.clone());
    let here =
        LeaseManager::builder().ttl(T).dedicated_thread(true).build(store).expect("a manager");
    let there = LeaseManager::builder().ttl(T).build(memory).expect("a manager");
    let held = [lock(&here, "a").await, lock(&here, "b").await];
    let tokens = held.each_ref().map(Lease::cancellation_token);
    alone.log.state().stalled = true;
    faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Renew).times(2));
    eventually(LONG, || alone.log.is_stuck()).await;
    // From here on nothing is written.
    eventually(LONG, || held.iter().all(|lease| lease.state() == LeaseState::Held)).await;
    let renewals = faults.calls(Call::Renew);
    faults.until_calls(Call::Renew, renewals + 2).await;
    assert!(held.iter().all(|lease| lease.check().is_ok()));

    faults.add(Rule::new(Fault::Hang).on(Call::Renew));
    for (lease, token) in held.iter().zip(&tokens) {
        let other = lock(&there, lease.name()).await;
        assert!(token.is_cancelled(), "{}", lease.name());
        drop(other);
    }
    assert!(alone.log.is_stuck());
}

/// Two managers on one server, of which the first goes through a proxy.
struct OnRedis {
    _server: Server,
    proxy: Proxy,
    here: LeaseManager,
    there: LeaseManager,
}

impl OnRedis {
    async fn start() -> Self {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let builder = LeaseManager::builder().ttl(T);
        let here = builder.clone().connect(&proxy.url()).await.expect("up");
        let there = builder.connect(&server.url()).await.expect("up");
        Self { _server: server, proxy, here, there }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_log_delays_neither_renewals_nor_tokens_on_redis() {
    let alone = alone();
    let OnRedis { _server, proxy, here, there } = OnRedis::start().await;
    let held = lock(&here, "job").await;
    let token = held.cancellation_token();
    alone.log.state().stalled = true;
    proxy.set(Mode::BlackHole);
    eventually(LONG, || alone.log.is_stuck()).await;
    eventually(LONG, || held.state() == LeaseState::AtRisk).await;
    proxy.set(Mode::Pass);
    eventually(LONG, || held.state() != LeaseState::AtRisk).await;
    held.check().expect("renewed though the log stalls");

    proxy.set(Mode::BlackHole);
    let other = lock(&there, "job").await;
    assert!(token.is_cancelled());
    assert!(alone.log.is_stuck());
    drop(other);
}

/// The client of Redis logs by itself, on the thread that renews.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_the_client_delays_no_renewal() {
    let alone = alone();
    let OnRedis { _server, proxy, here, there } = OnRedis::start().await;
    let held = lock(&here, "job").await;
    alone.log.state().stalled = true;
    // The log reports that as a warning.
    proxy.close_all();
    eventually(LONG, || alone.log.is_stuck()).await;
    let mut other = there.lock("job");
    assert!(other.lock_timeout(2 * T).await.expect("an answer").is_none());
    held.check().expect("renewed though the log stalls");
    assert!(alone.log.is_stuck());
    alone.log.go_on();
    // Under the name that it has in the log elsewhere.
    eventually(LONG, || alone.log.count(" WARN fred::") > 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_that_panics_takes_nothing_with_it() {
    let alone = alone();
    alone.log.state().panics_at = Some("cause=Expired");
    for dedicated_thread in [true, false] {
        let (store, faults) = FaultyStore::new(MemoryStore::new());
        let leases =
            LeaseManager::builder().ttl(Duration::from_secs(1)).dedicated_thread(dedicated_thread);
        let leases = leases.build(store).expect("a manager");
        let lease = lock(&leases, "job").await;
        let token = lease.cancellation_token();
        faults.add(Rule::new(Fault::Hang).on(Call::Renew));
        let lost = alone.log.count("cause=Expired");
        let run = tokio::spawn(async move { lease.run(std::future::pending::<()>()).await });
        let ran = tokio::time::timeout(LONG, run).await.expect("it ends").expect("no panic");
        assert_eq!(ran.expect_err("lost").loss(), Some(Loss::Expired));
        assert!(token.is_cancelled());
        eventually(LONG, || alone.log.count("cause=Expired") > lost).await;
        faults.heal();
        // It goes on, and so does the log.
        let revoked = lock(&leases, "other").await;
        assert!(leases.force_unlock("other", "test").await.expect("an answer"));
        assert_eq!(revoked.check().expect_err("revoked").loss(), Some(Loss::Revoked));
        let reported = if dedicated_thread { 1 } else { 2 };
        eventually(LONG, || alone.log.count("cause=Revoked") == reported).await;
    }
}

/// Ten thousand leases come to risk and are lost: more than the log has room for.
#[tokio::test(start_paused = true)]
async fn log_without_time_counts_what_it_drops_and_delays_no_token() {
    const LEASES: usize = 10_000;
    let alone = alone();
    let (store, faults) = FaultyStore::new(MemoryStore::new());
    let leases = LeaseManager::builder().ttl(T).build(store).expect("a manager");
    let mut held = Vec::new();
    for i in 0..LEASES {
        held.push(lock(&leases, &format!("n:{i}")).await);
    }
    let tokens: Vec<_> = held.iter().map(Lease::cancellation_token).collect();
    alone.log.state().stalled = true;
    faults.add(Rule::new(Fault::Hang).on(Call::Renew));
    // D less the grace, less than the grain of the clock before the store lets go.
    let last = tokio::time::Instant::now() + T - T / 100 - Duration::from_millis(2) - T / 10;
    tokio::time::sleep_until(last + Duration::from_millis(1)).await;
    assert!(tokens.iter().all(|token| token.is_cancelled()));
    assert!(alone.log.is_stuck());
    alone.log.go_on();
    let dropped = || -> usize {
        let state = alone.log.state();
        let reported =
            state.lines.iter().filter_map(|line| line.split_once("lines dropped lines="));
        reported.map(|(_, count)| count.trim().parse::<usize>().expect("a number")).sum()
    };
    let written = || alone.log.count("at risk") + alone.log.count("cause=Expired");
    eventually(LONG, || written() + dropped() >= 2 * LEASES).await;
    assert!(dropped() > 0);
}

/// A service that closes its manager and ends has its last lines.
#[tokio::test]
async fn closing_waits_for_the_log() {
    let alone = alone();
    let leases = LeaseManager::builder().dedicated_thread(true).build(MemoryStore::new());
    let leases = leases.expect("a manager");
    let held = lock(&leases, "job").await;
    alone.log.state().stalled = true;
    let log = alone.log;
    let opening = tokio::spawn(async move {
        eventually(LONG, || log.is_stuck()).await;
        log.go_on();
    });
    let (closed, ()) = tokio::join!(leases.close(), async move {
        held.lost().await;
        drop(held);
    });
    closed.expect("all released");
    assert_eq!(log.count("cause=Closed"), 1);
    opening.await.expect("no panic");
}
