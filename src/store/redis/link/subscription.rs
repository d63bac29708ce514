//! A connection that receives messages, and its commands.
//!
//! fred expects no reply to some of them, and takes what comes for the reply to another one. [`SubscriberLink::ping`] finds out.

use super::address::{Address, Answers};
use super::errors::classify;
use super::login::{Login, due};
use crate::error::{Error, ErrorKind, Result};
use fred::clients::SubscriberClient;
use fred::error::ErrorKind as Kind;
use fred::interfaces::{ClientLike, EventInterface, FredResult, PubsubInterface};
use fred::types::{ClusterHash, CustomCommand, Message, Value};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A connection that receives messages. It ends with its client, which replaces no lost connection: its owner makes the next.
pub(in crate::store::redis) struct Subscription(Answers<SubscriberClient>);

impl Subscription {
    pub(in crate::store::redis) async fn connect(address: &Address) -> Result<Self> {
        address.subscriber().await.map(Self)
    }

    /// Returns what sends its commands.
    pub(in crate::store::redis) fn link(&self) -> SubscriberLink {
        SubscriberLink(self.0.client.clone())
    }

    /// Returns its messages from now on.
    pub(in crate::store::redis) fn messages(&self) -> Messages {
        Messages(self.0.client.message_rx())
    }

    /// Returns what makes the next connection before the login of this one lapses.
    pub(in crate::store::redis) fn successor(&self, address: &Address) -> Successor {
        Successor::new(address, self.0.login.clone())
    }

    /// Waits until the connection is lost, or the client has panicked.
    pub(in crate::store::redis) async fn ended(&mut self) {
        let _ = (&mut self.0.task).await;
    }

    /// Closes it.
    pub(in crate::store::redis) async fn close(self, limit: Duration) {
        let _ = timeout(limit, self.0.client.quit()).await;
        self.0.task.abort();
    }

    /// Ends it without a word to the server.
    pub(in crate::store::redis) fn abort(self) {
        self.0.task.abort();
    }
}

/// Makes the next connection before the login of the current one lapses: one that is subscribed cannot authenticate again.
pub(in crate::store::redis) struct Successor {
    address: Address,
    login: Option<Arc<Login>>,
    /// In a task of its own: an abandoned client would keep its connection.
    connecting: Option<JoinHandle<Result<Subscription>>>,
}

impl Successor {
    fn new(address: &Address, login: Option<Arc<Login>>) -> Self {
        Self { address: address.clone(), login, connecting: None }
    }

    /// Returns the next connection, once it is time for it and it is made. Until then the current one stays in use.
    pub(in crate::store::redis) async fn made(&mut self) -> Subscription {
        loop {
            due(self.login.as_ref()).await;
            let address = self.address.clone();
            let connecting = tokio::spawn(async move { Subscription::connect(&address).await });
            let made = self.connecting.insert(connecting).await;
            self.connecting = None;
            let error = match made {
                Ok(Ok(made)) => return made,
                Ok(Err(error)) => error,
                Err(error) => {
                    Error::new(ErrorKind::Unavailable, "the client has panicked").with_source(error)
                }
            };
            if let Some(login) = &self.login {
                login.put_off(&error);
            }
        }
    }

    /// Closes what is made, for an owner that does not need it any more.
    pub(in crate::store::redis) fn abandon(self, limit: Duration) {
        let Some(connecting) = self.connecting else { return };
        tokio::spawn(async move {
            if let Ok(Ok(made)) = connecting.await {
                made.close(limit).await;
            }
        });
    }
}

/// The messages of a connection.
pub(in crate::store::redis) struct Messages(broadcast::Receiver<Message>);

/// What came of a wait for a message.
pub(in crate::store::redis) enum Heard {
    Message(Notice),
    /// Some were lost.
    Lagged,
    /// The connection has ended.
    Nothing,
}

impl Messages {
    /// Waits for the next message.
    pub(in crate::store::redis) async fn next(&mut self) -> Heard {
        match self.0.recv().await {
            Ok(message) => Heard::Message(Notice(message)),
            Err(RecvError::Lagged(_)) => Heard::Lagged,
            Err(RecvError::Closed) => Heard::Nothing,
        }
    }
}

/// A message.
pub(in crate::store::redis) struct Notice(Message);

impl Notice {
    pub(in crate::store::redis) fn channel(&self) -> &str {
        &self.0.channel
    }

    pub(in crate::store::redis) fn text(&self) -> Option<Cow<'_, str>> {
        self.0.value.as_str()
    }
}

/// A command that has failed.
pub(in crate::store::redis) struct Refusal {
    pub(in crate::store::redis) error: Error,
    /// Whether there was no answer in time.
    pub(in crate::store::redis) is_silence: bool,
}

impl From<fred::error::Error> for Refusal {
    fn from(failure: fred::error::Error) -> Self {
        Self { error: classify(&failure), is_silence: *failure.kind() == Kind::Timeout }
    }
}

impl Refusal {
    /// A subscription that was not confirmed in time.
    pub(in crate::store::redis) fn unconfirmed() -> Self {
        let message = "the subscription was not confirmed in time";
        Self { error: Error::new(ErrorKind::Unavailable, message), is_silence: true }
    }
}

/// Whether a connection has subscribed channels, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Listens {
    Yes,
    /// By the form of its reply. Some servers have only one form.
    PerhapsNot,
}

/// What came of a ping.
pub(in crate::store::redis) enum Pong {
    /// The connection is alive, and its replies are in step. The error is that of an earlier command.
    InStep(Result<Listens>),
    /// It was the reply to another command, which may have failed.
    OfAnother(Result<()>),
    /// There was no reply in time.
    Silence(Error),
}

