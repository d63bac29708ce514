//! A proxy before a server that breaks its connections in the ways a network does.
//!
//! It knows where requests and replies begin and end, so it can hold or lose whole ones, and
//! lose just the reply to a chosen request.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the proxy does with what passes it. "Hold" means: keep, and pass on once the mode lets
/// it, even if the other side has closed its end by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Holds both requests and replies; connections stay open.
    BlackHole,
    HoldRequests,
    HoldReplies,
    /// Passes requests on and throws away whatever the server sends.
    DropReplies,
    /// Closes all connections, and new ones at once.
    Refuse,
}

impl Mode {
    fn passes_requests(self) -> bool {
        matches!(self, Mode::Pass | Mode::HoldReplies | Mode::DropReplies)
    }

    fn passes_replies(self) -> bool {
        matches!(self, Mode::Pass | Mode::HoldRequests)
    }
}

/// A proxy on a port of its own, which runs on its own thread until it is dropped.
///
/// The thread keeps it independent of the test's runtime, whose clock may be paused and whose
/// threads may be blocked.
pub struct Proxy {
    port: u16,
    upstream_port: u16,
    control: watch::Sender<Control>,
    record: Arc<Mutex<Record>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy)]
struct Control {
    mode: Mode,
    /// A connection lives as long as the number it began under.
    generation: u64,
    stopped: bool,
}

#[derive(Default)]
struct Record {
    requests: Vec<Vec<String>>,
    /// The same requests as they came.
    frames: Vec<Vec<u8>>,
    rules: Vec<Rule>,
    dropped: usize,
    answered: usize,
}

/// What becomes of the request that `needle` will be in for the `left`th time from now.
struct Rule {
    needle: String,
    left: usize,
    /// The reply to give instead of passing the request on; without one its own reply is dropped.
    answer: Option<Vec<u8>>,
}

impl Proxy {
    /// Starts a proxy before the server on `upstream_port` of 127.0.0.1.
    pub fn start(upstream_port: u16) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .expect("a free port for the proxy");
        listener.set_nonblocking(true).expect("a non-blocking listener");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        let initial = Control { mode: Mode::Pass, generation: 0, stopped: false };
        let (control, watcher) = watch::channel(initial);
        let record = Arc::new(Mutex::new(Record::default()));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .expect("a runtime for the proxy");
        let thread = thread::Builder::new()
            .name("proxy".to_owned())
            .spawn({
                let record = Arc::clone(&record);
                // Dropping the runtime at the end closes every connection.
                move || runtime.block_on(accept(listener, upstream_port, watcher, record))
            })
            .expect("a thread for the proxy");
        Self { port, upstream_port, control, record, thread: Some(thread) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the mode, which applies to all that reaches the proxy from now on.
    pub fn set(&self, mode: Mode) {
        self.control.send_modify(|control| {
            control.mode = mode;
            control.generation += u64::from(mode == Mode::Refuse);
        });
    }

    /// Closes all connections there are; new ones work.
    pub fn close_all(&self) {
        self.control.send_modify(|control| control.generation += 1);
    }

    /// Lets the `n`th request from now that has `needle` in its bytes (1 being the next one) run
    /// on the server, then closes its connection instead of passing its reply on.
    ///
    /// Requests on connections that have subscribed under RESP2 are not counted.
    pub fn drop_reply_of(&self, n: usize, needle: &str) {
        self.rule(n, needle, None);
    }

    /// Answers the `n`th request from now that has `needle` in its bytes (1 being the next one) with these
    /// bytes, whatever they are; the server sees nothing of it.
    ///
    /// Requests on connections that have subscribed under RESP2 are not counted.
    pub fn answer(&self, n: usize, needle: &str, reply: &[u8]) {
        self.rule(n, needle, Some(reply.to_vec()));
    }

    fn rule(&self, n: usize, needle: &str, answer: Option<Vec<u8>>) {
        assert!(n > 0, "the next request is number 1");
        assert!(!needle.is_empty(), "every request would match");
        self.record().rules.push(Rule { needle: needle.to_owned(), left: n, answer });
    }

    /// How many requests were answered on behalf of [`answer`](Self::answer).
    pub fn answered(&self) -> usize {
        self.record().answered
    }

    /// Sends each request passed on so far that has `needle` in its bytes once more, over one connection of
    /// its own, and returns the replies as they came.
    pub fn replay(&self, needle: &str) -> Vec<String> {
        let frames = self.record().frames.clone();
        let has = |frame: &&Vec<u8>| contains(frame, needle);
        let address = (Ipv4Addr::LOCALHOST, self.upstream_port);
        let mut server = std::net::TcpStream::connect(address).expect("a second connection");
        let mut replies = Vec::new();
        for frame in frames.iter().filter(has) {
            server.write_all(frame).expect("the server takes it once more");
            let mut reply = Vec::new();
            while frame_length(&reply).is_none() {
                let mut byte = [0];
                server.read_exact(&mut byte).expect("the server answers once more");
                reply.push(byte[0]);
            }
            replies.push(String::from_utf8_lossy(&reply).into_owned());
        }
        replies
    }

    /// How many replies were dropped on behalf of [`drop_reply_of`](Self::drop_reply_of).
    pub fn dropped(&self) -> usize {
        self.record().dropped
    }

    /// The requests passed on so far, each as its words with spaces between.
    pub fn requests(&self) -> Vec<String> {
        self.record().requests.iter().map(|words| words.join(" ")).collect()
    }

    /// How many requests passed on so far have this first word.
    pub fn count(&self, command: &str) -> usize {
        let record = self.record();
        let firsts = record.requests.iter().filter_map(|words| words.first());
        firsts.filter(|first| first.eq_ignore_ascii_case(command)).count()
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        lock(&self.record)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.control.send_modify(|control| control.stopped = true);
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, its message is out and the test is failing already.
            let _ = thread.join();
        }
    }
}

