//! Keeps the client of a connection: follows what becomes of it, and replaces it when it does not help any more.
//!
//! fred itself replaces a connection that is lost. A fresh client is needed
//! - when the **server refuses by its role**: behind a stable address (a service, a managed endpoint), the server there has
//!   become a replica and keeps its connections, while new ones lead to the next primary;
//! - when the **task of the client has ended**, whatever the reason. Nothing serves the client then.
//!
//! A fresh client takes the place of one that was refused only if its server accepts writes, as far as that can be known.
//! Calls that were given to the old client have their answers there.
//!
//! All connections of a store to one address move together. A server that was demoted may answer reads with old data, such as
//! a renewal that finds no lock. So the others are not used from the moment at which one has moved, until they have, too.

use super::address::{Address, Answers};
use super::errors::{Failure, classify, step};
use super::health::{Health, REPLICA, Role, field, info, is_connected, until_in_use};
use super::login::{Login, due};
use crate::store::Signal;
use crate::util::backoff::Backoff;
use crate::util::panics::caught;
use crate::util::reached::Rare;
use crate::util::trace;
use fred::clients::Client;
use fred::error::ErrorKind as Kind;
use fred::interfaces::EventInterface;
use fred::types::config::Server;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::Level;

/// The shortest time between two questions to a provider that has failed.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Why a client is to be replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    Refused,
    /// Another connection to the address has moved to the next server.
    Moved,
    Ended,
}

/// What an attempt to make a fresh client has led to.
enum Fresh {
    Made(Box<Answers<Client>>),
    /// The server at the address refuses by its role, too.
    Refuses,
    Failed(Failure),
}

/// Replaces the client of a [`Node`](super::node::Node).
pub(super) struct Keeper {
    served: Answers<Client>,
    address: Address,
    health: Arc<Health>,
    reconnects: Signal,
    /// Between attempts: those that fred has between its own.
    pauses: Backoff,
    /// Why the client is to be replaced, if it is.
    reason: Option<Reason>,
    /// When the next attempt begins, and when the last one was to begin.
    attempt_at: Option<Instant>,
    last: Option<Instant>,
    /// When the server refused last.
    refused: Option<Instant>,
    /// The attempts under way.
    fresh: JoinSet<Fresh>,
    /// Names the connection that fred has made last.
    naming: JoinSet<()>,
}

impl Keeper {
    /// Starts the task of a keeper, on the current runtime.
    pub(in crate::store::redis) fn start(
        served: Answers<Client>,
        address: &Address,
        health: &Arc<Health>,
        reconnects: &Signal,
    ) {
        let keeper = Self {
            served,
            pauses: address.pauses(),
            address: address.clone(),
            health: Arc::clone(health),
            reconnects: reconnects.clone(),
            reason: None,
            attempt_at: None,
            last: None,
            refused: None,
            fresh: JoinSet::new(),
            naming: JoinSet::new(),
        };
        address.refusals.join(address.server_address(), health);
        tokio::spawn(keeper.run());
    }

    async fn run(mut self) {
        while caught("connection", self.follow()).await.is_none() {
            // What was under way is gone.
            self.health.silence_is_over();
            if matches!(self.reason, None | Some(Reason::Refused)) {
                self.health.end_reconnecting();
            }
        }
        // The node itself closes the client that is in its use.
        while let Some(made) = self.fresh.join_next().await {
            if let Ok(Fresh::Made(served)) = made {
                served.close(self.address.attempt).await;
            }
        }
        if self.reason != Some(Reason::Ended) {
            self.served.abort_unless_ended(self.address.attempt * 2).await;
        }
    }

