//! A connection that runs scripts.

use super::connect::Address;
use super::fleet::Fleet;
use super::replies::{self, Element};
use super::routes::Routes;
use super::scripts::{Call, Failure, Ready, Script};
use crate::error::{Error, ErrorKind, Fate, Result};
use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

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
    pub(super) reconnects: Arc<Notify>,
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
#[derive(Clone)]
pub(super) struct Node {
    client: Client,
    reconnecting: Arc<AtomicBool>,
    attempt: Duration,
}

impl Node {
    /// Each reconnect is told, until the client ends.
    pub(super) fn new(client: Client, attempt: Duration, reconnects: &Arc<Notify>) -> Self {
        let (told, mut events) = (Arc::clone(reconnects), client.reconnect_rx());
        tokio::spawn(async move {
            while !matches!(events.recv().await, Err(RecvError::Closed)) {
                told.notify_one();
            }
        });
        Self { client, reconnecting: Arc::default(), attempt }
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
        let reply = script.run(&self.client, call, timeout, asking).await;
        if let Err(error) = &reply {
            let error = sorted(error);
            if error.is_unavailable() && error.fate() == Fate::Unknown {
                self.renew_connection();
            }
        }
        reply
    }

    /// After a time-out the connection may be half dead, and fred may not notice while commands go out.
    fn renew_connection(&self) {
        if self.reconnecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let node = self.clone();
        tokio::spawn(async move {
            // On a stalled server this itself hangs; nobody waits for it.
            let _ = timeout(node.attempt * 2, node.client.force_reconnection()).await;
            node.reconnecting.store(false, Ordering::Release);
        });
    }

    pub(super) async fn close(&self) {
        let _ = timeout(self.attempt, self.client.quit()).await;
    }
}

/// Sorts a failure of fred's: first by the server's words, then by what fred knows.
pub(super) fn sorted(error: &fred::error::Error) -> Error {
    use fred::error::ErrorKind as Kind;

    let text = error.details();
    let sorted = replies::sort(text);
    if sorted.fate() == Fate::NotExecuted || sorted.kind() != ErrorKind::Unavailable {
        return sorted;
    }
    let (kind, message, fate) = match error.kind() {
        Kind::Auth => {
            (ErrorKind::Denied, "the server refuses this user or password", Fate::NotExecuted)
        }
        Kind::Timeout => {
            (ErrorKind::Unavailable, "the server did not answer in time", Fate::Unknown)
        }
        Kind::IO => (ErrorKind::Unavailable, io_failure(text), Fate::Unknown),
        Kind::Canceled => (ErrorKind::Unavailable, "the connection was closed", Fate::Unknown),
        Kind::Backpressure => {
            (ErrorKind::Unavailable, "the client's queue is full", Fate::NotExecuted)
        }
        Kind::Protocol | Kind::Parse => (
            ErrorKind::Unavailable,
            "the server's reply cannot be read; is it Redis?",
            Fate::Unknown,
        ),
        _ => return sorted,
    };
    // fred's text is for those who debug: it stays in the source.
    let source = fred::error::Error::new(error.kind().clone(), replies::harmless(text).to_owned());
    Error::new(kind, message).with_fate(fate).with_source(source)
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
            (Kind::Auth, "no", Denied, Fate::NotExecuted, "user or password"),
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
            (Kind::Backpressure, "", Unavailable, Fate::NotExecuted, "queue is full"),
            (Kind::Protocol, "", Unavailable, Fate::Unknown, "is it Redis?"),
            (Kind::Parse, "", Unavailable, Fate::Unknown, "is it Redis?"),
            (Kind::Unknown, "what?", Unavailable, Fate::Unknown, "(what?)"),
        ] {
            let error = sort(kind.clone(), text);
            assert_eq!((error.kind(), error.fate()), (sorted, fate), "{kind:?} {text}");
            assert!(error.to_string().contains(says), "{kind:?}: {error}");
        }
    }

    #[test]
    fn the_clients_words_stay_in_the_source_without_the_arguments() {
        let error = sort(Kind::IO, "Broken pipe, with args: secret");
        let source = error.source().map(ToString::to_string).unwrap_or_default();
        assert!(source.contains("Broken pipe") && !source.contains("secret"), "{source}");
        assert!(!error.to_string().contains("Broken pipe"), "{error}");
    }
}
