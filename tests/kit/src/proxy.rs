//! A proxy before a server that breaks its connections in the ways a network does.
//!
//! It knows where requests and replies begin and end, so it can hold or lose whole ones, and
//! lose just the reply to a chosen request.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::frame::words;

pub use super::frame::frame_length;

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
    /// Passes all on, each way this much later.
    Delay(Duration),
    /// Passes all on, in slices of a few bytes.
    Drip,
    /// Passes all on, and runs each script call again over another connection.
    Duplicate,
}

/// How much of a frame [`Mode::Drip`] passes on in one piece, and the pause after it.
const SLICE: usize = 16;
const PAUSE: Duration = Duration::from_millis(1);

impl Mode {
    fn passes_requests(self) -> bool {
        !matches!(self, Mode::BlackHole | Mode::HoldRequests | Mode::Refuse)
    }

    fn passes_replies(self) -> bool {
        self.passes_requests() && !matches!(self, Mode::HoldReplies | Mode::DropReplies)
            || self == Mode::HoldRequests
    }
}

/// A proxy on a port of its own, which runs on its own thread until it is dropped.
///
/// The thread keeps it independent of the test's runtime, whose clock may be paused and whose
/// threads may be blocked.
pub struct Proxy {
    port: u16,
    control: watch::Sender<Control>,
    record: Arc<Mutex<Record>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy)]
struct Control {
    mode: Mode,
    /// Where a connection leads that begins now.
    upstream_port: u16,
    /// A connection lives as long as the number it began under.
    generation: u64,
    /// How often the subscribed connections were made black holes.
    silenced: u64,
    /// The connections before that of this number are not read.
    frozen: usize,
    stopped: bool,
}

#[derive(Default)]
struct Record {
    /// Without them it can run for ever.
    forgets_requests: bool,
    requests: Vec<Vec<String>>,
    /// The same requests as they came.
    frames: Vec<Vec<u8>>,
    rules: Vec<Rule>,
    dropped: usize,
    answered: usize,
    duplicated: usize,
    connections: usize,
    silences: Vec<Silence>,
}

/// How long a connection with subscribed channels was a black hole: until it was closed, or had no channel any more.
#[derive(Clone, Copy)]
pub struct Silence {
    pub from: Instant,
    /// None while it lasts.
    pub until: Option<Instant>,
}

/// What becomes of the request that `needle` will be in for the `left`th time from now.
struct Rule {
    needle: String,
    left: usize,
    fate: Fate,
}

enum Fate {
    /// The server never sees it, and the connection is closed.
    DropRequest,
    /// It runs, and the connection is closed instead of passing the reply on.
    DropReply,
    /// The server never sees it; this is the reply.
    Answer(Vec<u8>),
    /// It passes this much later, and all behind it on its connection.
    Delay(Duration),
}

impl Proxy {
    /// Starts a proxy before the server on `upstream_port` of 127.0.0.1.
    pub fn start(upstream_port: u16) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .expect("a free port for the proxy");
        listener.set_nonblocking(true).expect("a non-blocking listener");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        let mode = Mode::Pass;
        let initial =
            Control { mode, upstream_port, generation: 0, silenced: 0, frozen: 0, stopped: false };
        let (control, watcher) = watch::channel(initial);
        let record = Arc::new(Mutex::new(Record::default()));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime for the proxy");
        let thread = thread::Builder::new()
            .name("proxy".to_owned())
            .spawn({
                let record = Arc::clone(&record);
                // Dropping the runtime at the end closes every connection.
                move || runtime.block_on(accept(listener, watcher, record))
            })
            .expect("a thread for the proxy");
        Self { port, control, record, thread: Some(thread) }
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

    /// Closes all connections there are; new ones lead to the server on another port, as after a change of a
    /// name's address.
    pub fn lead_to(&self, upstream_port: u16) {
        self.control.send_modify(|control| {
            control.upstream_port = upstream_port;
            control.generation += 1;
        });
    }

