//! A holder in a process of its own, which can be killed, stopped and terminated.
//!
//! The process is the test binary again, which an environment variable makes a holder. Its test
//! `holder_process` calls [`serve`]. Commands go to its standard input, a line each; what happens comes
//! from its standard output, a line each, with the time by `CLOCK_BOOTTIME`.

use std::any::Any;
use std::collections::HashMap;
use std::env;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::mem;
use std::process::{self, Child, ChildStdin, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use leasehold::{CloseError, Lease, LeaseManager, Overrun};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::io::{AsyncBufReadExt, BufReader as AsyncBufReader};
use tokio::signal::unix::{SignalKind, signal};

use super::eventually;
use super::fault::{LONG, boottime, millis};
use super::resp::Resp;
use super::server::{dying_with_parent, spawn};

const VARIABLE: &str = "LEASEHOLD_TEST_HOLDER";
/// What the test runner prints stands on the same output.
const MARK: &str = "holder: ";

/// Something that happened in the holder's process.
#[derive(Clone, Debug)]
pub struct Event {
    /// By `CLOCK_BOOTTIME`.
    pub at: Duration,
    pub words: Vec<String>,
}

impl Event {
    pub fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    #[track_caller]
    pub fn number(&self, index: usize) -> u64 {
        self.word(index).parse().unwrap_or_else(|_| panic!("no number at {index} of {self:?}"))
    }
}

/// The process, as its test sees it.
pub struct Holder {
    child: Child,
    input: ChildStdin,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Holder {
    pub fn start() -> Self {
        Self::start_by(&[])
    }

    /// Starts it by another program, such as `nsenter` with its options.
    pub fn start_by(program: &[&str]) -> Self {
        let exe = env::current_exe().expect("the path of this test binary");
        let exe = exe.to_str().expect("a path in UTF-8");
        let words = [program, &[exe]].concat();
        let mut command = dying_with_parent(words[0]);
        command
            .args(&words[1..])
            .args(["--exact", "holder_process", "--nocapture"])
            .env(VARIABLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = spawn(command).expect("the test binary can be started again");
        let input = child.stdin.take().expect("it was asked for");
        let output = child.stdout.take().expect("it was asked for");
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(event) = parse(&line) {
                    sink.lock().unwrap_or_else(PoisonError::into_inner).push(event);
                }
            }
        });
        Self { child, input, events }
    }

    /// Gives a command, one of those that [`serve`] knows.
    #[track_caller]
    pub fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the holder's process reads its commands");
    }

    /// Connects with a time to live and locks a name; returns the event of the grant.
    pub async fn hold(&mut self, url: &str, ttl: Duration, name: &str) -> Event {
        self.send(&format!("connect {url} {}", ttl.as_millis()));
        self.send(&format!("lock {name}"));
        self.event(&["granted", name]).await
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first event that begins with these words, if it has happened.
    pub fn happened(&self, words: &[&str]) -> Option<Event> {
        let mut events = self.events().into_iter();
        events.find(|event| words.iter().enumerate().all(|(i, word)| event.word(i) == *word))
    }

    /// Waits for the first event that begins with these words.
    #[track_caller]
    pub fn event(&self, words: &[&str]) -> impl Future<Output = Event> {
        let came = eventually(LONG, || self.happened(words).is_some());
        async move {
            came.await;
            self.happened(words).expect("it has just been there")
        }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal; returns the time just before.
    pub fn signal(&self, signal: Signal) -> Duration {
        let at = boottime();
        kill_process(self.pid(), signal).expect("the holder's process is there");
        at
    }

    /// Stops the process; returns the time when it surely stood still.
    pub fn stop(&self) -> Duration {
        self.signal(Signal::STOP);
        let change = waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("a child");
        assert!(change.is_some_and(|(_, status)| status.stopped()), "{change:?}");
        boottime()
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually(LONG, || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        })
        .await;
        status.expect("it has ended")
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // A stopped process is ended by this, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parse(line: &str) -> Option<Event> {
    let (_, text) = line.split_once(MARK)?;
    let mut words = text.split(' ').map(str::to_owned);
    let at = Duration::from_nanos(words.next()?.parse().ok()?);
    Some(Event { at, words: words.collect() })
}

fn say(text: &str) {
    println!("{MARK}{} {text}", boottime().as_nanos());
}

/// Is the holder, if this process is meant to be one.
///
/// Commands: `connect URL MILLISECONDS`, `lock NAME`, `fair NAME` (a fair lock), `steal NAME`, `lead NAME VALUE`, `churn NAME` (locks and unlocks forever),
/// `overrun abort` and `overrun CODE` (for the next `connect`: what the process does if work goes on after a loss), `work NAME
/// PORT` (a thread that never stops pushes the fencing token to the list `written` of this server), `clog` (writes to the standard error forever), `hang` (blocks all
/// workers),
/// `try NAME` (tries once, and unlocks), `exhaust threads` and `exhaust files` (until the system gives no more), `relieve` (ends
/// that), `watch NAME` (checks all the time, until refused), `state NAME`, `unlock NAME`, `drop NAME`, `close`.
/// It closes by itself on SIGTERM, and ends at the end of its input.
pub fn serve() {
    if env::var_os(VARIABLE).is_none() {
        return;
    }
    // What the test runner has begun to print is no line of ours.
    println!();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate()).expect("a handler of SIGTERM");
        let mut commands = AsyncBufReader::new(tokio::io::stdin()).lines();
        let mut process = Process::default();
        loop {
            let line = tokio::select! {
                line = commands.next_line() => line.expect("a command in UTF-8"),
                _ = terminated.recv() => {
                    process.close().await;
                    break;
                }
            };
            let Some(line) = line else { break };
            let words: Vec<&str> = line.split(' ').collect();
            process.obey(&words).await;
        }
    });
    process::exit(0);
}

