//! Runs a script on a client.

use super::errors::Failure;
use crate::store::connect::remote::Replicas;
use crate::store::redis::scripts::reply::{self, Element};
use crate::store::redis::scripts::{Script, ScriptCall, Word};
use crate::util::in_place::in_place;
use crate::util::reached::Rare;
use fred::bytes::Bytes;
use fred::clients::Client;
use fred::error::ErrorKind;
use fred::interfaces::ClientLike;
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Resp3Frame, Value};
use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

/// A finished call, which can be sent more than once.
pub(in crate::store::redis) struct Ready {
    text: Bytes,
    words: Vec<Word>,
    keys: usize,
    wait: Option<Replicas>,
    /// Whether the call is more than a script: it waits for replicas, or tries `SET` first.
    is_special: bool,
    pub(in crate::store::redis) divisible: bool,
}

impl Ready {
    pub(in crate::store::redis) fn new(call: ScriptCall) -> Self {
        let ScriptCall { text, words, keys, wait, set_first, divisible } = call;
        let is_special = wait.is_some() || set_first;
        Self { text: Bytes::from(text), words, keys, wait, is_special, divisible }
    }

    /// Returns the cluster slot of its keys.
    pub(in crate::store::redis) fn slot(&self) -> u16 {
        match self.words[..self.keys].first() {
            Some(Word::Text(range)) => slot(&self.text[range.clone()]),
            _ => 0,
        }
    }

    /// Returns the words of a command that calls the script.
    pub(super) fn calling(&self, script: &'static str) -> Vec<Value> {
        let mut words = Vec::with_capacity(2 + self.words.len());
        words.push(Value::from_static_str(script));
        words.push(Value::Integer(self.keys as i64));
        words.extend(self.values());
        words
    }

    /// Returns the words of `SET` that acquires a free name, of a call with a key, a holder id and a time to live.
    pub(super) fn setting(&self) -> Vec<Value> {
        let mut words: Vec<Value> = self.values().collect();
        words.insert(2, Value::from_static_str("PX"));
        words.push(Value::from_static_str("NX"));
        words
    }

    /// Returns whether it tries `SET` first.
    pub(super) fn sets_first(&self) -> bool {
        self.is_special && self.wait.is_none()
    }

    fn values(&self) -> impl Iterator<Item = Value> {
        self.words.iter().map(|word| match word {
            Word::Text(range) => Value::Bytes(self.text.slice(range.clone())),
            Word::Number(number) => Value::Integer(*number),
        })
    }
}

/// Returns the cluster slot of a key.
pub(in crate::store::redis) fn slot(key: &[u8]) -> u16 {
    fred::util::redis_keyslot(key)
}

/// Runs a script once: by its name, or by its text if the server does not know the name.
///
/// It does not use fred's Lua interface, which ignores per-command options.
pub(super) async fn run(
    script: &'static Script,
    client: &Client,
    call: &Ready,
    timeout: Duration,
    asking: bool,
) -> Result<Vec<Element>, Failure> {
    if asking || call.is_special {
        // Boxed, so that the usual call's future stays small.
        return Box::pin(run_special(script, client, call, timeout, asking)).await;
    }
    // Pinned where it is created, as in the calls around this one: a future that is moved into the one that awaits it takes
    // its space twice.
    match pin!(send(client, "EVALSHA", name_of(script), call, timeout)).await {
        // Boxed, too.
        Err(error) if is_unknown(&error) => {
            Rare::RedisScriptUnknown.reached();
            let reply = Box::pin(send(client, "EVAL", &script.source, call, timeout)).await;
            reply.map_err(|error| explain(script, error))
        }
        reply => reply.map_err(|error| explain(script, error)),
    }
}

