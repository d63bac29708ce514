//! What a manager writes into the store about itself and its holds, and which of them lead.

use super::hold::Hold;
use crate::clock::Instant;
use crate::store::Owner;
use crate::util::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::mpsc;

/// The most holds whose descriptions wait to be written. Any other one comes back at its next renewal.
const MOST_WAITING: usize = 1024;

/// The descriptions of a manager and of its holds.
pub(crate) struct Descriptions {
    owner: OnceLock<Owner>,
    /// Whether the manager describes itself in the store.
    is_described: AtomicBool,
    /// Whether any hold has ever written a description.
    pub(in crate::engine) used: AtomicBool,
    /// The number of the last write.
    revision: AtomicU64,
    /// The holds whose descriptions are to be written, on their way to the worker.
    to_write: mpsc::Sender<Weak<Hold>>,
    /// The holds that lead by number, until their leaders are dropped.
    pub(in crate::engine) leading: Mutex<BTreeMap<u64, Arc<Hold>>>,
}

impl Descriptions {
    /// Creates it, and returns where the holds come out whose descriptions are to be written.
    pub(super) fn new() -> (Self, mpsc::Receiver<Weak<Hold>>) {
        let (to_write, waiting) = mpsc::channel(MOST_WAITING);
        let descriptions = Self {
            owner: OnceLock::new(),
            is_described: AtomicBool::new(false),
            used: AtomicBool::new(false),
            revision: AtomicU64::new(0),
            to_write,
            leading: Mutex::default(),
        };
        (descriptions, waiting)
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

    /// Queues a hold whose description is to be written. Returns whether there is room.
    pub(in crate::engine) fn add(&self, hold: &Arc<Hold>) -> bool {
        self.to_write.try_send(Arc::downgrade(hold)).is_ok()
    }
}

/// The part of a description that a hold does not know by itself.
#[derive(Debug, Default)]
pub(in crate::engine) struct Description {
    pub(in crate::engine) value: Option<Arc<str>>,
    /// Whether a request was sent, of this hold or of one before it in the chain.
    pub(in crate::engine) sent: bool,
    /// When the last request left that the store has confirmed.
    pub(in crate::engine) written: Option<Instant>,
    /// Whether it waits for the background to write it.
    pub(in crate::engine) queued: bool,
    /// When the hold was lost.
    pub(in crate::engine) lost_at: Option<Instant>,
}

impl Description {
    /// Returns whether it is to be written, at the first time or again, before the store forgets it.
    pub(in crate::engine) fn is_due(&self, kept: Duration, now: Instant) -> bool {
        let again = kept / 4;
        self.written.is_none_or(|at| now.saturating_duration_since(at) >= again)
    }
}
