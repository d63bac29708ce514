//! Locks one name for one writer or for many readers.

use crate::engine::{
    AcquireSpec, Converted, Engine, Hold, Options, Share, WaitLimit, acquire_as, convert, setters,
};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::locks::lease::{Lease, finish};
use crate::store::{Mode, Name};
use crate::util::runtime;
use crate::util::sync::Mutex;
use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// A handle on a read-write lock, for one flow of control.
///
/// [`LeaseManager::rw_lock`](crate::LeaseManager::rw_lock) creates it without I/O. At any time either one writer or any
/// number of readers have the name, across handles, tasks, processes and hosts. Use it where many read what a few
/// change: readers do not wait for each other.
///
/// # Re-entry
///
/// A handle that holds a write lease re-enters at once, by [`write`](RwLock::write) and by [`read`](RwLock::read). The
/// name stays locked for writing until all of these leases have ended. A handle that only reads re-enters by `read`.
/// Its `write` returns [`Invalid`](ErrorKind::Invalid) at once, because it would wait for itself forever: drop the read
/// lease first, or use [`ReadLease::try_upgrade`].
///
/// # Readers of one process
///
/// Handles of one [`LeaseManager`](crate::LeaseManager) that read the same name share one hold of the store. The first
/// reader asks the store. One that comes within a tenth of the [TTL](crate::Builder::ttl) after that grant joins the
/// shared hold: it sends nothing and waits for nothing, so a million readers a second cost one request for each tenth of the
/// TTL, and one lease to renew. Later readers ask again and share a new hold; they do not wait for the old one. A reader never
/// joins while a writer of its own manager waits. A writer of another manager waits for the longest read, that tenth of the
/// TTL, and perhaps one [poll interval](crate::Builder::max_poll_interval).
///
/// Each reader has a lease of its own: it ends when it is unlocked or dropped, and its token fires then. The last lease
/// of the shared hold releases the name; [`unlock`](ReadLease::unlock) of the others returns at once. The leases of a shared
/// hold have this in common:
///
/// - They have one fencing token and one [`holder_id`](Lease::holder_id), and are lost together, at one time, for one reason.
/// - [`max_hold`](crate::Builder::max_hold) counts from the grant, which may be a tenth of the TTL older than the lease, but at
///   most a tenth of `max_hold`: a later reader does not join.
/// - [`forget`](Lease::forget) keeps the name from writers only if the lease is the last of the shared hold.
/// - The class, the label and `warn_held` are those of the handle that asked the store. A handle has no `stall_after`
///   of its own, because it would end the leases of others. That of the [builder](crate::Builder::stall_after) counts,
///   and a report of [progress](Lease::progress) by one lease counts for all.
///
/// [`hold_count`](Lease::hold_count) counts the leases of one handle. The store counts one for the whole shared hold.
///
/// # Order
///
/// Neither side starves, except for readers on a quorum. Among the handles of a manager, a reader that comes after a
/// waiting writer waits behind it. Between managers, the store remembers how long the oldest reader and the oldest
/// writer have waited, and refuses those of the other side that came later. A waiter that goes away wakes them; if its
/// process dies or stands still, it delays them by three [poll intervals](crate::Builder::max_poll_interval) at most. While the
/// holder is in its own manager, a waiter has not asked the store, and keeps out no caller of other managers. On a
/// [`Quorum`](crate::store::Quorum) a waiting writer keeps out later readers in the same way, but a waiting reader
/// keeps out no later writer: writers of other processes that never rest can starve it. Redisson's clients do not take
/// part in this order.
///
/// # Which stores
///
/// Memory, Redis (one server, Sentinel, Cluster), a quorum of stores that support it, and ZooKeeper, where processes
/// take turns in the order in which each began to wait. On Redis it has the layout of Redisson's `RReadWriteLock`, and
/// both exclude each other. A name that is in use as another kind of lock is [`WrongType`](ErrorKind::WrongType).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let (mut here, mut there) = (leases.rw_lock("prices"), leases.rw_lock("prices"));
/// let (one, other) = (here.read().await?, there.read().await?);
/// assert!(leases.rw_lock("prices").try_write().await?.is_none());
/// one.unlock().await?;
/// other.unlock().await?;
///
/// let edit = here.write().await?;
/// assert!(there.try_read().await?.is_none());
/// edit.unlock().await
/// # }
/// ```
#[must_use = "a lock acquires nothing until `read`, `write` or one of their forms is called"]
#[doc(alias = "RReadWriteLock")]
#[doc(alias = "ReadWriteLock")]
pub struct RwLock {
    engine: Arc<Engine>,
    /// The first attempt to lock reports an invalid name.
    name: Result<Name>,
    current: Arc<Current>,
    options: Options,
}

