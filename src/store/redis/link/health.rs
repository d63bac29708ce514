//! The state of a connection to one server, which its calls and its keeper share.

use super::errors::Failure;
use super::script::options;
use crate::store::redis::scripts::reply::Element;
use crate::util::panics::run_wakers;
use crate::util::reached::Rare;
use crate::util::sync::Mutex;
use crate::util::trace;
use fred::clients::Client;
use fred::error::ErrorKind;
use fred::interfaces::ClientLike;
use fred::types::{ClientState, ClusterHash, CustomCommand, Value};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Level;

/// A client, and the state of its connection besides that which fred reports.
pub(in crate::store::redis) struct Health {
    client: Mutex<Running>,
    /// Whether the client is about to reconnect, or to be replaced. A command given to it now waits behind that.
    reconnecting: AtomicBool,
    /// Is notified when that, or the state that fred reports, may have changed.
    changed: Notify,
    /// Why the last attempt to connect failed, if there is no connection since.
    pub(in crate::store::redis) failure: Mutex<Option<Failure>>,
    /// Counts the connections that were made again.
    connects: watch::Sender<u64>,
    /// Whether a silent connection stays in use until there are credentials for the next one.
    outlives_silence: bool,
    /// Whether a silence of such a connection was noted, and is not over.
    silence_noted: AtomicBool,
    /// Is notified when the server is silent.
    pub(in crate::store::redis) silent: Notify,
    /// What is known of the role of the server, and not noted yet.
    role: Mutex<Role>,
    /// When the client took the place of one that was refused.
    moved: Mutex<Option<Instant>>,
    /// Is notified when the server refuses by its role, or another connection has moved.
    pub(in crate::store::redis) refused: Notify,
    pub(in crate::store::redis) closed: CancellationToken,
    pub(super) silence: Silence,
}

/// A client, and its task. Without the task, a command waits for its whole time limit: fred keeps it, and reports a connection.
struct Running {
    client: Client,
    task: AbortHandle,
}

/// What is known of the role of a server.
#[derive(Clone, Copy, Default)]
pub(super) enum Role {
    /// Another connection to the address is refused.
    #[default]
    RefusedElsewhere,
    /// It refuses here, by this word.
    Refused(&'static str),
    /// Another connection to the address has moved to the next server.
    Moved,
}

/// Keeps the silence of a server and a stall of this process apart.
#[derive(Default)]
pub(super) struct Silence {
    /// The number of calls that were answered.
    answers: AtomicU64,
    /// When a call was last found to be long over its time limit, because this process had stalled; and the number of
    /// answers by then.
    stalled: Mutex<Option<(Instant, u64)>>,
}

impl Silence {
    pub(super) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of calls that were answered.
    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Returns whether a call that reached its time limit shows that the server is silent. If that is noticed late, this
    /// process has stalled, and the reply may have arrived by now. Then the next call sent after the stall counts, if
    /// nothing was answered since.
    pub(super) fn is_shown_by(&self, sent: Instant, limit: Duration) -> bool {
        let now = Instant::now();
        if now.saturating_duration_since(sent) <= limit + limit / 4 {
            return true;
        }
        let answers = self.answers();
        let mut stalled = self.stalled.lock();
        match *stalled {
            Some((at, before)) if before == answers => sent > at,
            _ => {
                Rare::RedisSilenceInDoubt.reached();
                *stalled = Some((now, answers));
                false
            }
        }
    }
}

impl Health {
    pub(in crate::store::redis) fn new(
        client: Client,
        task: AbortHandle,
        outlives_silence: bool,
    ) -> Self {
        Self {
            client: Mutex::new(Running { client, task }),
            reconnecting: AtomicBool::new(false),
            changed: Notify::new(),
            failure: Mutex::default(),
            connects: watch::Sender::default(),
            outlives_silence,
            silence_noted: AtomicBool::new(false),
            silent: Notify::new(),
            role: Mutex::default(),
            moved: Mutex::default(),
            refused: Notify::new(),
            closed: CancellationToken::new(),
            silence: Silence::default(),
        }
    }

    pub(in crate::store::redis) fn client(&self) -> Client {
        self.client.lock().client.clone()
    }

    /// Returns the client, if it has a connection.
    pub(super) fn up(&self) -> Option<Client> {
        if self.reconnecting.load(Ordering::Acquire) {
            return None;
        }
        let running = self.client.lock();
        (!running.task.is_finished() && is_connected(&running.client))
            .then(|| running.client.clone())
    }

    pub(in crate::store::redis) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    pub(in crate::store::redis) fn connects(&self) -> watch::Receiver<u64> {
        self.connects.subscribe()
    }

