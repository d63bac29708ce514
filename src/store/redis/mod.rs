//! Leases on one Redis server, laid out as Redisson lays out its `RLock`.
//!
//! The key (prefix + name) is a hash of one field, token -> hold count, with a time to live. Acquires
//! and releases go through one lane: while a call is in flight, what arrives waits and
//! leaves as one call. Renewals and subscriptions have connections of their own.

mod connect;
mod replies;
mod scripts;
mod wakeups;

pub(crate) use connect::Address;

use super::{
    Acquire, Acquired, Capabilities, Fencing, Holding, Mode, Name, Release, Released, Renewal,
    Renewed, Store, StoreFuture, Token, Wakeups,
};
use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Fate, Result};
use async_trait::async_trait;
use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface};
use replies::{Code, Element};
use scripts::{BATCH, Call, FORCE, INSPECT, RENEW, Script};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;
use wakeups::Hub;

/// How many items one call carries: 100 keep the server's stall near a quarter of a millisecond.
const BATCH_SIZE: usize = 100;

pub(crate) struct RedisStore {
    clock: Clock,
    keys: Keys,
    attempt: Duration,
    lane: mpsc::UnboundedSender<Item>,
    locks: Link,
    renewals: Link,
    hub: Hub,
    reconnects: Arc<Notify>,
    /// Where the connections live, and all waiting for them happens.
    runtime: Handle,
}

/// One request in the lane.
enum Item {
    Acquire(Acquire, oneshot::Sender<Result<Acquired>>),
    Release(Release, oneshot::Sender<Result<Released>>),
}

/// From names to what Redis sees; Redisson's derivations, to the byte.
#[derive(Clone, Debug)]
struct Keys {
    prefix: String,
}

impl Keys {
    fn lock(&self, name: &Name) -> String {
        format!("{}{name}", self.prefix)
    }

    fn fence(&self, name: &Name) -> String {
        derived("redisson_lock_token", &self.lock(name))
    }

    fn channel(&self, name: &Name) -> String {
        derived("redisson_lock__channel", &self.lock(name))
    }
}

fn derived(prefix: &str, key: &str) -> String {
    if key.contains('{') {
        format!("{prefix}:{key}")
    } else {
        format!("{prefix}:{{{key}}}")
    }
}

/// A connection for scripts.
#[derive(Clone)]
struct Link {
    client: Client,
    reconnecting: Arc<AtomicBool>,
    attempt: Duration,
}

impl Link {
    fn new(client: Client, attempt: Duration) -> Self {
        Self {
            client,
            reconnecting: Arc::default(),
            attempt,
        }
    }

    async fn run(
        &self,
        script: &'static Script,
        call: &Call,
        timeout: Duration,
    ) -> Result<Vec<Element>> {
        let result = script.run(&self.client, call, timeout).await;
        if let Err(error) = &result
            && error.is_unavailable()
            && error.fate() == Fate::Unknown
        {
            self.renew_connection();
        }
        result
    }

    /// After a time-out the connection may be half dead, and fred may not notice while commands go out.
    fn renew_connection(&self) {
        if self.reconnecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let link = self.clone();
        tokio::spawn(async move {
            // On a stalled server this itself hangs; nobody waits for it.
            let _ = timeout(link.attempt * 2, link.client.force_reconnection()).await;
            link.reconnecting.store(false, Ordering::Release);
        });
    }
}

impl RedisStore {
    /// Connects on the current runtime and tries out what locks will need.
    pub(crate) async fn connect(address: Address, clock: Clock) -> Result<Self> {
        let attempt = address.attempt;
        let locks = Link::new(address.client().await?, attempt);
        let renewals = Link::new(address.client().await?, attempt);
        let hub = Hub::start(address.subscriber().await?, attempt);
        let keys = Keys {
            prefix: address.prefix.clone(),
        };
        let (lane, inbox) = mpsc::unbounded_channel();
        tokio::spawn(drive(locks.clone(), keys.clone(), clock.clone(), inbox));
        let reconnects = Arc::new(Notify::new());
        tokio::spawn(tell_reconnects(
            renewals.client.clone(),
            Arc::clone(&reconnects),
        ));
        let runtime = Handle::current();
        let store = Self {
            clock,
            keys,
            attempt,
            lane,
            locks,
            renewals,
            hub,
            reconnects,
            runtime,
        };
        if let Err(error) = store.try_out().await {
            store.close().await;
            return Err(error);
        }
        Ok(store)
    }

