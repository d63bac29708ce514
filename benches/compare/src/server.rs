//! A redis-server of our own, and what it counts.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Ends when dropped, also by a panic.
pub struct Server {
    child: Child,
    port: u16,
    /// Whether it is a cluster of one node.
    is_cluster: bool,
    control: Mutex<redis::Connection>,
    dir: TempDir,
}

impl Server {
    /// Call it on the main thread: `setpriv` ties the server to the life of the thread that starts it.
    pub fn start() -> Result<Self, String> {
        Self::start_as(false)
    }

    /// The same as a cluster of one node, which has all slots.
    pub fn start_cluster() -> Result<Self, String> {
        let server = Self::start_as(true)?;
        let _: () = server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        let limit = Instant::now() + Duration::from_secs(10);
        while !server.command::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {
            if Instant::now() > limit {
                return Err("a cluster of one node does not come up".to_owned());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    fn start_as(is_cluster: bool) -> Result<Self, String> {
        let dir = tempfile::Builder::new()
            .prefix("leasehold-compare-")
            .tempdir()
            .map_err(|error| format!("no temporary directory: {error}"))?;
        let mut last = String::new();
        for _ in 0..5 {
            let port = free_port()?;
            let mut child = launch(port, is_cluster, &dir)?;
            match answers(port, &mut child) {
                Ok(control) => {
                    let control = Mutex::new(control);
                    return Ok(Self { child, port, is_cluster, control, dir });
                }
                // Somebody else may have taken the port meanwhile.
                Err(text) => last = text,
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        Err(format!("redis-server does not come up: {last}"))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        let scheme = if self.is_cluster { "redis-cluster" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// For the files of worker processes.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        let mut control = self.control.lock().expect("no panic while it was held");
        command.query(&mut control).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Tells clients about every change of a key, which some peers need and all pay for.
    pub fn keyspace_events(&self, on: bool) {
        let classes = if on { "KA" } else { "" };
        let _: () = self.command(&["CONFIG", "SET", "notify-keyspace-events", classes]);
    }

    pub fn calls(&self) -> Calls {
        let text: String = self.command(&["INFO", "commandstats"]);
        let line = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let (count, rest) = rest.split_once(",usec=")?;
            let micros = rest.split(',').next()?.parse().ok()?;
            Some((name.to_owned(), Call { count: count.parse().ok()?, micros }))
        };
        Calls(text.lines().filter_map(line).collect())
    }

    /// User and system time of the server.
    pub fn cpu(&self) -> Duration {
        let text: String = self.command(&["INFO", "cpu"]);
        let part = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or_default()
        };
        Duration::from_secs_f64(part("used_cpu_user:") + part("used_cpu_sys:"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often each command has run, by clients or inside scripts, and for how long in all.
pub struct Calls(BTreeMap<String, Call>);

#[derive(Clone, Copy, Default)]
struct Call {
    count: u64,
    micros: u64,
}

/// What connecting and looking on cost, which is nobody's work.
const NOT_COUNTED: [&str; 10] = [
    "info", "config", "client", "hello", "auth", "ping", "select", "script", "command", "flushall",
];

impl Calls {
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |name: &String| earlier.0.get(name).copied().unwrap_or_default();
        let name = |text: &str| text.split('|').next().unwrap_or_default().to_owned();
        let counted = self.0.iter().filter(|(text, _)| !NOT_COUNTED.contains(&name(text).as_str()));
        let more = |(name, call): (&String, &Call)| {
            let before = before(name);
            let (count, micros) = (call.count - before.count, call.micros - before.micros);
            (name.clone(), Call { count, micros })
        };
        Self(counted.map(more).collect())
    }

    pub fn total(&self) -> u64 {
        self.0.values().map(|call| call.count).sum()
    }

    pub fn of(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|&name| self.0.get(name)).map(|call| call.count).sum()
    }

    /// The server's time in these commands, in microseconds; that of a script has all that it runs.
    pub fn micros_in(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|&name| self.0.get(name)).map(|call| call.micros).sum()
    }
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|error| format!("no free port: {error}"))?;
    Ok(listener.port())
}

fn launch(port: u16, is_cluster: bool, dir: &TempDir) -> Result<Child, String> {
    let quiet = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    };
    // A benchmark that is killed runs no `drop`; where setpriv knows how, the kernel ends the server.
    let mut probe = Command::new("setpriv");
    quiet(probe.args(["--pdeathsig", "KILL", "true"]));
    let mut command = if probe.status().is_ok_and(|status| status.success()) {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "redis-server"]);
        command
    } else {
        Command::new("redis-server")
    };
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(dir.path());
    if is_cluster {
        command.args(["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"]);
    }
    quiet(&mut command);
    command.spawn().map_err(|error| format!("cannot start redis-server: {error}"))
}

fn answers(port: u16, child: &mut Child) -> Result<redis::Connection, String> {
    let client = redis::Client::open(("127.0.0.1", port)).map_err(|error| error.to_string())?;
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("it ended at once, {status}"));
        }
        match client.get_connection() {
            Ok(connection) => return Ok(connection),
            Err(error) if Instant::now() > limit => return Err(error.to_string()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Err: what to install.
pub fn require_tools() -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for (tool, package) in [("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")] {
        if !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()) {
            return Err(format!(
                "{tool} is not in PATH; it comes with Redis 7.0 or later: apt-get install {package}"
            ));
        }
    }
    Ok(())
}
