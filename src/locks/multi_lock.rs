//! Locks several names: all of them or none.
//!
//! # Invariants
//!
//! 1. While a call waits for a name, it holds no other name of the set, or it takes the names in their order. So no two
//!    calls wait for each other.
//! 2. A call that ends without a lease leaves no lease: what it took is released in the background.
//! 3. The `min_hold` of the names begins when the caller gets all of them, so that a round that fails closes none. So do
//!    `stall_after` and `max_hold`, so that a wait for the others uses up neither. Before that, a call that is not polled
//!    for T loses what it took.
//! 4. All holds of a set have one loss token, so that the loss of any fires it. A set of old and new holds has none: it is
//!    given up, and all names are taken again.

use crate::clock::Instant;
use crate::engine::{
    AcquireSpec, CallPulse, Engine, Hold, Options, SetCall, WaitLimit, acquire, answers, calls,
    setters,
};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::locks::lease::{Lease, finish, run_while_held};
use crate::store::{Mode, Name};
use crate::util::join::{BoxedCall, all, all_but, first};
use crate::util::panics::run_wakers;
use crate::util::reached::Rare;
use crate::util::runtime;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The largest set of names.
const MOST_NAMES: usize = 64;
/// After so many refusals the names are taken in their order.
const MOST_REFUSALS: u32 = 8;

/// A handle on a set of names, for one flow of control.
///
/// [`LeaseManager::multi_lock`](crate::LeaseManager::multi_lock) creates it without I/O. It locks all names of the set or
/// none. Sets that overlap cannot deadlock, whatever the order in which their names are given. Use it for work on
/// several things at once, such as a transfer between two accounts.
///
/// Its options apply to each name separately: report [progress](Lease::progress) on each of [its
/// leases](MultiLease::leases). [`min_hold`](MultiLock::min_hold), [`stall_after`](MultiLock::stall_after) and
/// [`max_hold`](crate::Builder::max_hold) count from the lease of the set, for all names.
///
/// Each name is an exclusive lock, the same as that of [`LeaseManager::lock`](crate::LeaseManager::lock). While a lease
/// of this handle is alive, the same handle re-enters all names at once. Every other handle waits, also for one of the
/// names.
///
/// # How it locks
///
/// It asks for all names at once, in [one step](MultiLock::is_atomic) where the store can. If one of them is held, it has
/// none of them. It waits for that one, and asks for the others when it has it. If one of the others is held then, it
/// releases it and waits for that one. After 8 refusals, or a third of the
/// [TTL](crate::Builder::ttl), it takes the names one after the other in the order of their bytes, so that it gets them
/// even if they are seldom free together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let mut accounts = leases.multi_lock(["account:7", "account:3"])?;
/// let lease = accounts.lock().await?;
/// // ... move money ...
/// lease.unlock().await
/// # }
/// ```
#[must_use = "a lock acquires nothing until `lock`, `try_lock`, `lock_timeout` or `with` is called"]
#[doc(alias = "RedissonMultiLock")]
#[doc(alias = "InterProcessMultiLock")]
pub struct MultiLock {
    engine: Arc<Engine>,
    /// In the order of their bytes, each once.
    entries: Vec<Entry>,
    /// Those of each name.
    options: Options,
    pulse: Arc<CallPulse>,
    atomic: bool,
}

/// A name of the set, and the last hold of it.
struct Entry {
    name: Name,
    current: Option<Arc<Hold>>,
}

/// The guard of a set of names.
///
/// While it is alive, the watchdog renews all of them. Dropping it releases them in the background. If any of them is
/// lost, its [`cancellation_token`](MultiLease::cancellation_token) fires, before the store can grant that name to
/// another holder. The others stay held until it is dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let lease = leases.multi_lock(["a", "b"])?.lock().await?;
/// let token = lease.cancellation_token();
/// leases.force_unlock("b", "it hangs").await?; // by an operator
///
/// assert!(token.is_cancelled());
/// let error = lease.check().unwrap_err();
/// assert_eq!(error.to_string(), "lost: \"b\": force_unlock released the name");
/// # Ok(())
/// # }
/// ```
#[must_use = "a lease that is not kept is released at once; bind it: `let _lease = ..`, not `let _ = ..`"]
#[clippy::has_significant_drop]
pub struct MultiLease {
    /// In the order of their names.
    leases: Vec<Lease>,
    /// Fires when one of the holds is lost.
    lost: CancellationToken,
    /// Fires on loss, unlock and drop; made when first asked for.
    token: OnceLock<CancellationToken>,
}

