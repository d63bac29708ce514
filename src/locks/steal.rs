//! Takes a name from its holder, and notifies the old holder.

use crate::engine::{self, WaitLimit, Wanted};
use crate::error::{Error, Result};
use crate::locks::handle::Handle;
use crate::locks::lease::Lease;
use crate::locks::lock::Lock;
use crate::store::{Mode, Reason};
use crate::util::runtime;
use std::time::Duration;

impl Lock {
    /// Takes the name from its holder, in this process or any other, or acquires it if it is free.
    ///
    /// Use it if the holder hangs and cannot be stopped. `why` is the reason, for operators and for the old holder,
    /// which can [read it](Lease::note). It is as public as the name.
    ///
    /// Overtakes all waiters, also those of a [fair](crate::LeaseManager::fair_lock) handle. It asks for the holder, takes the name from it, and acquires it if it became free: at most
    /// three requests, and four [attempts](crate::guide::settings#what-follows-from-the-ttl) in all. It takes the name
    /// only from the holder that it finds, and returns `None` if the name went to another holder in the meantime. On
    /// Redis and in memory the name goes from one holder to the other in one step. On a quorum and on ZooKeeper it is
    /// released by force and then acquired, and a waiter can come between.
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
    /// If it is dropped, the old holder may have lost the name, and a lease that the store grants to it is released in
    /// the background.
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
    /// and release. A holder that cannot be asked, on ZooKeeper or with Redisson, only gets the time. Returns `None` if
    /// another holder has the name by then, because that one was never asked.
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
    /// As [`steal`](Lock::steal). While it waits, dropping it takes nothing from the holder.
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
        let name = name.as_ref().map_err(Error::clone)?;
        let reason = Reason::new(&engine.core.author(), why.as_ref())?;
        let holder = engine::want(&engine.core, name, options, current, &reason).await?;
        let limit = WaitLimit::For(patience);
        let wanted = Wanted::from(Mode::Exclusive).with(&self.options);
        let polite = self.handle.acquire(wanted, limit).await?;
        match (polite, holder) {
            (Some(lease), _) => Ok(Some(lease)),
            (None, Some(holder)) => self.steal_from(why.as_ref(), Some(&holder)).await,
            (None, None) => Ok(None),
        }
    }

    async fn steal_from(&mut self, why: &str, only: Option<&str>) -> Result<Option<Lease>> {
        let Self { handle: Handle { engine, name, current }, options } = self;
        let name = name.as_ref().map_err(Error::clone)?;
        let reason = Reason::new(&engine.core.author(), why)?;
        let claim = engine::steal(&engine.core, (name, options), current, &reason, only).await?;
        Ok(claim.map(|claim| Lease::new(engine, claim)))
    }
}
