//! The channels with waiters and inboxes, which subscriber has each of them, and what wakes them.
//!
//! # Invariants
//!
//! 1. **A channel is at one subscriber at a time**, so that the server counts processes, not runtimes. It is at the subscriber of
//!    the runtime that waits for it. Once a second runtime waits, it goes to that of the engine's runtime, which no code of a
//!    user blocks, and stays there until it is forgotten: no runtime depends on another one that may be blocked, or not driven.
//!    While the subscriber of a runtime has no connection, it goes there with the next waiter.
//! 2. **No gap when it goes**: the one before leaves when the next one has subscribed it. Until then both hear its messages, and
//!    [`listeners`] counts both.
//! 3. **The end of a runtime is no gap either**, but for the time to subscribe: its channels go to the engine's runtime, and
//!    their waiters are woken, because messages were missed.

use crate::error::Result;
use crate::store::redis::link::subscription::{Heard, Messages, Notice};
use crate::store::redis::topology::Server;
use crate::store::{Hint, InboxSender, Signal};
use crate::util::panics::run_wakers;
use crate::util::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Id;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The channels with waiters, and those that are still subscribed.
pub(super) type Channels = Arc<ChannelMap>;

#[derive(Default)]
pub(super) struct ChannelMap {
    channels: Mutex<HashMap<String, Channel>>,
    /// The servers that refuse a channel, and the number of subscribers that have reported it.
    refusing: Mutex<HashMap<String, usize>>,
}

impl ChannelMap {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<String, Channel>> {
        self.channels.lock()
    }
}

/// Remembers a refusal, so that it is logged once for a server, however many runtimes wait.
pub(super) struct Refused {
    channels: Channels,
    server: String,
    /// Whether no other subscriber had one.
    pub(super) is_first: bool,
}

impl Refused {
    /// Records that a subscriber was refused a channel.
    pub(super) fn new(channels: &Channels, server: &str) -> Self {
        let mut refusing = channels.refusing.lock();
        let count = refusing.entry(server.to_owned()).or_default();
        *count += 1;
        let is_first = *count == 1;
        Self { channels: Arc::clone(channels), server: server.to_owned(), is_first }
    }
}

impl Drop for Refused {
    fn drop(&mut self) {
        let mut refusing = self.channels.refusing.lock();
        if let Some(count) = refusing.get_mut(&self.server) {
            *count -= 1;
            if *count == 0 {
                refusing.remove(&self.server);
            }
        }
    }
}

/// Draws a number that no other subscriber, or group of them, has.
fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Names a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubscriberId(u64);

impl SubscriberId {
    pub(super) fn next() -> Self {
        Self(next_number())
    }
}

/// Names the subscribers of one runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupId(u64);

impl GroupId {
    pub(super) fn next() -> Self {
        Self(next_number())
    }
}

/// A subscriber, as the channels know it.
#[derive(Clone)]
pub(super) struct SubscriberRef {
    pub(super) id: SubscriberId,
    /// That of all subscribers of its runtime.
    pub(super) group: GroupId,
    /// Its server, in a fleet.
    pub(super) server: Option<Server>,
    commands: mpsc::WeakUnboundedSender<Command>,
    lost: Lost,
}

/// Whether a subscriber has lost its connection, and has no other one yet. While it makes its first one it has lost none: it
/// answers when that is there.
#[derive(Clone, Default)]
struct Lost(Arc<AtomicBool>);

/// Sends commands to a subscriber, which ends with the last of these.
#[derive(Clone)]
pub(super) struct SubscriberHandle {
    pub(super) subscriber: SubscriberRef,
    commands: mpsc::UnboundedSender<Command>,
}

impl SubscriberHandle {
    /// Makes the handle of a new subscriber, and what it receives.
    pub(super) fn new(group: GroupId, server: Option<Server>) -> (Self, SubscriberInbox) {
        let (commands, inbox) = mpsc::unbounded_channel();
        let id = SubscriberId::next();
        let lost = Lost::default();
        let subscriber = SubscriberRef {
            id,
            group,
            server,
            commands: mpsc::UnboundedSender::downgrade(&commands),
            lost: lost.clone(),
        };
        (
            Self { subscriber, commands },
            SubscriberInbox { id, commands: inbox, connection: Connection(lost) },
        )
    }

    /// Sends a command. Returns false if the subscriber has ended.
    pub(super) fn send(&self, command: Command) -> bool {
        self.commands.send(command).is_ok()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }
}

