//! A flow of control of a holder process: it acquires names in all the ways there are, holds them for a
//! while, and releases them in all the ways.

use crate::holder::{Order, Place, Process};
use crate::ledger::Ledger;
use crate::random::Random;
use crate::worker_log::{Ask, Belief, error_word};
use kit::soak::history::{What, nanos, now};
use leasehold::{Lease, Lock, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// One flow of control, with a handle of its own for each name.
pub struct Caller {
    pub process: Arc<Process>,
    pub random: Random,
    pub ledger: Ledger,
    pub handles: HashMap<usize, Lock>,
    pub holds_long: bool,
}

impl Caller {
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
            sleep(self.random.millis(if self.holds_long { 500..2500 } else { 0..30 })).await;
        }
    }

    /// Takes the name in one of the ways, holds it for a while, and gives it back in one of the ways.
    async fn turn(&mut self, at: usize, lock: &mut Lock) {
        let process = Arc::clone(&self.process);
        let place = &process.places[at];
        let limit = self.random.millis(1..600);
        let how = match self.random.below(20) {
            0 if self.random.once_in(3) => "unpolled",
            0..9 => "lock",
            9..12 => "try",
            12..15 => "timeout",
            15..18 => "with",
            // The future is dropped wherever it is then.
            _ => "dropped",
        };
        let way = Way { how, limit };
        let ask = self.ask(place, way);
        let taken = match how {
            "with" => return self.with(place, lock, ask).await,
            "unpolled" => self.lock_unpolled(place, lock, &ask).await,
            "try" => lock.try_lock().await,
            "timeout" => lock.lock_timeout(limit).await,
            _ => self.takes(way, lock.lock()).await,
        };
        let Some((ask, lease)) = ask.brought(taken).await else { return };
        let by_token = self.random.once_in(6);
        let belief = ask.granted(&lease, by_token);
        // What ends is dropped in this order: the belief first.
        let mut held = Held { belief, lease };
        let how_long = self.how_long(place.ttl);
        if by_token {
            trust_token(&mut held.belief, &held.lease, how_long).await;
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
            return self.end_unpolled(place, lock, held).await;
        }
        self.end(place, held).await;
    }

    pub fn ask(&self, place: &Place, way: Way) -> Ask {
        let limited = ["timeout", "dropped"].contains(&way.how);
        let limit = if limited { way.limit.as_millis() as u64 } else { 0 };
        self.process.log.wanted(&place.name, way.how, limit)
    }

    /// Awaits a call without a limit of its own, or drops it: while its first request is on the way, or later.
    pub async fn takes<T>(
        &mut self,
        way: Way,
        call: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        if way.how != "dropped" {
            return call.await.map(Some);
        }
        if self.random.once_in(2) {
            let polls = self.random.below(4);
            return tokio::select! {
                biased;
                taken = call => taken.map(Some),
                () = yields(polls) => Ok(None),
            };
        }
        timeout(way.limit, call).await.map_or(Ok(None), |taken| taken.map(Some))
    }

    async fn with(&mut self, place: &Place, lock: &mut Lock, ask: Ask) {
        let (log, number) = (Arc::clone(&self.process.log), ask.number);
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
            (Err(error), None) => log.gave_up(number, &error_word(&error)),
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

    /// Works alone under the lease; with its lock, it may enter again.
    pub async fn steps(
        &mut self,
        place: &Place,
        lock: Option<&mut Lock>,
        belief: &mut Belief,
        lease: &Lease,
        how_long: Duration,
    ) {
        self.work(place, lock, belief, lease, Access::Write, how_long).await;
    }

    /// Works under the lease, a check before each step, until the time is over or the lease is lost.
    pub async fn work(
        &mut self,
        place: &Place,
        mut lock: Option<&mut Lock>,
        belief: &mut Belief,
        lease: &Lease,
        access: Access,
        how_long: Duration,
    ) {
        let until = now() + nanos(how_long);
        let mut read = None;
        let mut enters = self.random.once_in(8);
        loop {
            let is_last = now() >= until;
            if !belief.check(lease) {
                return self.stays_lost(lease).await;
            }
            // The resource is read in one step and written in the next.
            let fence = lease.fence().unwrap_or_default();
            let answer = match (access, read.take()) {
                (Access::None, _) => Ok(Ok(0)),
                (Access::Read, _) => self.ledger.read_shared(&place.name, fence),
                (Access::Write, Some(value)) => self.ledger.write(&place.name, fence, value + 1),
                (Access::Write, None) => {
                    let answer = self.ledger.read(&place.name, fence);
                    read = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok()).copied();
                    answer
                }
            };
            match answer {
                Ok(Ok(_)) => {}
                Ok(Err(_refused)) => {
                    let name = place.name.clone();
                    return self.process.log.write(What::Refused { name, fence });
                }
                Err(error) => self.process.broken(format!("the ledger does not answer: {error}")),
            }
            if let Some(lock) = lock.as_deref_mut().filter(|_| enters) {
                enters = false;
                self.enter_again(lock, belief, lease).await;
            }
            if is_last {
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
    async fn stays_lost(&mut self, lease: &Lease) {
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
                let log = &self.process.log;
                log.write(What::Forcing { ask, name: place.name.clone() });
                if place.leases.force_unlock(&place.name, "test").await.is_ok() {
                    log.write(What::Forced { ask });
                }
            }
            1..20 => {
                self.process.log.write(What::Forgot { ask });
                lease.forget();
            }
            20..600 => drop(lease),
            _ => {
                if let Err(error) = lease.unlock().await {
                    self.process.log.write(What::Unreleased { ask, why: error_word(&error) });
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

/// Goes by the token alone.
pub async fn trust_token(belief: &mut Belief, lease: &Lease, how_long: Duration) {
    let token = lease.cancellation_token();
    if timeout(how_long, token.cancelled()).await.is_ok() {
        belief.fired(lease.check().err().and_then(|error| error.loss()));
    }
}

/// A way to take a name, with its limit.
#[derive(Clone, Copy)]
pub struct Way {
    pub how: &'static str,
    pub limit: Duration,
}

/// What the holder of a lease does with the guarded resource; a writer reads it in one step and writes it in the next.
#[derive(Clone, Copy)]
pub enum Access {
    None,
    Read,
    Write,
}

async fn yields(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}
