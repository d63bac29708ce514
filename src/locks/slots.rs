//! Numbered leases: one of n names, whichever is free.

use crate::engine::{
    AcquireSpec, Core, Engine, Options, Timed, Unanswered, WaitLimit, acquire, answers, setters,
};
use crate::error::{Error, Result};
use crate::locks::lease::Lease;
use crate::store::{Mode, Name};
use crate::util::join::{BoxedCall, first};
use crate::util::runtime;
use crate::util::sync::Mutex;
use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop::consume_budget;

/// At most for so many slots a caller waits at once: each of them costs a place in a queue and a subscription.
const WAITED_FOR: u32 = 16;

/// A set of numbered slots. Each slot has at most one holder at a time.
///
/// [`LeaseManager::slots`](crate::LeaseManager::slots) creates it without I/O. Use it where each worker needs a number of
/// its own: worker ids, partitions, GPUs, licence seats. Slot `i` of `"gpu"` is the exclusive lock `"gpu#i"`, so slots
/// work on every store, and each index has its own [fencing token](Lease::fence). The next holder of an index gets a
/// larger one.
///
/// It has no identity that could re-enter, so it is `Clone`, and its methods take `&self`: each call asks for another
/// slot.
///
/// All processes should use the same number of slots. Nothing checks that: with a smaller number, a process never takes
/// the slots beyond it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let gpus = leases.slots("gpu", 2);
/// let (one, other) = (gpus.take().await?, gpus.take().await?);
/// assert_ne!(one.index(), other.index());
/// assert!(gpus.try_take().await?.is_none());
///
/// let index = one.index();
/// one.unlock().await?;
/// assert_eq!(gpus.take().await?.index(), index);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "slots acquire nothing until `take`, `try_take` or one of their forms is called"]
#[doc(alias = "semaphore")]
#[doc(alias = "worker id")]
#[doc(alias = "partition")]
pub struct Slots {
    engine: Arc<Engine>,
    /// The first attempt reports an invalid name or size.
    name: Result<Arc<str>>,
    size: u32,
    /// The index to try first. It is drawn, so that managers seldom meet.
    start: u32,
    options: Options,
}

/// The guard of a slot.
///
/// It dereferences to its [`Lease`]. Dropping it releases the slot in the background.
#[derive(Debug)]
#[must_use = "a slot that is not kept is released at once; bind it: `let _slot = ..`, not `let _ = ..`"]
#[clippy::has_significant_drop]
pub struct Slot {
    index: u32,
    lease: Lease,
}

