//! Three processes elect a leader. The leader is killed, and the next one takes over.
//!
//! ```sh
//! cargo run --example leader_election                      # starts a redis-server of its own
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example leader_election
//! REDIS_URL=redis://a,redis://b,redis://c cargo run --example leader_election
//! LEASES_URL=zookeeper://127.0.0.1:2181 cargo run --features zookeeper --example leader_election
//! ```
//!
//! To lead is to hold a lease. The leader works until the lease is lost, then stands again; the other candidates
//! wait in `lock`. A killed leader releases nothing, so the next one leads when the lease has expired.

use leasehold::{ErrorKind, Lease, LeaseManager};
use std::error::Error;
use std::net::TcpListener;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{sleep, timeout};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const NAME: &str = "leasehold-example:leader";
const CANDIDATES: usize = 3;
/// How often the leader is killed.
const TERMS: usize = 2;

/// Returns the TTL: how long the others wait after a crash. Few ZooKeeper servers allow less than four seconds.
fn ttl(url: &str) -> Duration {
    Duration::from_secs(if url.starts_with("zookeeper:") { 4 } else { 2 })
}

async fn connect(url: &str) -> Result<LeaseManager> {
    let start = Instant::now();
    loop {
        match LeaseManager::builder().ttl(ttl(url)).connect(url).await {
            Ok(leases) => return Ok(leases),
            // A server that was just started may need a moment.
            Err(error) if start.elapsed() > Duration::from_secs(10) => return Err(error.into()),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Runs one process: stands for election again and again, until it is killed.
async fn candidate(url: &str) -> Result {
    let leases = connect(url).await?;
    let mut lock = leases.lock(NAME);
    loop {
        let lease = match lock.lock().await {
            Ok(lease) => lease,
            // The store cannot be reached: stand again.
            Err(error) if error.kind() == ErrorKind::Unavailable => continue,
            Err(error) => return Err(error.into()),
        };
        match lease.run(lead(&lease)).await {
            Ok(never) => match never {},
            Err(lost) => println!("deposed: {lost}"),
        }
    }
}

/// Does the leader's work, which need not know how it came to lead. Every write carries the fencing token, where the
/// store has one.
async fn lead(lease: &Lease) -> std::convert::Infallible {
    println!("leads {}", lease.fence().unwrap_or(0));
    loop {
        sleep(Duration::from_millis(100)).await;
    }
}

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(url: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["candidate", url])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        Ok(Self { child, lines: BufReader::new(output).lines() })
    }
}

/// Returns the next process to lead, and its fencing token.
async fn next_leader(processes: &mut [Process]) -> Result<(usize, u64)> {
    loop {
        for (index, process) in processes.iter_mut().enumerate() {
            // Reading a line is cancel-safe.
            let Ok(line) = timeout(Duration::from_millis(10), process.lines.next_line()).await
            else {
                continue;
            };
            let line = line?.ok_or("a candidate ended by itself")?;
            match line.strip_prefix("leads ") {
                Some(fence) => return Ok((index, fence.parse()?)),
                None => println!("process {}: {line}", process.child.id().unwrap_or(0)),
            }
        }
    }
}

async fn elections(url: &str) -> Result {
    let mut processes = Vec::new();
    for _ in 0..CANDIDATES {
        processes.push(Process::start(url)?);
    }
    let (mut killed, mut last) = (None::<Instant>, 0);
    for term in 0..=TERMS {
        let limit = ttl(url) + Duration::from_secs(20);
        let elected = timeout(limit, next_leader(&mut processes)).await;
        let (leader, fence) = elected.map_err(|_| "no process leads")??;
        let id = processes[leader].child.id().unwrap_or(0);
        match killed {
            None => println!("process {id} leads, fencing token {fence}"),
            Some(at) => println!(
                "process {id} leads, fencing token {fence}, {:.1?} after the last was killed",
                at.elapsed()
            ),
        }
        // A quorum of servers has none, and prints 0.
        if fence != 0 && fence <= last {
            return Err(format!("fencing token {fence} does not grow from {last}").into());
        }
        last = fence;
        sleep(Duration::from_millis(500)).await;
        if term < TERMS {
            let mut leader = processes.swap_remove(leader);
            leader.child.kill().await?;
            killed = Some(Instant::now());
            println!("process {id} is killed");
            processes.push(Process::start(url)?);
        }
    }
    Ok(())
}

async fn run() -> Result {
    let mut arguments = std::env::args().skip(1);
    if let (Some("candidate"), Some(url)) = (arguments.next().as_deref(), arguments.next()) {
        return candidate(&url).await;
    }
    if let Ok(url) = std::env::var("LEASES_URL").or_else(|_| std::env::var("REDIS_URL")) {
        if url == "memory:" {
            return Err("memory: works within one process; these are three".into());
        }
        return elections(&url).await;
    }
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let _server = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("redis-server cannot be started: {error}"))?;
    elections(&format!("redis://127.0.0.1:{port}")).await
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leader_election: {error}");
            ExitCode::FAILURE
        }
    }
}
