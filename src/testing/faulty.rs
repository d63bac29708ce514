//! A store that hangs, fails, delays and loses on command.

use super::call::Call;
use super::rule::{Fault, Rule};
use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{
    About, Acquire, Acquired, Annotate, Capabilities, Describe, Ends, ForceRelease, Inbox, Inspect,
    Inspection, List, Listed, Name, Owner, Owners, Pages, Release, Released, RenewBatch, RenewCall,
    Renewed, Reserve, Reserved, Resize, SetVerdicts, Signal, Store, StoreFuture, Topic, Uptime,
    Wait, Wakeups, Want,
};
use crate::util::sync::{Mutex, MutexGuard};
use async_trait::async_trait;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

/// Wraps a store and breaks its operations by the rules of its [`Faults`].
///
/// Without a rule it forwards every call. Some faults break the contract of [`Store`] on purpose: an
/// operation that hangs keeps no time limit.
///
/// ```
/// use leasehold::store::MemoryStore;
/// use leasehold::testing::{Call, Fault, FaultyStore, Rule};
/// use leasehold::{LeaseManager, LeaseState};
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?.block_on(async {
/// let (store, faults) = FaultyStore::new(MemoryStore::new());
/// let leases = LeaseManager::builder().build(store)?;
/// let lease = leases.lock("orders:42").lock().await?;
///
/// faults.add(Rule::new(Fault::LoseReply).on(Call::Renew).times(1));
/// faults.until_calls(Call::Renew, 1).await;
/// tokio::time::sleep(Duration::from_millis(1)).await;
/// assert_eq!(lease.state(), LeaseState::AtRisk);
///
/// faults.until_calls(Call::Renew, 2).await;
/// tokio::time::sleep(Duration::from_millis(1)).await;
/// assert_eq!(lease.state(), LeaseState::Held);
/// # Ok::<(), leasehold::Error>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct FaultyStore<S: ?Sized> {
    faults: Faults,
    capabilities: Capabilities,
    /// False if it grants each name by itself, whatever the store does.
    atomic: bool,
    /// Counts the calls at one instant, if a task that makes too many of them must yield.
    burst: Option<Mutex<Burst>>,
    inner: Arc<S>,
}

/// The number of calls at one instant after which each of them yields, as one to a server does.
const BURST: u32 = 1_000;

#[derive(Debug)]
struct Burst {
    at: Instant,
    calls: u32,
}

/// Controls a [`FaultyStore`]: has its rules, and counts its calls.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Control>);

#[derive(Debug)]
struct Control {
    /// The clock of the store.
    clock: Clock,
    rules: Mutex<Vec<Rule>>,
    /// Notifies of a heal, all that wait in their order: a `watch` would wake them in an order that it draws.
    healed: Arc<Notify>,
    reconnects: Signal,
    calls: watch::Sender<[usize; Call::ALL.len()]>,
}

impl Faults {
    /// Adds a rule, from the next call on. If several rules strike a call, the newest counts.
    pub fn add(&self, rule: Rule) {
        self.rules().push(rule);
    }

    /// Begins an outage of this length: every call fails at once, as [`Fault::unavailable`] says. It ends by itself, by the
    /// clock of the store, or by [`heal`](Faults::heal).
    ///
    /// ```
    /// use leasehold::store::MemoryStore;
    /// use leasehold::testing::FaultyStore;
    /// use leasehold::{ErrorKind, LeaseManager};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> leasehold::Result<()> {
    /// let (store, faults) = FaultyStore::new(MemoryStore::new());
    /// let leases = LeaseManager::builder().build(store)?;
    ///
    /// faults.outage(Duration::from_secs(10));
    /// let error = leases.lock("a").try_lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Unavailable);
    ///
    /// leases.lock("a").lock().await?; // waits for the end of the outage
    /// # Ok(())
    /// # }
    /// ```
    pub fn outage(&self, length: Duration) {
        self.add(Rule::new(Fault::unavailable()).until(self.0.clock.now() + length));
    }

    /// Begins a silence: no call is answered until [`heal`](Faults::heal), as [`Fault::Hang`] says. A call that is
    /// [delayed](Fault::Delay) when it begins is answered after the heal too.
    ///
    /// ```
    /// use leasehold::store::MemoryStore;
    /// use leasehold::testing::FaultyStore;
    /// use leasehold::{LeaseManager, Loss};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> leasehold::Result<()> {
    /// let (store, faults) = FaultyStore::new(MemoryStore::new());
    /// let leases = LeaseManager::builder().build(store)?;
    /// let lease = leases.lock("a").lock().await?;
    ///
    /// faults.silence();
    /// assert_eq!(lease.lost().await, Loss::Expired);
    /// # Ok(())
    /// # }
    /// ```
    pub fn silence(&self) {
        self.add(Rule::new(Fault::Hang));
    }

    /// Removes all rules, and resumes the operations that hang or hold their reply.
    pub fn heal(&self) {
        self.rules().clear();
        self.0.healed.notify_waiters();
    }

    /// Signals a reconnect, as [`Store::reconnects`] does.
    pub fn reconnect(&self) {
        self.0.reconnects.set();
    }

    /// Returns the number of calls of a kind so far.
    pub fn calls(&self, call: Call) -> usize {
        self.0.calls.borrow()[call as usize]
    }

    /// Waits until `count` calls of a kind have been made since the beginning.
    ///
    /// # Cancel safety
    ///
    /// Safe: calls are counted all the same.
    pub async fn until_calls(&self, call: Call, count: usize) {
        let mut calls = self.0.calls.subscribe();
        // The sender lives as long as `self`.
        let _ = calls.wait_for(|calls| calls[call as usize] >= count).await;
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.0.rules.lock()
    }

    /// Counts a call, and returns the fault that strikes it.
    fn meet(&self, call: Call, names: &[&Name]) -> Option<Fault> {
        self.0.calls.send_modify(|calls| calls[call as usize] += 1);
        let now = self.0.clock.now();
        let mut rules = self.rules();
        let rule = rules.iter_mut().rev().find(|rule| rule.strikes(call, names, now))?;
        Some(rule.strike())
    }

    /// Waits while no call is answered: what is under way then arrives after the heal.
    async fn until_no_silence(&self) {
        loop {
            let healed = self.healed();
            let now = self.0.clock.now();
            if !self.rules().iter().any(|rule| rule.is_silence(now)) {
                return;
            }
            healed.await;
        }
    }

    /// Waits for a heal after this call, not after the first poll.
    fn healed(&self) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.0.healed).notified_owned()
    }
}