/// The number of a subscriber, and what it receives.
pub(super) struct SubscriberInbox {
    pub(super) id: SubscriberId,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) connection: Connection,
}

/// Reports whether a subscriber has a connection, to those that choose one.
pub(super) struct Connection(Lost);

impl Connection {
    /// Reports that there is one, which serves the commands from now on.
    pub(super) fn is_there(&self) {
        self.0.0.store(false, Ordering::Release);
    }

    /// Reports that it is lost. What was subscribed there is subscribed again, and its waiters are woken, with the next one.
    pub(super) fn is_lost(&self) {
        self.0.0.store(true, Ordering::Release);
    }
}

impl SubscriberRef {
    /// Sends a command. Returns false if the subscriber has ended.
    pub(super) fn send(&self, command: Command) -> bool {
        self.commands.upgrade().is_some_and(|commands| commands.send(command).is_ok())
    }

    pub(super) fn has_lost_its_connection(&self) -> bool {
        self.lost.0.load(Ordering::Acquire)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.commands.upgrade().is_none_or(|commands| commands.is_closed())
    }
}

/// The runtimes that have waited for a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Users {
    #[default]
    None,
    One(Id),
    /// Several, or one that is not known.
    Several,
}

/// A channel, its waiters and its subscription.
#[derive(Default)]
pub(super) struct Channel {
    pub(super) waiters: Vec<Signal>,
    /// The inbox that reads the messages of this channel, if it is that of a manager.
    pub(super) inbox: Option<InboxSender>,
    /// Since it was subscribed first.
    pub(super) users: Users,
    /// The subscriber that has it, or is to have it.
    pub(super) at: Option<SubscriberRef>,
    /// Whether it is subscribed there, as far as the client knows.
    pub(super) subscribed: bool,
    /// Whether messages may have been missed since, so that the waiters are woken when it is subscribed.
    missed: bool,
    /// The subscribers that may still have it, and are to leave.
    leaving: Vec<Leaving>,
}

/// A subscriber that is to leave a channel, and since when.
struct Leaving {
    subscriber: SubscriberRef,
    since: Instant,
}

/// For how long a subscriber that does not leave counts as one that the server counts. It may be on a runtime that is not driven,
/// whose connection is lost by now, and counted once too often it would hide another process.
const COUNTED: Duration = Duration::from_secs(5);

impl Channel {
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiters.is_empty() || self.inbox.as_ref().is_some_and(|inbox| !inbox.is_closed())
    }

    pub(super) fn is_at(&self, id: SubscriberId) -> bool {
        self.at.as_ref().is_some_and(|at| at.id == id)
    }

    /// Records that a runtime waits for it.
    pub(super) fn used_by(&mut self, runtime: Option<Id>) {
        self.users = match (self.users, runtime) {
            (Users::None, Some(id)) => Users::One(id),
            (Users::One(known), Some(id)) if known == id => self.users,
            _ => Users::Several,
        };
    }

    /// Goes to a subscriber, unless it is there.
    pub(super) fn go_to(&mut self, name: &str, subscriber: &SubscriberRef) {
        if self.is_at(subscriber.id) {
            return;
        }
        self.forget_leaving(|old| old.id == subscriber.id || old.has_ended());
        match self.at.replace(subscriber.clone()) {
            Some(old) if old.has_ended() => self.missed = true,
            Some(old) if self.subscribed && !old.has_lost_its_connection() => {
                self.leaving.push(Leaving { subscriber: old, since: Instant::now() });
            }
            Some(old) => {
                self.missed = true;
                old.send(Command::Leave(name.to_owned()));
            }
            None => {}
        }
        self.subscribed = false;
    }

    /// Forgets subscribers that were to leave, and hear nothing any more. Until the next one has subscribed, they heard for it.
    fn forget_leaving(&mut self, is_gone: impl Fn(&SubscriberRef) -> bool) {
        let before = self.leaving.len();
        self.leaving.retain(|old| !is_gone(&old.subscriber));
        self.missed |= !self.subscribed && self.leaving.len() < before;
    }

    /// Has those that were to leave do so.
    fn all_leave(&mut self, name: &str) {
        self.leaving.retain(|old| old.subscriber.send(Command::Leave(name.to_owned())));
    }

    /// Goes to another subscriber, because the one that had it has ended.
    pub(super) fn go_on_at(&mut self, subscriber: Option<&SubscriberRef>) {
        self.at = subscriber.cloned();
        self.subscribed = false;
        self.missed = true;
        self.users = Users::Several;
    }

    /// Records that it is subscribed where it is. Returns the waiters that missed something.
    fn now_subscribed(&mut self, name: &str) -> Vec<Signal> {
        self.subscribed = true;
        self.all_leave(name);
        if std::mem::take(&mut self.missed) { self.waiters.clone() } else { Vec::new() }
    }

    /// Is at no subscriber, and has all leave.
    pub(super) fn give_up(&mut self, name: &str) {
        self.at = None;
        self.subscribed = false;
        self.users = Users::None;
        self.all_leave(name);
    }

    /// Records that the subscribers of a runtime have ended.
    pub(super) fn leaves_with(&mut self, group: GroupId) {
        self.forget_leaving(|old| old.group == group);
    }

    /// Returns whether nothing needs it.
    pub(super) fn is_over(&self) -> bool {
        self.at.is_none() && !self.is_awaited() && self.leaving.is_empty()
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
    /// Unsubscribes: another subscriber has it.
    Leave(String),
    Close(oneshot::Sender<()>),
}

