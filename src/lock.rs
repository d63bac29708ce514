//! How a name is taken: alone, again, or after waiting.

use crate::error::{Error, ErrorKind, Result};
use crate::hold::engine::{Core, Engine};
use crate::hold::queue::Turn;
use crate::hold::reaper::{Attempt, Nested};
use crate::hold::{Entered, Entry, Grant, Hold};
use crate::lease::Lease;
use crate::store::{Acquire, Acquired, Mode, Name, Token, Wakeups};
use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

/// A server's time to live has a grain of a millisecond; be there just after it ended.
const AFTER_EXPIRY: Duration = Duration::from_millis(5);

/// A handle on one name for one flow of control.
///
/// Made by [`LeaseManager::lock`](crate::LeaseManager::lock); making it does no I/O. Taking the lock
/// needs `&mut`: that is the proof that one flow of control is asking. While a lease of this handle
/// is alive, the same handle enters again at once (hold count 2, 3, ...); everyone else waits, other
/// handles of the same process and task included.
///
/// The compiler refuses two concurrent locks through one handle:
///
/// ```compile_fail,E0499
/// # async fn f(leases: leasehold::LeaseManager) {
/// let mut lock = leases.lock("a");
/// let _ = tokio::join!(lock.lock(), lock.lock());
/// # }
/// ```
///
/// ```
/// # async fn f(leases: leasehold::LeaseManager) {
/// let (mut here, mut there) = (leases.lock("a"), leases.lock("a"));
/// let _ = tokio::join!(here.lock(), there.lock());
/// # }
/// ```
///
/// It cannot see through a mutex: a handle in an `Arc<tokio::sync::Mutex<Lock>>` is *one* holder for all
/// who reach it, and a lease that outlives the mutex guard lets the next one in as the same holder.
/// Give each flow its own handle instead.
///
/// # Fairness
///
/// Handles of one manager wait in the order of arrival. Between processes there is no order.
pub struct Lock {
    engine: Arc<Engine>,
    /// A bad name is told by the first attempt to lock it.
    name: Result<Name>,
    current: Option<Arc<Hold>>,
}

/// A flow of control that takes many names.
///
/// Made by [`LeaseManager::holder`](crate::LeaseManager::holder). A [`Lock`] is a holder with one name.
/// Take several names in one fixed order everywhere, or two holders may wait for each other for ever.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let mut holder = leases.holder();
/// let from = holder.lock("account:1").await?;
/// let to = holder.lock("account:2").await?;
/// let again = holder.lock("account:1").await?; // nested
/// assert_eq!(from.hold_count(), 2);
/// # drop((from, to, again));
/// # Ok::<(), leasehold::Error>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Holder {
    engine: Arc<Engine>,
    holds: HashMap<Name, Option<Arc<Hold>>>,
    /// At how many names the ended ones are swept out next.
    sweep_at: usize,
}

#[derive(Clone, Copy, Debug)]
enum Patience {
    Once,
    For(Duration),
    Forever,
}