impl<S: Store> FaultyStore<S> {
    /// Wraps a store, without faults so far.
    pub fn new(store: S) -> (Self, Faults) {
        Self::shared(Arc::new(store))
    }
}

impl<S: Store + ?Sized> FaultyStore<S> {
    /// Wraps a store that others use too, without the faults.
    pub fn shared(store: Arc<S>) -> (Self, Faults) {
        let faults = Faults(Arc::new(Control {
            clock: store.clock(),
            rules: Mutex::default(),
            healed: Arc::default(),
            reconnects: store.reconnects().unwrap_or_default(),
            calls: watch::Sender::default(),
        }));
        let capabilities = store.capabilities();
        let store =
            Self { faults: faults.clone(), capabilities, atomic: true, burst: None, inner: store };
        (store, faults)
    }

    /// Yields in a long burst of calls at one instant, so that code which never waits for a timer is polled again and again.
    pub(super) fn yielding(mut self) -> Self
    where
        S: Sized,
    {
        self.burst = Some(Mutex::new(Burst { at: self.faults.0.clock.now(), calls: 0 }));
        self
    }

    /// Counts a call. Returns whether it must yield.
    fn is_in_burst(&self) -> bool {
        let Some(burst) = &self.burst else { return false };
        let now = self.faults.0.clock.now();
        let mut burst = burst.lock();
        if burst.at != now {
            *burst = Burst { at: now, calls: 0 };
        }
        burst.calls = burst.calls.saturating_add(1);
        burst.calls > BURST
    }

    /// Grants each name by itself, so that [`is_atomic`](Store::is_atomic) returns false.
    #[must_use]
    pub fn one_by_one(mut self) -> Self
    where
        S: Sized,
    {
        self.atomic = false;
        self
    }

    /// Reports other abilities than those of the store that it wraps. A mode that they lack is not asked for.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self
    where
        S: Sized,
    {
        self.capabilities = capabilities;
        self
    }

