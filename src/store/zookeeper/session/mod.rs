//! One session with ZooKeeper: the link that carries it, and the writes that prove it alive.
//!
//! # Invariants
//!
//! 1. A session has one link at a time. A request without a link waits for the next.
//! 2. A link to which the servers give another timeout than the session began with is not used, and the session is over:
//!    its holders rely on the first timeout.
//! 3. A session that is over has no link, so the servers end it a timeout later.

mod auth;
pub(super) mod errors;
pub(super) mod examine;
mod link;
mod liveness;
pub(super) mod nodes;
mod session_check;
pub(super) mod sessions;
pub(super) mod url;

use super::tree::directories::{self, Directories};
use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Result};
use crate::store::connect::outage::Step;
use crate::util::panics::run_wakers;
use crate::util::reached::Rare;
use crate::util::trace;
use errors::{Found, classify, find, in_time, no_session, unreachable};
use link::{Link, hosts, opening, pauses_of_rounds, resuming};
use liveness::{SessionLiveness, period};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::Level;
use url::Address;
use uuid::Uuid;
use zookeeper_client::{Acls, CreateMode, Error as ZkError, SessionInfo};

const CONNECT_TIMEOUT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(15));
/// The number of directories that are deleted together.
const CLEARED_AT_ONCE: usize = 100;

/// A session, and all that is needed to keep it alive.
pub(super) struct Session {
    pub(super) info: SessionInfo,
    /// `None` between two links.
    link: watch::Sender<Option<Arc<Link>>>,
    /// The permissions of the nodes that it makes.
    pub(super) acls: Acls<'static>,
    /// The node that is written to prove the session alive.
    proof: String,
    clock: Clock,
    timeout: Duration,
    liveness: watch::Sender<SessionLiveness>,
    /// Is notified when a request needs a proof now.
    proof_requested: Notify,
    pub(super) directories: Directories,
    /// Fires when the session is over.
    over: CancellationToken,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.info.id()).finish()
    }
}

