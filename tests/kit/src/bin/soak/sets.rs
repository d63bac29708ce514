//! Sets of names that one flow of control takes all or none, in no common order.

use crate::caller::Caller;
use crate::holder::{Order, Place};
use crate::worker_log::{Ask, Belief, error_word};
use kit::soak::history::{What, nanos, now};
use leasehold::MultiLease;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// How long a set is waited for.
const LIMIT: Duration = Duration::from_secs(2);

impl Caller {
    /// Takes two or three names of one store again and again.
    pub async fn live_in_sets(mut self) {
        let process = Arc::clone(&self.process);
        while *process.orders.borrow() == Order::Work {
            let places = self.set(&process.places);
            if places.len() > 1
                && let Some((beliefs, lease)) = self.take_set(&places).await
            {
                self.keep_set(beliefs, lease).await;
            }
            sleep(self.random.millis(10..150)).await;
        }
    }

    fn set<'a>(&mut self, places: &'a [Place]) -> Vec<&'a Place> {
        let store = places[self.random.below(places.len())].store;
        let mut chosen: Vec<_> = places.iter().filter(|place| place.store == store).collect();
        while chosen.len() > 2 + self.random.below(2) {
            chosen.swap_remove(self.random.below(chosen.len()));
        }
        chosen
    }

    async fn take_set(&mut self, places: &[&Place]) -> Option<(Vec<Belief>, MultiLease)> {
        let names = places.iter().map(|place| &place.name);
        let mut lock = match places[0].leases.multi_lock(names) {
            Ok(lock) => lock,
            Err(error) => {
                self.process.broken(format!("a set was refused: {error}"));
                return None;
            }
        };
        let limit_ms = LIMIT.as_millis() as u64;
        // In the order of the leases.
        let asks: Vec<Ask> =
            lock.names().map(|name| self.process.log.wanted(name, "set", limit_ms)).collect();
        let why = match lock.lock_timeout(LIMIT).await {
            Ok(Some(lease)) => {
                let each = asks.into_iter().zip(lease.leases());
                let beliefs = each.map(|(ask, lease)| ask.granted(lease, false)).collect();
                return Some((beliefs, lease));
            }
            Ok(None) => "not-granted".to_owned(),
            Err(error) => error_word(&error),
        };
        asks.into_iter().for_each(|ask| ask.gave_up(&why));
        None
    }

    /// Looks at all of them until the time is over or one is lost, and releases them.
    async fn keep_set(&mut self, mut beliefs: Vec<Belief>, lease: MultiLease) {
        let until = now() + nanos(self.random.millis(0..60));
        let mut lost = false;
        while !lost {
            for (belief, lease) in beliefs.iter_mut().zip(lease.leases()) {
                lost |= !belief.check(lease);
            }
            if lost && (lease.check().is_ok() || !lease.cancellation_token().is_cancelled()) {
                self.process.broken("a set lost a name, and did not tell".to_owned());
            }
            if now() >= until {
                break;
            }
            sleep(self.random.millis(1..7)).await;
        }
        let asks: Vec<u64> = beliefs.iter().map(Belief::ask).collect();
        drop(beliefs);
        if self.random.once_in(3) {
            return drop(lease);
        }
        if let Err(error) = lease.unlock().await {
            for ask in asks {
                self.process.log.write(What::Unreleased { ask, why: error_word(&error) });
            }
        }
    }
}