impl Lock {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        Self {
            engine,
            name: Name::new(name),
            current: None,
        }
    }

    /// The name, as it was given; empty if it was refused.
    pub fn name(&self) -> &str {
        self.name.as_ref().map(Name::as_str).unwrap_or_default()
    }

    /// Waits until the lock is ours.
    ///
    /// Enters at once, one level deeper, while a lease of this handle is alive.
    ///
    /// # Errors
    ///
    /// - [`Lost`](ErrorKind::Lost): the hold of an older lease that is still alive was lost; drop that first.
    /// - [`Unavailable`](ErrorKind::Unavailable): no answer from the store for the time to live.
    /// - [`Denied`](ErrorKind::Denied), [`Rejected`](ErrorKind::Rejected),
    ///   [`WrongType`](ErrorKind::WrongType), [`Invalid`](ErrorKind::Invalid),
    ///   [`Closed`](ErrorKind::Closed): at once.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, or in one without timers.
    ///
    /// # Cancel safety
    ///
    /// Safe: if it is dropped, you lose your place in the queue, and a lease that was on its way is
    /// given back.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// # drop(lease);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn lock(&mut self) -> Result<Lease> {
        lock(&self.engine, &self.name, &mut self.current).await
    }

    /// Takes the lock if it is free now; `None` if it is not.
    ///
    /// One attempt. It never overtakes: when someone of this process holds the name or waits for it,
    /// the answer is `None` without asking the store.
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock), but [`Unavailable`](ErrorKind::Unavailable) after one attempt.
    ///
    /// # Panics
    ///
    /// As [`lock`](Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe, as [`lock`](Lock::lock).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("cron").try_lock().await?;
    /// assert!(lease.is_some());
    /// assert!(leases.lock("cron").try_lock().await?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn try_lock(&mut self) -> Result<Option<Lease>> {
        acquire(&self.engine, &self.name, &mut self.current, Patience::Once).await
    }

    /// Waits until the lock is ours, at most for `timeout`; `None` if it was not by then.
    ///
    /// A zero `timeout` is one attempt.
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock); [`Unavailable`](ErrorKind::Unavailable) when the time passed and the
    /// store had not answered.
    ///
    /// # Panics
    ///
    /// As [`lock`](Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe, as [`lock`](Lock::lock).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use std::time::Duration;
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("cron").lock().await?;
    /// let other = leases.lock("cron").lock_timeout(Duration::from_millis(20)).await?;
    /// assert!(other.is_none());
    /// # drop(lease);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn lock_timeout(&mut self, timeout: Duration) -> Result<Option<Lease>> {
        acquire(
            &self.engine,
            &self.name,
            &mut self.current,
            Patience::For(timeout),
        )
        .await
    }

    /// Takes the lock, runs `body` for as long as it is held, and gives it back.
    ///
    /// `body` gets the handle, to call what locks the same name again, and the lease. What it returns
    /// is returned unchanged, errors of its own included; a release that fails is traced, and never
    /// replaces it. When the lease is lost, `body` is dropped at once.
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock), and [`Lost`](ErrorKind::Lost) when the lease was lost before `body` ended.
    ///
    /// # Panics
    ///
    /// As [`lock`](Lock::lock). A panic of `body` passes through; the lease is given back.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `body` and gives the lease back.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let sum = leases.lock("sum").with(async |_lock, lease| {
    ///     assert_eq!(lease.hold_count(), 1);
    ///     1 + 1
    /// }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn with<R, F>(&mut self, body: F) -> Result<R>
    where
        F: AsyncFnOnce(&mut Lock, &Lease) -> R,
    {
        let lease = self.lock().await?;
        let result = lease.run(body(self, &lease)).await;
        if let Err(error) = lease.unlock().await {
            tracing::warn!(name = self.name(), %error, "release failed");
        }
        result
    }
}

impl Holder {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            holds: HashMap::new(),
            sweep_at: 16,
        }
    }

    /// Waits until `name` is ours, as [`Lock::lock`] does.
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
    /// Safe, as [`Lock::lock`].
    pub async fn lock(&mut self, name: &str) -> Result<Lease> {
        let (engine, name, current) = self.place(name)?;
        lock(engine, &Ok(name), current).await
    }

    /// Takes `name` if it is free now, as [`Lock::try_lock`] does.
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
    /// Safe, as [`Lock::lock`].
    pub async fn try_lock(&mut self, name: &str) -> Result<Option<Lease>> {
        let (engine, name, current) = self.place(name)?;
        acquire(engine, &Ok(name), current, Patience::Once).await
    }

    /// Waits until `name` is ours, at most for `timeout`, as [`Lock::lock_timeout`] does.
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
    /// Safe, as [`Lock::lock`].
    pub async fn lock_timeout(&mut self, name: &str, timeout: Duration) -> Result<Option<Lease>> {
        let (engine, name, current) = self.place(name)?;
        acquire(engine, &Ok(name), current, Patience::For(timeout)).await
    }

    fn place(&mut self, name: &str) -> Result<(&Arc<Engine>, Name, &mut Option<Arc<Hold>>)> {
        let name = Name::new(name)?;
        if self.holds.len() >= self.sweep_at {
            self.holds.retain(|_, hold| {
                hold.as_ref()
                    .is_some_and(|hold| !hold.is_over() || hold.count() > 0)
            });
            self.sweep_at = 16.max(2 * self.holds.len());
        }
        let current = self.holds.entry(name.clone()).or_default();
        Ok((&self.engine, name, current))
    }
}

async fn lock(
    engine: &Arc<Engine>,
    name: &Result<Name>,
    current: &mut Option<Arc<Hold>>,
) -> Result<Lease> {
    let lease = acquire(engine, name, current, Patience::Forever).await?;
    lease.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the wait ended without a lease"))
}

