//! What the user keeps in hand while a name is held.

use crate::error::{Error, Loss, Result};
use crate::hold::Hold;
use crate::hold::engine::{Core, Engine};
use crate::hold::reaper::Job;
use crate::hold::settle::settle;
use crate::hold::state::Phase;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// A held lease: the guard of a lock.
///
/// While it lives, the watchdog renews it in the background. Dropping it gives it back without
/// waiting; [`unlock`](Lease::unlock) gives it back and tells whether that worked. If it is lost
/// first, [`cancellation_token`](Lease::cancellation_token) fires before the store can grant the name to anyone else.
///
/// A lease is owned and can be moved to another task; what it guards is the flow of control of
/// the [`Lock`](crate::Lock) that it came from.
///
/// # What a lease does not promise
///
/// Between a [`check`](Lease::check) and the write that follows it, a process can be paused for
/// longer than the lease lasts. Only the resource that is written to can refuse what comes
/// too late: by comparing the [fencing token](Lease::fence).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let leases = leasehold::LeaseManager::in_memory();
/// let mut lock = leases.lock("orders:42");
///
/// let lease = lock.lock().await?;
/// assert_eq!(lease.hold_count(), 1);
/// lease.unlock().await?;
/// # Ok::<(), leasehold::Error>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a lease that is not kept is released at once"]
#[clippy::has_significant_drop]
pub struct Lease {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    /// Fires on loss, unlock and drop; made when first asked for.
    token: OnceLock<CancellationToken>,
    /// Given back or forgotten: Drop has nothing to do.
    over: bool,
}

/// How sure a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseState {
    /// Granted or renewed, and the last renewal did not fail.
    Held,
    /// A renewal failed and is tried again; the lease is still yours.
    AtRisk,
    /// Lost, for good.
    Lost,
}

impl Lease {
    pub(crate) fn new(engine: &Arc<Engine>, hold: Arc<Hold>) -> Self {
        Self { engine: Arc::clone(engine), hold, token: OnceLock::new(), over: false }
    }

    fn core(&self) -> &Arc<Core> {
        &self.engine.core
    }

    /// The name that is held.
    pub fn name(&self) -> &str {
        self.hold.name.as_str()
    }