    /// New connections lead to the server on another port; those there are stay open, as behind a service whose
    /// server was demoted.
    pub fn lead_new_to(&self, upstream_port: u16) {
        self.control.send_modify(|control| control.upstream_port = upstream_port);
    }

    /// Closes all connections there are; new ones work.
    pub fn close_all(&self) {
        self.control.send_modify(|control| control.generation += 1);
    }

    /// Makes a black hole of each connection that has subscribed, as a router does that has forgotten it; new
    /// ones work.
    pub fn silence_subscribers(&self) {
        self.control.send_modify(|control| control.silenced += 1);
    }

    /// Reads nothing more from the connections there are, so that the buffers of the system fill up, until
    /// [`thaw`](Self::thaw); new ones work.
    pub fn freeze(&self) {
        let frozen = self.connections();
        self.control.send_modify(|control| control.frozen = frozen);
    }

    /// Passes on again what comes on the connections that were frozen. What a client has sent on one that it has reset since is
    /// lost.
    pub fn thaw(&self) {
        self.control.send_modify(|control| control.frozen = 0);
    }

    /// What became of the connections that [`silence_subscribers`](Self::silence_subscribers) met.
    pub fn silences(&self) -> Vec<Silence> {
        self.record().silences.clone()
    }

    /// Lets the `n`th request from now that has `needle` in its bytes (1 being the next one) run
    /// on the server, then closes its connection instead of passing its reply on.
    ///
    /// Requests on connections that have subscribed under RESP2 are not counted.
    pub fn drop_reply_of(&self, n: usize, needle: &str) {
        self.rule(n, needle, Fate::DropReply);
    }

    /// Answers the `n`th request from now that has `needle` in its bytes (1 being the next one) with these
    /// bytes, whatever they are; the server sees nothing of it.
    ///
    /// Requests on connections that have subscribed under RESP2 are not counted.
    pub fn answer(&self, n: usize, needle: &str, reply: &[u8]) {
        self.rule(n, needle, Fate::Answer(reply.to_vec()));
    }

