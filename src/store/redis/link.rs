//! A connection that runs scripts.

use super::connect::Address;
use super::fleet::Fleet;
use super::replies::{self, Element};
use super::routes::Routes;
use super::scripts::{Call, Failure, Ready, Script};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::Signal;
use fred::clients::Client;
use fred::error::ErrorKind as Kind;
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::ClientState;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep, timeout};

/// Where scripts run: on one server, or on whichever server of a fleet has their keys.
#[derive(Clone)]
pub(super) enum Link {
    One(Node),
    Fleet(Arc<Fleet>),
}

impl Link {
    pub(super) async fn run(
        &self,
        script: &'static Script,
        call: Call,
        timeout: Duration,
    ) -> Result<Vec<Element>> {
        match self {
            Link::One(node) => {
                let reply = node.run(script, &call.finish(), timeout, false).await;
                reply.map_err(|error| sorted(&error))
            }
            // Boxed, so that the future stays small where there is one server.
            Link::Fleet(fleet) => Box::pin(fleet.run(script, call.finish(), timeout)).await,
        }
    }

    /// Whether names belong to slots, and a call takes keys of one only.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Link::Fleet(fleet) if fleet.is_cluster())
    }

    /// Whether a call was refused because its slot is being moved, and only some of its keys have been.
    pub(super) fn is_split(&self, error: &Error) -> bool {
        self.is_cluster() && replies::is_split(error)
    }

    pub(super) async fn close(&self) {
        match self {
            Link::One(node) => node.close().await,
            Link::Fleet(fleet) => fleet.close().await,
        }
    }
}

/// Makes links on the current runtime.
#[derive(Clone)]
pub(super) struct Dial {
    pub(super) address: Address,
    /// None where there is one server.
    pub(super) routes: Option<Arc<Routes>>,
    /// Told of each reconnect.
    pub(super) reconnects: Signal,
}

impl Dial {
    pub(super) async fn link(&self) -> Result<Link> {
        let Self { address, routes, reconnects } = self;
        Ok(match routes {
            None => Link::One(Node::new(address.client().await?, address.attempt, reconnects)),
            Some(routes) => Link::Fleet(Fleet::connect(address, routes, reconnects).await?),
        })
    }
}

/// A connection to one server.
///
/// 1. **Nothing is given to fred while it has no connection.** It keeps what it cannot send, for as long as an outage
///    lasts, and tells nobody that it was never sent. Here a call waits outside for a while, and is then known
///    not to have left.
/// 2. **Only silence makes a connection anew.** A refusal shows that it works, and a lost one fred makes anew itself.
#[derive(Clone)]
pub(super) struct Node {
    client: Client,
    condition: Arc<Condition>,
    attempt: Duration,
}

/// What is known of a connection besides what fred says.
#[derive(Default)]
struct Condition {
    /// It is being made anew on our behalf: what is given to fred now waits behind that.
    renewing: AtomicBool,
    /// Told when that may have changed, or what fred says.
    changed: Notify,
    /// Why the last attempt to connect failed, if there is no connection since.
    failure: Mutex<Option<Failure>>,
    /// How many calls were answered.
    answers: AtomicU64,
    /// When a time limit was last seen to be over long ago, for this process had stood still; and the answers by then.
    stalled: Mutex<Option<(Instant, u64)>>,
}

