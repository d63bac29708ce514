//! Wake-ups over pub/sub: hints only, one connection and one subscription per waited name.
//!
//! Two tasks on the engine's runtime: the listener passes messages on and never waits for anything
//! else; the clerk subscribes and unsubscribes, one channel per command, one command at a time,
//! because fred mixes up replies otherwise. In a fleet every server has such a pair; see `clerks`.
//!
//! fred expects no reply to what gives a subscription up, since that is a message otherwise. But a node of a cluster
//! refuses to give up what has gone with its slot, and the refusal would answer the next command. So after that
//! the clerk asks the server something, until the answer is that to the question: what is left over then is dropped.
//!
//! A subscription is silent by nature, so nobody would notice that its connection is dead: while channels are
//! subscribed, the clerk asks for a sign of life now and then.
//!
//! Nothing is given to fred while it has no connection: it would keep all of it until the end of the outage. What is
//! waited for is subscribed anew after a reconnect, and a new connection has nothing to be given up.

use super::clerks::Clerks;
use super::connect::Address;
use super::link::{Dial, in_use, is_connected, sorted};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Signal, Wakeups};
use crate::trace;
use fred::clients::SubscriberClient;
use fred::error::ErrorKind as Silence;
use fred::interfaces::{ClientLike, EventInterface, FredResult, PubsubInterface};
use fred::types::config::Server;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::Level;

/// How long a subscription outlives its last waiter: the next one is often there at once.
const LINGER: Duration = Duration::from_secs(1);
/// The bounds of the time between two signs of life.
const PULSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// How many subscriptions are given up at a time, with one question after them.
const BATCH: usize = 100;
/// The bounds of the time in which fred drops what is left over.
const SETTLING: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

#[derive(Clone)]
pub(super) struct Hub {
    channels: Channels,
    desk: Desk,
}

/// Who takes orders.
#[derive(Clone)]
enum Desk {
    One(mpsc::UnboundedSender<Order>),
    Each(Arc<Clerks>),
}

/// What is waited for, by channel.
pub(super) type Channels = Arc<Mutex<HashMap<String, Channel>>>;

#[derive(Default)]
pub(super) struct Channel {
    waiters: Vec<Signal>,
    /// As far as the client knows.
    pub(super) subscribed: bool,
    /// The server of a fleet that has the channel.
    pub(super) server: Option<Server>,
}

impl Channel {
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiters.is_empty()
    }
}

pub(super) enum Order {
    /// Answered when the subscription is there.
    Subscribe(String, oneshot::Sender<Result<()>>),
    /// The last waiter went away.
    Idle(String),
    Close(oneshot::Sender<()>),
}

impl Hub {
    /// Connects on the current runtime.
    pub(super) async fn start(dial: &Dial) -> Result<Self> {
        let (address, channels) = (&dial.address, Channels::default());
        let desk = match &dial.routes {
            None => {
                let client = address.subscriber().await?;
                let (clerk, orders) = mpsc::unbounded_channel();
                let line = Line::new(client, &channels, address, None);
                tokio::spawn(serve(line, orders));
                Desk::One(clerk)
            }
            Some(routes) => Desk::Each(Clerks::start(address, routes, &channels)),
        };
        Ok(Self { channels, desk })
    }

    fn order(&self, order: Order) -> Result<()> {
        let sent = match &self.desk {
            Desk::One(clerk) => clerk.send(order).is_ok(),
            Desk::Each(clerks) => clerks.order(order),
        };
        sent.then_some(())
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "the subscriber has gone"))
    }

    /// Whether a message to `channel` reaches us too, as far as we know.
    pub(super) fn hears(&self, channel: &str) -> bool {
        lock(&self.channels).get(channel).is_some_and(|entry| entry.subscribed)
    }

    /// Ends the connection.
    pub(super) async fn close(&self, attempt: Duration) {
        if let Desk::Each(clerks) = &self.desk {
            return clerks.close(attempt * 2).await;
        }
        let (done, closed) = oneshot::channel();
        if self.order(Order::Close(done)).is_ok() {
            let _ = timeout(attempt * 2, closed).await;
        }
    }

    /// Subscribes a waiter and returns when the subscription has left: fred waits for no answer to it, except in
    /// a cluster.
    pub(super) async fn subscribe(&self, channel: String) -> Result<Wakeups> {
        let signal = Signal::new();
        let guard = Guard { hub: self.clone(), channel: channel.clone(), signal: signal.clone() };
        let subscribed = {
            let mut channels = lock(&self.channels);
            let entry = channels.entry(channel.clone()).or_default();
            entry.waiters.push(signal.clone());
            entry.subscribed
        };
        if !subscribed {
            let (done, confirmed) = oneshot::channel();
            self.order(Order::Subscribe(channel, done))?;
            confirmed.await.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Unavailable, "the subscriber has gone"))
            })?;
        }
        Ok(Wakeups::new(signal, guard))
    }
}

