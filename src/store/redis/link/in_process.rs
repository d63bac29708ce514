//! A server in this process: what a simulation has in place of a connection.

use super::script::{Ready, alone};
use crate::error::Result;
use crate::store::redis::scripts::Script;
use crate::store::redis::scripts::reply::{self, Element};
use fred::types::Value;
use std::sync::Arc;

/// Runs the commands of a store at once, in this process.
pub type InProcessServer = Arc<dyn Fn(Vec<Vec<u8>>) -> ServerReply + Send + Sync>;

/// What a server replies to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerReply {
    /// Nothing.
    Nil,
    /// A number.
    Int(i64),
    /// A string.
    Text(Vec<u8>),
    /// A refusal, in the words of Redis.
    Error(String),
    /// An array.
    List(Vec<ServerReply>),
}

/// Runs a script as [`script::run`](super::script::run) does, but always by its text: `EVAL`, with `SET` before it where the call
/// has that.
pub(in crate::store::redis) fn run(
    server: &InProcessServer,
    script: &'static Script,
    call: &Ready,
) -> Result<Vec<Element>> {
    let ask = |name: &str, words: Vec<Value>| {
        let words = words.into_iter().filter_map(|word| Some(word.into_bytes()?.to_vec()));
        server([name.as_bytes().to_vec()].into_iter().chain(words).collect())
    };
    if call.sets_first() {
        match ask("SET", call.setting()) {
            // The name is not free.
            ServerReply::Nil => {}
            ServerReply::Error(text) => return Err(reply::classify(&text)),
            _ => return Ok(vec![Element::Int(0)]),
        }
    }
    match ask("EVAL", call.calling(&script.source)) {
        ServerReply::List(items) => Ok(items.into_iter().map(element).collect()),
        ServerReply::Error(text) => Err(reply::classify(&text)),
        other => Ok(alone(element(other))),
    }
}

fn element(reply: ServerReply) -> Element {
    match reply {
        ServerReply::Int(number) => Element::Int(number),
        ServerReply::Text(text) => Element::Text(String::from_utf8_lossy(&text).into_owned()),
        ServerReply::Error(text) => Element::Text(text),
        ServerReply::Nil | ServerReply::List(_) => Element::Other,
    }
}
