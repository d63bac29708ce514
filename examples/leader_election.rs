//! Three processes elect a leader. The leader is killed, and the next one takes over.
//!
//! ```sh
//! cargo run --example leader_election                      # starts a redis-server of its own
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example leader_election
//! REDIS_URL=redis://a,redis://b,redis://c cargo run --example leader_election
//! LEASES_URL=zookeeper://127.0.0.1:2181 cargo run --features zookeeper --example leader_election
//! ```
//!
//! The leader numbers the entries of a ledger, each with its term. A candidate that is killed releases nothing, so the next one
//! leads when the lease has expired; one that is asked to stop ends its work, and the next one leads at once. The parent
//! observes the election, and finds the terms in order, both in its view and in the ledger.

use leasehold::{CancellationToken, Leader, Leadership, LeaseManager, View};
use std::error::Error;
use std::io::Write;
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const CANDIDATES: usize = 3;

/// Returns the TTL: how long the others wait after a crash. ZooKeeper's default settings allow no less than six seconds.
fn ttl(url: &str) -> Duration {
    Duration::from_secs(if url.starts_with("zookeeper:") { 6 } else { 2 })
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

/// Runs one process: stands for election until it is killed, or until its input ends.
async fn candidate(url: &str, name: &str, ledger: &str) -> Result {
    let leases = connect(url).await?;
    let stop = CancellationToken::new();
    let asked = stop.clone();
    tokio::spawn(async move {
        // The parent closes the input.
        let _ = BufReader::new(tokio::io::stdin()).lines().next_line().await;
        asked.cancel();
    });
    leases
        .election(name)
        .candidate(std::process::id().to_string())
        .until(stop)
        .graceful(Duration::from_secs(1))
        .lead(async |me| lead(me, ledger).await)
        .await?;
    println!("stops");
    Ok(leases.close().await?)
}

/// Does the leader's work: appends to the ledger until it is to stop. It is dropped when the leadership is lost.
async fn lead(me: &Leadership, ledger: &str) -> ControlFlow<()> {
    let stop = me.retiring();
    // A store without fencing tokens has no terms, and writes 0.
    let (term, pid) = (me.term().unwrap_or(0), std::process::id());
    while !stop.is_cancelled() {
        // One write is one line, also while another process writes. A database would refuse a term that is not the newest.
        let entry = format!("{term} {pid}\n");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(ledger);
        if file.and_then(|mut file| file.write_all(entry.as_bytes())).is_err() {
            return ControlFlow::Break(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    ControlFlow::Continue(())
}

fn start(url: &str, name: &str, ledger: &Path) -> Result<Child> {
    let candidate = Command::new(std::env::current_exe()?)
        .args(["candidate", url, name])
        .arg(ledger)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok(candidate)
}

/// Waits until the view shows a leader other than `last`, by its value.
async fn next_leader(view: &mut View, last: Option<&str>) -> Result<Leader> {
    let next = async {
        loop {
            let leader = view.current();
            if leader.value.is_some() && leader.value.as_deref() != last {
                return leader;
            }
            view.changed().await;
        }
    };
    let next = timeout(Duration::from_secs(30), next).await;
    next.map_err(|_| "no process leads; is the server there?".into())
}

async fn elections(url: &str) -> Result {
    let folder = tempfile::tempdir()?;
    let ledger = folder.path().join("ledger");
    let leases = connect(url).await?;
    // The leader that this leaves behind keeps its name for a TTL. The next run has another one.
    let name = &format!("leasehold-example:leader:{}", std::process::id());
    let mut view = leases.election(name).observe();
    let mut candidates = Vec::new();
    for _ in 0..CANDIDATES {
        candidates.push(start(url, name, &ledger)?);
    }
    let mut leader = next_leader(&mut view, None).await?;
    let mut terms = vec![leader.term.unwrap_or(0)];
    for killed in [true, false, true] {
        let value = leader.value.clone().unwrap_or_default();
        println!("process {value} leads in term {}", terms.last().unwrap_or(&0));
        sleep(Duration::from_millis(300)).await;
        let at = candidates
            .iter()
            .position(|child| child.id().map(|id| id.to_string()) == Some(value.clone()));
        let mut child = candidates.swap_remove(at.ok_or("another one leads")?);
        let start_of_end = Instant::now();
        if killed {
            child.kill().await?;
        } else {
            drop(child.stdin.take());
        }
        leader = next_leader(&mut view, Some(&value)).await?;
        let how = if killed { "killed" } else { "asked to stop" };
        println!(
            "process {value} was {how}; the next one leads {:.1?} later",
            start_of_end.elapsed()
        );
        if killed && start_of_end.elapsed() > ttl(url) * 2 {
            return Err("the next leader was late".into());
        }
        terms.push(leader.term.unwrap_or(0));
        if !killed && !child.wait().await?.success() {
            return Err("a process that was asked to stop failed".into());
        }
        candidates.push(start(url, name, &ledger)?);
    }
    sleep(Duration::from_millis(300)).await;
    let text = std::fs::read_to_string(&ledger)?;
    let written: Vec<u64> =
        text.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
    println!("{} entries in the ledger, by terms {terms:?}", written.len());
    let grow = |terms: &[u64]| terms.is_sorted();
    if !grow(&terms) || !grow(&written) || !terms.iter().all(|term| written.contains(term)) {
        return Err("the terms are not in order".into());
    }
    Ok(())
}

/// Waits for SIGTERM, ctrl-C or the end of the terminal, so that the server and the candidates end with this program then,
/// too.
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

async fn run() -> Result {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("candidate")
        && let (Some(url), Some(name), Some(ledger)) =
            (arguments.next(), arguments.next(), arguments.next())
    {
        return candidate(&url, &name, &ledger).await;
    }
    tokio::select! {
        done = demo() => done,
        stopped = stopped() => stopped,
    }
}

async fn demo() -> Result {
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
