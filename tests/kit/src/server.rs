//! A redis-server of the test's own.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

use super::resp::{Reply, Resp};

/// How long a server may take to start answering.
const STARTUP: Duration = Duration::from_secs(10);

/// A redis-server on a free port of 127.0.0.1 and on a unix socket, which keeps nothing on disk;
/// it ends when this value is dropped.
pub struct Server {
    port: u16,
    options: Vec<String>,
    variables: Vec<(String, PathBuf)>,
    /// The first text of its configuration file, which makes it a sentinel.
    sentinel: Option<String>,
    dir: TempDir,
    /// None while the server is killed.
    process: Mutex<Option<Process>>,
}

struct Process {
    child: Child,
    paused: bool,
}

/// Why a server did not come up.
enum Failure {
    /// Another process has the port.
    PortTaken,
    Other(String),
}

impl Server {
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with options of redis-server, such as `&["--maxmemory", "1mb"]`.
    #[track_caller]
    pub fn start_with(options: &[&str]) -> Self {
        Self::start_in(options, &[])
    }

    /// Starts a server with options and with environment variables.
    #[track_caller]
    pub fn start_in(options: &[&str], variables: &[(&str, &Path)]) -> Self {
        Self::start_as(options, variables, None)
    }

    /// Starts a sentinel, which keeps what it learns in its configuration.
    #[track_caller]
    pub fn start_sentinel(config: &str) -> Self {
        Self::start_as(&[], &[], Some(config.to_owned()))
    }

    #[track_caller]
    fn start_as(options: &[&str], variables: &[(&str, &Path)], sentinel: Option<String>) -> Self {
        require_redis();
        let variables = variables.iter().map(|(name, path)| (name.to_string(), path.to_path_buf()));
        let dir = tempfile::Builder::new()
            .prefix("leasehold-")
            .tempdir()
            .expect("a temporary directory for the server");
        crate::janitor::remove_in_the_end(dir.path());
        let mut server = Self {
            port: 0,
            options: options.iter().map(|option| option.to_string()).collect(),
            variables: variables.collect(),
            sentinel,
            dir,
            process: Mutex::new(None),
        };
        // Another process can take a port between the look at it and the server's bind.
        for _ in 0..20 {
            server.port = free_port();
            server.choose_bus_port();
            match server.launch() {
                Ok(()) => return server,
                Err(Failure::PortTaken) => {}
                Err(Failure::Other(text)) => panic!("{text}"),
            }
        }
        panic!("redis-server lost the race for a port 20 times:\n{}", server.log());
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Chooses the port at which a node of a cluster hears the others.
    fn choose_bus_port(&mut self) {
        if let Some(at) = self.options.iter().position(|option| option == "--cluster-port") {
            self.options[at + 1] = free_port().to_string();
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The URL that logs in as a user and selects a database; the words go in as they are.
    pub fn url_as(&self, user: &str, password: &str, db: u8) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}/{db}", self.port)
    }

    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Runs one command over a connection of its own; panics if no reply arrives.
    ///
    /// The server may list that connection among its clients a moment longer; a test that
    /// counts them keeps a [`connection`](Self::connection).
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> Reply {
        self.connection().command(words)
    }

    /// A new connection, logged in if the server was started with `--requirepass`.
    #[track_caller]
    pub fn connection(&self) -> Resp {
        let mut connection = Resp::connect(self.port);
        let mut options = self.options.iter();
        if options.any(|option| option == "--requirepass")
            && let Some(password) = options.next()
        {
            connection.command(&["AUTH", password]);
        }
        connection
    }

    /// Closes the connections of all clients.
    pub fn kill_clients(&self) {
        let mut connection = self.connection();
        connection.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        connection.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }

    /// Kills the server at once, as a crash would; with it goes all it held.
    pub fn kill(&self) {
        if let Some(Process { mut child, .. }) = self.process().take() {
            // SIGKILL needs no SIGCONT before it: it ends a stopped process as well.
            child.kill().expect("redis-server can be killed");
            child.wait().expect("redis-server can be waited for");
        }
    }

    /// Gives a killed server that keeps its keys on disk another, empty one.
    pub fn wipe(&self) {
        assert!(self.process().is_none(), "only a killed server can be wiped");
        let file = self.dir.path().join("appendonlydir");
        if file.exists() {
            fs::remove_dir_all(file).expect("a directory of our own");
        }
    }

    /// Starts the server again, empty, on the same port and with the same options; one that
    /// still runs is killed first.
    #[track_caller]
    pub fn restart(&self) {
        self.kill();
        let deadline = Instant::now() + STARTUP;
        loop {
            match self.launch() {
                Ok(()) => return,
                Err(Failure::PortTaken) if Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(Failure::PortTaken) => {
                    panic!("port {} was taken meanwhile:\n{}", self.port, self.log())
                }
                Err(Failure::Other(text)) => panic!("{text}"),
            }
        }
    }

    /// Stops the server from running, with every connection left open; returns once it stands
    /// still.
    pub fn pause(&self) {
        let mut process = self.process();
        let process = process.as_mut().expect("only a running server can be paused");
        if process.paused {
            return;
        }
        let pid = Pid::from_child(&process.child);
        kill_process(pid, Signal::STOP).expect("redis-server can be stopped");
        // The signal takes effect a moment after the call, within which a command could still
        // be served.
        let change =
            waitpid(Some(pid), WaitOptions::UNTRACED).expect("redis-server can be waited for");
        let stopped = change.is_some_and(|(_, status)| status.stopped());
        assert!(stopped, "redis-server ended instead of stopping: {change:?}");
        process.paused = true;
    }

    /// Lets a paused server run on.
    pub fn resume(&self) {
        let mut process = self.process();
        let process = process.as_mut().expect("only a paused server can be resumed");
        let pid = Pid::from_child(&process.child);
        kill_process(pid, Signal::CONT).expect("redis-server can be continued");
        process.paused = false;
    }

    /// What the server has logged so far, over all its restarts.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        // A panic elsewhere must not keep `drop` from ending the server.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("redis.log")
    }

