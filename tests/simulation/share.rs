//! What one flow of control does with names that several share: reads, writes, changes from one to the other, takes permits.

use super::caller::{Caller, Way};
use super::hand::{Hand, Side};
use super::judge::Sometimes;
use super::plan::ms;
use leasehold::store::Mode;
use leasehold::{ErrorKind, Result, RwLock, Semaphore, Upgraded};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::timeout;

pub const READ_WRITE: &str = "r0";
pub const POOL: &str = "p0";

/// What is asked of.
enum Door {
    Lock(RwLock),
    Pool(Semaphore),
}

impl Door {
    async fn wait(&mut self, mode: Mode) -> Result<Side> {
        match (self, mode) {
            (Self::Pool(pool), Mode::Permits { take, .. }) => {
                pool.acquire_many(take).await.map(Side::Permit)
            }
            (Self::Lock(lock), Mode::Write) => lock.write().await.map(Side::Write),
            (Self::Lock(lock), _) => lock.read().await.map(Side::Read),
            (Self::Pool(_), mode) => panic!("{mode:?} of a semaphore"),
        }
    }

    async fn for_at_most(&mut self, mode: Mode, time: Option<u64>) -> Result<Option<Side>> {
        match (self, mode, time) {
            (Self::Pool(pool), Mode::Permits { take, .. }, None) => {
                pool.try_acquire_many(take).await.map(|permit| permit.map(Side::Permit))
            }
            (Self::Pool(pool), Mode::Permits { take, .. }, Some(time)) => {
                let permit = pool.acquire_many_timeout(take, ms(time)).await;
                permit.map(|permit| permit.map(Side::Permit))
            }
            (Self::Lock(lock), Mode::Write, None) => {
                lock.try_write().await.map(|lease| lease.map(Side::Write))
            }
            (Self::Lock(lock), Mode::Write, Some(time)) => {
                lock.write_timeout(ms(time)).await.map(|lease| lease.map(Side::Write))
            }
            (Self::Lock(lock), _, None) => lock.try_read().await.map(|lease| lease.map(Side::Read)),
            (Self::Lock(lock), _, Some(time)) => {
                lock.read_timeout(ms(time)).await.map(|lease| lease.map(Side::Read))
            }
            (Self::Pool(_), mode, _) => panic!("{mode:?} of a semaphore"),
        }
    }
}

impl Caller {
    pub async fn share(mut self) {
        while !self.over.load(Ordering::Relaxed) {
            let pause = self.short();
            self.gate.pause(pause).await;
            let size = self.world().plan.size;
            let (mut door, mode) = match self.dice.below(10) {
                0..=4 => (Door::Lock(self.manager.rw_lock(READ_WRITE)), Mode::Read),
                5..=6 => (Door::Lock(self.manager.rw_lock(READ_WRITE)), Mode::Write),
                _ => {
                    let take = self.dice.between(1, size.into()) as u32;
                    let pool = self.manager.semaphore(POOL, size);
                    (Door::Pool(pool), Mode::Permits { size, take })
                }
            };
            self.share_once(&mut door, mode).await;
        }
    }

    async fn enters(&self, door: &mut Door, mode: Mode, way: Way, outermost: bool) -> Option<Side> {
        let name = if matches!(door, Door::Pool(_)) { POOL } else { READ_WRITE };
        // One without time makes an attempt, too.
        let in_line = outermost && !matches!(way, Way::Try | Way::Timeout(0) | Way::Unpolled(_));
        let mut waiting = self.wait_in(name, mode, way, in_line);
        let start = self.world().now();
        let result = match way {
            Way::Lock => door.wait(mode).await.map(Some),
            Way::Try => door.for_at_most(mode, None).await,
            Way::Timeout(time) => door.for_at_most(mode, Some(time)).await,
            Way::Dropped(time) => match timeout(ms(time), door.wait(mode)).await {
                Ok(result) => result.map(Some),
                Err(_) => return None,
            },
            Way::Unpolled(unpolled) => {
                let waits = pin!(door.wait(mode));
                self.left_alone(waits, name, unpolled).await?.map(Some)
            }
        };
        waiting.served = outermost && matches!(result, Ok(Some(_)));
        if let (Mode::Permits { .. }, Ok(Some(_))) = (mode, &result) {
            // One that was handed off counts, also if the store refuses the request at the same time.
            self.world().lock().judge.refused.remove(&self.task);
        }
        self.check_answer(start, name, way, outermost, &result);
        result.ok().flatten()
    }

