//! Jobs: a success at most once per key while it is closed, and nobody is told of one that nobody had.

use super::{Case, Excuse, Excused, FORCED_LATE, SECOND, Span, overlap};
use crate::soak::history::nanos;
use crate::soak::leases::{LONGEST_KEEP, Lease};

/// A store counts the time of a closed key in milliseconds.
const TICK: u64 = 2_000_000;

impl Case<'_> {
    pub(super) fn jobs(&mut self) {
        let runs: Vec<&Lease> = self.leases.iter().filter(|lease| lease.how == "once").collect();
        let (mut found, mut excused) = (Vec::new(), Vec::new());
        for run in &runs {
            let (Some((_, keep)), Some(done)) = (run.ran, run.released) else { continue };
            let closed = (done, done + keep - TICK.min(keep));
            let again = runs.iter().filter(|other| other.name == run.name);
            let again = again.filter_map(|other| Some((other, other.granted?)));
            for (other, granted) in again.filter(|(_, at)| closed.0 < *at && *at < closed.1) {
                if let Some(why) = self.opened(run, other, granted) {
                    excused.push(Excused { why, nanos: closed.1 - granted });
                    continue;
                }
                let (ms, keep) = ((granted - done) / 1_000_000, keep / 1_000_000);
                let text = format!(
                    "{}: {} runs it {ms} ms after {} was done, which closed it for {keep} ms",
                    run.name, other.who, run.who
                );
                found.push((granted, text));
            }
        }
        for ask in &runs {
            let Some((at, _)) = ask.gave_up.as_ref().filter(|(_, why)| why == "before") else {
                continue;
            };
            let mut before = runs.iter().filter(|run| run.name == ask.name);
            if !before.any(|run| self.may_have_closed(run, (ask.asked, *at))) {
                let text = format!("{}: {} is told that it was done, by nobody", ask.name, ask.who);
                found.push((*at, text));
            }
        }
        self.excused.extend(excused);
        for (at, text) in found {
            self.find("job", at, text);
        }
    }

    /// Why the key of a job that was done may have been open again at some time.
    fn opened(&self, run: &Lease, other: &Lease, at: u64) -> Option<Excuse> {
        let span: Span = (run.granted?, at);
        let wipes = self.wipes.iter().filter(|wipe| wipe.name == run.name);
        let mut wipes = wipes.filter(|wipe| {
            let (from, until) = wipe.span;
            overlap((from.saturating_sub(SECOND), until + 1), span).is_some()
        });
        if let Some(wipe) = wipes.next() {
            return Some(wipe.why);
        }
        let misled =
            |lease: &Lease| lease.granted.is_some_and(|at| self.is_misled(lease, (at, at)));
        if misled(run) || misled(other) {
            return Some(Excuse::Replaced);
        }
        // A node of a quorum that starts again has forgotten the mark, and one of two may be the only one that had it.
        let server = self.setting(&run.name).server;
        let crashed = self.faults_on(&server).any(|(kind, fault)| {
            kind.starts_with("Crash") && overlap((fault.0, fault.1 + 1), span).is_some()
        });
        (self.rules.reported_without_grace && crashed).then_some(Excuse::Replaced)
    }

    /// Whether the key may have been closed by this run somewhere in a span.
    fn may_have_closed(&self, run: &Lease, span: Span) -> bool {
        let Some(granted) = run.granted.filter(|_| !run.failed) else { return false };
        let closed = match (run.ran, run.ended()) {
            (Some((known, keep)), _) => known + keep,
            // A success whose answer is not known, of a process that was killed or a future that was dropped.
            (None, Some(ended)) => ended + nanos(LONGEST_KEEP) + FORCED_LATE,
            (None, None) => u64::MAX,
        };
        overlap((granted, closed.saturating_add(SECOND / 10)), span).is_some()
    }
}