    /// Makes a call with the fault that strikes it.
    fn call<T, F>(
        &self,
        fault: Option<Fault>,
        run: impl FnOnce(Arc<S>) -> F + Send + 'static,
    ) -> StoreFuture<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.call_backdated(fault, run, |reply, _| reply)
    }

    /// Makes a call whose answer has the time at which it was sent.
    ///
    /// The contract reads the clock when the request leaves, which is before it is held up:
    /// `backdate` puts that into the answer.
    fn call_backdated<T, F>(
        &self,
        fault: Option<Fault>,
        run: impl FnOnce(Arc<S>) -> F + Send + 'static,
        backdate: fn(T, Instant) -> T,
    ) -> StoreFuture<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let sent = self.clock().now();
        match fault {
            None if self.is_in_burst() => {
                let reply = run(inner);
                Box::pin(async move {
                    tokio::task::yield_now().await;
                    reply.await
                })
            }
            None => Box::pin(run(inner)),
            Some(Fault::Fail(error)) => Box::pin(async move { Err(error) }),
            Some(Fault::Panic) => Box::pin(async { panic!("the store was told to panic") }),
            Some(Fault::Hang) => {
                let healed = self.faults.healed();
                Box::pin(async move {
                    healed.await;
                    Ok(backdate(run(inner).await?, sent))
                })
            }
            Some(Fault::HoldReply) => {
                let healed = self.faults.healed();
                let reply = run(inner);
                Box::pin(async move {
                    let reply = reply.await;
                    healed.await;
                    reply
                })
            }
            Some(Fault::LoseReply) => {
                let reply = run(inner);
                Box::pin(async move { reply.await.and_then(|_| Err(lost())) })
            }
            Some(Fault::RunLate) => {
                let healed = self.faults.healed();
                tokio::spawn(async move {
                    healed.await;
                    let _ = run(inner).await;
                });
                Box::pin(async move { Err(lost()) })
            }
            Some(Fault::Delay(time)) => {
                let faults = self.faults.clone();
                Box::pin(async move {
                    tokio::time::sleep(time).await;
                    faults.until_no_silence().await;
                    Ok(backdate(run(inner).await?, sent))
                })
            }
        }
    }
}

/// The pages of a store, with faults. A page changes nothing, so it makes no difference whether one that fails was read.
struct FaultyPages {
    faults: Faults,
    pages: Box<dyn Pages>,
}

#[async_trait]
impl Pages for FaultyPages {
    async fn next(&mut self) -> Result<Option<Vec<Listed>>> {
        match self.faults.meet(Call::List, &[]) {
            None => {}
            Some(Fault::Fail(error)) => return Err(error),
            Some(Fault::Panic) => panic!("the store was told to panic"),
            Some(Fault::Hang | Fault::HoldReply) => self.faults.healed().await,
            Some(Fault::LoseReply | Fault::RunLate) => return Err(lost()),
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
        }
        self.pages.next().await
    }
}

