//! A flow of control of a holder process: it acquires names in all the ways there are, holds them for a
//! while, and releases them in all the ways.

use crate::diary::{Ask, Belief, error_word};
use crate::holder::{Order, Place, Process};
use crate::ledger::Ledger;
use crate::random::Random;
use kit::soak::history::{What, nanos, now};
use leasehold::{Lease, LeaseState, Lock};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// One flow of control, with a handle of its own for each name.
pub struct Flow {
    pub process: Arc<Process>,
    pub random: Random,
    pub ledger: Ledger,
    pub handles: HashMap<usize, Lock>,
    pub holds_long: bool,
}

impl Flow {
    pub async fn live(mut self) {
        while *self.process.orders.borrow() == Order::Work {
            let at = self.random.below(self.process.places.len());
            let place = &self.process.places[at];
            let handle = self.handles.remove(&at);
            let mut lock = handle.unwrap_or_else(|| place.leases.lock(&place.name));
            self.turn(at, &mut lock).await;
            if !self.random.once_in(10) {
                self.handles.insert(at, lock);
            }
            let pause = self.random.millis(if self.holds_long { 500..2500 } else { 0..30 });
            sleep(pause).await;
        }
    }

    /// Takes the name in one of the ways, holds it for a while, and gives it back in one of the ways.
    async fn turn(&mut self, at: usize, lock: &mut Lock) {
        let process = Arc::clone(&self.process);
        let place = &process.places[at];
        let limit = self.random.millis(1..600);
        let (how, limit_ms) = match self.random.below(20) {
            0 if self.random.once_in(3) => ("aside", 0),
            0..9 => ("lock", 0),
            9..12 => ("try", 0),
            12..15 => ("timeout", limit.as_millis() as u64),
            15..18 => ("with", 0),
            // The future is dropped wherever it is then.
            _ => ("dropped", limit.as_millis() as u64),
        };
        let ask = process.diary.wanted(&place.name, how, limit_ms);
        let taken = match how {
            "with" => return self.with(place, lock, ask).await,
            "aside" => self.lock_aside(place, lock, &ask).await,
            "try" => lock.try_lock().await,
            "timeout" => lock.lock_timeout(limit).await,
            // Dropped while the first request is on its way, or soon after.
            "dropped" if self.random.once_in(2) => {
                let polls = self.random.below(4);
                tokio::select! {
                    biased;
                    taken = lock.lock() => taken.map(Some),
                    () = yields(polls) => Ok(None),
                }
            }
            "dropped" => {
                timeout(limit, lock.lock()).await.map_or(Ok(None), |taken| taken.map(Some))
            }
            _ => lock.lock().await.map(Some),
        };
        let Some((ask, lease)) = ask.brought(taken).await else { return };
        let by_token = self.random.once_in(6);
        let belief = ask.granted(&lease, by_token);
        // What ends is dropped in this order: the belief first.
        let mut held = Held { belief, lease };
        let how_long = self.how_long(place.ttl);
        if by_token {
            held.sleep(how_long).await;
        } else if self.random.once_in(20) {
            // Dropped in the middle of a step.
            let middle = how_long / 2;
            let _ = timeout(
                middle,
                self.steps(place, Some(lock), &mut held.belief, &held.lease, how_long),
            )
            .await;
        } else {
            self.steps(place, Some(lock), &mut held.belief, &held.lease, how_long).await;
        }
        if self.random.once_in(100) {
            return self.end_aside(place, lock, held).await;
        }
        self.end(place, held).await;
    }

    async fn with(&mut self, place: &Place, lock: &mut Lock, ask: Ask) {
        let (diary, number) = (Arc::clone(&self.process.diary), ask.number);
        let mut ask = Some(ask);
        let asked = &mut ask;
        let how_long = self.how_long(place.ttl);
        let entered = lock
            .with(async move |lock, lease| {
                let Some(mut belief) = asked.take().map(|ask| ask.granted(lease, false)) else {
                    return;
                };
                self.steps(place, Some(lock), &mut belief, lease, how_long).await;
            })
            .await;
        match (entered, ask) {
            (Ok(()), _) => {}
            (Err(error), Some(ask)) => ask.gave_up(&error_word(&error)),
            // Lost in the middle.
            (Err(error), None) => diary.gave_up(number, &error_word(&error)),
        }
    }

