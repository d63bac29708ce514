//! Remembers which directories may be empty, so that the directories of names that are used once do not pile up: the
//! servers delete at most 10 000 a minute.
//!
//! Names that are used again and again keep their directories: one is due after a whole [`PERIOD`] without a release.
//! Deleting a directory that is not empty fails and does no harm. The servers delete those that are forgotten here.

use crate::util::sync::Mutex;
use std::collections::HashSet;
use std::time::Duration;

pub(in crate::store::zookeeper) const PERIOD: Duration = Duration::from_secs(5);
/// The most directories that are remembered: more than a process releases in a period.
const MOST: usize = 100_000;

#[derive(Debug, Default)]
pub(in crate::store::zookeeper) struct Directories(Mutex<Periods>);

#[derive(Debug, Default)]
struct Periods {
    this: HashSet<String>,
    last: HashSet<String>,
}

impl Directories {
    /// Records that a directory may be empty now.
    pub(in crate::store::zookeeper) fn mark_unused(&self, directory: &str) {
        let mut periods = self.0.lock();
        if periods.this.len() < MOST && !periods.this.contains(directory) {
            periods.this.insert(directory.to_owned());
        }
    }

    /// Ends a period. Returns the directories that are due.
    pub(in crate::store::zookeeper) fn due(&self) -> Vec<String> {
        let mut periods = self.0.lock();
        let this = std::mem::take(&mut periods.this);
        let mut due = std::mem::take(&mut periods.last);
        due.retain(|directory| !this.contains(directory));
        periods.last = this;
        due.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_due_after_a_period_without_a_release() {
        let directories = Directories::default();
        directories.mark_unused("/once");
        directories.mark_unused("/often");
        assert!(directories.due().is_empty());
        directories.mark_unused("/often");
        assert_eq!(directories.due(), ["/once"]);
        assert_eq!(directories.due(), ["/often"]);
        assert!(directories.due().is_empty());
    }

    #[test]
    fn directories_are_remembered_up_to_a_limit() {
        let directories = Directories::default();
        (0..MOST + 10).for_each(|number| directories.mark_unused(&number.to_string()));
        directories.due();
        assert_eq!(directories.due().len(), MOST);
    }
}
