//! Futures that are polled a few times, and then left alone for a while.

use crate::caller::{Caller, Held};
use crate::holder::Place;
use crate::worker_log::Ask;
use kit::polled::polled;
use kit::soak::history::What;
use leasehold::{Lease, Lock, Result};
use std::pin::pin;
use tokio::time::sleep;

impl Caller {
    /// Up to three times the time to live.
    async fn leaves_alone(&mut self, place: &Place) {
        let time = place.ttl.mul_f64(0.5 + self.random.below(250) as f64 / 100.0);
        sleep(time).await;
    }

    /// Waits by a future that is left alone for a while, and then dropped, or polled to its end.
    pub async fn lock_unpolled(
        &mut self,
        place: &Place,
        lock: &mut Lock,
        ask: &Ask,
    ) -> Result<Option<Lease>> {
        let mut lock = pin!(lock.lock());
        let polls = 1 + self.random.below(3) as u64;
        if let Some(taken) = polled(lock.as_mut(), polls).await {
            return taken.map(Some);
        }
        ask.is_unpolled();
        self.leaves_alone(place).await;
        if self.random.once_in(2) { lock.await.map(Some) } else { Ok(None) }
    }

    /// Gives a lease back while a nested call, or its own unlock, is left alone.
    pub async fn end_unpolled(&mut self, place: &Place, lock: &mut Lock, held: Held) {
        let Held { belief, lease } = held;
        let (ask, polls) = (belief.ask(), 1 + self.random.below(3) as u64);
        let log = std::sync::Arc::clone(&self.process.log);
        if self.random.once_in(2) {
            let mut nested = pin!(lock.lock());
            if polled(nested.as_mut(), polls).await.is_some() {
                return drop(Held { belief, lease });
            }
            log.write(What::Forgot { ask });
            drop(Held { belief, lease });
            self.leaves_alone(place).await;
        } else {
            drop(belief);
            let mut unlock = pin!(lease.unlock());
            if polled(unlock.as_mut(), polls).await.is_some() {
                return;
            }
            log.write(What::Forgot { ask });
            self.leaves_alone(place).await;
        }
    }
}