    /// Mostly short; for the long holders, one to three times the time to live.
    pub fn how_long(&mut self, ttl: Duration) -> Duration {
        // Three seconds at a time, always, would leave little for the others.
        let long = self.holds_long && (ttl <= Duration::from_secs(1) || self.random.once_in(3));
        if long {
            return ttl + ttl.mul_f64(self.random.below(200) as f64 / 100.0);
        }
        match self.random.below(100) {
            0..85 => self.random.millis(0..8),
            85..97 => self.random.millis(8..80),
            _ => self.random.millis(80..500),
        }
    }

    /// Mostly the same, and once in `n` times for longer than the time to live.
    pub fn at_times_long(&mut self, n: usize, ttl: Duration) -> Duration {
        let long = self.random.once_in(n);
        if long {
            ttl.mul_f64(1.0 + self.random.below(100) as f64 / 100.0)
        } else {
            self.how_long(ttl)
        }
    }

    /// Works under the lease, a check before each step, until the time is over or the lease is lost.
    ///
    /// With its lock, it may enter again.
    pub async fn steps(
        &mut self,
        place: &Place,
        mut lock: Option<&mut Lock>,
        belief: &mut Belief,
        lease: &Lease,
        how_long: Duration,
    ) {
        let until = now() + nanos(how_long);
        let mut read = None;
        let mut enters = self.random.once_in(8);
        loop {
            let before = now();
            if let Err(error) = lease.check() {
                belief.fired(error.loss());
                return self.stays_lost(lease).await;
            }
            belief.checked(before, lease.state() == LeaseState::AtRisk);
            // The resource is read in one step and written in the next.
            let fence = lease.fence().unwrap_or_default();
            let answer = match read.take() {
                None => self
                    .ledger
                    .read(&place.name, fence)
                    .map(|answer| answer.map(|value| read = Some(value))),
                Some(value) => self
                    .ledger
                    .write(&place.name, fence, value + 1)
                    .map(|answer| answer.map(|_| ())),
            };
            match answer {
                Ok(Ok(())) => {}
                Ok(Err(_refused)) => {
                    let name = place.name.clone();
                    return self.process.diary.write(What::Refused { name, fence });
                }
                Err(error) => self.process.broken(format!("the ledger does not answer: {error}")),
            }
            if let Some(lock) = lock.as_deref_mut().filter(|_| enters) {
                enters = false;
                self.enter_again(lock, belief, lease).await;
            }
            if before >= until {
                return;
            }
            sleep(self.random.millis(1..7)).await;
        }
    }

    async fn enter_again(&mut self, lock: &mut Lock, belief: &mut Belief, outer: &Lease) {
        let count = outer.hold_count();
        // Lost, or unknown: the next check tells.
        let Ok(inner) = lock.lock().await else { return };
        if inner.hold_count() != count + 1 {
            let found = inner.hold_count();
            self.process.broken(format!("a nested lock at hold count {count} made it {found}"));
        }
        belief.nested(&inner);
        sleep(self.random.millis(0..4)).await;
        if self.random.once_in(2) {
            drop(inner);
        } else {
            let _ = inner.unlock().await;
        }
    }

    /// A loss is final, and everything tells it.
    pub async fn stays_lost(&mut self, lease: &Lease) {
        for _ in 0..3 {
            if lease.check().is_ok() || !lease.cancellation_token().is_cancelled() {
                self.process.broken(format!("{} was lost, and came back", lease.name()));
            }
            sleep(self.random.millis(0..20)).await;
        }
    }

    pub async fn end(&mut self, place: &Place, held: Held) {
        let Held { belief, lease } = held;
        let ask = belief.ask();
        drop(belief);
        match self.random.below(2000) {
            0 => {
                let diary = &self.process.diary;
                diary.write(What::Forcing { ask, name: place.name.clone() });
                if place.leases.force_unlock(&place.name, "test").await.is_ok() {
                    diary.write(What::Forced { ask });
                }
            }
            1..20 => {
                self.process.diary.write(What::Forgot { ask });
                lease.forget();
            }
            20..600 => drop(lease),
            _ => {
                if let Err(error) = lease.unlock().await {
                    self.process.diary.write(What::Unreleased { ask, why: error_word(&error) });
                }
            }
        }
    }
}

/// A lease and what is believed of it, dropped in the right order: belief ends before anything is sent.
pub struct Held {
    pub belief: Belief,
    pub lease: Lease,
}

impl Held {
    /// Trusts the token alone.
    async fn sleep(&mut self, how_long: Duration) {
        let token = self.lease.cancellation_token();
        if timeout(how_long, token.cancelled()).await.is_ok() {
            let loss = self.lease.check().err().and_then(|error| error.loss());
            self.belief.fired(loss);
        }
    }
}

pub async fn yields(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}
