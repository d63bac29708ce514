//! A tiny blocking Redis client: the tests' own view of the server, which shares no code with
//! the client library under test.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// How long a command may take before it counts as unanswered.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Nil,
    Int(i64),
    /// A simple or a bulk string; bytes that are not UTF-8 are replaced.
    Text(String),
    Error(String),
    List(Vec<Reply>),
}

impl Reply {
    /// The number, also when the server sent it as text (as `GET` does).
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Reply::Int(number) => *number,
            Reply::Text(text) => match text.parse() {
                Ok(number) => number,
                Err(_) => panic!("expected a number, the server replied {self:?}"),
            },
            _ => panic!("expected a number, the server replied {self:?}"),
        }
    }

    /// The text, also of a number.
    #[track_caller]
    pub fn text(self) -> String {
        match self {
            Reply::Text(text) => text,
            Reply::Int(number) => number.to_string(),
            other => panic!("expected text, the server replied {other:?}"),
        }
    }

    #[track_caller]
    pub fn list(self) -> Vec<Reply> {
        match self {
            Reply::List(items) => items,
            other => panic!("expected a list, the server replied {other:?}"),
        }
    }

    pub fn is_nil(&self) -> bool {
        *self == Reply::Nil
    }

    /// The text of an error reply.
    pub fn error(&self) -> Option<&str> {
        match self {
            Reply::Error(text) => Some(text),
            _ => None,
        }
    }

    /// A flat list of keys and values, such as the reply to `HGETALL`, in the server's order.
    #[track_caller]
    pub fn pairs(self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        let mut items = self.list().into_iter();
        while let Some(key) = items.next() {
            let value = items.next().expect("a list of pairs has an even length");
            pairs.push((key.text(), value.text()));
        }
        pairs
    }
}

/// One connection to a server, over which commands go one at a time unless a test pipelines
/// them itself with [`send`](Self::send) and [`receive`](Self::receive).
pub struct Resp {
    stream: BufReader<TcpStream>,
    /// Messages that arrived while the reply to another `SUBSCRIBE` was awaited.
    messages: VecDeque<(String, String)>,
}

impl Resp {
    /// Connects to a port of 127.0.0.1.
    #[track_caller]
    pub fn connect(port: u16) -> Self {
        Self::connect_to(Ipv4Addr::LOCALHOST, port)
    }

    /// Connects to another address of this machine.
    #[track_caller]
    pub fn connect_to(address: Ipv4Addr, port: u16) -> Self {
        match Self::try_connect_to(address, port) {
            Ok(connection) => connection,
            Err(error) => panic!("cannot connect to {address}:{port}: {error}"),
        }
    }

    pub fn try_connect(port: u16) -> io::Result<Self> {
        Self::try_connect_to(Ipv4Addr::LOCALHOST, port)
    }

    fn try_connect_to(address: Ipv4Addr, port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect((address, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream), messages: VecDeque::new() })
    }

    /// Changes how long [`receive`](Self::receive) waits (5 s at first).
    pub fn set_timeout(&mut self, timeout: Duration) {
        // Zero would be refused, as it means "forever" to the system.
        let timeout = timeout.max(Duration::from_millis(1));
        self.stream.get_ref().set_read_timeout(Some(timeout)).expect("a timeout above zero");
    }

    /// Sends a command and waits for its reply; an error *reply* is a [`Reply::Error`].
    #[track_caller]
    pub fn command(&mut self, words: &[&str]) -> Reply {
        match self.try_command(words) {
            Ok(reply) => reply,
            Err(error) => panic!("no reply to {words:?}: {error}"),
        }
    }

    /// Like [`command`](Self::command), for tests that expect the connection to fail.
    ///
    /// After a timeout the reply may still arrive, so the connection is of no further use.
    pub fn try_command(&mut self, words: &[&str]) -> io::Result<Reply> {
        self.send(words)?;
        self.receive()
    }

    /// Sends a command without waiting for its reply.
    pub fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())
    }

    /// Waits for the next reply.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n").filter(|line| !line.is_empty()) else {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"));
        };
        let (kind, rest) = line.split_at(1);
        let number = || {
            let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, line.to_owned());
            rest.parse::<i64>().map_err(invalid)
        };
        match kind {
            "+" => Ok(Reply::Text(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Int(number()?)),
            "_" => Ok(Reply::Nil),
            "$" => match usize::try_from(number()?) {
                Ok(length) => self.bulk(length),
                Err(_) => Ok(Reply::Nil),
            },
            // Maps and pushes are RESP3: only tests that say HELLO 3 themselves meet them.
            "*" | "~" | ">" => match usize::try_from(number()?) {
                Ok(length) => self.items(length),
                Err(_) => Ok(Reply::Nil),
            },
            "%" => self.items(2 * number()?.unsigned_abs() as usize),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, line.to_owned())),
        }
    }

    fn bulk(&mut self, length: usize) -> io::Result<Reply> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        Ok(Reply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned()))
    }

    fn items(&mut self, length: usize) -> io::Result<Reply> {
        (0..length).map(|_| self.receive()).collect::<io::Result<_>>().map(Reply::List)
    }

    /// Subscribes to a channel; returns once the server has confirmed it.
    #[track_caller]
    pub fn subscribe(&mut self, channel: &str) {
        let mut reply = self.command(&["SUBSCRIBE", channel]);
        while let Some(message) = message_of(&reply) {
            self.messages.push_back(message);
            reply = self.receive().expect("the server confirms the subscription");
        }
        assert_eq!(reply.list()[0], Reply::Text("subscribe".to_owned()));
    }

    /// The channel and the payload of the next message, if one arrives within `timeout`.
    #[track_caller]
    pub fn next_message(&mut self, timeout: Duration) -> Option<(String, String)> {
        if let Some(message) = self.messages.pop_front() {
            return Some(message);
        }
        // The short timeout covers the first byte only: it never leaves half a message read.
        self.set_timeout(timeout);
        let arrived = self.stream.fill_buf().map(|bytes| !bytes.is_empty());
        self.set_timeout(TIMEOUT);
        match arrived {
            Ok(true) => {
                let reply = self.receive().expect("a message arrives in one piece");
                let message = message_of(&reply);
                assert!(message.is_some(), "expected a message, the server sent {reply:?}");
                message
            }
            Ok(false) => panic!("the connection of the subscription was closed"),
            Err(error) if is_timeout(&error) => None,
            Err(error) => panic!("the connection of the subscription failed: {error}"),
        }
    }
}

/// Whether a read ended because its time was up (which platforms report in two ways).
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn message_of(reply: &Reply) -> Option<(String, String)> {
    match reply {
        Reply::List(items) => match items.as_slice() {
            [Reply::Text(kind), Reply::Text(channel), Reply::Text(payload)]
                if kind == "message" =>
            {
                Some((channel.clone(), payload.clone()))
            }
            _ => None,
        },
        _ => None,
    }
}
