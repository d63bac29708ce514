//! A store that does not answer: one rule for all commands that wait for a name.
//!
//! The store is asked again until the wait ends, and that is said once. A wait that ends without an answer is a failure, and not
//! that of a name which is not free: whether it is, nothing has said.

use crate::acquire::Limit;
use crate::connection::Connection;
use crate::exit::Failure;
use crate::output::say;
use leasehold::{Builder, ErrorKind, LeaseManager};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The time from one attempt to reach the store to the next.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the store may take for its first answer, where the wait is shorter.
const LEAST: Duration = Duration::from_secs(1);

/// An outage, as long as a command waits.
#[derive(Debug)]
pub(crate) struct Outage {
    limit: Limit,
    /// The first error is the last.
    fails_fast: bool,
    is_said: bool,
}

impl Outage {
    pub(crate) fn new(limit: Limit) -> Self {
        Self { limit, fails_fast: false, is_said: false }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn fails_fast(mut self, fails_fast: bool) -> Self {
        self.fails_fast = fails_fast;
        self
    }

    /// Waits before the next attempt. Fails with this failure if it is no outage, or if there is no time for another attempt.
    pub(crate) async fn pause(&mut self, failure: Failure) -> Result<(), Failure> {
        let is_outage = failure.kind == Some(ErrorKind::Unavailable);
        if !is_outage || self.fails_fast || self.limit.is_over() {
            return Err(failure);
        }
        if !std::mem::replace(&mut self.is_said, true) {
            say(&format!("{}; trying again", failure.message));
        }
        sleep(self.limit.left().map_or(PAUSE, |left| left.min(PAUSE))).await;
        Ok(())
    }

    /// Asks until there is an answer, which can be an error of another kind.
    pub(crate) async fn wait_out<T>(
        mut self,
        mut ask: impl AsyncFnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        loop {
            match ask().await {
                Err(failure) => self.pause(failure).await?,
                Ok(done) => return Ok(done),
            }
        }
    }

    /// Connects.
    pub(crate) async fn connect(
        self,
        connection: &Connection,
        builder: &Builder,
    ) -> Result<LeaseManager, Failure> {
        let limit = self.limit;
        self.wait_out(async || {
            let connected = connection.connect_with(builder.clone());
            answer(limit, connected).await.unwrap_or_else(|| Err(none_in_time()))
        })
        .await
    }
}

/// Waits for a first answer of the store. Returns `None` if there is none in time.
pub(crate) async fn answer<T>(limit: Limit, work: impl Future<Output = T>) -> Option<T> {
    match limit {
        Limit::Until(_) => {
            let left = limit.left().unwrap_or_default();
            timeout(left.max(LEAST), work).await.ok()
        }
        Limit::Once | Limit::Forever => Some(work.await),
    }
}

/// Why a wait ends in which the store has said nothing.
pub(crate) fn none_in_time() -> Failure {
    let message = "the store has not answered in the time of the wait";
    Failure { kind: Some(ErrorKind::Unavailable), ..Failure::new(message) }
}
