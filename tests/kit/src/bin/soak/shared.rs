//! Names that several share: read-write locks and semaphores.
//!
//! The place for another kind is here: a name that says it (`kit::soak::leases::Kind`), a turn of its own, and a rule of the
//! oracle. A lock with an order between processes would be one more way to take the names of [`crate::caller`], and its
//! order a rule beside that of fencing tokens.

use crate::caller::{Access, Caller, Way, trust_token};
use crate::holder::{Order, Place};
use crate::worker_log::{Ask, Belief};
use kit::soak::leases::Kind;
use leasehold::{Lease, Permit, ReadLease, Result, RwLock, Upgraded, WriteLease};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use tokio::time::sleep;

/// A lease of such a name.
enum Side {
    Read(ReadLease),
    Write(WriteLease),
    Permit(Permit),
}

impl Deref for Side {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Self::Read(lease) => lease,
            Self::Write(lease) => lease,
            Self::Permit(permit) => permit,
        }
    }
}

impl Side {
    fn into_lease(self) -> Lease {
        match self {
            Self::Read(lease) => lease.into_lease(),
            Self::Write(lease) => lease.into_lease(),
            Self::Permit(permit) => permit.into_lease(),
        }
    }
}

/// The belief ends before the lease is given back.
struct Held {
    belief: Belief,
    side: Side,
}

impl Caller {
    /// Reads, writes and takes permits, again and again.
    pub async fn live_shared(mut self) {
        let process = Arc::clone(&self.process);
        let mut handles: HashMap<usize, RwLock> = HashMap::new();
        while *process.orders.borrow() == Order::Work && !process.shared.is_empty() {
            let at = self.random.below(process.shared.len());
            let place = &process.shared[at];
            match Kind::of(&place.name) {
                Kind::Semaphore { size } => self.permit_turn(place, size).await,
                _ => {
                    let handle = handles.remove(&at);
                    let mut lock = handle.unwrap_or_else(|| place.leases.rw_lock(&place.name));
                    self.rw_turn(place, &mut lock).await;
                    if !self.random.once_in(10) {
                        handles.insert(at, lock);
                    }
                }
            }
            sleep(self.random.millis(0..30)).await;
        }
    }

    fn way(&mut self) -> Way {
        let limit = self.random.millis(1..600);
        let how = match self.random.below(20) {
            0..10 => "lock",
            10..14 => "try",
            14..17 => "timeout",
            _ => "dropped",
        };
        Way { how, limit }
    }

    /// Tells what came of a call, and believes in what it gave.
    async fn taken(
        &mut self,
        ask: Ask,
        taken: Result<Option<Side>>,
        by_token: bool,
    ) -> Option<Held> {
        let (ask, side) = ask.brought(taken).await?;
        Some(Held { belief: ask.granted(&side, by_token), side })
    }

    async fn permit_turn(&mut self, place: &Place, size: u32) {
        let pool = place.leases.semaphore(&place.name, size);
        let take = 1 + self.random.below(size as usize) as u32;
        // Mostly few, so that several are out at once.
        let take = if self.random.once_in(3) { take } else { 1 };
        let way = self.way();
        let ask = self.ask(place, way).in_mode("permits", take);
        let taken = match way.how {
            "try" => pool.try_acquire_many(take).await,
            "timeout" => pool.acquire_many_timeout(take, way.limit).await,
            _ => self.takes(way, pool.acquire_many(take)).await,
        };
        let by_token = self.random.once_in(6);
        let taken = taken.map(|permit| permit.map(Side::Permit));
        let Some(mut held) = self.taken(ask, taken, by_token).await else { return };
        self.works(place, &mut held, by_token).await;
        self.gives_back(place, held).await;
    }

