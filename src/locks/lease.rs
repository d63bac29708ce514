//! The guard that the user keeps while a name is held.

use crate::engine::{
    Claim, Core, Engine, Hold, Phase, Share, calls, describe, handoff, release, renew,
};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::locks::guard::{Guard, Token};
use crate::store::{HolderId, Mode, Note};
use crate::util::panics::run_wakers;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
#[cfg(feature = "tower")]
use std::sync::Weak;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio_util::sync::CancellationToken;

/// The guard of a held lock.
///
/// While it is alive, the watchdog renews it in the background. Dropping it releases it in the background;
/// [`unlock`](Lease::unlock) releases it and returns whether that worked. If it is lost first, its
/// [`cancellation_token`](Lease::cancellation_token) fires before the store can grant the name to another holder, as long as
/// the store [keeps its keys](crate::guide::guarantees).
///
/// A lease is owned and can be moved to another task; it still belongs to the flow of control of the
/// [`Lock`](crate::Lock) that returned it. While a lease of a handle lives, in whatever task, that handle re-enters at once.
///
/// # Keep it in a variable
///
/// A dropped lease is released. Write `let _lease = ..`, never `let _ = ..`, and `if let Some(_lease) = ..` after
/// [`try_lock`](crate::Lock::try_lock), not `.is_some()`: the other forms release the name [before the work
/// begins][keep]. The release of a dropped lease needs a moment; if the process exits right after the drop, the name
/// stays taken for one TTL.
///
/// [keep]: crate::guide::reentrancy#keep-the-lease-in-a-variable
///
/// # What a lease does not promise
///
/// Between a [`check`](Lease::check) and the write that follows it, a process can be paused for longer than the lease
/// lasts. Only the resource that is written to can reject the late write, by comparing the
/// [fencing token](Lease::fence).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let leases = leasehold::LeaseManager::in_memory();
/// let mut lock = leases.lock("orders:42");
///
/// let lease = lock.lock().await?;
/// assert_eq!(lease.hold_count(), 1);
/// lease.unlock().await
/// # }
/// ```
#[doc(alias = "guard")]
#[doc(alias = "MutexGuard")]
#[must_use = "a lease that is not kept is released at once; bind it: `let _lease = ..`, not `let _ = ..`"]
#[clippy::has_significant_drop]
pub struct Lease {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    /// Fires on loss, unlock and drop; made when first asked for.
    token: OnceLock<CancellationToken>,
    /// The share of its handle in the hold.
    share: Share,
    /// Released or forgotten: Drop has nothing to do.
    over: bool,
    /// No caller has it: its call has a pulse, or changes its mode.
    unreturned: bool,
}

/// Reports progress of a lease, as long as it is there.
#[cfg(feature = "tower")]
#[derive(Debug)]
pub(crate) struct ProgressHandle(Weak<Engine>, Weak<Hold>);

#[cfg(feature = "tower")]
impl ProgressHandle {
    pub(crate) fn progress(&self) {
        if let (Some(engine), Some(hold)) = (self.0.upgrade(), self.1.upgrade()) {
            hold.progress(&engine.core);
        }
    }
}

/// The state of a lease, as this process knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseState {
    /// Granted or renewed, and the last renewal did not fail.
    Held,
    /// A renewal failed and is retried; the lease is still held.
    AtRisk,
    /// Lost; it never comes back.
    Lost,
}

impl LeaseState {
    pub(crate) fn of(phase: Phase) -> Self {
        match phase {
            Phase::Lost(_) => Self::Lost,
            Phase::AtRisk => Self::AtRisk,
            Phase::Held | Phase::Releasing | Phase::Released => Self::Held,
        }
    }
}

impl Lease {
    /// Creates the lease that a caller gets.
    pub(crate) fn new(engine: &Arc<Engine>, claim: Claim<'_>) -> Self {
        let mut lease = Self::unreturned(engine, claim);
        lease.begin();
        lease
    }

    /// Creates a lease that no caller may ever get. Its [`min_hold`](Self::begin) has not begun, so that it
    /// leaves no mark when it is given up.
    pub(crate) fn unreturned(engine: &Arc<Engine>, claim: Claim<'_>) -> Self {
        let share = claim.share();
        let hold = claim.into_hold();
        let unreturned = hold.begin_unreturned();
        let engine = Arc::clone(engine);
        Self { engine, hold, token: OnceLock::new(), share, over: false, unreturned }
    }

