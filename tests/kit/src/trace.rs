//! Collects traces, for tests of the spans and events of leasehold.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Fields by their names, as text; the message of an event is its field `message`.
pub type Fields = BTreeMap<String, String>;

#[derive(Clone, Debug)]
pub struct Traced {
    pub level: Level,
    pub target: String,
    pub fields: Fields,
    /// The names of the spans it happened in, the outermost first.
    pub within: Vec<String>,
}

impl Traced {
    pub fn message(&self) -> &str {
        self.field("message")
    }

    /// A field as text; empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

#[derive(Clone, Debug)]
pub struct Spanned {
    pub name: String,
    pub fields: Fields,
    pub closed: bool,
    id: u64,
}

/// All events and spans since it was installed.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    events: Vec<Traced>,
    spans: Vec<Spanned>,
    /// How many tests look at it, where that counts: nothing is kept while none does.
    users: Option<usize>,
}

/// What all threads trace, collected as long as this is there.
pub struct AllThreads(&'static Trace);

impl Deref for AllThreads {
    type Target = Trace;

    fn deref(&self) -> &Trace {
        self.0
    }
}

impl Drop for AllThreads {
    fn drop(&mut self) {
        let mut log = self.0.lock();
        log.users = log.users.map(|users| users - 1);
        if log.is_unused() {
            log.events = Vec::new();
            log.spans = Vec::new();
        }
    }
}

impl Trace {
    /// Collects what the current thread traces, until the guard is dropped.
    pub fn of_this_thread() -> (Self, DefaultGuard) {
        // While a process has one subscriber only, tracing asks that of the thread that comes to a callsite first whether it
        // wants it, and never asks again: a thread without a subscriber would hide the callsite from all others.
        static SECOND: LazyLock<Dispatch> =
            LazyLock::new(|| Dispatch::new(NoSubscriber::default()));
        LazyLock::force(&SECOND);
        let trace = Self::default();
        let guard = tracing_subscriber::registry().with(trace.clone()).set_default();
        (trace, guard)
    }

    /// Collects what all threads of this process trace, and what libraries log.
    pub fn of_all_threads() -> AllThreads {
        static ALL: LazyLock<Trace> = LazyLock::new(|| {
            let trace = Trace::default();
            trace.lock().users = Some(0);
            // This also leads `log` to `tracing`, which can be done once in a process.
            drop(Trace::of_this_thread());
            let all = tracing_subscriber::registry().with(trace.clone());
            tracing::subscriber::set_global_default(all).expect("no other one in this process");
            trace
        });
        let mut log = ALL.lock();
        log.users = log.users.map(|users| users + 1);
        AllThreads(&ALL)
    }

    /// leasehold's events about the lock `name`.
    pub fn of(&self, name: &str) -> Vec<Traced> {
        self.matching(|event| event.target.starts_with("leasehold") && event.field("name") == name)
    }

    /// The messages of leasehold's events about the lock `name`.
    pub fn messages(&self, name: &str) -> Vec<String> {
        let events = self.of(name);
        events.iter().map(|event| event.message().to_owned()).collect()
    }

    /// The events that `is_wanted` accepts. To ask again and again, this is much cheaper than all [`events`](Self::events),
    /// which all other tests of the process add to.
    pub fn matching(&self, is_wanted: impl Fn(&Traced) -> bool) -> Vec<Traced> {
        until_written();
        self.lock().events.iter().filter(|event| is_wanted(event)).cloned().collect()
    }

    pub fn events(&self) -> Vec<Traced> {
        self.matching(|_| true)
    }

    pub fn spans(&self) -> Vec<Spanned> {
        self.lock().spans.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until leasehold has written what it had to tell until now. A thread of its own writes, one line after the
/// other, so it is enough to see a line that was told later: by another thread, to a subscriber that is asked for
/// nothing else.
fn until_written() {
    let later = std::thread::spawn(|| {
        let (trace, _guard) = Trace::of_this_thread();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let lease = leasehold::LeaseManager::in_memory().lock("later").lock().await;
            lease.expect("free").unlock().await.expect("held");
        });
        while !trace.lock().events.iter().any(|event| event.message() == "released") {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    later.join().expect("it is written");
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Trace {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _context: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Texts(&mut fields));
        let name = attributes.metadata().name().to_owned();
        let mut log = self.lock();
        if !log.is_unused() {
            log.spans.push(Spanned { name, fields, closed: false, id: id.into_u64() });
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _context: Context<'_, S>) {
        if let Some(span) = self.lock().open(id) {
            values.record(&mut Texts(&mut span.fields));
        }
    }

    fn on_close(&self, id: Id, _context: Context<'_, S>) {
        if let Some(span) = self.lock().open(&id) {
            span.closed = true;
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if self.lock().is_unused() {
            return;
        }
        let mut fields = Fields::new();
        event.record(&mut Texts(&mut fields));
        let within = context
            .event_scope(event)
            .map(|scope| scope.from_root().map(|span| span.name().to_owned()))
            .map(Iterator::collect)
            .unwrap_or_default();
        let metadata = event.metadata();
        self.lock().events.push(Traced {
            level: *metadata.level(),
            target: metadata.target().to_owned(),
            fields,
            within,
        });
    }
}

impl Log {
    fn is_unused(&self) -> bool {
        self.users == Some(0)
    }

    /// Ids are used again once a span is closed.
    fn open(&mut self, id: &Id) -> Option<&mut Spanned> {
        let id = id.into_u64();
        self.spans.iter_mut().rev().find(|span| span.id == id && !span.closed)
    }
}

struct Texts<'a>(&'a mut Fields);

impl Visit for Texts<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
