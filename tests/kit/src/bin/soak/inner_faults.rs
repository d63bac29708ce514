//! What goes wrong inside a holder process while the rest of it works on: its log blocks, is slow or panics; a
//! runtime with flows of control ends, or unwinds by a panic; many calls ask for names at once, without waiting.

use crate::faults::Process as Kind;
use std::io;
use std::panic;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// What a panic that belongs to the run says.
const ON_PURPOSE: &str = "a panic on purpose";
/// How long a line of a slow log takes.
const SLOW_LINE: Duration = Duration::from_millis(10);

/// What is wrong, and until when.
pub type Wrong = Option<(Kind, Instant)>;

pub struct InnerFaults {
    log: Arc<Mutex<Wrong>>,
    /// How the short runtime is to end, and when many calls come at once.
    pub short_runtimes: watch::Sender<Wrong>,
    pub burst: watch::Sender<Wrong>,
}

impl InnerFaults {
    /// From now on the log of this process goes through the one that can be broken; `all` that the library says, or only
    /// what somebody may want to know.
    pub fn start(all: bool) -> Arc<Self> {
        let log = Arc::new(Mutex::new(None));
        let lines = Arc::clone(&log);
        let level = if all { LevelFilter::TRACE } else { LevelFilter::INFO };
        let ours = Targets::new().with_default(LevelFilter::INFO).with_target("leasehold", level);
        let writer = move || Lines(Arc::clone(&lines));
        let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_filter(ours);
        tracing_subscriber::registry().with(lines).init();
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&ON_PURPOSE) {
                usual(info);
            }
        }));
        let (short_runtimes, burst) = (watch::Sender::new(None), watch::Sender::new(None));
        Arc::new(Self { log, short_runtimes, burst })
    }

    /// As the parent says it: `<kind> <ms>`.
    pub fn begin(&self, words: &str) -> Option<()> {
        let (kind, lasts) = words.split_once(' ')?;
        let mut known = Kind::INNER.into_iter().chain([Kind::Flood]);
        let kind = known.find(|known| format!("{known:?}") == kind)?;
        let wrong = Some((kind, Instant::now() + Duration::from_millis(lasts.parse().ok()?)));
        match kind {
            Kind::EndRuntime | Kind::UnwindRuntime => drop(self.short_runtimes.send_replace(wrong)),
            Kind::Burst | Kind::Flood => drop(self.burst.send_replace(wrong)),
            _ => *self.log.lock().unwrap_or_else(PoisonError::into_inner) = wrong,
        }
        Some(())
    }
}

/// Ends a runtime by unwinding.
pub fn unwind() -> ! {
    panic::panic_any(ON_PURPOSE)
}

/// Where the lines of the log go.
struct Lines(Arc<Mutex<Wrong>>);

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A flow of control that writes is held up by its log, that is its own affair; the library's threads
        // hold up all flows.
        let name = thread::current().name().unwrap_or_default().to_owned();
        let wrong = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((kind, until)) = wrong
            && name.starts_with("leasehold")
        {
            let left = until.saturating_duration_since(Instant::now());
            match kind {
                Kind::BlockLog => thread::sleep(left),
                Kind::SlowLog => thread::sleep(SLOW_LINE.min(left)),
                _ if left.is_zero() => {}
                _ => panic::panic_any(ON_PURPOSE),
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
