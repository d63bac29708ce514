//! Worker processes: this program again, with a job.

/// The first word of a worker's command line.
pub const WORKER: &str = "worker";

pub fn work(_job: &str) {}
