//! The Lua scripts, and how they are called.

pub(super) mod keys;
pub(super) mod line;
pub(super) mod lock;
pub(super) mod managers;
pub(super) mod metadata;
pub(super) mod notes;
pub(super) mod permits;
pub(super) mod reply;
pub(super) mod rw;
pub(super) mod set;
pub(super) mod shared;

use crate::store::connect::remote::Replicas;
use fred::bytes::Bytes;
use fred::clients::Client;
use fred::error::ErrorKind;
use fred::interfaces::ClientLike;
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Resp3Frame, Value};
use reply::Element;
use std::fmt::Display;
use std::future::Future;
use std::io::Write;
use std::ops::Range;
use std::pin::pin;
use std::sync::LazyLock;
use std::time::Duration;

/// A script, and the name under which servers cache it.
pub(super) struct Script {
    source: &'static str,
    sha: LazyLock<String>,
}

include!("compose.rs");

macro_rules! script {
    ($($source:tt)+) => {
        Script {
            source: compose!("./" $($source)+),
            sha: LazyLock::new(|| fred::util::sha1_hash(compose!("./" $($source)+))),
        }
    };
}

/// The scripts that wake waiters, in two variants.
pub(super) struct Scripts {
    pub(super) release: Script,
    pub(super) batch: Script,
    pub(super) force: Script,
    pub(super) rw_acquire: Script,
    pub(super) rw_release: Script,
    pub(super) rw_force: Script,
    pub(super) rw_leave: Script,
    pub(super) permits_acquire: Script,
    pub(super) permits_release: Script,
    pub(super) permits_renew: Script,
    pub(super) permits_force: Script,
    pub(super) permits_resize: Script,
    pub(super) release_keep: Script,
    pub(super) line_acquire: Script,
    pub(super) line_release: Script,
    pub(super) line_leave: Script,
    pub(super) annotate: Script,
    /// Whether messages stay among the servers of their slot.
    pub(super) sharded: bool,
    pub(super) steal: Script,
    pub(super) want: Script,
}

impl Scripts {
    /// Returns the subcommand of `PUBSUB` that counts the subscribers of a channel.
    pub(super) fn numsub(&self) -> &'static str {
        if self.sharded { "SHARDNUMSUB" } else { "NUMSUB" }
    }
}

/// Makes the scripts that wake waiters by the verb of a part.
macro_rules! scripts {
    ($publish:literal, $sharded:literal) => {
        Scripts {
            sharded: $sharded,
            annotate: script!(, annotate, $publish),
            release: script!(, release, $publish),
            batch: script!(, batch, $publish),
            force: script!(, force, $publish),
            rw_acquire: script!(, rw_acquire, $publish),
            rw_release: script!(, rw, "rw_release", $publish),
            rw_force: script!(, rw_force, $publish),
            rw_leave: script!(, rw, "rw_leave", $publish),
            permits_acquire: script!(, permits, "permits_acquire", $publish),
            permits_release: script!(, permits, "permits_release", $publish),
            permits_renew: script!(, permits, "permits_renew", $publish),
            permits_force: script!(, permits, "permits_force", $publish),
            permits_resize: script!(, permits, "permits_resize", $publish),
            release_keep: script!(, release_keep, $publish),
            line_acquire: script!(, line_acquire, $publish),
            line_release: script!(, line_release, $publish),
            line_leave: script!(, line_leave, $publish),
            steal: script!(, steal, $publish),
            want: script!(, want, $publish),
        }
    };
}

pub(super) static PLAIN: Scripts = scripts!("publish", false);
/// For a cluster, where a message stays among the servers of its slot.
pub(super) static SHARDED: Scripts = scripts!("publish_shard", true);
pub(super) static ACQUIRE: Script = script!(, acquire);
pub(super) static ACQUIRE_ALL: Script = script!(, acquire_all);
pub(super) static RENEW: Script = script!(, renew);
pub(super) static INSPECT: Script = script!(; "inspect");
pub(super) static METADATA: Script = script!(; "metadata");
pub(super) static DESCRIBE: Script = script!(, describe);
pub(super) static OWNER: Script = script!(; "owner");
pub(super) static RW_RENEW: Script = script!(, rw_renew);
pub(super) static RW_INSPECT: Script = script!(, rw, "rw_inspect");
pub(super) static PERMITS_INSPECT: Script = script!(, permits, "permits_inspect");
pub(super) static NOTE_READ: Script = script!(; "note_read");
pub(super) static HINT: Script = script!(; "hint");
pub(super) static LINE_INSPECT: Script = script!(, line_inspect);
/// Does nothing. No server knows its name, so its text is sent, which tests the permission: scripts in the cache of a
/// server do not need it until the server drops them.
pub(super) static BY_TEXT: Script =
    Script { source: "return {}", sha: LazyLock::new(|| "0".repeat(40)) };
