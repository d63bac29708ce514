//! What one flow of control does: takes names in every way there is, and gives them back in every way.

use super::hand::{Hand, Side};
use super::judge::Wait;
use super::plan::ms;
use super::runtime::Gate;
use super::unpolled::Unpolled;
use super::world::{Client, World};
use kit::Dice;
use leasehold::store::{Mode, Name};
use leasehold::{Error, ErrorKind, Lease, LeaseManager, Lock, Result};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::timeout;

pub struct Caller {
    pub client: Client,
    pub manager: LeaseManager,
    pub task: u64,
    pub dice: Dice,
    /// For what is left alone, and nothing else.
    pub odd: Dice,
    /// For waiters that leave when they are served.
    pub last: Dice,
    pub gate: Gate,
    pub over: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Lock,
    Try,
    Timeout(u64),
    Dropped(u64),
    Unpolled(Unpolled),
}

/// Tells the judge of a wait, however it ends.
pub struct Waiting<'a> {
    world: &'a World,
    id: u64,
    pub served: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let now = self.world.now();
        self.world.lock().judge.wait_ends(now, self.id, self.served);
    }
}

impl Caller {
    pub fn world(&self) -> &Arc<World> {
        &self.client.world
    }

    pub fn ttl(&self) -> u64 {
        self.world().plan.ttl
    }

    pub fn fail(&self, why: std::fmt::Arguments<'_>) {
        let world = self.world();
        let now = world.now();
        world.lock().judge.fail(now, format_args!("c{} t{}: {why}", self.client.id, self.task));
    }