/// The last hold of a handle, and its share in it. Its leases have it too: they may change the mode of the hold.
type Current = Mutex<Option<(Arc<Hold>, Share)>>;

/// The guard of a reader.
///
/// It dereferences to its [`Lease`]. Dropping it releases it in the background.
///
/// Its [fencing token](Lease::fence) is larger than that of each writer before it, and smaller than that of each writer after
/// it. So a resource that [compares it with those of writers](crate::guide::fencing#readers) accepts what readers derive, such
/// as a cache entry, until the next writer has written. Only readers that [share a hold](RwLock#readers-of-one-process) have
/// one token. On ZooKeeper a writer that became a reader keeps its token.
#[must_use = "a lease that is not kept is released at once; bind it: `let _lease = ..`, not `let _ = ..`"]
#[clippy::has_significant_drop]
pub struct ReadLease {
    lease: Lease,
    current: Arc<Current>,
}

/// The guard of the writer.
///
/// It dereferences to its [`Lease`]. Dropping it releases it in the background.
#[must_use = "a lease that is not kept is released at once; bind it: `let _lease = ..`, not `let _ = ..`"]
#[clippy::has_significant_drop]
pub struct WriteLease {
    lease: Lease,
    current: Arc<Current>,
}

/// The outcome of [`ReadLease::try_upgrade`].
#[derive(Debug)]
#[must_use = "it has the lease, which is released when this is dropped"]
pub enum Upgraded {
    /// The reader is the writer now.
    Write(WriteLease),
    /// Another lease reads, or another handle waits; the lease is as before.
    Read(ReadLease),
}

