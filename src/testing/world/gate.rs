//! Stops the tasks of a process: none of them is polled while it is frozen.

use crate::util::sync::Mutex;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};
use tokio::sync::watch;

/// What all tasks of one process pass at each poll.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    /// The number of times that it was closed, and whether it is closed now.
    changes: watch::Sender<Freezes>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of freezes that have not ended.
    frozen: u32,
    wakers: Vec<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Freezes {
    /// The number so far.
    pub(super) count: u64,
    pub(super) is_frozen: bool,
}

impl Gate {
    pub(super) fn freeze(&self) {
        self.state.lock().frozen += 1;
        self.changes.send_modify(|freezes| {
            *freezes = Freezes { count: freezes.count + 1, is_frozen: true };
        });
    }

    /// Ends one freeze. The tasks are polled again after the last one.
    pub(super) fn thaw(&self) {
        let mut state = self.state.lock();
        state.frozen = state.frozen.saturating_sub(1);
        if state.frozen > 0 {
            return;
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.changes.send_modify(|freezes| freezes.is_frozen = false);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn freezes(&self) -> Freezes {
        *self.changes.borrow()
    }

    /// Waits until the process runs.
    pub(super) async fn until_it_runs(&self) {
        // The sender lives as long as `self`.
        let _ = self.changes.subscribe().wait_for(|freezes| !freezes.is_frozen).await;
    }

    /// Runs a task of the process.
    pub(super) async fn run<F: Future>(&self, task: F) -> F::Output {
        let mut task = pin!(task);
        poll_fn(|cx| {
            let mut state = self.state.lock();
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