type Held = Arc<Mutex<HashMap<String, Arc<Lease>>>>;

#[derive(Default)]
struct Process {
    leases: Option<LeaseManager>,
    held: Held,
    overrun: Option<Overrun>,
    /// What was taken from the system.
    taken: Vec<Box<dyn Any>>,
}

/// A thread that waits until this is dropped.
struct Parked(Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>);

impl Drop for Parked {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            thread.join().expect("it only waits");
        }
    }
}

fn parked() -> io::Result<Parked> {
    let (end, wait) = mpsc::channel();
    let thread = thread::Builder::new().spawn(move || {
        let _ = wait.recv();
    })?;
    Ok(Parked(Some((end, thread))))
}

/// Takes as many as the system gives, of which there must be a limit.
fn exhaust<T: Any>(taken: &mut Vec<Box<dyn Any>>, take: impl Fn() -> io::Result<T>) -> usize {
    const MANY: usize = 5_000;
    let before = taken.len();
    while let Ok(one) = take() {
        taken.push(Box::new(one));
        assert!(taken.len() - before < MANY, "there is no limit");
    }
    taken.len() - before
}

async fn try_once(leases: LeaseManager, name: String) {
    let tried = leases.lock(&name).try_lock().await;
    match tried {
        Ok(Some(lease)) => {
            let _ = lease.unlock().await;
            say(&format!("tried {name} Granted"));
        }
        Ok(None) => say(&format!("tried {name} Busy")),
        Err(error) => say(&format!("tried {name} {:?}", error.kind())),
    }
}

impl Process {
    async fn obey(&mut self, words: &[&str]) {
        match *words {
            ["connect", url, ttl] => {
                let ttl = millis(ttl.parse().expect("milliseconds"));
                let mut builder = LeaseManager::builder().ttl(ttl);
                if let Some(overrun) = self.overrun.take() {
                    builder = builder.on_overrun(overrun);
                }
                let leases = builder.connect(url).await;
                self.leases = Some(leases.expect("a manager"));
                say("connected");
            }
            ["overrun", "abort"] => self.overrun = Some(Overrun::Abort),
            ["overrun", code] => {
                self.overrun = Some(Overrun::Exit(code.parse().expect("an exit code")));
            }
            ["work", name, port] => {
                let fence = self.lease(name).fence().expect("fencing is on").to_string();
                let mut server = Resp::connect(port.parse().expect("a port"));
                thread::spawn(move || {
                    loop {
                        server.command(&["RPUSH", "written", &fence]);
                    }
                });
                say("works");
            }
            ["clog"] => {
                thread::spawn(|| {
                    loop {
                        eprintln!("{}", "noise ".repeat(100));
                    }
                });
            }
            ["hang"] => {
                for _ in 0..8 {
                    tokio::spawn(async { thread::sleep(Duration::MAX) });
                }
                say("hangs");
                thread::sleep(Duration::MAX);
            }
            ["lock", name] => {
                let (leases, held, name) = (self.manager(), self.held.clone(), name.to_owned());
                tokio::spawn(take(leases, held, name, false));
            }
            ["fair", name] => {
                let (leases, held, name) = (self.manager(), self.held.clone(), name.to_owned());
                tokio::spawn(take(leases, held, name, true));
            }
            ["steal", name] => {
                let (leases, held, name) = (self.manager(), self.held.clone(), name.to_owned());
                tokio::spawn(steal(leases, held, name));
            }
            ["lead", name, value] => {
                tokio::spawn(lead(self.manager(), name.to_owned(), value.to_owned()));
            }
            ["churn", name] => {
                let (leases, name) = (self.manager(), name.to_owned());
                tokio::spawn(churn(leases, name));
            }
            ["try", name] => {
                let (leases, name) = (self.manager(), name.to_owned());
                tokio::spawn(try_once(leases, name));
            }
            ["exhaust", what] => {
                let count = match what {
                    "threads" => exhaust(&mut self.taken, parked),
                    "files" => exhaust(&mut self.taken, || File::open("/dev/null")),
                    _ => panic!("nothing that can be exhausted: {what}"),
                };
                say(&format!("exhausted {what} {count}"));
            }
            ["relieve"] => {
                self.taken.clear();
                say("relieved");
            }
            ["watch", name] => {
                let lease = self.lease(name);
                thread::spawn(move || check_all_the_time(&lease));
            }
            ["state", name] => say(&format!("state {name} {:?}", self.lease(name).state())),
            ["unlock", name] => {
                let lease = self.remove(name);
                let lease = Arc::try_unwrap(lease).expect("nobody checks it any more");
                match lease.unlock().await {
                    Ok(()) => say(&format!("unlocked {name}")),
                    Err(error) => say(&format!("refused-unlock {name} {:?}", error.kind())),
                }
            }
            ["drop", name] => {
                drop(self.remove(name));
                say(&format!("dropped {name}"));
            }
            ["close"] => self.close().await,
            _ => panic!("no such command: {words:?}"),
        }
    }

