//! Writes traces on a thread of their own.
//!
//! A subscriber writes on the thread that calls it: it may be slow, block or panic. So the engine and the stores, whose
//! threads must not wait, queue their lines here. The queue is bounded. Lines for which it has no room are counted, and
//! the count is written later.
//!
//! [`catch`] queues the lines that other crates write on our threads, as fred does through the crate `log`.
//!
//! # Invariants
//!
//! 1. **[`later`] runs no code of a subscriber** and waits for nothing that does. It may be called in Drop.
//! 2. Lines are written in the order in which they were queued, under the subscriber of the thread that queued them.
//!    Lines of a thread that catches its lines are written under the global subscriber.
//! 3. No subscriber ends the thread: a panic loses only the line that it was writing.

use crate::util::sync::{Condvar, Mutex, MutexGuard};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{OnceLock, PoisonError};
use tokio::sync::oneshot;
use tracing::dispatcher::{self, DefaultGuard, Dispatch, get_default, with_default};
use tracing::field::{Field, Value, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Entered, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Span, Subscriber};

/// The capacity of the queue. The thread may be writing as many lines again.
const FULL: usize = 10_000;

struct Line {
    /// `None` for the global subscriber.
    subscriber: Option<Dispatch>,
    write: Box<dyn FnOnce() + Send>,
}

struct Lines {
    waiting: Vec<Line>,
    dropped: u64,
    /// True while the thread writes lines.
    writing: bool,
}

struct Log {
    lines: Mutex<Lines>,
    more: Condvar,
    /// True if the thread could be started. Unset while the process has no engine.
    started: OnceLock<bool>,
}

static LOG: Log = Log {
    lines: Mutex::new(Lines { waiting: Vec::new(), dropped: 0, writing: false }),
    more: Condvar::new(),
    started: OnceLock::new(),
};

/// A span whose subscriber may panic, without harm, when the span is entered, left or closed. Otherwise such a panic
/// would unwind after a result is returned. Rust leaks the result then, and no code would release its lease.
///
/// `None` for a span that no subscriber wants.
pub(crate) struct QuietSpan(Option<Span>);

impl QuietSpan {
    pub(crate) fn new(span: Span) -> Self {
        Self(Some(span).filter(|span| !span.is_disabled()))
    }

    /// Runs `f` in the span.
    pub(crate) fn inside<R>(&self, f: impl FnOnce() -> R) -> R {
        let Some(span) = &self.0 else { return f() };
        // The panic hook has reported the panic.
        let entered = catch_unwind(AssertUnwindSafe(|| span.enter())).ok();
        let entered = Left(entered);
        let result = f();
        drop(entered);
        result
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn record(&self, field: &str, value: impl Value) {
        if let Some(span) = &self.0 {
            span.record(field, value);
        }
    }
}

impl Drop for QuietSpan {
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(span)));
        }
    }
}

/// Leaves a span when it is dropped, also while a panic unwinds.
struct Left<'a>(Option<Entered<'a>>);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        let entered = self.0.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(entered)));
    }
}

/// Starts the thread, once in a process. If that fails, lines are dropped.
pub(crate) fn start() {
    LOG.started.get_or_init(|| {
        let thread = std::thread::Builder::new().name("leasehold-log".into());
        thread.spawn(|| LOG.work()).is_ok()
    });
}

/// Returns whether a subscriber may want lines of this level. Reads only a static.
pub(crate) fn is_enabled(level: Level) -> bool {
    level <= LevelFilter::current()
}

/// Queues the line that `prepare` returns, if a subscriber may want its level.
pub(crate) fn later<W>(level: Level, prepare: impl FnOnce() -> W)
where
    W: FnOnce() + Send + 'static,
{
    if is_enabled(level) {
        LOG.push(Box::new(prepare()));
    }
}

/// Waits until all lines that were queued before are written.
pub(crate) async fn written() {
    let (done, written) = oneshot::channel::<()>();
    if LOG.is_busy() {
        LOG.push(Box::new(move || drop(done)));
        // The sender never sends. It is dropped with the line, whether that is written or dropped.
        let _ = written.await;
    }
}

