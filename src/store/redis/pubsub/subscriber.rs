//! Receives wake-ups: keeps a connection that listens, and makes the next one when it is lost.
//!
//! # Invariants
//!
//! 1. **Each connection is a client of its own.** It is given up when it is lost, when it is silent, when its client has
//!    ended, when the requests go to another server, or when its login is about to lapse and the next connection is there. The next one subscribes all awaited channels, and then wakes
//!    their waiters, because the messages of the gap are lost.
//! 2. **Connections that die young are made less and less often**, until one has lived for a while.
//! 3. **No panic ends the subscriber**: neither one of a waker, nor its own.
//!
//! Nothing is given to fred while it has no connection: it would keep everything until the end of the outage.

use super::channels::{
    Channels, Command, Connection, SubscriberInbox, answer, begin_again, forget, forward_messages,
    left,
};
use super::listener::{Closed, End, Listener, Work, no_connection};
use crate::error::Error;
use crate::store::redis::link::address::Address;
use crate::store::redis::link::subscription::{SubscriberLink, Subscription};
use crate::store::redis::topology::Destination;
use crate::store::redis::topology::routes::Routes;
use crate::util::backoff::Backoff;
use crate::util::panics::{caught, run_wakers};
use crate::util::reached::Rare;
use crate::util::trace;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::Level;

/// The first pause before a connection.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The bounds of the age from which on a connection has lived for long enough to be replaced at once. The pauses before
/// younger ones grow up to it.
const MATURITY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The number of connections in a row that die young before it is logged.
const YOUNG: u32 = 3;
/// How long the connections may lead to two servers: after a restart they are replaced one after the other.
const APART: Duration = Duration::from_secs(1);

/// Where a subscriber finds its server.
pub(super) enum Origin {
    /// A single server. Its connection follows that of the requests.
    One(watch::Receiver<Destination>),
    /// A server of a fleet.
    Of(Arc<Routes>),
}

/// Receives messages over one connection after the other.
pub(super) struct Subscriber {
    address: Address,
    origin: Origin,
    work: Work,
    connection: Connection,
    outage: Backoff,
    young: Backoff,
    /// The number of connections in a row that died young.
    deaths: u32,
    maturity: Duration,
}

impl Subscriber {
    pub(super) fn new(
        address: &Address,
        origin: Origin,
        channels: &Channels,
        SubscriberInbox { id, commands, connection }: SubscriberInbox,
    ) -> Self {
        let maturity = (address.ttl / 2).clamp(MATURITY.0, MATURITY.1);
        let sharded = match &origin {
            Origin::One(_) => false,
            Origin::Of(routes) => routes.sharded,
        };
        let name = address.server_name();
        let channels = Arc::clone(channels);
        Self {
            work: Work { name, id, sharded, channels, commands, refused: None },
            connection,
            address: address.clone(),
            origin,
            outage: address.pauses(),
            young: Backoff::new(FIRST_PAUSE, maturity),
            deaths: 0,
            maturity,
        }
    }

    /// Runs until it is closed, or until nothing can send it a command any more.
    pub(super) async fn run(mut self, first: Option<Subscription>) {
        let mut next = match first {
            Some(first) => Some(first),
            // The first calls wait for the connection.
            None => self.try_connect(Subscription::connect(&self.address).await),
        };
        let closed = loop {
            let connected = match next.take() {
                Some(connected) => connected,
                None => match self.connect().await {
                    Ok(connected) => connected,
                    Err(closed) => break closed,
                },
            };
            match self.live(connected).await {
                End::Lost => {}
                End::Closed(closed) => break closed,
                End::Replaced(made) => next = Some(*made),
            }
        };
        begin_again(&self.work.channels, self.work.id);
        if let Some(closed) = closed {
            run_wakers(|| _ = closed.send(()));
        }
    }

    /// Serves a connection to its end.
    async fn live(&mut self, mut connected: Subscription) -> End {
        let mut successor = connected.successor(&self.address);
        let since = Instant::now();
        self.connection.is_there();
        self.outage.reset();
        let link = connected.link();
        let mut forwarder = JoinSet::new();
        forwarder.spawn(forward_messages(connected.messages(), Arc::clone(&self.work.channels)));
        let end = tokio::select! {
            // Without a policy to reconnect, it ends with its connection; or it has panicked.
            () = connected.ended() => End::Lost,
            _ = forwarder.join_next() => End::Lost,
            end = caught("subscriber", self.serve(&link)) => end.unwrap_or(End::Lost),
            made = successor.made() => End::Replaced(Box::new(made)),
        };
        successor.abandon(self.address.attempt);
        match &end {
            End::Closed(_) | End::Replaced(_) => connected.close(self.address.attempt).await,
            End::Lost => {
                Rare::RedisSubscriptionLost.reached();
                self.connection.is_lost();
                self.note_age(since.elapsed());
                connected.abort();
            }
        }
        end
    }

