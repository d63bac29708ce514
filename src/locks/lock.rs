//! The handles that lock a name.

use crate::engine::{
    self, AcquireSpec, CallSite, Engine, Hold, Options, WaitLimit, acquire, setters,
};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::locks::lease::{Lease, finish};
use crate::store::{Mode, Name, NameMap, Reason};
use crate::util::runtime;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;

/// A handle on one name, for one flow of control.
///
/// [`LeaseManager::lock`](crate::LeaseManager::lock) creates it without I/O. Locking needs `&mut`, which proves that one
/// flow of control is asking. While a lease of this handle is alive, the same handle re-enters at once (hold count 2, 3,
/// ...); every other handle waits, even in the same manager and the same task.
///
/// Two calls at a time through one handle do not compile:
///
/// ```compile_fail,E0499
/// # async fn f(leases: leasehold::LeaseManager) {
/// let mut lock = leases.lock("a");
/// let _ = tokio::join!(lock.lock(), lock.lock());
/// # }
/// ```
///
/// Two handles take turns. `join!` keeps what the first branch returns until the last one ends, so each branch must
/// release its lease; otherwise [one waits for the other forever](crate::guide::reentrancy#two-handles-wait-for-each-other).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let (mut here, mut there) = (leases.lock("a"), leases.lock("a"));
/// let (first, second) = tokio::join!(
///     async { here.lock().await?.unlock().await },
///     async { there.lock().await?.unlock().await },
/// );
/// # first.and(second)
/// # }
/// ```
///
/// The compiler cannot see through a mutex: a handle in an `Arc<tokio::sync::Mutex<Lock>>` is *one* holder for every
/// caller that reaches it, and a lease that outlives the mutex guard lets the next caller in as the same holder. Give
/// each flow its own handle instead.
///
/// # Fairness
///
/// Handles of one manager wait in the order of arrival. Between managers there is no order, except on ZooKeeper and
/// between handles that [`fair_lock`](crate::LeaseManager::fair_lock) creates. But a manager hands the lock off among its
/// own waiters only for a [limited time](crate::Builder::max_local_handoffs). Then it lets waiters of other managers go
/// first; see [fairness](crate::guide::settings#fairness).
#[must_use = "a lock acquires nothing until `lock`, `try_lock`, `lock_timeout` or `with` is called"]
#[doc(alias = "mutex")]
#[doc(alias = "RLock")]
#[doc(alias = "redlock")]
#[doc(alias = "distributed lock")]
pub struct Lock {
    pub(crate) handle: Handle,
    pub(crate) options: Options,
}

/// A handle on many names, for one flow of control.
///
/// [`LeaseManager::holder`](crate::LeaseManager::holder) creates it without I/O. A [`Lock`] is a holder with one name. Lock
/// several names in the same order everywhere; otherwise two holders can deadlock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let mut holder = leases.holder();
/// let from = holder.lock("account:1").await?;
/// let to = holder.lock("account:2").await?;
/// let again = holder.lock("account:1").await?; // nested
/// assert_eq!(from.hold_count(), 2);
/// # Ok(())
/// # }
/// ```
#[must_use = "a holder acquires nothing until `lock`, `try_lock` or `lock_timeout` is called"]
pub struct Holder {
    engine: Arc<Engine>,
    handles: NameMap<Handle>,
    /// At how many names the ended ones are swept out next.
    prune_at: usize,
}

