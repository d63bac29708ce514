//! Who held a name when, and what follows from it.

use crate::stats;
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;

/// Nanoseconds of a clock that all processes share.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// One hold, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Before the request.
    pub asked: u64,
    /// After the grant.
    pub granted: u64,
    /// Before the release.
    pub ended: u64,
}

/// The holds of each task, and what went wrong.
#[derive(Debug, Default)]
pub struct Tenure {
    pub tasks: Vec<Vec<Grant>>,
    pub errors: u64,
    pub first_error: Option<String>,
}

impl Tenure {
    pub fn merge(&mut self, other: Self) {
        self.tasks.extend(other.tasks);
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error = other.first_error;
        }
    }

    /// All holds with their tasks, in the order of their grants.
    pub fn in_order(&self) -> Vec<(usize, Grant)> {
        let tasks = self.tasks.iter().enumerate();
        let mut all: Vec<_> = tasks
            .flat_map(|(task, grants)| grants.iter().map(move |&grant| (task, grant)))
            .collect();
        all.sort_unstable_by_key(|(_, grant)| grant.granted);
        all
    }

    pub fn contention(&self, start: u64, end: u64) -> Contention {
        let order = self.in_order();
        let overlaps = order.windows(2).filter(|two| two[1].1.granted < two[0].1.ended).count();
        let inside: Vec<_> =
            order.iter().filter(|(_, one)| (start..end).contains(&one.granted)).collect();
        let changes = inside.windows(2).filter(|two| two[0].0 != two[1].0).count();
        let mut counts = vec![0.0; self.tasks.len()];
        for (task, _) in &inside {
            counts[*task] += 1.0;
        }
        // Whoever asked within the time has his wait counted in full, however late it ended.
        let asked = order.iter().filter(|(_, one)| (start..end).contains(&one.asked));
        let mut waits: Vec<u64> = asked.map(|(_, one)| one.granted - one.asked).collect();
        waits.sort_unstable();
        let seconds = (end - start) as f64 / 1e9;
        Contention {
            grants: inside.len(),
            changes,
            changes_per_s: changes as f64 / seconds,
            mean_wait_ms: stats::mean(&waits) / 1e6,
            p99_wait_ms: stats::percentile(&waits, 0.99) / 1e6,
            max_wait_ms: stats::percentile(&waits, 1.0) / 1e6,
            jain: stats::jain(&counts),
            overlaps,
        }
    }

    /// For the parent process; text would be ten times as much.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        for task in &self.tasks {
            bytes.extend((task.len() as u64).to_le_bytes());
            for grant in task {
                for part in [grant.asked, grant.granted, grant.ended] {
                    bytes.extend(part.to_le_bytes());
                }
            }
        }
        std::fs::write(path, bytes)
    }

    pub fn load(path: &Path) -> std::io::Result<Self> {
        let bytes = std::fs::read(path)?;
        let mut numbers =
            bytes.chunks_exact(8).map(|part| u64::from_le_bytes(part.try_into().expect("8 bytes")));
        let mut tasks = Vec::new();
        while let Some(len) = numbers.next() {
            let mut next = || numbers.next().unwrap_or_default();
            let grant = |_| Grant { asked: next(), granted: next(), ended: next() };
            tasks.push((0..len).map(grant).collect());
        }
        Ok(Self { tasks, ..Self::default() })
    }
}

/// What a stretch of time with many tasks at one name was like.
#[derive(Debug)]
pub struct Contention {
    pub grants: usize,
    /// Grants to another task than the one before.
    pub changes: usize,
    pub changes_per_s: f64,
    pub mean_wait_ms: f64,
    pub p99_wait_ms: f64,
    pub max_wait_ms: f64,
    /// Fairness of the numbers of grants of the tasks: 1 all equal, 1/n one has all.
    pub jain: f64,
    /// Grants before the holder before was about to release: must be none.
    pub overlaps: usize,
}
