//! The summary of a run, as a table.

use kit::soak::history::{Event, What};
use kit::soak::leases::Lease;
use kit::soak::oracle::{Excuse, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// So many findings are printed; more would say no more.
const SHOWN: usize = 20;

pub fn print(history: &[Event], verdict: &Verdict) {
    let granted: Vec<&Lease> =
        verdict.leases.iter().filter(|lease| lease.granted.is_some()).collect();
    println!();
    println!(
        "{:<10} {:>8} {:>8} {:>8} {:>8} {:>12} {:>12}",
        "name", "asked", "granted", "lost", "at risk", "median wait", "longest wait"
    );
    let mut names: BTreeMap<&str, Vec<&Lease>> = BTreeMap::new();
    for lease in &verdict.leases {
        names.entry(&lease.name).or_default().push(lease);
    }
    for (name, leases) in names {
        let mut waits: Vec<u64> = leases
            .iter()
            .filter_map(|lease| Some(lease.granted?.saturating_sub(lease.asked)))
            .collect();
        waits.sort_unstable();
        let lost = leases.iter().filter(|lease| lease.fired.is_some()).count();
        let at_risk: usize = leases.iter().map(|lease| lease.at_risk.len()).sum();
        println!(
            "{name:<10} {:>8} {:>8} {lost:>8} {at_risk:>8} {:>12} {:>12}",
            leases.len(),
            waits.len(),
            millis(waits.get(waits.len() / 2)),
            millis(waits.last())
        );
    }
    let causes = count(
        verdict
            .leases
            .iter()
            .filter_map(|lease| lease.fired.as_ref().map(|(_, cause)| cause.as_str())),
    );
    let refusals = count(
        verdict
            .leases
            .iter()
            .filter_map(|lease| lease.gave_up.as_ref().map(|(_, why)| why.as_str())),
    );
    // A process is called `p<slot>.<life>`.
    let faults = |of_processes: bool| {
        count(history.iter().filter_map(move |event| match &event.what {
            What::Fault { kind, on, .. } if on.contains('.') == of_processes => {
                kind.split('(').next()
            }
            _ => None,
        }))
    };
    let wrote = history.iter().filter(|event| matches!(event.what, What::Wrote { .. })).count();
    let stalls = history.iter().filter_map(|event| match event.what {
        What::Stalled { ms } => Some(ms),
        _ => None,
    });
    println!();
    println!("processes   {}", listed(&faults(true)));
    println!("servers     {}", listed(&faults(false)));
    println!("losses      {}", listed(&causes));
    println!("not granted {}", listed(&refusals));
    for (why, text) in [
        (Excuse::Wiped, "of names whose key was taken away"),
        (Excuse::Stolen, "of names that were stolen"),
        (Excuse::Replaced, "with leases that were granted while a primary was replaced"),
        (Excuse::Reported, "with leases whose loss was told before, without a grace"),
    ] {
        let excused = verdict.excused.iter().filter(|excused| excused.why == why);
        let spans: Vec<u64> = excused.map(|excused| excused.nanos).collect();
        if let Some(longest) = spans.iter().max() {
            println!(
                "excused     {} overlaps {text}, {} at most",
                spans.len(),
                millis(Some(longest))
            );
        }
    }
    println!("writes      {wrote} accepted by the guarded resource");
    let left_out = history.iter().filter_map(|event| match &event.what {
        What::Seen { text, .. } => text.0.strip_prefix("left out, "),
        _ => None,
    });
    let left_out: BTreeSet<&str> = left_out.collect();
    left_out.iter().for_each(|what| println!("left out    {what}"));
    println!("stalls      {} of more than 20 ms, frozen processes included", stalls.count());
    let starved = history.iter().filter_map(|event| match event.what {
        What::Starved { ms } => Some(ms),
        _ => None,
    });
    let (waits, longest) =
        starved.fold((0, 0), |(waits, longest), ms| (waits + 1, ms.max(longest)));
    println!("starved     {waits} times, a thread waited for a processor for {longest} ms at most");
    println!();
    for (what, count) in &verdict.coverage {
        println!("{what:<40} {count:>8}");
    }
    println!();
    match verdict.findings.len() {
        0 => println!("{} leases, and the oracle found nothing", granted.len()),
        found => println!("{} leases, and the oracle found {found}:", granted.len()),
    }
    let start = history.first().map_or(0, |event| event.at);
    for finding in verdict.findings.iter().take(SHOWN) {
        let at = finding.at.saturating_sub(start) as f64 / 1e9;
        println!("  {}: {} (at {at:.3} s)", finding.rule, finding.text);
    }
    if verdict.findings.len() > SHOWN {
        println!("  ..");
    }
}

fn millis(nanos: Option<&u64>) -> String {
    nanos.map_or_else(|| "-".to_owned(), |nanos| format!("{:.2} ms", *nanos as f64 / 1e6))
}

fn count<'a>(words: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    counts
}

fn listed(counts: &BTreeMap<&str, usize>) -> String {
    let parts: Vec<String> = counts.iter().map(|(word, count)| format!("{word} {count}")).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}
