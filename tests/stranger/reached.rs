//! The rare states that the runs on a store have reached.
//!
//! They are counted for the whole process. So a test that is not alone in it does not know which of them are its own, and
//! requires none: `.ci/long` has a process for each store.

use kit::reached::Counts;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::history::Backend;
use crate::trial;

/// A run of this length must reach what `tests/kit/reached.txt` wants of its store.
const LONG: Duration = Duration::from_secs(600);

static BEGUN: AtomicUsize = AtomicUsize::new(0);

/// The runs of a test, until they have ended well.
pub struct Runs {
    part: &'static str,
}

impl Runs {
    pub fn begin(backend: Backend, has_servers: bool) -> Self {
        BEGUN.fetch_add(1, Ordering::Relaxed);
        let part = match (backend, has_servers) {
            (Backend::Memory, _) => "stranger-memory",
            (Backend::Quorum, false) => "stranger-quorum-in-memory",
            (Backend::Redis, _) => "stranger-redis",
            (Backend::Quorum, true) => "stranger-quorum",
            (Backend::ZooKeeper, _) => "stranger-zookeeper",
        };
        Self { part }
    }

    pub fn end(self) {
        if BEGUN.load(Ordering::Relaxed) > 1 {
            return;
        }
        let reached = Counts::of_this_process();
        reached.report(self.part);
        let missing = reached.missing(self.part);
        let is_long = trial::span(Duration::ZERO) >= LONG;
        assert!(missing.is_empty() || !is_long, "never reached: {missing:?}");
    }
}
