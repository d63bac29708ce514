//! Writes traces on a thread of their own.
//!
//! A subscriber writes where it is called: it may be slow, block or panic. So the engine and the stores, whose
//! threads must not wait, queue their lines here. The queue is bounded; what it has no room for is counted, and
//! the count is written later.
//!
//! What others write on our threads, as fred does through the crate `log`, comes here by [`catch`].
//!
//! # Invariants
//!
//! 1. **[`later`] runs no code of a subscriber** and waits for nothing that does. It may be called in Drop.
//! 2. Lines are written in the order in which they came, under the subscriber of the thread that they came from;
//!    those of a thread that catches its lines, under the global one.
//! 3. No subscriber ends the thread: a panic costs the line that it struck.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::oneshot;
use tracing::dispatcher::{self, DefaultGuard, Dispatch, get_default, with_default};
use tracing::field::{Field, Value, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Entered, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Span, Subscriber};

/// How many lines wait at most; as many may be under way.
const FULL: usize = 10_000;

struct Line {
    /// Without one it is the global one.
    subscriber: Option<Dispatch>,
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

/// A span whose subscriber may panic when it is entered, left or closed, without harm. A panic there would unwind after
/// a result is returned, which Rust leaks then: a lease that nothing releases.
pub(crate) struct QuietSpan(Option<Span>);

impl QuietSpan {
    pub(crate) fn new(span: Span) -> Self {
        Self(Some(span))
    }

    /// Runs `f` in the span.
    pub(crate) fn inside<R>(&self, f: impl FnOnce() -> R) -> R {
        let enter = || self.0.as_ref().map(Span::enter);
        // The panic hook has reported it.
        let entered = catch_unwind(AssertUnwindSafe(enter)).ok().flatten();
        let entered = Left(entered);
        let result = f();
        drop(entered);
        result
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.0.as_ref().is_some_and(|span| !span.is_disabled())
    }

    pub(crate) fn record(&self, field: &str, value: impl Value) {
        if let Some(span) = &self.0 {
            span.record(field, value);
        }
    }
}

impl Drop for QuietSpan {
    fn drop(&mut self) {
        let span = self.0.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(span)));
    }
}

/// Leaves a span, also while a panic unwinds.
struct Left<'a>(Option<Entered<'a>>);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        let entered = self.0.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(entered)));
    }
}

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
#[cfg(all(test, feature = "redis"))]
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
        let subscriber = get_default(|now| (!now.is::<Catcher>()).then(|| now.clone()));
        self.push_line(Line { subscriber, write });
    }

    fn push_line(&self, line: Line) {
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
        let _ = catch_unwind(AssertUnwindSafe(|| match subscriber {
            Some(subscriber) => with_default(&subscriber, write),
            None => write(),
        }));
    }
}

/// Has what this thread writes, until the guard goes, written by the thread for it. The bridge from `log` to
/// `tracing` asks for the thread's subscriber too, so this is also for clients that log; another logger still
/// writes where it is called. Spans are off here.
///
/// Nothing without a subscriber: to set one tells `tracing` for the whole process that there is one.
pub(crate) fn catch() -> Option<DefaultGuard> {
    static CATCHER: OnceLock<Dispatch> = OnceLock::new();
    dispatcher::has_been_set()
        .then(|| dispatcher::set_default(CATCHER.get_or_init(|| Dispatch::new(Catcher))))
}

/// Queues events.
struct Catcher;

impl Subscriber for Catcher {
    /// What nobody else wants stays as cheap as it is.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::never()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::OFF)
    }

    fn enabled(&self, line: &Metadata<'_>) -> bool {
        line.is_event() && wanted(*line.level())
    }

    fn event(&self, event: &Event<'_>) {
        let meta = event.metadata();
        let mut caught = Caught { meta, fields: Vec::new(), target: None };
        event.record(&mut caught);
        // In here nobody can ask for the thread's subscriber.
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

/// An event with fields of its own.
struct Caught {
    meta: &'static Metadata<'static>,
    fields: Vec<(Field, Box<dyn Value + Send>)>,
    /// Of a line of `log`.
    target: Option<String>,
}

/// For how many fields there is room: a line of `log` has five.
const FIELDS: usize = 16;

impl Caught {
    fn push(&mut self, field: &Field, value: impl Value + Send + 'static) {
        if self.fields.len() < FIELDS {
            self.fields.push((field.clone(), Box::new(value)));
        }
    }

    /// Asks the subscriber as if the line came now. The one of a line of `log` is asked by that line's target, as the
    /// bridge asks it.
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
