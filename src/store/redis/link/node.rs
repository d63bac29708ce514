//! A connection to one server.

use super::address::{Address, Answers, ServerAddress};
use super::command::{self, Command, Reply};
use super::errors::{Failure, classify, unsent};
use super::health::{Health, info, role, role_in};
use super::keeper::Keeper;
use super::script::{self, Ready};
use crate::error::{Error, Result};
use crate::store::Signal;
use crate::store::redis::scripts::Script;
use crate::store::redis::scripts::reply::Element;
use crate::util::reached::Rare;
use fred::clients::Client;
use fred::error::ErrorKind as Kind;
use fred::interfaces::ClientLike;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// A connection to one server.
///
/// 1. **Nothing is given to fred while it has no connection.** It keeps commands that it cannot send for as long as an
///    outage lasts, and never reports that they were not sent. Here a call waits outside of fred for a while, and fails
///    with the certainty that it was not sent.
/// 2. **Only silence makes fred reconnect.** A refusal shows that the connection works, and fred itself replaces a lost
///    one. Where a provider has the credentials, the connection for renewals stays in use until there are some for the next
///    one, for a TTL at most.
/// 3. **A client that does not help is replaced by a fresh one**, by the [`Keeper`]: the server refuses by its role, or
///    the task of the client has ended.
#[derive(Clone)]
pub(in crate::store::redis) struct Node {
    health: Arc<Health>,
    attempt: Duration,
}

impl Node {
    /// Wraps a client of an address. Sets `reconnects` at each reconnect until it is closed.
    pub(in crate::store::redis) fn new(
        served: Answers<Client>,
        address: &Address,
        reconnects: &Signal,
    ) -> Self {
        let client = served.client.clone();
        let task = served.task.abort_handle();
        let health = Arc::new(Health::new(client, task, address.outlives_silence()));
        Keeper::start(served, address, &health, reconnects);
        Self { health, attempt: address.attempt }
    }

    pub(in crate::store::redis) fn client(&self) -> Client {
        self.health.client()
    }

    /// Returns how often a connection was made again, which changes when the next one is in use.
    pub(in crate::store::redis) fn connects(&self) -> watch::Receiver<u64> {
        self.health.connects()
    }

    /// Runs a script. `asking`: on a server that is importing the slot.
    pub(in crate::store::redis) async fn run(
        &self,
        script: &'static Script,
        call: &Ready,
        timeout: Duration,
        asking: bool,
    ) -> Result<Vec<Element>, Failure> {
        let (client, left) = match self.health.up() {
            Some(client) => (client, timeout),
            // Boxed, so that the usual call's future stays small.
            None => Box::pin(self.wait_until_up(timeout)).await?,
        };
        let sent = Instant::now();
        let reply = pin!(script::run(script, &client, call, left, asking)).await;
        let refused = match &reply {
            Ok(elements) => {
                self.health.silence.answered();
                role_in(elements)
            }
            Err(error) => self.failed(&client, error, sent, left),
        };
        if let Some(word) = refused {
            self.health.is_refused(word);
        }
        reply
    }

    /// Sends commands together. Returns a reply for each; a refusal of the first one is that of all.
    pub(in crate::store::redis) async fn commands(
        &self,
        commands: &[Command],
        timeout: Duration,
    ) -> Result<Vec<Result<Reply, Failure>>, Failure> {
        let (client, left) = match self.health.up() {
            Some(client) => (client, timeout),
            None => self.wait_until_up(timeout).await?,
        };
        let sent = Instant::now();
        let replies = command::send(&client, commands, left).await;
        let failure = match &replies {
            Ok(replies) => {
                self.health.silence.answered();
                replies.first().and_then(|reply| reply.as_ref().err())
            }
            Err(failure) => Some(failure),
        };
        let refused = failure.and_then(|failure| self.failed(&client, failure, sent, left));
        if let Some(word) = refused {
            self.health.is_refused(word);
        }
        replies
    }

    /// Has a connection replaced that was silent for long. Returns the word by which a server refuses by its role.
    fn failed(
        &self,
        client: &Client,
        failure: &Failure,
        sent: Instant,
        limit: Duration,
    ) -> Option<&'static str> {
        if *failure.kind() != Kind::Timeout {
            return role(failure.details());
        }
        if self.health.silence.is_shown_by(sent, limit) {
            self.health.is_silent(client);
        }
        None
    }

    /// Puts the server before the message of an outage.
    pub(in crate::store::redis) fn at(&self, error: Error) -> Error {
        if !error.is_unavailable() {
            return error;
        }
        error.at(&ServerAddress(&self.client().client_config().server).to_string())
    }

    /// Asks the server about itself.
    pub(in crate::store::redis) async fn info(&self) -> Result<String> {
        let ask = async {
            let client = match self.health.up() {
                Some(client) => client,
                None => self.wait_until_up(self.attempt).await?.0,
            };
            info(&client).await
        };
        ask.await.map_err(|failure: Failure| classify(&failure))
    }

    /// Waits for a connection, for at most half of the time, so that requests that wait behind this call have an answer
    /// before their own time limits. Returns the client, and the time that is left.
    async fn wait_until_up(&self, limit: Duration) -> Result<(Client, Duration), Failure> {
        let start = Instant::now();
        let up = async {
            loop {
                let mut changed = std::pin::pin!(self.health.changed());
                changed.as_mut().enable();
                if let Some(client) = self.health.up() {
                    return client;
                }
                changed.await;
            }
        };
        match timeout(limit / 2, up).await {
            Ok(client) => {
                Rare::RedisWaitedForConnection.reached();
                Ok((client, limit.saturating_sub(start.elapsed())))
            }
            Err(_) => {
                Rare::RedisNotSent.reached();
                Err(unsent(self.health.failure.lock().as_ref()))
            }
        }
    }

    pub(in crate::store::redis) async fn close(&self) {
        self.health.closed.cancel();
        let _ = timeout(self.attempt, self.client().quit()).await;
    }
}
