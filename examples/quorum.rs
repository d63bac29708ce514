//! Work that goes on while two of five servers die.
//!
//! ```sh
//! cargo run --example quorum                       # starts five servers of its own and kills two of them
//! REDIS_URL=redis://a:6379,redis://b:6379,redis://c:6379 cargo run --example quorum    # kills none of them
//! ```
//!
//! Four workers take turns under one lock that a majority of the servers keeps, and beside them one lease
//! is held from the beginning to the end.

use leasehold::{Lease, LeaseManager, LeaseState};
use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const TTL: Duration = Duration::from_secs(2);
const WORKERS: u32 = 4;

/// Runs a server that ends with this program.
struct Server {
    process: Child,
    url: String,
    _dir: TempDir,
}

impl Server {
    fn start() -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let dir = tempfile::tempdir()?;
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("redis-server cannot be started: {error}"))?;
        Ok(Self { process, url: format!("redis://127.0.0.1:{port}"), _dir: dir })
    }

    fn kill(&mut self) {
        // It may have ended before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn connect(urls: &str) -> Result<LeaseManager> {
    let start = Instant::now();
    loop {
        match LeaseManager::builder().ttl(TTL).connect(urls).await {
            Ok(leases) => return Ok(leases),
            // Servers that were just started may need a moment.
            Err(error) if start.elapsed() > Duration::from_secs(10) => return Err(error.into()),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Waits until the servers count: each must have been up for the TTL, because it could have forgotten a lock.
async fn lock_when_old_enough(leases: &LeaseManager, name: &str) -> Result<Lease> {
    let start = Instant::now();
    loop {
        match leases.lock(name).lock().await {
            Ok(lease) => return Ok(lease),
            Err(error) if start.elapsed() > 5 * TTL => return Err(error.into()),
            Err(_) => {}
        }
    }
}

/// The resource that the lock protects.
#[derive(Default)]
struct Desk {
    inside: AtomicU32,
    turns: AtomicU32,
    overlaps: AtomicU32,
    closed: AtomicBool,
}

async fn work(leases: LeaseManager, desk: Arc<Desk>) -> Result<u32> {
    let mut turns = 0;
    while !desk.closed.load(Relaxed) {
        let lease = leases.lock("leasehold-example:desk").lock().await?;
        let others = desk.inside.fetch_add(1, Relaxed);
        desk.overlaps.fetch_add(others, Relaxed);
        sleep(Duration::from_millis(2)).await;
        desk.inside.fetch_sub(1, Relaxed);
        desk.turns.fetch_add(1, Relaxed);
        turns += 1;
        lease.unlock().await?;
    }
    Ok(turns)
}

async fn run() -> Result {
    let given = std::env::var("REDIS_URL").ok();
    if given.as_deref() == Some("memory:") {
        return Err("memory: is a store for each manager; these are five managers".into());
    }
    let mut servers = Vec::new();
    if given.is_none() {
        for _ in 0..5 {
            servers.push(Server::start()?);
        }
    }
    let urls: Vec<&str> = servers.iter().map(|server| server.url.as_str()).collect();
    let urls = given.unwrap_or(urls.join(","));

    let steady = connect(&urls).await?;
    let lease = lock_when_old_enough(&steady, "leasehold-example:steady").await?;
    println!(
        "One lease is held, and {WORKERS} workers, each with a manager of its own, take turns"
    );

    let desk = Arc::new(Desk::default());
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(connect(&urls).await?, Arc::clone(&desk)));
    }
    for number in 1..=2 {
        sleep(TTL).await;
        let before = desk.turns.load(Relaxed);
        if let Some(server) = servers.get_mut(number) {
            server.kill();
            println!("  after {before} turns: server {number} is killed");
        }
        // When several want a majority at once and none gets it, one does within two times T.
        let (killed, after) = (Instant::now(), desk.turns.load(Relaxed));
        // Beyond the turns that were under way.
        while desk.turns.load(Relaxed) <= after + WORKERS {
            if killed.elapsed() > 2 * TTL {
                return Err("the work stands still".into());
            }
            sleep(TTL / 100).await;
        }
    }
    sleep(TTL / 2).await;
    desk.closed.store(true, Relaxed);
    let mut turns = Vec::new();
    while let Some(worker) = workers.join_next().await {
        turns.push(worker??);
    }
    println!("  in the end: turns of the workers {turns:?}");
    if desk.overlaps.load(Relaxed) > 0 {
        return Err("two workers were inside at once".into());
    }
    lease.check()?;
    println!(
        "  the steady lease is {:?}, and lasts for {:.1?} without a renewal",
        lease.state(),
        lease.remaining()
    );
    if lease.state() != LeaseState::Held {
        return Err("the steady lease was not renewed".into());
    }
    lease.unlock().await?;
    println!("No two workers were inside at once, and no lease was lost");
    Ok(())
}

/// Waits for SIGTERM, ctrl-C or the end of the terminal, so that the servers end with this program then, too.
async fn stopped() -> Result {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Err("stopped by a signal".into())
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = tokio::select! {
        done = run() => done,
        stopped = stopped() => stopped,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quorum: {error}");
            ExitCode::FAILURE
        }
    }
}
