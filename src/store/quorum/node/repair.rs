//! Makes what a node has of a living hold what it should be, after a renewal.

use super::Node;
use super::queue::bounded;
use crate::store::quorum::holds::Holds;
use crate::store::{Acquire, Acquired, HolderId, Mode, Place, Release, Target};
use crate::util::trace;
use std::sync::Arc;
use std::time::Duration;
use tracing::Level;

/// The waiting time of a hold that is there already: no place in an order of waiters comes before it.
const AGES: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Node {
    /// Makes the key of a living hold again, where there is none.
    pub(super) async fn heal(
        self: Arc<Self>,
        holds: Arc<Holds>,
        (target, outer, ttl): (Target, HolderId, Duration),
        limit: Duration,
    ) {
        let mut head = self.queues.head(&target, outer).await;
        // A release that comes from here on waits behind this request.
        let Some(hold) = holds.living(outer) else { return };
        let (holder, target) = (self.holder_id(hold.holder), Target::new(target.name, hold.mode));
        let place = Some(Place::new(AGES, Duration::ZERO));
        let request = Acquire::new(target, holder, ttl, limit).with_place(place);
        hold.places.add(self.index);
        head.sending(&request, self.clock.now());
        let verdict = head.acquire(&request).await.0;
        head.answered(holder, &verdict);
        head.keep(holder);
        trace::later(Level::DEBUG, || {
            let (node, verdict) = (self.index + 1, verdict.clone());
            move || tracing::debug!(node, ?verdict, "made again")
        });
        if !matches!(verdict, Ok(Acquired::Granted { .. })) {
            return;
        }
        if hold.mode == Mode::Write && head.find(holder).is_none() {
            holds.update(outer, |hold| {
                hold.sides.iter_mut().for_each(|sides| sides.made_writer(self.index));
            });
        }
        if hold.count > 1 {
            let request = Release::new(request.target, holder, hold.count, limit);
            let _ = bounded(limit, self.store.release(request)).await;
        }
    }

    /// Changes the mode of a living hold here to what the others have.
    pub(super) async fn set_right(
        self: Arc<Self>,
        holds: Arc<Holds>,
        (target, outer, ttl): (Target, HolderId, Duration),
        limit: Duration,
    ) {
        let mut head = self.queues.head(&target, outer).await;
        let Some(held) = holds.living(outer).filter(|held| held.strays(self.index)) else { return };
        let holder = self.holder_id(held.holder);
        if held.mode == Mode::Write && head.find(holder).is_some() {
            return;
        }
        let target = Target::new(target.name, held.mode);
        let request = Acquire::new(target, holder, ttl, limit).with_converts(true);
        let _ = self.change(&(holds, outer), &request).await;
        drop(head);
    }
}
