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

use super::channels::{
    Channels, Command, Refused, Subscribed, SubscriberId, answer, begin_again, forget, left,
    now_subscribed, wake, wake_ours,
};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::redis::link::address::Address;
use crate::store::redis::link::subscription::{
    Listens, Pong, Refusal, SubscriberLink, Subscription,
};
use crate::util::reached::Rare;
use crate::util::trace;
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
/// How often a channel is subscribed, while it is not certain that it is. On a busy machine one in some refusals is missed.
const ATTEMPTS: usize = 12;
/// The bounds of the time in which fred drops replies that are left over.
const DRAIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// The end of a subscriber. There may be a call that waits for it.
pub(super) type Closed = Option<oneshot::Sender<()>>;

/// Why a connection is given up.
pub(super) enum End {
    Lost,
    Closed(Closed),
    /// The next one is made already.
    Replaced(Box<Subscription>),
}

/// What a subscriber has to do, whatever its connection.
pub(super) struct Work {
    /// What the log calls the server.
    pub(super) name: String,
    pub(super) id: SubscriberId,
    /// Whether channels belong to slots.
    pub(super) sharded: bool,
    pub(super) channels: Channels,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    /// Whether a refusal was logged, and not all channels are subscribed since.
    pub(super) refused: Option<Refused>,
}

/// A connection that receives messages.
pub(super) struct Listener<'a> {
    work: &'a mut Work,
    link: &'a SubscriberLink,
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
    /// Whether the server replies to a ping as if nothing were subscribed, though something is.
    has_one_form: bool,
    /// Whether the connection is silent, or its replies are out of step.
    lost: bool,
}

impl<'a> Listener<'a> {
    pub(super) fn new(work: &'a mut Work, link: &'a SubscriberLink, address: &Address) -> Self {
        let attempt = address.attempt;
        let ttl = address.ttl;
        Self {
            work,
            link,
            here: HashSet::new(),
            attempt,
            ping_interval: (ttl / 4).clamp(PING_INTERVAL.0, PING_INTERVAL.1),
            pings: 0,
            renewed: String::new(),
            in_doubt: false,
            has_one_form: false,
            lost: false,
        }
    }