    /// Follows what becomes of the client until the node is closed.
    async fn follow(&mut self) {
        let health = Arc::clone(&self.health);
        let (mut connected, mut failures) = self.events();
        // Whether fred has made a connection that it does not use yet.
        let mut settling = false;
        // fred's own reconnects after silence. On a stalled server they hang, but nothing waits for them.
        let mut forced = JoinSet::new();
        // The silence of a connection that stays in use meanwhile.
        let mut outliving = JoinSet::new();
        // The login before the credentials lapse. It may hang, but nothing waits for it.
        let mut logins = JoinSet::new();
        loop {
            let has_task = self.reason != Some(Reason::Ended);
            let attempt_at = self.attempt_at;
            tokio::select! {
                biased;
                () = health.closed.cancelled() => return,
                ended = &mut self.served.task, if has_task => {
                    settling = false;
                    (forced, outliving) = (JoinSet::new(), JoinSet::new());
                    self.ended(ended);
                }
                failure = next(&mut failures), if has_task => {
                    // A failure to connect names no server.
                    if let Some((failure, None)) = failure {
                        let server = self.address.server_address();
                        self.address.outages.failed(&server, step(&failure), &classify(&failure));
                        *health.failure.lock() = Some(failure);
                    }
                }
                _ = next(&mut connected), if has_task => {
                    settling = true;
                    *health.failure.lock() = None;
                    self.reconnects.set();
                    self.address.outages.answered(&self.address.server_address());
                    self.name();
                }
                () = until_in_use(&self.served.client), if settling => {
                    settling = false;
                    health.is_in_use();
                }
                () = health.silent.notified(), if has_task && outliving.is_empty() => {
                    match self.served.login.clone().filter(|_| self.address.outlives_silence()) {
                        Some(login) => {
                            let client = self.served.client.clone();
                            let health = Arc::clone(&health);
                            let address = self.address.clone();
                            outliving.spawn(async move { outlives(&health, &client, &login, &address).await });
                        }
                        None => _ = forced.spawn(self.reconnect()),
                    }
                }
                // The flag is set here, not in the task: it is about the client of now.
                Some(outlived) = outliving.join_next() => if has_task {
                    if matches!(outlived, Ok(false)) {
                        health.begin_reconnecting();
                        forced.spawn(self.reconnect());
                    } else {
                        health.silence_is_over();
                    }
                },
                Some(_) = forced.join_next() => if has_task && self.reason != Some(Reason::Moved) {
                    health.silence_is_over();
                    health.end_reconnecting();
                },
                () = health.refused.notified() => self.refused(),
                () = due(self.served.login.as_ref()), if has_task && logins.is_empty() => self.log_in(&mut logins),
                Some(_) = logins.join_next() => {}
                () = async { sleep_until(attempt_at.unwrap_or_else(Instant::now)).await }, if attempt_at.is_some() => {
                    self.attempt_at = None;
                    let before = self.served.login.clone().filter(|_| self.reason == Some(Reason::Ended));
                    self.fresh.spawn(make(self.address.clone(), self.reason, before));
                }
                Some(made) = self.fresh.join_next() => match made {
                    Ok(Fresh::Made(served)) => {
                        self.replace(*served);
                        self.reconnects.set();
                        (connected, failures) = self.events();
                        settling = false;
                        (forced, outliving) = (JoinSet::new(), JoinSet::new());
                        logins = JoinSet::new();
                        health.is_in_use();
                    }
                    Ok(Fresh::Refuses) | Err(_) => self.try_again(None),
                    Ok(Fresh::Failed(failure)) => self.try_again(Some(failure)),
                },
            }
        }
    }

    /// Returns what has fred make the connection again.
    fn reconnect(&self) -> impl Future<Output = ()> + use<> {
        let health = Arc::clone(&self.health);
        let client = self.served.client.clone();
        let pause = self.address.first_pause();
        let limit = self.address.attempt * 2;
        async move { health.reconnect(&client, pause, limit).await }
    }

    fn events(&self) -> (Receiver<Server>, Receiver<(Failure, Option<Server>)>) {
        (self.served.client.reconnect_rx(), self.served.client.error_rx())
    }

    /// Has the connection authenticate again. Without a connection, the next one does so by itself.
    fn log_in(&self, logins: &mut JoinSet<()>) {
        let Some(login) = self.served.login.clone() else { return };
        match self.health.up() {
            Some(client) => {
                let health = Arc::clone(&self.health);
                let attempt = self.address.attempt;
                logins.spawn(
                    async move { login.authenticate_again(&client, &health, attempt).await },
                );
            }
            None => login.wait_a_while(),
        }
    }

    fn ended(&mut self, how: Result<Result<(), Failure>, JoinError>) {
        self.health.begin_reconnecting();
        self.reason = Some(Reason::Ended);
        self.plan();
        // As each time that a connection is lost.
        if self.address.ends_with_connection() {
            return;
        }
        let why = match how {
            Ok(Ok(())) => "it was closed".to_owned(),
            Ok(Err(failure)) => failure.details().to_owned(),
            Err(error) if error.is_panic() => "it panicked".to_owned(),
            Err(error) => error.to_string(),
        };
        trace::later(Level::WARN, || {
            move || tracing::warn!(why, "the client of a connection has ended; another one is made")
        });
    }

    /// Plans the next attempt. The pauses grow for as long as attempts follow each other.
    fn plan(&mut self) {
        let now = Instant::now();
        let quiet = self.address.longest_pause() * 4;
        if self.last.is_none_or(|last| now.saturating_duration_since(last) > quiet) {
            self.pauses.reset();
        }
        let at = now + self.pauses.next();
        (self.attempt_at, self.last) = (Some(at), Some(at));
    }

    /// Names the connection that fred has made.
    fn name(&mut self) {
        let address = self.address.clone();
        let health = Arc::clone(&self.health);
        // One connection after another needs only the last one's name.
        self.naming = JoinSet::new();
        self.naming.spawn(async move {
            // After the calls that wait for the connection.
            sleep(address.attempt).await;
            let Some(client) = health.up() else { return };
            let sent = Instant::now();
            let named = address.name(&client).await;
            if named.is_err() && health.silence.is_shown_by(sent, address.attempt) {
                health.is_silent(&client);
            }
        });
    }

