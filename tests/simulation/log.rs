//! A log that panics, blocks or is slow. leasehold writes it on a thread of its own, so this takes no virtual time:
//! what the simulation's thread may call of it is told here.

use super::judge::Sometimes;
use super::plan::LogFault;
use super::runtime::{USER, Unwound};
use super::world::TASK;
use leasehold::LeaseManager;
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;
use tracing::dispatcher::{DefaultGuard, Dispatch, set_default};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, NoSubscriber};
use tracing::{Event, Metadata, Subscriber};

/// What writes where a user's future is polled: the span of a call, and what happens in it.
const IN_CALLS: [&str; 5] = [
    "leasehold::locks::election::candidate",
    "leasehold::locks::once",
    "leasehold::engine::acquire::wait",
    "leasehold::locks::lease",
    "leasehold::engine::acquire",
];

/// What writes in a task of its own on the user's runtime, which delays no engine.
const VIEW: &str = "leasehold::locks::election::view";

/// The log of one run; at its end the log goes on.
pub struct Log {
    inner: Arc<Inner>,
    _here: DefaultGuard,
}

struct Inner {
    fault: LogFault,
    /// Of all calls in users' own futures, one in so many panics.
    panics_here: Option<u64>,
    /// The simulation's thread.
    home: ThreadId,
    state: Mutex<State>,
    over: Condvar,
}

#[derive(Default)]
struct State {
    over: bool,
    lines: u64,
    calls: u64,
    struck: u64,
    struck_here: u64,
    /// The first call that delays an engine.
    wrong: Option<String>,
}

impl Log {
    /// The log of what this thread does from now on.
    pub fn start(fault: LogFault, panics_here: Option<u64>) -> Self {
        // Were there but one subscriber in the process, other threads would say for it that it wants nothing.
        static OTHER: OnceLock<Dispatch> = OnceLock::new();
        OTHER.get_or_init(|| Dispatch::new(NoSubscriber::default()));
        let home = thread::current().id();
        let (state, over) = (Mutex::default(), Condvar::new());
        let inner = Arc::new(Inner { fault, panics_here, home, state, over });
        let here = set_default(&Dispatch::new(Writer(Arc::clone(&inner))));
        let log = Self { inner, _here: here };
        if fault == LogFault::Block {
            block();
        }
        log
    }

    pub fn calls(&self) -> Calls {
        Calls(Arc::clone(&self.inner))
    }

    /// What happened of it.
    pub fn seen(&self) -> impl Iterator<Item = Sometimes> {
        let state = self.inner.state();
        let what = match self.inner.fault {
            LogFault::Panic => Sometimes::LogPanicked,
            LogFault::Block => Sometimes::LogBlocked,
            LogFault::Slow => Sometimes::LogSlow,
        };
        let here = (state.struck_here > 0).then_some(Sometimes::LogPanickedInCall);
        (state.struck > 0).then_some(what).into_iter().chain(here)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.inner.state().over = true;
        self.inner.over.notify_all();
    }
}

/// From here on the log has a line that is not written: whoever waits for it waits in vain.
fn block() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(USER.scope((), async {
        let lease = LeaseManager::in_memory().lock("first").lock().await.expect("free");
        lease.unlock().await.expect("held");
    }));
}

/// What the simulation's thread calls of the log.
pub struct Calls(Arc<Inner>);

impl Calls {
    /// The first call that delays an engine.
    pub fn wrong(&self) -> Option<String> {
        self.0.state().wrong.take()
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Code of the subscriber runs.
    fn called(&self, by: Option<&Metadata<'_>>, may_panic: bool) {
        if thread::current().id() == self.home {
            self.called_here(by, may_panic);
        } else if may_panic {
            self.write();
        }
    }

    fn called_here(&self, by: Option<&Metadata<'_>>, may_panic: bool) {
        let user = USER.try_with(|()| ()).is_ok();
        if by.is_some_and(|by| by.target() == VIEW) {
            return;
        }
        let mut state = self.state();
        if !(user && by.is_none_or(|by| IN_CALLS.contains(&by.target()))) {
            let (target, line) = by.map_or(("a span", None), |by| (by.target(), by.line()));
            let what = format!("the log is called by {target}:{} ", line.unwrap_or(0));
            let who = if user { "in a user's task" } else { "in a task of the engine" };
            state.wrong.get_or_insert(format!("{what}{who}"));
            return;
        }
        let may_panic = may_panic && TASK.try_with(|_| ()).is_ok() && !thread::panicking();
        if let (true, Some(each)) = (may_panic, self.panics_here) {
            state.calls += 1;
            if state.calls.is_multiple_of(each) {
                state.struck_here += 1;
                drop(state);
                resume_unwind(Box::new(Unwound));
            }
        }
    }

    /// On the thread that leasehold has for it.
    fn write(&self) {
        let mut state = self.state();
        state.lines += 1;
        let strikes = match self.fault {
            LogFault::Panic => state.lines.is_multiple_of(3),
            LogFault::Block => !state.over,
            LogFault::Slow => state.lines.is_multiple_of(20),
        };
        if !strikes {
            return;
        }
        state.struck += 1;
        match self.fault {
            LogFault::Panic => {
                drop(state);
                resume_unwind(Box::new(Unwound));
            }
            LogFault::Block => {
                while !state.over {
                    state = self.over.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
            LogFault::Slow => {
                drop(state);
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

struct Writer(Arc<Inner>);

impl Subscriber for Writer {
    /// So that it is asked for each line.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn enabled(&self, by: &Metadata<'_>) -> bool {
        let ours = by.target().starts_with("leasehold");
        if ours {
            self.0.called(Some(by), false);
        }
        ours
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.0.called(Some(span.metadata()), true);
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        self.0.called(Some(event.metadata()), true);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        self.0.called(None, false);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {
        self.0.called(None, false);
    }

    fn enter(&self, _: &Id) {
        self.0.called(None, false);
    }

    fn exit(&self, _: &Id) {
        self.0.called(None, false);
    }

    fn try_close(&self, _: Id) -> bool {
        self.0.called(None, false);
        false
    }
}