    fn rule(&self, left: usize, needle: &str, fate: Fate) {
        assert!(left > 0, "the next request is number 1");
        assert!(!needle.is_empty(), "every request would match");
        self.record().rules.push(Rule { needle: needle.to_owned(), left, fate });
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
        let address = (Ipv4Addr::LOCALHOST, self.control.borrow().upstream_port);
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

    /// Closes the connection of the `n`th request from now that has `needle` in its bytes, which the
    /// server never sees.
    pub fn drop_request(&self, n: usize, needle: &str) {
        self.rule(n, needle, Fate::DropRequest);
    }

    /// Passes the `n`th request from now that has `needle` in its bytes on this much later, with all behind it on its
    /// connection.
    pub fn delay_request(&self, n: usize, needle: &str, time: Duration) {
        self.rule(n, needle, Fate::Delay(time));
    }

    /// Keeps no requests from now on, for runs that are long.
    pub fn forget_requests(&self) {
        let mut record = self.record();
        record.forgets_requests = true;
        record.requests = Vec::new();
        record.frames = Vec::new();
    }

    /// How many requests and replies were dropped by [`drop_reply_of`](Self::drop_reply_of) and
    /// [`drop_request`](Self::drop_request).
    pub fn dropped(&self) -> usize {
        self.record().dropped
    }

    /// How many requests were run twice by [`Mode::Duplicate`].
    pub fn duplicated(&self) -> usize {
        self.record().duplicated
    }

    /// How many connections were accepted so far, those refused at once not counted.
    pub fn connections(&self) -> usize {
        self.record().connections
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
        let Control { mode, upstream_port, generation, .. } = *control.borrow();
        if mode == Mode::Refuse {
            continue;
        }
        let number = {
            let mut record = lock(&record);
            record.connections += 1;
            record.connections - 1
        };
        let (control, record) = (control.clone(), Arc::clone(&record));
        tokio::spawn(async move {
            let mut closing = control.clone();
            tokio::select! {
                // Nothing that arrives after the closing may pass.
                biased;
                _ = closing.wait_for(|control| control.generation != generation) => {}
                // It ends in an error when the server cannot be reached.
                _ = Link::run(client, number, upstream_port, control, record) => {}
            }
        });
    }
}

/// A client's connection and the one to the server that belongs to it.
struct Link {
    /// How many there were before it.
    number: usize,
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
    /// The channels that the client has subscribed.
    channels: HashSet<String>,
    /// How often subscribed connections had been silenced when it began.
    silenced: u64,
    /// Which one of the record is its own.
    silence: Option<usize>,
    upstream_port: u16,
    record: Arc<Mutex<Record>>,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Noted {
    Passed,
    Answered,
    Late(Duration),
    /// The connection is to be closed.
    Closed,
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
        number: usize,
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
        let silenced = control.borrow().silenced;
        let link = Self {
            number,
            silenced,
            silence: None,
            client: to_client,
            server: to_server,
            requests: Vec::new(),
            client_closed: false,
            replies: Vec::new(),
            server_closed: false,
            pending: VecDeque::new(),
            subscribed: false,
            channels: HashSet::new(),
            upstream_port,
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
            if self.number < control.borrow().frozen {
                if control.changed().await.is_err() {
                    return;
                }
                // What is in the system's buffer would not have come to the server.
                if !matches!(from_client.as_ref().take_error(), Ok(None)) {
                    return;
                }
                continue;
            }
            let silent = self.subscribed && control.borrow().silenced != self.silenced;
            if silent {
                while let Some(length) = frame_length(&self.requests) {
                    let frame: Vec<u8> = self.requests.drain(..length).collect();
                    self.note_channels(&frame);
                }
                // A connection without channels has nothing to say.
                if self.channels.is_empty() {
                    self.end_silence()
                } else {
                    self.is_silent()
                }
                tokio::select! {
                    read = from_client.read_buf(&mut self.requests) => match read {
                        Ok(1..) => continue,
                        // The server hears nothing of it, or not for long.
                        _ => return,
                    },
                    changed = control.changed() => if changed.is_err() { return } else { continue },
                }
            }
            if self.pass_requests(&control).await.is_break() {
                return;
            }
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

    /// Keeps the channels that the client has asked for, also if nothing is passed on.
    fn note_channels(&mut self, frame: &[u8]) {
        let text = String::from_utf8_lossy(frame);
        // The number of words; and the length of each before it.
        let mut words = text.split("\r\n").skip(2).step_by(2);
        let verb = words.next().unwrap_or_default().to_ascii_uppercase();
        let channels = words.filter(|word| !word.is_empty()).map(str::to_owned);
        match &*verb {
            "SUBSCRIBE" | "SSUBSCRIBE" => self.channels.extend(channels),
            "UNSUBSCRIBE" | "SUNSUBSCRIBE" => {
                for channel in channels {
                    self.channels.remove(&channel);
                }
            }
            _ => {}
        }
    }

    fn end_silence(&mut self) {
        if let Some(at) = self.silence.take() {
            lock(&self.record).silences[at].until = Some(Instant::now());
        }
    }

    fn is_silent(&mut self) {
        let record = &self.record;
        self.silence.get_or_insert_with(|| {
            let silences = &mut lock(record).silences;
            silences.push(Silence { from: Instant::now(), until: None });
            silences.len() - 1
        });
    }

    /// Breaks once the connections are to be closed.
    async fn pass_requests(&mut self, control: &watch::Receiver<Control>) -> ControlFlow<()> {
        let mode = || control.borrow().mode;
        if let (Mode::Delay(time), false) = (mode(), self.requests.is_empty()) {
            sleep(time).await;
        }
        while mode().passes_requests()
            && let Some(length) = frame_length(&self.requests)
        {
            let frame: Vec<u8> = self.requests.drain(..length).collect();
            self.note_channels(&frame);
            match self.note(frame.clone()) {
                Noted::Closed => return ControlFlow::Break(()),
                Noted::Answered => continue,
                Noted::Passed => {}
                Noted::Late(time) => sleep(time).await,
            }
            if mode() == Mode::Duplicate {
                self.run_again(&frame);
            }
            write(&mut self.server, &frame, mode()).await;
        }
        if self.client_closed && mode().passes_requests() {
            let _ = self.server.shutdown().await;
        }
        ControlFlow::Continue(())
    }

    /// Breaks once the connections are to be closed.
    async fn pass_replies(&mut self, control: &watch::Receiver<Control>) -> ControlFlow<()> {
        let mode = control.borrow().mode;
        if let (Mode::Delay(time), false) = (mode, self.replies.is_empty()) {
            sleep(time).await;
        }
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
                write(&mut self.client, &frame, mode).await;
            }
        }
        let mode = control.borrow().mode;
        let client_done = self.client_closed && mode.passes_requests();
        if self.server_closed && (client_done || mode.passes_replies()) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Runs a script call over a connection of its own, for nobody to see the reply.
    fn run_again(&self, frame: &[u8]) {
        let is_call = words(frame).first().is_some_and(|word| word.starts_with("EVAL"));
        if !is_call {
            return;
        }
        lock(&self.record).duplicated += 1;
        let (port, frame) = (self.upstream_port, frame.to_owned());
        tokio::spawn(timeout(Duration::from_secs(5), async move {
            let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            server.write_all(&frame).await?;
            let mut reply = Vec::new();
            while frame_length(&reply).is_none() && server.read_buf(&mut reply).await? > 0 {}
            io::Result::Ok(())
        }));
    }