impl RwLock {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        let name = Name::new(name);
        Self { engine, name, current: Arc::default(), options: Options::default() }
    }

    /// Returns the name; empty if the one that was given is invalid.
    pub fn name(&self) -> &str {
        Name::text_of(&self.name)
    }

    /// Waits until this handle may read.
    ///
    /// Re-enters at once while a lease of this handle is alive, also a write lease, and
    /// [joins](RwLock#readers-of-one-process) the readers of other handles if it can.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock), and [`Unsupported`](ErrorKind::Unsupported) if the store has no read-write
    /// locks.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    #[doc(alias = "readLock")]
    #[track_caller]
    pub fn read(&mut self) -> impl Future<Output = Result<ReadLease>> + use<'_> {
        let caller = Location::caller();
        async move { self.reader(WaitLimit::Forever, caller).await?.ok_or_else(Error::silent) }
    }

    /// Locks for reading if no writer holds the name now or waits for it; returns `None` otherwise.
    ///
    /// Makes one attempt, as [`Lock::try_lock`](crate::Lock::try_lock) does. It also returns `None` while the store has
    /// not answered a request to write, or a [`try_upgrade`](ReadLease::try_upgrade), of the same manager, even if it
    /// refuses that later.
    ///
    /// # Errors
    ///
    /// As [`read`](RwLock::read), but [`Unavailable`](ErrorKind::Unavailable) after an attempt, or two.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, a lease that the store grants to it is released in the background.
    #[track_caller]
    pub fn try_read(&mut self) -> impl Future<Output = Result<Option<ReadLease>>> + use<'_> {
        self.reader(WaitLimit::Once, Location::caller())
    }

    /// Waits until this handle may read, for at most `timeout`; returns `None` if it cannot until then.
    ///
    /// With a zero `timeout` it makes one attempt.
    ///
    /// # Errors
    ///
    /// As [`read`](RwLock::read); [`Unavailable`](ErrorKind::Unavailable) if the time passes without an answer of the
    /// store.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    #[track_caller]
    pub fn read_timeout(
        &mut self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<ReadLease>>> + use<'_> {
        self.reader(WaitLimit::For(timeout), Location::caller())
    }

    /// Waits until this handle may write.
    ///
    /// Re-enters at once while a write lease of this handle is alive.
    ///
    /// # Errors
    ///
    /// As [`read`](RwLock::read), and [`Invalid`](ErrorKind::Invalid) at once if a read lease of this handle is alive.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let mut prices = leases.rw_lock("prices");
    /// let page = prices.read().await?;
    /// let error = prices.write().await.unwrap_err();
    /// assert_eq!(error.kind(), leasehold::ErrorKind::Invalid);
    ///
    /// page.unlock().await?;
    /// prices.write().await?.unlock().await
    /// # }
    /// ```
    #[doc(alias = "writeLock")]
    #[track_caller]
    pub fn write(&mut self) -> impl Future<Output = Result<WriteLease>> + use<'_> {
        let caller = Location::caller();
        async move { self.writer(WaitLimit::Forever, caller).await?.ok_or_else(Error::silent) }
    }

    /// Locks for writing if the name is free now, and no reader waits for it; returns `None` otherwise.
    ///
    /// Makes one attempt, as [`Lock::try_lock`](crate::Lock::try_lock) does.
    ///
    /// # Errors
    ///
    /// As [`write`](RwLock::write), but [`Unavailable`](ErrorKind::Unavailable) after an attempt, or two.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, a lease that the store grants to it is released in the background.
    #[track_caller]
    pub fn try_write(&mut self) -> impl Future<Output = Result<Option<WriteLease>>> + use<'_> {
        self.writer(WaitLimit::Once, Location::caller())
    }

    /// Waits until this handle may write, for at most `timeout`; returns `None` if it cannot until then.
    ///
    /// With a zero `timeout` it makes one attempt.
    ///
    /// # Errors
    ///
    /// As [`write`](RwLock::write); [`Unavailable`](ErrorKind::Unavailable) if the time passes without an answer of the
    /// store.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    #[track_caller]
    pub fn write_timeout(
        &mut self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<WriteLease>>> + use<'_> {
        self.writer(WaitLimit::For(timeout), Location::caller())
    }

    /// Locks for reading, runs `body` while the lease is held, and releases it, as [`Lock::with`](crate::Lock::with) does.
    ///
    /// # Errors
    ///
    /// As [`read`](RwLock::read), and [`Lost`](ErrorKind::Lost) if the lease was lost before `body` ended; the output of
    /// `body` is dropped then.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock). A panic of `body` passes through, and the lease is released.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `body`, which is dropped at its current await. The lease is released in the background.
    #[track_caller]
    pub fn with_read<R, F>(&mut self, body: F) -> impl Future<Output = Result<R>>
    where
        F: AsyncFnOnce(&mut RwLock, &ReadLease) -> R,
    {
        let caller = Location::caller();
        async move {
            let lease = self.reader(WaitLimit::Forever, caller).await?.ok_or_else(Error::silent)?;
            let result = lease.run(body(self, &lease)).await;
            finish(result, lease.unlock().await, self.name())
        }
    }

    /// Locks for writing, runs `body` while the lease is held, and releases it, as [`Lock::with`](crate::Lock::with) does.
    ///
    /// # Errors
    ///
    /// As [`write`](RwLock::write), and [`Lost`](ErrorKind::Lost) if the lease was lost before `body` ended; the output of
    /// `body` is dropped then.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock). A panic of `body` passes through, and the lease is released.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `body`, which is dropped at its current await. The lease is released in the background.
    #[track_caller]
    pub fn with_write<R, F>(&mut self, body: F) -> impl Future<Output = Result<R>>
    where
        F: AsyncFnOnce(&mut RwLock, &WriteLease) -> R,
    {
        let caller = Location::caller();
        async move {
            let lease = self.writer(WaitLimit::Forever, caller).await?.ok_or_else(Error::silent)?;
            let result = lease.run(body(self, &lease)).await;
            finish(result, lease.unlock().await, self.name())
        }
    }

    async fn reader(
        &mut self,
        limit: WaitLimit,
        caller: &'static Location<'static>,
    ) -> Result<Option<ReadLease>> {
        let lease = self.lease(Mode::Read, limit, caller).await?;
        Ok(lease.map(|lease| ReadLease { lease, current: Arc::clone(&self.current) }))
    }

    async fn writer(
        &mut self,
        limit: WaitLimit,
        caller: &'static Location<'static>,
    ) -> Result<Option<WriteLease>> {
        let lease = self.lease(Mode::Write, limit, caller).await?;
        Ok(lease.map(|lease| WriteLease { lease, current: Arc::clone(&self.current) }))
    }

    async fn lease(
        &mut self,
        mode: Mode,
        limit: WaitLimit,
        caller: &'static Location<'static>,
    ) -> Result<Option<Lease>> {
        runtime::need_at(Some(caller));
        let name = Name::of_handle(&self.name).await?;
        let current = self.current.lock().clone();
        let (mut hold, share) =
            current.map_or((None, Share::FIRST), |(hold, share)| (Some(hold), share));
        let spec = AcquireSpec::from(mode).with(&self.options).at(caller);
        let claim = acquire_as(&self.engine.core, name, spec, &mut hold, share, limit).await?;
        let Some(claim) = claim else { return Ok(None) };
        *self.current.lock() = hold.map(|hold| (hold, claim.share()));
        Ok(Some(Lease::new(&self.engine, claim)))
    }
}

