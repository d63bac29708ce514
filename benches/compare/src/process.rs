//! Worker processes: this program again, with a job; both sides talk in JSON lines.

use crate::contender::Result;
use crate::scenarios;
use serde_json::{Value, json};
use std::io::BufRead;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// The first word of a worker's command line.
pub const WORKER: &str = "worker";

/// A worker as its parent sees it; it is killed when this is dropped.
pub struct Worker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub fn start(job: &Value) -> Result<Self> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(program)
            .args([WORKER, &job.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start a worker process: {error}"))?;
        let input = child.stdin.take().expect("asked for");
        let output = child.stdout.take().expect("asked for");
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }

    /// Starts one for each job, and waits until all are ready.
    pub async fn start_all(jobs: &[Value], limit: Duration) -> Result<Vec<Self>> {
        let mut workers = jobs.iter().map(Self::start).collect::<Result<Vec<_>>>()?;
        for worker in &mut workers {
            worker.next(limit).await?;
        }
        Ok(workers)
    }

    /// What the worker says next.
    pub async fn next(&mut self, limit: Duration) -> Result<Value> {
        let line = timeout(limit, self.output.next_line()).await;
        let line = line.map_err(|_| format!("a worker process said nothing for {limit:?}"))?;
        let line = line.map_err(|error| error.to_string())?.ok_or("a worker process ended")?;
        let said: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        match said["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(said),
        }
    }

    pub async fn send(&mut self, what: &Value) -> Result<()> {
        let line = format!("{what}\n");
        self.input.write_all(line.as_bytes()).await.map_err(|error| error.to_string())
    }

    /// As a crash would end it.
    pub fn kill(&mut self) -> Result<()> {
        self.child.start_kill().map_err(|error| error.to_string())
    }
}

/// The parent as a worker sees it.
pub struct Parent(mpsc::UnboundedReceiver<Value>);

impl Parent {
    fn listen() -> Self {
        let (sender, inbox) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap_or(Value::Null));
            }
            // Without a parent there is nobody to work for.
            std::process::exit(0);
        });
        Self(inbox)
    }

    pub async fn next(&mut self) -> Value {
        self.0.recv().await.unwrap_or(Value::Null)
    }

    pub fn send(&self, what: &Value) {
        println!("{what}");
    }
}

/// The life of a worker process.
pub fn work(job: &str) {
    let job: Value = serde_json::from_str(job).expect("the parent writes JSON");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built");
    let parent = Parent::listen();
    let done = runtime.block_on(runtime.spawn(scenarios::work(job, parent)));
    if let Err(error) = done.unwrap_or_else(|panic| Err(panic.to_string())) {
        println!("{}", json!({ "error": error }));
    }
    // Leases may be left; nobody waits for them.
    std::process::exit(0);
}
