//! What the examples need to try themselves: servers, processes of their own, and a client for HTTP.

mod postgres;

pub use postgres::Postgres;

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsStr;
use std::net::TcpListener;
use std::process::{ExitCode, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Returns the exit code of an example, and prints why it failed.
pub fn exit_code(program: &str, done: Result) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// No step of an example takes longer.
pub const LONG: Duration = Duration::from_secs(30);

/// A Redis server: that of `REDIS_URL`, or one of its own, which ends with this.
pub struct Redis {
    pub url: String,
    server: Option<Child>,
}

impl Redis {
    pub async fn start() -> Result<Self> {
        if let Ok(url) = std::env::var("REDIS_URL") {
            return Ok(Self { url, server: None });
        }
        // The port may be taken before the server has it; then it ends.
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut server = Command::new("redis-server")
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .map_err(|error| format!("redis-server cannot be started: {error}"))?;
            let output = server.stdout.take().ok_or("no output")?;
            let mut lines = BufReader::new(output).lines();
            let ready = async {
                while let Ok(Some(line)) = lines.next_line().await {
                    if line.contains("Ready to accept connections") {
                        return true;
                    }
                }
                false
            };
            if timeout(LONG, ready).await? {
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok(Self { url: format!("redis://127.0.0.1:{port}"), server: Some(server) });
            }
        }
        Err("redis-server does not start".into())
    }
}

impl Redis {
    /// Sends a signal to a server of its own.
    pub async fn signal(&self, signal: &str) -> Result {
        send_signal(self.server.as_ref().ok_or("no server of its own")?, signal).await
    }
}

/// A process of an example, and what it prints. It is killed when this is dropped.
pub struct Process {
    pub child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts `program` with `arguments`, and with the URL of the server in its environment.
    pub fn start(program: impl AsRef<OsStr>, redis: &Redis, arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(program)
            .args(arguments)
            .env("REDIS_URL", &redis.url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        Ok(Self { child, lines: BufReader::new(output).lines() })
    }

    /// Returns what follows `start` in the next line that begins with it.
    pub async fn line(&mut self, start: &str) -> Result<String> {
        let find = async {
            while let Some(line) = self.lines.next_line().await? {
                if let Some(rest) = line.strip_prefix(start) {
                    return Ok(rest.trim().to_owned());
                }
            }
            Err(format!("the process ended before it printed {start:?}").into())
        };
        timeout(LONG, find).await.map_err(|_| format!("nobody prints {start:?}"))?
    }

    /// Returns all lines until the process ends, which it does by itself.
    pub async fn rest(mut self) -> Result<Vec<String>> {
        let read = async {
            let mut all = Vec::new();
            while let Some(line) = self.lines.next_line().await? {
                all.push(line);
            }
            let status = self.child.wait().await?;
            if status.success() {
                Ok(all)
            } else {
                Err(format!("the process ended: {status}").into())
            }
        };
        timeout(LONG, read).await.map_err(|_| "the process does not end")?
    }

    /// Asks the process to end, as Kubernetes does, and waits until it has.
    pub async fn terminate(self) -> Result<Vec<String>> {
        self.signal("TERM").await?;
        self.rest().await
    }

    /// Sends a signal to the process.
    pub async fn signal(&self, signal: &str) -> Result {
        send_signal(&self.child, signal).await
    }

    /// Kills the process, as a crash does.
    pub async fn kill(mut self) -> Result {
        Ok(self.child.kill().await?)
    }
}

async fn send_signal(process: &Child, signal: &str) -> Result {
    let id = process.id().ok_or("it has ended")?.to_string();
    Command::new("kill").args([&format!("-{signal}"), &id]).status().await?;
    Ok(())
}

/// Sends a request without a body, and returns the status and the body of the answer.
pub async fn http(address: &str, method: &str, path: &str) -> Result<(u16, String)> {
    let answer = Http::new(method, path).send(address).await?;
    Ok((answer.status, answer.body))
}

/// A request without a body.
pub struct Http {
    line: String,
    headers: String,
}

impl Http {
    pub fn new(method: &str, path: &str) -> Self {
        Self { line: format!("{method} {path}"), headers: String::new() }
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub async fn send(&self, address: &str) -> Result<Answer> {
        let Self { line, headers } = self;
        let exchange = async {
            let mut stream = TcpStream::connect(address).await?;
            let request = format!(
                "{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 0\r\n{headers}\r\n"
            );
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP")?;
            let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
            Ok(Answer { status, head: head.to_owned(), body: body.to_owned() })
        };
        timeout(LONG, exchange).await.map_err(|_| format!("{line}: no answer"))?
    }
}

/// The answer to a request.
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        headers.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Starts this program twice, with the argument `work`, and shows which of its jobs `ran` where. Returns how many ran in each
/// process. Fails if one ran twice.
pub async fn two_workers() -> Result<[usize; 2]> {
    let redis = Redis::start().await?;
    let mut processes = Vec::new();
    for _ in 0..2 {
        let mut process = Process::start(std::env::current_exe()?, &redis, &["work"])?;
        process.line("ready").await?;
        processes.push(process);
    }
    let (mut ticks, mut ran) = (0, BTreeMap::<String, Vec<usize>>::new());
    let mut failed = None;
    for (index, process) in processes.into_iter().enumerate() {
        for line in process.rest().await? {
            ticks += 1;
            if let Some(key) = line.strip_prefix("ran ") {
                ran.entry(key.to_owned()).or_default().push(index + 1);
            }
            failed = failed.or(line.strip_prefix("failed ").map(str::to_owned));
        }
    }
    let mut each = [0; 2];
    for (key, processes) in &ran {
        println!("{key} ran in process {processes:?}");
        processes.iter().for_each(|process| each[process - 1] += 1);
    }
    let twice = ran.values().filter(|processes| processes.len() > 1).count();
    println!("{ticks} ticks in two processes, {} jobs, {twice} of them ran twice", ran.len());
    if let Some(failed) = failed {
        return Err(format!("not every tick was served; the first that failed: {failed}").into());
    }
    if twice > 0 || ran.is_empty() || ticks <= ran.len() {
        return Err("each job runs once, and both processes see its tick".into());
    }
    Ok(each)
}