pub(super) static AGE: Script = script!(; "age");

/// The keys and arguments of one call, in one buffer: an allocation for each would cost more than
/// the rest of the call.
#[derive(Debug, Default)]
pub(super) struct Call {
    text: Vec<u8>,
    /// The keys and then the arguments.
    words: Vec<Word>,
    keys: usize,
    /// The replicas that must confirm it. The reply ends with the number of those that did.
    pub(super) wait: Option<Replicas>,
    /// Whether the caller retries with fewer keys if they are on two servers for a while.
    pub(super) divisible: bool,
}

#[derive(Debug)]
enum Word {
    /// A part of the buffer.
    Text(Range<usize>),
    Number(i64),
}

/// The usual length of the keys of an item, and of a single holder id.
const ITEM_SIZE: usize = 160;

impl Call {
    /// Creates an empty call with room for so many items.
    pub(super) fn of(items: usize) -> Self {
        Self {
            text: Vec::with_capacity(items * ITEM_SIZE),
            // Two keys for each item; and settings, holder ids and steps, which most calls have once.
            words: Vec::with_capacity(items * 2 + 6),
            keys: 0,
            wait: None,
            divisible: false,
        }
    }

    pub(super) fn key(&mut self, parts: &[&str]) {
        let word =
            self.word(|text| parts.iter().for_each(|part| text.extend_from_slice(part.as_bytes())));
        // Few arguments are there before the last key.
        self.words.insert(self.keys, word);
        self.keys += 1;
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let word = self.word(|buffer| buffer.extend_from_slice(bytes));
        self.words.push(word);
    }

    pub(super) fn show(&mut self, shown: impl Display) {
        // A Vec takes whatever is written to it.
        let word = self.word(|buffer| _ = write!(buffer, "{shown}"));
        self.words.push(word);
    }

    pub(super) fn number(&mut self, number: u64) {
        // fred has no unsigned integers; none of ours reaches 2^63.
        self.words.push(Word::Number(i64::try_from(number).unwrap_or(i64::MAX)));
    }

    fn word(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Word {
        let start = self.text.len();
        write(&mut self.text);
        Word::Text(start..self.text.len())
    }

    /// Finishes the call, so that it can be sent, also more than once.
    pub(super) fn finish(self) -> Ready {
        let Self { text, words, keys, wait, divisible } = self;
        Ready { text: Bytes::from(text), words, keys, wait, divisible }
    }
}

/// Returns a time as scripts take it.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A finished call.
pub(super) struct Ready {
    text: Bytes,
    words: Vec<Word>,
    keys: usize,
    wait: Option<Replicas>,
    pub(super) divisible: bool,
}

impl Ready {
    /// Returns the cluster slot of its keys.
    pub(super) fn slot(&self) -> u16 {
        match self.words[..self.keys].first() {
            Some(Word::Text(range)) => slot(&self.text[range.clone()]),
            _ => 0,
        }
    }

    /// Returns the words of a command that calls the script.
    fn calling(&self, script: &'static str) -> Vec<Value> {
        let mut words = Vec::with_capacity(2 + self.words.len());
        words.push(Value::from_static_str(script));
        words.push(Value::Integer(self.keys as i64));
        words.extend(self.words.iter().map(|word| match word {
            Word::Text(range) => Value::Bytes(self.text.slice(range.clone())),
            Word::Number(number) => Value::Integer(*number),
        }));
        words
    }
}

#[cfg(test)]
impl Ready {
    /// Returns the arguments after the keys.
    pub(super) fn arguments(&self) -> Vec<String> {
        let text = |word: &Word| match word {
            Word::Text(range) => String::from_utf8_lossy(&self.text[range.clone()]).into_owned(),
            Word::Number(number) => number.to_string(),
        };
        self.words[self.keys..].iter().map(text).collect()
    }
}

/// Returns the cluster slot of a key.
pub(super) fn slot(key: &[u8]) -> u16 {
    fred::util::redis_keyslot(key)
}

/// A failure as fred reports it.
pub(super) type Failure = fred::error::Error;

impl Script {
    /// Runs the script once: by its name, or by its text if the server does not know the name.
    ///
    /// It does not use fred's Lua interface, which ignores per-command options.
    pub(super) async fn run(
        &'static self,
        client: &Client,
        call: &Ready,
        timeout: Duration,
        asking: bool,
    ) -> Result<Vec<Element>, Failure> {
        if asking || call.wait.is_some() {
            // Boxed, so that the usual call's future stays small.
            return Box::pin(self.run_among(client, call, timeout, asking)).await;
        }
        // Pinned where it is created, as in the calls around this one: a future that is moved into the one that awaits it is
        // copied, all kilobytes of it.
        match pin!(send(client, "EVALSHA", &self.sha, call, timeout)).await {
            // Boxed, too.
            Err(error) if is_unknown(&error) => {
                let reply = Box::pin(send(client, "EVAL", self.source, call, timeout)).await;
                reply.map_err(|error| self.explain(error))
            }
            reply => reply.map_err(|error| self.explain(error)),
        }
    }