impl Lock {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        Self { handle: Handle::new(engine, Name::new(name)), options: Options::default() }
    }

    /// Creates a handle that takes part in the order of the waiters of all processes.
    pub(crate) fn fair(engine: Arc<Engine>, name: &str) -> Self {
        Self { options: Options::fair(), ..Self::new(engine, name) }
    }

    /// Returns the name; empty if the one that was given is invalid.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Waits until this handle holds the lock.
    ///
    /// Re-enters at once, one level deeper, while a lease of this handle is alive. That asks nothing of the store, so the new
    /// lease is as good as the older one and no better: it may be at risk, or less than half of the TTL may be left in the
    /// store. See [re-entry](crate::guide::reentrancy#what-a-nested-call-does).
    ///
    /// # Errors
    ///
    /// - [`Lost`](ErrorKind::Lost): an older lease of this handle is still alive, and its hold was lost; drop that lease
    ///   first.
    /// - [`Unavailable`](ErrorKind::Unavailable): the store did not answer for one [TTL](crate::Builder::ttl), or up to a
    ///   twentieth less, if the next attempt would come later.
    /// - [`Unsupported`](ErrorKind::Unsupported): the store has no order for a [fair](crate::LeaseManager::fair_lock)
    ///   handle, or cannot have an option of this one. Nothing is sent.
    /// - [`Denied`](ErrorKind::Denied), [`Rejected`](ErrorKind::Rejected), [`WrongType`](ErrorKind::WrongType),
    ///   [`Invalid`](ErrorKind::Invalid), [`Protocol`](ErrorKind::Protocol), [`Closed`](ErrorKind::Closed): returned at once,
    ///   without a retry.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, and in one without timers as soon as it waits (for Redis, also without I/O). So does a
    /// future that has waited on a runtime that has ended, when it is polled on another one: its timers have ended with the
    /// first. Make the call again there.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the call leaves the queue, and a lease that the store grants to it is
    /// released in the background.
    ///
    /// # If it is not polled
    ///
    /// While this future is not polled, for example because another branch of `select!` takes long, other calls pass it, and a
    /// grant that it has not seen ends after a [TTL](crate::Builder::ttl) at most. Then it asks again when it is polled.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// lease.unlock().await
    /// # }
    /// ```
    #[doc(alias = "acquire")]
    #[track_caller]
    pub fn lock(&mut self) -> impl Future<Output = Result<Lease>> + use<'_> {
        let spec = AcquireSpec::from(Mode::Exclusive).with(&self.options).at(Location::caller());
        self.handle.lock(spec)
    }

    /// Locks if the name is free now; returns `None` if it is not.
    ///
    /// A lock does not remember that the work was done: for a job that runs once, use
    /// [`once`](crate::LeaseManager::once).
    ///
    /// Makes one attempt, and never overtakes a waiter of this manager: it returns `None` without I/O if another handle
    /// of this manager, or of a clone of it, holds the name or waits for it. There is one exception. If the store has
    /// not answered a request of that handle for longer than an
    /// [attempt](crate::guide::settings#what-follows-from-the-ttl), this call waits for the answer, for two attempts at
    /// most: the silence may come from a stall of this process, and says nothing about the name. Just after this
    /// manager has released a name for which waiters of other managers listen, the attempt begins up to 2 ms later, so
    /// that they go first.
    ///
    /// A [fair](crate::LeaseManager::fair_lock) handle never overtakes a fair waiter of another manager either: it returns
    /// `None` while one waits, and has no arrival in the order itself.
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock), but [`Unavailable`](ErrorKind::Unavailable) after an attempt, or two.
    ///
    /// # Panics
    ///
    /// As [`lock`](Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, a lease that the store grants to it is released in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// if let Some(_lease) = leases.lock("cache:refresh").try_lock().await? {
    ///     // ... refresh it; once the lease is dropped, another process may do it again ...
    ///     assert!(leases.lock("cache:refresh").try_lock().await?.is_none());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "try_acquire")]
    #[track_caller]
    pub fn try_lock(&mut self) -> impl Future<Output = Result<Option<Lease>>> + use<'_> {
        let spec = AcquireSpec::from(Mode::Exclusive).with(&self.options).at(Location::caller());
        self.handle.acquire(spec, WaitLimit::Once)
    }

    /// Waits until this handle holds the lock, for at most `timeout`; returns `None` if other holders have it until
    /// then.
    ///
    /// With a zero `timeout` it makes one attempt.
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock), and [`Unavailable`](ErrorKind::Unavailable) if the time passes and the store has answered no
    /// request of this call, with the last failure of its server as the source. It is the same if this future was not polled
    /// until then, because nothing has asked the store.
    ///
    /// If the server has answered other calls meanwhile, it returns `None`: the time was shorter than a round trip under this
    /// load, and the store is not silent. So you may give it what is left of your own deadline.
    ///
    /// # Panics
    ///
    /// As [`lock`](Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Lock::lock).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("cron").lock().await?;
    /// let other = leases.lock("cron").lock_timeout(Duration::from_millis(20)).await?;
    /// assert!(other.is_none());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "try_lock_for")]
    #[track_caller]
    pub fn lock_timeout(
        &mut self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<Lease>>> + use<'_> {
        let spec = AcquireSpec::from(Mode::Exclusive).with(&self.options).at(Location::caller());
        self.handle.acquire(spec, WaitLimit::For(timeout))
    }

    /// Locks, runs `body` while the lease is held, and releases it.
    ///
    /// `body` gets the handle, for nested calls that lock the same name, and the lease. Its output is returned
    /// unchanged; if that is a `Result`, write `.await??`. When the lease is lost, `body` is dropped at once. If the
    /// release fails for another reason than a loss, the error is logged, and this still returns the output.
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock), and [`Lost`](ErrorKind::Lost) if the lease was lost before `body` ended, even if only the
    /// release discovers it; the output of `body` is dropped then.
    ///
    /// # Panics
    ///
    /// As [`lock`](Lock::lock). A panic of `body` passes through, and the lease is released.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `body`, which is dropped at its current await. The lease is released in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let sum = leases.lock("sum").with(async |_lock, lease| {
    ///     assert_eq!(lease.hold_count(), 1);
    ///     1 + 1
    /// }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn with<R, F>(&mut self, body: F) -> impl Future<Output = Result<R>>
    where
        F: AsyncFnOnce(&mut Lock, &Lease) -> R,
    {
        let caller = Location::caller();
        async move {
            let spec = AcquireSpec::from(Mode::Exclusive).with(&self.options).at(caller);
            let lease = self.handle.lock(spec).await?;
            let result = lease.run(body(self, &lease)).await;
            finish(result, lease.unlock().await, self.name())
        }
    }

    /// Takes the name from its holder, in this process or any other, or acquires it if it is free.
    ///
    /// Use it if the holder hangs and cannot be stopped. `why` is the reason, for operators and for the old holder,
    /// which can [read it](Lease::note). It is as public as the name.
    ///
    /// Overtakes all waiters, also those of a [fair](crate::LeaseManager::fair_lock) handle. It asks for the holder, takes the name from it, and acquires it if it became free: at most
    /// three requests, and four [attempts](crate::guide::settings#what-follows-from-the-ttl) in all. It takes the name
    /// only from the holder that it finds, and returns `None` if the name went to another holder in the meantime. On
    /// Redis and in memory the name goes from one holder to the other in one step. On a quorum and on ZooKeeper it is
    /// released by force and then acquired, and a waiter can come between. A name that [`min_hold`](Lock::min_hold) or
    /// [`lock_delay`](Lock::lock_delay) keeps closed has no holder: then it returns `None`.
    ///
    /// **The old holder can still be at work when this returns.** If it belongs to this manager, its token fires before
    /// the request leaves. Otherwise it learns of the steal a round trip later, through the
    /// [inbox](crate::guide::family#steal-a-name-from-its-holder) of its manager. Without an inbox (on ZooKeeper, with
    /// Redisson) or if the message is lost, it learns of it at its next renewal, after up to a third of the
    /// [TTL](crate::Builder::ttl). Its loss is [`Stolen`](crate::Loss::Stolen), on ZooKeeper `Gone` or `Taken`. Until
    /// then its manager may also hand the hold off to its own waiters, which lose it in the same way. The [fencing
    /// token](Lease::fence) of the new lease is larger than theirs, so a resource that [compares](crate::guard) it
    /// refuses the late writes.
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Lock::try_lock), and
    ///
    /// - [`Invalid`](crate::ErrorKind::Invalid): this handle holds the name, or `why` is empty or longer than 1024 bytes.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the store cannot do it.
    /// - [`Unavailable`](crate::ErrorKind::Unavailable): the store did not answer. The old holder may have lost the name.
    /// - [`Rejected`](crate::ErrorKind::Rejected): too few [replicas](crate::Builder::replicas) confirmed the grant. The old
    ///   holder has lost the name, and no other has it.
    ///
    /// # Panics
    ///
    /// As [`lock`](Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe, but the old holder may have lost the name. If it is dropped, a lease that the store grants to it is released
    /// in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let old = leases.lock("import").lock().await?;
    /// let new = leases.lock("import").steal("deploy 4711: the old importer hangs").await?;
    ///
    /// let new = new.expect("no other came between");
    /// assert_eq!(old.lost().await, leasehold::Loss::Stolen);
    /// assert!(old.fence() < new.fence());
    /// let note = old.note().await?.expect("a note");
    /// assert_eq!(note.why, "deploy 4711: the old importer hangs");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "preempt")]
    #[doc(alias = "take over")]
    pub async fn steal(&mut self, why: impl AsRef<str>) -> Result<Option<Lease>> {
        runtime::need();
        self.steal_from(why.as_ref(), None).await
    }

    /// Asks the holder for the name, waits for `patience`, and then takes the name from that holder.
    ///
    /// This is the polite form of [`steal`](Lock::steal). The holder learns of it by [`Lease::wanted`], and can finish
    /// and release. A holder that cannot be asked, of another manager on ZooKeeper or with Redisson, only gets the time.
    /// Returns `None` if another holder has the name by then, because that one was never asked.
    ///
    /// # Errors
    ///
    /// As [`steal`](Lock::steal).
    ///
    /// # Panics
    ///
    /// As [`lock`](Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe, as [`steal`](Lock::steal) is. While it waits, dropping it takes nothing from the holder.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let old = leases.lock("import").lock().await?;
    /// let polite = async {
    ///     old.wanted().await; // finish the current file, and then
    ///     old.unlock().await
    /// };
    /// let mut lock = leases.lock("import");
    /// let stolen = lock.steal_after(Duration::from_secs(5), "deploy 4711");
    /// let (unlocked, lease) = tokio::join!(polite, stolen);
    /// assert!(unlocked.is_ok() && lease?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn steal_after(
        &mut self,
        patience: Duration,
        why: impl AsRef<str>,
    ) -> Result<Option<Lease>> {
        runtime::need();
        let Self { handle: Handle { engine, name, current }, options } = &*self;
        consume_budget().await;
        let name = name.as_ref().map_err(Error::clone)?;
        let reason = Reason::new(&engine.core.author(), why.as_ref())?;
        let holder = engine::want(&engine.core, name, options, current, &reason).await?;
        let limit = WaitLimit::For(patience);
        let spec = AcquireSpec::from(Mode::Exclusive).with(&self.options);
        let polite = self.handle.acquire(spec, limit).await?;
        match (polite, holder) {
            (Some(lease), _) => Ok(Some(lease)),
            (None, Some(holder)) => self.steal_from(why.as_ref(), Some(&holder)).await,
            (None, None) => Ok(None),
        }
    }

    async fn steal_from(&mut self, why: &str, only: Option<&str>) -> Result<Option<Lease>> {
        let Self { handle: Handle { engine, name, current }, options } = self;
        consume_budget().await;
        let name = name.as_ref().map_err(Error::clone)?;
        let reason = Reason::new(&engine.core.author(), why)?;
        let claim = engine::steal(&engine.core, name, options, current, &reason, only).await?;
        Ok(claim.map(|claim| Lease::new(engine, claim)))
    }
}

