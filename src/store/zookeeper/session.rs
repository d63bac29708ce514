//! One session with ZooKeeper: its connection, and the writes that prove it alive.

use super::address::Address;
use super::errors::{Found, find, in_time, no_session, sorted};
use super::names::{Child, Who, line};
use super::proof::{Proof, period};
use super::user::User;
use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Result};
use crate::trace;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::Level;
use uuid::Uuid;
use zookeeper_client::{Acls, Client, CreateMode, Error as ZkError, SessionState};

const CONNECT_TIMEOUT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(15));

pub(super) struct Session {
    pub(super) client: Client,
    /// Who has rights to what it makes.
    acls: Acls<'static>,
    /// The node that is written to.
    heartbeat: String,
    clock: Clock,
    timeout: Duration,
    proof: watch::Sender<Proof>,
    /// Somebody needs a proof now.
    asked: Notify,
    /// Fires when nothing of this session counts any more.
    over: CancellationToken,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.client.session_id()).finish()
    }
}

impl Session {
    pub(super) async fn open(address: &Address, clock: &Clock) -> Result<Arc<Self>> {
        let limit = address.session.clamp(CONNECT_TIMEOUT.0, CONNECT_TIMEOUT.1);
        in_time(limit, Self::connect(address, clock)).await
    }

    async fn connect(address: &Address, clock: &Clock) -> Result<Arc<Self>> {
        let timeout = address.session;
        let created = clock.now();
        // Detached: a handle that is closed leaves its leases to their time to live.
        let mut connector = Client::connector().with_session_timeout(timeout).with_detached();
        let mut acls = Acls::anyone_all();
        if let Some(user) = &address.user {
            connector = connector.with_auth(User::SCHEME, user.secret());
            acls = Acls::creator_all();
        }
        let client = connector.connect(&address.hosts).await.map_err(sorted)?;
        check_timeout(timeout, client.session_timeout())?;
        for path in [address.names.locks(), address.names.sessions()] {
            // An operator may have made it in a directory where this user may make nothing.
            if client.check_stat(&path).await.map_err(sorted)?.is_none() {
                let forever = CreateMode::Persistent.with_acls(acls);
                client.mkdir(&path, &forever).await.map_err(sorted)?;
            }
        }
        let heartbeat = format!("{}/{}", address.names.sessions(), Uuid::new_v4());
        let sent = clock.now();
        let while_alive = CreateMode::Ephemeral.with_acls(acls);
        client.create(&heartbeat, b"", &while_alive).await.map_err(sorted)?;
        let mut proof = Proof::new(timeout, created);
        proof.acknowledge(sent, clock.now());
        Ok(Arc::new(Self {
            client,
            acls,
            heartbeat,
            clock: clock.clone(),
            timeout,
            proof: watch::Sender::new(proof),
            asked: Notify::new(),
            over: CancellationToken::new(),
        }))
    }

    /// Keeps it proven until it is over; tells of each time that it was connected anew.
    pub(super) async fn keep(&self, reconnected: impl Fn()) {
        let mut states = self.client.state_watcher();
        let mut state = self.client.state();
        let mut failed_at: Option<Instant> = None;
        let mut wanted = false;
        // It may have ended before anybody looked.
        while !state.is_terminated() {
            let due = {
                let proof = self.proof.borrow();
                let usual = proof.last_sent() + period(self.timeout);
                if wanted { usual.min(proof.due()) } else { usual }
            };
            let due = failed_at.map_or(due, |at| at + self.timeout / 20);
            let connected = state == SessionState::SyncConnected;
            tokio::select! {
                changed = states.changed() => {
                    state = changed;
                    if state == SessionState::SyncConnected {
                        reconnected();
                        (wanted, failed_at) = (true, None);
                    }
                    continue;
                }
                () = self.asked.notified() => {
                    wanted = true;
                    continue;
                }
                () = self.clock.sleep_until(due), if connected => {}
            }
            match self.beat().await {
                Ok(Found::Yes(())) => (wanted, failed_at) = (false, None),
                // Nobody but the end of the session deletes it.
                Ok(Found::NoNode) => break,
                Err(error) => {
                    trace::later(
                        Level::DEBUG,
                        || move || tracing::debug!(%error, "no proof of the session"),
                    );
                    failed_at = Some(self.clock.now());
                }
            }
        }
        self.end();
    }

    /// From now on nothing of it counts.
    pub(super) fn end(&self) {
        self.over.cancel();
    }