    async fn rw_turn(&mut self, place: &Place, lock: &mut RwLock) {
        let (writes, way) = (self.random.once_in(3), self.way());
        let ask = self.ask(place, way).in_mode(if writes { "write" } else { "read" }, 0);
        let read = |lease: Option<ReadLease>| lease.map(Side::Read);
        let write = |lease: Option<WriteLease>| lease.map(Side::Write);
        let taken = match (way.how, writes) {
            ("try", false) => lock.try_read().await.map(read),
            ("try", true) => lock.try_write().await.map(write),
            ("timeout", false) => lock.read_timeout(way.limit).await.map(read),
            ("timeout", true) => lock.write_timeout(way.limit).await.map(write),
            (_, false) => self.takes(way, lock.read()).await.map(read),
            (_, true) => self.takes(way, lock.write()).await.map(write),
        };
        let by_token = self.random.once_in(6);
        let Some(mut held) = self.taken(ask, taken, by_token).await else { return };
        self.works(place, &mut held, by_token).await;
        if !by_token && self.random.once_in(5) {
            self.reads_again(lock, &mut held).await;
        }
        for _ in 0..2 {
            if by_token || !self.random.once_in(3) {
                break;
            }
            let changed = self.changes(place, held).await;
            let Some(next) = changed else { return };
            held = next;
            self.works(place, &mut held, false).await;
        }
        self.gives_back(place, held).await;
    }

    async fn works(&mut self, place: &Place, held: &mut Held, by_token: bool) {
        let how_long = self.how_long(place.ttl);
        let Held { belief, side } = held;
        if by_token {
            return trust_token(belief, side, how_long).await;
        }
        if belief.is_over() {
            return;
        }
        let access = match side {
            Side::Permit(_) => Access::None,
            Side::Read(_) => Access::Read,
            Side::Write(_) => Access::Write,
        };
        self.work(place, None, belief, side, access, how_long).await;
    }

    /// Enters again to read, as whoever has the name may.
    async fn reads_again(&mut self, lock: &mut RwLock, held: &mut Held) {
        let count = held.side.hold_count();
        // Lost, or unknown: the next check tells.
        let Ok(inner) = lock.read().await else { return };
        if inner.hold_count() != count + 1 {
            let found = inner.hold_count();
            self.process.broken(format!("a nested read at hold count {count} made it {found}"));
        }
        held.belief.nested(&inner);
        if self.random.once_in(4) {
            // The name stays as it is, because the handle has two leases.
            match inner.try_upgrade().await {
                Ok(Upgraded::Read(inner)) => drop(inner),
                Ok(Upgraded::Write(_)) => {
                    self.process.broken("a nested read was upgraded".to_owned())
                }
                Err(_) => {}
            }
            return;
        }
        sleep(self.random.millis(0..4)).await;
        drop(inner);
    }

    /// Makes a reader of a writer, or a writer of a reader. What was believed ends before, and what follows is another belief.
    async fn changes(&mut self, place: &Place, held: Held) -> Option<Held> {
        let Held { belief, side } = held;
        if belief.is_over() {
            drop(belief);
            drop(side);
            return None;
        }
        drop(belief);
        let wanted = |how| self.process.log.wanted(&place.name, how, 0);
        match side {
            Side::Write(lease) => {
                let ask = wanted("downgrade").in_mode("read", 0);
                let taken = lease.downgrade().await.map(|lease| Some(Side::Read(lease)));
                self.taken(ask, taken, false).await
            }
            Side::Read(lease) => {
                let ask = wanted("upgrade").in_mode("write", 0);
                match lease.try_upgrade().await {
                    Ok(Upgraded::Write(lease)) => {
                        self.taken(ask, Ok(Some(Side::Write(lease))), false).await
                    }
                    Ok(Upgraded::Read(lease)) => {
                        let ask = ask.in_mode("read", 0);
                        self.taken(ask, Ok(Some(Side::Read(lease))), false).await
                    }
                    Err(error) => self.taken(ask, Err(error), false).await,
                }
            }
            Side::Permit(_) => None,
        }
    }

    async fn gives_back(&mut self, place: &Place, held: Held) {
        let Held { belief, side } = held;
        self.end(place, crate::caller::Held { belief, lease: side.into_lease() }).await;
    }
}
