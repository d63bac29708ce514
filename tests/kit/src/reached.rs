//! What long runs have reached of the rare states inside leasehold, and which run must reach which.
//!
//! The list of the states is `src/util/reached.rs`; `tests/kit/reached.txt` says where each must be reached. A run prints
//! its counts, and with `LEASEHOLD_REACHED=DIR` writes them there, for the table of `.ci/long`.

use leasehold::testing;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The runs that count, in the order of the table.
pub const PARTS: [&str; 11] = [
    "simulation",
    "soak-redis",
    "soak-sentinel",
    "soak-cluster",
    "soak-quorum",
    "soak-zookeeper",
    "stranger-memory",
    "stranger-quorum-in-memory",
    "stranger-redis",
    "stranger-quorum",
    "stranger-zookeeper",
];

/// Where a state must be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// In each of these runs, if it is long. If there is none, in some run.
    In(Vec<&'static str>),
    /// In none of them: a test does it, which is named with its file.
    Test(&'static str),
}

/// Returns the lines of `tests/kit/reached.txt`: each state, and where it must be reached.
pub fn wanted() -> Vec<(&'static str, Reach)> {
    let lines = include_str!("../reached.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (state, rest) = line.split_once(':').unwrap_or((line, ""));
            let reach = match rest.trim().strip_prefix("test ") {
                Some(test) => Reach::Test(test),
                None => Reach::In(rest.split_whitespace().collect()),
            };
            (state, reach)
        })
        .collect()
}

/// A test that must reach a rare state. It fails where this is dropped, if it has not.
#[must_use]
pub struct Must {
    state: &'static str,
    before: u64,
}

impl Must {
    pub fn reach(state: &'static str) -> Self {
        Self { state, before: Counts::of_this_process().get(state) }
    }
}

impl Drop for Must {
    fn drop(&mut self) {
        let is_reached = Counts::of_this_process().get(self.state) > self.before;
        assert!(is_reached || std::thread::panicking(), "{} was not reached", self.state);
    }
}

/// How often each state was reached in a run.
#[derive(Clone, Debug, Default)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// Returns those of this process, all of them.
    pub fn of_this_process() -> Self {
        Self(testing::reached().into_iter().map(|state| (state.name, state.count)).collect())
    }

    /// Reads what [`write`](Self::write) has written, and adds it.
    pub fn add_from(&mut self, file: &Path) -> io::Result<()> {
        for line in fs::read_to_string(file)?.lines() {
            let wrong = || io::Error::other(format!("{}: {line:?} is no count", file.display()));
            let (name, count) = line.split_once(' ').ok_or_else(wrong)?;
            self.add(name, count.parse().map_err(|_| wrong())?);
        }
        Ok(())
    }

    pub fn add(&mut self, name: &str, count: u64) {
        *self.0.entry(name.to_owned()).or_default() += count;
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Writes a line for each state. A reader finds the whole file, or the one before it.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let mut text = String::new();
        for (name, count) in &self.0 {
            let _ = writeln!(text, "{name} {count}");
        }
        let new = file.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, file)
    }

    /// Prints those that were reached, then what was not. Writes all for the table of `.ci/long`, if that is wanted.
    pub fn report(&self, part: &str) {
        println!("rare states that {part} reached:");
        let states = testing::reached();
        for state in &states {
            let count = self.get(&state.name);
            if count > 0 {
                println!("{:<26} {count:>9}  {}", state.name, state.what);
            }
        }
        let others = states.iter().filter(|state| self.get(&state.name) == 0);
        let others: Vec<&str> = others.map(|state| &*state.name).collect();
        println!("not reached: {}", others.join(", "));
        if let Some(dir) = env::var_os("LEASEHOLD_REACHED").map(PathBuf::from) {
            let written = fs::create_dir_all(&dir).and_then(|()| self.write(&dir.join(part)));
            written.unwrap_or_else(|error| panic!("LEASEHOLD_REACHED, {}: {error}", dir.display()));
        }
    }

    /// Returns the states that a long run of this part must reach, and has not.
    pub fn missing(&self, part: &str) -> Vec<&'static str> {
        let must = |reach: &Reach| matches!(reach, Reach::In(parts) if parts.contains(&part));
        let wanted = wanted().into_iter().filter(|(_, reach)| must(reach));
        wanted.map(|(state, _)| state).filter(|state| self.get(state) == 0).collect()
    }
}