    /// Subscribes all awaited channels, and obeys commands until the connection is closed or given up.
    pub(super) async fn listen(mut self) -> End {
        for channels in begin_again(&self.work.channels, self.work.id).chunks(BATCH) {
            self.subscribe_all(channels).await;
        }
        // Messages of the gap are lost.
        wake_ours(&self.work.channels, self.work.id);
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
                    Some(Command::Leave(channel)) => {
                        if left(&self.work.channels, &channel, self.work.id) {
                            self.unsubscribe(&channel).await;
                            self.clear_doubt(&mut alive).await;
                        }
                    }
                    Some(Command::Close(done)) => return Some(Some(done)),
                    None => return Some(None),
                },
                () = async { sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {
                    let now = Instant::now();
                    let due = idle.iter().take(BATCH).take_while(|(at, _)| *at <= now).count();
                    for _ in 0..due {
                        let Some((_, channel)) = idle.pop_front() else { break };
                        if !forget(&self.work.channels, &channel, self.work.id) {
                            continue;
                        }
                        if !self.unsubscribe(&channel).await {
                            break;
                        }
                    }
                    self.clear_doubt(&mut alive).await;
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

    /// Pings the server, if there may be replies to commands for which fred expects none.
    async fn clear_doubt(&mut self, alive: &mut Instant) {
        if self.in_doubt {
            let _ = self.probe().await;
            *alive = Instant::now();
        }
    }

    /// Pings the server, and gives the connection up if there is no reply. A refusal is a reply, too. After the reply to
    /// another command it pings again. Returns an error if the server refused that command, or may not have run it.
    async fn probe(&mut self) -> Result<Listens> {
        self.probe_after(None).await
    }

    /// Subscribes a channel, and pings the server as [`probe`](Self::probe) does.
    async fn probe_after(&mut self, mut channel: Option<&str>) -> Result<Listens> {
        let mut drain = DRAIN.0;
        let mut others = Ok(());
        self.in_doubt = false;
        while !self.lost {
            self.pings += 1;
            let question = self.pings.to_string();
            let pong = match channel.take() {
                None => self.link.ping(&question).await,
                Some(channel) => {
                    // fred's own time limit, of one attempt, ends first: a command that we drop would still be sent.
                    let limit = self.attempt * 2;
                    let (sent, pong) =
                        self.link.subscribe_and_ping(channel, &question, limit).await;
                    self.note_silence(sent)?;
                    pong
                }
            };
            match pong {
                Pong::Silence(error) => {
                    self.give_up();
                    return Err(error);
                }
                Pong::InStep(Err(error)) => return Err(error),
                Pong::InStep(Ok(listens)) => return others.map(|()| listens),
                Pong::OfAnother(_) if drain > DRAIN.1 => {
                    self.give_up();
                    break;
                }
                Pong::OfAnother(reply) => {
                    others = reply.and(others);
                    // While no command is in flight, fred drops replies.
                    sleep(drain).await;
                    drain *= 2;
                }
            }
        }
        Err(no_connection())
    }

    /// Gives the connection up if a command was not answered in time.
    fn note_silence(&mut self, sent: Result<(), Refusal>) -> Result<()> {
        sent.map_err(|refusal| {
            if refusal.is_silence {
                self.give_up();
            }
            refusal.error
        })
    }

    /// Gives the connection up. The next one subscribes all awaited channels.
    fn give_up(&mut self) {
        Rare::RedisSubscriptionSilent.reached();
        self.lost = true;
        trace::later(Level::DEBUG, || {
            || {
                tracing::debug!(
                    "the connection for wake-ups is silent, or its replies are out of step"
                )
            }
        });
    }

    /// Subscribes channels, unless an earlier waiter's command has done it. Returns a result for each.
    async fn subscribe_awaited(&mut self, channels: Vec<String>) -> Vec<Subscribed> {
        let missing: HashSet<&String> = {
            let known = self.work.channels.lock();
            let is_missing = |channel: &&String| {
                let entry = known.get(*channel);
                entry.is_some_and(|entry| !(entry.subscribed && entry.is_at(self.work.id)))
            };
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
        if error.is_unavailable() || self.work.refused.is_some() {
            return;
        }
        Rare::RedisSubscriptionRefused.reached();
        let refused = Refused::new(&self.work.channels, &self.work.name);
        let is_first = refused.is_first;
        self.work.refused = Some(refused);
        if !is_first {
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
            let ours = channels.iter().filter(|(_, entry)| entry.is_at(self.work.id));
            let ours = ours.filter(|(_, entry)| entry.is_awaited());
            let missing = ours.filter(|(_, entry)| self.work.sharded || !entry.subscribed);
            missing.map(|(name, _)| name.clone()).collect()
        };
        if awaited.is_empty() {
            self.work.refused = None;
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
        if results.iter().all(Result::is_ok) {
            self.work.refused = None;
        }
        // Messages were missed.
        for ((channel, was_there), result) in awaited.iter().zip(before).zip(results) {
            if !was_there && result.is_ok() {
                wake(&self.work.channels, Some(channel));
            }
        }
    }

    /// Subscribes channels, all or none as far as the client knows.
    async fn subscribe(&mut self, channels: &[String]) -> Subscribed {
        let mut attempts = 0;
        // Otherwise the refusal may have been missed.
        while self.try_to_subscribe(channels).await? == Listens::PerhapsNot && !self.has_one_form {
            attempts += 1;
            // If it is not seen in so many attempts, there was none, and the server has only one form of the reply to a ping.
            self.has_one_form = attempts == ATTEMPTS;
        }
        for channel in channels {
            now_subscribed(&self.work.channels, channel, self.work.id);
        }
        Ok(())
    }

    async fn try_to_subscribe(&mut self, channels: &[String]) -> Result<Listens> {
        let mut channels = channels.iter().peekable();
        while let Some(channel) = channels.next() {
            if self.lost {
                return Err(no_connection());
            }
            self.here.insert(channel.clone());
            if !self.work.sharded && channels.peek().is_none() {
                return self.probe_after(Some(channel)).await;
            }
            // fred's own time limit ends first here, too.
            let sent = timeout(self.attempt * 2, self.link.subscribe(channel, self.work.sharded));
            let sent = sent.await.unwrap_or_else(|_| Err(Refusal::unconfirmed()));
            self.note_silence(sent)?;
        }
        Ok(Listens::Yes)
    }

    /// Unsubscribes. Returns whether the server accepts commands.
    async fn unsubscribe(&mut self, channel: &str) -> bool {
        // A server unsubscribes a sharded channel by itself when its slot leaves, but our map may be ahead of it.
        if !self.here.remove(channel) || self.lost {
            return true;
        }
        self.in_doubt |= self.work.sharded;
        let given_up = self.link.unsubscribe(channel, self.work.sharded);
        matches!(timeout(self.attempt * 2, given_up).await, Ok(Ok(())))
    }
}

pub(super) fn no_connection() -> Error {
    Error::new(ErrorKind::Unavailable, "there is no connection for wake-ups")
        .with_fate(Fate::NotExecuted)
}