    /// Starts the process on `self.port` and waits until it answers.
    fn launch(&self) -> Result<(), Failure> {
        let logged = self.log().len();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("a log file in the temporary directory");
        let mut command = dying_with_parent("redis-server");
        if let Some(config) = &self.sentinel {
            let path = self.dir.path().join("sentinel.conf");
            if !path.exists() {
                fs::write(&path, config).expect("a configuration in the temporary directory");
            }
            command.arg(path).arg("--sentinel");
        } else {
            command.args(["--save", "", "--appendonly", "no"]);
            command.args(["--enable-debug-command", "yes"]);
        }
        command
            .envs(self.variables.iter().map(|(name, path)| (name, path)))
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .arg("--unixsocket")
            .arg(self.socket())
            .arg("--dir")
            .arg(self.dir.path())
            .args(&self.options)
            .stdin(Stdio::null())
            // Redis logs to its output; what it says before it can log comes to stderr.
            .stdout(log.try_clone().expect("a second handle of the log file"))
            .stderr(log);
        let child = spawn(command)
            .map_err(|error| Failure::Other(format!("cannot start redis-server: {error}")))?;
        *self.process() = Some(Process { child, paused: false });

        let deadline = Instant::now() + STARTUP;
        while !self.answers() {
            let ended = self.process().as_mut().and_then(|process| {
                process.child.try_wait().expect("redis-server can be waited for")
            });
            let problem = match ended {
                Some(status) => format!("redis-server ended at its start ({status})"),
                None if Instant::now() >= deadline => {
                    format!("redis-server did not answer within {STARTUP:?}")
                }
                None => {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                }
            };
            self.kill();
            let log = self.log().split_off(logged);
            return Err(if log.contains("Address already in use") {
                Failure::PortTaken
            } else {
                Failure::Other(format!("{problem}; its log:\n{log}"))
            });
        }
        // Set by tests/servers.
        match env::var("LEASEHOLD_SERVER") {
            Ok(expected) => self.check_is(&expected).map_err(Failure::Other),
            Err(_) => Ok(()),
        }
    }

