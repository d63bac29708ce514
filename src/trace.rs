//! Writes traces on a thread of their own.
//!
//! A subscriber writes where it is called: it may be slow, block or panic. So the engine and the stores, whose
//! threads must not wait, queue their lines here. The queue is bounded; what it has no room for is counted, and
//! the count is written later.
//!
//! # Invariants
//!
//! 1. **[`later`] runs no code of a subscriber** and waits for nothing that does. It may be called in Drop.
//! 2. Lines are written in the order in which they came, under the subscriber of the thread that they came from.
//! 3. No subscriber ends the thread: a panic costs the line that it struck.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::oneshot;
use tracing::Level;
use tracing::dispatcher::{Dispatch, get_default, with_default};
use tracing::level_filters::LevelFilter;

/// How many lines wait at most; as many may be under way.
const FULL: usize = 10_000;

struct Line {
    subscriber: Dispatch,
    write: Box<dyn FnOnce() + Send>,
}

struct Lines {
    waiting: Vec<Line>,
    dropped: u64,
    /// The thread has lines in hand.
    writing: bool,
}

struct Log {
    lines: Mutex<Lines>,
    more: Condvar,
    /// Whether the thread could be started; unset in a process that has made no engine yet.
    started: OnceLock<bool>,
}

static LOG: Log = Log {
    lines: Mutex::new(Lines { waiting: Vec::new(), dropped: 0, writing: false }),
    more: Condvar::new(),
    started: OnceLock::new(),
};

/// Starts the thread, once in a process. Without it lines are dropped.
pub(crate) fn start() {
    LOG.started.get_or_init(|| {
        let thread = std::thread::Builder::new().name("leasehold-log".into());
        thread.spawn(|| LOG.work()).is_ok()
    });
}

/// Whether anybody may want lines of this level; costs the reading of a static.
pub(crate) fn wanted(level: Level) -> bool {
    level <= LevelFilter::current()
}

/// Has the line that `prepare` makes written soon, if its level is wanted at all.
pub(crate) fn later<W>(level: Level, prepare: impl FnOnce() -> W)
where
    W: FnOnce() + Send + 'static,
{
    if wanted(level) {
        LOG.push(Box::new(prepare()));
    }
}

/// Waits until all lines until now are written.
pub(crate) async fn written() {
    let (told, written) = oneshot::channel::<()>();
    if LOG.is_busy() {
        LOG.push(Box::new(move || drop(told)));
        // Nothing is ever sent: it goes with the line, also when that is dropped.
        let _ = written.await;
    }
}

/// As [`written`], for tests.
#[cfg(test)]
pub(crate) fn flush() {
    while LOG.is_busy() {
        std::thread::yield_now();
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_busy(&self) -> bool {
        let lines = self.lock();
        lines.writing || !lines.waiting.is_empty()
    }

    fn push(&self, write: Box<dyn FnOnce() + Send>) {
        let line = Line { subscriber: get_default(Clone::clone), write };
        match self.started.get() {
            Some(true) => {}
            Some(false) => return,
            // A store without an engine.
            None => return line.write(),
        }
        let mut lines = self.lock();
        if lines.waiting.len() >= FULL {
            lines.dropped += 1;
            drop(lines);
            return;
        }
        let asleep = lines.waiting.is_empty();
        lines.waiting.push(line);
        drop(lines);
        if asleep {
            self.more.notify_one();
        }
    }

    fn work(&self) {
        loop {
            let (lines, dropped) = self.next();
            let last = lines.last().map(|line| line.subscriber.clone());
            lines.into_iter().for_each(Line::write);
            if let Some(subscriber) = last.filter(|_| dropped > 0) {
                let write =
                    move || tracing::warn!(lines = dropped, "the log is too slow; lines dropped");
                Line { subscriber, write: Box::new(write) }.write();
            }
        }
    }

    /// Waits for lines; and how many were dropped since the last time.
    fn next(&self) -> (Vec<Line>, u64) {
        let mut lines = self.lock();
        lines.writing = false;
        while lines.waiting.is_empty() {
            lines = self.more.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
        lines.writing = true;
        (std::mem::take(&mut lines.waiting), std::mem::take(&mut lines.dropped))
    }
}

impl Line {
    fn write(self) {
        let Self { subscriber, write } = self;
        // The hook has told of a panic already.
        let _ = catch_unwind(AssertUnwindSafe(|| with_default(&subscriber, write)));
    }
}