    /// Serves a connection until it is silent, closed, or leads to another server than the requests.
    async fn serve(&mut self, link: &SubscriberLink) -> End {
        let elsewhere = match &self.origin {
            Origin::One(requests) => {
                let requests = requests.clone();
                let may_ask = self.address.preflight.asks();
                let run_id = if may_ask { link.run_id(self.address.attempt).await } else { None };
                Some(until_elsewhere(requests, run_id))
            }
            Origin::Of(..) => None,
        };
        tokio::select! {
            end = Listener::new(&mut self.work, link, &self.address).listen() => end,
            () = async { match elsewhere {
                Some(elsewhere) => elsewhere.await,
                None => pending().await,
            } } => {
                trace::later(Level::DEBUG, || {
                    || tracing::debug!("the connection for wake-ups leads to another server than the requests")
                });
                End::Lost
            }
        }
    }

    /// Records how long a connection has lived.
    fn note_age(&mut self, lived: Duration) {
        if lived >= self.maturity {
            self.young.reset();
            self.deaths = 0;
            return;
        }
        self.deaths += 1;
        if self.deaths == YOUNG {
            trace::later(Level::WARN, || {
                let server = self.work.name.clone();
                move || {
                    tracing::warn!(
                        server,
                        "the connection for wake-ups ends soon after it is made, again and again, or leads to another \
                         server than the requests; meanwhile waiters ask by the clock"
                    );
                }
            });
        }
    }

    /// Makes a connection, however long that takes. Returns an error if it is closed meanwhile.
    async fn connect(&mut self) -> Result<Subscription, Closed> {
        let mut pause = self.young.next();
        loop {
            self.meanwhile(sleep(pause)).await?;
            let address = self.address.clone();
            // In a task of its own: an abandoned client would keep its connection.
            let mut connecting = tokio::spawn(async move { Subscription::connect(&address).await });
            match self.meanwhile(&mut connecting).await {
                Ok(Ok(result)) => {
                    if let Some(connected) = self.try_connect(result) {
                        return Ok(connected);
                    }
                }
                // The client has panicked.
                Ok(Err(_)) => {}
                Err(closed) => {
                    let limit = self.address.attempt;
                    tokio::spawn(async move {
                        if let Ok(Ok(connected)) = connecting.await {
                            connected.close(limit).await;
                        }
                    });
                    return Err(closed);
                }
            }
            pause = self.outage.next();
        }
    }

    fn try_connect(&self, result: Result<Subscription, Error>) -> Option<Subscription> {
        let error = match result {
            Ok(connected) => return Some(connected),
            Err(error) => error,
        };
        trace::later(
            Level::DEBUG,
            || move || tracing::debug!(%error, "no connection for wake-ups"),
        );
        if let Origin::Of(routes) = &self.origin {
            routes.request_refresh();
        }
        None
    }

    /// Waits for something without a connection. Returns an error if it is closed meanwhile.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Closed> {
        let mut work = pin!(work);
        loop {
            let command = tokio::select! {
                biased;
                output = &mut work => return Ok(output),
                command = self.work.commands.recv() => command,
            };
            match command {
                Some(Command::Subscribe(_, done)) => answer(done, Err(no_connection())),
                // Nothing is subscribed.
                Some(Command::Idle(channel)) => {
                    forget(&self.work.channels, &channel, self.work.id);
                }
                Some(Command::Leave(channel)) => {
                    left(&self.work.channels, &channel, self.work.id);
                }
                Some(Command::Close(done)) => return Err(Some(done)),
                None => return Err(None),
            }
        }
    }
}

/// Waits until the requests go to another server than the one whose run has this id. Where that is not known, the
/// connection of the requests was made again, and may lead anywhere.
async fn until_elsewhere(mut requests: watch::Receiver<Destination>, run_id: Option<String>) {
    let connects = requests.borrow().connects;
    loop {
        let are_apart = {
            let requests = requests.borrow_and_update();
            match (&requests.run_id, &run_id) {
                (Some(theirs), Some(ours)) => theirs != ours,
                _ => requests.connects != connects,
            }
        };
        let changed = if are_apart {
            match timeout(APART, requests.changed()).await {
                Ok(changed) => changed,
                Err(_) => return,
            }
        } else {
            requests.changed().await
        };
        if changed.is_err() {
            pending::<()>().await;
        }
    }
}
