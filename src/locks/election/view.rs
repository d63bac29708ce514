//! What an observer sees of an election.
//!
//! # Invariants
//!
//! 1. **Terms never go back, unless the store has lost its data.** What is older than what was seen, as from a server
//!    that was behind, counts as no contact. What a server has that was behind expires within the TTL of its leader. So
//!    what is older, and is there at each reading of more than T, is of a leader that renews, and counts again.
//! 2. **It never ends.** Without contact it says so and goes on; if the runtime of its task ends, the next call starts
//!    another.
//! 3. **Hints are hints.** It reads at each of them, and by the clock.

use crate::clock::Instant as Clocked;
use crate::engine::{AFTER_EXPIRY, Core, Engine, Stage, calls, describe};
use crate::error::Result;
use crate::store::{HolderInfo, Mode, Name, Owner, Wakeups};
use crate::util::sync::Mutex;
use futures_core::Stream;
use std::fmt;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard, ReusableBoxFuture};

/// How soon after a subscription it reads again: what came before may not have been announced.
const SETTLED: Duration = Duration::from_millis(100);

/// The leader, as far as an observer knows it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Leader {
    /// The id of the holder that leads, as [`Lease::holder_id`](crate::Lease::holder_id) shows it. `None`: there is no
    /// leader, or it is not known yet.
    pub holder: Option<String>,
    /// Its term. `None` if the leader has not written it yet, or the store has no fencing tokens.
    pub term: Option<u64>,
    /// Its value. `None` if the leader has not written it yet, or the store has lost it.
    pub value: Option<String>,
    /// Its process. `None` if the leader has not written it yet, or the store has lost it.
    pub owner: Option<Owner>,
    /// When its term began, by its clock: for people, not for decisions.
    pub since: Option<SystemTime>,
    /// The time since which there is no contact to the store; the other fields are what was known then. `None` while
    /// there is contact.
    pub stale_since: Option<Instant>,
}

impl Leader {
    /// Returns whether it is known that there is no leader.
    pub fn is_vacant(&self) -> bool {
        self.holder.is_none() && self.stale_since.is_none()
    }

    fn of(info: Option<HolderInfo>) -> Self {
        // A name that a `min_hold` or a job keeps closed has a mark, which is no leader.
        let Some(info) = info.filter(|info| info.closed.is_none()) else { return Self::default() };
        let leader = Self { holder: Some(info.holder), ..Self::default() };
        let Some(metadata) = info.metadata else { return leader };
        Self {
            term: metadata.fence,
            value: metadata.value,
            owner: Some(metadata.owner),
            since: metadata.since,
            ..leader
        }
    }

    /// Returns whether it shows the same to an observer.
    fn is(&self, other: &Self) -> bool {
        (&self.holder, self.term, &self.value, &self.owner)
            == (&other.holder, other.term, &other.value, &other.owner)
            && self.stale_since.is_some() == other.stale_since.is_some()
    }
}

/// A view of an election, which always shows the latest known leader.
///
/// [`Election::observe`](super::Election::observe) creates it. It never ends. Its terms never go back, unless the store
/// has lost its data: smaller terms that are there for more than a [TTL](crate::Builder::ttl) count again, with a
/// warning in the log. It may skip states that last only a moment. It reads the store at each message of a leader, when
/// the lease of a leader would have expired, and at least every third of the [TTL](crate::Builder::ttl), or every
/// [`max_poll_interval`](crate::Builder::max_poll_interval) if that is longer. After a `close` of the manager it shows
/// what was known then.
///
/// It is also a stream of what [`changed`](Self::changed) returns. The stream never ends: after a `close` it is pending.
///
/// Decide by the [fencing token](crate::Lease::fence), never by a view: the leader may have changed since.
pub struct View {
    shared: Arc<Shared>,
    seen: watch::Receiver<Leader>,
    /// The change that the stream waits for, and the runtime whose timers it uses.
    next: Option<(Id, Next)>,
}

type Next = ReusableBoxFuture<'static, (Leader, watch::Receiver<Leader>)>;