    /// Begins `min_hold`, and the limits that have not begun with the grant: the caller gets the lease.
    pub(crate) fn begin(&mut self) {
        self.end_unreturned();
        self.hold.begin_limits_of_caller(self.core());
    }

    fn end_unreturned(&mut self) {
        if std::mem::take(&mut self.unreturned) {
            self.hold.end_unreturned();
        }
    }

    fn core(&self) -> &Arc<Core> {
        &self.engine.core
    }

    /// Returns the name that is held.
    pub fn name(&self) -> &str {
        self.hold.name.as_str()
    }

    /// Returns the id of this holder, as it is written to the store.
    ///
    /// It is the [`holder`](crate::HolderInfo::holder) that [`inspect`](crate::LeaseManager::inspect) reports, in any
    /// process. For a permit on Redis, `inspect` reports only a part of it. Nested leases have the same id, and so have
    /// the leases to which the hold is handed off in memory: to tell those apart, log [`fence`](Lease::fence) as well.
    /// A new grant of the store has a new id. The id is for logs; it is neither a secret nor a permission.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// let holding = leases.inspect("report").await?.expect("held");
    /// assert_eq!(holding.holder, lease.holder_id().to_string());
    /// # Ok(())
    /// # }
    /// ```
    pub fn holder_id(&self) -> HolderId {
        self.hold.holder
    }

