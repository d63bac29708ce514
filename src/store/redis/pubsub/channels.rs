//! The channels with waiters and inboxes, and what wakes them.

use crate::error::Result;
use crate::store::{Hint, InboxSender, Signal};
use crate::util::panics::run_wakers;
use crate::util::sync::Mutex;
use fred::clients::SubscriberClient;
use fred::interfaces::EventInterface;
use fred::types::Message;
use fred::types::config::Server;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::oneshot;

/// The channels with waiters, and those that are still subscribed.
pub(in crate::store::redis) type Channels = Arc<Mutex<HashMap<String, Channel>>>;

/// A channel, its waiters and its subscription.
#[derive(Default)]
pub(in crate::store::redis) struct Channel {
    pub(in crate::store::redis) waiters: Vec<Signal>,
    /// The inbox that reads the messages of this channel, if it is that of a manager.
    pub(in crate::store::redis) inbox: Option<InboxSender>,
    /// Whether it is subscribed, as far as the client knows.
    pub(in crate::store::redis) subscribed: bool,
    /// The server of a fleet that has the channel.
    pub(in crate::store::redis) server: Option<Server>,
}

impl Channel {
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiters.is_empty() || self.inbox.as_ref().is_some_and(|inbox| !inbox.is_closed())
    }
}

/// What became of a request to subscribe.
pub(in crate::store::redis) type Subscribed = Result<()>;

/// A command to a subscriber.
pub(in crate::store::redis) enum Command {
    /// Subscribes; answered when the subscription is there.
    Subscribe(String, oneshot::Sender<Subscribed>),
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
    // With no lock held, because wakers run.
    waiters.iter().for_each(Signal::set);
}

/// Wakes the waiters of all channels of one server.
pub(super) fn wake_ours(channels: &Mutex<HashMap<String, Channel>>, server: Option<&Server>) {
    let waiters: Vec<Signal> = {
        let channels = channels.lock();
        let ours = channels.values().filter(|entry| entry.server.as_ref() == server);
        ours.flat_map(|entry| &entry.waiters).cloned().collect()
    };
    waiters.iter().for_each(Signal::set);
}

/// Delivers a message to the inbox that its channel belongs to. Returns whether there is one.
fn deliver(channels: &Mutex<HashMap<String, Channel>>, message: &Message) -> bool {
    let inbox = channels.lock().get(&*message.channel).and_then(|entry| entry.inbox.clone());
    let Some(inbox) = inbox else { return false };
    if let Some(hint) = message.value.as_str().and_then(|text| Hint::of_message(&text)) {
        run_wakers(|| inbox.send(hint));
    }
    true
}

/// Answers a call that waits for its subscription.
pub(super) fn answer(done: oneshot::Sender<Subscribed>, result: Subscribed) {
    run_wakers(|| _ = done.send(result));
}

/// Forwards messages until the client ends.
pub(super) async fn forward_messages(client: SubscriberClient, channels: Channels) {
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
