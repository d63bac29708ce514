//! Stops the tasks of a process: none of them is polled while it is frozen.

use crate::util::sync::Mutex;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};

/// What all tasks of one process pass at each poll.
#[derive(Debug, Default)]
pub(super) struct Gate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of freezes that have not ended.
    frozen: u32,
    wakers: Vec<Waker>,
}

impl Gate {
    pub(super) fn freeze(&self) {
        self.0.lock().frozen += 1;
    }

    /// Ends one freeze. The tasks are polled again after the last one.
    pub(super) fn thaw(&self) {
        let mut state = self.0.lock();
        state.frozen = state.frozen.saturating_sub(1);
        if state.frozen > 0 {
            return;
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.0.lock().frozen > 0
    }

    /// Waits until the process runs.
    pub(super) async fn until_it_runs(&self) {
        self.run(async {}).await;
    }

    /// Runs a task of the process.
    pub(super) async fn run<F: Future>(&self, task: F) -> F::Output {
        let mut task = pin!(task);
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if state.frozen > 0 {
                if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    state.wakers.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            drop(state);
            task.as_mut().poll(cx)
        })
        .await
    }
}
