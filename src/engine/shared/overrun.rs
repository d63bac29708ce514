//! What the process does when work goes on after the loss of its lease, and the list of such losses.
//!
//! # Invariants
//!
//! 1. **Nothing is paid before a loss.** A loss puts the hold into the list, if it has an action; nothing else looks at it.
//! 2. **Once for each hold**, and once for the names of one set: its holds share the pulse of a call, and a call gets no new
//!    holds while a lease of the last ones is alive.
//! 3. **Only what is alive.** Each step asks [`Hold::has_a_caller`] just before it acts.
//! 4. **One thread runs code of users**: it calls the hooks and drops them. No other thread of the engine does. A hook that
//!    several managers have is dropped by the thread of the first one.

use super::hold::{Hold, HoldNo};
use crate::clock::{Clock, Instant};
use crate::engine::machine::timing::{OverrunTimes, Timing};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::store::HolderId;
use crate::util::panics::quietly;
use crate::util::sync::Mutex;
use crate::util::trace;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, Write};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::Notify;
use tracing::Level;

/// The longest time between two looks at a lease whose action is to come.
const LOOK: Duration = Duration::from_millis(10);
/// The shortest list that is looked through for holds that need no action any more.
const SHORT_LIST: usize = 64;

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
    /// Does nothing, as without an action: for a handle whose manager has one.
    Ignore,
    /// Calls a function, which [`hook`](Overrun::hook) makes of a closure.
    Hook(OverrunHook),
}

impl Overrun {
    /// Returns an overrun that calls `hook`.
    ///
    /// A thread of the manager calls it, one hold after the other, and drops it in the end. While it runs, the hooks of further
    /// holds wait, and so does the line of an `Exit` or `Abort` of another handle. It may block; nothing else of leasehold
    /// waits for it, and its panic does no harm. It is not in the context of
    /// a tokio runtime: take a [`Handle`](tokio::runtime::Handle) along to spawn tasks. Nothing follows from its return: it
    /// ends the work by itself, or the process, within the last fifth of the [grace](crate::Builder::grace). It can still
    /// begin while the last lease is being dropped. A hook that owns a clone of the manager keeps that manager running until it
    /// is closed.
    ///
    /// Use it to kill a child process, to close a connection, or to end the process in a way of your own.
    pub fn hook(hook: impl Fn(&OverrunReport) + Send + Sync + 'static) -> Self {
        let hook: HookFn = Box::new(hook);
        Self::Hook(OverrunHook(Arc::new(HookCell { hook: Some(hook), thread: OnceLock::new() })))
    }

    /// Returns whether it ends the process.
    fn ends_process(&self) -> bool {
        matches!(self, Self::Abort | Self::Exit(_))
    }
}

type HookFn = Box<dyn Fn(&OverrunReport) + Send + Sync>;

/// The function of [`Overrun::hook`].
#[derive(Clone)]
pub struct OverrunHook(Arc<HookCell>);

impl OverrunHook {
    fn call(&self, report: &OverrunReport) {
        if let Some(hook) = &self.0.hook {
            quietly(|| hook(report));
        }
    }
}

impl fmt::Debug for OverrunHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OverrunHook")
    }
}

/// A hook that its thread drops: holds have it, and the engine drops the last reference to many of them.
struct HookCell {
    hook: Option<HookFn>,
    /// Set once a manager has it.
    thread: OnceLock<mpsc::Sender<Message>>,
}

impl Drop for HookCell {
    fn drop(&mut self) {
        if let (Some(hook), Some(thread)) = (self.hook.take(), self.thread.get()) {
            // Fails only if the thread has panicked: it ends after its last sender.
            let _ = thread.send(Message::Drop(hook));
        }
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
    /// Whether the process is being ended, whatever becomes of the lease.
    ends: AtomicBool,
}

/// The next step for a lost hold.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Asks the thread to act.
    Ask(OverrunTimes),
    /// Ends the process: the thread has not.
    Force,
}

