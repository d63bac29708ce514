//! Runs a job on one of many replicas.

use crate::engine::{
    AcquireSpec, Engine, Options, Polling, StoreRefusal, WaitLimit, acquire, calls, setters,
};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::locks::lease::Lease;
use crate::store::{Closed, HolderInfo, Inspection, Mark, Mode, Name};
use crate::util::runtime;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;

/// The time for which a key stays closed by default.
const DEFAULT_KEEP: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time that a store keeps a key.
const LONGEST_KEEP: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A job that runs on one of many replicas, made by [`LeaseManager::once`](crate::LeaseManager::once).
///
/// A *job* has a *key*, and success *closes* the key for the time of [`keep`](Job::keep): while it is closed, no replica
/// runs the job again.
///
/// The key names the job and its occasion: `nightly@2026-11-25T02:00Z`, `migration:42`. All replicas call
/// [`run`](Job::run) with the same key. One of them runs the body, and [`Once`] reports its success to the others. An
/// error, a panic, a dropped future or the death of the process leaves the key free, at once or after the
/// [TTL](crate::Builder::ttl), and another replica may run the job. See [`jobs`](crate::guide::jobs).
///
/// The key is an exclusive [lock](crate::Lock) of the same name.
///
/// ```
/// use leasehold::Once;
/// use std::time::Duration;
///
/// # async fn backup() -> Result<u64, std::io::Error> { Ok(3) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let key = "nightly@2026-11-25T02:00Z"; // the time for which it is scheduled
/// let job = || leases.once(key).keep(Duration::from_secs(20 * 60 * 60));
/// match job().run(async |_lease| backup().await).await? {
///     Once::Ran(files) => println!("{files} files"),
///     Once::Failed(error) => println!("to be tried again: {error}"),
///     Once::Running(_) => println!("another replica is at it"),
///     Once::AlreadyDone(closed) => println!("done {:?} ago", closed.ago),
///     other => println!("{other:?}"),
/// }
/// assert!(matches!(job().run(async |_lease| backup().await).await?, Once::AlreadyDone(_)));
/// # Ok(())
/// # }
/// ```
#[must_use = "a job does nothing until it is run"]
#[doc(alias = "cron")]
#[doc(alias = "ShedLock")]
#[doc(alias = "idempotency")]
pub struct Job {
    engine: Arc<Engine>,
    name: Result<Name>,
    keep: Duration,
    wait: Duration,
    options: Options,
}

/// The outcome of a [`Job`].
///
/// An `Err` of [`Job::run`] is a failure of the lease. A failure of the body is [`Failed`](Once::Failed).
#[derive(Debug)]
#[must_use = "it says whether the job has run, and has the error of the body"]
#[non_exhaustive]
pub enum Once<T, E> {
    /// The body returned `Ok` here, and the key is closed.
    Ran(T),
    /// The body returned `Ok` here, but the store did not confirm that the key is closed. The job may run once more.
    Unconfirmed(T, Error),
    /// The body returned `Err` here. The key is released. If the store does not confirm that, it is free when the lease
    /// expires.
    Failed(E),
    /// Another holder has the key, and runs the job: the value describes it. `None` if that holder no longer has the key.
    Running(Option<HolderInfo>),
    /// The job was done before: the key is closed.
    AlreadyDone(Closed),
}

