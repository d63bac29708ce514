//! What an examination of servers has found, and what only all of them together show.

use super::finding::{Check, Finding, Severity};
use std::time::Duration;

/// What a finding about all servers calls them.
pub(crate) const ALL: &str = "all";

/// What was found about the servers of a store.
#[derive(Debug, Default)]
pub(crate) struct Examination {
    pub(crate) findings: Vec<Finding>,
    pub(crate) servers: Vec<Examined>,
}

/// A server that has answered, as far as it is compared with others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Examined {
    /// The server, as the findings call it.
    pub(crate) name: String,
    /// The id of its run, if it reports one.
    pub(crate) run_id: Option<String>,
    /// Its wall clock.
    pub(crate) clock: Option<WallClock>,
}

/// The wall clock of a server, at one instant of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WallClock {
    /// The clock of this process, in the middle between the question and the answer.
    pub(crate) at: Duration,
    /// What the server reported.
    pub(crate) shows: Duration,
    /// How long the question and its answer took.
    pub(crate) took: Duration,
}

impl WallClock {
    /// Returns by how many seconds it is ahead of the clock of this process.
    pub(crate) fn ahead(self) -> f64 {
        self.shows.as_secs_f64() - self.at.as_secs_f64()
    }
}

impl Examination {
    /// Returns an examination with one finding.
    pub(crate) fn of(finding: Finding) -> Self {
        Self { findings: vec![finding], servers: Vec::new() }
    }

    /// Adds what another has found.
    pub(crate) fn join(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.servers.extend(other.servers);
    }

    /// Makes one of those of the nodes of a quorum. While a majority can be used, a node that is away costs no lease.
    pub(crate) fn of_quorum(nodes: Vec<Self>) -> Self {
        let count = nodes.len();
        let with = |is: fn(&Finding) -> bool| {
            nodes.iter().filter(|node| node.findings.iter().any(is)).count()
        };
        let away = with(is_away);
        let here = count - with(is_of_no_use);
        let majority = count / 2 + 1;
        let mut quorum = Self::default();
        for mut node in nodes {
            for finding in node.findings.iter_mut().filter(|finding| is_away(finding)) {
                if here >= majority {
                    finding.severity = Severity::Warning;
                }
            }
            quorum.join(node);
        }
        let (severity, advice) = if here == count {
            (Severity::Fine, format!("{count} nodes answer, and {majority} are needed"))
        } else if here >= majority && here + away < count {
            let advice = format!(
                "{here} of {count} nodes can be used, and {majority} are needed: leases are held, but a program that starts may \
                 be refused; mend the failures of the others"
            );
            (Severity::Warning, advice)
        } else if here >= majority {
            let advice = format!(
                "{here} of {count} nodes answer, and {majority} are needed: locks work, but with {} more away none does; \
                 bring the missing back",
                here + 1 - majority
            );
            (Severity::Warning, advice)
        } else {
            let advice = format!(
                "{here} of {count} nodes can be used, but {majority} are needed, so no lock can be acquired"
            );
            (Severity::Failure, advice)
        };
        quorum.findings.push(Finding::new(Check::Fleet, severity, ALL, advice));
        quorum.findings.extend(twins(&quorum.servers));
        quorum.findings.extend(unknown(&quorum.servers));
        quorum
    }

    /// Compares the clocks of the servers, where there are several.
    pub(crate) fn compare_clocks(&mut self, ttl: Duration) {
        self.findings.extend(compare(&self.servers, ttl));
    }
}

fn is_away(finding: &Finding) -> bool {
    finding.check == Check::Reachable && finding.severity == Severity::Failure
}

/// Returns whether a failure of a node keeps all locks from it.
fn is_of_no_use(finding: &Finding) -> bool {
    use Check::{ClusterMode, Info, Permissions, Reachable, Role, Settings, Version};
    let costs_all = [ClusterMode, Info, Permissions, Reachable, Role, Settings, Version];
    finding.severity == Severity::Failure && costs_all.contains(&finding.check)
}

/// Finds nodes of a quorum of which it is not known whether they are the same server as another.
fn unknown(servers: &[Examined]) -> Option<Finding> {
    let without = servers.iter().filter(|server| server.run_id.is_none());
    let without: Vec<&str> = without.map(|server| server.name.as_str()).collect();
    let are_known = without.is_empty() || servers.len() < 2;
    let advice = format!(
        "{} report no run_id in INFO, so it is not known whether two nodes are one server; grant +info",
        without.join(", ")
    );
    (!are_known).then(|| Finding::new(Check::Fleet, Severity::NotChecked, ALL, advice))
}

/// Finds two nodes of a quorum that are one server.
fn twins(servers: &[Examined]) -> Option<Finding> {
    let same =
        |one: &Examined, other: &Examined| one.run_id.is_some() && one.run_id == other.run_id;
    let pair = servers.iter().enumerate().find_map(|(at, other)| {
        let one = servers[..at].iter().find(|one| same(one, other))?;
        Some(format!(
            "{} and {} are one server, whose vote would count twice; name each server once",
            one.name, other.name
        ))
    })?;
    Some(Finding::new(Check::Fleet, Severity::Failure, ALL, pair))
}

