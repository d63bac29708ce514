//! What a flow that asks for permits has learned. If a hold is handed off to it, the next flow goes on from there, so that a
//! crowd whose permits are handed off does not ask the store at each change.

use crate::clock::Instant;
use crate::engine::shared::job::{Job, Sweep};
use crate::store::{Acquired, Mode, StoreFuture, Wakeups};
use crate::util::sync::Mutex;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

/// The knowledge of a flow that has asked the store for permits.
#[derive(Clone)]
pub(in crate::engine) struct Seen {
    pub(in crate::engine) mode: Mode,
    pub(in crate::engine) listens: Listens,
    /// Its last request.
    pub(in crate::engine) question: Arc<Question>,
}

/// How the flow heard of releases when it sent its last request.
#[derive(Clone)]
pub(in crate::engine) enum Listens {
    NotYet,
    To(Arc<Wakeups>),
    /// The store has no wake-ups.
    Never,
}

/// A request for permits, which the next flow takes over if the one that has sent it waits no more.
pub(in crate::engine) struct Question {
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
pub(in crate::engine) enum Found {
    Left(Left),
    Refused(Refusal),
    Over,
}

/// The store has no permits.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Refusal {
    pub(in crate::engine) at: Instant,
    /// For how long the flow has waited for that answer.
    pub(in crate::engine) took: Duration,
    /// How long the permits of others last, at the most.
    pub(in crate::engine) remaining: Option<Duration>,
}

/// A request in flight that no flow waits for. Dropping it leaves it to the engine, which releases what it may bring.
pub(in crate::engine) struct Left {
    request: Option<(Sweep, StoreFuture<Acquired>)>,
    jobs: UnboundedSender<Job>,
}

impl Question {
    pub(in crate::engine) fn new() -> Self {
        Self { state: Mutex::new(State::Asked), changed: Notify::new() }
    }

    /// Records the answer.
    pub(in crate::engine) fn answered(&self, refusal: Option<Refusal>) {
        self.set(refusal.map_or(State::Over, State::Refused));
    }

    /// Leaves the request to the next flow.
    pub(in crate::engine) fn leave(&self, left: Left) {
        self.set(State::Left(left));
    }

    fn set(&self, state: State) {
        let before = replace(&mut *self.state.lock(), state);
        drop(before);
        self.changed.notify_one();
    }

    /// Waits until the flow that asked has an answer, or has left the request. The caller takes that over.
    pub(in crate::engine) async fn found(&self) -> Found {
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
    pub(in crate::engine) fn new(
        sweep: Sweep,
        verdict: StoreFuture<Acquired>,
        jobs: UnboundedSender<Job>,
    ) -> Self {
        Self { request: Some((sweep, verdict)), jobs }
    }

    /// Takes the request over, if it is what a flow would ask for that wants `like`.
    pub(in crate::engine) fn take(
        &mut self,
        like: &Sweep,
    ) -> Option<(Sweep, StoreFuture<Acquired>)> {
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
