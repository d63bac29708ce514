//! Locks that are stolen from their holders.

use crate::caller::{Caller, Held};
use crate::holder::{Order, Place};
use crate::worker_log::Ask;
use kit::soak::history::What;
use leasehold::{Lease, Lock, Result};
use std::sync::Arc;
use tokio::time::{sleep, timeout};

impl Caller {
    /// Takes names of others, and has them taken.
    pub async fn live_stealing(mut self) {
        let process = Arc::clone(&self.process);
        while *process.orders.borrow() == Order::Work {
            // A leader now and then.
            let leads = self.random.once_in(500);
            let places = if leads { &process.led } else { &process.loot };
            let place = &places[self.random.below(places.len())];
            let mut lock = place.leases.lock(&place.name);
            if leads || self.random.once_in(5) {
                self.steal(place, &mut lock).await;
            } else {
                self.waits_for(place, &mut lock).await;
            }
            sleep(self.random.millis(0..100)).await;
        }
    }

    async fn waits_for(&mut self, place: &Place, lock: &mut Lock) {
        let limit = self.random.millis(1..600);
        let limit_ms = limit.as_millis() as u64;
        let ask = self.process.log.wanted(&place.name, "timeout", limit_ms);
        let taken = lock.lock_timeout(limit).await;
        self.has(place, lock, ask, taken).await;
    }

    async fn steal(&mut self, place: &Place, lock: &mut Lock) {
        let log = Arc::clone(&self.process.log);
        let ask = log.wanted(&place.name, "steal", 0);
        let number = ask.number;
        log.write(What::Stealing { ask: number, name: place.name.clone() });
        let (limit, patience) = (self.random.millis(0..5), self.random.millis(1..100));
        let taken = match self.random.below(8) {
            // Somewhere in the middle.
            0 => match timeout(limit, lock.steal("soak")).await {
                Ok(taken) => taken,
                Err(_) => return,
            },
            1..3 => lock.steal_after(patience, "soak").await,
            _ => lock.steal("soak").await,
        };
        if taken.is_ok() {
            log.write(What::Stolen { ask: number });
        }
        self.has(place, lock, ask, taken).await;
    }

    /// Works under the lease, if there is one, until the time is over or it is lost, and gives it back.
    async fn has(
        &mut self,
        place: &Place,
        lock: &mut Lock,
        ask: Ask,
        taken: Result<Option<Lease>>,
    ) {
        let Some((ask, lease)) = ask.brought(taken).await else { return };
        let mut held = Held { belief: ask.granted(&lease, false), lease };
        let how_long = self.at_times_long(30, place.ttl);
        self.steps(place, Some(lock), &mut held.belief, &held.lease, how_long).await;
        self.end(place, held).await;
    }
}