    pub async fn run(mut self) {
        let mut kept: Vec<Lock> = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            let pause = self.short();
            self.gate.pause(pause).await;
            let name = format!("n{}", self.dice.below(self.world().plan.names));
            let known = kept.iter().position(|lock| lock.name() == name);
            // A handle that was used before may have to wait for its own last release first.
            let (mut lock, fresh) = match known {
                Some(at) if self.dice.percent(50) => (kept.swap_remove(at), false),
                _ => (self.manager.lock(&name), true),
            };
            if self.dice.percent(12) {
                self.with(&mut lock, fresh).await;
            } else {
                self.session(&mut lock, fresh).await;
            }
            kept.push(lock);
        }
    }

    /// Mostly short, sometimes longer than a lease lasts by itself.
    pub fn short(&mut self) -> u64 {
        let high = if self.dice.percent(8) { self.ttl() * 3 / 2 } else { self.ttl() / 8 };
        self.dice.below(high + 1)
    }

    pub fn way(&mut self) -> Way {
        let ttl = self.ttl();
        if self.odd.percent(self.world().plan.faults.unpolled) {
            return Way::Unpolled(self.unpolled());
        }
        match self.dice.below(10) {
            0..=3 => Way::Lock,
            4 => Way::Try,
            5 => Way::Timeout(self.dice.below(ttl)),
            6 => Way::Timeout(self.dice.below(ttl / 50)),
            7 => Way::Dropped(self.dice.below(ttl)),
            _ => Way::Dropped(self.dice.below(ttl / 25)),
        }
    }

    pub fn wait(&self, lock: &Lock, way: Way, in_line: bool) -> Waiting<'_> {
        self.wait_in(lock.name(), Mode::Exclusive, way, in_line)
    }

    pub fn wait_in(&self, name: &str, mode: Mode, way: Way, in_line: bool) -> Waiting<'_> {
        let world = self.world();
        let wait = Wait {
            id: 0,
            name: Name::new(name).expect("a good name"),
            client: self.client.id,
            task: self.task,
            since: world.now(),
            in_line: in_line && !matches!(way, Way::Try | Way::Unpolled(_)),
            turn_taken: false,
            patient: way == Way::Lock,
            mode,
        };
        let id = world.lock().judge.wait(wait);
        Waiting { world, id, served: false }
    }

    /// Takes the lock, or enters once more.
    pub async fn take(
        &self,
        lock: &mut Lock,
        way: Way,
        fresh: bool,
        outermost: bool,
    ) -> Option<Lease> {
        let mut waiting = self.wait(lock, way, fresh && outermost);
        let start = self.world().now();
        let result = match way {
            Way::Lock => lock.lock().await.map(Some),
            Way::Try => lock.try_lock().await,
            Way::Timeout(time) => lock.lock_timeout(ms(time)).await,
            Way::Dropped(time) => match timeout(ms(time), lock.lock()).await {
                Ok(result) => result.map(Some),
                Err(_) => return None,
            },
            Way::Unpolled(unpolled) => {
                let name = lock.name().to_owned();
                let lock = pin!(lock.lock());
                self.left_alone(lock, &name, unpolled).await?.map(Some)
            }
        };
        waiting.served = outermost && matches!(result, Ok(Some(_)));
        self.check_answer(start, lock.name(), way, outermost, &result);
        result.ok().flatten()
    }

    /// Errors are what the store said, and say so.
    pub fn check_answer<T>(
        &self,
        start: u64,
        name: &str,
        way: Way,
        outermost: bool,
        result: &Result<Option<T>>,
    ) {
        let world = Arc::clone(self.world());
        let name = Name::new(name).expect("a good name");
        let (refused, closing, calm) = {
            let judge = &world.lock().judge;
            let calm = judge.is_calm_for(start, world.plan.settled());
            // Who is behind a future that nobody polls hears nothing either.
            let behind = judge.held_up(self.client.id, &name);
            let calm = calm && start > behind.saturating_add(world.plan.settled());
            let refused = judge.refused.get(&self.task).copied();
            (refused, judge.closing.contains(&self.client.id), calm)
        };
        let kind = result.as_ref().err().map(Error::kind);
        let right = match (refused, kind) {
            (_, Some(ErrorKind::Lost)) => !outermost,
            (_, Some(ErrorKind::Closed)) => closing,
            (Some(refused), kind) => kind == Some(refused),
            // Less time than a round trip takes is no time to hear anything, nor is time without a poll.
            (None, Some(ErrorKind::Unavailable)) => {
                !calm || matches!(way, Way::Timeout(_) | Way::Unpolled(_))
            }
            (None, Some(_)) => false,
            (None, None) => true,
        };
        if !right {
            self.fail(format_args!("{way:?} ended with {kind:?}; the store said {refused:?}"));
        }
    }

    async fn session(&mut self, lock: &mut Lock, fresh: bool) {
        let way = self.way();
        let Some(lease) = self.take(lock, way, fresh, true).await else { return };
        let mut hands = vec![Hand::open(&self.client, self.task, lease)];
        for _ in 0..self.dice.below(6) {
            self.step(lock, &mut hands).await;
            hands.iter().for_each(Hand::sample);
        }
        let faults = &self.world().plan.faults;
        let (spins, abandons, deserts) = (faults.spin, faults.unpolled, faults.desert);
        if self.odd.percent(spins) {
            self.spin(&hands[0]).await;
        }
        if self.odd.percent(abandons) {
            return self.abandon(lock, hands).await;
        }
        if self.last.percent(deserts) {
            return self.desert(lock.name(), hands).await;
        }
        while !hands.is_empty() {
            let at = self.dice.below(hands.len() as u64) as usize;
            let hand = hands.swap_remove(at);
            self.release(hand).await;
            hands.iter().for_each(Hand::sample);
        }
    }

    async fn step(&mut self, lock: &mut Lock, hands: &mut Vec<Hand>) {
        match self.dice.below(10) {
            0..=3 => {
                let time = self.short();
                self.gate.pause(time).await;
            }
            4 | 5 if hands.len() < 3 => self.enter(lock, hands).await,
            6 if hands.len() > 1 => {
                let at = self.dice.below(hands.len() as u64) as usize;
                let hand = hands.swap_remove(at);
                self.release(hand).await;
            }
            7 => {
                let min = ms(self.dice.below(self.ttl() / 2));
                let lease = hands[0].side();
                match lease.ensure_remaining(min).await {
                    Ok(()) if lease.remaining() < min => {
                        self.fail(format_args!("{min:?} was ensured, and is not there"));
                    }
                    Err(error)
                        if error.kind() == ErrorKind::Invalid
                            && self.world().plan.max_hold.is_none() =>
                    {
                        self.fail(format_args!("{min:?} was refused: {error}"));
                    }
                    _ => {}
                }
            }
            _ => {
                let time = self.short();
                let hand = &hands[0];
                if hand.side().run(self.gate.pause(time)).await.is_err() && !hand.is_lost() {
                    self.fail(format_args!("run() ended without a loss"));
                }
            }
        }
    }

    async fn enter(&mut self, lock: &mut Lock, hands: &mut Vec<Hand>) {
        let lost = hands[0].is_lost();
        let way = self.way();
        if let Some(lease) = self.take(lock, way, false, false).await {
            if lost {
                self.fail(format_args!("entered again what was lost"));
            }
            hands.push(hands[0].nested(Side::Lock(lease)));
        }
    }

    /// Whether no storm has begun.
    pub fn is_calm(&self) -> bool {
        let now = self.world().now();
        self.world().lock().judge.is_calm_for(now, 0)
    }

    /// Whether what this process asks now must be answered.
    pub fn is_fair(&self) -> bool {
        let (world, now) = (self.world(), self.world().now());
        world.lock().judge.is_fair(&world.plan, now, self.client.id)
    }

    pub async fn release(&mut self, mut hand: Hand) {
        let lost = hand.is_lost();
        let calm = self.is_fair();
        match self.dice.below(20) {
            0..=6 => drop(hand),
            7..=8 => {
                let lease = hand.leave();
                let time = self.dice.below(self.ttl() / 25);
                let _ = timeout(ms(time), lease.unlock()).await;
            }
            9 => {
                let lease = hand.leave();
                self.world().lock().judge.forgets(hand.belief);
                lease.forget();
            }
            _ => match hand.leave().unlock().await {
                Ok(()) if lost => self.fail(format_args!("what was lost was unlocked")),
                Err(error) if calm && self.is_calm() && error.kind() != ErrorKind::Lost => {
                    self.fail(format_args!("unlock failed in fair weather: {error}"));
                }
                _ => {}
            },
        }
    }

    async fn with(&mut self, lock: &mut Lock, fresh: bool) {
        let start = self.world().now();
        let (time, again, then) = (self.short(), self.dice.percent(40), self.short());
        let this = &*self;
        // The lease itself stays with the library; the judge knows of it as long as `with` runs.
        let mut ends = Given { world: Arc::clone(self.world()), of: None };
        let mut waiting = Some(self.wait(lock, Way::Lock, fresh));
        let (open, waits) = (&mut ends.of, &mut waiting);
        let result = lock
            .with(async move |lock, lease| {
                if let Some(mut waiting) = waits.take() {
                    waiting.served = true;
                }
                let world = this.world();
                let moment = world.moment();
                let who = (this.client.id, this.task);
                let ids = world.lock().judge.open(&world.plan, moment, who, lease);
                *open = Some(ids);
                this.gate.pause(time).await;
                let moment = world.moment();
                world.lock().judge.sample(&world.plan, moment, ids.0, lease);
                if again && let Some(nested) = this.take(lock, Way::Lock, false, false).await {
                    let id = world.lock().judge.enter(ids.0, &nested);
                    let hand = Hand {
                        world: Arc::clone(world),
                        side: Some(Side::Lock(nested)),
                        belief: ids.0,
                        id,
                    };
                    this.gate.pause(then).await;
                    hand.sample();
                }
                world.lock().judge.leave(ids.0, ids.1);
            })
            .await;
        let entered = waiting.take().is_none();
        match result {
            Err(error) if entered && error.kind() != ErrorKind::Lost => {
                self.fail(format_args!("with() ended with {error}"));
            }
            Err(error) if !entered => {
                self.check_answer::<()>(start, lock.name(), Way::Lock, true, &Err(error));
            }
            _ => {}
        }
    }
}

/// What the judge is to forget when `with` has ended, or was dropped.
struct Given {
    world: Arc<World>,
    of: Option<(u64, u64)>,
}

impl Drop for Given {
    fn drop(&mut self) {
        if let Some((belief, lease)) = self.of {
            self.world.lock().judge.left(belief, lease);
        }
    }
}
