//! One connection that receives messages: subscribes, unsubscribes, and checks that it is alive.
//!
//! One channel per command and one command at a time, because otherwise fred mixes up replies.
//!
//! fred expects no reply to an unsubscribe, since Redis usually answers it with a message. But a node of a cluster refuses
//! to unsubscribe a channel that has moved with its slot, and fred would take the refusal for the reply to the next
//! command. So after an unsubscribe the listener pings the server until the reply is that to its ping. Replies left over
//! from before are dropped.
//!
//! Except in a cluster, fred does not wait for the reply to a subscribe either: it reports success before the command has left.
//! The request of the waiter, which takes another connection, could pass it, and then a release in between would wake no waiter.
//! So the listener pings the server here, too, and only the reply to that shows that the subscription is there.
//!
//! A subscription is silent by nature, so a dead connection would go unnoticed. While channels are subscribed, the
//! listener pings the server from time to time. It then asks again for channels that were refused: a permission may have
//! come back.

use super::channels::{Channel, Channels, Command, Subscribed, answer, wake, wake_ours};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::redis::link::address::{Address, Served};
use crate::store::redis::link::errors::classify;
use crate::util::trace;
use fred::clients::SubscriberClient;
use fred::error::ErrorKind as FredKind;
use fred::interfaces::{ClientLike, FredResult, PubsubInterface};
use fred::types::config::Server;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::Level;

/// How long a subscription outlives its last waiter: the next one is often there at once.
const LINGER: Duration = Duration::from_secs(1);
/// The bounds of the time between two pings.
const PING_INTERVAL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// The most subscriptions that are made, ended, or looked after, at a time, with one ping.
const BATCH: usize = 100;
/// The bounds of the time in which fred drops replies that are left over.
const DRAIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// The end of a subscriber. There may be a call that waits for it.
pub(super) type Closed = Option<oneshot::Sender<()>>;

/// Why a connection is given up.
pub(super) enum End {
    Lost,
    Closed(Closed),
    /// The next one is made already.
    Replaced(Box<Served<SubscriberClient>>),
}

/// What a subscriber has to do, whatever its connection.
pub(in crate::store::redis) struct Work {
    /// What the log calls the server.
    pub(in crate::store::redis) name: String,
    /// The server of a fleet whose channels it has; `None` for a single server.
    pub(in crate::store::redis) server: Option<Server>,
    /// Whether channels belong to slots.
    pub(in crate::store::redis) sharded: bool,
    pub(super) channels: Channels,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    /// Whether a refusal was logged, and not all channels are subscribed since.
    pub(in crate::store::redis) refused: bool,
}

impl Work {
    /// Forgets a channel of its own, unless it has a waiter again. Returns whether it has one.
    pub(super) fn forget(&self, channel: &str) -> bool {
        let mut channels = self.channels.lock();
        let ours = channels.get(channel).filter(|entry| entry.server == self.server);
        let is_awaited = ours.is_some_and(Channel::is_awaited);
        if ours.is_some() && !is_awaited {
            // A new waiter requests a new subscription from here on, which comes after this command.
            channels.remove(channel);
        }
        is_awaited
    }
}

/// A connection that receives messages.
pub(super) struct Listener<'a> {
    work: &'a mut Work,
    client: &'a SubscriberClient,
    /// The channels that were subscribed on this connection and not unsubscribed.
    here: HashSet<String>,
    attempt: Duration,
    /// The time between two pings. With the time limit of an attempt it is less than T/3 and a second.
    ping_interval: Duration,
    /// The number of pings so far.
    pings: u64,
    /// The channel that was subscribed again last.
    renewed: String,
    /// Whether there may be replies to commands for which fred expects none.
    in_doubt: bool,
    /// Whether the connection is silent, or its replies are out of step.
    lost: bool,
}

impl<'a> Listener<'a> {
    pub(in crate::store::redis) fn new(
        work: &'a mut Work,
        client: &'a SubscriberClient,
        address: &Address,
    ) -> Self {
        let attempt = address.attempt;
        let ttl = address.ttl;
        Self {
            work,
            client,
            here: HashSet::new(),
            attempt,
            ping_interval: (ttl / 4).clamp(PING_INTERVAL.0, PING_INTERVAL.1),
            pings: 0,
            renewed: String::new(),
            in_doubt: false,
            lost: false,
        }
    }

    /// Subscribes all awaited channels, and obeys commands until the connection is closed or given up.
    pub(super) async fn listen(mut self) -> End {
        for channels in self.forget_the_last_connection().chunks(BATCH) {
            self.subscribe_all(channels).await;
        }
        // Messages of the gap are lost.
        wake_ours(&self.work.channels, self.work.server.as_ref());
        match self.obey().await {
            Some(closed) => End::Closed(closed),
            None => End::Lost,
        }
    }

