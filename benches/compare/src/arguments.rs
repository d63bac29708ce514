//! What the user asks for.

use crate::contender::{Entry, Role};
use std::path::PathBuf;

const HELP: &str = "\
leasehold against the bare scripts and other lock crates, on a redis-server of its own

  --quick            a minute and a half: fewer and shorter rounds, fewer leases, no polling every 5 ms;
                     the exit code judges nothing
  --scenario LIST    1,2,2b,3,3b,4,5,6,6b,7; default all
  --only LIST        contenders by id, such as leasehold,floor-fred; default all
  --rounds N         how often each contender is measured; default 3 to 6 by scenario
  --json FILE        JSON lines, one for each contender, scenario and round, to a file
                     (`-`: to stdout, between the tables)
  --list             tells the ids of the contenders

Exit code 1 when a target is missed.";

pub const SCENARIOS: [&str; 10] = ["1", "2", "2b", "3", "3b", "4", "5", "6", "6b", "7"];

#[derive(Debug)]
pub struct Arguments {
    pub quick: bool,
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
                "--scenario" => this.scenarios = list(&value()?),
                "--only" => this.only = list(&value()?),
                "--json" => this.json = Some(value()?.into()),
                "--rounds" => {
                    let rounds = value()?.parse().map_err(|_| "--rounds needs a number")?;
                    this.rounds = Some(std::cmp::max(1, rounds));
                }
                "--list" => return Err(crate::peers::ids().join("\n")),
                _ => return Err(HELP.to_owned()),
            }
        }
        if let Some(odd) = this.scenarios.iter().find(|one| !SCENARIOS.contains(&one.as_str())) {
            return Err(format!("there is no scenario {odd}; choose from {SCENARIOS:?}"));
        }
        let ids = crate::peers::ids();
        if let Some(odd) = this.only.iter().find(|one| !ids.contains(&one.as_str())) {
            return Err(format!("there is no contender {odd}; choose from\n{}", ids.join("\n")));
        }
        Ok(this)
    }

    pub fn wants(&self, scenario: &str) -> bool {
        self.scenarios.iter().any(|one| one == scenario)
    }

    pub fn wants_contender(&self, entry: &Entry) -> bool {
        if self.only.is_empty() {
            return !(self.quick && entry.role == Role::Eager);
        }
        self.only.iter().any(|one| one == entry.id)
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