// After the calls, which a reader looks for first.
impl RwLock {
    setters!(class label warn_held);
}

/// Changes the mode of the hold of a lease, if that is its only one. Returns the lease as it was if that is refused.
async fn change(
    mut lease: Lease,
    current: &Current,
    mode: Mode,
) -> Result<std::result::Result<Lease, Lease>> {
    runtime::need();
    let (engine, hold) = lease.parts();
    lease.begin_change();
    match convert(&engine.core, &hold, mode, lease.token()).await? {
        Converted::Refused => {
            lease.end_change();
            Ok(Err(lease))
        }
        Converted::Changed(next) => {
            let mut current = current.lock();
            if current.as_ref().is_some_and(|(current, _)| Arc::ptr_eq(current, &hold)) {
                *current = Some((Arc::clone(&next), Share::FIRST));
            }
            drop(current);
            Ok(Ok(lease.replaced(next)))
        }
    }
}

impl ReadLease {
    /// Makes the reader the writer, in one step, if it is the only reader and no other handle waits to write.
    ///
    /// Returns [`Write`](Upgraded::Write) if it worked: a write lease with a new [fencing token](Lease::fence) and a new
    /// cancellation token. The old cancellation token fires.
    ///
    /// Returns [`Read`](Upgraded::Read) with the unchanged read lease in these cases:
    ///
    /// - Another holder reads the name.
    /// - The handle of this lease has another lease of the name.
    /// - Another handle waits to write the name; in this manager also one that waits to read it.
    ///
    /// It does not wait for other readers to leave. So two readers that try it at once cannot deadlock: at most one of
    /// them becomes the writer.
    ///
    /// Meanwhile the lease is not renewed: a call that is no longer polled keeps the name for one TTL at most. Before its
    /// first poll the call has the lease as you had it.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost), [`Unavailable`](ErrorKind::Unavailable) if the store did not answer in two
    /// [attempts](crate::guide::settings#what-follows-from-the-ttl), [`Closed`](ErrorKind::Closed), and the refusals of
    /// [`Lock::lock`](crate::Lock::lock). The lease is released then.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the lease is released in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::Upgraded;
    ///
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let page = leases.rw_lock("prices").read().await?;
    /// match page.try_upgrade().await? {
    ///     Upgraded::Write(edit) => edit.unlock().await,
    ///     Upgraded::Read(page) => page.unlock().await,
    /// }
    /// # }
    /// ```
    pub async fn try_upgrade(self) -> Result<Upgraded> {
        let Self { lease, current } = self;
        if lease.parts().1.mode == Mode::Write {
            // Nested in a write lease.
            return Ok(Upgraded::Read(Self { lease, current }));
        }
        Ok(match change(lease, &current, Mode::Write).await? {
            Ok(lease) => Upgraded::Write(WriteLease { lease, current }),
            Err(lease) => Upgraded::Read(Self { lease, current }),
        })
    }

