//! The holds of a manager that are to tell about themselves, and those that lead.

use super::hold::Hold;
use crate::store::Owner;
use crate::util::sync::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The most requests of the background at one time.
const WRITERS: usize = 8;

/// What the holds of a manager tell.
#[derive(Default)]
pub(crate) struct Describer {
    owner: OnceLock<Owner>,
    /// Whether the manager describes itself in the store.
    is_described: AtomicBool,
    /// Whether any hold has ever written a description.
    pub(in crate::engine) used: AtomicBool,
    /// The number of the last write.
    revision: AtomicU64,
    backlog: Mutex<Backlog>,
    /// The holds that lead by number, until their leaders are dropped.
    pub(in crate::engine) leading: Mutex<BTreeMap<u64, Arc<Hold>>>,
}

/// The holds that are to tell, and the number of jobs that see to it.
#[derive(Default)]
struct Backlog {
    holds: VecDeque<Weak<Hold>>,
    /// Those that failed last time. They come last, so that a part of the store that is away delays no other.
    failed: VecDeque<Weak<Hold>>,
    writers: usize,
}

impl Describer {
    /// Has the manager describe itself. Call it once, before its engine runs.
    pub(crate) fn describe(&self, owner: Owner) {
        let _ = self.owner.set(owner);
        self.is_described.store(true, Ordering::Relaxed);
    }

    /// Returns the description of the manager that belongs in the store.
    pub(in crate::engine) fn described(&self) -> Option<Owner> {
        self.is_described.load(Ordering::Relaxed).then(|| self.owner())
    }

    pub(in crate::engine) fn owner(&self) -> Owner {
        self.owner.get_or_init(|| Owner::new("")).clone()
    }

    /// Returns the number of the next write.
    pub(in crate::engine) fn next_revision(&self) -> u64 {
        self.revision.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds a hold that is to tell, unless it is in the backlog. Returns whether one more job is to see to it.
    pub(in crate::engine) fn add(&self, hold: &Arc<Hold>, (queued, failed): (bool, bool)) -> bool {
        let mut backlog = self.backlog.lock();
        match (queued, failed) {
            (true, _) => {}
            (false, false) => backlog.holds.push_back(Arc::downgrade(hold)),
            (false, true) => backlog.failed.push_back(Arc::downgrade(hold)),
        }
        // Also for one that is in the backlog: the runtime of the jobs may have ended.
        let starts = backlog.writers < WRITERS;
        backlog.writers += usize::from(starts);
        starts
    }

    /// Begins a job that was started.
    pub(in crate::engine) fn writer(&self) -> Writer<'_> {
        Writer { describer: self, ended: false }
    }
}

/// One of the jobs that see to the backlog. Dropping it lets another one start.
pub(in crate::engine) struct Writer<'a> {
    describer: &'a Describer,
    ended: bool,
}

impl Writer<'_> {
    /// Returns the next hold that is to tell; ends with the last one.
    pub(in crate::engine) fn next(&mut self) -> Option<Weak<Hold>> {
        let mut backlog = self.describer.backlog.lock();
        let next = backlog.holds.pop_front().or_else(|| backlog.failed.pop_front());
        if next.is_none() {
            // In the same step, so that what is added later starts a new one.
            self.ended = true;
            backlog.writers -= 1;
        }
        next
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.describer.backlog.lock().writers -= 1;
        }
    }
}
