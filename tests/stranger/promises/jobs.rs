//! Jobs that run once.

use crate::history::{Backend, Deed, History, JobCall, JobOutcome};
use crate::judge::{Breach, Window};

fn pairs(history: &History) -> impl Iterator<Item = [&JobCall; 2]> {
    let all = history.jobs.iter();
    all.clone().flat_map(move |first| all.clone().map(move |second| [first, second])).filter(
        |[first, second]| first.key == second.key && first.start.order != second.start.order,
    )
}

/// A job that has run does not run again before its time.
pub fn job_runs_once(history: &History) -> Vec<Breach> {
    let sentence = "`Job`: success closes the key for the time of `keep`: while it is closed, no replica runs the job again.";
    let mut breaches = Vec::new();
    for [first, second] in pairs(history).filter(|[first, _]| first.outcome == JobOutcome::Ran) {
        let Some(ran) = first.body else { continue };
        let Some(again) = second.body else { continue };
        let Some(ok) = ran.returned_ok else { continue };
        // "... so the key opens once a majority of nodes has been restarted within `keep`. A node that was away when the mark
        // was written counts as one of them."
        let since = Window { from: ok.at, to: again.start.at };
        let written = Window { from: first.start.at, to: ok.at + history.rules.slack };
        let troubles = history.acts.iter().filter(|act| match act.deed {
            Deed::Trouble { manager: None } => act.window().meets(since),
            Deed::Trouble { manager } => {
                manager == Some(first.manager) && act.window().meets(written)
            }
            _ => false,
        });
        if history.rules.backend == Backend::Quorum && troubles.count() >= 2 {
            continue;
        }
        if again.start.order > ok.order && again.start.at < ok.at + first.keep {
            let what = format!(
                "a body began at {:?}, after the success at {:?}, keep {:?}",
                again.start, ok, first.keep
            );
            breaches.push(Breach {
                promise: "job_runs_once",
                sentence,
                name: first.key.clone(),
                what,
            });
        }
    }
    breaches
}

/// Two bodies of a key never run at one time.
pub fn jobs_exclude(history: &History) -> Vec<Breach> {
    let sentence =
        "`Job`: One of them runs the body. The key is an exclusive lock of the same name.";
    let mut breaches = Vec::new();
    for [first, second] in pairs(history) {
        let Some(one) = first.body else { continue };
        let Some(other) = second.body else { continue };
        if one.start.order < other.start.order
            && other.start.order < one.good_until.order
            && other.good_until.order > other.start.order
        {
            let what = format!("bodies ran from {:?} and from {:?}", one.start, other.start);
            breaches.push(Breach {
                promise: "jobs_exclude",
                sentence,
                name: first.key.clone(),
                what,
            });
        }
    }
    breaches
}

/// A job is reported as done only if it was.
pub fn done_only_if_it_ran(history: &History) -> Vec<Breach> {
    let sentence = "`Once::AlreadyDone`: The job was done before: the key is closed.";
    let mut breaches = Vec::new();
    for job in &history.jobs {
        let JobOutcome::AlreadyDone { .. } = job.outcome else { continue };
        let was_done = history.jobs.iter().any(|other| {
            let ok = other.body.and_then(|body| body.returned_ok);
            let lapsed = |ok: crate::history::Stamp| {
                // It closes with the end of the call, or when the store has the mark, a TTL later at most.
                let closed = other.end.map_or(ok.at, |end| end.at).max(ok.at) + history.rules.ttl;
                closed + other.keep + history.rules.slack < job.start.at
            };
            other.key == job.key
                && ok
                    .is_some_and(|ok| job.end.is_none_or(|end| ok.order < end.order) && !lapsed(ok))
        });
        if !was_done {
            let what = format!("the call from {:?} says that the job is done", job.start);
            breaches.push(Breach {
                promise: "done_only_if_it_ran",
                sentence,
                name: job.key.clone(),
                what,
            });
        }
    }
    breaches
}
