//! Reports events as metrics, through the crate `metrics`.

use crate::error::Loss;
use crate::observe::{DEFAULT_CLASS, Event, EventKind, How, Observer, Operation, Outcome, Refusal};
use crate::store::{HolderId, Mode};
use crate::util::sync::Mutex;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use std::collections::HashSet;
use std::fmt;
use std::sync::OnceLock;

const MODES: [&str; Mode::COUNT] = ["exclusive", "read", "write", "permits"];
const OUTCOMES: [&str; 8] =
    ["granted", "handed_off", "joined", "busy", "timeout", "error", "dropped", "stolen"];
const ENDS: [&str; 5] = ["released", "handed_off", "lost", "not_released", "mode_changed"];
const OPERATIONS: [&str; 3] = ["acquire", "release", "renew"];
/// The place of renewals in it.
const RENEW: usize = 2;
const ANSWERS: [&str; 4] = ["done", "refused", "unavailable", "error"];
const FENCE_REFUSED: &str = "leasehold.fence.refused";

/// An observer that reports what happens as metrics, through the crate [`metrics`](https://docs.rs/metrics).
///
/// Install the recorder of the application first; then give this to [`Builder::observer`](crate::Builder::observer).
/// [`operations`](crate::guide::operations#metrics) lists the metrics. No name of a lock is ever a label: the label
/// `class` is the class of the name.
///
/// ```
/// use leasehold::{LeaseManager, Metrics};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// // The recorder of the application, for example that of metrics-exporter-prometheus, is installed by now.
/// let metrics = Metrics::new().classes(["order", "import"]);
/// let leases = LeaseManager::builder().observer(metrics).connect("memory:").await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "metrics are reported by a manager that has it as an observer"]
pub struct Metrics {
    headroom: Histogram,
    lag: Histogram,
    durations: [[OnceLock<Histogram>; ANSWERS.len()]; OPERATIONS.len()],
    batches: [OnceLock<Histogram>; ANSWERS.len()],
    reconnects: Counter,
    dropped: Counter,
    classes: Mutex<Vec<Class>>,
}

/// The series of a class. Those behind a `OnceLock` begin with their first value: they are many, and most are never used.
struct Class {
    class: &'static str,
    acquires: [[OnceLock<Histogram>; OUTCOMES.len()]; MODES.len()],
    holds: [[OnceLock<Histogram>; ENDS.len()]; MODES.len()],
    leases: [OnceLock<Gauge>; MODES.len()],
    waiters: Gauge,
    losses: Vec<Counter>,
    at_risk: Counter,
    leader: Gauge,
    /// The holds that lead.
    leaders: HashSet<HolderId>,
}