/// What the thread is asked.
enum Message {
    /// To act for the holds in [`Lists::asked`].
    Act,
    /// To drop a hook, which may run code of a user.
    Drop(HookFn),
}

/// The losses of a manager that have an action, and the thread that acts.
#[derive(Default)]
pub(crate) struct Overruns {
    lists: Arc<Mutex<Lists>>,
    /// Notifies the watchdog of a new entry.
    added: Notify,
}

#[derive(Default)]
struct Lists {
    /// The action of handles that have none of their own.
    default: Option<Overrun>,
    /// The way to the thread, while it is there. It ends with the last sender: each hook has one, too.
    thread: Option<mpsc::Sender<Message>>,
    /// Whether the engine has ended.
    ended: bool,
    due: BTreeMap<(Instant, HoldNo), (Arc<LostHold>, Step)>,
    /// Those for which the thread is asked to act.
    asked: VecDeque<Arc<LostHold>>,
    /// The length of that list at which those are taken out that no caller has a lease of any more.
    longest: usize,
    /// The sets whose action was taken, each by its first hold, while a lease of that is alive.
    sets: Vec<Arc<LostHold>>,
}

impl Overruns {
    /// Sets the action of handles that have none of their own. [`start`](Self::start) it first.
    pub(crate) fn set_default(&self, action: Overrun) {
        self.lists.lock().default = Some(action);
    }