/// Returns at how many subscribers of this process the server counts a channel, as far as they know.
pub(super) fn listeners(channels: &Channels, channel: &str) -> u64 {
    let channels = channels.lock();
    let Some(entry) = channels.get(channel) else { return 0 };
    let Channel { at, leaving, subscribed, .. } = entry;
    // Each server of a fleet counts its own.
    let server = at.as_ref().and_then(|at| at.server.as_ref());
    let counts = |old: &&Leaving| {
        old.subscriber.server.as_ref() == server
            && !old.subscriber.has_ended()
            && old.since.elapsed() < COUNTED
    };
    let others = leaving.iter().filter(counts).count();
    u64::from(*subscribed) + u64::try_from(others).unwrap_or(0)
}

/// Records that a channel is subscribed at a subscriber, if it belongs there.
pub(super) fn now_subscribed(channels: &Channels, channel: &str, at: SubscriberId) {
    let missed = {
        let mut channels = channels.lock();
        let entry = channels.get_mut(channel).filter(|entry| entry.is_at(at));
        entry.map(|entry| entry.now_subscribed(channel)).unwrap_or_default()
    };
    missed.iter().for_each(Signal::set);
}

/// Forgets that an idle channel is subscribed at a subscriber. Returns false if it is to stay subscribed there, because it has
/// a waiter again, or because the next subscriber has not subscribed it yet.
pub(super) fn forget(channels: &Channels, channel: &str, at: SubscriberId) -> bool {
    let mut channels = channels.lock();
    let Some(entry) = channels.get_mut(channel) else { return true };
    if !entry.is_at(at) {
        return entry.leaving.iter().all(|old| old.subscriber.id != at);
    }
    if entry.is_awaited() {
        return false;
    }
    // A new waiter requests a new subscription from here on, which comes after this command.
    entry.give_up(channel);
    if entry.is_over() {
        channels.remove(channel);
    }
    true
}

/// Records that a subscriber leaves a channel. Returns false if the channel has come back to it.
pub(super) fn left(channels: &Channels, channel: &str, at: SubscriberId) -> bool {
    let mut channels = channels.lock();
    let Some(entry) = channels.get_mut(channel) else { return true };
    // It has heard up to now, so nothing is missed.
    entry.leaving.retain(|old| old.subscriber.id != at);
    let leaves = !entry.is_at(at);
    if entry.is_over() {
        channels.remove(channel);
    }
    leaves
}

/// Forgets a channel without waiters whose subscriber is not there to unsubscribe it.
pub(super) fn forget_unheard(channels: &Channels, channel: &str) {
    let mut channels = channels.lock();
    let Some(entry) = channels.get_mut(channel).filter(|entry| !entry.is_awaited()) else {
        return;
    };
    entry.give_up(channel);
    if entry.is_over() {
        channels.remove(channel);
    }
}