    /// A token that fires when this lease ends: lost, unlocked or dropped.
    ///
    /// It is a child: cancelling it affects nobody else. On loss it fires before the store can
    /// grant the name to someone else, with the exceptions that [`LeaseManager`] lists.
    ///
    /// [`LeaseManager`]: crate::LeaseManager#what-is-promised
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// let token = lease.cancellation_token();
    /// let work = tokio::spawn(async move {
    ///     token.run_until_cancelled(std::future::pending::<()>()).await
    /// });
    /// lease.unlock().await?;
    /// assert!(work.await.unwrap().is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn cancellation_token(&self) -> CancellationToken {
        self.core().ensure_running();
        self.token.get_or_init(|| self.hold.lost_token()).child_token()
    }

    /// Waits for the loss of this lease and says why.
    ///
    /// The future borrows nothing, so a spawned task can keep it. After a clean unlock or drop it
    /// stays pending for ever: use it in a `select!`, or [`cancellation_token`](Lease::cancellation_token) for any end.
    ///
    /// # Cancel safety
    ///
    /// Safe: call it again and nothing is missed, for a loss is final.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// let lost = lease.lost();
    /// leases.force_unlock("report").await?;
    /// assert_eq!(lost.await, leasehold::Loss::Revoked);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
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

    /// Whether the lease is held now, by the local clock.
    ///
    /// It costs a clock reading and no I/O, and is right even when the whole runtime was frozen:
    /// it reads the clock itself. A lease whose time has passed is lost by this call.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost), with the cause.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// for page in 0..3 {
    ///     lease.check()?; // between two steps that must not run without it
    ///     # let _ = page;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn check(&self) -> Result<()> {
        match self.hold.phase(self.core()) {
            Phase::Lost(loss) => Err(Error::lost(loss)),
            _ => Ok(()),
        }
    }

    /// For how long the lease is surely held if no further renewal succeeds; zero when lost.
    ///
    /// By the local clock, without I/O. Renewals push it up again. It counts to the moment when the
    /// token fires, which is a grace earlier than the store lets go.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// assert!(lease.remaining() > std::time::Duration::from_secs(20));
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn remaining(&self) -> Duration {
        self.hold.remaining(self.core())
    }

    /// Makes sure that at least `min` [remains](Lease::remaining), waiting for a renewal if less does.
    ///
    /// Use it before a step that cannot be stopped half way. It returns at once while all is well. Less than
    /// half of the time to live remains only when a renewal is late, and the watchdog is trying then; so
    /// it ends when the lease is lost at the latest.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lease was lost before that, and
    /// [`Invalid`](crate::ErrorKind::Invalid) for more than half of the time to live, or more than
    /// `max_hold` leaves.
    ///
    /// # Cancel safety
    ///
    /// Safe: the renewal goes on without it.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use std::time::Duration;
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// lease.ensure_remaining(Duration::from_secs(5)).await?;
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn ensure_remaining(&self, min: Duration) -> Result<()> {
        let core = self.core();
        if min > core.timing.ttl / 2 {
            return Err(Error::invalid(format!(
                "{min:?} cannot be ensured with a time to live of {:?}; ask for at most half of it",
                core.timing.ttl
            )));
        }
        core.ensure_running();
        consume_budget().await;
        loop {
            self.check()?;
            if self.remaining() >= min {
                return Ok(());
            }
            if self.hold.ends_before(core.now() + min) {
                return Err(Error::invalid(format!(
                    "max_hold ends this lease in less than {min:?}"
                )));
            }
            // So late, a renewal is under way or due: the first leaves after a third of T. What changed
            // before this line is seen by the next look, what comes later wakes us.
            let changed = self.hold.changed();
            if self.check().is_ok() && self.remaining() < min {
                core.attend(pin!(changed)).await;
            }
        }
    }

    /// Whether the lease is held, at risk or lost, by the local clock.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// assert_eq!(lease.state(), leasehold::LeaseState::Held);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn state(&self) -> LeaseState {
        match self.hold.phase(self.core()) {
            Phase::Lost(_) => LeaseState::Lost,
            Phase::AtRisk => LeaseState::AtRisk,
            Phase::Held | Phase::Releasing | Phase::Released => LeaseState::Held,
        }
    }

    /// Runs `future` for as long as the lease is held.
    ///
    /// When the lease is lost, `future` is dropped at once, at whatever await it is. What it has
    /// spawned goes on: give that the [`cancellation_token`](Lease::cancellation_token). A future that blocks its thread
    /// cannot be dropped until it returns to its executor.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lease was lost first, also when `future` ended without an await
    /// after that; its output is dropped then.
    ///
    /// # Cancel safety
    ///
    /// As `future`: dropping this drops it. The lease is not affected.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// let pages = lease.run(async { 3 }).await?;
    /// assert_eq!(pages, 3);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output> {
        consume_budget().await;
        let mut lost = pin!(self.lost());
        let mut future = pin!(future);
        poll_fn(|cx| {
            // The clock first: after a freeze nothing more of the work may run.
            self.check()?;
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                // And after it: the last stretch may have been a long one.
                return Poll::Ready(self.check().map(|()| output));
            }
            lost.as_mut().poll(cx).map(|loss| Err(Error::lost(loss)))
        })
        .await
    }

    /// The fencing token of this hold: larger than that of any earlier grant of the name.
    ///
    /// Send it with every write, and let the resource refuse a smaller one than it has seen. It is
    /// the same for nested leases. `None` when fencing is off or the store has none.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let mut lock = leases.lock("report");
    /// let first = lock.lock().await?.fence();
    /// let second = lock.lock().await?.fence();
    /// assert!(first.is_some() && first < second);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn fence(&self) -> Option<u64> {
        self.hold.fence
    }

    /// How many leases of this hold are alive: 1, and one more for each nested call.
    pub fn hold_count(&self) -> u32 {
        self.hold.count()
    }

    /// Gives the lease back and waits for the store's answer.
    ///
    /// The token fires first. The last lease of a hold frees the name and wakes a waiter; a nested
    /// one only lowers the hold count. A refused lowering is not an error: the process's own
    /// count is the truth.
    ///
    /// When a waiter of the same manager is next, it is handed the name in memory, without a word to the
    /// store, as often in a row as [`Builder::max_local_handoffs`](crate::Builder::max_local_handoffs) allows.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::ErrorKind::Lost): the lease had been lost before; what it guarded may have
    ///   met someone else's work.
    /// - Any other kind: the store did not confirm within one or two attempts (T/10 each). The engine goes on
    ///   trying in the background until the lease expires by itself.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, or in one without timers; the release is done in the background then.
    ///
    /// # Cancel safety
    ///
    /// Safe: the release is done in the background if this is dropped.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("report").lock().await?;
    /// lease.unlock().await?;
    /// assert!(leases.inspect("report").await?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn unlock(mut self) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let _call = engine.core.call();
        self.end();
        let result = self.settle().await;
        // Only now: what is begun must not wait for a turn of this task.
        consume_budget().await;
        result
    }

    async fn settle(&self) -> Result<()> {
        let (core, hold) = (self.core(), &self.hold);
        let now = core.now();
        let Some(phase) = hold.leave(core, now) else {
            // The next in line of this process has it.
            return Ok(());
        };
        if let Phase::Lost(loss) = phase {
            core.reap(Job::Settle(Arc::clone(hold)));
            return Err(Error::lost(loss));
        }
        core.ensure_running();
        // A request may have to wait for the one before it, so two attempts in all.
        let settle = pin!(settle(core, hold, now));
        let result = match timeout(core.timing.attempt * 2, core.attend(settle)).await {
            Ok(result) => result,
            Err(_) => return Err(Error::silent()),
        };
        // Another lease's release may have found it out.
        let result = result.and_then(|()| match hold.loss() {
            Some(loss) => Err(Error::lost(loss)),
            None => Ok(()),
        });
        if result.is_err() {
            core.reap(Job::Settle(Arc::clone(hold)));
        }
        result
    }

    /// Lets the lease go without telling the store: it expires by itself.
    ///
    /// When no other lease of the hold is alive, renewal stops, and the name becomes free after
    /// the time to live at the latest. Useful to keep others out for a while after a crash-like
    /// end.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// leases.lock("report").lock().await?.forget();
    /// assert!(leases.inspect("report").await?.is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn forget(mut self) {
        self.end();
        self.hold.forget(self.core());
    }

    /// Belief ends before anything is sent.
    fn end(&mut self) {
        self.over = true;
        if let Some(token) = self.token.get() {
            token.cancel();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.over {
            self.end();
            self.hold.give_back(self.core());
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.hold.name)
            .field("holder", &self.hold.token)
            .field("fence", &self.hold.fence)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
