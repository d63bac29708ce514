//! A way to a server that knows nothing but bytes: it can be slow, pass them in small pieces, or close
//! each new connection at once. It counts connections.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How bytes are passed on, in both directions.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long a piece that was read waits before it is passed on.
    pub latency: Duration,
    /// How many bytes are written at once.
    pub piece: usize,
    /// Between two writes.
    pub gap: Duration,
    /// Closes new connections at once, before a byte is read.
    pub closed: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { latency: Duration::ZERO, piece: usize::MAX, gap: Duration::ZERO, closed: false }
    }
}

/// Its threads end with the connections, the one that accepts with the process.
pub struct Pipe {
    port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    pace: Pace,
    connections: Vec<TcpStream>,
    accepted: usize,
}

impl Pipe {
    /// Starts a pipe before the server on `upstream` of 127.0.0.1.
    pub fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let closed = {
                    let mut state = lock(&shared);
                    state.accepted += 1;
                    state.pace.closed
                };
                if !closed {
                    join(client, upstream, &shared);
                }
            }
        });
        Self { port, state }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the pace of all that is read from now on.
    pub fn set(&self, pace: Pace) {
        lock(&self.state).pace = pace;
    }

    /// Closes all connections there are.
    pub fn close_all(&self) {
        for connection in lock(&self.state).connections.drain(..) {
            // It may be closed already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// How many connections were made so far.
    pub fn accepted(&self) -> usize {
        lock(&self.state).accepted
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn join(client: TcpStream, upstream: u16, state: &Arc<Mutex<State>>) {
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)) else { return };
    let again = |stream: &TcpStream| stream.try_clone().expect("a second handle");
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a TCP connection");
    }
    lock(state).connections.extend([again(&client), again(&server)]);
    for (from, to) in [(again(&client), again(&server)), (server, client)] {
        let state = Arc::clone(state);
        thread::spawn(move || pump(from, to, &state));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, state: &Mutex<State>) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        let Pace { latency, piece, gap, .. } = lock(state).pace;
        thread::sleep(latency);
        for piece in bytes[..length].chunks(piece) {
            if to.write_all(piece).is_err() {
                return;
            }
            if !gap.is_zero() {
                thread::sleep(gap);
            }
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
