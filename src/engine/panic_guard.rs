//! Distinguishes a panic of the engine from a panic elsewhere.

use super::shared::core::Core;
use super::shared::lifecycle::Stage;
use crate::error::Loss;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

/// Runs a part of the engine. If it panics, nothing is renewed any more, so all leases are lost.
///
/// `std::thread::panicking` does not answer this: the thread may be unwinding through a runtime of
/// the user, which drops this future on its way.
pub(super) async fn guarded(core: &Arc<Core>, work: impl Future<Output = ()>) {
    let mut guard = PanicGuard { core, polling: false };
    let mut work = pin!(work);
    poll_fn(|cx| {
        guard.polling = true;
        let poll = work.as_mut().poll(cx);
        guard.polling = false;
        poll
    })
    .await;
}

struct PanicGuard<'a> {
    core: &'a Arc<Core>,
    /// Set in Drop only if the poll has panicked.
    polling: bool,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if self.polling {
            let core = self.core;
            core.set_panicked();
            for hold in core.queue.holds() {
                hold.lose(core, Loss::Expired);
            }
            core.life.enter(Stage::Ending);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, Settings, Timing};
    use crate::error::ErrorKind;
    use crate::locks::lock::Lock;
    use crate::store::MemoryStore;
    use uuid::Uuid;

    #[tokio::test]
    async fn panic_of_the_engine_loses_all_leases_and_is_reported() {
        let store = Arc::new(MemoryStore::new());
        let core = Engine::core(Uuid::new_v4(), store, Timing::DEFAULT, Settings::PLAIN, true);
        let engine = Engine::on_caller(Arc::clone(&core));
        let lease = Lock::new(Arc::clone(&engine), "n").lock().await.unwrap();
        let token = lease.cancellation_token();
        let part = async move { guarded(&core, async { panic!("a part of the engine") }).await };
        tokio::spawn(part).await.expect_err("it has panicked");
        assert!(token.is_cancelled());
        assert_eq!(lease.check().unwrap_err().loss(), Some(Loss::Expired));
        let error = Lock::new(engine, "next").lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(!error.is_retryable(), "no retry helps");
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
