//! Wakes many tasks at once.
//!
//! When a task wakes others one by one, the first wake rouses an idle worker. Often that worker has run the one task and
//! sleeps again before the next one is woken. For a batch of answers this costs more than the answers themselves. tokio
//! distributes the tasks that its drivers wake once, when all of them are awake. So answers are given from there, by a
//! waker that is left with the runtime the way `yield_now` leaves its own.

use crate::util::sync::Mutex;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use tokio::task::yield_now;

/// Does `work` when this worker has nothing else to run, or after some sixty tasks, or before it blocks. Does it at once
/// outside of a runtime, and when the runtime ends.
pub(super) fn defer_to_driver(work: impl FnOnce() + Send + 'static) {
    let waker = Waker::from(Arc::new(Deferred(Mutex::new(Some(work)))));
    // The result does not matter: whether the waker is woken, kept or dropped, the work is done.
    let _ = pin!(yield_now()).poll(&mut Context::from_waker(&waker));
}

/// Does its work when it is woken, or when its last waker is dropped.
struct Deferred<F: FnOnce()>(Mutex<Option<F>>);

impl<F: FnOnce()> Deferred<F> {
    fn take(&self) {
        let work = self.0.lock().take();
        if let Some(work) = work {
            work();
        }
    }
}

impl<F: FnOnce() + Send + 'static> Wake for Deferred<F> {
    fn wake(self: Arc<Self>) {
        self.take();
    }
}

impl<F: FnOnce()> Drop for Deferred<F> {
    fn drop(&mut self) {
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::runtime::Builder;

    /// Returns work that counts how often it is done.
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
        defer_to_driver(work);
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn it_is_done_once_and_not_before_the_task_lets_go() {
        for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
            let runtime = builder.build().unwrap();
            let task = runtime.spawn(async {
                let (count, work) = counted();
                defer_to_driver(work);
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
            defer_to_driver(work);
            tokio::task::block_in_place(|| assert_eq!(count.load(Ordering::SeqCst), 1));
        });
        task.await.unwrap();
    }

    #[test]
    fn it_is_done_when_the_runtime_ends() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let (count, work) = counted();
        runtime.block_on(async { defer_to_driver(work) });
        drop(runtime);
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
