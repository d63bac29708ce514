//! A connection that receives wake-ups: it subscribes, listens, and checks that it is alive.
//!
//! It has two tasks on the engine's runtime. The listener forwards messages and never waits for anything else. The
//! subscriber subscribes and unsubscribes, one channel per command and one command at a time, because otherwise fred mixes
//! up replies. In a fleet each server has such a pair; see `fleet_subscribers`.
//!
//! fred expects no reply to an unsubscribe, since Redis usually answers it with a message. But a node of a cluster refuses
//! to unsubscribe a channel that has moved with its slot, and fred would take the refusal for the reply to the next
//! command. So after an unsubscribe the subscriber pings the server until the reply is that to its ping. Replies left over
//! from before are dropped.
//!
//! Except in a cluster, fred does not wait for the reply to a subscribe either: it reports success before the command has left.
//! The request of the waiter, which takes another connection, could pass it, and then a release in between would wake no waiter.
//! So the subscriber pings the server here, too, and only the reply to that shows that the subscription is there.
//!
//! A subscription is silent by nature, so a dead connection would go unnoticed. While channels are subscribed, the
//! subscriber pings the server from time to time.
//!
//! Nothing is given to fred while it has no connection: it would keep everything until the end of the outage. After a
//! reconnect the subscriber subscribes all awaited channels again. A new connection has nothing to unsubscribe.

use super::address::Address;
use super::errors::classify;
use super::node::{is_connected, until_in_use};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Hint, InboxSender, Signal};
use crate::sync::Mutex;
use crate::trace;
use fred::clients::SubscriberClient;
use fred::error::ErrorKind as FredKind;
use fred::interfaces::{ClientLike, EventInterface, FredResult, PubsubInterface};
use fred::types::config::Server;
use fred::types::{ClusterHash, CustomCommand, Message, Value};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::Level;

/// How long a subscription outlives its last waiter: the next one is often there at once.
const LINGER: Duration = Duration::from_secs(1);
/// The bounds of the time between two pings.
const PING_INTERVAL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// The most subscriptions that are ended, or looked after, at a time, with one ping.
const BATCH: usize = 100;
/// The bounds of the time in which fred drops replies that are left over.
const DRAIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// The channels with waiters, and those that are still subscribed.
pub(super) type Channels = Arc<Mutex<HashMap<String, Channel>>>;

/// A channel, its waiters and its subscription.
#[derive(Default)]
pub(super) struct Channel {
    pub(super) waiters: Vec<Signal>,
    /// The inbox that reads the messages of this channel, if it is that of a manager.
    pub(super) inbox: Option<InboxSender>,
    /// Whether it is subscribed, as far as the client knows.
    pub(super) subscribed: bool,
    /// The server of a fleet that has the channel.
    pub(super) server: Option<Server>,
}

impl Channel {
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiters.is_empty() || self.inbox.as_ref().is_some_and(|inbox| !inbox.is_closed())
    }
}

/// A command to a subscriber.
pub(super) enum Command {
    /// Subscribes; answered when the subscription is there.
    Subscribe(String, oneshot::Sender<Result<()>>),
    /// Unsubscribes after a while: the last waiter has gone.
    Idle(String),
    Close(oneshot::Sender<()>),
}

/// Wakes the waiters of one channel, or of all. Each of them may ask the store now: it is the first in line of its process, or
/// one of the readers that may enter together. Two names may share a channel.
pub(super) fn wake(channels: &Mutex<HashMap<String, Channel>>, channel: Option<&str>) {
    let waiters: Vec<Signal> = {
        let channels = channels.lock();
        match channel {
            Some(channel) => channels
                .get(channel)
                .into_iter()
                .flat_map(|entry| &entry.waiters)
                .cloned()
                .collect(),
            None => channels.values().flat_map(|entry| &entry.waiters).cloned().collect(),
        }
    };
    // Wakers run with no lock held.
    waiters.iter().for_each(Signal::set);
}