/// Records that nothing is subscribed at a subscriber, which has a new connection, or has ended. Returns its channels with
/// waiters.
pub(super) fn begin_again(channels: &Channels, at: SubscriberId) -> Vec<String> {
    let mut channels = channels.lock();
    let mut awaited = Vec::new();
    channels.retain(|name, entry| {
        entry.forget_leaving(|old| old.id == at);
        if entry.is_at(at) {
            entry.subscribed = false;
            if entry.is_awaited() {
                awaited.push(name.clone());
            } else {
                // A command about a channel without waiters may have gone with the last connection.
                entry.give_up(name);
            }
        }
        !entry.is_over()
    });
    awaited
}

/// Wakes the waiters of one channel, or of all. Each of them may ask the store now: it is the first in line of its process, or
/// one of the readers that may enter together. Two names may share a channel.
pub(super) fn wake(channels: &Channels, channel: Option<&str>) {
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

/// Wakes the waiters of all channels of one subscriber.
pub(super) fn wake_ours(channels: &Channels, at: SubscriberId) {
    let waiters: Vec<Signal> = {
        let channels = channels.lock();
        let ours = channels.values().filter(|entry| entry.is_at(at));
        ours.flat_map(|entry| &entry.waiters).cloned().collect()
    };
    waiters.iter().for_each(Signal::set);
}

/// Delivers a message to the inbox that its channel belongs to. Returns whether there is one.
fn deliver(channels: &Channels, message: &Notice) -> bool {
    let inbox = channels.lock().get(message.channel()).and_then(|entry| entry.inbox.clone());
    let Some(inbox) = inbox else { return false };
    if let Some(hint) = message.text().and_then(|text| Hint::of_message(&text)) {
        run_wakers(|| inbox.send(hint));
    }
    true
}

/// Answers a call that waits for its subscription.
pub(super) fn answer(done: oneshot::Sender<Subscribed>, result: Subscribed) {
    run_wakers(|| _ = done.send(result));
}

/// Forwards messages until the connection ends.
pub(super) async fn forward_messages(mut messages: Messages, channels: Channels) {
    loop {
        match messages.next().await {
            Heard::Message(message) => {
                if !deliver(&channels, &message) {
                    wake(&channels, Some(message.channel()));
                }
            }
            // This task was too slow, and the channels are lost, so it wakes all waiters.
            Heard::Lagged => wake(&channels, None),
            Heard::Nothing => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "c";

    struct Ends {
        handle: SubscriberHandle,
        inbox: SubscriberInbox,
    }

    impl Ends {
        fn new() -> Self {
            let (handle, inbox) = SubscriberHandle::new(GroupId::next(), None);
            Self { handle, inbox }
        }

        fn id(&self) -> SubscriberId {
            self.inbox.id
        }

        fn must_leave(&mut self) -> bool {
            matches!(self.inbox.commands.try_recv(), Ok(Command::Leave(name)) if name == NAME)
        }
    }

    /// Returns the channels, with one that is at a subscriber and has a waiter.
    fn at(first: &Ends) -> Channels {
        let channels = Channels::default();
        let mut channel = Channel::default();
        channel.waiters.push(Signal::new());
        channel.go_to(NAME, &first.handle.subscriber);
        channels.lock().insert(NAME.to_owned(), channel);
        channels
    }

    fn go_to(channels: &Channels, next: &Ends) {
        channels.lock().get_mut(NAME).expect("a channel").go_to(NAME, &next.handle.subscriber);
    }

    #[test]
    fn one_before_leaves_once_the_next_has_subscribed() {
        let (mut first, next) = (Ends::new(), Ends::new());
        let channels = at(&first);
        now_subscribed(&channels, NAME, first.id());
        assert_eq!(listeners(&channels, NAME), 1);
        go_to(&channels, &next);
        assert!(!first.must_leave(), "messages would be missed");
        // Its last waiter may have gone a while ago.
        assert!(!forget(&channels, NAME, first.id()));
        now_subscribed(&channels, NAME, next.id());
        assert!(first.must_leave());
        assert_eq!(listeners(&channels, NAME), 2, "until it has left");
        assert!(left(&channels, NAME, first.id()));
        assert_eq!(listeners(&channels, NAME), 1);
    }

    #[test]
    fn one_that_the_channel_comes_back_to_does_not_leave() {
        let (first, next) = (Ends::new(), Ends::new());
        let channels = at(&first);
        now_subscribed(&channels, NAME, first.id());
        go_to(&channels, &next);
        now_subscribed(&channels, NAME, next.id());
        go_to(&channels, &first);
        assert!(!left(&channels, NAME, first.id()));
        assert!(!forget(&channels, NAME, first.id()), "it has a waiter");
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_are_woken_if_messages_may_have_been_missed() {
        let (mut first, next) = (Ends::new(), Ends::new());
        let channels = at(&first);
        let waiter = channels.lock()[NAME].waiters[0].clone();
        let is_woken =
            async || tokio::time::timeout(std::time::Duration::ZERO, waiter.recv()).await.is_ok();
        now_subscribed(&channels, NAME, first.id());
        assert!(!is_woken().await);
        channels.lock().get_mut(NAME).expect("a channel").subscribed = false;
        go_to(&channels, &next);
        assert!(first.must_leave(), "it has nothing to wait for");
        now_subscribed(&channels, NAME, next.id());
        assert!(is_woken().await);
        assert_eq!(listeners(&channels, NAME), 1);
    }

    /// The one before is replaced, or ends, before the next one has subscribed.
    #[tokio::test(start_paused = true)]
    async fn waiters_are_woken_if_nobody_heard_for_a_while() {
        for case in ["replaced", "runtime ended", "ended unseen"] {
            let (first, next) = (Ends::new(), Ends::new());
            let channels = at(&first);
            let waiter = channels.lock()[NAME].waiters[0].clone();
            now_subscribed(&channels, NAME, first.id());
            if case == "ended unseen" {
                drop(first);
                go_to(&channels, &next);
            } else {
                go_to(&channels, &next);
                let group = first.handle.subscriber.group;
                match case {
                    "replaced" => drop(begin_again(&channels, first.id())),
                    _ => channels.lock().get_mut(NAME).expect("a channel").leaves_with(group),
                }
            }
            now_subscribed(&channels, NAME, next.id());
            let woken = tokio::time::timeout(Duration::ZERO, waiter.recv()).await;
            assert!(woken.is_ok(), "{case}");
        }
    }

    /// Its runtime is not driven, and its connection may be lost by now.
    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_leave_hides_no_other_process_for_long() {
        let (first, next) = (Ends::new(), Ends::new());
        let channels = at(&first);
        now_subscribed(&channels, NAME, first.id());
        go_to(&channels, &next);
        now_subscribed(&channels, NAME, next.id());
        assert_eq!(listeners(&channels, NAME), 2);
        tokio::time::advance(COUNTED).await;
        assert_eq!(listeners(&channels, NAME), 1);
    }

    #[test]
    fn channel_without_waiters_stays_only_until_all_have_left() {
        let (mut first, next) = (Ends::new(), Ends::new());
        let channels = at(&first);
        now_subscribed(&channels, NAME, first.id());
        go_to(&channels, &next);
        channels.lock().get_mut(NAME).expect("a channel").waiters.clear();
        assert!(forget(&channels, NAME, next.id()));
        assert!(first.must_leave());
        assert_eq!(listeners(&channels, NAME), 1, "the first one still has it");
        assert!(left(&channels, NAME, first.id()));
        assert!(channels.lock().is_empty());
    }

    #[test]
    fn one_that_has_ended_counts_no_more() {
        let (first, next) = (Ends::new(), Ends::new());
        let channels = at(&first);
        now_subscribed(&channels, NAME, first.id());
        go_to(&channels, &next);
        now_subscribed(&channels, NAME, next.id());
        drop(first);
        assert_eq!(listeners(&channels, NAME), 1);
    }

    #[test]
    fn second_runtime_makes_it_a_channel_of_several() {
        let id = || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            (runtime.handle().id(), runtime)
        };
        let ((one, _keep_one), (other, _keep_other)) = (id(), id());
        let mut channel = Channel::default();
        channel.used_by(Some(one));
        channel.used_by(Some(one));
        assert_eq!(channel.users, Users::One(one));
        channel.used_by(Some(other));
        channel.used_by(Some(one));
        assert_eq!(channel.users, Users::Several);
        let mut outside = Channel::default();
        outside.used_by(None);
        assert_eq!(outside.users, Users::Several);
    }

    #[test]
    fn refusal_is_reported_once_for_a_server() {
        let channels = Channels::default();
        let first = Refused::new(&channels, "a");
        assert!(first.is_first);
        assert!(!Refused::new(&channels, "a").is_first);
        assert!(Refused::new(&channels, "b").is_first);
        drop(first);
        assert!(Refused::new(&channels, "a").is_first);
        assert!(channels.refusing.lock().is_empty());
    }
}
