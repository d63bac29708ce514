//! The Lua scripts, and the connection that runs them.

use super::replies::{self, Element};
use crate::error::{Error, ErrorKind, Fate, Result};
use fred::bytes::Bytes;
use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::fmt::{Display, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

/// A script and the name under which servers remember it.
pub(super) struct Script {
    source: &'static str,
    sha: LazyLock<String>,
}

macro_rules! script {
    ($($file:literal),+) => {
        Script {
            source: concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+),
            sha: LazyLock::new(|| {
                fred::util::sha1_hash(concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+))
            }),
        }
    };
}

pub(super) static BATCH: Script = script!("common", "acquire", "release", "batch");
pub(super) static RENEW: Script = script!("common", "renew");
pub(super) static FORCE: Script = script!("common", "force");
pub(super) static INSPECT: Script = script!("inspect");
pub(super) static AGE: Script = script!("age");

/// The keys and arguments of one call, in one buffer: an allocation for each would cost more than
/// the rest of the call.
#[derive(Debug, Default)]
pub(super) struct Call {
    text: String,
    keys: Vec<Word>,
    args: Vec<Word>,
}

#[derive(Debug)]
enum Word {
    /// A part of the buffer.
    Text(Range<usize>),
    Number(i64),
}

impl Call {
    pub(super) fn key(&mut self, parts: &[&str]) {
        let word = self.word(|text| text.extend(parts.iter().copied()));
        self.keys.push(word);
    }

    pub(super) fn text(&mut self, text: impl Display) {
        let word = self.word(|buffer| {
            // A String takes whatever is written to it.
            let _ = write!(buffer, "{text}");
        });
        self.args.push(word);
    }

    pub(super) fn number(&mut self, number: u64) {
        // fred has no unsigned integers; none of ours reaches 2^63.
        self.args.push(Word::Number(i64::try_from(number).unwrap_or(i64::MAX)));
    }

    fn word(&mut self, write: impl FnOnce(&mut String)) -> Word {
        let start = self.text.len();
        write(&mut self.text);
        Word::Text(start..self.text.len())
    }
}

/// All words of a command.
fn words(head: &'static str, text: &Bytes, keys: &[Word], args: &[Word]) -> Vec<Value> {
    let mut words = Vec::with_capacity(2 + keys.len() + args.len());
    words.push(Value::from_static_str(head));
    words.push(Value::Integer(keys.len() as i64));
    words.extend(keys.iter().chain(args).map(|word| match word {
        Word::Text(range) => Value::Bytes(text.slice(range.clone())),
        Word::Number(number) => Value::Integer(*number),
    }));
    words
}

impl Script {
    /// Runs the script once: by its name, and if the server does not know that, by its text.
    ///
    /// Not through fred's Lua interface: per-command options do not reach that.
    pub(super) async fn run(
        &'static self,
        client: &Client,
        call: Call,
        timeout: Duration,
    ) -> Result<Vec<Element>> {
        let Call { text, keys, args } = call;
        let text = Bytes::from(text);
        let options = Options {
            max_attempts: Some(1),
            timeout: Some(timeout.max(Duration::from_millis(1))),
            ..Options::default()
        };
        let client = client.with_options(&options);
        let by_name = CustomCommand::new_static("EVALSHA", ClusterHash::Offset(2), false);
        let reply: Result<Value, fred::error::Error> =
            client.custom(by_name, words(&self.sha, &text, &keys, &args)).await;
        let reply = match reply {
            Err(error) if error.details().starts_with("NOSCRIPT") => {
                let by_text = CustomCommand::new_static("EVAL", ClusterHash::Offset(2), false);
                client.custom(by_text, words(self.source, &text, &keys, &args)).await
            }
            reply => reply,
        };
        elements(reply.map_err(|error| sorted(&error))?)
    }
}

/// A connection for scripts.
#[derive(Clone)]
pub(super) struct Link {
    client: Client,
    reconnecting: Arc<AtomicBool>,
    attempt: Duration,
}

impl Link {
    pub(super) fn new(client: Client, attempt: Duration) -> Self {
        Self { client, reconnecting: Arc::default(), attempt }
    }

    pub(super) async fn run(
        &self,
        script: &'static Script,
        call: Call,
        timeout: Duration,
    ) -> Result<Vec<Element>> {
        let result = script.run(&self.client, call, timeout).await;
        if let Err(error) = &result
            && error.is_unavailable()
            && error.fate() == Fate::Unknown
        {
            self.renew_connection();
        }
        result
    }

    /// After a time-out the connection may be half dead, and fred may not notice while commands go out.
    fn renew_connection(&self) {
        if self.reconnecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let link = self.clone();
        tokio::spawn(async move {
            // On a stalled server this itself hangs; nobody waits for it.
            let _ = timeout(link.attempt * 2, link.client.force_reconnection()).await;
            link.reconnecting.store(false, Ordering::Release);
        });
    }

    /// Tells each reconnect, until the client ends.
    pub(super) fn tell_reconnects(&self, reconnects: &Arc<Notify>) {
        let (told, mut events) = (Arc::clone(reconnects), self.client.reconnect_rx());
        tokio::spawn(async move {
            while !matches!(events.recv().await, Err(RecvError::Closed)) {
                told.notify_one();
            }
        });
    }

    pub(super) async fn close(&self) {
        let _ = timeout(self.attempt, self.client.quit()).await;
    }
}

fn elements(reply: Value) -> Result<Vec<Element>> {
    let Value::Array(values) = reply else {
        return Err(replies::nonsense());
    };
    values.into_iter().map(element).collect()
}

fn element(value: Value) -> Result<Element> {
    match value {
        Value::Integer(value) => Ok(Element::Int(value)),
        Value::String(text) => Ok(Element::Text(text.to_string())),
        Value::Bytes(bytes) => Ok(Element::Text(String::from_utf8_lossy(&bytes).into_owned())),
        _ => Err(replies::nonsense()),
    }
}

/// Sorts a failure of fred's: first by the server's words, then by what fred knows.
pub(super) fn sorted(error: &fred::error::Error) -> Error {
    use fred::error::ErrorKind as Kind;

    let text = error.details();
    let sorted = replies::sort(text);
    if sorted.fate() == Fate::NotExecuted || sorted.kind() != ErrorKind::Unavailable {
        return sorted;
    }
    let (kind, message, fate) = match error.kind() {
        Kind::Auth => {
            (ErrorKind::Denied, "the server refuses this user or password", Fate::NotExecuted)
        }
        Kind::Timeout => {
            (ErrorKind::Unavailable, "the server did not answer in time", Fate::Unknown)
        }
        Kind::IO => (ErrorKind::Unavailable, io_failure(text), Fate::Unknown),
        Kind::Canceled => (ErrorKind::Unavailable, "the connection was closed", Fate::Unknown),
        Kind::Backpressure => {
            (ErrorKind::Unavailable, "the client's queue is full", Fate::NotExecuted)
        }
        Kind::Protocol | Kind::Parse => (
            ErrorKind::Unavailable,
            "the server's reply cannot be read; is it Redis?",
            Fate::Unknown,
        ),
        _ => return sorted,
    };
    // fred's text is for those who debug: it stays in the source.
    let source = fred::error::Error::new(error.kind().clone(), replies::harmless(text).to_owned());
    Error::new(kind, message).with_fate(fate).with_source(source)
}

fn io_failure(text: &str) -> &'static str {
    if text.contains("ConnectionRefused") {
        "nobody listens at the server's address"
    } else if text.contains("NotFound") {
        "there is no such socket"
    } else {
        "the connection to the server failed"
    }
}
