//! The session of the moment: a new one follows on each that ended.

use super::address::Address;
use super::errors::no_session;
use super::session::Session;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::trace;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::Level;

type Current = Option<Arc<Session>>;

#[derive(Clone, Debug)]
pub(super) struct Sessions {
    /// `None` once closed: a session whose connection is open does not end by itself.
    current: watch::Receiver<Current>,
    pub(super) closed: CancellationToken,
}

impl Sessions {
    /// Opens the first session, and keeps one until closed, on the current runtime.
    pub(super) async fn start(
        address: Address,
        clock: Clock,
        reconnects: Arc<Notify>,
    ) -> Result<Self> {
        let first = Session::open(&address, &clock).await?;
        let (sender, current) = watch::channel(Some(Arc::clone(&first)));
        let closed = CancellationToken::new();
        tokio::spawn({
            let closed = closed.clone();
            async move {
                let keep = keep(&address, &clock, &reconnects, &sender, first);
                tokio::select! {
                    () = keep => {}
                    () = closed.cancelled() => {}
                }
                if let Some(session) = sender.send_replace(None) {
                    session.end();
                }
            }
        });
        Ok(Self { current, closed })
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

async fn keep(
    address: &Address,
    clock: &Clock,
    reconnects: &Notify,
    sender: &watch::Sender<Current>,
    mut session: Arc<Session>,
) {
    loop {
        session.keep(|| reconnects.notify_one()).await;
        let ended = Arc::clone(&session);
        trace::later(Level::WARN, || {
            move || {
                tracing::warn!(session = ?ended, "the session with ZooKeeper has ended, and with it all its leases");
            }
        });
        // So that the engine asks at once, and is told.
        reconnects.notify_one();
        drop(session);
        session = loop {
            match Session::open(address, clock).await {
                Ok(session) => break session,
                Err(error) => trace::later(
                    Level::WARN,
                    || move || tracing::warn!(%error, "no new session with ZooKeeper yet"),
                ),
            }
            tokio::time::sleep(address.session / 20).await;
        };
        sender.send_replace(Some(Arc::clone(&session)));
        reconnects.notify_one();
    }
}
