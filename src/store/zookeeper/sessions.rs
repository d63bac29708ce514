//! The session of the moment: a new one follows on each that ended.

use super::address::Address;
use super::errors::no_session;
use super::link::Pauses;
use super::session::Session;
use super::ticks;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::store::Signal;
use crate::trace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Level;

/// Between two tries for a session that was refused.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

type Current = Option<Arc<Session>>;

#[derive(Clone, Debug)]
pub(super) struct Sessions {
    /// `None` between two, and once closed: a session whose connection is open does not end by itself.
    current: watch::Receiver<Current>,
    pub(super) closed: CancellationToken,
    /// Whether the session of the moment is to be ended on the servers when this is closed.
    empty: Arc<AtomicBool>,
    /// Fires when the last session was left, or its runtime has ended.
    ended: CancellationToken,
}

impl Sessions {
    /// Opens the first session, and keeps one until closed, on the current runtime.
    pub(super) async fn start(address: Address, clock: Clock, reconnects: Signal) -> Result<Self> {
        let first = Session::open(&address, &clock).await?;
        let (sender, current) = watch::channel(Some(Arc::clone(&first)));
        let sessions = Self {
            current,
            closed: CancellationToken::new(),
            empty: Arc::default(),
            ended: CancellationToken::new(),
        };
        let (closed, empty) = (sessions.closed.clone(), Arc::clone(&sessions.empty));
        let last = Last { sender, _ended: sessions.ended.clone().drop_guard() };
        tokio::spawn(async move {
            let keep = keep(&address, &clock, &reconnects, &last.sender, first);
            tokio::select! {
                // Nobody waits for the second.
                _ = async { tokio::join!(keep, ticks::check(&address)) } => {}
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

    /// Lets go of the session of the moment; if it is empty, the servers need not wait for its end.
    pub(super) fn close(&self, empty: bool) {
        self.empty.store(empty, Ordering::Release);
        self.closed.cancel();
    }

    pub(super) async fn until_ended(&self) {
        self.ended.cancelled().await;
    }

    /// The session there is.
    pub(super) fn current(&self) -> Result<Arc<Session>> {
        if self.closed.is_cancelled() {
            return Err(Error::closed());
        }
        let session = self.current.borrow().clone();
        session.filter(|session| !session.is_over()).ok_or_else(no_session)
    }

    /// Waits for a session.
    pub(super) async fn next(&self) -> Arc<Session> {
        let mut current = self.current.clone();
        let live = |session: &Current| session.as_ref().is_some_and(|session| !session.is_over());
        let session = current.wait_for(live).await.ok().and_then(|session| session.clone());
        match session {
            Some(session) => session,
            // Closed; whoever waits is told so otherwise.
            None => std::future::pending().await,
        }
    }

    /// A session in which a lease would be worth having, within `limit`.
    pub(super) async fn fresh(&self, limit: Duration) -> Result<Arc<Session>> {
        let session = self.current()?;
        session.refresh(limit).await?;
        Ok(session)
    }
}

/// Ends the last session, also when the runtime goes.
struct Last {
    sender: watch::Sender<Current>,
    _ended: DropGuard,
}

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(session) = self.sender.send_replace(None) {
            session.end();
        }
    }
}

async fn keep(
    address: &Address,
    clock: &Clock,
    reconnects: &Signal,
    sender: &watch::Sender<Current>,
    mut session: Arc<Session>,
) {
    loop {
        tokio::select! {
            () = session.keep(address, || reconnects.set()) => {}
            () = session.clear() => {}
        }
        trace::later(Level::WARN, || {
            // Its words, not itself: a log that stalls must not keep it.
            let session = format!("{session:?}");
            move || {
                tracing::warn!(
                    session,
                    "the session with ZooKeeper has ended, and with it all its leases"
                )
            }
        });
        // Nobody must keep it, now that it is over.
        sender.send_replace(None);
        drop(session);
        // So that the engine asks at once, and is told.
        reconnects.set();
        session = open(address, clock).await;
        sender.send_replace(Some(Arc::clone(&session)));
        reconnects.set();
    }
}

/// Opens the next session, however long that takes. A refusal rarely ends soon, but servers come back at once.
async fn open(address: &Address, clock: &Clock) -> Arc<Session> {
    let mut refused = Pauses::new(address.session / 20, address.session.max(LONGEST_PAUSE));
    let mut unavailable = Pauses::of_rounds(address.session);
    loop {
        let error = match Session::open(address, clock).await {
            Ok(session) => return session,
            Err(error) => error,
        };
        let pauses = if error.is_unavailable() { &mut unavailable } else { &mut refused };
        trace::later(
            Level::WARN,
            || move || tracing::warn!(%error, "no new session with ZooKeeper yet"),
        );
        tokio::time::sleep(pauses.next()).await;
    }
}