    /// Subscribes, and unsubscribes channels that have been idle for a while. While any channel is subscribed, checks that
    /// the connection is alive. Returns `None` when it is given up.
    async fn obey(&mut self) -> Option<Closed> {
        let mut idle: VecDeque<(Instant, String)> = VecDeque::new();
        let mut alive = Instant::now();
        // The command that ended a batch.
        let mut postponed = None;
        while !self.lost {
            let next = idle.front().map(|(at, _)| *at);
            let commands = &mut self.work.commands;
            let command = async {
                match postponed.take() {
                    Some(command) => Some(command),
                    None => commands.recv().await,
                }
            };
            tokio::select! {
                command = command => match command {
                    Some(Command::Subscribe(channel, done)) => {
                        let mut channels = vec![channel];
                        let mut waiting = vec![done];
                        while channels.len() < BATCH && postponed.is_none() {
                            match self.work.commands.try_recv() {
                                Ok(Command::Subscribe(channel, done)) => {
                                    channels.push(channel);
                                    waiting.push(done);
                                }
                                Ok(other) => postponed = Some(other),
                                Err(_) => break,
                            }
                        }
                        let results = self.subscribe_awaited(channels).await;
                        for (done, result) in waiting.into_iter().zip(results) {
                            answer(done, result);
                        }
                    }
                    Some(Command::Idle(channel)) => idle.push_back((Instant::now() + LINGER, channel)),
                    Some(Command::Close(done)) => return Some(Some(done)),
                    None => return Some(None),
                },
                () = async { sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {
                    let now = Instant::now();
                    let due = idle.iter().take(BATCH).take_while(|(at, _)| *at <= now).count();
                    for _ in 0..due {
                        let Some((_, channel)) = idle.pop_front() else { break };
                        if !self.unsubscribe(&channel).await {
                            break;
                        }
                    }
                    if self.in_doubt {
                        let _ = self.probe().await;
                        alive = Instant::now();
                    }
                }
                () = sleep_until(alive + self.ping_interval), if !self.here.is_empty() => {
                    if self.probe().await.is_ok() {
                        self.subscribe_again().await;
                    }
                    alive = Instant::now();
                }
            }
        }
        None
    }

    /// Pings the server, and gives the connection up if there is no reply. A refusal is a reply, too. After the reply to
    /// another command it pings again. Returns an error if the server refused that command, or may not have run it.
    async fn probe(&mut self) -> Result<()> {
        let mut drain = DRAIN.0;
        let mut others = Ok(());
        self.in_doubt = false;
        while !self.lost {
            self.pings += 1;
            let question = self.pings.to_string();
            let ping = CustomCommand::new_static("PING", ClusterHash::FirstKey, false);
            let reply = self.client.custom::<Value, _>(ping, vec![question.as_str()]).await;
            match reply {
                Err(error) if *error.kind() == FredKind::Timeout => {
                    self.give_up();
                    return Err(classify(&error));
                }
                reply if !answers_another(&reply, &question) => {
                    return match reply {
                        Err(error) if !is_of_ping(error.details()) => Err(classify(&error)),
                        _ => others,
                    };
                }
                _ if drain > DRAIN.1 => {
                    self.give_up();
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

    /// Gives the connection up. The next one subscribes all awaited channels.
    fn give_up(&mut self) {
        self.lost = true;
        trace::later(Level::DEBUG, || {
            || {
                tracing::debug!(
                    "the connection for wake-ups is silent, or its replies are out of step"
                )
            }
        });
    }

    /// Records that nothing is subscribed on a new connection. Returns the channels with waiters.
    fn forget_the_last_connection(&self) -> Vec<String> {
        let mut channels = self.work.channels.lock();
        // A command about a channel without waiters may have gone with the last connection.
        channels.retain(|_, entry| entry.server != self.work.server || entry.is_awaited());
        let ours = channels.iter_mut().filter(|(_, entry)| entry.server == self.work.server);
        ours.map(|(name, entry)| {
            entry.subscribed = false;
            name.clone()
        })
        .collect()
    }

    /// Subscribes channels, unless an earlier waiter's command has done it. Returns a result for each.
    async fn subscribe_awaited(&mut self, channels: Vec<String>) -> Vec<Subscribed> {
        let missing: HashSet<&String> = {
            let known = self.work.channels.lock();
            let is_missing =
                |channel: &&String| known.get(*channel).is_some_and(|entry| !entry.subscribed);
            channels.iter().filter(is_missing).collect()
        };
        let missing: Vec<String> = missing.into_iter().cloned().collect();
        let results = self.subscribe_all(&missing).await;
        let results: HashMap<String, Subscribed> = missing.into_iter().zip(results).collect();
        channels.iter().map(|channel| results.get(channel).cloned().unwrap_or(Ok(()))).collect()
    }

    /// Subscribes channels. Returns a result for each.
    async fn subscribe_all(&mut self, channels: &[String]) -> Vec<Subscribed> {
        if !self.work.sharded && channels.len() > 1 {
            let result = self.subscribe(channels).await;
            if result.as_ref().map_or_else(Error::is_unavailable, |()| true) {
                return vec![result; channels.len()];
            }
            // One of them is refused.
        }
        let mut results = Vec::with_capacity(channels.len());
        for channel in channels {
            let result = self.subscribe(std::slice::from_ref(channel)).await;
            if let Err(error) = &result {
                self.report(error);
            }
            results.push(result);
        }
        results
    }

    /// Reports a refusal, once until all channels are subscribed.
    fn report(&mut self, error: &Error) {
        if error.is_unavailable() || std::mem::replace(&mut self.work.refused, true) {
            return;
        }
        trace::later(Level::WARN, || {
            let server = self.work.name.clone();
            let error = error.clone();
            move || {
                tracing::warn!(
                    server,
                    %error,
                    "no wake-ups; polling instead, until the server allows them"
                );
            }
        });
    }

    /// Subscribes channels with waiters again, in turn: those that were refused, and in a cluster also those that are
    /// subscribed. A server drops sharded channels of a slot that leaves. If the slot comes back before the next look at the
    /// map, nothing else reports it. So it is if the new server did not answer.
    async fn subscribe_again(&mut self) {
        let mut awaited: Vec<String> = {
            let channels = self.work.channels.lock();
            let ours = channels.iter().filter(|(_, entry)| entry.server == self.work.server);
            let ours = ours.filter(|(_, entry)| entry.is_awaited());
            let missing = ours.filter(|(_, entry)| self.work.sharded || !entry.subscribed);
            missing.map(|(name, _)| name.clone()).collect()
        };
        if awaited.is_empty() {
            self.work.refused = false;
            return;
        }
        awaited.sort_unstable();
        let next = awaited.partition_point(|channel| *channel <= self.renewed);
        awaited.rotate_left(next);
        awaited.truncate(BATCH);
        self.renewed.clone_from(&awaited[awaited.len() - 1]);
        let before: Vec<bool> = {
            let channels = self.work.channels.lock();
            let is_there = |name: &String| channels.get(name).is_some_and(|entry| entry.subscribed);
            awaited.iter().map(is_there).collect()
        };
        let results = self.subscribe_all(&awaited).await;
        self.work.refused &= results.iter().any(Result::is_err);
        // Messages were missed.
        for ((channel, was_there), result) in awaited.iter().zip(before).zip(results) {
            if !was_there && result.is_ok() {
                wake(&self.work.channels, Some(channel));
            }
        }
    }

    /// Subscribes channels, all or none as far as the client knows.
    async fn subscribe(&mut self, channels: &[String]) -> Subscribed {
        if self.lost {
            return Err(no_connection());
        }
        for channel in channels {
            self.here.insert(channel.clone());
            let sent = async {
                match self.work.sharded {
                    true => self.client.ssubscribe(channel).await,
                    false => self.client.subscribe(channel).await,
                }
            };
            // fred's own time limit, of one attempt, ends first: a command that we drop would still be sent.
            match timeout(self.attempt * 2, sent).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    if *error.kind() == FredKind::Timeout {
                        self.give_up();
                    }
                    return Err(classify(&error));
                }
                Err(_) => {
                    self.give_up();
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "the subscription was not confirmed in time",
                    ));
                }
            }
        }
        if !self.work.sharded {
            self.probe().await?;
        }
        let mut subscribed = self.work.channels.lock();
        for channel in channels {
            if let Some(entry) = subscribed.get_mut(channel)
                && entry.server == self.work.server
            {
                entry.subscribed = true;
            }
        }
        Ok(())
    }

    /// Unsubscribes, unless the channel has a waiter again. Returns whether the server accepts commands.
    async fn unsubscribe(&mut self, channel: &str) -> bool {
        if self.work.forget(channel) {
            return true;
        }
        // A server unsubscribes a sharded channel by itself when its slot leaves, but our map may be ahead of it.
        if !self.here.remove(channel) || self.lost {
            return true;
        }
        self.in_doubt |= self.work.sharded;
        let given_up = async {
            match self.work.sharded {
                true => self.client.sunsubscribe(channel).await,
                false => self.client.unsubscribe(channel).await,
            }
        };
        matches!(timeout(self.attempt * 2, given_up).await, Ok(Ok(())))
    }
}

pub(super) fn no_connection() -> Error {
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