fn contains(frame: &[u8], needle: &str) -> bool {
    frame.windows(needle.len()).any(|window| window == needle.as_bytes())
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(
    listener: std::net::TcpListener,
    upstream_port: u16,
    control: watch::Receiver<Control>,
    record: Arc<Mutex<Record>>,
) {
    let listener = TcpListener::from_std(listener).expect("a listener the runtime can watch");
    let mut stop = control.clone();
    let mut stop = pin!(stop.wait_for(|control| control.stopped));
    loop {
        let client = tokio::select! {
            _ = &mut stop => return,
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => client,
                // The client gave up before its turn.
                Err(_) => continue,
            },
        };
        let Control { mode, generation, .. } = *control.borrow();
        if mode == Mode::Refuse {
            continue;
        }
        let (control, record) = (control.clone(), Arc::clone(&record));
        tokio::spawn(async move {
            let mut closing = control.clone();
            tokio::select! {
                // Nothing that arrives after the closing may pass.
                biased;
                _ = closing.wait_for(|control| control.generation != generation) => {}
                // It ends in an error when the server cannot be reached.
                _ = Link::run(client, upstream_port, control, record) => {}
            }
        });
    }
}

/// A client's connection and the one to the server that belongs to it.
struct Link {
    client: OwnedWriteHalf,
    server: OwnedWriteHalf,
    /// Bytes from the client that were not passed on yet, and whether more can come.
    requests: Vec<u8>,
    client_closed: bool,
    /// The same from the server.
    replies: Vec<u8>,
    server_closed: bool,
    /// The requests passed on whose replies were not.
    pending: VecDeque<Pending>,
    /// Whether a RESP2 subscription has begun, in which messages look like replies, so that no
    /// frame from the server can be matched with a request any more.
    subscribed: bool,
    record: Arc<Mutex<Record>>,
}

struct Pending {
    drop_reply: bool,
    /// What is said in the server's place, which was not asked.
    answer: Option<Vec<u8>>,
    subscribes: bool,
}

