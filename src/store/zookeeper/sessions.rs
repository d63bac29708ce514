//! Keeps a current session: when one has ended, opens the next.

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

/// The longest pause between two tries after a refusal.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

type Current = Option<Arc<Session>>;

/// The current session, and those to come.
#[derive(Clone, Debug)]
pub(super) struct Sessions {
    /// `None` between two sessions, and once closed: a session with an open connection would not end by itself.
    current: watch::Receiver<Current>,
    pub(super) closed: CancellationToken,
    /// Whether the servers should end the current session when this is closed.
    empty: Arc<AtomicBool>,
    /// Fires when the last session has ended, or its runtime.
    ended: CancellationToken,
}

impl Sessions {
    /// Opens the first session on the current runtime, and keeps a current one until closed.
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
        let last = LastSession { sender, _ended: sessions.ended.clone().drop_guard() };
        tokio::spawn(async move {
            let keep = keep_sessions(&address, &clock, &reconnects, &last.sender, first);
            tokio::select! {
                // Nothing waits for the second.
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

    /// Gives up the current session. If it is `empty`, the servers end it at once.
    pub(super) fn close(&self, empty: bool) {
        self.empty.store(empty, Ordering::Release);
        self.closed.cancel();
    }

    pub(super) async fn until_ended(&self) {
        self.ended.cancelled().await;
    }

    /// Returns the current session.
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
            // Closed. Waiters learn that by other means.
            None => std::future::pending().await,
        }
    }

    /// Returns a session in which enough of a new lease would be left, within `limit`.
    pub(super) async fn fresh(&self, limit: Duration) -> Result<Arc<Session>> {
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
        if let Some(session) = self.sender.send_replace(None) {
            session.end();
        }
    }
}

async fn keep_sessions(
    address: &Address,
    clock: &Clock,
    reconnects: &Signal,
    sender: &watch::Sender<Current>,
    mut session: Arc<Session>,
) {
    loop {
        tokio::select! {
            () = session.keep_alive(address, || reconnects.set()) => {}
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
        // No task may keep the session, now that it is over.
        sender.send_replace(None);
        drop(session);
        // The engine renews at once, and learns that its holds are lost.
        reconnects.set();
        session = open(address, clock).await;
        sender.send_replace(Some(Arc::clone(&session)));
        reconnects.set();
    }
}

/// Opens the next session, however long that takes. A refusal rarely ends soon, so it has longer pauses than a server that
/// is away.
async fn open(address: &Address, clock: &Clock) -> Arc<Session> {
    let mut refused = Pauses::new(address.session / 20, address.session.max(LONGEST_PAUSE));
    let mut unavailable = Pauses::of_rounds(address.session);
    loop {
        let error = match Session::open(address, clock).await {
            Ok(session) => {
                address.outages.answered(&address.hosts);
                return session;
            }
            Err(error) => error,
        };
        let pauses = if error.is_unavailable() {
            address.outages.failed(&address.hosts, &error);
            &mut unavailable
        } else {
            trace::later(
                Level::WARN,
                || move || tracing::warn!(%error, "no new session with ZooKeeper yet"),
            );
            &mut refused
        };
        tokio::time::sleep(pauses.next()).await;
    }
}
