//! Sends commands that are no scripts: those of a listing, of which a script could not run all.

use super::errors::Failure;
use super::script::options;
use fred::clients::Client;
use fred::error::ErrorKind;
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::time::Duration;

/// A command and its words.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Command {
    verb: &'static str,
    words: Vec<String>,
}

impl Command {
    pub(in crate::store::redis) fn new(
        verb: &'static str,
        words: impl IntoIterator<Item = String>,
    ) -> Self {
        Self { verb, words: words.into_iter().collect() }
    }
}

/// A reply to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Reply {
    Int(i64),
    /// `None` if it is not UTF-8.
    Text(Option<String>),
    List(Vec<Reply>),
    Other,
}

impl Reply {
    fn of(value: Value) -> Self {
        match value {
            Value::Integer(value) => Self::Int(value),
            Value::String(text) => Self::Text(Some(text.to_string())),
            Value::Bytes(bytes) => Self::Text(String::from_utf8(bytes.to_vec()).ok()),
            Value::Array(values) => Self::List(values.into_iter().map(Self::of).collect()),
            _ => Self::Other,
        }
    }

    pub(in crate::store::redis) fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => text,
            _ => None,
        }
    }

    pub(in crate::store::redis) fn list(self) -> Option<Vec<Reply>> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }
}

/// Sends commands together, and returns a reply or a refusal for each.
pub(super) async fn send(
    client: &Client,
    commands: &[Command],
    timeout: Duration,
) -> Result<Vec<Result<Reply, Failure>>, Failure> {
    let pipeline = client.pipeline().with_options(&options(timeout));
    for Command { verb, words } in commands {
        let command = CustomCommand::new_static(verb, ClusterHash::FirstKey, false);
        let words = words.iter().map(|word| Value::from(word.as_str())).collect::<Vec<_>>();
        let _: () = pipeline.custom(command, words).await?;
    }
    let replies = pipeline.try_all::<Value>().await;
    // A failure of the whole is the only reply.
    if replies.len() != commands.len() {
        let failure = replies.into_iter().find_map(Result::err);
        return Err(failure.unwrap_or_else(|| Failure::new(ErrorKind::Protocol, "no reply")));
    }
    Ok(replies.into_iter().map(|reply| reply.map(Reply::of)).collect())
}