    /// Has the connection of a client replaced after silence: it may be half dead, which fred may not notice while it can send.
    /// One that has a successor already says nothing about that.
    pub(super) fn is_silent(&self, client: &Client) {
        if self.client.lock().client.id() != client.id() {
            return;
        }
        let is_known = match self.outlives_silence {
            true => {
                self.reconnecting.load(Ordering::Acquire)
                    || self.silence_noted.swap(true, Ordering::AcqRel)
            }
            false => self.reconnecting.swap(true, Ordering::AcqRel),
        };
        if !is_known {
            self.silent.notify_one();
        }
    }

    /// Has the next silence noted again.
    pub(super) fn silence_is_over(&self) {
        self.silence_noted.store(false, Ordering::Release);
    }

    /// Has fred make the connection of a client again, for at most `limit`. Ends the task of a client that has not begun within
    /// `pause`: it waits for a socket that takes no more data, and reads no command.
    pub(super) async fn reconnect(&self, client: &Client, pause: Duration, limit: Duration) {
        let before = *self.connects.borrow();
        let has_begun = || !is_connected(client) || *self.connects.borrow() != before;
        let mut forced = pin!(client.force_reconnection());
        // The second time, if this process has stood still.
        for _ in 0..2 {
            let due = Instant::now() + pause;
            if timeout_at(due, forced.as_mut()).await.is_ok() {
                return;
            }
            if has_begun() || due.elapsed() <= pause / 4 {
                break;
            }
        }
        if has_begun() {
            let _ = timeout(limit, forced).await;
            return;
        }
        let running = self.client.lock();
        if running.client.id() == client.id() {
            Rare::RedisClientStuck.reached();
            running.task.abort();
        }
    }

    /// Pings the server, which counts as a call if it is answered within `limit`. A refusal is an answer, too.
    pub(super) async fn probe(&self, client: &Client, limit: Duration) {
        let ping = CustomCommand::new_static("PING", ClusterHash::Random, false);
        let client = client.with_options(&options(limit));
        let reply: Result<Value, Failure> = client.custom(ping, Vec::<Value>::new()).await;
        let has_none = |failure: &Failure| {
            matches!(failure.kind(), ErrorKind::Timeout | ErrorKind::Canceled | ErrorKind::IO)
        };
        if !reply.is_err_and(|failure| has_none(&failure)) {
            self.silence.answered();
        }
    }

    /// Has the client replaced, because the server refuses by its role.
    pub(super) fn is_refused(&self, word: &'static str) {
        Rare::RedisRoleRefused.reached();
        {
            let mut role = self.role.lock();
            if !matches!(*role, Role::Moved) {
                *role = Role::Refused(word);
            }
        }
        self.refused.notify_one();
    }

    /// Has no call use the client any more, because another connection to the address has moved to the next server.
    fn has_moved_elsewhere(&self) {
        *self.role.lock() = Role::Moved;
        self.begin_reconnecting();
        self.refused.notify_one();
    }

    /// Returns what is known of the role of the server, once.
    pub(super) fn role_once(&self) -> Role {
        std::mem::take(&mut self.role.lock())
    }

    /// Keeps calls from the client until [`end_reconnecting`](Self::end_reconnecting).
    pub(super) fn begin_reconnecting(&self) {
        self.reconnecting.store(true, Ordering::Release);
    }

    pub(super) fn end_reconnecting(&self) {
        self.reconnecting.store(false, Ordering::Release);
        self.notify();
    }

    /// Puts a fresh client in the place of the old one.
    pub(in crate::store::redis) fn replace(&self, client: Client, task: AbortHandle) {
        *self.client.lock() = Running { client, task };
        *self.moved.lock() = Some(Instant::now());
        self.role_once();
        self.silence_is_over();
        self.end_reconnecting();
    }

    /// Records that another connection is in use.
    pub(super) fn is_in_use(&self) {
        *self.failure.lock() = None;
        self.notify();
        run_wakers(|| self.connects.send_modify(|connects| *connects += 1));
    }

    /// The wakers are those of callers.
    fn notify(&self) {
        run_wakers(|| self.changed.notify_waiters());
    }
}

/// The time between two checks of the state that fred reports.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The words by which a server refuses commands because of what it is at the moment: another one, or the same one later,
/// will not.
const ROLES: [&str; 3] = ["READONLY", "MASTERDOWN", "LOADING"];

/// Returns the word of a refusal by the server's role.
pub(super) fn role(text: &str) -> Option<&'static str> {
    ROLES.into_iter().find(|role| text.starts_with(role))
}

/// The words of a server that is a replica. A text of users, which some answers contain, does not begin with all of them.
pub(super) const REPLICA: &str = "READONLY You can't write against a read only replica";

/// Returns the same of the answers of a script: it runs, and its writes are refused.
pub(super) fn role_in(reply: &[Element]) -> Option<&'static str> {
    let read_only = |one: &Element| matches!(one, Element::Text(text) if text.starts_with(REPLICA));
    reply.iter().any(read_only).then_some(ROLES[0])
}

/// Returns whether fred may have a connection. It reports one for a moment longer than it has one.
pub(super) fn is_connected(client: &impl ClientLike) -> bool {
    !matches!(client.state(), ClientState::Connecting | ClientState::Disconnected)
}

