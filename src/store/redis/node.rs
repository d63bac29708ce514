//! A connection to one server.

use super::address::Place;
use super::errors::{classify, unsent};
use super::replies::Element;
use super::scripts::{Failure, Ready, Script};
use crate::error::{Error, Result};
use crate::store::Signal;
use crate::sync::Mutex;
use fred::clients::Client;
use fred::error::ErrorKind as Kind;
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::{ClientState, ClusterHash, CustomCommand, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

/// A connection to one server.
///
/// 1. **Nothing is given to fred while it has no connection.** It keeps commands that it cannot send for as long as an
///    outage lasts, and never reports that they were not sent. Here a call waits outside of fred for a while, and fails
///    with the certainty that it was not sent.
/// 2. **Only silence makes this node reconnect.** A refusal shows that the connection works, and fred itself replaces a
///    lost one.
#[derive(Clone)]
pub(super) struct Node {
    client: Client,
    health: Arc<Health>,
    attempt: Duration,
}

/// The state of a connection besides that which fred reports.
#[derive(Default)]
struct Health {
    /// Whether we have asked fred to reconnect. A command given to fred now waits behind that.
    reconnecting: AtomicBool,
    /// Is notified when that, or the state that fred reports, may have changed.
    changed: Notify,
    /// Why the last attempt to connect failed, if there is no connection since.
    failure: Mutex<Option<Failure>>,
    /// How often a connection was made.
    connects: watch::Sender<u64>,
    /// The number of calls that were answered.
    answers: AtomicU64,
    /// When a call was last found to be long over its time limit, because this process had stalled; and the number of
    /// answers by then.
    stalled: Mutex<Option<(Instant, u64)>>,
}

impl Health {
    fn failure(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock()
    }

    /// Returns whether a call that reached its time limit shows that the server is silent. If that is noticed late, this
    /// process has stalled, and the reply may have arrived by now. Then the next call sent after the stall counts, if
    /// nothing was answered since.
    fn is_silence(&self, sent: Instant, limit: Duration) -> bool {
        let now = Instant::now();
        if now.saturating_duration_since(sent) <= limit + limit / 4 {
            return true;
        }
        let answers = self.answers.load(Ordering::Relaxed);
        let mut stalled = self.stalled.lock();
        match *stalled {
            Some((at, before)) if before == answers => sent > at,
            _ => {
                *stalled = Some((now, answers));
                false
            }
        }
    }

    fn end_reconnecting(&self) {
        self.reconnecting.store(false, Ordering::Release);
        self.changed.notify_waiters();
    }
}

/// The time between two checks of the state that fred reports.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

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

impl Node {
    /// Wraps a client. Sets `reconnects` at each reconnect until the client ends.
    pub(super) fn new(client: Client, attempt: Duration, reconnects: &Signal) -> Self {
        let (notify, mut events) = (reconnects.clone(), client.reconnect_rx());
        let mut failures = client.error_rx();
        let node = Self { client, health: Arc::default(), attempt };
        let watched = node.clone();
        tokio::spawn(async move {
            loop {
                let connected = tokio::select! {
                    biased;
                    failure = failures.recv() => match failure {
                        // A failure to connect names no server.
                        Ok((failure, None)) => {
                            *watched.health.failure() = Some(failure);
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
                *watched.health.failure() = None;
                notify.set();
                until_in_use(&watched.client).await;
                watched.health.changed.notify_waiters();
                watched.health.connects.send_modify(|connects| *connects += 1);
            }
        });
        node
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns how often a connection was made again, which changes when the next one is in use.
    pub(super) fn connects(&self) -> watch::Receiver<u64> {
        self.health.connects.subscribe()
    }

    /// Runs a script. `asking`: on a server that is importing the slot.
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
            left = Box::pin(self.wait_until_up(timeout)).await?;
        }
        let sent = Instant::now();
        let reply = script.run(&self.client, call, left, asking).await;
        match &reply {
            Ok(_) => _ = self.health.answers.fetch_add(1, Ordering::Relaxed),
            Err(error) if *error.kind() == Kind::Timeout && self.health.is_silence(sent, left) => {
                self.reconnect();
            }
            Err(_) => {}
        }
        reply
    }

    /// Puts the server before the message of an outage.
    pub(super) fn at(&self, error: Error) -> Error {
        if !error.is_unavailable() {
            return error;
        }
        error.at(&Place(&self.client.client_config().server).to_string())
    }

    /// Asks the server about itself.
    pub(super) async fn info(&self) -> Result<String> {
        let ask = async {
            if !self.is_up() {
                self.wait_until_up(self.attempt).await?;
            }
            let info = CustomCommand::new_static("INFO", ClusterHash::FirstKey, false);
            self.client.custom::<String, Value>(info, Vec::new()).await
        };
        ask.await.map_err(|failure: Failure| classify(&failure))
    }

    fn is_up(&self) -> bool {
        !self.health.reconnecting.load(Ordering::Acquire) && is_connected(&self.client)
    }

    /// Waits for a connection, for at most half of the time, so that requests that wait behind this call have an answer
    /// before their own time limits. Returns the time that is left.
    async fn wait_until_up(&self, limit: Duration) -> Result<Duration, Failure> {
        let start = Instant::now();
        let up = async {
            loop {
                let mut changed = std::pin::pin!(self.health.changed.notified());
                changed.as_mut().enable();
                if self.is_up() {
                    return;
                }
                changed.await;
            }
        };
        match timeout(limit / 2, up).await {
            Ok(()) => Ok(limit.saturating_sub(start.elapsed())),
            Err(_) => Err(unsent(self.health.failure().as_ref())),
        }
    }

    /// Replaces the connection after silence: it may be half dead, which fred may not notice while it can send.
    fn reconnect(&self) {
        if self.health.reconnecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let node = self.clone();
        tokio::spawn(async move {
            // On a stalled server this itself hangs, but nothing waits for it.
            let _ = timeout(node.attempt * 2, node.client.force_reconnection()).await;
            node.health.end_reconnecting();
        });
    }

    pub(super) async fn close(&self) {
        let _ = timeout(self.attempt, self.client.quit()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn limit_that_is_noticed_late_is_no_silence_the_first_time() {
        let (health, limit) = (Health::default(), Duration::from_millis(100));
        let after = async |percent: u32| {
            let sent = Instant::now();
            sleep(limit * percent / 100).await;
            health.is_silence(sent, limit)
        };
        let first = Instant::now();
        assert!(after(100).await && after(125).await, "in time");
        assert!(!after(300).await, "this process stood still");
        assert!(!health.is_silence(first, limit), "one of the same stall");
        assert!(after(100).await, "in time");
        assert!(after(150).await, "nothing was answered after the stall either");
        health.answers.fetch_add(1, Ordering::Relaxed);
        assert!(!after(150).await, "another stall");
    }
}