    /// Records a request and decides its fate and that of its reply.
    fn note(&mut self, frame: Vec<u8>) -> Noted {
        let words = words(&frame);
        let first = words.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
        let subscribes = matches!(first.as_str(), "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE");
        let mut record = lock(&self.record);
        let mut fate = None;
        record.rules.retain_mut(|rule| {
            // Where messages come, no reply can be told.
            if self.subscribed && !matches!(rule.fate, Fate::Delay(_)) {
                return true;
            }
            rule.left -= usize::from(contains(&frame, &rule.needle));
            if rule.left == 0 {
                fate = Some(std::mem::replace(&mut rule.fate, Fate::DropReply));
            }
            rule.left > 0
        });
        let (noted, drop_reply, answer) = match fate {
            Some(Fate::DropRequest) => {
                record.dropped += 1;
                return Noted::Closed;
            }
            Some(Fate::Answer(reply)) => (Noted::Answered, false, Some(reply)),
            Some(Fate::DropReply) => (Noted::Passed, true, None),
            Some(Fate::Delay(time)) => (Noted::Late(time), false, None),
            None => (Noted::Passed, false, None),
        };
        record.answered += usize::from(noted == Noted::Answered);
        if noted != Noted::Answered && !record.forgets_requests {
            record.requests.push(words);
            record.frames.push(frame);
        }
        if !self.subscribed {
            self.pending.push_back(Pending { drop_reply, answer, subscribes });
        }
        noted
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

impl Drop for Link {
    fn drop(&mut self) {
        self.end_silence();
    }
}

/// Passes a frame on as fast as the mode says; an error shows in the next read from the other side.
async fn write(to: &mut OwnedWriteHalf, frame: &[u8], mode: Mode) {
    if mode != Mode::Drip {
        let _ = to.write_all(frame).await;
        return;
    }
    for slice in frame.chunks(SLICE) {
        let _ = to.write_all(slice).await;
        sleep(PAUSE).await;
    }
}