impl Job {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        Self {
            engine,
            name: Name::new(name),
            keep: DEFAULT_KEEP,
            wait: Duration::ZERO,
            options: Options::without_rest(),
        }
    }

    /// Sets the time for which a success closes the key: 1 ms to 365 days, 24 hours by default.
    ///
    /// Choose it longer than the time in which a replica can still ask for this key.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Sets how long [`run`](Job::run) waits while another replica runs the job; it does not wait by default.
    ///
    /// Use it at start-up, where all replicas need the result of a migration: the call ends with [`Once::AlreadyDone`] as soon as
    /// the other replica is done, and runs the body if the other one fails.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Runs `body` if the key is free, and closes the key if it returns `Ok`.
    ///
    /// The key is renewed while `body` runs. When the lease is lost, `body` is dropped at its current await. Without
    /// [`wait`](Job::wait) it makes one attempt.
    ///
    /// # Errors
    ///
    /// - [`Lost`](ErrorKind::Lost): the lease was lost before the success was recorded, so the key is not closed, and
    ///   another replica may run the job. `body` or its output was dropped.
    /// - [`Unsupported`](ErrorKind::Unsupported), before `body` begins: the store cannot keep a key closed, such as
    ///   ZooKeeper.
    /// - [`Invalid`](ErrorKind::Invalid): the key or a time is not valid.
    /// - As [`Lock::try_lock`](crate::Lock::try_lock); with [`wait`](Job::wait),
    ///   [`Unavailable`](ErrorKind::Unavailable) if the store did not answer during the whole wait, or for one
    ///   [TTL](crate::Builder::ttl).
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock). A panic of `body` passes through, and the key is free.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `body`, which is dropped at its current await; the key is released in the background. If it is
    /// dropped after `body` returned `Ok`, the key is closed in the background. If it is dropped before `body` begins,
    /// `body` never runs, and a key that was acquired is released in the background.
    #[track_caller]
    pub fn run<T, E, F>(self, body: F) -> impl Future<Output = Result<Once<T, E>>>
    where
        F: AsyncFnOnce(&Lease) -> Result<T, E>,
    {
        let caller = Location::caller();
        async move {
            runtime::need_at(Some(caller));
            let lease = match self.enter(caller).await? {
                Entered::Lease(lease) => lease,
                Entered::Held(inspection) => return Ok(refused(inspection)),
            };
            let result = lease.run(body(&lease)).await?;
            match result {
                Ok(output) => match lease.unlock_done(self.keep).await {
                    Ok(()) => Ok(Once::Ran(output)),
                    Err(error) if error.loss().is_some() => Err(error),
                    Err(error) => Ok(Once::Unconfirmed(output, error)),
                },
                Err(error) => {
                    // Whether the release is confirmed or not: the key is free, at the latest after one TTL.
                    if let Err(error) = lease.unlock().await {
                        tracing::warn!(name = self.name(), %error, "release failed");
                    }
                    Ok(Once::Failed(error))
                }
            }
        }
    }

    /// Acquires the key, if it is free or becomes free in time.
    async fn enter(&self, caller: &'static Location<'static>) -> Result<Entered> {
        consume_budget().await;
        let core = &self.engine.core;
        let name = self.name.as_ref().map_err(Error::clone)?;
        core.life.check()?;
        core.check_keeps()?;
        if !(Duration::from_millis(1)..=LONGEST_KEEP).contains(&self.keep) {
            return Err(Error::invalid(format!(
                "a keep of {:?} is out of range; choose 1 ms to 365 days",
                self.keep
            )));
        }
        let mut polling = Polling::new(core, name, self.wait);
        let mut last = None;
        loop {
            let asked = core.now();
            let mut answer = self.ask(name, caller).await;
            if let Ok(None) = answer
                && (last.is_none() || polling.is_over())
            {
                // The first refusal is described, and the one that ends the call.
                answer = self.describe(name).await.map(Some);
            }
            match answer {
                Ok(None) => polling.refused(false).await?,
                Ok(Some(entered)) if entered.is_final() || polling.is_over() => return Ok(entered),
                Ok(Some(entered)) => {
                    let is_free = entered.is_free();
                    last = Some(entered);
                    polling.refused(is_free).await?;
                }
                Err(error) => {
                    if let Err(error) = polling.failed(error, asked).await {
                        // Perhaps only the end of the wait brought no answer.
                        let known = last.filter(|_| error.is_unavailable() && !polling.is_silent());
                        return known.ok_or(error);
                    }
                }
            }
        }
    }

    /// Makes one attempt. Returns `None` if the store has refused it because another holder runs the job.
    async fn ask(
        &self,
        name: &Name,
        caller: &'static Location<'static>,
    ) -> Result<Option<Entered>> {
        let core = &self.engine.core;
        let refusal = StoreRefusal::new();
        let spec = AcquireSpec::from(Mode::Exclusive).with(&self.options).at(caller);
        let spec = spec.with_refusal(&refusal);
        if let Some(claim) = acquire(core, name, spec, &mut None, WaitLimit::Once).await? {
            return Ok(Some(Entered::Lease(Lease::new(&self.engine, claim))));
        }
        match refusal.get() {
            Some(None | Some(Mark::Kept)) => Ok(None),
            // It is done, or the store was not asked: another task of this process may have the key.
            Some(Some(Mark::Done)) | None => self.describe(name).await.map(Some),
        }
    }

    /// Asks the store who has the key.
    async fn describe(&self, name: &Name) -> Result<Entered> {
        calls::inspect(&self.engine.core, name).await.map(Entered::Held)
    }

    fn name(&self) -> &str {
        Name::text_of(&self.name)
    }
}

// After the calls, which a reader looks for first.
impl Job {
    setters!(class label lock_delay stall_after on_overrun warn_held);
}

/// The outcome of an attempt to acquire the key.
enum Entered {
    Lease(Lease),
    Held(Inspection),
}

impl Entered {
    /// Returns whether the store has no holder.
    fn is_free(&self) -> bool {
        matches!(self, Self::Held(inspection) if inspection.holders.is_empty())
    }

    /// Returns whether there is nothing to wait for.
    fn is_final(&self) -> bool {
        match self {
            Self::Lease(_) => true,
            Self::Held(inspection) => done(inspection).is_some(),
        }
    }
}

fn done(inspection: &Inspection) -> Option<&Closed> {
    let closed = inspection.holders.first()?.closed.as_ref()?;
    (closed.mark == Mark::Done).then_some(closed)
}

/// Returns the outcome of a job that did not run here.
fn refused<T, E>(inspection: Inspection) -> Once<T, E> {
    match done(&inspection) {
        Some(closed) => Once::AlreadyDone(closed.clone()),
        None => Once::Running(inspection.into_holder()),
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("name", &self.name)
            .field("keep", &self.keep)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