    /// Returns a token that fires when this lease ends: when it is lost, unlocked or dropped.
    ///
    /// Give it to spawned tasks. Each call returns a new child token, and cancelling it affects nothing else. On loss it
    /// fires before the store can grant the name to another holder, with the exceptions that [`LeaseManager`] lists.
    ///
    /// [`LeaseManager`]: crate::LeaseManager#what-is-promised
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// let token = lease.cancellation_token();
    /// let work = tokio::spawn(async move {
    ///     token.run_until_cancelled(std::future::pending::<()>()).await
    /// });
    /// lease.unlock().await?;
    /// assert!(work.await.unwrap().is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancellation_token(&self) -> CancellationToken {
        self.core().ensure_running();
        self.token.get_or_init(|| self.hold.lost_token()).child_token()
    }

    /// Waits until this lease is lost, and returns the reason.
    ///
    /// The future borrows nothing, so a spawned task can keep it. After an unlock or drop it stays pending forever: use it
    /// in a `select!`, or use the [`cancellation_token`](Lease::cancellation_token), which fires at any end.
    ///
    /// # Cancel safety
    ///
    /// Safe. Call it again and nothing is missed, because a loss is final.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// let lost = lease.lost();
    /// leases.force_unlock("report", "it hangs").await?;
    /// assert_eq!(lost.await, leasehold::Loss::Revoked);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        self.core().ensure_running();
        let core = self.core().on_caller.then(|| Arc::clone(self.core()));
        let hold = Arc::clone(&self.hold);
        async move {
            let loss = match core {
                Some(core) => core.attend(pin!(hold.when_lost())).await,
                None => hold.when_lost().await,
            };
            consume_budget().await;
            loss
        }
    }

    /// Waits until another handle says that it [wants](crate::Lock::steal_after) the name, or the lease is lost.
    ///
    /// Then finish and release, or go on: the other handle takes the name when its `patience` ends.
    /// [`note`](Lease::note) returns the author of the wish and its reason. The wish comes in memory, on Redis, and on a
    /// quorum of Redis servers. On ZooKeeper it comes only from a handle of the same manager, and without a note. It is
    /// only a hint, and can be lost. The future borrows nothing.
    ///
    /// # Cancel safety
    ///
    /// Safe. Call it again: a wish that has arrived is kept until the hold ends.
    ///
    /// [`Lock::steal_after`](crate::Lock::steal_after) has an example.
    pub fn wanted(&self) -> impl Future<Output = ()> + Send + use<> {
        self.core().ensure_running();
        let core = self.core().on_caller.then(|| Arc::clone(self.core()));
        let hold = Arc::clone(&self.hold);
        async move {
            match core {
                Some(core) => core.attend(pin!(hold.when_wanted())).await,
                None => hold.when_wanted().await,
            }
            consume_budget().await;
        }
    }

    /// Asks the store for the last note that another caller left for this holder: which process stole the name, forced
    /// it open or wants it, and why. Returns `None` if there is no note.
    ///
    /// The store keeps a note for a day, or until the next one about the same name. It can be read after the loss,
    /// until the manager is closed. The leases to which a hold is handed off in memory have the same holder id, so an
    /// earlier one of them also gets the note that was left for a later one. On ZooKeeper and for permits there are no
    /// notes.
    ///
    /// # Errors
    ///
    /// As [`LeaseManager::inspect`](crate::LeaseManager::inspect).
    ///
    /// # Cancel safety
    ///
    /// Safe. It changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// assert_eq!(lease.note().await?, None);
    /// leases.force_unlock("report", "its host is gone").await?;
    /// let note = lease.note().await?.expect("a note");
    /// assert_eq!(note.why, "its host is gone");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn note(&self) -> Result<Option<Note>> {
        consume_budget().await;
        self.core().life.check()?;
        calls::read_note(self.core(), self.hold.target(), self.hold.holder).await
    }

    /// Checks that the lease is held now, by the local clock.
    ///
    /// It reads the clock and does no I/O, so it is right even after the whole runtime was frozen. If the cancellation
    /// deadline has passed, this call marks the lease as lost.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost): the lease is lost; [`Error::loss`] returns the reason.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// for page in 0..3 {
    ///     lease.check()?; // between two steps that must not run without it
    ///     println!("page {page}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> Result<()> {
        self.hold.check(self.core())
    }

    /// Returns how long the holder may rely on the lease if no further renewal succeeds; zero if it is lost.
    ///
    /// This is the time to the cancellation deadline, when the [`cancellation_token`](Lease::cancellation_token) fires: a
    /// [grace](crate::Builder::grace) before the store may let the lease expire.
    /// Each renewal moves the deadline. It reads the local clock and does no I/O.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// assert!(lease.remaining() > std::time::Duration::from_secs(20));
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> Duration {
        self.hold.remaining(self.core())
    }

    /// Waits until at least `min` [remains](Lease::remaining).
    ///
    /// Use it before a step that cannot be interrupted. It returns at once, unless a renewal is late, or your
    /// [`grace`](crate::Builder::grace) is long; then it waits for one. The wait ends at the latest when the lease is lost.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::ErrorKind::Lost): the lease was lost first.
    /// - [`Invalid`](crate::ErrorKind::Invalid): `min` is more than half of the [TTL](crate::Builder::ttl) (with ZooKeeper,
    ///   [three eighths](crate::guide::settings#what-follows-from-the-ttl)), or more than
    ///   [`max_hold`](crate::Builder::max_hold) leaves.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the renewal continues in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let lease = leases.lock("report").lock().await?;
    /// lease.ensure_remaining(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ensure_remaining(&self, min: Duration) -> Result<()> {
        renew::until_remaining(self.core(), &self.hold, min).await
    }

    /// Returns whether the lease is held, at risk or lost, by the local clock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// assert_eq!(lease.state(), leasehold::LeaseState::Held);
    /// # Ok(())
    /// # }
    /// ```
    pub fn state(&self) -> LeaseState {
        LeaseState::of(self.hold.phase(self.core()))
    }

    /// Runs `future` while the lease is held.
    ///
    /// When the lease is lost, `future` is dropped at once, at its current await. Tasks that it has spawned continue: give
    /// them the [`cancellation_token`](Lease::cancellation_token). So do programs that it has started: set tokio's
    /// `Command::kill_on_drop`, and note that a program that is killed does not end those that it has started. A future that blocks its
    /// thread cannot be dropped until it yields. If `future` returns a `Result`, there are two of them,
    /// `lease.run(work()).await??`: the outer error is a loss, the inner one is that of the
    /// work.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost): the lease was lost before `future` ended, even if it ended without another await;
    /// its output is dropped then.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `future`, which is dropped with it. The lease is not affected.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// let pages = lease.run(async { 3 }).await?;
    /// assert_eq!(pages, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output> {
        run_while_held(|| self.check(), self.lost(), future).await
    }

    /// Returns the fencing token of this hold, which is larger than that of any earlier grant of the name.
    ///
    /// Send it with every write, and have the resource reject a token that is smaller than one it has seen. Nested
    /// leases have the same token, and so have [readers](crate::RwLock#readers-of-one-process) that share a hold. A resource
    /// that readers write to compares their tokens with those of writers only: see
    /// [`fencing`](crate::guide::fencing#readers). After a steal or a forced release, the old process can still hand its hold off until
    /// it learns of it: such leases begin after the grant elsewhere, but have smaller tokens. Returns `None` if
    /// [`fencing`](crate::Builder::fencing) is off, or the store has no fencing tokens;
    /// [`require_fencing`](crate::Builder::require_fencing) refuses such a store.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let mut lock = leases.lock("report");
    /// let first = lock.lock().await?.fence();
    /// let second = lock.lock().await?.fence();
    /// assert!(first.is_some() && first < second);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fence(&self) -> Option<u64> {
        self.hold.fence
    }

    /// Returns the value of the HTTP header `leasehold-fence` for a request of this holder, for a
    /// [`FenceGuard`](crate::tower::FenceGuard) on the side of the resource:
    /// the [fencing token](Lease::fence), and `; read` behind it for a [reader](crate::ReadLease). Returns `None` if there is
    /// no token.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let page = leases.rw_lock("prices").read().await?;
    /// let fence = page.fence().expect("this store has fencing tokens");
    /// assert_eq!(page.fence_header(), Some(format!("{fence}; read")));
    /// # Ok(())
    /// # }
    /// ```
    pub fn fence_header(&self) -> Option<String> {
        let reads = if self.hold.mode == Mode::Read { "; read" } else { "" };
        self.fence().map(|fence| format!("{fence}{reads}"))
    }

    /// Writes the process and the label of this holder beside the lock now. Without this call, a holder with a label is
    /// described at its first renewal, and one without is not.
    ///
    /// [`Builder::describe`](crate::Builder::describe) sets what is written; without it, the host, the process id and
    /// the [label](crate::Lock::label) are written.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::ErrorKind::Lost): the lease is lost; nothing was written.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the lease is not one of an exclusive lock, or the store keeps
    ///   no metadata.
    /// - Any other kind: nothing was written, or that is not known. After
    ///   [`Unavailable`](crate::ErrorKind::Unavailable) the next renewal writes it.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the description may or may not be written now; the next renewal writes it. The lease is not
    /// affected.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let mut lock = leases.lock("import").label("import of a.csv");
    /// let lease = lock.lock().await?;
    /// lease.describe_now().await?;
    /// let holder = leases.inspect("import").await?.expect("held");
    /// assert_eq!(holder.metadata.expect("described").label.as_deref(), Some("import of a.csv"));
    /// # drop(lease);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn describe_now(&self) -> Result<()> {
        consume_budget().await;
        let core = self.core();
        if describe::write(core, &self.hold).await? {
            return Ok(());
        }
        Err(describe::denied(core, &self.hold).await)
    }

    /// Returns a guard for writes to data on the same server as the lock, for a
    /// [`guard::Script`](crate::guard::Script). The script refuses a write unless the hold of this lease has the name
    /// on the server at that moment.
    ///
    /// From this call on, the hold is not handed off in memory, because the next holder would have the same holder id.
    /// Its release goes to the store. After a loss that the store does not know of, such as by
    /// [`max_hold`](crate::Builder::max_hold), the script still writes until the name is released there. Until then no
    /// other holder has the name.
    ///
    /// In a cluster the keys of the script must be in the slot of the lock: give both names the same hash tag.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported): the store is not a Redis store, or the lease is not exclusive. Use
    /// [`fence_guard`](Lease::fence_guard).
    pub fn guard(&self) -> Result<Guard> {
        let store = &self.core().store;
        let key = (self.hold.mode == Mode::Exclusive).then(|| store.guard_key(&self.hold.name));
        let Some(key) = key.flatten() else {
            let message =
                "only a lock on Redis can be checked by a script on its server; use `fence_guard`";
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        self.hold.set_guarded();
        Ok(Guard::of_owner(key, self.hold.holder))
    }

    /// Returns a guard for writes to a resource on any Redis server, for a [`guard::Script`](crate::guard::Script). The
    /// script refuses a write once a lease with a larger [fencing token](Lease::fence) has written to the resource. It refuses
    /// a [reader](crate::ReadLease) only for a writer: readers may write in any order.
    ///
    /// The largest token is kept under `leasehold_seen:{<resource>}`, in a cluster in the slot of the key `resource`,
    /// for 24 hours, or the [retention](crate::Builder::fence_retention) of fencing tokens if that is longer, and two TTLs.
    /// All writers must pass the same `resource`, and must hold the same lock.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid): this lease has no fencing token, or the resource has no name or one of more than
    /// 512 bytes.
    pub fn fence_guard(&self, resource: impl AsRef<str>) -> Result<Guard> {
        let core = self.core();
        let token = Token {
            fence: self.fence(),
            reads: self.hold.mode == Mode::Read,
            retention: core.settings.fencing.and_then(|fencing| fencing.retention),
            ttl: core.timing.ttl,
        };
        Guard::of_fence(resource.as_ref(), token)
    }

    /// Returns how many live leases the handle of this lease has in the hold: 1, and one more for each nested call.
    pub fn hold_count(&self) -> u32 {
        self.hold.count_of(self.share)
    }

    /// Releases the lease, and waits for the store's answer if it is the last one of its hold.
    ///
    /// The [`cancellation_token`](Lease::cancellation_token) fires first. The last lease of a hold frees the name and
    /// wakes a waiter. A nested one only lowers the hold count in this process and waits for nothing, so it discovers no loss
    /// that this process does not know.
    ///
    /// If a waiter of the same manager is next, the hold is handed off to it in memory, without contacting the store, as
    /// often in a row as [`Builder::max_local_handoffs`](crate::Builder::max_local_handoffs) allows. With
    /// [`Builder::linger`](crate::Builder::linger) the store releases the name a moment after this call returns, or not before
    /// this process has locked it again; [`unlock_now`](Lease::unlock_now) waits for the store.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::ErrorKind::Lost): the lease was lost before this call; another holder may have worked at the same
    ///   time.
    /// - [`Unavailable`](crate::ErrorKind::Unavailable) and any other kind: the store did not confirm the release within
    ///   one or two [attempts](crate::guide::settings#what-follows-from-the-ttl). The lease had not been lost when this
    ///   call began, so the work before it was done under the lease; do not repeat it because of this error. The engine
    ///   retries the release in the background until the lease expires. So the name is free after one
    ///   [TTL](crate::Builder::ttl) at the latest, or after the TTL and the [`lock_delay`](crate::Lock::lock_delay) if
    ///   the handle has one. A [`min_hold`](crate::Lock::min_hold) can keep it closed for longer.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, and in one without timers as soon as it waits; the lease is released in the
    /// background then.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the lease is released in the background; only the answer is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// lease.unlock().await?;
    /// assert!(leases.inspect("report").await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "release")]
    pub async fn unlock(mut self) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let _call = engine.core.life.begin_call();
        self.end();
        let result = release::unlock(&engine.core, &self.hold, self.share).await;
        // Only now: what is begun must not wait for a turn of this task.
        consume_budget().await;
        result
    }

    /// Releases the lease, as [`unlock`](Lease::unlock) does, but it does not [linger](crate::Builder::linger): unless a waiter of
    /// this manager gets the hold, the store has released the name when this call returns.
    ///
    /// Use it before you tell another process that the name is free, and on the last of nested leases: while another one is
    /// there, nothing is released, and that one may linger. Without `linger` it is the same as [`unlock`](Lease::unlock).
    ///
    /// # Errors
    ///
    /// As [`unlock`](Lease::unlock).
    ///
    /// # Panics
    ///
    /// As [`unlock`](Lease::unlock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the lease is released in the background; only the answer is lost. Before its first poll it is a
    /// lease that is dropped, which lingers.
    ///
    /// ```
    /// use leasehold::LeaseManager;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let leases =
    ///     LeaseManager::builder().linger(Duration::from_millis(20)).connect("memory:").await?;
    /// let lease = leases.lock("report").lock().await?;
    /// lease.unlock_now().await?;
    /// assert!(leases.inspect("report").await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn unlock_now(mut self) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let _call = engine.core.life.begin_call();
        self.end();
        let result = release::unlock_now(&engine.core, &self.hold, self.share).await;
        consume_budget().await;
        result
    }

    /// Reports progress, so that the lease does not count as stalled.
    ///
    /// With [`Builder::stall_after`](crate::Builder::stall_after), a lease is lost, with [`Loss::Stalled`], if its
    /// holder reports no progress for that long. Call it where the work advances, not from a timer. Nested leases of
    /// one handle count as one holder, and so do the readers of one manager that [share a
    /// hold](crate::RwLock#readers-of-one-process): a report by one of them counts for all. A hand-off counts as a
    /// report, and so does each lease that joins a hold. This call does no I/O. Without `stall_after`, and after the
    /// loss, it has no effect.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let builder = leasehold::LeaseManager::builder().stall_after(Duration::from_secs(60));
    /// let leases = builder.connect("memory:").await?;
    /// let lease = leases.lock("report").lock().await?;
    /// for page in 0..3 {
    ///     println!("page {page}");
    ///     lease.progress();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "heartbeat")]
    pub fn progress(&self) {
        self.hold.progress(self.core());
    }

    /// Returns what reports progress without the lease.
    #[cfg(feature = "tower")]
    pub(crate) fn progress_handle(&self) -> ProgressHandle {
        ProgressHandle(Arc::downgrade(&self.engine), Arc::downgrade(&self.hold))
    }

    /// Releases the lease after its work is done, and keeps the name closed for `keep`, as [`unlock`](Lease::unlock) does
    /// otherwise.
    pub(crate) async fn unlock_done(mut self, keep: Duration) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let _call = engine.core.life.begin_call();
        self.end();
        let result = release::unlock_done(&engine.core, &self.hold, self.share, keep).await;
        consume_budget().await;
        result
    }

    /// Ends the lease without releasing it in the store, where it expires.
    ///
    /// If no other lease of the hold is alive, renewal stops, and the name becomes free within one
    /// [TTL](crate::Builder::ttl), or after the TTL and the [`lock_delay`](crate::Lock::lock_delay) if the handle has
    /// one. Use it to keep others out for a while, for example to let a job run [once in each
    /// period](crate::guide::guarantees#a-lock-does-not-remember).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// leases.lock("report").lock().await?.forget();
    /// assert!(leases.inspect("report").await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn forget(mut self) {
        self.end();
        self.hold.forget(self.core(), self.share);
    }

    /// Returns the engine and the hold.
    pub(crate) fn parts(&self) -> (Arc<Engine>, Arc<Hold>) {
        (Arc::clone(&self.engine), Arc::clone(&self.hold))
    }

    /// Begins a change of the mode, for which it is the caller's no more.
    pub(crate) fn begin_change(&mut self) {
        self.hold.begin_change();
        self.unreturned = true;
    }

    /// Ends a change of the mode that was refused.
    pub(crate) fn end_change(&mut self) {
        if std::mem::take(&mut self.unreturned) {
            self.hold.end_change(self.core());
        }
    }

    /// Returns the token that fires when this lease ends, if one was made.
    pub(crate) fn token(&self) -> Option<&CancellationToken> {
        self.token.get()
    }

    /// Returns the lease of the hold that has replaced this one, which is over. Its token fires.
    pub(crate) fn replaced(mut self, hold: Arc<Hold>) -> Self {
        self.end();
        Self {
            engine: Arc::clone(&self.engine),
            hold,
            token: OnceLock::new(),
            share: Share::FIRST,
            over: false,
            unreturned: false,
        }
    }

    /// Returns whether the loss fires a token.
    pub(crate) fn has_lost_token(&self) -> bool {
        self.hold.has_lost_token()
    }

    /// Makes the loss fire `token`, unless it fires another one already. Returns the token that it fires.
    pub(crate) fn share_loss(&self, token: &CancellationToken) -> CancellationToken {
        self.hold.share_lost_token(token)
    }

    /// Makes sure that a task runs the engine.
    pub(crate) fn ensure_running(&self) {
        self.core().ensure_running();
    }

    /// Ends the lease in this process. Call it before anything is sent.
    fn end(&mut self) {
        self.over = true;
        // Before it leaves the hold, of which a caller may have another lease.
        self.end_unreturned();
        if let Some(token) = self.token() {
            // A waker that panics must not keep the lease from leaving its hold.
            run_wakers(|| token.cancel());
        }
    }
}

