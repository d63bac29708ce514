//! The faults and events that a run met: a run that met none proves nothing.

use super::rules::{LONG_RUN, OF_LONG_RUNS, Rules};
use super::{Case, Finding, SECOND};
use crate::soak::history::What;
use crate::soak::leases::{Kind, Lease, Mode, slot};
use std::collections::HashMap;

impl Case<'_> {
    /// How often happened what a run is for.
    pub(super) fn coverage(&self) -> Vec<(&'static str, u64)> {
        let mut chains = 0;
        let mut contended = 0;
        let mut last: HashMap<&str, &Lease> = HashMap::new();
        for lease in self.leases.iter().filter(|lease| lease.granted.is_some()) {
            if let Some(before) = last.insert(&lease.name, lease) {
                chains += u64::from(before.who == lease.who && before.fence + 1 == lease.fence);
                contended += u64::from(before.ended().is_some_and(|ended| ended > lease.asked));
            }
        }
        let losses = self.leases.iter().filter(|lease| {
            let in_with = lease.granted.is_some()
                && lease.gave_up.as_ref().is_some_and(|(_, why)| why.starts_with("lost"));
            lease.fired.is_some() || in_with
        });
        let survived =
            self.leases.iter().flat_map(|lease| &lease.at_risk).filter(|risk| risk.1.is_some());
        let count = |like: fn(&What) -> bool| {
            self.history.iter().filter(|event| like(&event.what)).count() as u64
        };
        let seen = |word: &str| {
            let counts = self.history.iter().filter_map(|event| match &event.what {
                What::Seen { count, text } if text.0 == word => Some(*count),
                _ => None,
            });
            counts.sum()
        };
        let struck = |kind: &str| {
            let servers = self
                .faults
                .iter()
                .filter(|(on, ..)| self.settings.values().any(|setting| setting.server == *on));
            servers.filter(|(_, of, _)| of.split('(').next() == Some(kind)).count() as u64
        };
        let Rules { handed_off, sent_twice, behind_proxies, must_strike, .. } = self.rules;
        let mut coverage = vec![
            ("losses told", losses.count() as u64),
            ("blips survived (at risk, then held)", survived.count() as u64),
            ("contended waits", contended),
            ("nested grants", count(|what| matches!(what, What::Nested { .. }))),
            ("takeovers after a kill", self.takeovers()),
            ("freezes noticed", self.freezes_noticed()),
        ];
        // What cannot happen on a store, or not be seen there, is not asked for.
        for (is_asked, what, times) in [
            (handed_off, "hand-offs in memory", chains),
            (true, "smaller fences refused", count(|what| matches!(what, What::Refused { .. }))),
            (sent_twice, "requests sent twice", seen("requests sent twice")),
            (behind_proxies, "replies or requests lost", seen("replies or requests lost")),
            (behind_proxies, "reconnects", seen("reconnects")),
        ] {
            if is_asked {
                coverage.push((what, times));
            }
        }
        coverage.extend(self.coverage_of_shared());
        coverage.extend(must_strike.iter().map(|(what, kind)| (*what, struck(kind))));
        coverage
    }

    /// What a run with names that several share must meet. A kind that the store does not have is not asked for.
    fn coverage_of_shared(&self) -> Vec<(&'static str, u64)> {
        let asked = |is: fn(Kind) -> bool| self.leases.iter().any(|l| is(Kind::of(&l.name)));
        let granted = |is: fn(&Lease) -> bool| {
            self.leases.iter().filter(|lease| lease.granted.is_some() && is(lease)).count() as u64
        };
        let mut coverage = Vec::new();
        if asked(|kind| kind == Kind::ReadWrite) {
            coverage.extend([
                ("readers beside each other", self.side_by_side(|mode| mode == Mode::Read)),
                ("writers", granted(|lease| lease.mode == Mode::Write)),
                ("downgrades", granted(|lease| lease.how == "downgrade")),
                ("upgrades", granted(|lease| lease.how == "upgrade" && lease.mode == Mode::Write)),
                (
                    "upgrades refused",
                    granted(|lease| lease.how == "upgrade" && lease.mode == Mode::Read),
                ),
                (
                    "nested leases of writers",
                    granted(|lease| lease.mode == Mode::Write && !lease.nested.is_empty()),
                ),
            ]);
        }
        if asked(|kind| matches!(kind, Kind::Semaphore { .. })) {
            let bundles = granted(|lease| matches!(lease.mode, Mode::Permits(2..)));
            let beside = self.side_by_side(|mode| matches!(mode, Mode::Permits(_)));
            coverage
                .extend([("permits beside each other", beside), ("bundles of permits", bundles)]);
        }
        let known = |word: &str| {
            let gave_up = self.leases.iter().filter_map(|lease| lease.gave_up.as_ref());
            gave_up.filter(|(_, why)| why == word).count() as u64
        };
        if asked(|kind| kind == Kind::Election) {
            let views = self.history.iter();
            let observed = views.filter(|event| matches!(event.what, What::Observed { .. }));
            coverage.extend([
                ("terms by hand", granted(|lease| lease.how == "campaign")),
                ("terms of candidates that stand again", granted(|lease| lease.how == "lead")),
                ("leaders seen by views", observed.count() as u64),
            ]);
        }
        if asked(|kind| kind == Kind::Job) {
            coverage.extend([
                ("jobs done", granted(|lease| lease.ran.is_some())),
                ("jobs that failed", granted(|lease| lease.failed)),
                ("jobs done before", known("before")),
                ("jobs done elsewhere", known("elsewhere")),
            ]);
        }
        if asked(|kind| kind == Kind::Loot) {
            let stolen: fn(&Lease) -> bool =
                |lease| lease.fired.as_ref().is_some_and(|(_, why)| why == "stolen");
            coverage.push(("thefts", granted(|lease| lease.how == "steal")));
            if self.rules.thefts_are_reported {
                coverage.push(("holders told of a theft", granted(stolen)));
            }
        }
        coverage
    }

    /// How often somebody came while another one of this mode was there.
    fn side_by_side(&self, is: fn(Mode) -> bool) -> u64 {
        let mut last: HashMap<&str, u64> = HashMap::new();
        let mut count = 0;
        for lease in self.leases.iter().filter(|lease| is(lease.mode)) {
            let Some((from, until)) = lease.believed else { continue };
            let end = last.entry(&lease.name).or_default();
            count += u64::from(*end > from);
            *end = until.max(*end);
        }
        count
    }

    /// In a whole run each of it must have happened.
    pub(super) fn missing(&mut self, coverage: &[(&'static str, u64)]) {
        let run = self.history.iter().find_map(|event| match event.what {
            What::Run { seconds, .. } => Some(seconds),
            _ => None,
        });
        let Some(seconds) = run else { return };
        if seconds >= self.rules.whole_run {
            for (what, count) in coverage {
                let rare = self.rules.rare.contains(what)
                    || (seconds < LONG_RUN && OF_LONG_RUNS.contains(what));
                if *count == 0 && !rare {
                    self.findings.push(Finding {
                        rule: "never happened",
                        at: 0,
                        text: (*what).to_owned(),
                    });
                }
            }
        }
    }

    /// Names that a killed process had, and somebody else got.
    fn takeovers(&self) -> u64 {
        let kills = self.faults.iter().filter(|(_, kind, _)| *kind == "Kill");
        let mut count = 0;
        for (who, _, (killed, _)) in kills {
            let orphans = self.leases.iter().filter(|lease| {
                lease.who == *who
                    && lease.granted.is_some_and(|granted| granted < *killed)
                    && lease.ended().is_none()
            });
            for orphan in orphans {
                let next = self
                    .leases
                    .iter()
                    .any(|lease| lease.name == orphan.name && lease.granted > Some(*killed));
                count += u64::from(next);
            }
        }
        count
    }

    /// Freezes after which a holder was told of a loss at once.
    fn freezes_noticed(&self) -> u64 {
        let freezes = self.faults.iter().filter(|(_, kind, _)| *kind == "Freeze");
        let noticed = freezes.filter(|(who, _, (from, until))| {
            self.leases.iter().any(|lease| {
                slot(&lease.who) == slot(who)
                    && lease.fired.as_ref().is_some_and(|(at, cause)| {
                        cause == "expired" && (*from..until + SECOND / 5).contains(at)
                    })
            })
        });
        noticed.count() as u64
    }
}
