//! Judges how long requests take, and how the clock of a server runs.

use crate::store::connect::examination::WallClock;
use crate::store::connect::finding::{Check, Finding, Severity};
use std::time::Duration;

/// A clock of which the rate differs by more makes leases shorter than the engine counts with.
const RATE: f64 = 0.005;
/// No clock runs faster or slower than that by itself.
const MOST_RATE: f64 = 0.1;

/// Judges the times that requests took, for a time to live, and for an attempt.
pub(super) fn judge_round_trips(
    name: &str,
    mut took: Vec<Duration>,
    ttl: Duration,
    attempt: Duration,
) -> Option<Finding> {
    took.sort_unstable();
    let most = *took.last()?;
    let half = *took.get((took.len() - 1) / 2)?;
    let count = took.len();
    let seen = format!("takes {half:.1?} for a request, and {most:.1?} for the slowest of {count}");
    let limit = ttl / 60;
    let (severity, advice) = if most > attempt {
        let advice = format!(
            "{seen}: longer than an attempt may take ({attempt:?}), so that locks fail; look at the network and the server, \
             or choose a longer time to live"
        );
        (Severity::Failure, advice)
    } else if most > limit {
        let advice = format!(
            "{seen}: more than a sixtieth of the time to live ({limit:?}), so that few renewals are left in an outage; look \
             at the network and the server, or choose a longer time to live"
        );
        (Severity::Warning, advice)
    } else {
        (Severity::Fine, seen)
    };
    Some(Finding::new(Check::RoundTrip, severity, name, advice))
}

/// Judges a clock that was read three times, some seconds apart.
pub(super) fn judge_clock(name: &str, [first, second, third]: [WallClock; 3]) -> Finding {
    let finding = |severity, advice| Finding::new(Check::Clock, severity, name, advice);
    let spans = [Span::between(first, second), Span::between(second, third)];
    let unsure = spans.iter().map(|span| span.unsure).fold(0.0, f64::max);
    if unsure > RATE {
        let advice = format!(
            "answers too slowly or unevenly to compare its clock: the rate is known within {:.1} % only; try again, or from a \
             machine that is nearer",
            unsure * 100.0
        );
        return finding(Severity::NotChecked, advice);
    }
    let is_off = |span: &Span| span.rate.abs() > RATE + span.unsure;
    let [early, late] = spans;
    match (is_off(&early), is_off(&late)) {
        (false, false) => {
            let advice = format!(
                "has a clock that runs within {:.2} % of that of this machine",
                early.rate.abs().max(late.rate.abs()) * 100.0
            );
            finding(Severity::Fine, advice)
        }
        (true, true) if early.is_like(late) => {
            let way = if late.rate > 0.0 { "faster" } else { "slower" };
            let cost = if late.rate > 0.0 {
                "a lease may end there before its holder knows"
            } else {
                "a name stays taken for longer after its holder has died, and fencing tokens lag"
            };
            let advice = format!(
                "has a clock that runs {:.2} % {way} than that of this machine, and more than {:.1} % is too much: {cost}; run \
                 chrony or ntpd, and look at the virtual machine's clock source",
                late.rate.abs() * 100.0,
                RATE * 100.0
            );
            finding(Severity::Failure, advice)
        }
        _ => {
            let steps = spans.iter().filter(|span| is_off(span));
            let steps: Vec<_> = steps.map(|span| format!("by {:+.3} s", span.step)).collect();
            let advice = format!(
                "had its clock stepped {} while it was watched: keys end so much earlier or later than their holders \
                 count with; have chrony or ntpd slew the clock, not step it",
                steps.join(", then ")
            );
            finding(Severity::Failure, advice)
        }
    }
}

/// Two readings of a clock.
#[derive(Clone, Copy)]
struct Span {
    /// By how many seconds it has gained.
    step: f64,
    /// By which part of the time it runs faster.
    rate: f64,
    /// How much of the rate may be the way of the requests.
    unsure: f64,
}

impl Span {
    fn between(first: WallClock, second: WallClock) -> Self {
        let time = (second.at.as_secs_f64() - first.at.as_secs_f64()).max(f64::EPSILON);
        let step = second.ahead() - first.ahead();
        let unsure = (first.took + second.took).as_secs_f64() / 2.0;
        Self { step, rate: step / time, unsure: unsure / time }
    }

    /// Returns whether a clock of one rate can have gained in both.
    fn is_like(self, other: Self) -> bool {
        let apart = (self.rate - other.rate).abs();
        let most = self.rate.abs().max(other.rate.abs());
        most < MOST_RATE && apart < most && self.rate.signum() == other.rate.signum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Severity::{Failure, Fine, NotChecked, Warning};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn round_trips_are_judged_by_the_slowest() {
        let ttl = Duration::from_secs(30);
        let judged = |slow: u32| {
            let mut took = vec![MS; 49];
            took.push(MS * slow);
            judge_round_trips("it", took, ttl, ttl / 10).unwrap()
        };
        for (slow, expected) in
            [(1, Fine), (499, Fine), (501, Warning), (2999, Warning), (3001, Failure)]
        {
            assert_eq!(judged(slow).severity, expected, "{slow}");
        }
        assert!(judged(1).message().contains("1.0ms for the slowest of 50"), "{}", judged(1));
        assert_eq!(judge_round_trips("it", Vec::new(), ttl, ttl), None);
    }

    /// A clock that shows these milliseconds after 0, 5 and 10 s.
    fn clock(shows: [u64; 3], took: Duration) -> Finding {
        let at = [0, 5000, 10_000].map(Duration::from_millis);
        let read = |index: usize| WallClock {
            at: at[index],
            shows: Duration::from_millis(1_000_000 + shows[index]),
            took,
        };
        judge_clock("it", [read(0), read(1), read(2)])
    }

    #[test]
    fn clock_is_judged_by_its_rate() {
        for (shows, expected, says) in [
            ([0, 5000, 10_000], Fine, "within 0.00 %"),
            ([0, 5020, 10_040], Fine, "within 0.40 %"),
            ([0, 5050, 10_100], Failure, "1.00 % faster"),
            ([0, 4950, 9900], Failure, "1.00 % slower"),
            ([0, 5000, 13_000], Failure, "stepped by +3.000 s"),
            ([0, 3000, 8000], Failure, "stepped by -2.000 s"),
            ([0, 7000, 10_000], Failure, "stepped by +2.000 s, then by -2.000 s"),
            ([0, 7000, 15_000], Failure, "stepped by +2.000 s, then by +3.000 s"),
            ([0, 5150, 10_400], Failure, "5.00 % faster"),
        ] {
            let finding = clock(shows, MS);
            assert_eq!(finding.severity, expected, "{shows:?}: {finding}");
            assert!(finding.message().contains(says), "{shows:?}: {finding}");
        }
    }

    #[test]
    fn clock_behind_a_slow_way_is_not_judged() {
        assert_eq!(clock([0, 5050, 10_100], MS * 30).severity, NotChecked);
        // What the way may explain is no difference of the clocks.
        assert_eq!(clock([0, 5030, 10_060], MS * 20).severity, Fine);
        assert_eq!(clock([0, 5050, 10_100], MS * 20).severity, Failure);
    }
}
