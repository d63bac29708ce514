//! A server that gives prepared answers, and forwards the rest to a real server.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use super::frame::{frame_length, words};

/// What is said to the words of a request; `None` passes it on.
type Answer = dyn Fn(&[String]) -> Option<String> + Send + Sync;

/// It serves until the process ends.
pub struct Stub {
    port: u16,
}

impl Stub {
    /// Before the server on a port, or before none, which refuses what it is not told to answer.
    pub fn start(
        upstream: Option<u16>,
        answer: impl Fn(&[String]) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        let answer: Arc<Answer> = Arc::new(answer);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let answer = Arc::clone(&answer);
                // It ends when either side closes its connection.
                thread::spawn(move || serve(client, upstream, &*answer));
            }
        });
        Self { port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

fn serve(mut client: TcpStream, upstream: Option<u16>, answer: &Answer) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut server = match upstream {
        Some(port) => Some(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?),
        None => None,
    };
    let mut requests = Vec::new();
    loop {
        let request = frame(&mut client, &mut requests)?;
        let reply = match (answer(&words(&request)), &mut server) {
            (Some(reply), _) => reply.into_bytes(),
            (None, Some(server)) => {
                server.write_all(&request)?;
                frame(server, &mut Vec::new())?
            }
            (None, None) => greeting(&words(&request)).as_bytes().to_vec(),
        };
        client.write_all(&reply)?;
    }
}

/// To what a client asks when it connects.
fn greeting(words: &[String]) -> &'static str {
    match words.first().map(String::as_str) {
        Some("PING") => "+PONG\r\n",
        Some("CLIENT") => ":1\r\n",
        Some("INFO") => "+redis_version:7.0.15\r\n",
        _ => "-ERR unknown command\r\n",
    }
}

/// The next whole frame; what follows it stays in the buffer.
fn frame(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    loop {
        if let Some(length) = frame_length(buffer) {
            return Ok(buffer.drain(..length).collect());
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => buffer.extend_from_slice(&bytes[..count]),
        }
    }
}

/// A list of texts, as a server writes it.
pub fn list(words: &[&str]) -> String {
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}