struct Shared {
    engine: Arc<Engine>,
    name: Result<Name>,
    leader: Arc<watch::Sender<Leader>>,
    /// The newest term that was seen; 0 for none.
    newest: Arc<AtomicU64>,
    stop: CancellationToken,
    _stops: DropGuard,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl View {
    #[track_caller]
    pub(super) fn new(engine: &Arc<Engine>, name: &Result<Name>) -> Self {
        crate::util::runtime::need();
        let unknown = Leader { stale_since: Some(Instant::now()), ..Leader::default() };
        let (leader, seen) = watch::channel(unknown);
        let stop = CancellationToken::new();
        let shared = Shared {
            engine: Arc::clone(engine),
            name: name.clone(),
            leader: Arc::new(leader),
            newest: Arc::default(),
            _stops: stop.clone().drop_guard(),
            stop,
            task: Mutex::default(),
        };
        shared.ensure_task();
        Self::of(&Arc::new(shared), seen)
    }

    fn of(shared: &Arc<Shared>, seen: watch::Receiver<Leader>) -> Self {
        Self { shared: Arc::clone(shared), seen, next: None }
    }

    /// Returns who leads, as far as it is known, without I/O.
    pub fn current(&self) -> Leader {
        if Handle::try_current().is_ok() {
            // The runtime that looked may have ended.
            self.shared.ensure_task();
        }
        self.seen.borrow().clone()
    }

    /// Waits until the state differs from the one that this view has returned last, and returns the new one.
    ///
    /// The first call returns the first known state. A loss of contact and its end are changes, too.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe. The next call returns the latest state.
    pub async fn changed(&mut self) -> Leader {
        crate::util::runtime::need();
        // The stream would return this change once more.
        self.next = None;
        tokio::task::coop::consume_budget().await;
        self.shared.ensure_task();
        loop {
            let renewed = self.shared.ended();
            tokio::select! {
                biased;
                changed = self.seen.changed() => if changed.is_ok() {
                    return self.seen.borrow_and_update().clone();
                },
                () = renewed => self.shared.ensure_task(),
            }
        }
    }
}

impl Stream for View {
    type Item = Leader;

    /// Never returns `None`.
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Leader>> {
        crate::util::runtime::need();
        let view = self.get_mut();
        let runtime = Handle::current().id();
        // The timers of another runtime may have ended with it.
        view.next.take_if(|(at, _)| *at != runtime);
        let (_, next) = view.next.get_or_insert_with(|| {
            let mut view = Self::of(&view.shared, view.seen.clone());
            let changed = async move { (view.changed().await, view.seen) };
            (runtime, ReusableBoxFuture::new(changed))
        });
        let (leader, seen) = ready!(next.poll(cx));
        view.seen = seen;
        view.next = None;
        Poll::Ready(Some(leader))
    }
}

impl Clone for View {
    /// Returns a view that has seen what this one has seen.
    fn clone(&self) -> Self {
        Self::of(&self.shared, self.seen.clone())
    }
}

impl Shared {
    /// Starts the task on the current runtime, if it does not run.
    fn ensure_task(&self) {
        let Ok(name) = &self.name else { return };
        let mut task = self.task.lock();
        if task.as_ref().is_some_and(|task| !task.is_finished())
            || self.engine.core.life.is_closed()
        {
            return;
        }
        let observer = Observer {
            engine: Arc::clone(&self.engine),
            name: name.clone(),
            leader: Arc::clone(&self.leader),
            newest: Arc::clone(&self.newest),
            older_since: None,
        };
        let stop = self.stop.clone();
        *task = Some(tokio::spawn(async move {
            let mut observer = observer;
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = observer.run() => {}
            }
        }));
    }

    /// Waits until the task has to be started again: its runtime may have ended. Nothing reports that, so it looks now
    /// and then.
    async fn ended(&self) {
        loop {
            sleep(Duration::from_secs(1)).await;
            let finished = self.task.lock().as_ref().is_some_and(JoinHandle::is_finished);
            if finished && !self.engine.core.life.is_closed() {
                return;
            }
        }
    }
}

/// The task behind a view.
struct Observer {
    engine: Arc<Engine>,
    name: Name,
    leader: Arc<watch::Sender<Leader>>,
    newest: Arc<AtomicU64>,
    /// Since when each reading has shown an older term.
    older_since: Option<Clocked>,
}

