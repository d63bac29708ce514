//! Work that is handed to the engine, as data.

use super::hold::Hold;
use super::state::Op;
use crate::clock::Instant;
use crate::store::{Acquired, Name, Released, StoreFuture, Token};
use std::sync::Arc;

/// Work for the engine.
pub(crate) enum Job {
    /// Tell the store what it does not know of a hold yet.
    Flush(Arc<Hold>),
    /// Await an operation on a hold, then flush it.
    Finish { hold: Arc<Hold>, op: Op, verdict: StoreFuture<Released> },
    /// Await a nested acquire that nobody waits for.
    FinishNested { hold: Arc<Hold>, count: u32, verdict: StoreFuture<Acquired> },
    /// Await an outermost acquire that nobody waits for, and give back what it brings.
    Abandon { sweep: Sweep, verdict: StoreFuture<Acquired> },
    /// Release a token that may have been granted, or may be yet.
    Sweep(Sweep),
}

/// The grants of one token that may exist without anybody's knowledge.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    pub(super) name: Name,
    pub(super) token: Token,
    /// How many requests may have been, or may yet be, granted.
    pub(super) unknown: u32,
    /// Not before.
    pub(super) from: Option<Instant>,
    /// Until when the last of them may keep the name.
    pub(super) until: Option<Instant>,
}

impl Sweep {
    pub(crate) fn new(name: Name, token: Token) -> Self {
        Self { name, token, unknown: 0, from: None, until: None }
    }

    /// Of a hold that is over, whose grant was asked for more than once.
    pub(crate) fn late(name: Name, token: Token, from: Instant, until: Instant) -> Self {
        // Of several sends, one release cannot know which it undid.
        Self { name, token, unknown: 2, from: Some(from), until: Some(until) }
    }

    /// One more request may have been granted, and may keep the name until `until`.
    pub(super) fn unsure(&mut self, until: Instant) {
        self.unknown += 1;
        self.until = self.until.max(Some(until));
    }
}