struct Guard {
    hub: Hub,
    channel: String,
    signal: Signal,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut channels = lock(&self.hub.channels);
        let Some(channel) = channels.get_mut(&self.channel) else {
            return;
        };
        channel.waiters.retain(|waiter| !waiter.is(&self.signal));
        if channel.is_awaited() {
            return;
        }
        drop(channels);
        if self.hub.order(Order::Idle(self.channel.clone())).is_err() {
            // Nobody has a connection that it could be given up on.
            let mut channels = lock(&self.hub.channels);
            if !channels.get(&self.channel).is_none_or(Channel::is_awaited) {
                channels.remove(&self.channel);
            }
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes who waits on one channel, or on all. Each of them is the first in line of its name, and
/// two names may share a channel, so nobody is woken in vain.
pub(super) fn wake(channels: &Mutex<HashMap<String, Channel>>, channel: Option<&str>) {
    let waiters: Vec<Signal> = {
        let channels = lock(channels);
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

/// A connection that messages come by.
pub(super) struct Line {
    client: SubscriberClient,
    /// Whether channels belong to slots.
    sharded: bool,
    /// In a fleet: this line is for the channels of this server only.
    server: Option<Server>,
    channels: Channels,
    /// What was asked for and not given up.
    here: HashSet<String>,
    attempt: Duration,
    /// The time between two signs of life: with that of an attempt it is less than T/3 and a second.
    pulse: Duration,
    /// How often the server was asked for one.
    asked: u64,
    /// Whether replies may be left over, to commands of which fred expects none.
    in_doubt: bool,
}

/// Works for a line until it is closed.
pub(super) async fn serve(line: Line, orders: mpsc::UnboundedReceiver<Order>) {
    tokio::spawn(listen(line.client.clone(), Arc::clone(&line.channels)));
    keep(line, orders).await;
}

/// Passes messages on until the client ends.
async fn listen(client: SubscriberClient, channels: Channels) {
    let mut messages = client.message_rx();
    loop {
        match messages.recv().await {
            Ok(message) => wake(&channels, Some(&message.channel)),
            // We were too slow; who was meant is lost, so it is everybody.
            Err(RecvError::Lagged(_)) => wake(&channels, None),
            Err(RecvError::Closed) => return,
        }
    }
}

/// Subscribes, unsubscribes what has been idle for a while, and subscribes again after a reconnect. While anything
/// is subscribed, it sees to it that the connection lives.
async fn keep(mut line: Line, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut reconnects = line.client.reconnect_rx();
    let mut idle: VecDeque<(Instant, String)> = VecDeque::new();
    let mut alive = Instant::now();
    loop {
        let next = idle.front().map(|(at, _)| *at);
        tokio::select! {
            order = orders.recv() => match order {
                Some(Order::Subscribe(channel, done)) => {
                    // An earlier waiter's order may have done it.
                    let there = lock(&line.channels).get(&channel).is_none_or(|entry| entry.subscribed);
                    let result = if there { Ok(()) } else { line.subscribe(&channel).await };
                    let _ = done.send(result);
                }
                Some(Order::Idle(channel)) => idle.push_back((Instant::now() + LINGER, channel)),
                Some(Order::Close(done)) => {
                    let _ = timeout(line.attempt, line.client.quit()).await;
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
                    if !line.give_up(&channel).await {
                        break;
                    }
                }
                if line.in_doubt {
                    line.probe().await;
                    alive = Instant::now();
                }
            }
            () = sleep_until(alive + line.pulse), if !line.here.is_empty() => {
                line.probe().await;
                alive = Instant::now();
            }
            event = reconnects.recv() => {
                if let Err(RecvError::Closed) = event {
                    break;
                }
                in_use(&line.client).await;
                for channel in line.forget() {
                    let _ = line.subscribe(&channel).await;
                }
                // Messages of the gap are lost.
                wake(&line.channels, None);
            }
        }
    }
    let _ = timeout(line.attempt, line.client.quit()).await;
}

impl Line {
    pub(super) fn new(
        client: SubscriberClient,
        channels: &Channels,
        address: &Address,
        fleet: Option<(Server, bool)>,
    ) -> Self {
        let (server, sharded) = fleet.map_or((None, false), |(server, is)| (Some(server), is));
        let (channels, here) = (Arc::clone(channels), HashSet::new());
        let (attempt, pulse) = (address.attempt, (address.ttl / 4).clamp(PULSE.0, PULSE.1));
        Self { client, sharded, server, channels, here, attempt, pulse, asked: 0, in_doubt: false }
    }

    /// Asks for a sign of life, and replaces the connection if there is none. A refusal is one, too. What answers
    /// another command is none: then it asks again.
    async fn probe(&mut self) {
        let mut settling = SETTLING.0;
        self.in_doubt = false;
        while is_connected(&self.client) {
            self.asked += 1;
            let question = self.asked.to_string();
            let ping = CustomCommand::new_static("PING", ClusterHash::FirstKey, false);
            match self.client.custom(ping, vec![question.as_str()]).await {
                Err(error) if *error.kind() == Silence::Timeout => return self.replace().await,
                reply if !is_of_another(&reply, &question) => return,
                _ if settling > SETTLING.1 => return self.replace().await,
                _ => {
                    // While nothing is asked, fred drops what comes.
                    sleep(settling).await;
                    settling *= 2;
                }
            }
        }
    }

    /// Without a connection one is being made already.
    async fn replace(&self) {
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

    /// After a reconnect nothing is subscribed; says what is waited for. The event may come late, when a
    /// channel was subscribed on the new connection already: so what nobody waits for is still given up.
    fn forget(&self) -> Vec<String> {
        let mut channels = lock(&self.channels);
        let ours = channels.iter_mut().filter(|(_, channel)| channel.server == self.server);
        ours.filter_map(|(name, channel)| {
            channel.subscribed = false;
            channel.is_awaited().then(|| name.clone())
        })
        .collect()
    }

    async fn subscribe(&mut self, channel: &str) -> Result<()> {
        if !is_connected(&self.client) {
            let error = Error::new(ErrorKind::Unavailable, "there is no connection for wake-ups");
            return Err(error.with_fate(Fate::NotExecuted));
        }
        self.here.insert(channel.to_owned());
        let confirmed = async {
            match self.sharded {
                true => self.client.ssubscribe(channel).await,
                false => self.client.subscribe(channel).await,
            }
        };
        // fred's own limit, of one attempt, comes first: what we drop ourselves is sent all the same.
        match timeout(self.attempt * 2, confirmed).await {
            Ok(Ok(())) => {
                if let Some(entry) = lock(&self.channels).get_mut(channel)
                    && entry.server == self.server
                {
                    entry.subscribed = true;
                }
                Ok(())
            }
            Ok(Err(error)) => Err(sorted(&error)),
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                "the subscription was not confirmed in time",
            )),
        }
    }

    /// Unsubscribes, unless somebody waits here again. Returns whether the server takes what it is sent.
    async fn give_up(&mut self, channel: &str) -> bool {
        {
            let mut channels = lock(&self.channels);
            let ours = channels.get(channel).filter(|entry| entry.server == self.server);
            if ours.is_some_and(Channel::is_awaited) {
                return true;
            }
            if ours.is_some() {
                // From here on a new waiter orders a new subscription, which comes after this command.
                channels.remove(channel);
            }
        }
        // A server gives a sharded channel up by itself with its slot, but what has moved by our map may still be here.
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

/// Whether a reply is not that to a `PING` with this word: an earlier one's, or what was said to a command of which fred
/// expects no reply.
fn is_of_another(reply: &FredResult<Value>, question: &str) -> bool {
    match reply {
        // On a connection with subscriptions it is `pong` and the word.
        Ok(Value::Array(words)) => {
            words.last().and_then(Value::as_str).as_deref() != Some(question)
        }
        Ok(word) => word.as_str().as_deref() != Some(question),
        Err(error) => {
            let text = error.details();
            text.starts_with("MOVED") || text.contains("unsubscribe")
        }
    }
}

#[cfg(test)]
impl Hub {
    /// A hub without a connection, and the orders that it gives.
    pub(super) fn of_orders() -> (Self, mpsc::UnboundedReceiver<Order>) {
        let (clerk, orders) = mpsc::unbounded_channel();
        (Self { channels: Channels::default(), desk: Desk::One(clerk) }, orders)
    }

    /// Takes the next order and confirms it.
    pub(super) async fn confirm(&self, orders: &mut mpsc::UnboundedReceiver<Order>) {
        let Some(Order::Subscribe(channel, done)) = orders.recv().await else {
            panic!("another order");
        };
        lock(&self.channels).get_mut(&channel).unwrap().subscribed = true;
        drop(done.send(Ok(())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(channels: &Channels) -> usize {
        lock(channels).values().filter(|channel| channel.is_awaited()).count()
    }

    #[test]
    fn the_reply_to_a_ping_is_told_from_that_to_another_command() {
        let refused =
            |text: &'static str| Err::<Value, _>(fred::error::Error::new(Silence::Unknown, text));
        let pong = |word: &'static str| Ok(Value::Array(vec!["pong".into(), word.into()]));
        for (reply, is) in [
            (pong("7"), false),
            (Ok("7".into()), false),
            // Without the right to ask, the refusal is a sign of life.
            (refused("NOPERM User a has no permissions to run the 'ping' command"), false),
            (refused("MISCONF Errors writing to the AOF file"), false),
            (pong("6"), true),
            (Ok("6".into()), true),
            (Ok(Value::Array(vec!["ssubscribe".into(), "c".into(), 1.into()])), true),
            (refused("MOVED 7 127.0.0.1:6379"), true),
            (refused("NOPERM User a has no permissions to run the 'sunsubscribe' command"), true),
        ] {
            assert_eq!(is_of_another(&reply, "7"), is, "{reply:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_channel_is_subscribed_once_and_idle_after_its_last_waiter() {
        let (hub, mut orders) = Hub::of_orders();
        let (first, ()) = tokio::join!(hub.subscribe("c".to_owned()), hub.confirm(&mut orders));
        let (first, second) = (first.unwrap(), hub.subscribe("c".to_owned()).await.unwrap());
        assert!(orders.try_recv().is_err(), "it is there");
        assert!(hub.hears("c") && !hub.hears("d"));
        drop(first);
        assert!(orders.try_recv().is_err(), "somebody waits");
        assert_eq!(waits(&hub.channels), 1);
        drop(second);
        assert!(matches!(orders.try_recv(), Ok(Order::Idle(channel)) if channel == "c"));
        assert_eq!((waits(&hub.channels), lock(&hub.channels).len()), (0, 1));
        assert!(hub.hears("c"), "until it is given up");
    }

    #[tokio::test(start_paused = true)]
    async fn desk_without_a_clerk_keeps_nothing() {
        let (hub, orders) = Hub::of_orders();
        let entry = Channel { subscribed: true, ..Channel::default() };
        lock(&hub.channels).insert("c".to_owned(), entry);
        let (first, second) = (
            hub.subscribe("c".to_owned()).await.unwrap(),
            hub.subscribe("c".to_owned()).await.unwrap(),
        );
        drop(orders);
        drop(first);
        assert_eq!(waits(&hub.channels), 1);
        drop(second);
        assert!(lock(&hub.channels).is_empty());
        let Err(error) = hub.subscribe("c".to_owned()).await else { panic!("nobody subscribes") };
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(lock(&hub.channels).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_wakes_those_of_its_channel() {
        let (hub, mut orders) = Hub::of_orders();
        let mut waiters = Vec::new();
        for channel in ["c", "d"] {
            let (waiter, ()) =
                tokio::join!(hub.subscribe(channel.to_owned()), hub.confirm(&mut orders));
            waiters.push(waiter.unwrap());
        }
        let [c, d] = &mut waiters[..] else { unreachable!() };
        let moment = Duration::from_millis(1);
        wake(&hub.channels, Some("c"));
        timeout(moment, c.recv()).await.expect("woken");
        timeout(moment, d.recv()).await.expect_err("not meant");
        wake(&hub.channels, None);
        timeout(moment, c.recv()).await.expect("woken");
        timeout(moment, d.recv()).await.expect("woken");
    }

    /// Of a closing that nobody answers, both limits are waited for, and no longer.
    #[tokio::test(start_paused = true)]
    async fn closing_waits_for_the_clerk_but_not_for_ever() {
        let (hub, mut orders) = Hub::of_orders();
        let attempt = Duration::from_millis(100);
        let start = Instant::now();
        let answer = async {
            let Some(Order::Close(done)) = orders.recv().await else { panic!("another order") };
            tokio::time::sleep(attempt).await;
            done.send(()).unwrap();
        };
        tokio::join!(hub.close(attempt), answer);
        assert_eq!(start.elapsed(), attempt);
        hub.close(attempt).await;
        assert_eq!(start.elapsed(), attempt * 3);
    }
}