/// Waits as [`written`] does, for tests.
#[cfg(all(test, any(feature = "redis", feature = "zookeeper")))]
pub(crate) fn flush() {
    while LOG.is_busy() {
        std::thread::yield_now();
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock()
    }

    fn is_busy(&self) -> bool {
        let lines = self.lock();
        lines.writing || !lines.waiting.is_empty()
    }

    fn push(&self, write: Box<dyn FnOnce() + Send>) {
        let subscriber = get_default(|now| (!now.is::<Catcher>()).then(|| now.clone()));
        self.push_line(Line { subscriber, write });
    }

    fn push_line(&self, line: Line) {
        match self.started.get() {
            Some(true) => {}
            Some(false) => return,
            // A store that is used without an engine.
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

    /// Waits for lines. Returns them, with the number of lines dropped since the last call.
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
        // The panic hook has reported a panic already.
        let _ = catch_unwind(AssertUnwindSafe(|| match subscriber {
            Some(subscriber) => with_default(&subscriber, write),
            None => write(),
        }));
    }
}

/// Queues the lines that this thread writes, until the guard is dropped. The bridge from `log` to `tracing` uses the
/// thread's subscriber too, so this includes clients that use `log`. Another logger still writes on this thread. Spans
/// are off on it.
///
/// Does nothing if no subscriber is set, because setting one here would turn `tracing` on in the whole process.
pub(crate) fn catch() -> Option<DefaultGuard> {
    static CATCHER: OnceLock<Dispatch> = OnceLock::new();
    dispatcher::has_been_set()
        .then(|| dispatcher::set_default(CATCHER.get_or_init(|| Dispatch::new(Catcher))))
}

/// Queues events.
struct Catcher;

impl Subscriber for Catcher {
    // Events that no other subscriber wants stay as cheap as they are.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::never()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::OFF)
    }

    fn enabled(&self, line: &Metadata<'_>) -> bool {
        line.is_event() && is_enabled(*line.level())
    }

    fn event(&self, event: &Event<'_>) {
        let meta = event.metadata();
        let mut caught = Caught { meta, fields: Vec::new(), target: None };
        event.record(&mut caught);
        // Inside this call the thread's subscriber is not available.
        LOG.push_line(Line { subscriber: None, write: Box::new(move || caught.write()) });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A copy of an event, with its fields.
struct Caught {
    meta: &'static Metadata<'static>,
    fields: Vec<(Field, Box<dyn Value + Send>)>,
    /// Set for a line of `log`.
    target: Option<String>,
}

/// The maximum number of fields. A line of `log` has five.
const FIELDS: usize = 16;

impl Caught {
    fn push(&mut self, field: &Field, value: impl Value + Send + 'static) {
        if self.fields.len() < FIELDS {
            self.fields.push((field.clone(), Box::new(value)));
        }
    }

    /// Passes the event to the subscriber as if it happened now. For a line of `log`, asks the subscriber by the target of
    /// that line, as the bridge does.
    fn write(self) {
        let meta = self.meta;
        let asked = Metadata::new(
            meta.name(),
            self.target.as_deref().unwrap_or(meta.target()),
            *meta.level(),
            meta.file(),
            meta.line(),
            meta.module_path(),
            tracing::field::FieldSet::new(&[], meta.callsite()),
            tracing::metadata::Kind::EVENT,
        );
        let Some(any) = meta.fields().iter().next() else { return };
        let values: [_; FIELDS] = std::array::from_fn(|index| match self.fields.get(index) {
            Some((field, value)) => (field, Some(&**value as &dyn Value)),
            None => (&any, None),
        });
        get_default(|subscriber| {
            if subscriber.enabled(&asked) {
                subscriber.event(&Event::new(meta, &meta.fields().value_set(&values)));
            }
        });
    }
}

impl Visit for Caught {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "log.target" {
            self.target = Some(value.to_owned());
        }
        self.push(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, tracing::field::display(format!("{value:?}")));
    }
}