/// Sends the commands of a connection that receives messages.
#[derive(Clone)]
pub(in crate::store::redis) struct SubscriberLink(SubscriberClient);

impl SubscriberLink {
    /// Subscribes. Unless it is sharded, the reply is not waited for.
    pub(in crate::store::redis) async fn subscribe(
        &self,
        channel: &str,
        sharded: bool,
    ) -> Result<(), Refusal> {
        let channel = channel.to_owned();
        match sharded {
            true => self.0.ssubscribe(channel).await?,
            false => self.0.subscribe(channel).await?,
        }
        Ok(())
    }

    /// Subscribes without waiting for the reply, and pings at once.
    ///
    /// Without a command in flight, fred drops a reply that refuses the subscription. The task that reads may be on another
    /// thread, so between two commands in turn there is time enough for that.
    pub(in crate::store::redis) async fn subscribe_and_ping(
        &self,
        channel: &str,
        question: &str,
        limit: Duration,
    ) -> (Result<(), Refusal>, Pong) {
        let subscribed = timeout(limit, self.subscribe(channel, false));
        let (subscribed, pong) = tokio::join!(subscribed, self.ping(question));
        (subscribed.unwrap_or_else(|_| Err(Refusal::unconfirmed())), pong)
    }

    /// Unsubscribes. The reply is not waited for.
    pub(in crate::store::redis) async fn unsubscribe(
        &self,
        channel: &str,
        sharded: bool,
    ) -> Result<(), Refusal> {
        let channel = channel.to_owned();
        match sharded {
            true => self.0.sunsubscribe(channel).await?,
            false => self.0.unsubscribe(channel).await?,
        }
        Ok(())
    }

    /// Pings the server with a word. A refusal is a reply, too.
    pub(in crate::store::redis) async fn ping(&self, question: &str) -> Pong {
        let ping = CustomCommand::new_static("PING", ClusterHash::FirstKey, false);
        let reply = self.0.custom::<Value, _>(ping, vec![question]).await;
        match reply {
            Err(error) if *error.kind() == Kind::Timeout => Pong::Silence(classify(&error)),
            reply if answers_another(&reply, question) => {
                Pong::OfAnother(reply.map(drop).map_err(|error| classify(&error)))
            }
            Err(error) if !is_of_ping(error.details()) => Pong::InStep(Err(classify(&error))),
            // On a connection with subscriptions it is an array.
            Ok(Value::Array(_)) | Err(_) => Pong::InStep(Ok(Listens::Yes)),
            Ok(_) => Pong::InStep(Ok(Listens::PerhapsNot)),
        }
    }

    /// Asks a server for the id of its run. Returns `None` if it does not report it.
    pub(in crate::store::redis) async fn run_id(&self, limit: Duration) -> Option<String> {
        let info = CustomCommand::new_static("INFO", ClusterHash::FirstKey, false);
        let reply = self.0.custom::<String, Value>(info, vec!["server".into()]);
        let info = timeout(limit, reply).await.ok()?.ok()?;
        let id = info.lines().find_map(|line| line.strip_prefix("run_id:"))?;
        Some(id.trim().to_owned())
    }
}

/// Returns whether a reply is not that to a `PING` with this word, but to an earlier one or to a command for which fred
/// expects no reply.
fn answers_another(reply: &FredResult<Value>, question: &str) -> bool {
    match reply {
        // On a connection with subscriptions it is `pong` and the word.
        Ok(Value::Array(words)) => {
            words.last().and_then(Value::as_str).as_deref() != Some(question)
        }
        Ok(word) => word.as_str().as_deref() != Some(question),
        Err(error) => {
            let text = error.details().to_lowercase();
            // By the name of the command, or because it was for a channel.
            ["moved", "subscribe", "channel"].iter().any(|word| text.contains(word))
        }
    }
}

/// Returns whether a refusal is about `PING` alone: commands before it have run.
fn is_of_ping(text: &str) -> bool {
    text.to_ascii_lowercase().contains("'ping'") || text.starts_with("MISCONF")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_to_a_ping_is_not_taken_for_that_to_another_command() {
        let refused =
            |text: &'static str| Err::<Value, _>(fred::error::Error::new(Kind::Unknown, text));
        let pong = |word: &'static str| Ok(Value::Array(vec!["pong".into(), word.into()]));
        for (reply, is) in [
            (pong("7"), false),
            (Ok("7".into()), false),
            // Without the permission to ping, the refusal shows that the connection is alive.
            (refused("NOPERM User a has no permissions to run the 'ping' command"), false),
            (refused("MISCONF Errors writing to the AOF file"), false),
            (refused("ERR unknown command 'PING', with args beginning with: '7' "), false),
            (pong("6"), true),
            (Ok("6".into()), true),
            (Ok(Value::Array(vec!["ssubscribe".into(), "c".into(), 1.into()])), true),
            (refused("MOVED 7 127.0.0.1:6379"), true),
            (refused("ERR unknown command 'SUBSCRIBE', with args beginning with: 'c' "), true),
            (refused("NOPERM User a has no permissions to run the 'sunsubscribe' command"), true),
            (refused("NOPERM User a has no permissions to run the 'subscribe' command"), true),
            (refused("NOPERM No permissions to access a channel"), true),
        ] {
            assert_eq!(answers_another(&reply, "7"), is, "{reply:?}");
            if let (Err(error), false) = (&reply, is) {
                assert!(is_of_ping(error.details()), "{error}");
            }
        }
    }
}