impl Condition {
    fn failure(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call that ran into its time limit shows that the server is silent. A limit that is noticed late shows
    /// that this process stood still, and the reply may be there by now: that of a call sent after this counts, if
    /// nothing was answered since.
    fn is_silence(&self, sent: Instant, limit: Duration) -> bool {
        let now = Instant::now();
        if now.saturating_duration_since(sent) <= limit + limit / 4 {
            return true;
        }
        let answers = self.answers.load(Ordering::Relaxed);
        let mut stalled = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        match *stalled {
            Some((at, before)) if before == answers => sent > at,
            _ => {
                *stalled = Some((now, answers));
                false
            }
        }
    }

    fn end_renewing(&self) {
        self.renewing.store(false, Ordering::Release);
        self.changed.notify_waiters();
    }
}

/// Between two looks at fred.
const MOMENT: Duration = Duration::from_millis(1);

/// Whether fred may have a connection; it says so for a moment longer than it does.
pub(super) fn is_connected(client: &impl ClientLike) -> bool {
    !matches!(client.state(), ClientState::Connecting | ClientState::Disconnected)
}

/// Waits until a new connection is in use, of which fred tells a moment before.
pub(super) async fn in_use(client: &impl ClientLike) {
    while client.state() == ClientState::Connecting {
        sleep(MOMENT).await;
    }
}

impl Node {
    /// Each reconnect is told, until the client ends.
    pub(super) fn new(client: Client, attempt: Duration, reconnects: &Signal) -> Self {
        let (told, mut events) = (reconnects.clone(), client.reconnect_rx());
        let mut failures = client.error_rx();
        let node = Self { client, condition: Arc::default(), attempt };
        let watched = node.clone();
        tokio::spawn(async move {
            loop {
                let connected = tokio::select! {
                    biased;
                    failure = failures.recv() => match failure {
                        // Of an attempt to connect: it names no server.
                        Ok((failure, None)) => {
                            *watched.condition.failure() = Some(failure);
                            continue;
                        }
                        Ok((_, Some(_))) | Err(RecvError::Lagged(_)) => continue,
                        Err(RecvError::Closed) => return,
                    },
                    connected = events.recv() => connected,
                };
                if matches!(connected, Err(RecvError::Closed)) {
                    return;
                }
                *watched.condition.failure() = None;
                told.set();
                in_use(&watched.client).await;
                watched.condition.changed.notify_waiters();
            }
        });
        node
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// `asking`: of a server that is about to take the slot over.
    pub(super) async fn run(
        &self,
        script: &'static Script,
        call: &Ready,
        timeout: Duration,
        asking: bool,
    ) -> Result<Vec<Element>, Failure> {
        let mut left = timeout;
        if !self.is_up() {
            // Boxed, so that the usual call's future stays small.
            left = Box::pin(self.when_up(timeout)).await?;
        }
        let sent = Instant::now();
        let reply = script.run(&self.client, call, left, asking).await;
        match &reply {
            Ok(_) => _ = self.condition.answers.fetch_add(1, Ordering::Relaxed),
            Err(error)
                if *error.kind() == Kind::Timeout && self.condition.is_silence(sent, left) =>
            {
                self.renew_connection();
            }
            Err(_) => {}
        }
        reply
    }

    fn is_up(&self) -> bool {
        !self.condition.renewing.load(Ordering::Acquire) && is_connected(&self.client)
    }

    /// Waits for a connection, for at most half of the time, so that those in line behind a call that waited in vain
    /// have an answer before anybody gives them up. What is left of the time.
    async fn when_up(&self, limit: Duration) -> Result<Duration, Failure> {
        let start = Instant::now();
        let up = async {
            loop {
                let mut changed = std::pin::pin!(self.condition.changed.notified());
                changed.as_mut().enable();
                if self.is_up() {
                    return;
                }
                changed.await;
            }
        };
        match timeout(limit / 2, up).await {
            Ok(()) => Ok(limit.saturating_sub(start.elapsed())),
            Err(_) => Err(unsent(self.condition.failure().as_ref())),
        }
    }

    /// After silence the connection may be half dead, and fred may not notice while commands go out.
    fn renew_connection(&self) {
        if self.condition.renewing.swap(true, Ordering::AcqRel) {
            return;
        }
        let node = self.clone();
        tokio::spawn(async move {
            // On a stalled server this itself hangs; nobody waits for it.
            let _ = timeout(node.attempt * 2, node.client.force_reconnection()).await;
            node.condition.end_renewing();
        });
    }

    pub(super) async fn close(&self) {
        let _ = timeout(self.attempt, self.client.quit()).await;
    }
}

/// Our own words for a call that waited for a connection and was not given to fred. Why there is none comes after them.
const NOT_CONNECTED: &str = "leasehold: no connection. ";

/// What is said of such a call.
const NOTHING_SENT: &str = "there is no connection to the server; nothing was sent";

fn unsent(why: Option<&Failure>) -> Failure {
    let (kind, text) = why.map_or((Kind::Routing, ""), |why| (why.kind().clone(), why.details()));
    Failure::new(kind, format!("{NOT_CONNECTED}{text}"))
}

/// Whether a call was not sent for want of a connection, so that no other would be.
pub(super) fn is_unsent(error: &Error) -> bool {
    error.fate() == Fate::NotExecuted && error.message().starts_with(NOTHING_SENT)
}

/// fred's words for what it had sent before the connection was lost, and for what it had not: neither is known to
/// have been refused.
const LOST: [&str; 2] = ["Too many failed write attempts", "Failed to route command"];

/// Sorts a failure of fred's: first by the server's words, then by what fred knows.
pub(super) fn sorted(error: &fred::error::Error) -> Error {
    let text = error.details();
    if let Some(why) = text.strip_prefix(NOT_CONNECTED) {
        if why.is_empty() {
            return Error::new(ErrorKind::Unavailable, NOTHING_SENT).with_fate(Fate::NotExecuted);
        }
        // A refused password is no outage, also when it is refused later.
        let why = sorted(&Failure::new(error.kind().clone(), why.to_owned()));
        let message = format!("{NOTHING_SENT}: {}", why.message());
        return Error::new(why.kind(), message).with_fate(Fate::NotExecuted).with_source(why);
    }
    let sorted = replies::sort(text);
    if sorted.fate() == Fate::NotExecuted || sorted.kind() != ErrorKind::Unavailable {
        return sorted;
    }
    // Whatever the client says, the server may have run what it was given.
    let (kind, message) = match error.kind() {
        Kind::Auth => (ErrorKind::Denied, "the server refuses this user or password"),
        Kind::Timeout => (ErrorKind::Unavailable, "the server did not answer in time"),
        Kind::IO => (ErrorKind::Unavailable, io_failure(text)),
        Kind::Canceled => (ErrorKind::Unavailable, "the connection was closed"),
        Kind::Protocol | Kind::Parse => {
            (ErrorKind::Unavailable, "the server's reply cannot be read; is it Redis?")
        }
        _ if LOST.iter().any(|lost| text.starts_with(lost)) => {
            (ErrorKind::Unavailable, "the connection was lost before the server answered")
        }
        _ => return sorted,
    };
    // fred's text is for those who debug: it stays in the source.
    let source = fred::error::Error::new(error.kind().clone(), replies::harmless(text).to_owned());
    Error::new(kind, message).with_fate(Fate::Unknown).with_source(source)
}

fn io_failure(text: &str) -> &'static str {
    if text.contains("ConnectionRefused") {
        "nobody listens at the server's address"
    } else if text.contains("NotFound") {
        "there is no such socket"
    } else {
        "the connection to the server failed"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fred::error::{Error as FredError, ErrorKind as Kind};
    use std::error::Error as _;

    fn sort(kind: Kind, text: &str) -> Error {
        sorted(&FredError::new(kind, text.to_owned()))
    }

    #[test]
    fn the_servers_words_come_first() {
        for kind in [Kind::Unknown, Kind::IO, Kind::Timeout, Kind::Auth] {
            let error = sort(kind.clone(), "READONLY You can't write against a read only replica.");
            assert_eq!(error.kind(), ErrorKind::Rejected, "{kind:?}");
            // A refusal inside a script has no word of its own, and may come after a write.
            let error = sort(kind.clone(), "ERR The user executing the script can't run this");
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Denied, Fate::Unknown));
            let error = sort(kind, "LOADING Redis is loading the dataset in memory");
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotExecuted));
        }
    }

    #[test]
    fn then_what_the_client_knows_and_what_may_have_been_done() {
        use ErrorKind::{Denied, Unavailable};
        for (kind, text, sorted, fate, says) in [
            (Kind::Auth, "no", Denied, Fate::Unknown, "user or password"),
            (Kind::Timeout, "", Unavailable, Fate::Unknown, "in time"),
            (
                Kind::IO,
                "Broken pipe",
                Unavailable,
                Fate::Unknown,
                "connection to the server failed",
            ),
            (Kind::IO, "ConnectionRefused", Unavailable, Fate::Unknown, "nobody listens"),
            (Kind::IO, "NotFound", Unavailable, Fate::Unknown, "no such socket"),
            (Kind::Canceled, "", Unavailable, Fate::Unknown, "was closed"),
            (Kind::Backpressure, "", Unavailable, Fate::Unknown, "an error"),
            (Kind::Protocol, "", Unavailable, Fate::Unknown, "is it Redis?"),
            (Kind::Parse, "", Unavailable, Fate::Unknown, "is it Redis?"),
            (Kind::Unknown, "what?", Unavailable, Fate::Unknown, "(what?)"),
            (
                Kind::Unknown,
                "Too many failed write attempts.",
                Unavailable,
                Fate::Unknown,
                "connection was lost",
            ),
            (
                Kind::Unknown,
                "Failed to route command.",
                Unavailable,
                Fate::Unknown,
                "connection was lost",
            ),
            (Kind::Routing, NOT_CONNECTED, Unavailable, Fate::NotExecuted, "nothing was sent"),
        ] {
            let error = sort(kind.clone(), text);
            assert_eq!((error.kind(), error.fate()), (sorted, fate), "{kind:?} {text}");
            assert!(error.to_string().contains(says), "{kind:?}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_is_noticed_late_is_no_silence_the_first_time() {
        let (condition, limit) = (Condition::default(), Duration::from_millis(100));
        let after = async |percent: u32| {
            let sent = Instant::now();
            sleep(limit * percent / 100).await;
            condition.is_silence(sent, limit)
        };
        let first = Instant::now();
        assert!(after(100).await && after(125).await, "in time");
        assert!(!after(300).await, "this process stood still");
        assert!(!condition.is_silence(first, limit), "one of the same stall");
        assert!(after(100).await, "in time");
        assert!(after(150).await, "nothing was answered after the stall either");
        condition.answers.fetch_add(1, Ordering::Relaxed);
        assert!(!after(150).await, "another stall");
    }

    #[test]
    fn failure_to_connect_says_why_there_is_no_connection() {
        use ErrorKind::{Denied, Invalid, Unavailable};
        let words = "WRONGPASS invalid username-password pair or user is disabled.";
        for (kind, text, sorted, says) in [
            (Kind::Auth, words, Denied, "(WRONGPASS invalid"),
            (Kind::Unknown, "NOAUTH Authentication required.", Denied, "(NOAUTH "),
            (Kind::Unknown, "ERR DB index is out of range", Invalid, "no database of this number"),
            (Kind::IO, "ConnectionRefused", Unavailable, "nobody listens"),
            (Kind::IO, "Broken pipe: secret", Unavailable, "the connection to the server failed"),
        ] {
            let failure = Failure::new(kind, text.to_owned());
            let error = super::sorted(&unsent(Some(&failure)));
            assert_eq!((error.kind(), error.fate()), (sorted, Fate::NotExecuted), "{text}");
            assert!(is_unsent(&error) && error.message().contains(says), "{text}: {error}");
            assert!(!error.message().contains("secret"), "{error}");
            assert!(!is_unsent(&super::sorted(&failure)), "{text}: it was sent");
        }
        assert!(is_unsent(&super::sorted(&unsent(None))));
    }

    #[test]
    fn the_clients_words_stay_in_the_source_without_the_arguments() {
        let error = sort(Kind::IO, "Broken pipe, with args: secret");
        let source = error.source().map(ToString::to_string).unwrap_or_default();
        assert!(source.contains("Broken pipe") && !source.contains("secret"), "{source}");
        assert!(!error.to_string().contains("Broken pipe"), "{error}");
    }
}