    /// Takes a lock of a name of its own, renews it and gives it back, so that a missing right shows at the
    /// start. A user that may not touch this key, but others, passes.
    async fn try_out(&self) -> Result<()> {
        let name = Name::new(&format!("leasehold-probe:{}", uuid::Uuid::new_v4()))?;
        let token = Token::new(uuid::Uuid::new_v4(), 0);
        let (mode, count, timeout) = (Mode::Exclusive, 1, self.attempt);
        let ttl = Duration::from_secs(5);
        // The shortest memory: the fence's key is gone a millisecond later.
        let fencing = Some(Fencing {
            block: 1,
            retention: Some(Duration::from_millis(1)),
        });
        let acquire = Acquire {
            name: name.clone(),
            token,
            mode,
            count,
            ttl,
            fencing,
            timeout,
        };
        match self.acquire(acquire).await {
            Err(error)
                if error.to_string().contains("key") && error.kind() == ErrorKind::Denied =>
            {
                tracing::debug!(%error, "rights not tried out");
                return Ok(());
            }
            result => drop(result?),
        }
        let renewal = Renewal {
            name: name.clone(),
            token,
            ttl,
            fence_retention: None,
        };
        let renewed = self.renew(vec![renewal], timeout).await;
        let released = self
            .release(Release {
                name,
                token,
                count: 0,
                timeout,
            })
            .await;
        renewed?.verdicts.into_iter().collect::<Result<Vec<_>>>()?;
        released.map(drop)
    }

    fn send<T: Send + 'static>(
        &self,
        item: impl FnOnce(oneshot::Sender<Result<T>>) -> Item,
    ) -> StoreFuture<T> {
        let (sender, verdict) = oneshot::channel();
        // If the lane has gone, the item is dropped with its sender, which tells the receiver.
        let _ = self.lane.send(item(sender));
        Box::pin(async move { verdict.await.unwrap_or_else(|_| Err(gone())) })
    }

    /// Runs on the engine's runtime, whatever that of the caller is like.
    async fn at_home<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.runtime
            .spawn(work)
            .await
            .unwrap_or_else(|_| Err(gone()))
    }
}

fn gone() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the connection to the server has been closed",
    )
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither hosts nor credentials.
        f.debug_struct("RedisStore")
            .field("prefix", &self.keys.prefix)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for RedisStore {
    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            renewal_batch: BATCH_SIZE,
            ..Capabilities::default()
        }
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        self.send(|sender| Item::Acquire(request, sender))
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        self.send(|sender| Item::Release(request, sender))
    }

    fn renew(&self, batch: Vec<Renewal>, timeout: Duration) -> StoreFuture<Renewed> {
        let (link, clock) = (self.renewals.clone(), self.clock.clone());
        let call = self.keys.renewal(&batch);
        Box::pin(async move {
            let sent = clock.now();
            let reply = link.run(&RENEW, &call, timeout).await?;
            let verdicts = reply
                .iter()
                .map(|element| match element.code()? {
                    Code::Yes => Ok(None),
                    Code::Absent(absence) => Ok(Some(absence)),
                    Code::No => Err(replies::nonsense()),
                })
                .collect();
            Ok(Renewed { sent, verdicts })
        })
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Holding>> {
        let mut call = Call::default();
        call.key(self.keys.lock(name));
        let (link, attempt) = (self.locks.clone(), self.attempt);
        self.at_home(async move {
            let reply = link.run(&INSPECT, &call, attempt).await?;
            replies::holding(&reply)
        })
        .await
    }

    async fn force_release(&self, name: &Name) -> Result<bool> {
        let mut call = Call::default();
        call.key(self.keys.lock(name));
        call.text(self.keys.channel(name));
        let (link, attempt) = (self.locks.clone(), self.attempt);
        self.at_home(async move {
            match link.run(&FORCE, &call, attempt).await?.first() {
                Some(Element::Int(deleted)) => Ok(*deleted > 0),
                _ => Err(replies::nonsense()),
            }
        })
        .await
    }

    async fn subscribe(&self, name: &Name) -> Result<Option<Wakeups>> {
        self.hub.subscribe(self.keys.channel(name)).await.map(Some)
    }

    fn reconnects(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.reconnects))
    }

    async fn close(&self) {
        for client in [&self.locks.client, &self.renewals.client] {
            let _ = timeout(self.attempt, client.quit()).await;
        }
        self.hub.close(self.attempt).await;
    }
}

/// Sends what is in the lane: one call in flight, up to a hundred items in it.
async fn drive(link: Link, keys: Keys, clock: Clock, mut inbox: mpsc::UnboundedReceiver<Item>) {
    let mut items = Vec::with_capacity(BATCH_SIZE);
    while inbox.recv_many(&mut items, BATCH_SIZE).await > 0 {
        // An acquire that nobody waits for was never sent: nothing is to be undone.
        items.retain(|item| !matches!(item, Item::Acquire(_, sender) if sender.is_closed()));
        let timeout = items.iter().map(Item::timeout).max().unwrap_or_default();
        let call = keys.batch(&items);
        if items.is_empty() {
            continue;
        }
        let sent = clock.now();
        match link.run(&BATCH, &call, timeout).await {
            Ok(reply) if reply.len() == items.len() * 2 => {
                for (item, reply) in items.drain(..).zip(reply.chunks(2)) {
                    item.answer(sent, reply);
                }
            }
            Ok(_) => items
                .drain(..)
                .for_each(|item| item.fail(replies::nonsense())),
            Err(error) => items.drain(..).for_each(|item| item.fail(error.clone())),
        }
    }
}