/// Returns the name under which servers cache a script.
fn name_of(script: &'static Script) -> &'static str {
    script.sha.get_or_init(|| fred::util::sha1_hash(&script.source))
}

/// Adds the command to a refusal of the server that names none.
fn explain(script: &Script, failure: Failure) -> Failure {
    match reply::with_command(failure.details(), &script.source) {
        Some(text) => Failure::new(failure.kind().clone(), text),
        None => failure,
    }
}

/// Runs a call that is not a script alone.
async fn run_special(
    script: &'static Script,
    client: &Client,
    call: &Ready,
    timeout: Duration,
    asking: bool,
) -> Result<Vec<Element>, Failure> {
    if asking || !call.sets_first() {
        return run_among(script, client, call, timeout, asking).await;
    }
    let began = Instant::now();
    let command = CustomCommand::new_static("SET", ClusterHash::FirstKey, false);
    match client.with_options(&options(timeout)).custom_raw(command, call.setting()).await? {
        // The name is not free: the script says for how long.
        Resp3Frame::Null => {
            let left = timeout.saturating_sub(began.elapsed());
            run_among(script, client, call, left, false).await
        }
        Resp3Frame::SimpleString { .. } => Ok(vec![Element::Int(0)]),
        reply => elements(reply),
    }
}

/// Runs a script between other commands: `ASKING`, without which a server that is about to take the slot over
/// refuses, and `WAIT`, which returns how many replicas have confirmed the call.
///
/// A pipeline, so that nothing comes between, not even another connection.
async fn run_among(
    script: &'static Script,
    client: &Client,
    call: &Ready,
    timeout: Duration,
    asking: bool,
) -> Result<Vec<Element>, Failure> {
    let options = options(timeout);
    let attempt = async |verb, named: &'static str| {
        let pipeline = client.pipeline().with_options(&options);
        if asking {
            let asking = CustomCommand::new_static("ASKING", ClusterHash::FirstKey, false);
            let _: () = pipeline.custom(asking, Vec::<Value>::new()).await?;
        }
        let command = CustomCommand::new_static(verb, ClusterHash::Offset(2), false);
        let _: () = pipeline.custom(command, call.calling(named)).await?;
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
            Value::Array(values) => values.into_iter().map(of_value).collect(),
            value => alone(of_value(value)),
        };
        if call.wait.is_some() {
            elements.push(match replies.next() {
                Some(Ok(reached)) => of_value(reached),
                Some(Err(error)) => Element::Text(error.details().to_owned()),
                None => Element::Text("ERR no answer to WAIT".to_owned()),
            });
        }
        Ok(elements)
    };
    let reply = match attempt("EVALSHA", name_of(script)).await {
        Err(error) if is_unknown(&error) => attempt("EVAL", &script.source).await,
        reply => reply,
    };
    reply.map_err(|error| explain(script, error))
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
        // The raw frame: fred's values would be only half way to our elements. fred's future takes five kilobytes, so it is
        // boxed where it is created: in this one, it would be copied with all futures around it.
        elements(in_place(|| client.custom_raw(command, words)).await?)
    }
}

/// Whether the server does not know the script by its name.
fn is_unknown(error: &Failure) -> bool {
    error.details().starts_with("NOSCRIPT")
}

pub(super) fn options(timeout: Duration) -> Options {
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
        Resp3Frame::Array { data, .. } => Ok(data.into_iter().map(of_frame).collect()),
        Resp3Frame::SimpleError { data, .. } => Err(refused(&data)),
        Resp3Frame::BlobError { data, .. } => Err(refused(&String::from_utf8_lossy(&data))),
        frame => Ok(alone(of_frame(frame))),
    }
}

/// Returns the elements of a reply that is not an array.
pub(super) fn alone(element: Element) -> Vec<Element> {
    match element {
        Element::Int(_) => vec![element],
        Element::Text(_) | Element::Other => Vec::new(),
    }
}

/// Its kind comes of its words alone; see [`reply::classify`].
fn refused(words: &str) -> Failure {
    Failure::new(ErrorKind::Unknown, words.to_owned())
}

fn of_frame(frame: Resp3Frame) -> Element {
    match frame {
        Resp3Frame::Number { data, .. } => Element::Int(data),
        Resp3Frame::BlobString { data, .. } | Resp3Frame::SimpleString { data, .. } => {
            Element::Text(String::from_utf8_lossy(&data).into_owned())
        }
        _ => Element::Other,
    }
}

fn of_value(value: Value) -> Element {
    match value {
        Value::Integer(value) => Element::Int(value),
        Value::String(text) => Element::Text(text.to_string()),
        Value::Bytes(bytes) => Element::Text(String::from_utf8_lossy(&bytes).into_owned()),
        _ => Element::Other,
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
            let mut call = ScriptCall::default();
            call.key(&[&key[..1], &key[1..]]);
            call.key(&["other"]);
            call.text("last");
            assert_eq!(Ready::new(call).slot(), expected, "{key}");
        }
        assert_eq!(Ready::new(ScriptCall::default()).slot(), 0, "of none");
    }

    #[test]
    fn command_has_the_words_of_the_call_in_the_order_of_set() {
        let mut call = ScriptCall { set_first: true, ..ScriptCall::default() };
        call.key(&["app:", "job"]);
        call.text("holder");
        call.number(30_000);
        let ready = Ready::new(call);
        assert!(ready.is_special);
        let words: Vec<_> = ready.setting().into_iter().map(|word| word.into_string()).collect();
        let expected = ["app:job", "holder", "PX", "30000", "NX"];
        assert_eq!(words, expected.map(|word| Some(word.to_owned())));
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
        assert_eq!(values.map(of_value), both);
        assert_eq!([Value::Null, Value::Double(1.0)].map(of_value), odd);
        assert_eq!(elements(number).unwrap(), [Element::Int(7)]);
        for nonsense in [frame("OK"), Resp3Frame::Null] {
            assert_eq!(elements(nonsense).unwrap(), []);
        }
        assert!(odd.iter().all(|element| element.code().is_err()));
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
