//! One lane for each runtime that locks.
//!
//! A request that has to cross to another thread and back costs two wake-ups more than one that stays:
//! as much again as half the round trip on loopback. So each runtime gets a connection of its own when
//! it first asks, and until that is up, or where it cannot be, the lane at home serves.

use super::lane::Lane as OneLane;
use super::lines::Lines;
use super::link::{Dial, Link};
use super::requests::Wire;
use super::slots::SlotLanes;
use crate::clock::Clock;
use crate::store::{Acquire, Acquired, Release, Released, StoreFuture};
use crate::trace;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::time::{sleep, timeout};
use tracing::Level;

/// Between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);

pub(super) struct Lanes {
    home: Lane,
    home_id: Id,
    near: Arc<Near>,
}

/// The entrance to a runtime's lane, or in a cluster to its lanes, one for each slot.
#[derive(Clone)]
enum Lane {
    One(OneLane),
    Slots(SlotLanes),
}

impl Lane {
    /// A lane on the current runtime, and the work that must run there.
    fn new(lines: Lines) -> (Self, StoreWork) {
        if lines.link.is_cluster() {
            let (lanes, work) = SlotLanes::new(lines);
            return (Self::Slots(lanes), Box::pin(work));
        }
        let (lane, work) = OneLane::new(lines);
        (Self::One(lane), Box::pin(work))
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::One(lane) => lane.is_closed(),
            Self::Slots(lanes) => lanes.is_closed(),
        }
    }

    async fn close(self) {
        match self {
            Self::One(lane) => lane.close().await,
            Self::Slots(lanes) => lanes.close().await,
        }
    }
}

type StoreWork = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the tasks that open lanes need.
struct Near {
    dial: Dial,
    wire: Wire,
    clock: Clock,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    closed: bool,
    /// `None` while the connection is being made. Few runtimes, so a list.
    lanes: Vec<(Id, Option<Lane>)>,
}

impl Lanes {
    /// The lane at home, on the current runtime.
    pub(super) fn start(link: Link, dial: Dial, wire: Wire, clock: Clock) -> Self {
        let (home, work) = Lane::new(Lines::new(link, wire.clone(), clock.clone()));
        tokio::spawn(work);
        let near = Arc::new(Near { dial, wire, clock, places: Mutex::default() });
        Self { home, home_id: Handle::current().id(), near }
    }

    pub(super) fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        match self.nearest() {
            (Lane::One(lane), here) => lane.acquire(request, here),
            (Lane::Slots(lanes), here) => lanes.acquire(request, here),
        }
    }

    pub(super) fn release(&self, request: Release) -> StoreFuture<Released> {
        match self.nearest() {
            (Lane::One(lane), here) => lane.release(request, here),
            (Lane::Slots(lanes), here) => lanes.release(request, here),
        }
    }

    /// The lane of the current runtime, or the one at home; whether it is here.
    fn nearest(&self) -> (Lane, bool) {
        let Ok(runtime) = Handle::try_current() else { return (self.home.clone(), false) };
        let id = runtime.id();
        if id == self.home_id {
            return (self.home.clone(), true);
        }
        let mut places = self.near.lock();
        // An id may be given again when its runtime has gone; the lane has gone with it then.
        places.lanes.retain(|(_, lane)| lane.as_ref().is_none_or(|lane| !lane.is_closed()));
        match places.lanes.iter().find(|(known, _)| *known == id) {
            Some((_, Some(lane))) => return (lane.clone(), true),
            Some((_, None)) => {}
            None if places.closed => {}
            None => {
                places.lanes.push((id, None));
                drop(places);
                runtime.spawn(open(Opening { id, near: Arc::clone(&self.near) }));
            }
        }
        (self.home.clone(), false)
    }

    /// Ends all lanes and their connections, waiting for at most `limit`.
    pub(super) async fn close(&self, limit: Duration) {
        let lanes = {
            let mut places = self.near.lock();
            places.closed = true;
            std::mem::take(&mut places.lanes)
        };
        let close = async {
            for lane in lanes.into_iter().filter_map(|(_, lane)| lane) {
                lane.close().await;
            }
        };
        let _ = timeout(limit, close).await;
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.near.lock().closed = true;
    }
}

impl Near {
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the lane of a runtime for requests; what is returned serves it.
    fn settle(&self, id: Id, link: Link) -> StoreWork {
        let (wire, clock) = (self.wire.clone(), self.clock.clone());
        let (lane, work) = Lane::new(Lines::new(link, wire, clock));
        let mut places = self.lock();
        // Without a place, the lane is dropped here, and its work only closes the connection.
        if let Some((_, place)) = places.lanes.iter_mut().find(|(known, _)| *known == id) {
            *place = Some(lane);
        }
        work
    }
}

/// A place that is kept for a lane; given up when the runtime goes before the lane is there.
struct Opening {
    id: Id,
    near: Arc<Near>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A runtime without I/O; it cannot have a lane, and need not try again.
            return;
        }
        self.near.lock().lanes.retain(|(id, lane)| *id != self.id || lane.is_some());
    }
}

/// Connects on this runtime, then serves its lane.
async fn open(opening: Opening) {
    let near = &opening.near;
    if time_is_paused() {
        // Every reply would seem to come too late.
        return std::future::pending().await;
    }
    let work = loop {
        match near.dial.link().await {
            Ok(link) => break near.settle(opening.id, link),
            Err(error) => trace::later(
                Level::DEBUG,
                || move || tracing::debug!(%error, "no connection for this runtime yet"),
            ),
        }
        if near.lock().closed {
            return;
        }
        sleep(RETRY).await;
    };
    drop(opening);
    work.await;
}

/// Whether a test has paused tokio's clock: it no longer agrees with the system's then.
fn time_is_paused() -> bool {
    let apart = || {
        let (ours, tokios) = (std::time::Instant::now(), tokio::time::Instant::now().into_std());
        tokios.saturating_duration_since(ours).max(ours.saturating_duration_since(tokios))
    };
    // Between two readings the thread may have to wait for a processor.
    (0..5).map(|_| apart()).min() > Some(Duration::from_millis(1))
}
