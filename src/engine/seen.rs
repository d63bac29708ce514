//! What a flow that asks for permits has learned. If a hold is handed off to it, the next flow goes on from there, so that a
//! crowd whose permits are handed off does not ask the store at each change.

use super::job::{Job, Sweep};
use crate::clock::Instant;
use crate::store::{Acquired, Mode, StoreFuture, Wakeups};
use crate::sync::Mutex;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

/// The knowledge of a flow that has asked the store for permits.
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) mode: Mode,
    pub(super) listens: Listens,
    /// Its last request.
    pub(super) question: Arc<Question>,
}

/// How the flow heard of releases when it sent its last request.
#[derive(Clone)]
pub(super) enum Listens {
    NotYet,
    To(Arc<Wakeups>),
    /// The store has no wake-ups.
    Never,
}

/// A request for permits, which the next flow takes over if the one that has sent it waits no more.
pub(super) struct Question {
    state: Mutex<State>,
    changed: Notify,
}

enum State {
    /// A flow waits for the answer.
    Asked,
    Left(Left),
    Refused(Refusal),
    /// It was answered in another way.
    Over,
}

/// What is known about a question.
pub(super) enum Found {
    Left(Left),
    Refused(Refusal),
    Over,
}

/// The store has no permits.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    pub(super) at: Instant,
    /// For how long the flow has waited for that answer.
    pub(super) took: Duration,
    /// How long the permits of others last, at the most.
    pub(super) remaining: Option<Duration>,
}

/// A request in flight that no flow waits for. Dropping it leaves it to the engine, which releases what it may bring.
pub(super) struct Left {
    request: Option<(Sweep, StoreFuture<Acquired>)>,
    jobs: UnboundedSender<Job>,
}

impl Question {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State::Asked), changed: Notify::new() }
    }

    /// Records the answer.
    pub(super) fn answered(&self, refusal: Option<Refusal>) {
        self.set(refusal.map_or(State::Over, State::Refused));
    }

    /// Leaves the request to the next flow.
    pub(super) fn leave(&self, left: Left) {
        self.set(State::Left(left));
    }

    fn set(&self, state: State) {
        let before = replace(&mut *self.state.lock(), state);
        drop(before);
        self.changed.notify_one();
    }

    /// Waits until the flow that asked has an answer, or has left the request. The caller takes that over.
    pub(super) async fn found(&self) -> Found {
        loop {
            {
                let mut state = self.state.lock();
                match &*state {
                    State::Asked => {}
                    State::Refused(refusal) => return Found::Refused(*refusal),
                    State::Over => return Found::Over,
                    State::Left(_) => {
                        if let State::Left(left) = replace(&mut *state, State::Asked) {
                            return Found::Left(left);
                        }
                    }
                }
            }
            self.changed.notified().await;
        }
    }
}

impl Left {
    pub(super) fn new(
        sweep: Sweep,
        verdict: StoreFuture<Acquired>,
        jobs: UnboundedSender<Job>,
    ) -> Self {
        Self { request: Some((sweep, verdict)), jobs }
    }

    /// Takes the request over, if it is what a flow would ask for that wants `like`.
    pub(super) fn take(&mut self, like: &Sweep) -> Option<(Sweep, StoreFuture<Acquired>)> {
        self.request.take_if(|(sweep, _)| sweep.target == like.target && sweep.delay == like.delay)
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if let Some((sweep, verdict)) = self.request.take() {
            // As in `Core::submit`.
            let _ = self.jobs.send(Job::Abandon { sweep, verdict });
        }
    }
}