/// Delivers a message to the inbox that its channel belongs to. Returns whether there is one.
fn deliver(channels: &Mutex<HashMap<String, Channel>>, message: &Message) -> bool {
    let inbox = channels.lock().get(&*message.channel).and_then(|entry| entry.inbox.clone());
    let Some(inbox) = inbox else { return false };
    if let Some(hint) = message.value.as_str().and_then(|text| Hint::of_message(&text)) {
        inbox.send(hint);
    }
    true
}

/// A connection that receives messages.
pub(super) struct Subscriber {
    client: SubscriberClient,
    /// Whether channels belong to slots.
    sharded: bool,
    /// The server of a fleet whose channels it has; `None` for a single server.
    server: Option<Server>,
    channels: Channels,
    /// The channels that were subscribed on this connection and not unsubscribed.
    here: HashSet<String>,
    address: Address,
    attempt: Duration,
    /// The time between two pings. With the time limit of an attempt it is less than T/3 and a second.
    ping_interval: Duration,
    /// The number of pings so far.
    pings: u64,
    /// The channel that was subscribed again last.
    renewed: String,
    /// Whether there may be replies to commands for which fred expects none.
    in_doubt: bool,
}

/// Runs a subscriber until it is closed.
pub(super) async fn run(subscriber: Subscriber, commands: mpsc::UnboundedReceiver<Command>) {
    tokio::spawn(forward_messages(subscriber.client.clone(), Arc::clone(&subscriber.channels)));
    process_commands(subscriber, commands).await;
}

/// Forwards messages until the client ends.
async fn forward_messages(client: SubscriberClient, channels: Channels) {
    let mut messages = client.message_rx();
    loop {
        match messages.recv().await {
            Ok(message) => {
                if !deliver(&channels, &message) {
                    wake(&channels, Some(&message.channel));
                }
            }
            // This task was too slow, and the channels are lost, so it wakes all waiters.
            Err(RecvError::Lagged(_)) => wake(&channels, None),
            Err(RecvError::Closed) => return,
        }
    }
}