    fn has(&self, side: Side, mode: Mode, changed: bool) -> Hand {
        let world = Arc::clone(self.world());
        let (moment, who) = (world.moment(), (self.client.id, self.task));
        let of = (&*side, mode, changed);
        let (belief, id) = world.lock().judge.open_in(&world.plan, moment, who, of);
        Hand { world, side: Some(side), belief, id }
    }

    async fn share_once(&mut self, door: &mut Door, mode: Mode) {
        let way = self.way();
        let Some(side) = self.enters(door, mode, way, true).await else { return };
        let mut hand = self.has(side, mode, false);
        for _ in 0..self.dice.below(5) {
            hand.sample();
            match self.dice.below(8) {
                0..=3 => {
                    let time = self.short();
                    self.gate.pause(time).await;
                }
                4 if !matches!(hand.side(), Side::Permit(_)) => {
                    self.enters_again(door, &hand).await
                }
                5..=6 => match self.changes(hand).await {
                    Some(next) => hand = next,
                    None => return,
                },
                _ => {}
            }
        }
        self.release(hand).await;
    }

    /// Reads beside what it has.
    async fn enters_again(&mut self, door: &mut Door, hand: &Hand) {
        let lost = hand.is_lost();
        let writes = matches!(hand.side(), Side::Write(_));
        let way = self.way();
        let Some(side) = self.enters(door, Mode::Read, way, false).await else { return };
        if lost {
            self.fail(format_args!("entered again what was lost"));
        }
        if writes {
            self.world().lock().judge.saw(Sometimes::NestedInWrite);
        }
        let nested = hand.nested(side);
        let time = self.short();
        self.gate.pause(time).await;
        nested.sample();
    }

    /// Makes a reader of a writer, or tries to make a writer of a reader.
    async fn changes(&mut self, mut hand: Hand) -> Option<Hand> {
        if matches!(hand.side(), Side::Permit(_)) {
            return Some(hand);
        }
        let (lost, reads) = (hand.is_lost(), matches!(hand.side(), Side::Read(_)));
        let calm = self.is_fair();
        let saw = |what| self.world().lock().judge.saw(what);
        let side = match hand.side() {
            // It is as it was, or somebody else's: the belief goes on.
            Side::Read(_) => {
                let Some(Side::Read(lease)) = hand.side.take() else { return None };
                lease.try_upgrade().await.map(|upgraded| match upgraded {
                    Upgraded::Write(lease) => Side::Write(lease),
                    Upgraded::Read(lease) => Side::Read(lease),
                })
            }
            _ => {
                self.world().lock().judge.downgrades(hand.belief);
                let Side::Write(lease) = hand.leave_side() else { return None };
                lease.downgrade().await.map(Side::Read)
            }
        };
        match side {
            Ok(Side::Read(lease)) if reads => {
                saw(Sometimes::UpgradeRefused);
                hand.side = Some(Side::Read(lease));
                Some(hand)
            }
            Ok(side) => {
                let writes = matches!(side, Side::Write(_));
                saw(if writes { Sometimes::Upgrade } else { Sometimes::Downgrade });
                if lost {
                    self.fail(format_args!("what was lost was changed"));
                }
                drop(hand);
                Some(self.has(side, if writes { Mode::Write } else { Mode::Read }, true))
            }
            Err(error) => {
                if calm && self.is_calm() && error.kind() == ErrorKind::Unavailable {
                    self.fail(format_args!("no change in fair weather: {error}"));
                }
                None
            }
        }
    }
}
