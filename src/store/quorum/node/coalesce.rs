//! Answers of a node that concurrent callers share.

use crate::error::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex as AsyncMutex;

/// The last answer to a question.
pub(super) struct Coalesced<T> {
    /// The number of requests that were begun.
    begun: AtomicU64,
    /// The last answer, and the number of its request.
    last: AsyncMutex<(u64, Option<Result<T>>)>,
}

impl<T> Default for Coalesced<T> {
    fn default() -> Self {
        Self { begun: AtomicU64::new(0), last: AsyncMutex::new((0, None)) }
    }
}

impl<T: Clone> Coalesced<T> {
    /// Returns the answer to a request that is begun after this call. Concurrent callers share one, also if it is an error.
    pub(super) fn after<F: Future<Output = Result<T>>>(
        &self,
        ask: impl FnOnce() -> F,
    ) -> impl Future<Output = Result<T>> {
        let before = self.begun.load(Ordering::Acquire);
        async move {
            let mut last = self.last.lock().await;
            if let (number, Some(answer)) = &*last
                && *number > before
            {
                return answer.clone();
            }
            let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
            let answer = ask().await;
            *last = (number, Some(answer.clone()));
            answer
        }
    }
}
