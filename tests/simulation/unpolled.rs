//! Futures that nobody polls for a while, or ever again; and calls that are ready at once, in a loop.

use super::caller::{Caller, Way};
use super::hand::{Hand, Side};
use super::judge::Sometimes;
use super::plan::ms;
use super::world::World;
use kit::polled::polled;
use leasehold::{Lease, Lock};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::sleep;

/// How a future is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpolled {
    polls: u64,
    time: u64,
    /// It is polled again after that, not dropped.
    again: bool,
}

/// More calls than tokio lets a task make without a pause.
const MANY: usize = 200;

/// Tells the judge when a future is polled again, or dropped.
struct Alone {
    world: Arc<World>,
    which: usize,
}

impl Drop for Alone {
    fn drop(&mut self) {
        let now = self.world.now();
        self.world.lock().judge.polled_again(now, self.which);
    }
}

impl Caller {
    pub fn unpolled(&mut self) -> Unpolled {
        let time = self.odd.between(self.ttl() / 4, 4 * self.ttl());
        Unpolled { polls: self.odd.between(1, 3), time, again: self.odd.percent(50) }
    }

    /// Polls a future that takes or gives back a name, leaves it alone, and then ends it.
    pub async fn left_alone<F: Future>(
        &self,
        mut future: Pin<&mut F>,
        name: &str,
        unpolled: Unpolled,
    ) -> Option<F::Output> {
        if let Some(output) = polled(future.as_mut(), unpolled.polls).await {
            return Some(output);
        }
        self.is_alone(name, unpolled).await;
        if unpolled.again { Some(future.await) } else { None }
    }

    async fn is_alone(&self, name: &str, unpolled: Unpolled) {
        let world = self.world();
        let (now, who) = (world.now(), (self.client.id, self.task));
        let until = now + world.plan.ttl;
        let which = world.lock().judge.left_alone(now, who, name, until);
        let _alone = Alone { world: Arc::clone(world), which };
        sleep(ms(unpolled.time)).await;
    }

    /// All leases go while a nested call, or an unlock, is left alone.
    pub async fn abandon(&mut self, lock: &mut Lock, mut hands: Vec<Hand>) {
        let (name, unpolled) = (lock.name().to_owned(), self.unpolled());
        self.world().lock().judge.saw(Sometimes::Abandoned);
        if self.odd.percent(50) {
            let mut nested = pin!(lock.lock());
            match polled(nested.as_mut(), unpolled.polls).await {
                Some(Ok(lease)) => return drop(hands[0].nested(Side::Lock(lease))),
                Some(Err(_)) => return,
                None => drop(hands),
            }
            self.is_alone(&name, unpolled).await;
            if unpolled.again
                && let Ok(lease) = nested.await
            {
                self.is_alone_with(&lease);
            }
        } else if let Some(mut hand) = hands.pop() {
            let mut unlock = pin!(hand.leave().unlock());
            drop(hand);
            if polled(unlock.as_mut(), unpolled.polls).await.is_some() {
                return;
            }
            drop(hands);
            self.is_alone(&name, unpolled).await;
            if unpolled.again {
                // Done, or lost meanwhile.
                let _ = unlock.await;
            }
        }
    }

    /// All leases go while another future waits for the name, and that one goes too: at once, or when it was not
    /// polled for a while.
    pub async fn desert(&mut self, name: &str, hands: Vec<Hand>) {
        let mut lock = self.manager.lock(name);
        let (polls, time) = (self.last.between(1, 3), self.last.below(self.ttl() / 4));
        let unpolled = Unpolled { polls, time, again: false };
        let at_once = self.last.percent(50);
        let _waiting = self.wait(&lock, Way::Unpolled(unpolled), false);
        let mut waiter = pin!(lock.lock());
        if polled(waiter.as_mut(), unpolled.polls).await.is_some() {
            // What the hands have was lost.
            return;
        }
        self.world().lock().judge.saw(Sometimes::Deserted);
        drop(hands);
        if !at_once {
            self.is_alone(name, unpolled).await;
        }
    }

    /// A lease that came late is one that nobody else has.
    fn is_alone_with(&self, lease: &Lease) {
        let world = self.world();
        let now = world.now();
        if lease.check().is_ok() {
            world.lock().judge.has_no_other(now, self.client.id, lease);
        }
    }

    /// Asks again and again for what this process has: all others have their turns meanwhile.
    pub async fn spin(&self, held: &Hand) {
        self.world().lock().judge.saw(Sometimes::Spin);
        let served = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&served);
        let other = tokio::spawn(async move { flag.store(true, Ordering::Relaxed) });
        let mut lock = self.manager.lock(held.side().name());
        for _ in 0..MANY {
            if self.take(&mut lock, Way::Try, true, true).await.is_some() || held.is_lost() {
                break;
            }
        }
        if !held.is_lost() && !served.load(Ordering::Relaxed) {
            self.fail(format_args!("{MANY} calls were ready at once, and let nobody else run"));
        }
        let _ = other.await;
    }

    /// Wants a name once, with many others.
    pub async fn once(mut self) {
        let mut lock = self.manager.lock("n0");
        if let Some(lease) = self.take(&mut lock, Way::Lock, true, true).await {
            let hand = Hand::open(&self.client, self.task, lease);
            let time = self.odd.below(self.ttl() / 50 + 1);
            sleep(ms(time)).await;
            self.release(hand).await;
        }
    }
}
