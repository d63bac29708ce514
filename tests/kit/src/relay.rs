//! Passes bytes between two sides, and stops on request, as a network does.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use leasehold::clock::{Clock, Instant};

/// What passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Traffic {
    #[default]
    Pass,
    /// Connections stay open, and nothing passes until it may again.
    Hold,
    /// Connections are closed, and new ones at once.
    Refuse,
    /// Who made a connection sees it closed, and new ones at once; who accepted it hears nothing more.
    Orphan,
}

/// A relay on a port of its own, with threads of its own.
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: u16,
    between: Between,
    state: Mutex<State>,
    changed: Condvar,
}

/// What a relay knows of the bytes that pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    /// Requests and replies of ZooKeeper in their frames.
    ClientAndServer,
    /// A message with the caller's number and address, then bytes.
    Electors,
    Anyone,
}

#[derive(Default)]
struct State {
    traffic: Traffic,
    stopped: bool,
    /// Each with who made it and who accepted it.
    streams: Vec<(TcpStream, TcpStream)>,
    /// Of which kind of request the next reply is to be lost, and its connection with it.
    lose: Option<i32>,
    lost: usize,
    /// With that reply all connections, until it is told otherwise.
    then_refuse: bool,
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
        Self::start(upstream, Between::ClientAndServer)
    }

    /// To the port for elections of a ZooKeeper server.
    ///
    /// A server calls one with a lower number back, at the address that the lower one names, which is past the
    /// relay. This relay leaves that address out, so the server uses the one in its configuration.
    pub fn of_elections(upstream: u16) -> Self {
        Self::start(upstream, Between::Electors)
    }

    /// Between anything else.
    pub fn of_bytes(upstream: u16) -> Self {
        Self::start(upstream, Between::Anyone)
    }

    fn start(upstream: u16, between: Between) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        let state = Mutex::default();
        let shared = Arc::new(Shared { upstream, between, state, changed: Condvar::new() });
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

    pub fn set(&self, traffic: Traffic) {
        let mut state = self.shared.lock();
        state.traffic = traffic;
        match traffic {
            Traffic::Pass | Traffic::Hold => {}
            Traffic::Refuse => state.close_all(),
            Traffic::Orphan => state.streams.iter().for_each(|(maker, _)| close(maker)),
        }
        self.shared.changed.notify_all();
    }

    /// Lets the next request of a kind run on the server, then closes its connection instead of passing the
    /// reply on.
    pub fn lose_reply_of(&self, kind: i32) {
        self.shared.lock().lose = Some(kind);
    }

    /// As [`Self::lose_reply_of`]; from then on connections are refused.
    pub fn lose_reply_and_refuse(&self, kind: i32) {
        self.shared.lock().then_refuse = true;
        self.lose_reply_of(kind);
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
        for (maker, accepter) in self.streams.drain(..) {
            close(&maker);
            close(&accepter);
        }
    }
}

/// It may be closed already.
fn close(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

/// The request of a connection whose reply is to be lost.
type Marked = Arc<Mutex<Option<[u8; 4]>>>;

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while nothing may pass; an error when all is over.
    fn until_it_passes(&self) -> io::Result<()> {
        let state = self.wait_while(|traffic| matches!(traffic, Traffic::Hold | Traffic::Orphan));
        if state.stopped || state.traffic == Traffic::Refuse {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    fn wait_while(&self, so: impl Fn(Traffic) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while so(state.traffic) && !state.stopped {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    fn serve(self: Arc<Self>, client: TcpStream) {
        // Errors end the connection, as they do on a network.
        let _ = self.connect(client);
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        if self.lock().traffic == Traffic::Orphan {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        self.until_it_passes()?;
        let server = self.call()?;
        self.lock().connections += 1;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        self.lock().streams.push((client.try_clone()?, server.try_clone()?));
        let marked = Marked::default();
        let there = (client.try_clone()?, server.try_clone()?, Arc::clone(&marked));
        let shared = Arc::clone(self);
        thread::spawn(move || {
            let (client, server, marked) = there;
            let _ = shared
                .introduce(&client, &server)
                .and_then(|()| shared.pass(&client, &server, |frame| shared.note(frame, &marked)));
            shared.end(&client, &server);
        });
        let result = self.pass(&server, &client, |frame| self.answers(frame, &marked));
        self.end(&client, &server);
        result
    }

    /// Passes the first message of an elector without its address.
    ///
    /// It is a version, the number of the server, a length and the address. A server of an older version sends its
    /// number alone, and servers still understand that.
    fn introduce(&self, mut client: &TcpStream, mut server: &TcpStream) -> io::Result<()> {
        if self.between != Between::Electors {
            return Ok(());
        }
        let mut head = [0; 20];
        client.read_exact(&mut head)?;
        let length = word(&head, 16).map_or(0, u32::from_be_bytes) as usize;
        client.read_exact(&mut vec![0; length])?;
        self.until_it_passes()?;
        server.write_all(&head[8..16])
    }

    /// Who was let in here does not call again if nobody listens there yet, as an ensemble's members do: this does.
    fn call(&self) -> io::Result<TcpStream> {
        let mut tries = if self.between == Between::ClientAndServer { 1 } else { 100 };
        loop {
            let result = TcpStream::connect((Ipv4Addr::LOCALHOST, self.upstream));
            tries -= 1;
            if result.is_ok() || tries == 0 {
                return result;
            }
            thread::sleep(Duration::from_millis(20));
            self.until_it_passes()?;
        }
    }

    fn end(&self, client: &TcpStream, server: &TcpStream) {
        close(client);
        drop(self.wait_while(|traffic| traffic == Traffic::Orphan));
        close(server);
    }

    /// Passes on until one side ends, or until `look` says that a frame must not pass.
    fn pass(
        &self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        mut look: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<()> {
        let framed = self.between == Between::ClientAndServer;
        let mut first = true;
        loop {
            let bytes = if framed { read_frame(from)? } else { read_some(&mut from)? };
            self.until_it_passes()?;
            // The first frame of each side is about the session.
            if framed && !std::mem::take(&mut first) && !look(&bytes) {
                let mut state = self.lock();
                state.lost += 1;
                if std::mem::take(&mut state.then_refuse) {
                    state.traffic = Traffic::Refuse;
                    state.close_all();
                }
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