/// The outcome of asking once for all names.
enum Round {
    Granted(MultiLease),
    /// The name of the entry at this index is held.
    Refused(usize),
    /// The store did not answer for the name of the entry at this index.
    Unanswered(usize, Error),
    /// The lease around this call ended meanwhile, and its holds of some names are over.
    Torn,
}

impl MultiLock {
    pub(crate) fn new<N: AsRef<str>>(
        engine: Arc<Engine>,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self> {
        let mut checked = Vec::new();
        for name in names {
            checked.push(Name::new(name.as_ref())?);
        }
        checked.sort_unstable();
        if let Some(pair) = checked.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!(
                "the name {:?} is given twice; give each name of a set once",
                pair[0]
            )));
        }
        if checked.is_empty() || checked.len() > MOST_NAMES {
            return Err(Error::invalid(format!(
                "a multi-lock has {} names; give it 1 to {MOST_NAMES}",
                checked.len()
            )));
        }
        let entry = |name| Entry { name, current: None };
        let entries: Vec<_> = checked.into_iter().map(entry).collect();
        let mut options = Options::default();
        let pulse = Arc::default();
        options.set_pulse(&pulse);
        let names: Vec<_> = entries.iter().map(|entry| &entry.name).collect();
        let atomic = calls::is_atomic(&engine.core, &names);
        Ok(Self { engine, entries, options, pulse, atomic })
    }

    /// Returns whether the store takes all names in one step. A set of one name always is.
    ///
    /// A Redis server and the memory store do. A Redis Cluster does if the names have one hash tag, as `{cart:7}:items` and
    /// `{cart:7}:total`. Quorums and ZooKeeper do not: an attempt that fails holds the names that were free until
    /// the store has released them, about a round trip later, and meanwhile a [`try_lock`](crate::Lock::try_lock) of one
    /// of them can return `None`. All or none of the names are locked in either case.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// assert!(leases.multi_lock(["account:7", "account:3"])?.is_atomic());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_atomic(&self) -> bool {
        self.atomic
    }

    /// Returns the names, in the order of their bytes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Waits until this handle holds all names.
    ///
    /// Re-enters all of them at once, one level deeper, while a lease of this handle is alive.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock), but [`Unavailable`](ErrorKind::Unavailable) up to two
    /// [attempts](crate::guide::settings#what-follows-from-the-ttl) later; the message begins with the name that failed. Names that
    /// were taken on the way are released in the background.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, this call loses its places in the queues, and leases that were there or on their way are
    /// released in the background. If it is not polled for a [TTL](crate::Builder::ttl), as an arm of `select!` that takes
    /// long does, it loses the names that it has been granted so far, and asks for them again when it is polled.
    #[doc(alias = "acquire")]
    #[track_caller]
    pub fn lock(&mut self) -> impl Future<Output = Result<MultiLease>> + use<'_> {
        let caller = Location::caller();
        async move { self.acquire(caller, WaitLimit::Forever).await?.ok_or_else(Error::silent) }
    }

    /// Locks all names if they are free now; returns `None` if one of them is not.
    ///
    /// Makes one attempt for each name, as [`Lock::try_lock`](crate::Lock::try_lock) does, at the same time. After `None` it
    /// has none of them; what it took on the way, if it is not [atomic](MultiLock::is_atomic), is released in the
    /// background. If a name is lost before the last answer, all are asked for again.
    ///
    /// # Errors
    ///
    /// As [`lock`](MultiLock::lock), but [`Unavailable`](ErrorKind::Unavailable) after an attempt, or two.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, leases that the store grants to it are released in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let one = leases.lock("b").lock().await?;
    /// let mut both = leases.multi_lock(["a", "b"])?;
    /// assert!(both.try_lock().await?.is_none());
    /// one.unlock().await?;
    /// assert!(both.try_lock().await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "try_acquire")]
    #[track_caller]
    pub fn try_lock(&mut self) -> impl Future<Output = Result<Option<MultiLease>>> + use<'_> {
        self.acquire(Location::caller(), WaitLimit::Once)
    }

    /// Waits until this handle holds all names, for at most `timeout` in all; returns `None` if other holders have one
    /// of them until then.
    ///
    /// With a zero `timeout` it makes one attempt.
    ///
    /// # Errors
    ///
    /// As [`lock`](MultiLock::lock); [`Unavailable`](ErrorKind::Unavailable) if the time passes without an answer of
    /// the store for one of the names, also if another one is held.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](MultiLock::lock).
    #[track_caller]
    pub fn lock_timeout(
        &mut self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<MultiLease>>> + use<'_> {
        self.acquire(Location::caller(), WaitLimit::For(timeout))
    }

    /// Locks all names, runs `body` while all of them are held, and releases them.
    ///
    /// `body` gets the handle, for nested calls that lock the same names, and the lease. Its output is returned
    /// unchanged. A release that fails, other than by a loss, is logged and does not replace it. When one of the names is
    /// lost, `body` is dropped at once.
    ///
    /// # Errors
    ///
    /// As [`lock`](MultiLock::lock), and [`Lost`](ErrorKind::Lost) if one of the names was lost before `body` ended; the
    /// output of `body` is dropped then.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock). A panic of `body` passes through, and all names are released.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `body`, which is dropped at its current await. All names are released in the background.
    #[track_caller]
    pub fn with<R, F>(&mut self, body: F) -> impl Future<Output = Result<R>>
    where
        F: AsyncFnOnce(&mut MultiLock, &MultiLease) -> R,
    {
        let caller = Location::caller();
        async move {
            let lease =
                self.acquire(caller, WaitLimit::Forever).await?.ok_or_else(Error::silent)?;
            let result = lease.run(body(self, &lease)).await;
            let names = self.names().collect::<Vec<_>>().join(", ");
            finish(result, lease.unlock().await, &names)
        }
    }

    async fn acquire(
        &mut self,
        caller: &'static Location<'static>,
        limit: WaitLimit,
    ) -> Result<Option<MultiLease>> {
        runtime::need_at(Some(caller));
        let engine = Arc::clone(&self.engine);
        let pulse = Arc::clone(&self.pulse);
        let call = pin!(self.acquire_all(caller, limit));
        let core = &engine.core;
        let lease = pulse.during(core.clock(), core.timing.ttl, call).await?;
        Ok(lease.map(MultiLease::begin))
    }

    /// Takes all names, for a caller that has no lease yet.
    async fn acquire_all(
        &mut self,
        caller: &'static Location<'static>,
        limit: WaitLimit,
    ) -> Result<Option<MultiLease>> {
        let engine = Arc::clone(&self.engine);
        let options = self.options.clone();
        let spec = AcquireSpec::from(Mode::Exclusive).with(&options).at(caller);
        let core = &engine.core;
        let limit = limit.simplified();
        let start = core.now();
        let passed = || core.now().saturating_duration_since(start);
        let left = || match limit {
            WaitLimit::For(limit) => WaitLimit::For(limit.saturating_sub(passed())).simplified(),
            limit => limit,
        };
        // Also after the task that polls this has been kept from it.
        let is_last = || matches!(left(), WaitLimit::Once);
        let mut atomic = self.atomic;
        let mut awaited = None;
        let mut refusals = 0;
        let mut tried = false;
        let mut denied = None;
        let mut heard = None;
        let is_recent =
            |heard: Instant| core.now().saturating_duration_since(heard) < core.timing.attempt;
        loop {
            // Boxed: the future of a call for each name is large.
            let round = Box::pin(self.ask_all(spec, awaited.take(), atomic));
            let round = match left() {
                WaitLimit::Once if tried && !matches!(limit, WaitLimit::Once) => {
                    return denied.map_or(Ok(None), Err);
                }
                // A round ends soon, unless the store does not answer.
                WaitLimit::For(left) => match timeout(left, round).await {
                    Ok(round) => round,
                    // The answers may just be on their way.
                    Err(_) if heard.is_some_and(is_recent) => return Ok(None),
                    Err(_) => {
                        let mut entries = self.entries.iter();
                        let silent = entries
                            .find_map(|entry| answers::silent_unless_answered(core, &entry.name));
                        return silent.map_or(Ok(None), Err);
                    }
                },
                _ => round.await,
            };
            tried = true;
            let round = match round {
                // A user may lack the permission for one of the keys, which the server does not name: ask for each alone.
                Err(error) if atomic && error.kind() == ErrorKind::Denied => {
                    atomic = false;
                    denied = Some(error);
                    continue;
                }
                round => round?,
            };
            match round {
                Round::Granted(lease) if lease.check().is_ok() => return Ok(Some(lease)),
                // A name was lost before the answer for another one, or an old hold was there, as none is now.
                Round::Granted(_) | Round::Torn => continue,
                Round::Refused(_) if is_last() => return Ok(None),
                Round::Unanswered(_, error) if is_last() => return Err(error),
                Round::Refused(at) | Round::Unanswered(at, _) => {
                    refusals += 1;
                    if refusals > MOST_REFUSALS || passed() > core.timing.ttl / 3 {
                        let Some(leases) = Box::pin(self.one_by_one(spec, left)).await? else {
                            return Ok(None);
                        };
                        match MultiLease::new(leases) {
                            Some(lease) if lease.check().is_ok() => return Ok(Some(lease)),
                            // The first ones were lost during the wait for the last one.
                            _ => continue,
                        }
                    }
                    // This waits for one name, and also for an answer of the store, while nothing else is held.
                    match self.entries[at].lock(&engine, spec, left()).await? {
                        Some(lease) => {
                            heard = Some(core.now());
                            awaited = Some((at, lease));
                        }
                        None => return Ok(None),
                    }
                }
            }
        }
    }

    /// Asks once for all names at the same time, but for the one that is there. Releases all of them if one is refused.
    async fn ask_all(
        &mut self,
        spec: AcquireSpec<'_>,
        there: Option<(usize, Lease)>,
        atomic: bool,
    ) -> Result<Round> {
        let engine = &self.engine;
        let except = there.as_ref().map(|(at, _)| *at);
        let set = &SetCall::new(atomic);
        let asked = self.entries.iter_mut().enumerate().filter(|(at, _)| Some(*at) != except);
        let calls = asked.map(|(at, entry)| {
            let spec = spec.of_set(set);
            Box::pin(async move { (at, entry.lock(engine, spec, WaitLimit::Once).await) })
                as BoxedCall<'_, Answer>
        });
        let has_name = |(_, answer): &Answer| matches!(answer, Ok(Some(_)));
        let next = |ended: &[Option<Answer>]| set.next(&engine.core, ended, has_name);
        let answers = all_but(calls.collect(), next);
        let mut leases = Vec::from_iter(there);
        let mut refused = None;
        let mut unanswered = None;
        let mut failed = None;
        for (at, answer) in answers.await.into_iter().flatten() {
            match answer {
                Ok(Some(lease)) => leases.push((at, lease)),
                Ok(None) if set.has_not_tried(&self.entries[at].name) => {}
                Ok(None) => refused = refused.or(Some(at)),
                Err(error) if error.is_unavailable() => {
                    unanswered = unanswered.or(Some((at, error)));
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let is_whole = failed.is_none() && unanswered.is_none() && refused.is_none();
        Rare::SetUndone.reached_if(|| !is_whole && !leases.is_empty());
        match (failed, unanswered, refused) {
            (Some(error), ..) => return Err(error),
            (_, Some((at, error)), _) => return Ok(Round::Unanswered(at, error)),
            (_, _, Some(at)) => return Ok(Round::Refused(at)),
            (None, None, None) if leases.len() == self.entries.len() => {}
            (None, None, None) => return Err(Error::protocol("the store granted a part of a set")),
        }
        leases.sort_unstable_by_key(|(at, _)| *at);
        let lease = MultiLease::new(leases.into_iter().map(|(_, lease)| lease).collect());
        Ok(lease.map_or(Round::Torn, Round::Granted))
    }

    /// Takes the names one after the other, in their order.
    async fn one_by_one(
        &mut self,
        spec: AcquireSpec<'_>,
        left: impl Fn() -> WaitLimit,
    ) -> Result<Option<Vec<Lease>>> {
        Rare::SetOneByOne.reached();
        let mut leases: Vec<Lease> = Vec::with_capacity(self.entries.len());
        for entry in &mut self.entries {
            let left = left();
            if !leases.is_empty() && matches!(left, WaitLimit::Once) {
                return Ok(None);
            }
            match entry.lock(&self.engine, spec, left).await? {
                Some(lease) => leases.push(lease),
                None => return Ok(None),
            }
        }
        Ok(Some(leases))
    }
}

// After the calls, which a reader looks for first.
impl MultiLock {
    setters!(class label min_hold lock_delay stall_after on_overrun warn_held);
}

/// The index of an entry, and its lease.
type Answer = (usize, Result<Option<Lease>>);

impl Entry {
    async fn lock(
        &mut self,
        engine: &Arc<Engine>,
        spec: AcquireSpec<'_>,
        limit: WaitLimit,
    ) -> Result<Option<Lease>> {
        let Self { name, current } = self;
        let result = acquire(&engine.core, name, spec, current, limit).await;
        let claim = result.map_err(|error| error.of_name(name.as_str()))?;
        Ok(claim.map(|claim| Lease::unreturned(engine, claim)))
    }
}

impl MultiLease {
    /// Returns `None` if some of the holds are those of a lease that has ended, and the others are new: each fires its own
    /// token.
    fn new(leases: Vec<Lease>) -> Option<Self> {
        let old = leases.iter().filter(|lease| lease.has_lost_token()).count();
        if old != 0 && old != leases.len() {
            return None;
        }
        // Of a nested lease, the holds have a common token already.
        let mut lost = CancellationToken::new();
        for lease in &leases {
            lost = lease.share_loss(&lost);
        }
        Some(Self { leases, lost, token: OnceLock::new() })
    }

    /// Begins the `min_hold` and the limits of all names: the caller gets the lease.
    fn begin(mut self) -> Self {
        self.leases.iter_mut().for_each(Lease::begin);
        self
    }

    /// Returns the leases of the names, in the order of the bytes of the names.
    ///
    /// Their [tokens](Lease::cancellation_token) fire when any name of the set is lost. Their other methods concern
    /// their own name.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter()
    }

    /// Returns the [fencing token](Lease::fence) of a name; `None` if the name is not in the set, or has none.
    pub fn fence(&self, name: impl AsRef<str>) -> Option<u64> {
        self.leases.iter().find(|lease| lease.name() == name.as_ref())?.fence()
    }

    /// Returns a token that fires when this lease ends: one of the names is lost, or it is unlocked or dropped.
    ///
    /// As [`Lease::cancellation_token`].
    pub fn cancellation_token(&self) -> CancellationToken {
        if let Some(lease) = self.leases.first() {
            lease.ensure_running();
        }
        self.token.get_or_init(|| self.lost.child_token()).child_token()
    }

    /// Waits until one of the names is lost, and returns the reason.
    ///
    /// The future borrows nothing. After an unlock or drop it stays pending forever, as that of [`Lease::lost`] does.
    ///
    /// # Cancel safety
    ///
    /// Safe. Call it again and nothing is missed, because a loss is final.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let calls = self.leases.iter().map(|lease| Box::pin(lease.lost()) as BoxedCall<'static, _>);
        let calls: Vec<_> = calls.collect();
        async move {
            match first(calls, Some).await {
                Some(loss) => loss,
                None => std::future::pending().await,
            }
        }
    }

    /// Checks that all names are held now, by the local clock, as [`Lease::check`] does.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost): a name is lost. The message begins with the first such name.
    pub fn check(&self) -> Result<()> {
        let mut checks = self
            .leases
            .iter()
            .map(|lease| lease.check().map_err(|error| error.of_name(lease.name())));
        checks.find(Result::is_err).unwrap_or(Ok(()))
    }

    /// Returns how long the holder may rely on all names if no further renewal succeeds; zero if one is lost.
    ///
    /// As [`Lease::remaining`].
    pub fn remaining(&self) -> Duration {
        self.leases.iter().map(Lease::remaining).min().unwrap_or_default()
    }

    /// Runs `future` while all names are held, as [`Lease::run`] does.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost): one of the names was lost before `future` ended; its output is dropped then.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `future`, which is dropped with it. The lease is not affected.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output> {
        run_while_held(|| self.check(), self.lost(), future).await
    }

    /// Releases all names at the same time and waits for the store's answers.
    ///
    /// The [`cancellation_token`](MultiLease::cancellation_token) fires first. Each name is released, whatever happens to
    /// the others.
    ///
    /// # Errors
    ///
    /// As [`Lease::unlock`]. The message has each name that failed, with its reason. The kind is
    /// [`Lost`](ErrorKind::Lost) if one of them was lost, and that of the first failure otherwise.
    ///
    /// # Panics
    ///
    /// As [`Lease::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, all names are released in the background; only the answers are lost.
    #[doc(alias = "release")]
    pub async fn unlock(mut self) -> Result<()> {
        self.end();
        let leases = std::mem::take(&mut self.leases);
        let calls = leases.into_iter().map(|lease| {
            let name = lease.name().to_owned();
            // Each call ends its lease when it is polled first, or dropped.
            Box::pin(async move { lease.unlock().await.map_err(|error| (name, error)) })
                as BoxedCall<'_, _>
        });
        let failed = all(calls.collect()).await.into_iter().filter_map(Result::err);
        Error::of_names(failed.collect()).map_or(Ok(()), Err)
    }

    /// Belief ends before anything is sent.
    fn end(&self) {
        if let Some(token) = self.token.get() {
            run_wakers(|| token.cancel());
        }
    }
}

impl Drop for MultiLease {
    fn drop(&mut self) {
        // The leases are dropped after this, and release their names.
        self.end();
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock")
            .field("names", &self.names().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for MultiLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLease").field("leases", &self.leases).finish_non_exhaustive()
    }
}