impl Link {
    async fn run(
        client: TcpStream,
        upstream_port: u16,
        mut control: watch::Receiver<Control>,
        record: Arc<Mutex<Record>>,
    ) -> io::Result<()> {
        // The server sees nothing of a connection that begins in a black hole.
        let _ = control.wait_for(|control| control.mode != Mode::BlackHole).await;
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream_port)).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let link = Self {
            client: to_client,
            server: to_server,
            requests: Vec::new(),
            client_closed: false,
            replies: Vec::new(),
            server_closed: false,
            pending: VecDeque::new(),
            subscribed: false,
            record,
        };
        link.pump(from_client, from_server, control).await;
        Ok(())
    }

    /// Passes bytes on until one side has closed and the other has got all that was due to it.
    async fn pump(
        mut self,
        mut from_client: OwnedReadHalf,
        mut from_server: OwnedReadHalf,
        mut control: watch::Receiver<Control>,
    ) {
        loop {
            control.mark_unchanged();
            self.pass_requests(&control).await;
            if self.pass_replies(&control).await.is_break() {
                return;
            }
            // Also while held, bytes are read at once: those in the system's buffer would be
            // lost if their sender reset the connection.
            tokio::select! {
                read = from_client.read_buf(&mut self.requests), if !self.client_closed => {
                    self.client_closed = !matches!(read, Ok(1..));
                }
                read = from_server.read_buf(&mut self.replies), if !self.server_closed => {
                    self.server_closed = !matches!(read, Ok(1..));
                }
                changed = control.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn pass_requests(&mut self, control: &watch::Receiver<Control>) {
        let passes = || control.borrow().mode.passes_requests();
        while passes()
            && let Some(length) = frame_length(&self.requests)
        {
            let frame: Vec<u8> = self.requests.drain(..length).collect();
            if self.note(frame.clone()) {
                // An error shows in the next read from the server.
                let _ = self.server.write_all(&frame).await;
            }
        }
        if self.client_closed && passes() {
            let _ = self.server.shutdown().await;
        }
    }

    /// Breaks once the connections are to be closed.
    async fn pass_replies(&mut self, control: &watch::Receiver<Control>) -> ControlFlow<()> {
        loop {
            let mode = control.borrow().mode;
            let drops = mode == Mode::DropReplies;
            if !mode.passes_replies() && !drops {
                break;
            }
            if let Some(Some(answer)) = self.pending.front().map(|request| &request.answer) {
                if !drops {
                    // As below.
                    let _ = self.client.write_all(answer).await;
                }
                self.pending.pop_front();
                continue;
            }
            let Some(length) = frame_length(&self.replies) else {
                break;
            };
            let frame: Vec<u8> = self.replies.drain(..length).collect();
            if let Some(request) = self.request_of(&frame) {
                if request.drop_reply {
                    lock(&self.record).dropped += 1;
                    return ControlFlow::Break(());
                }
                // A refused subscription is answered with an error, a RESP3 one with a push.
                self.subscribed = request.subscribes && frame[0] == b'*';
            }
            if !drops {
                // An error shows in the next read from the client.
                let _ = self.client.write_all(&frame).await;
            }
        }
        let mode = control.borrow().mode;
        let client_done = self.client_closed && mode.passes_requests();
        if self.server_closed && (client_done || mode.passes_replies()) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Records a request and decides the fate of its reply; whether the server gets it.
    fn note(&mut self, frame: Vec<u8>) -> bool {
        let words = words(&frame);
        let first = words.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
        let subscribes = matches!(first.as_str(), "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE");
        let mut record = lock(&self.record);
        let (mut drop_reply, mut answer) = (false, None);
        if !self.subscribed {
            record.rules.retain_mut(|rule| {
                rule.left -= usize::from(contains(&frame, &rule.needle));
                if rule.left > 0 {
                    return true;
                }
                match rule.answer.take() {
                    Some(reply) => answer = Some(reply),
                    None => drop_reply = true,
                }
                false
            });
        }
        let passed_on = answer.is_none();
        record.answered += usize::from(!passed_on);
        if passed_on {
            record.requests.push(words);
            record.frames.push(frame);
        }
        if !self.subscribed {
            self.pending.push_back(Pending { drop_reply, answer, subscribes });
        }
        passed_on
    }

    /// The request that a frame from the server answers; none for what it sends unasked.
    fn request_of(&mut self, frame: &[u8]) -> Option<Pending> {
        let push = frame[0] == b'>';
        let awaited = self.pending.front()?;
        if self.subscribed || (push && !awaited.subscribes) {
            return None;
        }
        self.pending.pop_front()
    }
}

/// The length of the first whole frame of RESP2 or RESP3 in `bytes`, if there is one.
pub fn frame_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    // Nothing follows a length of -1, which stands for null.
    let length = || {
        let digits = std::str::from_utf8(&bytes[1..line - 2]).ok()?;
        digits.parse::<usize>().ok()
    };
    let parts = match bytes[0] {
        b'$' | b'=' | b'!' => {
            let end = length().map_or(line, |length| line + length + 2);
            return (end <= bytes.len()).then_some(end);
        }
        b'*' | b'~' | b'>' => length().unwrap_or(0),
        b'%' => 2 * length().unwrap_or(0),
        // Attributes come before the frame that they describe.
        b'|' => 2 * length().unwrap_or(0) + 1,
        _ => 0,
    };
    (0..parts).try_fold(line, |at, _| Some(at + frame_length(&bytes[at..])?))
}

/// The words of a request: an array of bulk strings, or a line as one may type it.
fn words(frame: &[u8]) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if frame[0] != b'*' {
        return text(frame).split_whitespace().map(str::to_owned).collect();
    }
    let line = |bytes: &[u8]| bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut words = Vec::new();
    let mut rest = &frame[line(frame)..];
    while let Some(length) = frame_length(rest) {
        words.push(text(&rest[line(rest)..length - 2]));
        rest = &rest[length..];
    }
    words
}
