//! Bounds: how long a subscription may be silent, and how much memory may grow in an outage.

use super::{Case, Finding, REACTION, SECOND, Span, overlap};
use crate::soak::history::What;
use crate::soak::leases::{Lease, Setting, slot};

/// A silent subscription is replaced within T/3 and this, while somebody waits.
const NOTICE: u64 = SECOND;
/// In the first part of a flood what is swept grows, for a time to live and some requests; then it stays.
const RISE: u64 = 4 * SECOND;
/// So much more may be in memory after it, and a third of what it grew by before: five nodes are asked for more than one,
/// and the allocator takes and keeps memory in steps.
const GROWTH: u64 = 4 * 1024;

impl Case<'_> {
    /// A silent subscription is replaced while somebody waits.
    pub(super) fn silences(&mut self) {
        let mut found = Vec::new();
        for event in self.history {
            let What::Silent { until, on, server } = &event.what else { continue };
            let span = (event.at, *until);
            let Some(setting) = self.settings.values().find(|setting| setting.server == *server)
            else {
                continue;
            };
            let waits = self.waits_for_others(on, server);
            let longest = longest_covered(span, &waits);
            let held_up = self.held_up(on, setting, longest);
            let bound = setting.ttl / 3 + NOTICE + REACTION + held_up;
            if longest.1 - longest.0 > bound {
                let ms = (longest.1 - longest.0) / 1_000_000;
                let text = format!(
                    "{on} waits for {ms} ms by a subscription to {server} that says nothing"
                );
                found.push(Finding { rule: "silence", at: longest.0, text });
            }
        }
        self.findings.extend(found);
    }

    /// For how long of a span the way of a slot's processes to a server was broken, or they stood still.
    fn held_up(&self, on: &str, setting: &Setting, span: Span) -> u64 {
        let reconnects = 2 * setting.attempt() + REACTION;
        let mut broken: Vec<Span> = self
            .faults
            .iter()
            .filter(|(whose, kind, _)| {
                (slot(whose) == on || *whose == setting.server) && self.excuses(kind)
            })
            .map(|(.., fault)| (fault.0, fault.1 + reconnects))
            .collect();
        broken
            .extend(self.stalls.iter().filter(|(who, _)| slot(who) == on).flat_map(|(_, all)| all));
        broken.sort_unstable();
        let (mut sum, mut from) = (0, span.0);
        for (begin, end) in broken {
            if let Some(part) = overlap((begin.max(from), end), span) {
                sum += part.1 - part.0;
                from = part.1;
            }
        }
        sum
    }

    /// When a slot's process waited for names of a server that others had.
    fn waits_for_others(&self, on: &str, server: &str) -> Vec<Span> {
        let mut waits = Vec::new();
        for (name, Setting { ttl, .. }) in
            self.settings.iter().filter(|(_, setting)| setting.server == server)
        {
            let own: Vec<&Lease> = self
                .leases
                .iter()
                .filter(|lease| lease.name == *name && slot(&lease.who) == on)
                .collect();
            // While it has the name itself, or has just given it back, it waits for nothing to be heard.
            let mut has: Vec<Span> = own
                .iter()
                .filter_map(|lease| {
                    let ended = lease.ended().or(lease.forgot).unwrap_or(u64::MAX - ttl);
                    Some((lease.granted?, ended))
                })
                .collect();
            has.sort_unstable();
            let waiting = own.iter().filter(|lease| lease.waits() && lease.unpolled.is_none());
            for lease in waiting {
                let mut from = lease.asked;
                let until = lease.answered().unwrap_or(from);
                for had in &has {
                    if had.0 > from && had.0 < until {
                        waits.push((from, had.0));
                    }
                    if had.0 < until {
                        from = from.max(had.1);
                    }
                }
                if from < until {
                    waits.push((from, until));
                }
            }
        }
        waits.sort_unstable();
        waits
    }

    /// What is kept for an outage does not grow with its length.
    pub(super) fn floods(&mut self) {
        let mut found = Vec::new();
        for (who, _, span) in self.faults.iter().filter(|(_, kind, _)| *kind == "Flood") {
            let looks = |span: Span| {
                let looks = self.history.iter().filter_map(|event| match event.what {
                    What::Memory { kib } if event.who == *who => Some((event.at, kib)),
                    _ => None,
                });
                looks.filter(move |(at, _)| (span.0..span.1).contains(at)).map(|(_, kib)| kib)
            };
            let middle = span.0 + RISE;
            let (first, rest) = ((span.0, middle), (middle, span.1));
            let (Some(start), Some(before), Some(after)) =
                (looks(first).min(), looks(first).max(), looks(rest).max())
            else {
                continue;
            };
            if after > before + GROWTH + (before - start) / 3 {
                let grown = after - before;
                let text =
                    format!("{who} takes {grown} KiB more after {} s of an outage", RISE / SECOND);
                found.push(Finding { rule: "memory", at: middle, text });
            }
        }
        self.findings.extend(found);
    }
}

/// The longest part of a span that these spans, in order, cover without a gap.
fn longest_covered(span: Span, covers: &[Span]) -> Span {
    let mut longest = (span.0, span.0);
    let mut current: Option<Span> = None;
    for cover in covers.iter().filter_map(|cover| overlap(*cover, span)) {
        let joined = match current {
            Some(last) if cover.0 <= last.1 => (last.0, last.1.max(cover.1)),
            _ => cover,
        };
        if joined.1 - joined.0 > longest.1 - longest.0 {
            longest = joined;
        }
        current = Some(joined);
    }
    longest
}
