//! Asks one server about itself.

use super::address::{Address, Answers};
use super::command::Reply;
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
    served: Answers<Client>,
    attempt: Duration,
    until: Instant,
}

impl Inquiry {
    /// Connects. No question is answered after `until`.
    pub(in crate::store::redis) async fn open(address: &Address, until: Instant) -> Result<Self> {
        let served = timeout_at(until, address.client()).await.unwrap_or_else(|_| late())?;
        Ok(Self { served, attempt: address.attempt, until })
    }

    /// Sends a command, and returns the answer. Every word of it is public: an error may show it.
    pub(in crate::store::redis) async fn ask(&self, words: &[&str]) -> Result<Reply> {
        let [verb, rest @ ..] = words else { return Ok(Reply::Other) };
        let command = CustomCommand::new((*verb).to_owned(), ClusterHash::FirstKey, false);
        let rest: Vec<String> = rest.iter().map(|word| (*word).to_owned()).collect();
        let asked = self.served.client.custom::<Value, _>(command, rest);
        let asked = async { asked.await.map(Reply::of).map_err(|failure| classify(&failure)) };
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
