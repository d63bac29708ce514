//! Which directories may be empty, so that those of names that are used once do not pile up: the servers clear
//! away 10 000 a minute and not more.
//!
//! Names that are used again and again keep theirs: a directory is due after a whole [`PERIOD`] without a release.
//! Deleting one that is not empty fails, and does no harm; what is forgotten here is left to the servers.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub(super) const PERIOD: Duration = Duration::from_secs(5);
/// More than a process releases in a period.
const MOST: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Directories(Mutex<Periods>);

#[derive(Debug, Default)]
struct Periods {
    this: HashSet<String>,
    last: HashSet<String>,
}

impl Directories {
    /// A directory may be empty now.
    pub(super) fn left(&self, directory: &str) {
        let mut periods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if periods.this.len() < MOST && !periods.this.contains(directory) {
            periods.this.insert(directory.to_owned());
        }
    }

    /// Ends a period; returns what is due.
    pub(super) fn due(&self) -> Vec<String> {
        let mut periods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn a_directory_is_due_after_a_period_without_a_release() {
        let directories = Directories::default();
        directories.left("/once");
        directories.left("/often");
        assert!(directories.due().is_empty());
        directories.left("/often");
        assert_eq!(directories.due(), ["/once"]);
        assert_eq!(directories.due(), ["/often"]);
        assert!(directories.due().is_empty());
    }

    #[test]
    fn it_remembers_so_many_and_no_more() {
        let directories = Directories::default();
        (0..MOST + 10).for_each(|number| directories.left(&number.to_string()));
        directories.due();
        assert_eq!(directories.due().len(), MOST);
    }
}