/// Waits until a new connection is in use; fred reports it a moment before.
pub(super) async fn until_in_use(client: &impl ClientLike) {
    while client.state() == ClientState::Connecting {
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns a field of a reply to `INFO`.
pub(in crate::store::redis) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The connections of a store, of which one reports to the others that the server at their address refuses by its role.
#[derive(Default)]
pub(super) struct Refusals {
    /// When it was logged last.
    noted: Mutex<Option<Instant>>,
    connections: Mutex<Vec<Connected>>,
}

/// A connection, and the address to which it leads.
struct Connected {
    address: String,
    health: Weak<Health>,
}

/// A connection that has moved so short a time ago leads to the next server already.
const JUST: Duration = Duration::from_millis(100);

/// After so long without a refusal, the next one is worth a line again.
const QUIET: Duration = Duration::from_secs(60);

impl Refusals {
    /// Adds a connection.
    pub(in crate::store::redis) fn join(&self, address: String, health: &Arc<Health>) {
        let mut connections = self.connections.lock();
        connections.retain(|one| one.health.strong_count() > 0);
        connections.push(Connected { address, health: Arc::downgrade(health) });
    }

    /// Has the other connections to the address look for the next server, too: they may only read, and never be refused.
    pub(super) fn share(&self, address: &str, health: &Arc<Health>) {
        self.others(address, health).iter().for_each(|other| other.refused.notify_one());
    }

    /// Has the other connections to the address move, after one that was refused did. One that has just done so need not.
    pub(in crate::store::redis) fn moved(&self, address: &str, health: &Arc<Health>) {
        for other in self.others(address, health) {
            let just = other.moved.lock().is_some_and(|at| at.elapsed() < JUST);
            if !just {
                other.has_moved_elsewhere();
            }
        }
    }

    fn others(&self, address: &str, health: &Arc<Health>) -> Vec<Arc<Health>> {
        let connections = self.connections.lock();
        let there = connections.iter().filter(|one| one.address == address);
        let others = there.filter_map(|one| one.health.upgrade());
        others.filter(|other| !Arc::ptr_eq(other, health)).collect()
    }

    /// Notes a refusal by the server of that name.
    pub(in crate::store::redis) fn note(&self, server: String, word: &'static str) {
        let now = Instant::now();
        let last = self.noted.lock().replace(now);
        if last.is_none_or(|last| now.saturating_duration_since(last) > QUIET) {
            trace::later(Level::WARN, || {
                move || {
                    tracing::warn!(
                        server,
                        word,
                        "the server refuses by its role: it is a replica, or loads its data; it is connected to again, after \
                         pauses, until the server at its address accepts writes"
                    )
                }
            });
        }
    }
}

/// Asks a server about itself.
pub(super) async fn info(client: &Client) -> Result<String, Failure> {
    let info = CustomCommand::new_static("INFO", ClusterHash::FirstKey, false);
    client.custom::<String, Value>(info, Vec::new()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use fred::types::config::Config;
    use std::future::pending;

    /// A second one would have the next connection replaced, too.
    #[tokio::test(start_paused = true)]
    async fn silence_is_noted_once_however_many_calls_have_no_answer() {
        for outlives_silence in [false, true] {
            let client = Client::new(Config::default(), None, None, None);
            let task = tokio::spawn(pending::<()>()).abort_handle();
            let health = Health::new(client.clone(), task.clone(), outlives_silence);
            let notes = async || timeout(Duration::ZERO, health.silent.notified()).await.is_ok();
            let is_in_use = || !health.reconnecting.load(Ordering::Relaxed);
            for _ in 0..2 {
                health.is_silent(&client);
                assert!(notes().await);
                health.is_silent(&client);
                assert!(!notes().await, "{outlives_silence}");
                assert_eq!(is_in_use(), outlives_silence);
                health.silence_is_over();
                health.end_reconnecting();
            }
            // The silence of a client that was replaced says nothing of the next.
            health.replace(Client::new(Config::default(), None, None, None), task);
            health.is_silent(&client);
            assert!(!notes().await && is_in_use());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn limit_that_is_noticed_late_is_no_silence_the_first_time() {
        let (silence, limit) = (Silence::default(), Duration::from_millis(100));
        let after = async |percent: u32| {
            let sent = Instant::now();
            sleep(limit * percent / 100).await;
            silence.is_shown_by(sent, limit)
        };
        let first = Instant::now();
        assert!(after(100).await && after(125).await, "in time");
        assert!(!after(300).await, "this process stood still");
        assert!(!silence.is_shown_by(first, limit), "one of the same stall");
        assert!(after(100).await, "in time");
        assert!(after(150).await, "nothing was answered after the stall either");
        silence.answers.fetch_add(1, Ordering::Relaxed);
        assert!(!after(150).await, "another stall");
    }
}