// After the calls, which a reader looks for first.
impl Lock {
    setters!(class label min_hold lock_delay stall_after on_overrun warn_held);
}

impl Holder {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, handles: NameMap::default(), prune_at: 16 }
    }

    /// Waits until this handle holds `name`, as [`Lock::lock`] does.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`].
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`].
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Lock::lock).
    #[doc(alias = "acquire")]
    #[track_caller]
    pub fn lock<N: AsRef<str>>(
        &mut self,
        name: N,
    ) -> impl Future<Output = Result<Lease>> + use<'_, N> {
        let spec = AcquireSpec::from(Mode::Exclusive).at(Location::caller());
        async move { self.handle(name.as_ref(), spec.caller())?.lock(spec).await }
    }

    /// Locks `name` if it is free now, as [`Lock::try_lock`] does.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock`].
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`].
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, a lease that the store grants to it is released in the background.
    #[track_caller]
    pub fn try_lock<N: AsRef<str>>(
        &mut self,
        name: N,
    ) -> impl Future<Output = Result<Option<Lease>>> + use<'_, N> {
        let spec = AcquireSpec::from(Mode::Exclusive).at(Location::caller());
        async move { self.handle(name.as_ref(), spec.caller())?.acquire(spec, WaitLimit::Once).await }
    }

    /// Waits until this handle holds `name`, for at most `timeout`, as [`Lock::lock_timeout`] does.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock_timeout`].
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`].
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Lock::lock).
    #[track_caller]
    pub fn lock_timeout<N: AsRef<str>>(
        &mut self,
        name: N,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<Lease>>> + use<'_, N> {
        let spec = AcquireSpec::from(Mode::Exclusive).at(Location::caller());
        let limit = WaitLimit::For(timeout);
        async move { self.handle(name.as_ref(), spec.caller())?.acquire(spec, limit).await }
    }

    /// Returns the handle on a name.
    fn handle(&mut self, name: &str, caller: CallSite) -> Result<&mut Handle> {
        runtime::need_at(caller);
        let name = Name::new(name)?;
        if self.handles.len() >= self.prune_at {
            self.handles.retain(|_, handle| handle.is_in_use());
            self.prune_at = 16.max(2 * self.handles.len());
        }
        let new = |name: &Name| Handle::new(Arc::clone(&self.engine), Ok(name.clone()));
        Ok(self.handles.entry(name).or_insert_with_key(new))
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.handle.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder").field("names", &self.handles.len()).finish_non_exhaustive()
    }
}

/// An exclusive lock, as one flow of control sees it. A [`Lock`](crate::Lock) has one, and a
/// [`Holder`](crate::Holder) one for each name.
pub(crate) struct Handle {
    pub(crate) engine: Arc<Engine>,
    /// The first attempt to lock reports an invalid name.
    pub(crate) name: Result<Name>,
    /// The last hold, which a nested call enters again.
    pub(crate) current: Option<Arc<Hold>>,
}

impl Handle {
    pub(crate) fn new(engine: Arc<Engine>, name: Result<Name>) -> Self {
        Self { engine, name, current: None }
    }

    /// Returns the name; empty if the one that was given is invalid.
    pub(crate) fn name(&self) -> &str {
        Name::text_of(&self.name)
    }

    /// Returns whether the next call can depend on the last hold.
    pub(crate) fn is_in_use(&self) -> bool {
        self.current.as_ref().is_some_and(|hold| !hold.is_over() || hold.count() > 0)
    }

    /// Acquires the name, however long that takes.
    pub(crate) async fn lock(&mut self, spec: AcquireSpec<'_>) -> Result<Lease> {
        self.acquire(spec, WaitLimit::Forever).await?.ok_or_else(Error::silent)
    }

    /// Acquires the name, or enters the last hold again.
    pub(crate) async fn acquire(
        &mut self,
        spec: AcquireSpec<'_>,
        limit: WaitLimit,
    ) -> Result<Option<Lease>> {
        runtime::need_at(spec.caller());
        let Self { engine, name, current } = self;
        let name = Name::of_handle(name).await?;
        let claim = acquire(&engine.core, name, spec, current, limit).await?;
        Ok(claim.map(|claim| Lease::new(engine, claim)))
    }
}
