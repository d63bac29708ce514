//! Keeps a current session: when one has ended, opens the next.

use super::errors::no_session;
use super::link::pauses_of_rounds;
use super::url::Address;
use super::{Session, session_check};
use crate::clock::Clock;
use crate::error::{Error, Fate, Result};
use crate::store::Signal;
use crate::store::connect::outage::Step;
use crate::util::backoff::Backoff;
use crate::util::panics::{caught, run_wakers};
use crate::util::reached::Rare;
use crate::util::sync::Mutex;
use crate::util::trace;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Level;

/// The longest pause between two tries after a refusal, if half a session is not shorter.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

type Current = Option<Arc<Session>>;

/// Why the servers refused the next session, when they answered last.
type Refusal = Arc<Mutex<Option<Error>>>;

/// The current session, and those to come.
#[derive(Clone, Debug)]
pub(in crate::store::zookeeper) struct Sessions {
    /// `None` between two sessions, and once closed: a session with an open connection would not end by itself.
    current: watch::Receiver<Current>,
    refusal: Refusal,
    pub(in crate::store::zookeeper) closed: CancellationToken,
    /// Whether the servers should end the current session when this is closed.
    empty: Arc<AtomicBool>,
    /// Fires when the last session has ended, or its runtime.
    ended: CancellationToken,
}

impl Sessions {
    /// Opens the first session on the current runtime, and keeps a current one until closed.
    pub(in crate::store::zookeeper) async fn start(
        address: Address,
        clock: Clock,
        reconnects: Signal,
    ) -> Result<Self> {
        let first = Session::open(&address, &clock).await?;
        let (sender, current) = watch::channel(Some(Arc::clone(&first)));
        let sessions = Self {
            current,
            refusal: Refusal::default(),
            closed: CancellationToken::new(),
            empty: Arc::default(),
            ended: CancellationToken::new(),
        };
        let closed = sessions.closed.clone();
        let empty = Arc::clone(&sessions.empty);
        let last = LastSession { sender, _ended: sessions.ended.clone().drop_guard() };
        let keeper = Keeper { address, clock, reconnects, refusal: Arc::clone(&sessions.refusal) };
        tokio::spawn(async move {
            let keep = async {
                let mut first = Some(first);
                while caught("session", keeper.keep_sessions(&last.sender, first.take()))
                    .await
                    .is_none()
                {}
            };
            tokio::select! {
                // Nothing waits for the second.
                _ = async { tokio::join!(keep, caught("session check", session_check::check(&keeper.address))) } => {}
                () = closed.cancelled() => {}
            }
            if empty.load(Ordering::Acquire)
                && let Some(session) = last.sender.send_replace(None)
            {
                session.close().await;
            }
        });
        Ok(sessions)
    }

    /// Gives up the current session. If it is `empty`, the servers end it at once.
    pub(in crate::store::zookeeper) fn close(&self, empty: bool) {
        self.empty.store(empty, Ordering::Release);
        self.closed.cancel();
    }

    pub(in crate::store::zookeeper) async fn until_ended(&self) {
        self.ended.cancelled().await;
    }

    /// Returns the current session. Without one, the error says why the servers refuse the next, if they do.
    pub(in crate::store::zookeeper) fn current(&self) -> Result<Arc<Session>> {
        if self.closed.is_cancelled() {
            return Err(Error::closed());
        }
        let session = self.current.borrow().clone();
        session.filter(|session| !session.is_over()).ok_or_else(|| {
            let refusal = self.refusal.lock().clone();
            refusal
                .map_or_else(no_session, |error| error.with_fate(Fate::NotExecuted).for_all_names())
        })
    }

    /// Waits for a session.
    pub(in crate::store::zookeeper) async fn next(&self) -> Arc<Session> {
        let mut current = self.current.clone();
        let live = |session: &Current| session.as_ref().is_some_and(|session| !session.is_over());
        let session = current.wait_for(live).await.ok().and_then(|session| session.clone());
        match session {
            Some(session) => session,
            // Closed. Waiters learn that by other means.
            None => std::future::pending().await,
        }
    }

    /// Returns a session in which enough of a new lease would be left, within `limit`.
    pub(in crate::store::zookeeper) async fn fresh(&self, limit: Duration) -> Result<Arc<Session>> {
        let session = self.current()?;
        session.refresh(limit).await?;
        Ok(session)
    }
}

/// Ends the last session when it is dropped, also when the runtime ends.
struct LastSession {
    sender: watch::Sender<Current>,
    _ended: DropGuard,
}

impl Drop for LastSession {
    fn drop(&mut self) {
        end_current(&self.sender);
    }
}

/// Ends the session that there is.
fn end_current(sender: &watch::Sender<Current>) {
    let session = sender.borrow().clone();
    if let Some(session) = session {
        session.end();
    }
    run_wakers(|| _ = sender.send_replace(None));
}

/// Opens sessions, one after the other.
struct Keeper {
    address: Address,
    clock: Clock,
    reconnects: Signal,
    refusal: Refusal,
}

impl Keeper {
    /// Keeps the first session, and then the next ones. Without a first, whatever there is has ended in a panic.
    async fn keep_sessions(
        &self,
        sender: &watch::Sender<Current>,
        mut first: Option<Arc<Session>>,
    ) -> Infallible {
        loop {
            let session = match first.take() {
                Some(first) => first,
                None => {
                    Rare::ZooKeeperSessionReplaced.reached();
                    // No task may keep the session, now that it is over.
                    end_current(sender);
                    // The engine renews at once, and learns that its holds are lost.
                    self.reconnects.set();
                    let session = self.open().await;
                    run_wakers(|| _ = sender.send_replace(Some(Arc::clone(&session))));
                    self.reconnects.set();
                    session
                }
            };
            tokio::select! {
                () = session.keep_alive(&self.address, || self.reconnects.set()) => {}
                () = session.clear() => {}
            }
            trace::later(Level::WARN, || {
                // As text: a log that stalls must not keep the session.
                let session = format!("{session:?}");
                move || {
                    tracing::warn!(
                        session,
                        "the session with ZooKeeper has ended, and with it all its leases"
                    )
                }
            });
        }
    }

    /// Opens the next session, however long that takes. A refusal rarely ends soon, so it has longer pauses than a server
    /// that is away.
    async fn open(&self) -> Arc<Session> {
        let session = self.address.session;
        let mut refused = Backoff::new(session / 20, (session / 2).min(LONGEST_PAUSE));
        let mut unavailable = pauses_of_rounds(session);
        loop {
            let error = match Session::open(&self.address, &self.clock).await {
                Ok(session) => {
                    *self.refusal.lock() = None;
                    self.address.outages.answered(&self.address.hosts);
                    return session;
                }
                Err(error) => error,
            };
            let is_refusal = !error.is_unavailable();
            *self.refusal.lock() = is_refusal.then(|| error.clone());
            self.address.outages.failed(&self.address.hosts, Step::Connection, &error);
            let pauses = if is_refusal { &mut refused } else { &mut unavailable };
            tokio::time::sleep(pauses.next()).await;
        }
    }
}