    /// Notes that the server refuses by its role, here or at another connection to the address, or that the other one has
    /// moved.
    fn refused(&mut self) {
        let now = Instant::now();
        self.refused = Some(now);
        match self.health.role_once() {
            Role::Refused(word) => {
                self.address.refusals.note(self.address.server_name(), word);
                self.address.refusals.share(&self.address.server_address(), &self.health);
            }
            Role::RefusedElsewhere => {}
            Role::Moved if self.reason != Some(Reason::Ended) => {
                self.reason = Some(Reason::Moved);
                // A reconnect that has ended meanwhile may have put it back into use.
                self.health.begin_reconnecting();
            }
            Role::Moved => {}
        }
        if self.reason.is_none() {
            self.reason = Some(Reason::Refused);
        }
        if self.fresh.is_empty() && self.attempt_at.is_none() {
            self.plan();
        }
    }

    /// Plans the next attempt after one that led to nothing.
    fn try_again(&mut self, failure: Option<Failure>) {
        if matches!(self.reason, Some(Reason::Ended | Reason::Moved)) {
            // Whatever the calls of this connection wait for.
            let failure = failure.or_else(|| {
                (self.reason == Some(Reason::Moved)).then(|| Failure::new(Kind::Unknown, REPLICA))
            });
            if failure.is_some() {
                *self.health.failure.lock() = failure;
            }
            self.plan();
            return;
        }
        // Only for as long as there are calls, which are refused.
        let recently = self
            .refused
            .is_some_and(|refused| refused.elapsed() < self.address.longest_pause() * 4);
        if recently {
            self.plan();
        } else {
            self.reason = None;
        }
    }

    /// Puts a fresh client in the place of the old one.
    fn replace(&mut self, served: Answers<Client>) {
        Rare::RedisClientReplaced.reached();
        self.health.replace(served.client.clone(), served.task.abort_handle());
        if self.reason == Some(Reason::Refused) {
            self.address.refusals.moved(&self.address.server_address(), &self.health);
        }
        let old = std::mem::replace(&mut self.served, served);
        if self.reason != Some(Reason::Ended) {
            let attempt = self.address.attempt;
            tokio::spawn(async move {
                // Calls that have the old client are answered first.
                sleep(attempt).await;
                old.close(attempt).await;
            });
        }
        (self.reason, self.attempt_at) = (None, None);
    }
}

/// Waits until a silent connection is answered again, or is lost, for as long as the provider has nothing to log in with for the
/// next one. Returns false if it has, or if the time is over: then the connection is to be replaced.
async fn outlives(health: &Health, client: &Client, login: &Login, address: &Address) -> bool {
    let attempt = address.attempt;
    // No lease depends on the connection after that.
    let until = Instant::now() + address.ttl;
    let answers = health.silence.answers();
    let connects = *health.connects().borrow();
    let is_over = || {
        let is_answered = health.silence.answers() != answers;
        Rare::RedisSilenceOutlived.reached_if(|| is_answered);
        is_answered || *health.connects().borrow() != connects || !is_connected(client)
    };
    loop {
        let is_prepared = timeout_at(until, login.prepare()).await.unwrap_or(false);
        if is_over() {
            login.forget_prepared();
            return true;
        }
        if is_prepared {
            return false;
        }
        let pause = Instant::now() + attempt.max(ASK_AGAIN);
        health.probe(client, attempt).await;
        if is_over() {
            return true;
        }
        sleep_until(pause.min(until)).await;
        if Instant::now() >= until {
            return false;
        }
    }
}

/// Makes a fresh client. In the place of one that is refused, only to a server that accepts writes, if it says so.
async fn make(address: Address, reason: Option<Reason>, before: Option<Arc<Login>>) -> Fresh {
    let served = match address.fresh(before.as_deref()).await {
        Ok(served) => served,
        Err(failure) => return Fresh::Failed(failure),
    };
    if matches!(reason, Some(Reason::Refused | Reason::Moved))
        && let Ok(info) = info(&served.client).await
        && (field(&info, "role") == Some("slave") || field(&info, "loading") == Some("1"))
    {
        served.close(address.attempt).await;
        return Fresh::Refuses;
    }
    Fresh::Made(Box::new(served))
}

/// Returns the next event of a client, `None` for events that were missed. Waits forever for those of one that is closed.
async fn next<T: Clone>(events: &mut Receiver<T>) -> Option<T> {
    match events.recv().await {
        Ok(event) => Some(event),
        Err(RecvError::Lagged(_)) => None,
        Err(RecvError::Closed) => pending().await,
    }
}