impl Slots {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, size: u32) -> Self {
        let start = draw(&engine, size);
        let name = checked(name, size);
        Self { engine, name, size, start, options: Options::without_rest() }
    }

    /// Returns the number of slots.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Waits until any slot is free, and takes it.
    ///
    /// It first tries an index that was drawn when the set was made, then some at random, then all others, with a
    /// request for each slot that another process holds. If none is free and there are at most 16 slots, it waits for
    /// all of them. If there are more, it waits for 16 that are drawn at random, and tries all slots again after the
    /// [poll interval](crate::Builder::max_poll_interval). Callers are not served in an order.
    ///
    /// # Errors
    ///
    /// - [`Invalid`](crate::ErrorKind::Invalid): the name is invalid or too long with its index, or there are no slots.
    /// - [`Unavailable`](crate::ErrorKind::Unavailable): the store did not answer for about one [TTL](crate::Builder::ttl) and an
    ///   [attempt](crate::guide::settings#what-follows-from-the-ttl).
    /// - The others of [`Lock::lock`](crate::Lock::lock), at once.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, slots that the store grants to it are released in the background.
    #[track_caller]
    pub fn take(&self) -> impl Future<Output = Result<Slot>> + use<'_> {
        let spec = self.spec();
        async move {
            runtime::need_at(spec.caller());
            consume_budget().await;
            self.wait(spec, &Progress::default()).await
        }
    }

    /// Takes a slot if one is free now; returns `None` if it finds none.
    ///
    /// Sends a request for each slot that it finds taken by another process, one after the other. It misses a slot that
    /// is released after it has tried it.
    ///
    /// # Errors
    ///
    /// As [`take`](Slots::take), but [`Unavailable`](crate::ErrorKind::Unavailable) after an attempt, or two.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, a slot that the store grants to it is released in the background.
    #[track_caller]
    pub fn try_take(&self) -> impl Future<Output = Result<Option<Slot>>> + use<'_> {
        let spec = self.spec();
        async move {
            runtime::need_at(spec.caller());
            consume_budget().await;
            self.look(spec, &Progress::default()).await
        }
    }

    /// Waits for any free slot, for at most `timeout`; returns `None` if it finds none until then.
    ///
    /// With a zero `timeout` it looks at all slots once, as [`try_take`](Slots::try_take) does.
    ///
    /// # Errors
    ///
    /// As [`take`](Slots::take); [`Unavailable`](crate::ErrorKind::Unavailable) if the time passes without an answer of
    /// the store.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::lock`](crate::Lock::lock), with a slot in place of the lease.
    #[track_caller]
    pub fn take_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<Slot>>> + use<'_> {
        let spec = self.spec();
        async move {
            runtime::need_at(spec.caller());
            consume_budget().await;
            let progress = Progress::default();
            if timeout.is_zero() {
                return self.look(spec, &progress).await;
            }
            let core = &self.engine.core;
            let timed = Timed { start: core.now(), limit: timeout };
            // Asked about before it is dropped, with its requests.
            let mut waiting = pin!(self.wait(spec, &progress));
            match tokio::time::timeout(timeout, waiting.as_mut()).await {
                Ok(slot) => slot.map(Some),
                Err(_) => progress.out_of_time(core, timed).map_or(Ok(None), Err),
            }
        }
    }

    /// Waits until the slot of this index is free, and takes it.
    ///
    /// Use it to get back the partition that a worker had before, or to take all slots in turn.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock); [`Invalid`](crate::ErrorKind::Invalid) if there is no such index.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::lock`](crate::Lock::lock), with a slot in place of the lease.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let partition = leases.slots("partition", 12).take_index(7).await?;
    /// assert_eq!((partition.index(), partition.name()), (7, "partition#7"));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn take_index(&self, index: u32) -> impl Future<Output = Result<Slot>> + use<'_> {
        let spec = self.spec();
        async move {
            runtime::need_at(spec.caller());
            consume_budget().await;
            self.check_index(index)?;
            let slot = self.slot(spec, index, WaitLimit::Forever).await?;
            slot.ok_or_else(Error::silent)
        }
    }

    /// Takes the slot of this index if it is free now; returns `None` if it is not.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock`](crate::Lock::try_lock); [`Invalid`](crate::ErrorKind::Invalid) if there is no such index.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, a slot that the store grants to it is released in the background.
    #[track_caller]
    pub fn try_take_index(
        &self,
        index: u32,
    ) -> impl Future<Output = Result<Option<Slot>>> + use<'_> {
        let spec = self.spec();
        async move {
            runtime::need_at(spec.caller());
            consume_budget().await;
            self.check_index(index)?;
            self.slot(spec, index, WaitLimit::Once).await
        }
    }

    #[track_caller]
    fn spec(&self) -> AcquireSpec<'_> {
        AcquireSpec::from(Mode::Exclusive).with(&self.options).at(Location::caller())
    }

    fn check_index(&self, index: u32) -> Result<()> {
        self.name.as_ref().map_err(Error::clone)?;
        if index < self.size {
            return Ok(());
        }
        let last = self.size.saturating_sub(1);
        Err(Error::invalid(format!("there is no slot {index}; the indexes are 0 to {last}")))
    }

    /// Asks for one slot.
    async fn slot(
        &self,
        spec: AcquireSpec<'_>,
        index: u32,
        limit: WaitLimit,
    ) -> Result<Option<Slot>> {
        let name = slot_name(self.name.as_ref().map_err(Error::clone)?, index)?;
        let claim = acquire(&self.engine.core, &name, spec, &mut None, limit).await?;
        Ok(claim.map(|claim| Slot { index, lease: Lease::new(&self.engine, claim) }))
    }

    /// Looks for a free slot.
    async fn look(&self, spec: AcquireSpec<'_>, progress: &Progress) -> Result<Option<Slot>> {
        let name = self.name.as_ref().map_err(Error::clone)?;
        let queue = &self.engine.core.queue;
        for index in self.order() {
            let slot_name = slot_name(name, index)?;
            progress.asks(vec![slot_name.clone()]);
            let slot = self.slot(spec, index, WaitLimit::Once).await?;
            if slot.is_some() {
                return Ok(slot);
            }
            // No request was sent if another call of this process waits for the answer to its own.
            if queue.silence(&slot_name).is_none() {
                progress.answered();
            }
        }
        Ok(None)
    }

    /// Returns the indexes in the order in which they are tried: one, 2 ln n at random, and all others. If half of the
    /// slots are free, the random ones find one with a probability above 1 - 1/n.
    fn order(&self) -> impl Iterator<Item = u32> + Send + use<> {
        let size = self.size;
        let start = self.start;
        let guesses = (2.0 * f64::from(size).ln()).ceil() as usize;
        let mut tried = vec![start];
        for _ in 0..guesses {
            let guess = draw(&self.engine, size);
            if !tried.contains(&guess) {
                tried.push(guess);
            }
        }
        let from_start = (0..size)
            .map(move |step| ((u64::from(start) + u64::from(step)) % u64::from(size)) as u32);
        let skipped = tried.clone();
        tried.into_iter().chain(from_start.filter(move |index| !skipped.contains(index)))
    }

    /// Looks for a free slot and waits for one, in turns, until it has one.
    async fn wait(&self, spec: AcquireSpec<'_>, progress: &Progress) -> Result<Slot> {
        self.name.as_ref().map_err(Error::clone)?;
        let core = &self.engine.core;
        let mut unanswered = Unanswered::default();
        loop {
            let started = core.now();
            let found = match Box::pin(self.look(spec, progress)).await {
                Ok(None) => self.wait_for_any(spec, progress).await,
                found => found,
            };
            match found {
                Ok(Some(slot)) => return Ok(slot),
                Ok(None) => unanswered.answered(),
                Err(error) if error.is_unavailable() => {
                    unanswered.since(started);
                    if unanswered.lasted(core.now()) >= core.timing.ttl {
                        return Err(error);
                    }
                    progress.failed(error);
                    core.life.pause(unanswered.next_gap(core)).await;
                    core.life.check()?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until one of the slots is free: of all of them, or of some for the poll interval.
    async fn wait_for_any(
        &self,
        spec: AcquireSpec<'_>,
        progress: &Progress,
    ) -> Result<Option<Slot>> {
        let (indexes, limit): (Vec<u32>, _) = if self.size <= WAITED_FOR {
            ((0..self.size).collect(), WaitLimit::Forever)
        } else {
            // A shuffled deck would be as large as the set; a few fewer than 16 do no harm.
            let mut drawn: Vec<_> =
                (0..WAITED_FOR).map(|_| draw(&self.engine, self.size)).collect();
            drawn.sort_unstable();
            drawn.dedup();
            (drawn, WaitLimit::For(self.engine.core.settings.max_poll_interval))
        };
        let name = self.name.as_ref().map_err(Error::clone)?;
        let names = indexes.iter().map(|index| slot_name(name, *index));
        progress.asks(names.collect::<Result<_>>()?);
        let calls = indexes
            .into_iter()
            .map(|index| Box::pin(self.slot(spec, index, limit)) as BoxedCall<'_, _>);
        let mut failed = None;
        let slot = first(calls.collect(), |slot| match slot {
            Ok(slot) => {
                progress.answered();
                slot
            }
            Err(error) => {
                failed = Some(error);
                None
            }
        });
        match (slot.await, failed) {
            (None, Some(error)) => Err(error),
            (slot, _) => Ok(slot),
        }
    }
}

// After the calls, which a reader looks for first.
impl Slots {
    setters!(class label min_hold lock_delay stall_after on_overrun warn_held);
}

/// What a call for any slot waits for.
#[derive(Default)]
struct Progress(Mutex<Waits>);

#[derive(Default)]
struct Waits {
    /// The slots that it asks for now.
    names: Vec<Name>,
    /// Why the last request had no answer, if none had one since.
    failure: Option<Error>,
}

impl Progress {
    fn asks(&self, names: Vec<Name>) {
        self.0.lock().names = names;
    }

    fn answered(&self) {
        self.0.lock().failure = None;
    }

    fn failed(&self, error: Error) {
        self.0.lock().failure = Some(error);
    }

    /// Returns the error of a timed call that has passed, unless one of the slots that it asks for is known to be taken.
    fn out_of_time(&self, core: &Core, timed: Timed) -> Option<Error> {
        let waits = self.0.lock();
        if waits.names.iter().any(|name| answers::has_answered(core, name)) {
            return None;
        }
        if waits.failure.is_some() {
            return waits.failure.clone();
        }
        let mut errors = waits.names.iter().map(|name| answers::out_of_time(core, name, timed));
        errors.try_fold(Error::silent(), |_, error| error)
    }
}

/// Draws an index.
fn draw(engine: &Engine, size: u32) -> u32 {
    (engine.core.jitter() * f64::from(size)) as u32
}

fn slot_name(name: &str, index: u32) -> Result<Name> {
    Name::new(&format!("{name}#{index}"))
}

/// Checks the name of each slot, and that there is one.
fn checked(name: &str, size: u32) -> Result<Arc<str>> {
    Name::new(name)?;
    let Some(last) = size.checked_sub(1) else {
        return Err(Error::invalid(format!("{name:?} has 0 slots; give it at least one")));
    };
    slot_name(name, last)?;
    Ok(name.into())
}

impl Slot {
    /// Returns the index of the slot, from 0 to one less than the number of slots.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Releases the slot and waits for the store's answer, as [`Lease::unlock`] does.
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
    /// Safe. If it is dropped, the slot is released in the background; only the answer is lost.
    #[doc(alias = "release")]
    pub async fn unlock(self) -> Result<()> {
        self.lease.unlock().await
    }

    /// Converts the guard into its lease, without the index; the slot stays held.
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

impl Deref for Slot {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("name", &self.name)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