/// Runs `future` until `check` fails or `lost` is ready.
pub(crate) async fn run_while_held<F: Future>(
    check: impl Fn() -> Result<()>,
    lost: impl Future<Output = Loss>,
    future: F,
) -> Result<F::Output> {
    consume_budget().await;
    let mut lost = pin!(lost);
    let mut future = pin!(future);
    poll_fn(|cx| {
        // The clock first: after a freeze nothing more of the work may run.
        check()?;
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            // And after it: the last stretch may have been a long one.
            return Poll::Ready(check().map(|()| output));
        }
        lost.as_mut().poll(cx).map(|loss| Err(Error::lost(loss)))
    })
    .await
}

/// Returns the result of a body, unless the release finds that the lease was lost. Another failure of the release is
/// traced.
pub(crate) fn finish<R>(result: Result<R>, released: Result<()>, name: &str) -> Result<R> {
    match released {
        Err(error) if error.kind() == ErrorKind::Lost => return result.and(Err(error)),
        Err(error) => tracing::warn!(name, %error, "release failed"),
        Ok(()) => {}
    }
    result
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.over {
            self.end();
            handoff::leave_in_background(self.core(), &self.hold, self.share);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.hold.name)
            .field("holder", &self.hold.holder)
            .field("fence", &self.hold.fence)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