/// Subscribes, unsubscribes channels that have been idle for a while, and subscribes again after a reconnect. While any
/// channel is subscribed, checks that the connection is alive.
async fn process_commands(
    mut subscriber: Subscriber,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let mut reconnects = subscriber.client.reconnect_rx();
    let mut idle: VecDeque<(Instant, String)> = VecDeque::new();
    let mut alive = Instant::now();
    // The command that ended a batch.
    let mut postponed = None;
    loop {
        let next = idle.front().map(|(at, _)| *at);
        let command = async {
            match postponed.take() {
                Some(command) => Some(command),
                None => commands.recv().await,
            }
        };
        tokio::select! {
            command = command => match command {
                Some(Command::Subscribe(channel, done)) => {
                    let (mut channels, mut waiting) = (vec![channel], vec![done]);
                    while channels.len() < BATCH && postponed.is_none() {
                        match commands.try_recv() {
                            Ok(Command::Subscribe(channel, done)) => {
                                channels.push(channel);
                                waiting.push(done);
                            }
                            Ok(other) => postponed = Some(other),
                            Err(_) => break,
                        }
                    }
                    let results = subscriber.subscribe_awaited(channels).await;
                    for (done, result) in waiting.into_iter().zip(results) {
                        let _ = done.send(result);
                    }
                }
                Some(Command::Idle(channel)) => idle.push_back((Instant::now() + LINGER, channel)),
                Some(Command::Close(done)) => {
                    let _ = timeout(subscriber.attempt, subscriber.client.quit()).await;
                    let _ = done.send(());
                    return;
                }
                None => break,
            },
            () = async { sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {
                let now = Instant::now();
                let due = idle.iter().take(BATCH).take_while(|(at, _)| *at <= now).count();
                for _ in 0..due {
                    let Some((_, channel)) = idle.pop_front() else { break };
                    if !subscriber.unsubscribe(&channel).await {
                        break;
                    }
                }
                if subscriber.in_doubt {
                    let _ = subscriber.probe().await;
                    alive = Instant::now();
                }
            }
            () = sleep_until(alive + subscriber.ping_interval), if !subscriber.here.is_empty() => {
                if subscriber.probe().await.is_ok() {
                    subscriber.subscribe_again().await;
                }
                alive = Instant::now();
            }
            event = reconnects.recv() => {
                if let Err(RecvError::Closed) = event {
                    break;
                }
                until_in_use(&subscriber.client).await;
                // Before it is subscribed: then it may do little else.
                subscriber.address.name(&subscriber.client).await;
                for channels in subscriber.mark_unsubscribed().chunks(BATCH) {
                    subscriber.subscribe_all(channels).await;
                }
                // Messages of the gap are lost.
                wake(&subscriber.channels, None);
            }
        }
    }
    let _ = timeout(subscriber.attempt, subscriber.client.quit()).await;
}

impl Subscriber {
    pub(super) fn new(
        client: SubscriberClient,
        channels: &Channels,
        address: &Address,
        fleet: Option<(Server, bool)>,
    ) -> Self {
        let (server, sharded) = fleet.map_or((None, false), |(server, is)| (Some(server), is));
        let (channels, here) = (Arc::clone(channels), HashSet::new());
        let (attempt, ping_interval) =
            (address.attempt, (address.ttl / 4).clamp(PING_INTERVAL.0, PING_INTERVAL.1));
        Self {
            client,
            sharded,
            server,
            channels,
            here,
            address: address.clone(),
            attempt,
            ping_interval,
            pings: 0,
            renewed: String::new(),
            in_doubt: false,
        }
    }

    /// Pings the server, and replaces the connection if there is no reply. A refusal is a reply, too. After the reply to
    /// another command it pings again. Returns an error if the server refused that command, or may not have run it.
    async fn probe(&mut self) -> Result<()> {
        let mut drain = DRAIN.0;
        let mut others = Ok(());
        self.in_doubt = false;
        while is_connected(&self.client) {
            self.pings += 1;
            let question = self.pings.to_string();
            let ping = CustomCommand::new_static("PING", ClusterHash::FirstKey, false);
            let reply = self.client.custom::<Value, _>(ping, vec![question.as_str()]).await;
            match reply {
                Err(error) if *error.kind() == FredKind::Timeout => {
                    self.reconnect().await;
                    return Err(classify(&error));
                }
                reply if !answers_another(&reply, &question) => {
                    return match reply {
                        Err(error) if !is_of_ping(error.details()) => Err(classify(&error)),
                        _ => others,
                    };
                }
                _ if drain > DRAIN.1 => {
                    self.reconnect().await;
                    break;
                }
                reply => {
                    others = reply.map_err(|error| classify(&error)).and(others);
                    // While no command is in flight, fred drops replies.
                    sleep(drain).await;
                    drain *= 2;
                }
            }
        }
        Err(no_connection())
    }

    /// Replaces the connection. Without one, fred is making one already.
    async fn reconnect(&self) {
        if is_connected(&self.client) {
            trace::later(Level::DEBUG, || {
                || {
                    tracing::debug!(
                        "the connection for wake-ups is silent, or its replies are out of step"
                    )
                }
            });
            // On a stalled server this itself hangs.
            let _ = timeout(self.attempt * 2, self.client.force_reconnection()).await;
        }
    }

    /// Records that nothing is subscribed after a reconnect. Returns the channels with waiters. The event may come late,
    /// when a channel is already subscribed on the new connection, so channels without waiters are still unsubscribed.
    fn mark_unsubscribed(&self) -> Vec<String> {
        let mut channels = self.channels.lock();
        let ours = channels.iter_mut().filter(|(_, channel)| channel.server == self.server);
        ours.filter_map(|(name, channel)| {
            channel.subscribed = false;
            channel.is_awaited().then(|| name.clone())
        })
        .collect()
    }

    /// Subscribes channels, unless an earlier waiter's command has done it. Returns a result for each.
    async fn subscribe_awaited(&mut self, channels: Vec<String>) -> Vec<Result<()>> {
        let missing: HashSet<&String> = {
            let known = self.channels.lock();
            let is_missing =
                |channel: &&String| known.get(*channel).is_some_and(|entry| !entry.subscribed);
            channels.iter().filter(is_missing).collect()
        };
        let missing: Vec<String> = missing.into_iter().cloned().collect();
        let results = self.subscribe_all(&missing).await;
        let results: HashMap<String, Result<()>> = missing.into_iter().zip(results).collect();
        channels.iter().map(|channel| results.get(channel).cloned().unwrap_or(Ok(()))).collect()
    }

    /// Subscribes channels. Returns a result for each.
    async fn subscribe_all(&mut self, channels: &[String]) -> Vec<Result<()>> {
        if !self.sharded && channels.len() > 1 {
            let result = self.subscribe(channels).await;
            if result.as_ref().map_or_else(Error::is_unavailable, |()| true) {
                return vec![result; channels.len()];
            }
            // One of them is refused.
        }
        let mut results = Vec::with_capacity(channels.len());
        for channel in channels {
            results.push(self.subscribe(std::slice::from_ref(channel)).await);
        }
        results
    }

    /// Subscribes sharded channels with waiters again, in turn. A server drops those of a slot that leaves. If the slot comes
    /// back before the next look at the map, nothing else reports it. So it is if the new server did not answer.
    async fn subscribe_again(&mut self) {
        if !self.sharded {
            return;
        }
        let mut awaited: Vec<String> = {
            let channels = self.channels.lock();
            let ours = channels.iter().filter(|(_, entry)| entry.server == self.server);
            ours.filter(|(_, entry)| entry.is_awaited()).map(|(name, _)| name.clone()).collect()
        };
        awaited.sort_unstable();
        let next = awaited.partition_point(|channel| *channel <= self.renewed);
        awaited.rotate_left(next);
        for channel in awaited.into_iter().take(BATCH) {
            let result = self.subscribe(std::slice::from_ref(&channel)).await;
            self.renewed = channel;
            if result.is_err_and(|error| error.is_unavailable()) {
                break;
            }
        }
    }

    /// Subscribes channels, all or none as far as the client knows.
    async fn subscribe(&mut self, channels: &[String]) -> Result<()> {
        if !is_connected(&self.client) {
            return Err(no_connection());
        }
        for channel in channels {
            self.here.insert(channel.clone());
            let sent = async {
                match self.sharded {
                    true => self.client.ssubscribe(channel).await,
                    false => self.client.subscribe(channel).await,
                }
            };
            // fred's own time limit, of one attempt, ends first: a command that we drop would still be sent.
            match timeout(self.attempt * 2, sent).await {
                Ok(sent) => sent.map_err(|error| classify(&error))?,
                Err(_) => {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "the subscription was not confirmed in time",
                    ));
                }
            }
        }
        if !self.sharded {
            self.probe().await?;
        }
        let mut subscribed = self.channels.lock();
        for channel in channels {
            if let Some(entry) = subscribed.get_mut(channel)
                && entry.server == self.server
            {
                entry.subscribed = true;
            }
        }
        Ok(())
    }

    /// Unsubscribes, unless the channel has a waiter again. Returns whether the server accepts commands.
    async fn unsubscribe(&mut self, channel: &str) -> bool {
        {
            let mut channels = self.channels.lock();
            let ours = channels.get(channel).filter(|entry| entry.server == self.server);
            if ours.is_some_and(Channel::is_awaited) {
                return true;
            }
            if ours.is_some() {
                // A new waiter requests a new subscription from here on, which comes after this command.
                channels.remove(channel);
            }
        }
        // A server unsubscribes a sharded channel by itself when its slot leaves, but our map may be ahead of it.
        if !self.here.remove(channel) || !is_connected(&self.client) {
            return true;
        }
        self.in_doubt |= self.sharded;
        let given_up = async {
            match self.sharded {
                true => self.client.sunsubscribe(channel).await,
                false => self.client.unsubscribe(channel).await,
            }
        };
        matches!(timeout(self.attempt * 2, given_up).await, Ok(Ok(())))
    }
}

fn no_connection() -> Error {
    Error::new(ErrorKind::Unavailable, "there is no connection for wake-ups")
        .with_fate(Fate::NotExecuted)
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
            let text = error.details();
            // By the name of the command, or because it was for a channel.
            ["MOVED", "subscribe", "channel"].iter().any(|word| text.contains(word))
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
            |text: &'static str| Err::<Value, _>(fred::error::Error::new(FredKind::Unknown, text));
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
