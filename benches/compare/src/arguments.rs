//! What the user asks for.

use crate::contender::{Entry, Role};
use crate::peers;
use std::path::PathBuf;

const HELP: &str = "\
leasehold against the bare scripts and other lock crates, on a redis-server of its own

  --quick            fewer and shorter rounds, fewer leases, no polling every 5 ms; the exit code judges nothing
  --scenario LIST    1,2,2b,3,3b,4,5,6,6b,6c,7; default all
  --only LIST        contenders by id, such as leasehold,floor-fred; default all
  --unpinned         leaves out the tables `1 pinned`, `2 pinned`, `2b pinned` and `6 pinned`, for which the program
                     runs again with client and server on one core, by taskset; no target is judged there
  --rounds N         how often each contender is measured; default 3 to 6 by scenario
  --json FILE        JSON lines, one for each contender, scenario and round, to a file
                     (`-`: to stdout, between the tables)
  --list             prints the ids of the contenders

Exit code 1 when a target is missed.";

pub const SCENARIOS: [&str; 11] = ["1", "2", "2b", "3", "3b", "4", "5", "6", "6b", "6c", "7"];

#[derive(Debug)]
pub struct Arguments {
    pub quick: bool,
    /// Whether some scenarios are run on one core, too.
    pub unpinned: bool,
    /// Whether this process is the one that runs on one core.
    pub pinned: bool,
    pub scenarios: Vec<String>,
    pub only: Vec<String>,
    rounds: Option<usize>,
    pub json: Option<PathBuf>,
}

impl Arguments {
    /// Err: what to tell the user instead of measuring.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut this = Self {
            quick: false,
            unpinned: false,
            pinned: false,
            scenarios: SCENARIOS.map(String::from).to_vec(),
            only: Vec::new(),
            rounds: None,
            json: None,
        };
        while let Some(word) = words.next() {
            let mut value =
                || words.next().ok_or_else(|| format!("{word} needs a value\n\n{HELP}"));
            match word.as_str() {
                "--quick" => this.quick = true,
                "--unpinned" => this.unpinned = true,
                // For this program alone.
                "--pinned" => this.pinned = true,
                "--scenario" => this.scenarios = list(&value()?),
                "--only" => this.only = list(&value()?),
                "--json" => this.json = Some(value()?.into()),
                "--rounds" => {
                    let rounds = value()?.parse().map_err(|_| "--rounds needs a number")?;
                    this.rounds = Some(std::cmp::max(1, rounds));
                }
                "--list" => return Err(peers::ids().join("\n")),
                _ => return Err(HELP.to_owned()),
            }
        }
        if let Some(odd) = this.scenarios.iter().find(|one| !SCENARIOS.contains(&one.as_str())) {
            return Err(format!("there is no scenario {odd}; choose from {SCENARIOS:?}"));
        }
        let ids = peers::ids();
        if let Some(odd) = this.only.iter().find(|one| !ids.contains(&one.as_str())) {
            return Err(format!("there is no contender {odd}; choose from\n{}", ids.join("\n")));
        }
        Ok(this)
    }

    pub fn wants(&self, scenario: &str) -> bool {
        self.scenarios.iter().any(|one| one == scenario)
    }

    /// Returns whether a scenario is to be run on one core, too.
    pub fn wants_pinned(&self, scenario: &str) -> bool {
        !self.unpinned && !self.pinned && crate::pinned::SCENARIOS.contains(&scenario)
    }

    /// How a scenario is called in tables and lines of JSON.
    pub fn label(&self, scenario: &str) -> String {
        if self.pinned { format!("{scenario} pinned") } else { scenario.to_owned() }
    }

    /// The words for the process that runs a scenario on one core.
    pub fn for_pinned(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.quick {
            words.push("--quick".to_owned());
        }
        if !self.only.is_empty() {
            words.extend(["--only".to_owned(), self.only.join(",")]);
        }
        if let Some(rounds) = self.rounds {
            words.extend(["--rounds".to_owned(), rounds.to_string()]);
        }
        words
    }

    pub fn wants_contender(&self, entry: &Entry) -> bool {
        if self.only.is_empty() {
            return !(self.quick && entry.role == Role::Eager);
        }
        // What is measured twice is measured twice wherever it is measured.
        let is_twice = |one: &str| entry.role == Role::Again && one == peers::TWICE;
        self.only.iter().any(|one| one == entry.id || is_twice(one))
    }

    /// How many, unless the user says it.
    pub fn rounds(&self, usual: usize, quick: usize) -> usize {
        self.rounds.unwrap_or(self.pick(usual, quick))
    }

    /// One of two, by `--quick`.
    pub fn pick<T>(&self, usual: T, quick: T) -> T {
        if self.quick { quick } else { usual }
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Arguments {
        Arguments::parse(words.iter().map(|word| (*word).to_owned())).expect("they are right")
    }

    #[test]
    fn pinned_process_measures_the_same() {
        let parent = parse(&["--quick", "--only", "leasehold,rslock", "--rounds", "2"]);
        assert!(parent.wants_pinned("1") && parent.wants_pinned("6") && !parent.wants_pinned("3"));
        assert_eq!(parent.label("1"), "1");
        let words = parent.for_pinned();
        let mut all = vec!["--pinned", "--scenario", "1"];
        all.extend(words.iter().map(String::as_str));
        let child = parse(&all);
        assert!(child.quick && child.wants("1") && !child.wants("2"));
        assert_eq!((&child.only, child.rounds(5, 5)), (&parent.only, 2));
        assert!(!child.wants_pinned("1"));
        assert_eq!(child.label("1"), "1 pinned");
        assert!(!parse(&["--unpinned"]).wants_pinned("1"));
    }

    #[test]
    fn leasehold_is_measured_twice() {
        let entries = peers::all();
        let measured = |arguments: &Arguments| {
            let wanted = entries.iter().filter(|entry| arguments.wants_contender(entry));
            wanted.map(|entry| entry.id).collect::<Vec<_>>()
        };
        assert_eq!(measured(&parse(&["--only", "leasehold"])), [peers::TWICE, peers::AGAIN]);
        assert_eq!(measured(&parse(&["--only", "floor-fred"])), ["floor-fred"]);
    }
}