    /// Adds the command to a refusal of the server that names none.
    fn explain(&self, failure: Failure) -> Failure {
        match reply::with_command(failure.details(), self.source) {
            Some(text) => Failure::new(failure.kind().clone(), text),
            None => failure,
        }
    }

    /// The same between other commands: `ASKING`, without which a server that is about to take the slot over
    /// refuses, and `WAIT`, which returns how many replicas have confirmed the call.
    ///
    /// A pipeline, so that nothing comes between, not even another connection.
    async fn run_among(
        &'static self,
        client: &Client,
        call: &Ready,
        timeout: Duration,
        asking: bool,
    ) -> Result<Vec<Element>, Failure> {
        let options = options(timeout);
        let attempt = async |verb, script: &'static str| {
            let pipeline = client.pipeline().with_options(&options);
            if asking {
                let asking = CustomCommand::new_static("ASKING", ClusterHash::FirstKey, false);
                let _: () = pipeline.custom(asking, Vec::<Value>::new()).await?;
            }
            let command = CustomCommand::new_static(verb, ClusterHash::Offset(2), false);
            let _: () = pipeline.custom(command, call.calling(script)).await?;
            if let Some(Replicas { count, timeout }) = call.wait {
                let millis = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
                let words = vec![Value::Integer(count.into()), Value::Integer(millis)];
                let wait = CustomCommand::new_static("WAIT", ClusterHash::FirstKey, false);
                let _: () = pipeline.custom(wait, words).await?;
            }
            let mut replies = pipeline.try_all::<Value>().await.into_iter();
            // A failure of the whole is the only reply. Without ASKING the script may have run all the same.
            let asked = if asking { replies.next() } else { None };
            let reply = match (asked, replies.next()) {
                (Some(Err(refused)), None | Some(Err(_))) => Err(refused),
                (_, Some(reply)) => reply,
                (_, None) => Err(Failure::new(ErrorKind::Protocol, "no reply")),
            }?;
            let mut elements: Vec<Element> = match reply {
                Value::Array(values) => values.into_iter().map(Element::from).collect(),
                value => alone(value.into()),
            };
            if call.wait.is_some() {
                elements.push(match replies.next() {
                    Some(Ok(reached)) => reached.into(),
                    Some(Err(error)) => Element::Text(error.details().to_owned()),
                    None => Element::Text("ERR no answer to WAIT".to_owned()),
                });
            }
            Ok(elements)
        };
        let reply = match attempt("EVALSHA", &self.sha).await {
            Err(error) if is_unknown(&error) => attempt("EVAL", self.source).await,
            reply => reply,
        };
        reply.map_err(|error| self.explain(error))
    }
}

/// Sends a call of a script once. Not an `async fn`: its future would have space for each argument twice.
fn send(
    client: &Client,
    verb: &'static str,
    script: &'static str,
    call: &Ready,
    timeout: Duration,
) -> impl Future<Output = Result<Vec<Element>, Failure>> {
    let words = call.calling(script);
    let client = client.with_options(&options(timeout));
    async move {
        let command = CustomCommand::new_static(verb, ClusterHash::Offset(2), false);
        // The raw frame: fred's values would be only half way to our elements.
        elements(pin!(client.custom_raw(command, words)).await?)
    }
}

/// Whether the server does not know the script by its name.
fn is_unknown(error: &Failure) -> bool {
    error.details().starts_with("NOSCRIPT")
}

fn options(timeout: Duration) -> Options {
    Options {
        max_attempts: Some(1),
        timeout: Some(timeout.max(Duration::from_millis(1))),
        ..Options::default()
    }
}