/// The one way to a lease: traced, and bounded by the caller's patience.
async fn acquire(
    engine: &Arc<Engine>,
    name: &Result<Name>,
    current: &mut Option<Arc<Hold>>,
    patience: Patience,
) -> Result<Option<Lease>> {
    let name = name.as_ref().map_err(Error::clone)?;
    let core = &engine.core;
    let span = tracing::debug_span!(
        "acquire",
        name = name.as_str(),
        waited_ms = tracing::field::Empty,
        outcome = tracing::field::Empty,
    );
    let start = core.now();
    // Whether the store has said anything; waiting behind a local holder needs no answer.
    let answered = AtomicBool::new(true);
    let once = match patience {
        Patience::Once => true,
        Patience::For(limit) => limit.is_zero(),
        Patience::Forever => false,
    };
    let seek = Seek {
        engine,
        name,
        once,
        answered: &answered,
    }
    .run(current)
    .instrument(span.clone());
    let result = match patience {
        Patience::For(limit) if !once => match timeout(limit, seek).await {
            Ok(result) => result,
            Err(_) if answered.load(Ordering::Relaxed) => Ok(None),
            Err(_) => Err(silent()),
        },
        _ => seek.await,
    };
    let waited = core.now().saturating_duration_since(start);
    span.record("waited_ms", waited.as_secs_f64() * 1e3);
    span.record(
        "outcome",
        match &result {
            Ok(Some(_)) => "granted",
            Ok(None) => "not granted",
            Err(_) => "failed",
        },
    );
    if let Ok(Some(lease)) = &result {
        let count = lease.hold_count();
        span.in_scope(|| {
            tracing::debug!(
                name = name.as_str(),
                fence = lease.fence(),
                count,
                "granted"
            )
        });
    }
    result
}

fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "the store did not answer in time")
}

struct Seek<'a> {
    engine: &'a Arc<Engine>,
    name: &'a Name,
    once: bool,
    answered: &'a AtomicBool,
}

