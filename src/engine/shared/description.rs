//! The part of a description that a hold does not know by itself.

use crate::clock::Instant;
use std::sync::Arc;
use std::time::Duration;

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
