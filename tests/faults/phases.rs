//! The order that everything rests on: the token fires before the server has let the key go. Tried at
//! twenty points between two renewals, for short and longer times to live, with one direction of the
//! connection dead or both.
//!
//! What is compared errs on the safe side: when the token was *seen* to have fired, and the earliest end of
//! the key that its times to live allow. So only a failure can be the fault of a machine that stood still
//! for a while; one during which it did is tried again, a few times.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kit::{Mode, Proxy, Server, millis};
use leasehold::clock::{Clock, Instant};
use leasehold::{Lease, LeaseManager, Loss};

const PHASES: u32 = 20;
const REPEATS: usize = 4;

/// CLOCK_BOOTTIME, on Linux.
fn now() -> Instant {
    Clock::system().now()
}

/// Sleeps for a millisecond again and again, and notes when it was kept from waking up.
struct Probe {
    stalls: Mutex<Vec<(Instant, Duration)>>,
    over: AtomicBool,
}

impl Probe {
    fn start() -> Arc<Self> {
        let probe = Arc::new(Self { stalls: Mutex::default(), over: AtomicBool::new(false) });
        let watch = Arc::clone(&probe);
        thread::spawn(move || {
            let mut last = now();
            while !watch.over.load(Ordering::Relaxed) {
                thread::sleep(millis(1));
                let woken = now();
                let gap = woken.saturating_duration_since(last);
                if gap > millis(4) {
                    watch.stalls.lock().expect("no panic").push((woken, gap));
                }
                last = woken;
            }
        });
        probe
    }

    /// The longest stall since then.
    fn worst_since(&self, start: Instant) -> Duration {
        let stalls = self.stalls.lock().expect("no panic");
        let since = stalls.iter().filter(|(at, _)| *at >= start).map(|(_, gap)| *gap);
        since.max().unwrap_or_default()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Looks at a key until it has gone.
struct Look {
    /// The key lives until then, at least.
    until: Instant,
    gone: Instant,
}

fn look(server: &Server, name: &str, limit: Duration) -> Result<Look, String> {
    let mut connection = server.connection();
    let start = now();
    let mut until = start;
    loop {
        let asked = now();
        match connection.command(&["PTTL", name]).int() {
            -2 => return Ok(Look { until, gone: now() }),
            left => {
                let left = u64::try_from(left).map_err(|_| "a key without a time to live")?;
                until = until.max(asked + millis(left));
            }
        }
        if now().saturating_duration_since(start) > limit {
            return Err("the key does not go".to_owned());
        }
        thread::sleep(millis(3));
    }
}

/// Waits for the next renewal of a key.
async fn renewal(server: &Server, name: &str, lease: &Lease) -> Result<(), String> {
    let mut connection = server.connection();
    let mut last = i64::MAX;
    loop {
        let left = connection.command(&["PTTL", name]).int();
        if left > last.saturating_add(20) {
            return Ok(());
        }
        last = left;
        lease.check().map_err(|error| format!("lost too early: {error}"))?;
        tokio::time::sleep(millis(2)).await;
    }
}

/// What went wrong in a phase.
enum Problem {
    /// The lease was not there, or not any more, when its connection was to be cut: the machine is too
    /// slow for so short a time to live, and nothing was shown.
    Before(String),
    After(String),
}

/// One phase: what went wrong, if something did.
async fn cut(
    server: &Server,
    mode: Mode,
    ttl: Duration,
    name: &str,
    wait: Duration,
) -> Result<(), Problem> {
    let proxy = Proxy::start(server.port());
    let builder = LeaseManager::builder().ttl(ttl).fencing(false);
    let before = |error: leasehold::Error| Problem::Before(error.to_string());
    let leases = builder.connect(&proxy.url()).await.map_err(before)?;
    let lease = leases.lock(name).lock().await.map_err(before)?;
    renewal(server, name, &lease).await.map_err(Problem::Before)?;
    tokio::time::sleep(wait).await;
    lease.check().map_err(before)?;
    let (loss, fired, look) = thread::scope(|scope| {
        let look = scope.spawn(|| look(server, name, ttl * 4 + millis(2_000)));
        proxy.set(mode);
        // A thread of its own, which has nothing else to do.
        let fired = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let loss = runtime.block_on(lease.lost());
            (loss, now())
        });
        let (loss, fired) = fired.join().expect("no panic");
        (loss, fired, look.join().expect("no panic"))
    });
    let Look { until, gone } = look.map_err(Problem::After)?;
    if loss != Loss::Expired {
        return Err(Problem::After(format!("the loss was {loss:?}")));
    }
    if lease.check().is_ok() || !lease.cancellation_token().is_cancelled() {
        return Err(Problem::After("it is believed still".to_owned()));
    }
    if fired >= until || fired >= gone {
        let late = fired.saturating_duration_since(until.min(gone));
        return Err(Problem::After(format!("the token fired {late:?} too late")));
    }
    Ok(())
}

/// All phases of one time to live, some at once.
fn at_every_phase(ttl: Duration, at_once: usize) {
    let grace = (ttl / 10).max(millis(10));
    let server = Server::start();
    let probe = Probe::start();
    let repeats = AtomicUsize::new(0);
    for mode in [Mode::BlackHole, Mode::HoldRequests, Mode::HoldReplies] {
        let next = AtomicU32::new(0);
        let one = |phase: u32, attempt: usize| {
            let name = format!("job:{mode:?}:{phase}:{attempt}");
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            // Up to a period after the last renewal, in which the next is sent.
            let wait = (ttl / 3) * phase / PHASES;
            runtime.block_on(cut(&server, mode, ttl, &name, wait))
        };
        let some = || {
            loop {
                let phase = next.fetch_add(1, Ordering::Relaxed);
                if phase >= PHASES {
                    return;
                }
                for attempt in 0.. {
                    let start = now();
                    let Err(problem) = one(phase, attempt) else { break };
                    let stall = probe.worst_since(start);
                    let (shown, problem) = match problem {
                        Problem::Before(problem) => (false, problem),
                        Problem::After(problem) => (true, problem),
                    };
                    let context = format!("{mode:?}, {ttl:?}, phase {phase}: {problem}");
                    // The watchdog's thread wakes first, then the one that waits for the loss; the probe is one thread.
                    assert!(
                        !shown || stall > grace / 3,
                        "{context}; the worst stall was {stall:?}"
                    );
                    assert!(
                        attempt < REPEATS,
                        "{context}; this machine stalls all the time: {stall:?}"
                    );
                    println!("{context}; tried again after a stall of {stall:?}");
                    repeats.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(some)).collect();
            for worker in workers {
                if let Err(panic) = worker.join() {
                    std::panic::resume_unwind(panic);
                }
            }
        });
    }
    println!("{ttl:?}: {} phases were repeated", repeats.load(Ordering::Relaxed));
}

#[test]
fn token_fires_before_the_key_goes_at_every_phase_of_300_ms() {
    at_every_phase(millis(300), 4);
}

#[test]
fn at_every_phase_of_1_s_the_token_fires_before_the_key_is_gone() {
    at_every_phase(millis(1_000), 7);
}

#[test]
fn at_every_phase_of_3_s_the_token_fires_before_the_key_is_gone() {
    at_every_phase(millis(3_000), 20);
}
