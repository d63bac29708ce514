//! The holds of a manager that are to tell about themselves, and those that lead.

use super::hold::Hold;
use crate::store::Owner;
use crate::util::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::mpsc;

/// The most holds that wait to tell. Any other one comes back at its next renewal.
const MOST_WAITING: usize = 1024;

/// What the holds of a manager tell.
pub(crate) struct Describer {
    owner: OnceLock<Owner>,
    /// Whether the manager describes itself in the store.
    is_described: AtomicBool,
    /// Whether any hold has ever written a description.
    pub(in crate::engine) used: AtomicBool,
    /// The number of the last write.
    revision: AtomicU64,
    /// The holds that are to tell, on their way to the worker.
    tells: mpsc::Sender<Weak<Hold>>,
    /// The holds that lead by number, until their leaders are dropped.
    pub(in crate::engine) leading: Mutex<BTreeMap<u64, Arc<Hold>>>,
}

impl Describer {
    /// Creates it, and returns where the holds come out that are to tell.
    pub(super) fn new() -> (Self, mpsc::Receiver<Weak<Hold>>) {
        let (tells, waiting) = mpsc::channel(MOST_WAITING);
        let describer = Self {
            owner: OnceLock::new(),
            is_described: AtomicBool::new(false),
            used: AtomicBool::new(false),
            revision: AtomicU64::new(0),
            tells,
            leading: Mutex::default(),
        };
        (describer, waiting)
    }

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

    /// Queues a hold that is to tell. Returns whether there is room.
    pub(in crate::engine) fn add(&self, hold: &Arc<Hold>) -> bool {
        self.tells.try_send(Arc::downgrade(hold)).is_ok()
    }
}
