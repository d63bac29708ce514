//! A leader hangs in work that no token can stop. Its process ends before the next leader writes.
//!
//! ```sh
//! cargo run --example hard_stop                      # starts a redis-server of its own
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example hard_stop
//! ```
//!
//! Two processes stand for election. The one that leads first appends to a ledger in a loop that neither awaits nor looks at its
//! token, on the only thread of its runtime. `max_hold` ends its lease after a second. A dropped future would not end the
//! loop: nothing polls it. `on_overrun` ends the process, and only then the other one leads.

use leasehold::{Leadership, LeaseManager, Overrun};
use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const TTL: Duration = Duration::from_secs(2);
/// The exit code of a process that was ended in its work: EX_TEMPFAIL of sysexits.h, so that a supervisor starts it again.
const OVERRUN: i32 = 75;
/// The demonstration fails if it takes longer.
const LIMIT: Duration = Duration::from_secs(30);

/// Kills the process at the end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn connect(url: &str) -> Result<LeaseManager> {
    let start = Instant::now();
    loop {
        let builder = LeaseManager::builder().ttl(TTL).max_hold(Duration::from_secs(1));
        match builder.on_overrun(Overrun::Exit(OVERRUN)).connect(url).await {
            Ok(leases) => return Ok(leases),
            // A server that was just started may need a moment.
            Err(error) if start.elapsed() > Duration::from_secs(10) => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Appends a line to the ledger. One write is one line, also while another process writes.
fn append(ledger: &Path, line: &str) -> Result {
    let mut file = OpenOptions::new().append(true).create(true).open(ledger)?;
    Ok(file.write_all(format!("{line}\n").as_bytes())?)
}

/// Runs a candidate, whose work hangs or is done at once.
async fn candidate(work: &str, url: &str, name: &str, ledger: &Path) -> Result {
    let leases = connect(url).await?;
    let lead = async |_: &Leadership| {
        while append(ledger, work).is_ok() && work == "hangs" {
            sleep(Duration::from_millis(1));
        }
        ControlFlow::Break(())
    };
    leases.election(name).candidate(work).lead(lead).await?;
    Ok(leases.close().await?)
}

fn start(work: &str, url: &str, name: &str, ledger: &Path) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    let child = command.args([work, url, name]).arg(ledger).stdin(Stdio::null()).spawn()?;
    Ok(Process(child))
}

/// Waits until `look` returns a value.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(value) = look() {
            return Ok(value);
        }
        sleep(Duration::from_millis(5));
    }
    Err(format!("{what} did not come within {LIMIT:?}").into())
}

fn demonstrate(url: &str) -> Result {
    let folder = tempfile::tempdir()?;
    let ledger = folder.path().join("ledger");
    let lines = || std::fs::read_to_string(&ledger).unwrap_or_default();
    let name = format!("leasehold-example:hard-stop:{}", std::process::id());
    let mut hanging = start("hangs", url, &name, &ledger)?;
    wait_for("the first leader", || lines().contains("hangs").then_some(()))?;
    println!("a process leads, and its work hangs");
    let _next = start("works", url, &name, &ledger)?;
    let status = wait_for("the end of the first process", || hanging.0.try_wait().ok()?)?;
    println!("it ended with code {:?}; another process leads", status.code());
    wait_for("the next leader", || lines().contains("works").then_some(()))?;
    let lines = lines();
    let entries: Vec<_> = lines.lines().collect();
    let first = entries.iter().position(|entry| *entry == "works").unwrap_or(entries.len());
    println!("{first} entries of the first leader, and none after that of the next one");
    match status.code() == Some(OVERRUN) && !entries[first..].contains(&"hangs") {
        true => Ok(()),
        false => Err("the work of the first leader went on".into()),
    }
}

fn run() -> Result {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [work, url, name, ledger] = &arguments[..] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        return runtime.block_on(candidate(work, url, name, Path::new(ledger)));
    }
    if let Ok(url) = std::env::var("REDIS_URL") {
        return demonstrate(&url);
    }
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let server = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("redis-server cannot be started: {error}"))?;
    let _server = Process(server);
    demonstrate(&format!("redis://127.0.0.1:{port}"))
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hard_stop: {error}");
            ExitCode::FAILURE
        }
    }
}
