//! `leasehold run`, as its contract has it: `src/guide/cli.md`.

mod codes;
mod environment;
mod outage;
mod release;
mod terminal;
mod tree;
mod waiting;

use std::env;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use kit::{Server, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Far above what any step takes.
const LONG: Duration = Duration::from_secs(30);

/// The time to live of the tests: the shortest that the command takes.
const TTL: &str = "3s";

/// The command with the store in its environment, and no other variable of its own.
fn leasehold(url: &str) -> Command {
    let mut command = crate::program(env!("CARGO_BIN_EXE_leasehold"));
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("LEASEHOLD_") {
            command.env_remove(name);
        }
    }
    command.env("LEASEHOLD_URL", url).stdin(Stdio::null());
    command
}

/// `leasehold run --ttl 3s` with these words.
fn run(url: &str, words: &[&str]) -> Command {
    let mut command = leasehold(url);
    command.args(["run", "--ttl", TTL]).args(words);
    command
}

/// How a command has ended, and what it has printed.
#[derive(Debug)]
struct Ended {
    status: ExitStatus,
    out: String,
    err: String,
}

impl Ended {
    /// The code as a shell reports it.
    fn code(&self) -> i32 {
        self.status.code().or(self.status.signal().map(|signal| 128 + signal)).expect("an end")
    }

    /// Expects this code.
    #[track_caller]
    fn with(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }
}

/// A command under way. Its outputs are files, since a process of its tree could keep a pipe open.
struct Running {
    child: Child,
    folder: TempDir,
}

impl Running {
    /// Starts it in a process group of its own, as a shell with job control does.
    #[track_caller]
    fn start(mut command: Command) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| File::create(folder.path().join(name)).expect("a file");
        command.stdout(file("out")).stderr(file("err")).process_group(0);
        Self { child: command.spawn().expect("the command starts"), folder }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a process to signal");
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.path().join(name)).expect("a file")).into()
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child to wait for").is_some()
    }

    async fn end(mut self) -> Ended {
        eventually(LONG, || self.has_ended()).await;
        let status = self.child.wait().expect("it has ended");
        Ended { status, out: self.text("out"), err: self.text("err") }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its keeper ends what runs under it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end.
async fn ended(command: Command) -> Ended {
    Running::start(command).end().await
}

/// What the file `/proc/PID/NAME` has, in parts that a zero ends. Nothing of a process that is gone, or is a zombie.
fn parts(pid: u32, name: &str) -> Vec<String> {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(format!("/proc/{pid}/{name}")) {
        let _ = file.read_to_end(&mut bytes);
    }
    let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The parent of a process, and its state: `Z` is a zombie.
fn parent(pid: u32) -> Option<(u32, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    let state = words.next()?.to_owned();
    Some((words.next()?.parse().ok()?, state))
}

/// The processes below a process.
fn descendants(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let parents: Vec<(u32, u32)> =
        processes().filter_map(|pid| Some((pid, parent(pid)?.0))).collect();
    let mut next = 0;
    while let Some(&above) = found.get(next) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// The keeper of a run: the process below it that is this command again.
fn keepers(running: &Running) -> Vec<u32> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_leasehold"));
    let is_keeper =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).ok() == Some(program.clone());
    descendants(running.child.id()).into_iter().filter(is_keeper).collect()
}

/// The number of subscribers that wait for a plain lock.
fn waiting(server: &Server, name: &str) -> i64 {
    kit::look::subscribers(&mut server.connection(), &format!("redisson_lock__channel:{{{name}}}"))
}