    /// Releases the lease and waits for the store's answer, as [`Lease::unlock`] does.
    ///
    /// # Errors
    ///
    /// As [`Lease::unlock`].
    ///
    /// # Panics
    ///
    /// As [`Lease::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the lease is released in the background; only the answer is lost.
    #[doc(alias = "release")]
    pub async fn unlock(self) -> Result<()> {
        self.lease.unlock().await
    }

    /// Converts the guard into its lease, which stays held.
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

impl WriteLease {
    /// Makes the writer a reader, in one step: no other holder can write in between.
    ///
    /// Other readers may enter from then on. If the mode was changed, the lease has a new fencing token (on ZooKeeper it keeps
    /// the old one) and a new cancellation token. The old one fires before the store is asked, so tasks that have it stop writing before the first
    /// reader enters. If the handle has other leases of the name, the mode stays: the lease
    /// and its tokens are as they were, and the name stays locked for writing until all of these leases have ended. The
    /// returned lease is then a read lease only by its type, and [`try_upgrade`](ReadLease::try_upgrade) returns it as
    /// [`Read`](Upgraded::Read). To avoid that, end the other leases first.
    ///
    /// Meanwhile the lease is not renewed: a call that is no longer polled keeps the name for one TTL at most. Before its
    /// first poll the call has the lease as you had it.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost), [`Unavailable`](ErrorKind::Unavailable) if the store did not answer in two
    /// [attempts](crate::guide::settings#what-follows-from-the-ttl), [`Closed`](ErrorKind::Closed), and the refusals of
    /// [`Lock::lock`](crate::Lock::lock). The lease is released then.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the lease is released in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let edit = leases.rw_lock("prices").write().await?;
    /// let page = edit.downgrade().await?;
    /// assert!(leases.rw_lock("prices").try_read().await?.is_some());
    /// page.unlock().await
    /// # }
    /// ```
    pub async fn downgrade(self) -> Result<ReadLease> {
        let Self { lease, current } = self;
        let lease = change(lease, &current, Mode::Read).await?;
        Ok(ReadLease { lease: lease.unwrap_or_else(|lease| lease), current })
    }

    /// Releases the lease and waits for the store's answer, as [`Lease::unlock`] does.
    ///
    /// # Errors
    ///
    /// As [`Lease::unlock`].
    ///
    /// # Panics
    ///
    /// As [`Lease::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the lease is released in the background; only the answer is lost.
    #[doc(alias = "release")]
    pub async fn unlock(self) -> Result<()> {
        self.lease.unlock().await
    }

    /// Converts the guard into its lease, which stays held.
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

impl Deref for ReadLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Deref for WriteLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReadLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadLease").field(&self.lease).finish()
    }
}

impl fmt::Debug for WriteLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteLease").field(&self.lease).finish()
    }
}
