//! What the process does when work goes on after the loss of its lease, and the list of such losses.
//!
//! # Invariants
//!
//! 1. **Nothing is paid before a loss.** A loss puts the hold into the list, if it has an action; nothing else looks at it.
//! 2. **Once for each hold**, and once for the names of one set: its holds share the pulse of a call, and a call gets no new
//!    holds while a lease of the last ones is alive.
//! 3. **Only what is alive.** Each step asks [`Hold::is_in_hands`] just before it acts.

use super::hold::{Hold, HoldNo};
use crate::clock::{Clock, Instant};
use crate::engine::machine::overrun::OverrunTimes;
use crate::engine::machine::timing::Timing;
use crate::error::{Error, ErrorKind, Fate, Loss, Result};
use crate::store::HolderId;
use crate::util::sync::Mutex;
use crate::util::trace;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::Notify;
use tracing::Level;

/// What the process does when a lease that was lost is still alive shortly before another process can have its name: see
/// [`Builder::on_overrun`](crate::Builder::on_overrun).
///
/// ```
/// use leasehold::Overrun;
///
/// let exits = Overrun::Exit(75);
/// let reports = Overrun::hook(|report| {
///     eprintln!("the work on {} did not stop", report.name());
/// });
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Overrun {
    /// Writes a line to the standard error, and aborts the process, as [`std::process::abort`] does: by a signal, without
    /// destructors and exit handlers. If the line cannot be written in time, the process is aborted without it.
    Abort,
    /// Writes a line to the standard error, and ends the process with this code, as [`std::process::exit`] does. If the line
    /// cannot be written, or a handler of the exit does not return in time, the process is aborted.
    Exit(i32),
    /// Calls a function, which [`hook`](Overrun::hook) makes of a closure.
    Hook(OverrunHook),
}

impl Overrun {
    /// Returns an overrun that calls `hook`.
    ///
    /// A thread of the manager calls it, one hold after the other. While it runs, the hooks of further holds wait. It may
    /// block; nothing else of leasehold waits for it, and its panic does no harm. Nothing follows from its return: it ends
    /// the work by itself, or the process. A hook that owns a clone of the manager keeps that manager running until it is
    /// closed.
    ///
    /// Use it to kill a child process, to close a connection, or to end the process in a way of your own.
    pub fn hook(hook: impl Fn(&OverrunReport) + Send + Sync + 'static) -> Self {
        Self::Hook(OverrunHook(Arc::new(hook)))
    }

    /// Returns whether it ends the process.
    fn ends_process(&self) -> bool {
        matches!(self, Self::Abort | Self::Exit(_))
    }
}

/// The function of [`Overrun::hook`].
#[derive(Clone)]
pub struct OverrunHook(Arc<dyn Fn(&OverrunReport) + Send + Sync>);

impl fmt::Debug for OverrunHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OverrunHook")
    }
}

/// Reports to a [hook](Overrun::hook) which work goes on after the loss of its lease.
#[derive(Clone, Debug)]
pub struct OverrunReport {
    name: String,
    holder: HolderId,
    fence: Option<u64>,
    label: Option<Arc<str>>,
    loss: Loss,
    lost_for: Duration,
}

impl OverrunReport {
    /// Returns the name. Of a [`MultiLock`](crate::MultiLock), it is the name whose loss was found first.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the id of the holder that was lost, as [`Lease::holder_id`](crate::Lease::holder_id).
    #[must_use]
    pub fn holder_id(&self) -> HolderId {
        self.holder
    }

    /// Returns the [fencing token](crate::Lease::fence) of the lease; `None` where there are none.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Returns the [label](crate::Lock::label) of the handle.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Returns the reason of the loss.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// Returns for how long the lease has been lost, by the time at which the hook was called.
    #[must_use]
    pub fn lost_for(&self) -> Duration {
        self.lost_for
    }
}

/// A lost hold that has an action.
struct LostHold {
    hold: Arc<Hold>,
    action: Overrun,
    loss: Loss,
    lost_at: Instant,
}

/// The next step for a lost hold.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Asks the thread to act.
    Ask { force: Instant },
    /// Ends the process: the thread has not.
    Force,
}

/// The losses of a manager that have an action, and the thread that acts.
#[derive(Default)]
pub(crate) struct Overruns {
    /// The action of handles that have none of their own.
    default: OnceLock<Overrun>,
    /// Where the thread is asked, once it is there.
    thread: OnceLock<mpsc::Sender<Arc<LostHold>>>,
    lists: Mutex<Lists>,
    /// Notifies the watchdog of a new entry.
    added: Notify,
}

#[derive(Default)]
struct Lists {
    due: BTreeMap<(Instant, HoldNo), (Arc<LostHold>, Step)>,
    /// The sets whose action was taken, each by its first hold, while a lease of that is alive.
    sets: Vec<Arc<LostHold>>,
}

impl Overruns {
    /// Sets the action of handles that have none of their own. Call it once, before the engine runs, and
    /// [`start`](Self::start) first.
    pub(crate) fn set_default(&self, action: Overrun) {
        let _ = self.default.set(action);
    }

    /// Refuses an engine without threads of its own: `on_caller`.
    pub(crate) fn check(on_caller: bool) -> Result<()> {
        let message = "on_overrun needs a watchdog with a thread of its own; leave out dedicated_thread(false), or in memory set dedicated_thread(true)";
        if on_caller { Err(Error::new(ErrorKind::Unsupported, message)) } else { Ok(()) }
    }