    async fn beat(&self) -> Result<Found<()>> {
        let sent = self.clock.now();
        let write = find(self.client.set_data(&self.heartbeat, b"", None));
        if let Found::NoNode = in_time(period(self.timeout), write).await? {
            return Ok(Found::NoNode);
        }
        let answered = self.clock.now();
        self.proof.send_modify(|proof| proof.acknowledge(sent, answered));
        Ok(Found::Yes(()))
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    pub(super) async fn until_over(&self) {
        self.over.cancelled().await;
    }

    /// What to call the time of sending for who asked at `asked`.
    pub(super) fn confirmed(&self, asked: Instant) -> Instant {
        self.proof.borrow().confirmed(asked)
    }

    /// Makes sure that a recent write was acknowledged; if possible, that renewing now is enough for a while.
    pub(super) async fn confirm(&self, limit: Duration) -> Result<()> {
        if self.prove(limit / 2, Proof::is_new).await.is_ok() {
            return Ok(());
        }
        self.prove(limit / 2, |proof, now| now < proof.due()).await
    }

    /// Makes sure that a lease granted now would be worth having.
    pub(super) async fn refresh(&self, limit: Duration) -> Result<()> {
        self.prove(limit, Proof::is_fresh).await
    }

    async fn prove(&self, limit: Duration, enough: impl Fn(&Proof, Instant) -> bool) -> Result<()> {
        let mut proof = self.proof.subscribe();
        if enough(&proof.borrow_and_update(), self.clock.now()) {
            return if self.is_over() { Err(no_session()) } else { Ok(()) };
        }
        self.asked.notify_one();
        let proven = proof.wait_for(|proof| enough(proof, self.clock.now()));
        tokio::select! {
            () = self.until_over() => Err(no_session()),
            proven = tokio::time::timeout(limit, proven) => match proven {
                Ok(Ok(_)) => Ok(()),
                _ => Err(no_session()),
            },
        }
    }

    /// The nodes in a directory, in their order; none if there is no directory.
    pub(super) async fn line(&self, directory: &str) -> Result<Vec<Child>> {
        match find(self.client.list_children(directory)).await? {
            Found::Yes(children) => Ok(line(children)),
            Found::NoNode => Ok(Vec::new()),
        }
    }

    /// As [`Session::line`], with all that was written before, wherever.
    pub(super) async fn line_now(&self, directory: &str) -> Result<Vec<Child>> {
        let sync = self.client.sync(directory);
        // Both leave together, and are answered in this order.
        let list = self.line(directory);
        let (sync, list) = tokio::join!(sync, list);
        match sync {
            Ok(()) | Err(ZkError::NoNode) => list,
            Err(error) => Err(sorted(error)),
        }
    }

    /// Puts a node at the end of a line; returns its path and its creation's transaction.
    pub(super) async fn enqueue(
        &self,
        directory: &str,
        who: Who,
        data: &str,
    ) -> Result<(String, u64)> {
        let prefix = who.path(directory);
        let in_line = CreateMode::EphemeralSequential.with_acls(self.acls);
        loop {
            match find(self.client.create(&prefix, data.as_bytes(), &in_line)).await? {
                Found::Yes((stat, sequence)) => {
                    return Ok((format!("{prefix}{sequence}"), czxid(stat.czxid)));
                }
                Found::NoNode => self.make(directory).await?,
            }
        }
    }

    /// The creation's transaction of a node, if it is there and of this session.
    ///
    /// A session may be given up here before the servers end it, and with it its nodes.
    pub(super) async fn has_made(&self, path: &str) -> Result<Option<u64>> {
        let stat = self.client.check_stat(path).await.map_err(sorted)?;
        let stat = stat.filter(|stat| stat.ephemeral_owner == self.client.session_id().0);
        Ok(stat.map(|stat| czxid(stat.czxid)))
    }

    /// Makes the directory of a lock.
    pub(super) async fn make(&self, directory: &str) -> Result<()> {
        let while_used = CreateMode::Container.with_acls(self.acls);
        match self.client.create(directory, b"", &while_used).await {
            Ok(_) | Err(ZkError::NodeExists) => Ok(()),
            // Somebody has emptied the tree.
            Err(ZkError::NoNode) => self.client.mkdir(directory, &while_used).await.map_err(sorted),
            Err(error) => Err(sorted(error)),
        }
    }

    /// Whether it was there.
    pub(super) async fn delete(&self, path: &str) -> Result<bool> {
        Ok(matches!(find(self.client.delete(path, None)).await?, Found::Yes(())))
    }

    /// Whether it was there.
    pub(super) async fn write(&self, path: &str, data: &str) -> Result<bool> {
        let write = self.client.set_data(path, data.as_bytes(), None);
        Ok(matches!(find(write).await?, Found::Yes(_)))
    }

    /// Deletes all nodes of one owner, wherever the answers to their creation went; whether there were any.
    pub(super) async fn sweep(&self, directory: &str, who: Who) -> Result<bool> {
        let mut found = false;
        for child in self.line_now(directory).await?.iter().filter(|child| child.is_of(who)) {
            found |= self.delete(&format!("{directory}/{}", child.name)).await?;
        }
        Ok(found)
    }

    /// Repeats what must be done in the end, until it is, or until the session is over and with it what is to
    /// be done.
    pub(super) async fn see_through<F>(&self, mut work: impl FnMut() -> F)
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

    /// Ends it when it has nothing more to keep: the other side forgets it a time-out later.
    pub(super) async fn retire(&self) {
        let _ = self.delete(&self.heartbeat).await;
    }
}

/// Transaction numbers are positive.
fn czxid(czxid: i64) -> u64 {
    u64::try_from(czxid).unwrap_or_default()
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
