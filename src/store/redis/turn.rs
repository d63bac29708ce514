//! Waking many at once.
//!
//! A task that wakes others one by one rouses an idle worker with the first of them. Often that has taken and
//! run the one task there is, and sleeps again, before the next is woken: for a batch of answers, more work
//! than the answers themselves. What a runtime's drivers wake is shared out once, when all are awake. So
//! answers are given from there, by a waker left with the runtime as `yield_now` leaves its own.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use tokio::task::yield_now;

/// Does `work` when this worker has nothing else to run, or after some sixty tasks, or before it blocks; at once
/// outside of a runtime, and when the runtime ends.
pub(super) fn at_the_turn(work: impl FnOnce() + Send + 'static) {
    let waker = Waker::from(Arc::new(Turn(Mutex::new(Some(work)))));
    // What comes of it is of no interest: whether the waker is woken, kept or dropped, the work is done.
    let _ = pin!(yield_now()).poll(&mut Context::from_waker(&waker));
}

/// Work that is done when it is woken, or else when nobody can wake it any more.
struct Turn<F: FnOnce()>(Mutex<Option<F>>);

impl<F: FnOnce()> Turn<F> {
    fn take(&self) {
        let work = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(work) = work {
            work();
        }
    }
}

impl<F: FnOnce() + Send + 'static> Wake for Turn<F> {
    fn wake(self: Arc<Self>) {
        self.take();
    }
}

impl<F: FnOnce()> Drop for Turn<F> {
    fn drop(&mut self) {
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::runtime::Builder;

    /// Work that counts how often it is done.
    fn counted() -> (Arc<AtomicUsize>, impl FnOnce() + Send + 'static) {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        (count, move || {
            counter.fetch_add(1, Ordering::SeqCst);
        })
    }

    #[test]
    fn outside_of_a_runtime_it_is_done_at_once() {
        let (count, work) = counted();
        at_the_turn(work);
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn it_is_done_once_and_not_before_the_task_lets_go() {
        for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
            let runtime = builder.build().unwrap();
            let task = runtime.spawn(async {
                let (count, work) = counted();
                at_the_turn(work);
                assert_eq!(count.load(Ordering::SeqCst), 0);
                yield_now().await;
                assert_eq!(count.load(Ordering::SeqCst), 1);
                yield_now().await;
                assert_eq!(count.load(Ordering::SeqCst), 1);
            });
            runtime.block_on(task).unwrap();
        }
    }

    /// Blocking as tokio allows it must not hold up what others wait for.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn it_is_done_before_a_worker_blocks() {
        let task = tokio::spawn(async {
            let (count, work) = counted();
            at_the_turn(work);
            tokio::task::block_in_place(|| assert_eq!(count.load(Ordering::SeqCst), 1));
        });
        task.await.unwrap();
    }

    #[test]
    fn it_is_done_when_the_runtime_ends() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let (count, work) = counted();
        runtime.block_on(async { at_the_turn(work) });
        drop(runtime);
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