    /// Refuses an action where the engine has no threads of its own: `on_caller`.
    pub(crate) fn check(action: &Overrun, on_caller: bool) -> Result<()> {
        if !on_caller || matches!(action, Overrun::Ignore) {
            return Ok(());
        }
        let message = "on_overrun needs a watchdog with a thread of its own; leave out dedicated_thread(false), or in memory set dedicated_thread(true)";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Starts the thread that acts, unless it is there, and lets it drop the hook of this action.
    pub(crate) fn start(&self, action: &Overrun, clock: &Clock, on_caller: bool) -> Result<()> {
        Self::check(action, on_caller)?;
        if matches!(action, Overrun::Ignore) {
            return Ok(());
        }
        let mut lists = self.lists.lock();
        if lists.ended {
            return Ok(());
        }
        let thread = match &lists.thread {
            Some(thread) => thread,
            None => lists.thread.insert(spawn(Arc::downgrade(&self.lists), clock.clone())?),
        };
        if let Overrun::Hook(hook) = action {
            hook.0.thread.get_or_init(|| thread.clone());
        }
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
        let own = hold.options.on_overrun().cloned();
        let Some(action) = own.or_else(|| self.lists.lock().default.clone()) else { return };
        if matches!(action, Overrun::Ignore) || !hold.has_a_caller() {
            return;
        }
        let Some(times) = OverrunTimes::of(timing, loss, now, hold.confirmed()) else { return };
        let hold = Arc::clone(hold);
        let key = (times.act, hold.number);
        let lost = LostHold { hold, action, loss, lost_at: now, ends: AtomicBool::new(false) };
        self.lists.lock().due.insert(key, (Arc::new(lost), Step::Ask(times)));
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

    /// Returns whether an action is to come.
    fn has_any(&self) -> bool {
        let lists = self.lists.lock();
        let mut lost = lists.due.values().map(|(lost, _)| lost).chain(&lists.asked);
        lost.any(|lost| lost.hold.has_a_caller())
    }

    /// Waits until each action that is to come has begun, or its lease is gone: `close` ends what takes them.
    pub(in crate::engine) async fn settled(&self, clock: &Clock) {
        while self.has_any() {
            // The lease may be dropped meanwhile, and the watchdog may be late.
            clock.sleep_until(clock.now() + LOOK).await;
        }
    }

    /// Ends the thread, once it has done what it was asked for, and has dropped the hooks. It is asked for nothing more.
    pub(in crate::engine) fn end(&self) {
        let mut lists = self.lists.lock();
        let asked = std::mem::take(&mut lists.asked);
        let rest = std::mem::replace(&mut *lists, Lists { ended: true, asked, ..Lists::default() });
        drop(lists);
        // Not under the lock, because each hook goes to the thread.
        drop(rest);
    }

    /// Takes the actions that are due. Does not block, and runs no code of a user: the process ends without a line, if need be.
    pub(in crate::engine) fn act(&self, now: Instant) {
        let mut lists = self.lists.lock();
        while let Some(first) = lists.due.first_entry()
            && first.key().0 <= now
        {
            let ((_, number), (lost, step)) = first.remove_entry();
            match step {
                Step::Force if lost.hold.has_a_caller() || lost.ends.load(Ordering::Acquire) => {
                    kill();
                }
                Step::Ask(times) if lost.hold.has_a_caller() && lists.is_first_of_set(&lost) => {
                    lost.trace();
                    if lost.action.ends_process() {
                        let step = (Arc::clone(&lost), Step::Force);
                        lists.due.insert((times.force_after(now), number), step);
                    }
                    lists.ask(lost);
                }
                Step::Ask(_) | Step::Force => {}
            }
        }
    }
}

impl Lists {
    /// Asks the thread to act for a hold.
    fn ask(&mut self, lost: Arc<LostHold>) {
        if self.asked.len() >= self.longest.max(SHORT_LIST) {
            // A hook that does not return holds up the rest.
            self.asked.retain(|lost| lost.hold.has_a_caller());
            self.longest = self.asked.len() * 2;
        }
        match lost.action.ends_process() {
            true => self.asked.push_front(lost),
            false => self.asked.push_back(lost),
        }
        // Fails only if the thread has ended.
        let _ = self.thread.as_ref().map(|thread| thread.send(Message::Act));
    }

    /// Returns whether no action was taken yet for the set of this hold, and counts it as taken. The holds of a set have
    /// different names and share the pulse of its calls. The terms of a candidate share one, too, and have one name.
    fn is_first_of_set(&mut self, lost: &Arc<LostHold>) -> bool {
        let Some(pulse) = lost.hold.options.pulse() else { return true };
        self.sets.retain(|taken| taken.hold.has_a_caller());
        let is_same = |taken: &Arc<LostHold>| {
            let other = taken.hold.options.pulse();
            other.is_some_and(|other| Arc::ptr_eq(pulse, other))
                && taken.hold.name != lost.hold.name
        };
        let is_first = !self.sets.iter().any(is_same);
        if is_first {
            self.sets.push(Arc::clone(lost));
        }
        is_first
    }
}

/// Starts the thread of the actions.
fn spawn(lists: Weak<Mutex<Lists>>, clock: Clock) -> Result<mpsc::Sender<Message>> {
    let (messages, asked) = mpsc::channel();
    let serve = move || {
        for message in asked {
            match message {
                Message::Drop(hook) => quietly(|| drop(hook)),
                Message::Act => {
                    let next = lists.upgrade().and_then(|lists| lists.lock().asked.pop_front());
                    if let Some(lost) = next {
                        lost.act(&clock);
                    }
                }
            }
        }
    };
    let thread = thread::Builder::new().name("leasehold-stop".into()).spawn(serve);
    thread.map_err(|error| Error::no_thread("failed to start the thread of on_overrun", error))?;
    Ok(messages)
}

/// Ends the process at once, also where a handler of SIGABRT does not return.
fn kill() -> ! {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // Elsewhere, and for the first process of a container, which its own SIGKILL does not reach.
    process::abort()
}

impl LostHold {
    /// Acts, on the thread of the actions, if a lease is still alive.
    fn act(&self, clock: &Clock) {
        if !self.hold.has_a_caller() {
            return;
        }
        match &self.action {
            Overrun::Ignore => {}
            Overrun::Hook(hook) => hook.call(&self.report(clock.now())),
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
            "leasehold: the lease on {:?}{fence} is lost ({loss}), and its work goes on; this process {verb} unless it stops now\n",
            name.as_str()
        );
        // A line that cannot be written changes nothing.
        let _ = io::stderr().write_all(line.as_bytes());
        if self.hold.has_a_caller() {
            self.ends.store(true, Ordering::Release);
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
