//! Leases of one slot that one flow of control holds together, for longer than the time to live: they are renewed in
//! one call.

use crate::caller::{Caller, Held};
use crate::holder::{Order, Place};
use crate::stage::is_tied;
use kit::soak::history::{nanos, now};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// How long each of two names is waited for.
const LIMIT: Duration = Duration::from_secs(2);

impl Caller {
    /// Takes two names of one slot again and again, if there are any.
    pub async fn live_together(mut self) {
        let process = Arc::clone(&self.process);
        let tied: Vec<&Place> =
            process.places.iter().filter(|place| is_tied(&place.name)).collect();
        if tied.len() < 2 {
            return;
        }
        while *process.orders.borrow() == Order::Work {
            let (at, step) = (self.random.below(tied.len()), 1 + self.random.below(tied.len() - 1));
            let places = [tied[at], tied[(at + step) % tied.len()]];
            let mut held = Vec::new();
            for place in places {
                held.extend(self.take(place).await.map(|held| (place, held)));
            }
            if held.len() == places.len() {
                let how_long = places[0].ttl.mul_f64(1.5 + self.random.below(150) as f64 / 100.0);
                self.keep(&mut held, how_long).await;
            }
            for (place, held) in held {
                self.end(place, held).await;
            }
            sleep(self.random.millis(20..200)).await;
        }
    }

    async fn take(&mut self, place: &Place) -> Option<Held> {
        let mut lock = place.leases.lock(&place.name);
        let limit_ms = LIMIT.as_millis() as u64;
        let ask = self.process.log.wanted(&place.name, "timeout", limit_ms);
        let taken = lock.lock_timeout(LIMIT).await;
        let (ask, lease) = ask.brought(taken).await?;
        Some(Held { belief: ask.granted(&lease, false), lease })
    }

    /// Looks at all of them until the time is over or one is lost.
    async fn keep(&mut self, held: &mut [(&Place, Held)], how_long: Duration) {
        let until = now() + nanos(how_long);
        while now() < until
            && held.iter_mut().all(|(_, Held { belief, lease })| belief.check(lease))
        {
            sleep(self.random.millis(5..30)).await;
        }
    }
}