impl Session {
    /// Opens a session at the first server that accepts.
    pub(super) async fn open(address: &Address, clock: &Clock) -> Result<Arc<Self>> {
        let limit = address.session.clamp(CONNECT_TIMEOUT.0, CONNECT_TIMEOUT.1);
        let until = clock.now() + limit;
        let mut pauses = pauses_of_rounds(address.session);
        loop {
            let mut failure = no_session();
            for host in hosts(address, None) {
                match Self::open_at(host, address, clock).await {
                    Err(error) if error.is_unavailable() => failure = error,
                    verdict => return verdict,
                }
            }
            let pause = pauses.next();
            if clock.now() + pause >= until {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn open_at(host: &str, address: &Address, clock: &Clock) -> Result<Arc<Self>> {
        let created = clock.now();
        let link = match Link::open(host, address).await {
            Ok(link) => Arc::new(link),
            Err(error) => return Err(unreachable(error, host).await),
        };
        let limit = opening(address.session);
        match in_time(limit, Self::begin(&link, address, created, clock)).await {
            Ok(session) => {
                link.keep_session();
                session.link.send_replace(Some(link));
                Ok(Arc::new(session))
            }
            Err(error) => {
                // The session is empty, so it need not last until its timeout.
                let _ = tokio::time::timeout(limit, link.close()).await;
                Err(error)
            }
        }
    }

    async fn begin(
        link: &Link,
        address: &Address,
        created: Instant,
        clock: &Clock,
    ) -> Result<Self> {
        let client = &link.client;
        let timeout = address.session;
        check_timeout(timeout, client.session_timeout())?;
        let acls = address.user.as_ref().map_or(Acls::anyone_all(), |_| Acls::creator_all());
        for path in [address.names.locks(), address.names.sessions()] {
            // An operator may have made it below a directory where this user may not create nodes.
            if client.check_stat(&path).await.map_err(classify)?.is_none() {
                let forever = CreateMode::Persistent.with_acls(acls);
                client.mkdir(&path, &forever).await.map_err(classify)?;
            }
        }
        let proof = format!("{}/{}", address.names.sessions(), Uuid::new_v4());
        let sent = clock.now();
        let while_alive = CreateMode::Ephemeral.with_acls(acls);
        client.create(&proof, b"", &while_alive).await.map_err(classify)?;
        let mut liveness = SessionLiveness::new(timeout, created);
        liveness.acknowledge(sent, clock.now());
        Ok(Self {
            info: client.session().clone(),
            link: watch::Sender::new(None),
            acls,
            proof,
            clock: clock.clone(),
            timeout,
            liveness: watch::Sender::new(liveness),
            proof_requested: Notify::new(),
            directories: Directories::default(),
            over: CancellationToken::new(),
        })
    }

    /// Keeps the session connected and proven until it is over. Calls `reconnected` after each reconnect.
    pub(super) async fn keep_alive(&self, address: &Address, reconnected: impl Fn()) {
        let mut again = false;
        while let Some(link) = self.carrier() {
            if !self.prove_over(&link, again).await {
                break;
            }
            link.cut();
            self.carry_over(None);
            let Some(next) = self.connect_again(address, &link.host).await else { break };
            self.carry_over(Some(Arc::new(next)));
            reconnected();
            again = true;
        }
        self.end();
    }

    /// Keeps the session proven over a link. Returns true if the link is lost, and false if the session is over.
    async fn prove_over(&self, link: &Link, mut wanted: bool) -> bool {
        let mut lost = pin!(link.until_lost());
        let mut failed_at: Option<Instant> = None;
        loop {
            let due = self.liveness.borrow().next(wanted);
            let due = failed_at.map_or(due, |at| at + self.timeout / 20);
            tokio::select! {
                () = &mut lost => return true,
                () = self.proof_requested.notified() => {
                    wanted = true;
                    continue;
                }
                () = self.clock.sleep_until(due) => {}
            }
            match self.write_proof(link).await {
                Ok(Found::Yes(())) => (wanted, failed_at) = (false, None),
                // Only the end of the session deletes it.
                Ok(Found::NoNode) => return false,
                Err(error) => {
                    trace::later(
                        Level::DEBUG,
                        || move || tracing::debug!(%error, "no proof of the session"),
                    );
                    failed_at = Some(self.clock.now());
                }
            }
        }
    }

    /// Writes to the node that proves the session alive.
    async fn write_proof(&self, link: &Link) -> Result<Found<()>> {
        let sent = self.clock.now();
        let write = find(link.client.set_data(&self.proof, b"", None));
        if let Found::NoNode = in_time(period(self.timeout), write).await? {
            return Ok(Found::NoNode);
        }
        let answered = self.clock.now();
        run_wakers(|| {
            self.liveness.send_modify(|liveness| liveness.acknowledge(sent, answered));
        });
        Ok(Found::Yes(()))
    }

    /// Reconnects, however long that takes. Returns `None` when the session is over.
    async fn connect_again(&self, address: &Address, lost: &str) -> Option<Link> {
        let mut pauses = pauses_of_rounds(self.timeout);
        for round in 0.. {
            let limit = resuming(self.timeout, round);
            let mut failure = no_session();
            for host in hosts(address, Some(lost)) {
                let sent = self.clock.now();
                match Link::resume(host, address, self.info.clone(), limit).await {
                    Ok(link) if self.is_resumed_by(&link) => {
                        let answered = self.clock.now();
                        run_wakers(|| {
                            self.liveness.send_modify(|liveness| liveness.resumed(sent, answered));
                        });
                        address.outages.answered(&address.hosts);
                        Rare::ZooKeeperSessionResumed.reached();
                        return Some(link);
                    }
                    Ok(_) => return None,
                    Err(ZkError::SessionExpired | ZkError::AuthFailed) => return None,
                    Err(error) => failure = classify(error),
                }
            }
            address.outages.failed(&address.hosts, Step::Connection, &failure);
            tokio::time::sleep(pauses.next()).await;
        }
        None
    }

    /// Returns whether the link carries this session with its first timeout.
    fn is_resumed_by(&self, link: &Link) -> bool {
        let timeout = self.timeout;
        let given = link.client.session_timeout();
        if given != timeout {
            trace::later(Level::WARN, || {
                let session = format!("{self:?}");
                move || {
                    tracing::warn!(
                        session,
                        "the servers give {given:?} now, and not {timeout:?} any more: the session is given up"
                    );
                }
            });
        }
        given == timeout && link.client.session_id() == self.info.id()
    }

    /// Deletes the directories of names that are no longer used, forever.
    pub(super) async fn clear(&self) {
        loop {
            tokio::time::sleep(directories::PERIOD).await;
            for due in self.directories.due().chunks(CLEARED_AT_ONCE) {
                let Ok(link) = self.link().await else { return };
                // All are sent together. Directories that are in use, gone, or another user's stay as they are.
                let deleted: Vec<_> =
                    due.iter().map(|directory| link.client.delete(directory, None)).collect();
                for deleted in deleted {
                    let _ = deleted.await;
                }
            }
        }
    }

    /// Returns the link that carries the session now.
    pub(super) fn carrier(&self) -> Option<Arc<Link>> {
        self.link.borrow().clone()
    }

    /// Waits for a link, and returns it.
    pub(super) async fn link(&self) -> Result<Arc<Link>> {
        if let Some(link) = self.carrier() {
            return Ok(link);
        }
        let mut links = self.link.subscribe();
        tokio::select! {
            () = self.until_over() => Err(no_session()),
            link = links.wait_for(Option::is_some) => {
                link.ok().and_then(|link| link.clone()).ok_or_else(no_session)
            }
        }
    }

    /// Carries the session over another link from now on. Requests of callers wait for it.
    fn carry_over(&self, link: Option<Arc<Link>>) {
        run_wakers(|| _ = self.link.send_replace(link));
    }

    /// Makes the session over in this process, and returns its link.
    fn finish(&self) -> Option<Arc<Link>> {
        let link = self.carrier();
        run_wakers(|| self.over.cancel());
        self.carry_over(None);
        link
    }

    /// Makes the session over in this process. The servers end it by its timeout.
    pub(super) fn end(&self) {
        if let Some(link) = self.finish() {
            link.cut();
        }
    }

    /// Ends the session, on the servers too.
    pub(super) async fn close(&self) {
        if let Some(link) = self.finish() {
            link.close().await;
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    pub(super) async fn until_over(&self) {
        self.over.cancelled().await;
    }

    /// Returns the instant to report as the time of sending of a request made at `asked`.
    pub(super) fn confirmed(&self, asked: Instant) -> Instant {
        self.liveness.borrow().confirmed(asked)
    }

    /// Returns the round-trip time of the last write.
    pub(super) fn round_trip(&self) -> Duration {
        self.liveness.borrow().round_trip()
    }

    /// Makes sure that a recent write was acknowledged, and if possible that a renewal now lasts for a while. Leaves a
    /// round trip and a half of the `limit` to the caller.
    pub(super) async fn confirm(&self, limit: Duration) -> Result<()> {
        let limit = limit.saturating_sub(self.round_trip() * 3 / 2);
        if self.prove(limit / 2, SessionLiveness::is_new).await.is_ok() {
            return Ok(());
        }
        // True until the answer to the next write is overdue.
        let on_time =
            |liveness: &SessionLiveness, now| now < liveness.due() + liveness.round_trip() * 3 / 2;
        self.prove(limit / 2, on_time).await
    }

    /// Makes sure that enough of a lease would be left if it were granted now.
    pub(super) async fn refresh(&self, limit: Duration) -> Result<()> {
        self.prove(limit, SessionLiveness::is_fresh).await
    }

    async fn prove(
        &self,
        limit: Duration,
        enough: impl Fn(&SessionLiveness, Instant) -> bool,
    ) -> Result<()> {
        let mut liveness = self.liveness.subscribe();
        if enough(&liveness.borrow_and_update(), self.clock.now()) {
            return if self.is_over() { Err(no_session()) } else { Ok(()) };
        }
        self.proof_requested.notify_one();
        let proven = liveness.wait_for(|liveness| enough(liveness, self.clock.now()));
        tokio::select! {
            () = self.until_over() => Err(no_session()),
            proven = tokio::time::timeout(limit, proven) => match proven {
                Ok(Ok(_)) => Ok(()),
                _ => Err(no_session()),
            },
        }
    }

    /// Repeats `work` until it succeeds, or until the session is over, which makes it pointless.
    pub(super) async fn retry_until_done<F>(&self, mut work: impl FnMut() -> F)
    where
        F: Future<Output = Result<()>>,
    {
        loop {
            match in_time(self.timeout, work()).await {
                Ok(()) => return,
                Err(error) => trace::later(
                    Level::DEBUG,
                    || move || tracing::debug!(%error, "not cleaned up yet"),
                ),
            }
            tokio::select! {
                () = self.until_over() => return,
                () = tokio::time::sleep(self.timeout / 20) => {}
            }
        }
    }
}

fn check_timeout(asked: Duration, given: Duration) -> Result<()> {
    let (bound, setting) = match given.cmp(&asked) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => ("at most", "maxSessionTimeout"),
        std::cmp::Ordering::Greater => ("at least", "minSessionTimeout"),
    };
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "a time to live of {asked:?} was asked for, but this server gives {bound} {given:?}; choose ttl \
             accordingly, or change the server's {setting}"
        ),
    ))
}