/// Compares clocks by how far each is ahead of that of this process.
fn compare(servers: &[Examined], ttl: Duration) -> Option<Finding> {
    let ahead = |server: &Examined| Some((server.clock?.ahead(), server.name.clone()));
    let mut clocks: Vec<(f64, String)> = servers.iter().filter_map(ahead).collect();
    clocks.sort_by(|one, other| one.0.total_cmp(&other.0));
    let [(least, behind), .., (most, first)] = &clocks[..] else { return None };
    let apart = most - least;
    let limit = ttl.as_secs_f64() / 10.0;
    let (severity, advice) = if apart > limit {
        let advice = format!(
            "the clocks differ: that of {first} is {apart:.3} s ahead of that of {behind}; more than a tenth of the time to \
             live costs leases and the order of fencing tokens in a failover or on a quorum; run chrony or ntpd on each"
        );
        (Severity::Warning, advice)
    } else {
        (
            Severity::Fine,
            format!("the clocks of {} servers differ by {apart:.3} s at most", clocks.len()),
        )
    };
    Some(Finding::new(Check::Clock, severity, ALL, advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, shows_millis: u64) -> Examined {
        let at = Duration::from_secs(100);
        let shows = Duration::from_millis(shows_millis);
        let clock = Some(WallClock { at, shows, took: Duration::ZERO });
        Examined { name: name.to_owned(), run_id: Some(name.to_owned()), clock }
    }

    #[test]
    fn clocks_are_compared_where_there_are_two() {
        let ttl = Duration::from_secs(30);
        assert_eq!(compare(&[server("a", 0)], ttl), None);
        let severity = |second| compare(&[server("a", 7_000), server("b", second)], ttl).unwrap();
        for (second, expected) in [
            (7_000, Severity::Fine),
            (9_900, Severity::Fine),
            (4_100, Severity::Fine),
            (10_100, Severity::Warning),
            (3_900, Severity::Warning),
        ] {
            assert_eq!(severity(second).severity, expected, "{second}");
        }
        assert!(severity(10_100).message().contains("that of b is 3.100 s ahead of that of a"));
        let without = Examined { clock: None, ..server("c", 0) };
        assert_eq!(compare(&[server("a", 0), without], ttl), None);
    }

    #[test]
    fn node_that_cannot_be_used_does_not_count() {
        let node = |check, severity| Examination::of(Finding::new(check, severity, "it", "is"));
        let of = |check, unfit: usize| {
            let severity = |at| if at < unfit { Severity::Failure } else { Severity::Fine };
            let nodes = (0..3).map(|at| node(check, severity(at))).collect();
            let Examination { findings, .. } = Examination::of_quorum(nodes);
            let failures = findings.iter().filter(|known| known.severity == Severity::Failure);
            assert!(failures.count() >= unfit, "it stays a failure: {findings:?}");
            findings.into_iter().find(|finding| finding.check == Check::Fleet).unwrap().severity
        };
        for check in [Check::Permissions, Check::Role, Check::Version, Check::Info] {
            assert_eq!(of(check, 0), Severity::Fine, "{check}");
            assert_eq!(of(check, 1), Severity::Warning, "{check}");
            assert_eq!(of(check, 2), Severity::Failure, "{check}");
        }
        assert_eq!(of(Check::Eviction, 2), Severity::Fine, "a danger, but locks work");
    }

    #[test]
    fn quorum_is_judged_by_its_majority() {
        let node = |name: &str, is_away| {
            let severity = if is_away { Severity::Failure } else { Severity::Fine };
            Examination {
                findings: vec![Finding::new(Check::Reachable, severity, name, "is")],
                servers: if is_away { Vec::new() } else { vec![server(name, 0)] },
            }
        };
        for (away, expected) in [
            (0, Severity::Fine),
            (1, Severity::Warning),
            (2, Severity::Failure),
            (3, Severity::Failure),
        ] {
            let nodes = ["1", "2", "3"].iter().enumerate();
            let nodes = nodes.map(|(at, name)| node(name, at < away)).collect();
            let quorum = Examination::of_quorum(nodes);
            let worst = quorum.findings.iter().map(|finding| finding.severity).max();
            assert_eq!(worst, Some(expected), "{away}: {quorum:?}");
        }
        let mut nodes = vec![node("1", false), node("2", false), node("3", false)];
        nodes[2].servers[0].run_id = None;
        let quorum = Examination::of_quorum(nodes);
        let last = quorum.findings.last().unwrap();
        assert_eq!(last.severity, Severity::NotChecked, "{last}");
        assert!(last.message().contains("3 report no run_id"), "{last}");
        let nodes = vec![node("1", false), node("2", false), node("2", false)];
        let quorum = Examination::of_quorum(nodes);
        assert!(quorum.findings.iter().any(|finding| finding.message().contains("one server")));
    }
}