impl Observer {
    async fn run(&mut self) {
        let engine = Arc::clone(&self.engine);
        let core = &engine.core;
        let longest = core.settings.max_poll_interval.max(core.timing.ttl / 3);
        let name = self.name.clone();
        let mut hints = None;
        let mut subscribes = true;
        let mut settles = false;
        let mut failures = 0_u32;
        let mut subscribing = None;
        while !core.life.is_closed() {
            if subscribes && hints.is_none() && subscribing.is_none() {
                subscribing = Some(Box::pin(describe::watch(core, &name)));
            }
            let pause = match self.read(core).await {
                Ok(remaining) => {
                    failures = 0;
                    remaining.map_or(longest, |left| (left + AFTER_EXPIRY).min(longest))
                }
                Err(()) => {
                    failures = (failures + 1).min(10);
                    let gap = Duration::from_millis(50) * (1 << failures);
                    gap.min(longest).mul_f64(0.5 + core.jitter() / 2.0)
                }
            };
            let pause = if std::mem::take(&mut settles) { pause.min(SETTLED) } else { pause };
            let mut pause = pin!(sleep(pause));
            // No reading waits for a subscription. After a failure the next one begins after the next reading.
            loop {
                let subscribed = tokio::select! {
                    biased;
                    () = core.life.until(Stage::Closed) => break,
                    () = hint(&mut hints) => break,
                    () = &mut pause => break,
                    subscribed = one(&mut subscribing) => subscribed,
                };
                subscribing = None;
                match subscribed {
                    Ok(Some(wakeups)) => {
                        hints = Some(wakeups);
                        settles = true;
                        break;
                    }
                    Ok(None) => subscribes = false,
                    // By the clock this time: also a permission may come back.
                    Err(error) => {
                        let name = name.as_str();
                        tracing::debug!(name, %error, "no messages of leaders yet");
                    }
                }
            }
        }
    }

    /// Reads who leads. Returns how long the store keeps the leader, if it knows; an error without contact.
    async fn read(&mut self, core: &Core) -> Result<Option<Duration>, ()> {
        let limit = core.timing.attempt * 2;
        let read = timeout(limit, calls::inspect_as(core, &self.name, Mode::Exclusive)).await;
        let info = match read {
            Ok(Ok(inspection)) => inspection.into_holder(),
            Ok(Err(error)) => {
                tracing::debug!(name = self.name.as_str(), %error, "not observed");
                self.older_since = None;
                return self.lost_contact();
            }
            Err(_) => {
                self.older_since = None;
                return self.lost_contact();
            }
        };
        let remaining = info.as_ref().and_then(|info| info.remaining);
        let mut next = Leader::of(info);
        match next.term {
            Some(term) if self.newest.fetch_max(term, Ordering::Relaxed) > term => {
                let now = core.now();
                let since = *self.older_since.get_or_insert(now);
                if now.saturating_duration_since(since) <= core.timing.ttl {
                    // By a server that is behind.
                    return self.lost_contact();
                }
                let name = self.name.as_str();
                let newest = self.newest.swap(term, Ordering::Relaxed);
                tracing::warn!(name, term, newest, "terms went back: the store has lost its data");
                self.older_since = None;
            }
            None if next.holder.is_some() => {}
            _ => self.older_since = None,
        }
        self.leader.send_if_modified(|leader| {
            let modified = !leader.is(&next);
            std::mem::swap(leader, &mut next);
            modified
        });
        Ok(remaining)
    }

    fn lost_contact(&self) -> Result<Option<Duration>, ()> {
        self.leader.send_if_modified(|leader| {
            let modified = leader.stale_since.is_none();
            leader.stale_since.get_or_insert_with(Instant::now);
            modified
        });
        Err(())
    }
}

impl Drop for Observer {
    /// Nothing is read any more, whether by `close` or because the runtime has ended.
    fn drop(&mut self) {
        let _ = self.lost_contact();
    }
}

/// Waits for the subscription that is under way.
async fn one<F: Future + Unpin>(subscribing: &mut Option<F>) -> F::Output {
    match subscribing {
        Some(subscribing) => subscribing.await,
        None => pending().await,
    }
}

async fn hint(hints: &mut Option<Wakeups>) {
    match hints {
        Some(hints) => hints.recv().await,
        None => pending().await,
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Name::text_of(&self.shared.name);
        f.debug_struct("View").field("name", &name).field("current", &self.current()).finish()
    }
}
