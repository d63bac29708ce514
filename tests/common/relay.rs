//! Passes bytes between two sides, and stops when told to, as a network does.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use leasehold::clock::{Clock, Instant};

/// What passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Pass,
    /// Connections stay open, and nothing passes until it may again.
    Hold,
    /// Connections are closed, and new ones at once.
    Refuse,
}

/// A relay on a port of its own, with threads of its own.
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: u16,
    /// Whether it looks at what passes: ZooKeeper's requests and replies.
    framed: bool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    flow: Flow,
    stopped: bool,
    streams: Vec<TcpStream>,
    /// Of which kind of request the next reply is to be lost, and its connection with it.
    lose: Option<i32>,
    lost: usize,
    connections: usize,
    requests: Vec<(i32, Instant)>,
}

/// ZooKeeper's kinds of requests.
pub mod request {
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const SET_DATA: i32 = 5;
    pub const CREATE: i32 = 15;
}

impl Relay {
    /// Between clients and the ZooKeeper server on this port.
    pub fn to_server(upstream: u16) -> Self {
        Self::start(upstream, true)
    }

    /// Between anything else.
    pub fn of_bytes(upstream: u16) -> Self {
        Self::start(upstream, false)
    }

    fn start(upstream: u16, framed: bool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        let (lose, requests, streams) = (None, Vec::new(), Vec::new());
        let state = State {
            flow: Flow::Pass,
            stopped: false,
            streams,
            lose,
            lost: 0,
            connections: 0,
            requests,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { upstream, framed, state, changed });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if accepting.lock().stopped {
                    return;
                }
                let shared = Arc::clone(&accepting);
                thread::spawn(move || shared.serve(stream));
            }
        });
        Self { port, shared }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}", self.port)
    }

    pub fn set(&self, flow: Flow) {
        let mut state = self.shared.lock();
        state.flow = flow;
        if flow == Flow::Refuse {
            state.close_all();
        }
        self.shared.changed.notify_all();
    }

    /// Lets the next request of a kind run on the server, then closes its connection instead of passing the
    /// reply on.
    pub fn lose_reply_of(&self, kind: i32) {
        self.shared.lock().lose = Some(kind);
    }

    /// How many replies were lost so.
    pub fn lost(&self) -> usize {
        self.shared.lock().lost
    }

    /// How many connections were made to the server so far.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections
    }

    /// When requests of a kind passed.
    pub fn times_of(&self, kind: i32) -> Vec<Instant> {
        let state = self.shared.lock();
        state.requests.iter().filter(|(of, _)| *of == kind).map(|(_, at)| *at).collect()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stopped = true;
        state.close_all();
        drop(state);
        self.shared.changed.notify_all();
        // Wakes who accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl State {
    fn close_all(&mut self) {
        for stream in self.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The request of a connection whose reply is to be lost.
type Marked = Arc<Mutex<Option<[u8; 4]>>>;

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while nothing may pass; an error when all is over.
    fn until_it_flows(&self) -> io::Result<()> {
        let mut state = self.lock();
        while state.flow == Flow::Hold && !state.stopped {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stopped || state.flow == Flow::Refuse {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    fn serve(self: Arc<Self>, client: TcpStream) {
        // Errors end the connection, as they do on a network.
        let _ = self.connect(client);
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        self.until_it_flows()?;
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.upstream))?;
        self.lock().connections += 1;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            self.lock().streams.push(stream.try_clone()?);
        }
        let marked = Marked::default();
        let there = (client.try_clone()?, server.try_clone()?, Arc::clone(&marked));
        let shared = Arc::clone(self);
        thread::spawn(move || {
            let (client, server, marked) = there;
            let _ = shared.pass(&client, &server, |frame| shared.note(frame, &marked));
            let _ = server.shutdown(Shutdown::Both);
            let _ = client.shutdown(Shutdown::Both);
        });
        let result = self.pass(&server, &client, |frame| self.answers(frame, &marked));
        let _ = server.shutdown(Shutdown::Both);
        let _ = client.shutdown(Shutdown::Both);
        result
    }

    /// Passes on until one side ends, or until `look` says that a frame must not pass.
    fn pass(
        &self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        mut look: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<()> {
        let mut first = true;
        loop {
            let bytes = if self.framed { read_frame(from)? } else { read_some(&mut from)? };
            self.until_it_flows()?;
            // The first frame of each side is about the session.
            if self.framed && !std::mem::take(&mut first) && !look(&bytes) {
                self.lock().lost += 1;
                return Ok(());
            }
            to.write_all(&bytes)?;
        }
    }

    fn note(&self, frame: &[u8], marked: &Marked) -> bool {
        let (Some(number), Some(kind)) = (word(frame, 4), word(frame, 8)) else { return true };
        let kind = i32::from_be_bytes(kind);
        let mut state = self.lock();
        state.requests.push((kind, Clock::system().now()));
        if state.lose == Some(kind) {
            state.lose = None;
            *marked.lock().unwrap_or_else(PoisonError::into_inner) = Some(number);
        }
        true
    }

    fn answers(&self, frame: &[u8], marked: &Marked) -> bool {
        let marked = *marked.lock().unwrap_or_else(PoisonError::into_inner);
        marked.is_none() || word(frame, 4) != marked
    }
}

fn word(frame: &[u8], at: usize) -> Option<[u8; 4]> {
    frame.get(at..at + 4)?.try_into().ok()
}

/// A frame with its length before it.
fn read_frame(mut from: &TcpStream) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame)?;
    let length = word(&frame, 0).map_or(0, u32::from_be_bytes) as usize;
    frame.resize(4 + length, 0);
    from.read_exact(&mut frame[4..])?;
    Ok(frame)
}

fn read_some(from: &mut &TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 64 * 1024];
    match from.read(&mut bytes)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        length => {
            bytes.truncate(length);
            Ok(bytes)
        }
    }
}
