//! Asks one server about itself.

use super::address::{Address, Served};
use super::errors::classify;
use super::script::{self, Ready};
use crate::error::{Error, Result};
use crate::store::redis::scripts::reply::Element;
use crate::store::redis::scripts::{Script, ScriptCall};
use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// A connection by which one server is asked about itself, until a point in time.
pub(in crate::store::redis) struct Inquiry {
    served: Served<Client>,
    attempt: Duration,
    until: Instant,
}

/// What a server has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Answer {
    Number(i64),
    Text(String),
    List(Vec<Answer>),
    /// Nothing, or what no question here expects.
    Other,
}

impl Answer {
    fn of(value: Value) -> Self {
        match value {
            Value::Integer(number) => Self::Number(number),
            Value::Boolean(is_true) => Self::Number(is_true.into()),
            Value::String(text) => Self::Text(text.to_string()),
            Value::Bytes(bytes) => Self::Text(String::from_utf8_lossy(&bytes).into_owned()),
            value @ (Value::Array(_) | Value::Map(_)) => {
                Self::List(value.into_array().into_iter().map(Self::of).collect())
            }
            _ => Self::Other,
        }
    }

    /// Returns the text; of a number its digits, and of anything else nothing.
    pub(in crate::store::redis) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::List(_) | Self::Other => String::new(),
        }
    }

    /// Returns the number, also one that is written as a text.
    pub(in crate::store::redis) fn number(&self) -> Option<i64> {
        self.text().parse().ok()
    }

    /// Returns the elements; none of what is no list.
    pub(in crate::store::redis) fn list(&self) -> &[Answer] {
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

impl Inquiry {
    /// Connects. No question is answered after `until`.
    pub(in crate::store::redis) async fn open(address: &Address, until: Instant) -> Result<Self> {
        let served = timeout_at(until, address.client()).await.unwrap_or_else(|_| late())?;
        Ok(Self { served, attempt: address.attempt, until })
    }

    /// Sends a command, and returns the answer. Every word of it is public: an error may show it.
    pub(in crate::store::redis) async fn ask(&self, words: &[&str]) -> Result<Answer> {
        let [verb, rest @ ..] = words else { return Ok(Answer::Other) };
        let command = CustomCommand::new((*verb).to_owned(), ClusterHash::FirstKey, false);
        let rest: Vec<String> = rest.iter().map(|word| (*word).to_owned()).collect();
        let asked = self.served.client.custom::<Value, _>(command, rest);
        let asked = async { asked.await.map(Answer::of).map_err(|failure| classify(&failure)) };
        timeout_at(self.until, asked).await.unwrap_or_else(|_| late())
    }

    /// Runs a script.
    pub(in crate::store::redis) async fn run(
        &self,
        script: &'static Script,
        call: ScriptCall,
    ) -> Result<Vec<Element>> {
        let call = Ready::new(call);
        let run = script::run(script, &self.served.client, &call, self.attempt, false);
        let run = async { run.await.map_err(|failure| classify(&failure)) };
        timeout_at(self.until, run).await.unwrap_or_else(|_| late())
    }

    pub(in crate::store::redis) async fn close(self) {
        self.served.close(self.attempt).await;
    }
}

fn late<T>() -> Result<T> {
    Err(Error::silent())
}