    fn manager(&self) -> LeaseManager {
        self.leases.clone().expect("connected")
    }

    fn lease(&self, name: &str) -> Arc<Lease> {
        Arc::clone(self.held.lock().expect("no panic").get(name).expect("held"))
    }

    fn remove(&self, name: &str) -> Arc<Lease> {
        self.held.lock().expect("no panic").remove(name).expect("held")
    }

    /// Gives back what is held, as a service does at its end, and reports what could not be.
    async fn close(&self) {
        say("closing");
        let leases = self.manager();
        let held = mem::take(&mut *self.held.lock().expect("no panic"));
        let released = held.len();
        let tokens: Vec<_> = held.values().map(|lease| lease.cancellation_token()).collect();
        let work = async move {
            for token in tokens {
                token.cancelled().await;
            }
            drop(held);
        };
        let (closed, ()) = tokio::join!(leases.close(), work);
        let failed = closed.as_ref().err().map(CloseError::failed).unwrap_or_default();
        let mut names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let released = released - names.len();
        say(&format!("closed {released} {}", names.join(" ")));
    }
}

async fn take(leases: LeaseManager, held: Held, name: String, fair: bool) {
    let lease = match fair {
        true => leases.fair_lock(&name).lock().await,
        false => leases.lock(&name).lock().await,
    };
    let lease = match lease {
        Ok(lease) => Arc::new(lease),
        Err(error) => return say(&format!("failed {name} {:?}", error.kind())),
    };
    hold(held, name, lease).await;
}

async fn steal(leases: LeaseManager, held: Held, name: String) {
    match leases.lock(&name).steal("test").await {
        Ok(Some(lease)) => hold(held, name, Arc::new(lease)).await,
        Ok(None) => say(&format!("failed {name} Busy")),
        Err(error) => say(&format!("failed {name} {:?}", error.kind())),
    }
}

/// Reports the grant, and later the loss.
async fn hold(held: Held, name: String, lease: Arc<Lease>) {
    let fence = lease.fence().expect("fencing is on");
    let lost = lease.lost();
    held.lock().expect("no panic").insert(name.clone(), lease);
    say(&format!("granted {name} {fence}"));
    let loss = lost.await;
    say(&format!("fired {name} {loss:?}"));
}

/// Leads whenever it can, and reports each term.
async fn lead(leases: LeaseManager, name: String, value: String) {
    let mut candidate = leases.election(&name).candidate(value);
    let led = candidate
        .lead(async move |me| {
            say(&format!("leads {} {}", me.name(), me.term().expect("fencing is on")));
            std::future::pending().await
        })
        .await;
    say(&format!("retired {name} {led:?}"));
}

async fn churn(leases: LeaseManager, name: String) {
    let mut lock = leases.lock(&name);
    loop {
        let lease = lock.lock().await.expect("a lease");
        say(&format!("granted {name} {}", lease.fence().expect("fencing is on")));
        lease.unlock().await.expect("a release");
    }
}

/// On a plain thread, so that nothing but the call itself can find out.
fn check_all_the_time(lease: &Lease) {
    let name = lease.name();
    let mut good = None;
    loop {
        let before = boottime();
        if lease.check().is_err() {
            break;
        }
        if good.is_none() {
            say(&format!("checking {name}"));
        }
        good = Some(before);
        thread::sleep(millis(1));
    }
    let good = good.unwrap_or_default().as_nanos();
    say(&format!("refused {name} {good}"));
}