    /// Checks by its log that the server is of a brand and a major version, such as `Valkey 8`.
    pub fn check_is(&self, expected: &str) -> Result<(), String> {
        let said = format!("{}.", expected.replace(' ', " version="));
        let log = self.log();
        let is = log.contains(&said);
        is.then_some(()).ok_or_else(|| format!("the server is not {expected}; its log:\n{log}"))
    }

    /// Whether the server answers a PING.
    ///
    /// Asked over the unix socket, which is no one else's: on the port, somebody else's server
    /// could answer for ours. Redis serves nothing before it listens on both.
    fn answers(&self) -> bool {
        let ask = || -> io::Result<u8> {
            let mut stream = UnixStream::connect(self.socket())?;
            stream.set_read_timeout(Some(Duration::from_millis(500)))?;
            if self.sentinel.is_some() {
                // It knows no QUIT.
                stream.write_all(b"PING\r\n")?;
                let mut reply = [0];
                return stream.read_exact(&mut reply).map(|()| reply[0]);
            }
            // Waiting for the end, too, leaves no trace of this in CLIENT LIST.
            stream.write_all(b"PING\r\nQUIT\r\n")?;
            let mut replies = Vec::new();
            stream.read_to_end(&mut replies)?;
            Ok(replies.first().copied().unwrap_or_default())
        };
        // "-NOAUTH" is an answer too.
        matches!(ask(), Ok(b'+' | b'-'))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Like `kill`, but silent: a panic here would abort a test that is already failing.
        if let Some(Process { mut child, .. }) = self.process().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn require_redis() {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|dir| dir.join("redis-server").is_file());
    assert!(
        found,
        "these tests need redis-server (7.0 or later) in PATH: \
         `apt-get install redis-server`, or run ./tests/run, which installs it"
    );
}

/// A port nobody listens on, out of a range below the one that systems usually take the local
/// ports of outgoing connections from. A killed server's port thus stays free for its restart,
/// and a client that tries to reconnect meanwhile cannot be given that same port and so end up
/// connected to itself.
pub fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    // Test processes that run side by side start at different places.
    static NEXT: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(process::id().wrapping_mul(7919)));
    for _ in 0..COUNT {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("the range ends below 65536");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST} on");
}

/// A program, wrapped where possible so that it does not outlive a test process that is
/// killed and so runs no `drop`.
///
/// `setpriv` asks the kernel to kill the child when its parent ends, then becomes the program.
/// Not every system has it, and BusyBox has one without this option.
pub fn dying_with_parent(program: &str) -> Command {
    static DIES_WITH_PARENT: LazyLock<bool> = LazyLock::new(|| {
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "true"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    });
    if *DIES_WITH_PARENT {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", program]);
        command
    } else {
        Command::new(program)
    }
}

/// Starts a child from a thread that lives as long as the process.
///
/// To the kernel, the parent that `--pdeathsig` watches is the *thread* that made the child.
/// libtest ends each test's thread with its test, which would kill a server that tests share.
pub fn spawn(command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<mpsc::Sender<Job>> = LazyLock::new(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for (mut command, reply) in queue {
                    // The asker is waiting, unless its thread is gone with the process.
                    let _ = reply.send(command.spawn());
                }
            })
            .expect("a thread to start children from");
        jobs
    });
    let (reply, child) = mpsc::channel();
    SPAWNER.send((command, reply)).expect("the spawner runs as long as the process");
    child.recv().expect("the spawner answers every job")
}