    /// Starts the thread that acts, unless it is there.
    pub(crate) fn start(&self, clock: &Clock, on_caller: bool) -> Result<()> {
        Self::check(on_caller)?;
        if self.thread.get().is_some() {
            return Ok(());
        }
        let (asks, asked) = mpsc::channel::<Arc<LostHold>>();
        let clock = clock.clone();
        let thread = thread::Builder::new().name("leasehold-overrun".into());
        let thread = thread.spawn(move || asked.iter().for_each(|lost| lost.act(&clock)));
        thread.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "failed to start the thread of on_overrun")
                .with_fate(Fate::NotExecuted)
                .with_source(error)
        })?;
        // Another call may have been first; the thread of this one ends then.
        let _ = self.thread.set(asks);
        Ok(())
    }

    /// Watches a hold that was lost at `now`, if it has an action and a caller has a lease of it.
    pub(in crate::engine) fn add(
        &self,
        timing: &Timing,
        hold: &Arc<Hold>,
        loss: Loss,
        now: Instant,
    ) {
        let Some(action) = hold.options.on_overrun().or(self.default.get()) else { return };
        if !hold.is_in_hands() {
            return;
        }
        let Some(times) = OverrunTimes::of(timing, loss, now, hold.confirmed()) else { return };
        let lost = LostHold { hold: Arc::clone(hold), action: action.clone(), loss, lost_at: now };
        let step = Step::Ask { force: times.force };
        self.lists.lock().due.insert((times.act, hold.number), (Arc::new(lost), step));
        self.added.notify_one();
    }

    /// Waits until an action is due.
    pub(in crate::engine) async fn wait(&self, clock: &Clock) {
        loop {
            let added = self.added.notified();
            let first = self.lists.lock().due.first_key_value().map(|((at, _), _)| *at);
            match first {
                None => added.await,
                Some(at) => tokio::select! {
                    biased;
                    () = clock.sleep_until(at) => return,
                    () = added => {}
                },
            }
        }
    }

    /// Takes the actions that are due. Does not block: the process ends without a line, if need be.
    pub(in crate::engine) fn act(&self, now: Instant) {
        let mut lists = self.lists.lock();
        while let Some(first) = lists.due.first_entry()
            && first.key().0 <= now
        {
            let ((_, number), (lost, step)) = first.remove_entry();
            if !lost.hold.is_in_hands() {
                continue;
            }
            match step {
                Step::Force => process::abort(),
                Step::Ask { force } if lists.is_first_of_set(&lost) => {
                    lost.trace();
                    if lost.action.ends_process() {
                        lists.due.insert((force, number), (Arc::clone(&lost), Step::Force));
                    }
                    // Fails only if the thread has panicked.
                    let _ = self.thread.get().map(|thread| thread.send(lost));
                }
                Step::Ask { .. } => {}
            }
        }
    }
}

impl Lists {
    /// Returns whether no action was taken yet for the set of this hold, and counts it as taken. The holds of a set share the
    /// pulse of its calls.
    fn is_first_of_set(&mut self, lost: &Arc<LostHold>) -> bool {
        let Some(pulse) = lost.hold.options.pulse() else { return true };
        self.sets.retain(|taken| taken.hold.is_in_hands());
        let is_same = |taken: &Arc<LostHold>| {
            taken.hold.options.pulse().is_some_and(|other| Arc::ptr_eq(pulse, other))
        };
        let is_first = !self.sets.iter().any(is_same);
        if is_first {
            self.sets.push(Arc::clone(lost));
        }
        is_first
    }
}

impl LostHold {
    /// Acts, on the thread of the actions, if a lease is still alive.
    fn act(&self, clock: &Clock) {
        if !self.hold.is_in_hands() {
            return;
        }
        match &self.action {
            Overrun::Hook(hook) => {
                let report = self.report(clock.now());
                // The panic hook has reported it.
                let _ = catch_unwind(AssertUnwindSafe(|| (hook.0)(&report)));
            }
            Overrun::Abort => self.end("aborts", || process::abort()),
            Overrun::Exit(code) => self.end("exits", || process::exit(*code)),
        }
    }

    /// Writes a line, which may block for long, and ends the process, if a lease is alive even then.
    fn end(&self, verb: &str, end: impl FnOnce()) {
        let Hold { name, fence, .. } = &*self.hold;
        let loss = self.loss;
        let fence =
            fence.map(|fence| format!(" with the fencing token {fence}")).unwrap_or_default();
        let line = format!(
            "leasehold: this process {verb}: the lease on {:?}{fence} is lost ({loss}), and its work goes on\n",
            name.as_str()
        );
        // A line that cannot be written changes nothing.
        let _ = io::stderr().write_all(line.as_bytes());
        if self.hold.is_in_hands() {
            end();
        }
    }

    fn report(&self, now: Instant) -> OverrunReport {
        let hold = &self.hold;
        OverrunReport {
            name: hold.name.to_string(),
            holder: hold.holder,
            fence: hold.fence,
            label: hold.options.label().cloned(),
            loss: self.loss,
            lost_for: now.saturating_duration_since(self.lost_at),
        }
    }

    fn trace(&self) {
        trace::later(Level::ERROR, || {
            let name = self.hold.name.clone();
            let fence = self.hold.fence;
            let cause = self.loss;
            move || {
                tracing::error!(
                    name = name.as_str(),
                    fence,
                    ?cause,
                    "work goes on after the loss of its lease"
                );
            }
        });
    }
}
