//! The part of a description that a hold does not know by itself.

use crate::clock::Instant;
use std::sync::Arc;
use std::time::Duration;

/// The part of a description that a hold does not know by itself.
#[derive(Debug, Default)]
pub(super) struct Description {
    pub(super) value: Option<Arc<str>>,
    /// Whether a request was sent, of this hold or of one before it in the chain.
    pub(super) sent: bool,
    /// When the last request left that the store has confirmed.
    pub(super) written: Option<Instant>,
    /// Whether it is in the backlog of the background.
    pub(super) queued: bool,
    /// Whether the background could not write it last time.
    pub(super) failed: bool,
    /// When the hold was lost.
    pub(super) lost_at: Option<Instant>,
}

impl Description {
    /// Returns whether it is to be written, at the first time or again, before the store forgets it.
    pub(super) fn is_due(&self, kept: Duration, now: Instant) -> bool {
        let again = kept / 4;
        self.written.is_none_or(|at| now.saturating_duration_since(at) >= again)
    }
}