async fn tell_reconnects(client: Client, reconnects: Arc<Notify>) {
    use tokio::sync::broadcast::error::RecvError;

    let mut events = client.reconnect_rx();
    while !matches!(events.recv().await, Err(RecvError::Closed)) {
        reconnects.notify_one();
    }
}

impl Item {
    fn timeout(&self) -> Duration {
        match self {
            Item::Acquire(request, _) => request.timeout,
            Item::Release(request, _) => request.timeout,
        }
    }

    fn answer(self, sent: Instant, reply: &[Element]) {
        // A receiver that has gone has left the verdict to nobody: see Store's contract.
        match self {
            Item::Acquire(request, sender) => drop(sender.send(acquired(&request, sent, reply))),
            Item::Release(_, sender) => drop(sender.send(released(reply))),
        }
    }

    fn fail(self, error: Error) {
        match self {
            Item::Acquire(_, sender) => drop(sender.send(Err(error))),
            Item::Release(_, sender) => drop(sender.send(Err(error))),
        }
    }
}

fn acquired(request: &Acquire, sent: Instant, reply: &[Element]) -> Result<Acquired> {
    let [code, value] = reply else {
        return Err(replies::nonsense());
    };
    let code = code.code()?;
    let value = value.int()?;
    match code {
        Code::Yes => {
            let fence = u64::try_from(value).map_err(|_| replies::nonsense())?;
            let fence = request.fencing.is_some().then_some(fence);
            Ok(Acquired::Granted { sent, fence })
        }
        Code::No => Ok(Acquired::Held {
            remaining: replies::remaining(value),
        }),
        Code::Absent(absence) => Ok(Acquired::NotYours(absence)),
    }
}

fn released(reply: &[Element]) -> Result<Released> {
    let [code, value] = reply else {
        return Err(replies::nonsense());
    };
    match (code.code()?, value.int()?) {
        (Code::Yes, listeners) => {
            if listeners < 0 {
                tracing::warn!(
                    "the server refused to wake waiters; check the channel rights of its ACL"
                );
            }
            Ok(Released::Done {
                listeners: u64::try_from(listeners).unwrap_or_default(),
            })
        }
        (Code::Absent(absence), _) => Ok(Released::NotYours(absence)),
        (Code::No, _) => Err(replies::nonsense()),
    }
}

impl Keys {
    fn batch(&self, items: &[Item]) -> Call {
        let mut call = Call::default();
        for item in items {
            match item {
                Item::Acquire(request, _) => {
                    call.key(self.lock(&request.name));
                    call.key(self.fence(&request.name));
                    call.word("A");
                    call.text(request.token.to_string());
                    call.number(millis(request.ttl));
                    call.number(request.count.into());
                    call.number(request.fencing.map_or(0, |fencing| fencing.block.into()));
                    call.number(
                        request
                            .fencing
                            .and_then(|fencing| fencing.retention)
                            .map_or(0, millis),
                    );
                }
                Item::Release(request, _) => {
                    call.key(self.lock(&request.name));
                    call.word("R");
                    call.text(request.token.to_string());
                    call.number(request.count.into());
                    call.text(self.channel(&request.name));
                }
            }
        }
        call
    }

    fn renewal(&self, batch: &[Renewal]) -> Call {
        let mut call = Call::default();
        call.number(batch.first().map_or(0, |renewal| millis(renewal.ttl)));
        for renewal in batch {
            call.key(self.lock(&renewal.name));
            if renewal.fence_retention.is_some() {
                call.key(self.fence(&renewal.name));
            }
            call.text(renewal.token.to_string());
            call.number(renewal.fence_retention.map_or(0, millis));
        }
        call
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_names_are_redissons_to_the_byte() {
        let keys = Keys {
            prefix: String::new(),
        };
        let plain = Name::new("myLock").unwrap();
        assert_eq!(keys.lock(&plain), "myLock");
        assert_eq!(keys.channel(&plain), "redisson_lock__channel:{myLock}");
        assert_eq!(keys.fence(&plain), "redisson_lock_token:{myLock}");
        let tagged = Name::new("x{a}y").unwrap();
        assert_eq!(keys.channel(&tagged), "redisson_lock__channel:x{a}y");
        let keys = Keys {
            prefix: "{t}:".into(),
        };
        assert_eq!(keys.channel(&plain), "redisson_lock__channel:{t}:myLock");
    }
}
