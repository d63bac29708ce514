//! Commands that are no scripts, and their replies: those of a listing, of which a script could not run all, and of an
//! [`inquiry`](super::inquiry).

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
    Text(String),
    /// A text that is not UTF-8.
    Bytes(Vec<u8>),
    List(Vec<Reply>),
    /// Nothing, or what no command here returns.
    Other,
}

impl Reply {
    pub(super) fn of(value: Value) -> Self {
        match value {
            Value::Integer(value) => Self::Int(value),
            Value::Boolean(is_true) => Self::Int(is_true.into()),
            Value::String(text) => Self::Text(text.to_string()),
            Value::Bytes(bytes) => match String::from_utf8(bytes.to_vec()) {
                Ok(text) => Self::Text(text),
                Err(error) => Self::Bytes(error.into_bytes()),
            },
            value @ (Value::Array(_) | Value::Map(_)) => {
                Self::List(value.into_array().into_iter().map(Self::of).collect())
            }
            _ => Self::Other,
        }
    }

    /// Returns the text, if it is UTF-8.
    pub(in crate::store::redis) fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(in crate::store::redis) fn into_list(self) -> Option<Vec<Reply>> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    /// Returns the text for people; of a number its digits, and of anything else nothing.
    pub(in crate::store::redis) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Int(number) => number.to_string(),
            Self::List(_) | Self::Other => String::new(),
        }
    }

    /// Returns the number, also one that is written as a text.
    pub(in crate::store::redis) fn number(&self) -> Option<i64> {
        self.text().parse().ok()
    }

    /// Returns the elements; none of what is no list.
    pub(in crate::store::redis) fn list(&self) -> &[Reply] {
        match self {
            Self::List(list) => list,
            _ => &[],
        }
    }

    /// Returns what follows a name in a list of names and values.
    pub(in crate::store::redis) fn value_of(&self, name: &str) -> Option<String> {
        let pair = self.list().chunks_exact(2).find(|pair| pair[0].text() == name)?;
        Some(pair[1].text())
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