impl Seek<'_> {
    fn core(&self) -> &Arc<Core> {
        &self.engine.core
    }

    async fn run(self, current: &mut Option<Arc<Hold>>) -> Result<Option<Lease>> {
        self.core().check_open()?;
        self.engine.ensure_running();
        if let Some(hold) = current.clone() {
            if let Some(lease) = self.enter(hold).await? {
                return Ok(Some(lease));
            }
            *current = None;
        }
        let queue = &self.core().queue;
        let turn = if self.once {
            match queue.try_enter(self.name) {
                Some(turn) => turn,
                None => return Ok(None),
            }
        } else {
            tokio::select! {
                turn = queue.enter(self.name) => turn,
                () = self.core().closed.cancelled() => return Err(Error::closed()),
            }
        };
        let Some(grant) = self.take(turn).await? else {
            return Ok(None);
        };
        let hold = Hold::begin(self.core(), grant);
        *current = Some(Arc::clone(&hold));
        Ok(Some(Lease::new(self.engine, hold)))
    }

    fn request(&self, token: Token, count: u32) -> Acquire {
        let core = self.core();
        Acquire {
            name: self.name.clone(),
            token,
            mode: Mode::Exclusive,
            count,
            ttl: core.timing.ttl,
            fencing: core.settings.fencing.filter(|_| count == 1),
            timeout: core.timing.attempt,
        }
    }

    /// Enters a hold of ours once more. `None`: nothing is left of it.
    async fn enter(&self, hold: Arc<Hold>) -> Result<Option<Lease>> {
        let core = self.core();
        let count = loop {
            match hold.enter(core) {
                Entry::Count(count) => break count,
                Entry::Busy => hold.until(|hold| (!hold.is_busy()).then_some(())).await,
                Entry::Lost(loss) => return Err(Error::lost(loss)),
                Entry::Over => {
                    // The own release may still be under way; `try_lock` must not trip over it.
                    let over = hold.until(|hold| hold.is_over().then_some(()));
                    if self.once {
                        let _ = timeout(core.timing.attempt, over).await;
                    }
                    return Ok(None);
                }
            }
        };
        let mut nested = Nested::new(core, &hold, count);
        let mut failures = 0;
        let ask = async {
            loop {
                self.answered.store(false, Ordering::Relaxed);
                match nested.ask(self.request(hold.token, count)).await {
                    Entered::Failed(error) if error.is_unavailable() && !self.once => {
                        failures += 1;
                        tracing::debug!(%error, "nested acquire failed; trying again");
                        sleep(core.timing.gap(failures, core.jitter())).await;
                    }
                    verdict => return verdict,
                }
            }
        };
        tokio::select! {
            verdict = ask => nested.end(verdict, true)?,
            loss = hold.when_lost() => return Err(Error::lost(loss)),
        }
        Ok(Some(Lease::new(self.engine, hold)))
    }

    /// Takes the name from the store, alone in this process. `None`: it is held, and we ask once only.
    async fn take(&self, turn: Turn) -> Result<Option<Grant>> {
        let core = self.core();
        let mut attempt = Attempt::new(core, self.name.clone(), core.draw_token());
        let mut hints = Hints::Unasked;
        let mut heard = core.now();
        let mut failures = 0;
        self.answered.store(false, Ordering::Relaxed);
        loop {
            core.check_open()?;
            let silence = core.now().saturating_duration_since(heard);
            let limit = if self.once {
                core.timing.attempt * 2
            } else {
                core.timing.ttl
            };
            let request = self.request(attempt.token(), 1);
            let verdict = match timeout(limit.saturating_sub(silence), attempt.ask(request)).await {
                Ok(verdict) => verdict,
                Err(_) => return Err(silent()),
            };
            match verdict {
                Ok(Acquired::Granted { sent, fence }) => {
                    if core.timing.stale(sent, core.now()) {
                        tracing::debug!("granted too late; given back");
                        attempt.give_back(sent);
                        attempt = Attempt::new(core, self.name.clone(), core.draw_token());
                        continue;
                    }
                    let token = attempt.token();
                    let unsure_until = attempt.taken();
                    let name = self.name.clone();
                    return Ok(Some(Grant {
                        name,
                        token,
                        fence,
                        sent,
                        unsure_until,
                        turn,
                    }));
                }
                Ok(Acquired::Held { remaining }) => {
                    self.answered.store(true, Ordering::Relaxed);
                    if self.once {
                        return Ok(None);
                    }
                    (heard, failures) = (core.now(), 0);
                    hints.wait(core, self.name, remaining).await?;
                }
                Ok(Acquired::NotYours(_)) => {
                    return Err(Error::invalid(
                        "the store took an outermost acquire for a nested one",
                    ));
                }
                Err(error) if error.is_unavailable() && !self.once => {
                    self.answered.store(false, Ordering::Relaxed);
                    failures += 1;
                    let gap = core.timing.gap(failures, core.jitter());
                    if core.now() + gap >= heard + core.timing.ttl {
                        return Err(error);
                    }
                    tracing::debug!(%error, "acquire failed; trying again");
                    tokio::select! {
                        () = sleep(gap) => {}
                        () = core.closed.cancelled() => {}
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// What a waiter listens to between two attempts.
enum Hints {
    Unasked,
    Subscribed(Wakeups),
    /// The store has no wake-ups, or refused them: the clock alone.
    Clock,
}

impl Hints {
    /// Waits for a hint, or until the holder's time to live has ended, or for the poll bound.
    ///
    /// The first call only subscribes: what was released before that must be seen by one more attempt.
    async fn wait(&mut self, core: &Core, name: &Name, remaining: Option<Duration>) -> Result<()> {
        if let Self::Unasked = self {
            *self = match timeout(core.timing.attempt, core.store.subscribe(name)).await {
                Ok(Ok(Some(wakeups))) => Self::Subscribed(wakeups),
                Ok(Ok(None)) => Self::Clock,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "no wake-ups; waiting by the clock");
                    Self::Clock
                }
                Err(_) => Self::Clock,
            };
            return Ok(());
        }
        let bound = core.settings.poll_bound;
        let pause = remaining.map_or(bound, |left| bound.min(left + AFTER_EXPIRY));
        let hint = async {
            match self {
                Self::Subscribed(wakeups) => wakeups.recv().await,
                _ => pending().await,
            }
        };
        tokio::select! {
            () = hint => Ok(()),
            () = sleep(pause) => Ok(()),
            () = core.closed.cancelled() => Err(Error::closed()),
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("names", &self.holds.len())
            .finish_non_exhaustive()
    }
}