/// Makes a grant that left no later than `before`.
fn backdated(reply: Acquired, before: Instant) -> Acquired {
    match reply {
        Acquired::Granted { sent, fence, reached, oldest } => {
            Acquired::Granted { sent: sent.min(before), fence, reached, oldest }
        }
        Acquired::Held { .. } | Acquired::NotYours(_) => reply,
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Unavailable, "the reply was lost")
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store + ?Sized> Store for FaultyStore<S> {
    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn shard(&self, name: &Name) -> usize {
        self.inner.shard(name)
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        let call = if request.steal.is_some() { Call::Steal } else { Call::Acquire };
        let fault = self.faults.meet(call, &[&request.target.name]);
        self.call_backdated(fault, |inner| inner.acquire(request), backdated)
    }

    fn acquire_all(&self, requests: Vec<Acquire>) -> StoreFuture<SetVerdicts> {
        let names: Vec<&Name> = requests.iter().map(|request| &request.target.name).collect();
        let fault = self.faults.meet(Call::Acquire, &names);
        let backdate = |verdicts: SetVerdicts, before| {
            let backdated = |verdict: Option<_>| verdict.map(|verdict| backdated(verdict, before));
            verdicts.into_iter().map(|verdict| verdict.map(backdated)).collect()
        };
        self.call_backdated(fault, |inner| inner.acquire_all(requests), backdate)
    }

    fn is_atomic(&self, names: &[&Name]) -> bool {
        self.atomic && self.inner.is_atomic(names)
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        let call = match request.ends {
            Ends::Hold => Call::Release,
            Ends::Arrival => Call::Leave,
        };
        let fault = self.faults.meet(call, &[&request.target.name]);
        self.call(fault, |inner| inner.release(request))
    }

    /// Returns the calls of the store that it wraps, and makes more of them if its own
    /// [`renewal_batch`](Capabilities::renewal_batch) is smaller.
    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        let size = self.capabilities.renewal_batch.max(1);
        let backdate = |reply: Renewed, before| Renewed { sent: reply.sent.min(before), ..reply };
        let mut calls = Vec::new();
        for (part, items) in batch.items.chunks(size).enumerate() {
            let smaller = RenewBatch { items: items.to_vec(), ..batch.clone() };
            let asked = catch_unwind(AssertUnwindSafe(|| self.inner.renew(smaller)));
            let parts = asked.unwrap_or_else(|panic| {
                // It was asked once.
                let names: Vec<&Name> = items.iter().map(|item| &item.target.name).collect();
                self.faults.meet(Call::Renew, &names);
                resume_unwind(panic)
            });
            for RenewCall { items: positions, verdicts, .. } in parts {
                let names: Vec<&Name> =
                    positions.iter().filter_map(|at| Some(&items.get(*at)?.target.name)).collect();
                let fault = self.faults.meet(Call::Renew, &names);
                let verdicts = self.call_backdated(fault, |_| verdicts, backdate);
                let positions = positions.into_iter().map(|at| at + part * size).collect();
                calls.push(RenewCall::new(positions, verdicts));
            }
        }
        calls
    }

    async fn resize(&self, request: Resize) -> Result<Option<u32>> {
        let fault = self.faults.meet(Call::Resize, &[&request.name]);
        self.call(fault, |inner| async move { inner.resize(request).await }).await
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        let call = match request.about {
            About::Holders => Call::Inspect,
            About::Line => Call::Line,
            About::Note(_) => Call::Note,
        };
        let fault = self.faults.meet(call, &[&request.target.name]);
        self.call(fault, |inner| async move { inner.inspect(request).await }).await
    }

    async fn annotate(&self, request: Annotate) -> Result<bool> {
        let fault = self.faults.meet(Call::Annotate, &[&request.target.name]);
        self.call(fault, |inner| async move { inner.annotate(request).await }).await
    }

    async fn describe(&self, request: Describe) -> Result<()> {
        let fault = self.faults.meet(Call::Describe, &[]);
        self.call(fault, |inner| async move { inner.describe(request).await }).await
    }

    async fn owners(&self, request: Owners) -> Result<Vec<Option<Owner>>> {
        let fault = self.faults.meet(Call::Owners, &[]);
        self.call(fault, |inner| async move { inner.owners(request).await }).await
    }

    /// Returns the pages of the store that it wraps; a fault strikes each of them.
    fn list(&self, request: List) -> Result<Box<dyn Pages>> {
        let pages = self.inner.list(request)?;
        Ok(Box::new(FaultyPages { faults: self.faults.clone(), pages }))
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        let fault = self.faults.meet(Call::ForceRelease, &[&request.target.name]);
        self.call(fault, |inner| async move { inner.force_release(request).await }).await
    }

    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        let call = match request.topic {
            Topic::Release => Call::Subscribe,
            Topic::Metadata => Call::Watch,
        };
        let fault = self.faults.meet(call, &[&request.target.name]);
        self.call(fault, |inner| async move { inner.subscribe(request).await }).await
    }

    fn reconnects(&self) -> Option<Signal> {
        Some(self.faults.0.reconnects.clone())
    }

    async fn want(&self, request: Want) -> Result<bool> {
        let fault = self.faults.meet(Call::Want, &[&request.target.name]);
        self.call(fault, |inner| async move { inner.want(request).await }).await
    }

    /// Returns the inbox of the store that it wraps, without faults: hints may be lost at any time.
    fn inbox(&self, manager: Uuid) -> Option<Inbox> {
        self.inner.inbox(manager)
    }

    fn guard_key(&self, name: &Name) -> Option<String> {
        self.inner.guard_key(name)
    }

    async fn uptime(&self, timeout: Duration) -> Result<Uptime> {
        let fault = self.faults.meet(Call::Uptime, &[]);
        self.call(fault, move |inner| async move { inner.uptime(timeout).await }).await
    }

    async fn reserve(&self, request: Reserve) -> Result<Reserved> {
        let names: Vec<&Name> = request.items.iter().map(|item| &item.target.name).collect();
        let fault = self.faults.meet(Call::Reserve, &names);
        self.call(fault, |inner| async move { inner.reserve(request).await }).await
    }

    async fn close(&self, timeout: Duration) {
        self.faults.meet(Call::Close, &[]);
        self.inner.close(timeout).await;
    }
}