/// Returns the elements of a reply: the number itself if it is one, and none if it is anything else, which no request
/// accepts.
fn elements(reply: Resp3Frame) -> Result<Vec<Element>, Failure> {
    match reply {
        Resp3Frame::Array { data, .. } => Ok(data.into_iter().map(Element::from).collect()),
        Resp3Frame::SimpleError { data, .. } => Err(refused(&data)),
        Resp3Frame::BlobError { data, .. } => Err(refused(&String::from_utf8_lossy(&data))),
        frame => Ok(alone(frame.into())),
    }
}

/// Returns the elements of a reply that is not an array.
fn alone(element: Element) -> Vec<Element> {
    match element {
        Element::Int(_) => vec![element],
        Element::Text(_) | Element::Other => Vec::new(),
    }
}

/// Its kind comes of its words alone; see [`reply::sort`].
fn refused(words: &str) -> Failure {
    Failure::new(ErrorKind::Unknown, words.to_owned())
}

impl From<Resp3Frame> for Element {
    fn from(frame: Resp3Frame) -> Self {
        match frame {
            Resp3Frame::Number { data, .. } => Element::Int(data),
            Resp3Frame::BlobString { data, .. } | Resp3Frame::SimpleString { data, .. } => {
                Element::Text(String::from_utf8_lossy(&data).into_owned())
            }
            _ => Element::Other,
        }
    }
}

impl From<Value> for Element {
    fn from(value: Value) -> Self {
        match value {
            Value::Integer(value) => Element::Int(value),
            Value::String(text) => Element::Text(text.to_string()),
            Value::Bytes(bytes) => Element::Text(String::from_utf8_lossy(&bytes).into_owned()),
            _ => Element::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slots are those of `CLUSTER KEYSLOT`.
    #[test]
    fn call_belongs_to_the_slot_of_its_first_key() {
        for (key, expected) in [("foo", 12182), ("{foo}bar", 12182), ("bar", 5061)] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
            let mut call = Call::default();
            call.key(&[&key[..1], &key[1..]]);
            call.key(&["other"]);
            call.text("last");
            assert_eq!(call.finish().slot(), expected, "{key}");
        }
        assert_eq!(Call::default().finish().slot(), 0, "of none");
    }

    fn frame(text: &str) -> Resp3Frame {
        Resp3Frame::BlobString { data: Bytes::copy_from_slice(text.as_bytes()), attributes: None }
    }

    fn array(data: Vec<Resp3Frame>) -> Resp3Frame {
        Resp3Frame::Array { data, attributes: None }
    }

    #[test]
    fn elements_are_numbers_and_text_and_nothing_else() {
        let number = Resp3Frame::Number { data: 7, attributes: None };
        let bytes =
            Resp3Frame::SimpleString { data: Bytes::from_static(b"ERR \xff"), attributes: None };
        let reply =
            vec![number.clone(), frame("ERR a"), bytes, Resp3Frame::Null, array(Vec::new())];
        let text = |text: &str| Element::Text(text.to_owned());
        let both = [Element::Int(7), text("ERR a"), text("ERR \u{fffd}")];
        let odd = [Element::Other, Element::Other];
        assert_eq!(elements(array(reply)).unwrap(), [&both[..], &odd[..]].concat());
        let values = [
            Value::Integer(7),
            Value::String("ERR a".into()),
            Value::Bytes(Bytes::from_static(b"ERR \xff")),
        ];
        assert_eq!(values.map(Element::from), both);
        assert_eq!([Value::Null, Value::Double(1.0)].map(Element::from), odd);
        assert_eq!(elements(number).unwrap(), [Element::Int(7)]);
        for nonsense in [frame("OK"), Resp3Frame::Null] {
            assert_eq!(elements(nonsense).unwrap(), []);
        }
        for element in odd {
            assert!(element.code().is_err() && element.int().is_err());
        }
    }

    #[test]
    fn error_reply_is_a_failure_in_the_servers_words() {
        let simple = Resp3Frame::SimpleError { data: "NOSCRIPT a".into(), attributes: None };
        let blob = Resp3Frame::BlobError { data: "OOM b".into(), attributes: None };
        let words = [simple, blob].map(|reply| elements(reply).unwrap_err());
        assert_eq!(words.each_ref().map(Failure::details), ["NOSCRIPT a", "OOM b"]);
        assert_eq!(words.each_ref().map(is_unknown), [true, false]);
    }
}
