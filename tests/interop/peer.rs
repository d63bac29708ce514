//! The Java side: JVMs, Redisson clients in them, and their threads.

use kit::server::{dying_with_parent, spawn};
use std::collections::HashMap;
use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};

/// How long an answer may take that is not waited for on purpose.
const LONG: Duration = Duration::from_secs(60);

/// The clock of `System.nanoTime` on Linux.
pub fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("a positive time");
    Duration::new(seconds, u32::try_from(time.tv_nsec).expect("less than a second"))
}

/// What a call of a Java method came to.
#[derive(Clone, Debug)]
pub struct Done {
    pub began: Duration,
    pub ended: Duration,
    /// The result, or the exception.
    pub result: Result<String, String>,
}

impl Done {
    #[track_caller]
    pub fn ok(self) -> String {
        self.result.unwrap_or_else(|thrown| panic!("Java threw {thrown}"))
    }

    #[track_caller]
    pub fn truth(self) -> bool {
        match &*self.ok() {
            "true" => true,
            "false" => false,
            other => panic!("no truth value: {other}"),
        }
    }

    #[track_caller]
    pub fn number<T: std::str::FromStr>(self) -> T {
        let text = self.ok();
        text.parse().unwrap_or_else(|_| panic!("no number: {text}"))
    }

    #[track_caller]
    pub fn threw(self, exception: &str) {
        match self.result {
            Err(thrown) if thrown.contains(exception) => {}
            other => panic!("{exception} was to be thrown, not {other:?}"),
        }
    }
}

/// A JVM that runs the agent; killed when it is dropped.
pub struct Jvm {
    child: Mutex<Child>,
    input: Mutex<ChildStdin>,
    asked: Asked,
    listeners: Listeners,
    number: AtomicU64,
    logs: TempDir,
}