impl Class {
    /// Registers, at zero, the series of a class whose increase from nothing is news.
    fn new(class: &'static str) -> Self {
        let waiters = gauge!("leasehold.waiters", "class" => class);
        let loss =
            |loss: &Loss| counter!("leasehold.losses", "class" => class, "cause" => loss.word());
        let leader = gauge!("leasehold.leader", "election" => class);
        [&waiters, &leader].into_iter().for_each(|gauge| gauge.set(0.0));
        // Registered here; a guard on the side of the resource counts in it.
        _ = counter!(FENCE_REFUSED, "class" => class);
        Self {
            class,
            acquires: Default::default(),
            holds: Default::default(),
            leases: Default::default(),
            waiters,
            losses: Loss::ALL.iter().map(loss).collect(),
            at_risk: counter!("leasehold.at_risk", "class" => class),
            leader,
            leaders: HashSet::new(),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Creates the observer, and registers at zero the counters and gauges of names without a class. Each histogram, and
    /// the gauge of each mode, begins with its first value.
    pub fn new() -> Self {
        describe();
        let new = Self {
            headroom: histogram!("leasehold.renewal.headroom"),
            lag: histogram!("leasehold.watchdog.lag"),
            durations: Default::default(),
            batches: Default::default(),
            reconnects: counter!("leasehold.store.reconnects"),
            dropped: counter!("leasehold.events.dropped"),
            classes: Mutex::default(),
        };
        new.classes([DEFAULT_CLASS])
    }

    /// Registers the counters and gauges of these classes now, at zero. Those of another class begin with its first event.
    pub fn classes(self, classes: impl IntoIterator<Item = &'static str>) -> Self {
        for class in classes {
            Class::of(&mut self.classes.lock(), class);
        }
        self
    }
}

/// The series that begin with their first value.
impl Metrics {
    fn duration(&self, op: usize, outcome: usize) -> &Histogram {
        let name = "leasehold.store.duration";
        self.durations[op][outcome]
            .get_or_init(|| histogram!(name, "op" => OPERATIONS[op], "outcome" => ANSWERS[outcome]))
    }

    fn batch(&self, outcome: usize) -> &Histogram {
        self.batches[outcome].get_or_init(|| {
            let op = OPERATIONS[RENEW];
            histogram!("leasehold.store.batch", "op" => op, "outcome" => ANSWERS[outcome])
        })
    }
}

impl Class {
    fn acquire(&self, mode: Mode, outcome: usize) -> &Histogram {
        let index = mode.index();
        let class = self.class;
        self.acquires[index][outcome].get_or_init(|| {
            let name = "leasehold.acquire.duration";
            histogram!(name, "class" => class, "mode" => MODES[index], "outcome" => OUTCOMES[outcome])
        })
    }

    fn hold(&self, mode: Mode, end: usize) -> &Histogram {
        let index = mode.index();
        let class = self.class;
        self.holds[index][end].get_or_init(|| {
            let name = "leasehold.hold.duration";
            histogram!(name, "class" => class, "mode" => MODES[index], "end" => ENDS[end])
        })
    }

    fn leases(&self, mode: Mode) -> &Gauge {
        let index = mode.index();
        let class = self.class;
        self.leases[index]
            .get_or_init(|| gauge!("leasehold.leases", "class" => class, "mode" => MODES[index]))
    }
}

impl Observer for Metrics {
    fn measures(&self) -> bool {
        true
    }

    fn dropped(&self, count: u64) {
        self.dropped.increment(count);
    }

    fn event(&self, event: &Event) {
        match event.kind() {
            EventKind::Answered { op, outcome, took, items } => {
                let op = match op {
                    Operation::Acquire => 0,
                    Operation::Release => 1,
                    Operation::Renew => RENEW,
                };
                let outcome = match outcome {
                    Outcome::Done => 0,
                    Outcome::Refused => 1,
                    Outcome::Unavailable => 2,
                    Outcome::Failed => 3,
                };
                self.duration(op, outcome).record(took.as_secs_f64());
                // Other requests are for one hold each.
                if op == RENEW {
                    self.batch(outcome).record(*items as f64);
                }
            }
            EventKind::Renewed { headroom } => self.headroom.record(*headroom),
            EventKind::WatchdogRan { lag } => self.lag.record(lag.as_secs_f64()),
            EventKind::Reconnected => self.reconnects.increment(1),
            kind => {
                if let Some(mode) = event.mode() {
                    let mut classes = self.classes.lock();
                    Class::of(&mut classes, event.class()).report(event, kind, mode);
                }
            }
        }
    }
}

impl Class {
    /// Returns the series of a class, which are registered with its first event.
    fn of<'a>(classes: &'a mut Vec<Self>, class: &'static str) -> &'a mut Self {
        let found = classes.iter().position(|one| one.class == class);
        let index = found.unwrap_or_else(|| {
            classes.push(Self::new(class));
            classes.len() - 1
        });
        &mut classes[index]
    }

    /// Adds the holder of an event to those that lead, or takes it out.
    fn set_leader(&mut self, event: &Event, leads: bool) {
        if self.leaders.is_empty() && !leads {
            return;
        }
        let Some(holder) = event.holder() else { return };
        let leaders = &mut self.leaders;
        let changed = if leads { leaders.insert(holder) } else { leaders.remove(&holder) };
        if changed {
            self.leader.set(leaders.len() as f64);
        }
    }

    fn report(&mut self, event: &Event, kind: &EventKind, mode: Mode) {
        match kind {
            EventKind::Leads { .. } => return self.set_leader(event, true),
            EventKind::Released { .. }
            | EventKind::HandedOff { .. }
            | EventKind::Lost { .. }
            | EventKind::NotReleased { .. } => self.set_leader(event, false),
            _ => {}
        }
        let counts = event.counts();
        match kind {
            EventKind::Waiting { .. } => {}
            EventKind::Granted { waited, how, .. } => {
                let how = match how {
                    How::Store => 0,
                    How::HandedOff => 1,
                    How::Joined => 2,
                    How::Stolen => 7,
                };
                self.acquire(mode, how).record(waited.as_secs_f64());
            }
            EventKind::NotGranted { waited, why, .. } => {
                let why = match why {
                    Refusal::Busy => 3,
                    Refusal::TimedOut => 4,
                    Refusal::Failed(_) => 5,
                    Refusal::Dropped => 6,
                };
                self.acquire(mode, why).record(waited.as_secs_f64());
            }
            EventKind::Released { held } => self.hold(mode, 0).record(held.as_secs_f64()),
            EventKind::HandedOff { held } => self.hold(mode, 1).record(held.as_secs_f64()),
            EventKind::Lost { cause, held, .. } => {
                self.hold(mode, 2).record(held.as_secs_f64());
                if let Some(losses) = self.losses.get(*cause as usize) {
                    losses.increment(1);
                }
            }
            EventKind::NotReleased { held: Some(held), .. } => {
                self.hold(mode, 3).record(held.as_secs_f64());
            }
            EventKind::ModeChanged { from, held, .. } => {
                self.hold(*from, 4).record(held.as_secs_f64());
                self.leases(*from).set(f64::from(counts.leases_before));
            }
            EventKind::AtRisk { .. } => return self.at_risk.increment(1),
            _ => return,
        }
        self.leases(mode).set(f64::from(counts.leases));
        self.waiters.set(f64::from(counts.waiters));
    }
}

/// Counts a write that a guard on the side of the resource has refused. A guard knows no class.
#[cfg(feature = "tower")]
pub(crate) fn count_refused_fence() {
    counter!(FENCE_REFUSED, "class" => DEFAULT_CLASS).increment(1);
}

fn describe() {
    let seconds = Some(Unit::Seconds);
    for (name, unit, text) in [
        (
            "leasehold.acquire.duration",
            seconds,
            "The time from a call to its lease, or to its end without one",
        ),
        ("leasehold.hold.duration", seconds, "The time for which a name was held"),
        (
            "leasehold.renewal.headroom",
            None,
            "The share of the time to live that was left when leases were renewed",
        ),
        ("leasehold.watchdog.lag", seconds, "How late the watchdog was"),
        ("leasehold.store.duration", seconds, "The time that the store took to answer"),
        ("leasehold.store.batch", None, "The number of holds in a renewal"),
    ] {
        match unit {
            Some(unit) => describe_histogram!(name, unit, text),
            None => describe_histogram!(name, text),
        }
    }
    describe_gauge!("leasehold.leases", "The holds of this process");
    describe_gauge!("leasehold.waiters", "The calls that wait");
    describe_gauge!("leasehold.leader", "Whether this process leads");
    for (name, text) in [
        ("leasehold.losses", "The holds that were lost"),
        ("leasehold.at_risk", "How often a lease came to be at risk"),
        ("leasehold.store.reconnects", "The reconnects of the store"),
        (FENCE_REFUSED, "The writes that a guard has refused"),
        (
            "leasehold.events.dropped",
            "The events that metrics have missed, because they were behind",
        ),
    ] {
        describe_counter!(name, text);
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_counted_in_their_order() {
        for (index, loss) in Loss::ALL.iter().enumerate() {
            assert_eq!(*loss as usize, index, "{loss:?}");
        }
    }
}
