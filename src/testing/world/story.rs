//! What happened in a world, as lines that can be read.

use std::fmt;
use std::time::Duration;

/// The number of lines that are printed at most: the last ones.
const PRINTED: usize = 120;

/// Who does, or suffers, what a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Manager(usize),
    /// A fault strikes.
    Fault,
    /// The test itself.
    Test,
    /// The judge, once.
    Judge,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Manager(at) => f.pad(&format!("manager {at}")),
            Who::Fault => f.pad("fault"),
            Who::Test => f.pad("test"),
            Who::Judge => f.pad("judge"),
        }
    }
}

/// A time since the beginning of the world, in seconds.
pub(super) struct Seconds(pub(super) Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} s", self.0.as_secs(), self.0.subsec_millis())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    at: Duration,
    who: Who,
    what: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12}  {:<10}  {}", Seconds(self.at).to_string(), self.who, self.what)
    }
}

/// The lines so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Story(Vec<Line>);

impl Story {
    pub(super) fn add(&mut self, at: Duration, who: Who, what: String) {
        self.0.push(Line { at, who, what });
    }

    /// Returns the last faults, at most `count` of them.
    pub(super) fn last_faults(&self, count: usize) -> Self {
        let faults: Vec<_> = self.0.iter().filter(|line| line.who == Who::Fault).collect();
        let first = faults.len().saturating_sub(count);
        Self(faults[first..].iter().map(|line| (*line).clone()).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all lines, not the last ones alone.
    pub(super) fn all_lines(&self) -> String {
        self.0.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Returns the first line that differs in another story, with that of the other.
    pub(super) fn first_difference(&self, other: &Self) -> Option<String> {
        let longest = self.0.len().max(other.0.len());
        let at = (0..longest).find(|at| self.0.get(*at) != other.0.get(*at))?;
        let line = |story: &Self| story.0.get(at).map_or("(its end)".to_owned(), Line::to_string);
        Some(format!("{}\n  and then\n{}", line(self), line(other)))
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.0.len().saturating_sub(PRINTED);
        if before > 0 {
            writeln!(f, "{:>12}  ({before} lines before)", "..")?;
        }
        for (at, line) in self.0[before..].iter().enumerate() {
            let end = if at + 1 == self.0.len() - before { "" } else { "\n" };
            write!(f, "{line}{end}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story(lines: &[(u64, Who, &str)]) -> Story {
        let mut story = Story::default();
        for (millis, who, what) in lines {
            story.add(Duration::from_millis(*millis), *who, (*what).to_owned());
        }
        story
    }

    #[test]
    fn story_is_a_table_with_the_last_lines() {
        let short = story(&[(0, Who::Manager(1), "begins"), (12_345, Who::Fault, "cut manager 1")]);
        let lines = "     0.000 s  manager 1   begins\n    12.345 s  fault       cut manager 1";
        assert_eq!(short.to_string(), lines);
        let long = story(&vec![(1, Who::Test, "x"); PRINTED + 3]);
        assert!(long.to_string().starts_with("          ..  (3 lines before)\n"));
        assert_eq!(long.to_string().lines().count(), PRINTED + 1);
    }

    #[test]
    fn stories_that_differ_say_where() {
        let one = story(&[(0, Who::Test, "a"), (1, Who::Test, "b")]);
        assert_eq!(one.first_difference(&one.clone()), None);
        let other = story(&[(0, Who::Test, "a")]);
        let difference = one.first_difference(&other).unwrap();
        assert!(difference.contains("test        b") && difference.ends_with("(its end)"));
    }
}