type Asked = Arc<Mutex<HashMap<u64, oneshot::Sender<Done>>>>;
type Listeners = Arc<Mutex<HashMap<String, mpsc::UnboundedSender<(String, String)>>>>;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jvm {
    /// One that all tests share that need it at the time.
    pub fn shared(line: &str) -> Arc<Self> {
        static SHARED: Mutex<Vec<(String, Weak<Jvm>)>> = Mutex::new(Vec::new());
        let mut shared = lock(&SHARED);
        let known = shared.iter().find(|(known, _)| known == line);
        if let Some(jvm) = known.and_then(|(_, jvm)| jvm.upgrade()) {
            return jvm;
        }
        let jvm = Self::start(line);
        shared.retain(|(known, _)| known != line);
        shared.push((line.to_owned(), Arc::downgrade(&jvm)));
        jvm
    }

    /// One with a version of this line, 3 or 4.
    pub fn start(line: &str) -> Arc<Self> {
        let named = |variable: &str| {
            env::var(variable).unwrap_or_else(|_| {
                panic!("{variable} is not set; these tests need the jars of Redisson: use tests/interop/run")
            })
        };
        let version = named(&format!("REDISSON_{line}"));
        let jars = Path::new(&named("LEASEHOLD_INTEROP_JARS")).join(&version);
        assert!(
            jars.join("agent.jar").is_file(),
            "{jars:?} has no agent.jar; use tests/interop/run"
        );
        let logs = tempfile::Builder::new().prefix("leasehold-").tempdir().expect("a directory");
        let log = File::create(logs.path().join("log")).expect("a file of our own");
        let mut command = dying_with_parent("java");
        command
            // What takes a JVM long at its start is of no use here.
            .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp"])
            .arg(jars.join("*"))
            .arg("Agent")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = spawn(command).expect("java is in PATH");
        let input = child.stdin.take().expect("it was asked for");
        let mut output = BufReader::new(child.stdout.take().expect("it was asked for")).lines();
        let (asked, listeners) = (Asked::default(), Listeners::default());
        let greeting = output.next().and_then(Result::ok).unwrap_or_default();
        let text = std::fs::read_to_string(logs.path().join("log")).unwrap_or_default();
        assert_eq!(greeting, format!("redisson {version}"), "{text}");
        let (answers, events) = (Arc::clone(&asked), Arc::clone(&listeners));
        std::thread::spawn(move || {
            for line in output.map_while(Result::ok) {
                hear(&line, &answers, &events);
            }
            // No answer comes any more.
            lock(&answers).clear();
        });
        let number = AtomicU64::new(0);
        let (child, input) = (Mutex::new(child), Mutex::new(input));
        Arc::new(Self { child, input, asked, listeners, number, logs })
    }

    /// A Redisson client; `servers` are those of a cluster if there is a mode of subscriptions.
    pub async fn client(
        self: &Arc<Self>,
        servers: &str,
        watchdog: Duration,
        prefix: &str,
        mode: &str,
    ) -> Java {
        let client = format!("client-{}", self.number.fetch_add(1, Ordering::Relaxed));
        let java = Java { jvm: Arc::clone(self), client };
        let millis = watchdog.as_millis().to_string();
        java.on("main").call("connect", &[servers, &millis, prefix, mode]).await.ok();
        java
    }

    /// As a crash would.
    pub fn kill(&self) {
        lock(&self.child).kill().expect("a JVM of our own");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.logs.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Jvm {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn hear(line: &str, answers: &Asked, events: &Listeners) {
    let words: Vec<String> = line.split(' ').map(decoded).collect();
    if let [mark, client, what, name] = &words[..]
        && mark == "!"
    {
        if let Some(listener) = lock(events).get(client) {
            let _ = listener.send((what.clone(), name.clone()));
        }
    } else if let [number, began, ended, end, result] = &words[..] {
        let nanos = |text: &String| Duration::from_nanos(text.parse().expect("a time"));
        let result = if end == "ok" { Ok(result.clone()) } else { Err(result.clone()) };
        let done = Done { began: nanos(began), ended: nanos(ended), result };
        if let Some(asked) = lock(answers).remove(&number.parse().expect("a number")) {
            let _ = asked.send(done);
        }
    } else {
        panic!("the agent said {line}");
    }
}

/// One Redisson client.
#[derive(Clone)]
pub struct Java {
    jvm: Arc<Jvm>,
    client: String,
}

impl Java {
    /// A thread of the client, made when it is first named.
    pub fn on(&self, thread: &str) -> Thread {
        Thread { java: self.clone(), thread: thread.to_owned() }
    }

    /// What Redisson's listeners of a lock hear from now on: what happened, and to what.
    pub async fn listen(&self, name: &str) -> mpsc::UnboundedReceiver<(String, String)> {
        let (sender, events) = mpsc::unbounded_channel();
        lock(&self.jvm.listeners).insert(self.client.clone(), sender);
        self.on("main").call("listen", &[name]).await.ok();
        events
    }
}

#[derive(Clone)]
pub struct Thread {
    java: Java,
    thread: String,
}

/// A call that has been sent; it goes on whether it is awaited or not.
pub struct Call {
    answer: oneshot::Receiver<Done>,
    what: String,
    jvm: Arc<Jvm>,
}

impl Call {
    pub fn is_done(&self) -> bool {
        !self.answer.is_empty()
    }

    pub async fn done(self) -> Done {
        let answer = tokio::time::timeout(LONG * 3, self.answer).await;
        let answer = answer.unwrap_or_else(|_| panic!("no answer to {}", self.what));
        answer.unwrap_or_else(|_| panic!("the JVM has ended in {}: {}", self.what, self.jvm.log()))
    }
}

impl Thread {
    /// Tells the thread to call a method when it is done with those before.
    pub fn begin(&self, operation: &str, arguments: &[&str]) -> Call {
        let Java { jvm, client } = &self.java;
        let number = jvm.number.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        lock(&jvm.asked).insert(number, sender);
        let asked = number.to_string();
        let words = [&[&*asked, client, &self.thread, operation], arguments].concat();
        let line: Vec<String> = words.iter().map(|word| encoded(word)).collect();
        let line = line.join(" ") + "\n";
        let written = lock(&jvm.input).write_all(line.as_bytes());
        written.unwrap_or_else(|error| panic!("the JVM does not listen: {error}: {}", jvm.log()));
        Call { answer, what: format!("{operation} {arguments:?}"), jvm: Arc::clone(jvm) }
    }

    /// Calls a method and waits for its end.
    pub async fn call(&self, operation: &str, arguments: &[&str]) -> Done {
        self.begin(operation, arguments).done().await
    }
}

fn encoded(word: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    word.bytes().map(one).collect()
}

fn decoded(word: &str) -> String {
    let mut bytes = word.bytes();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next().unwrap_or(b'?'), bytes.next().unwrap_or(b'?')];
                let digits = std::str::from_utf8(&digits).expect("digits");
                u8::from_str_radix(digits, 16).expect("digits")
            }
            other => other,
        });
    }
    String::from_utf8(plain).expect("UTF-8")
}
