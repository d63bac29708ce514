//! The holds of one handle on the quorum, and their holder ids at the nodes.

use super::node_modes::NodeModes;
use crate::clock::Instant;
use crate::store::{HolderId, Mode};
use crate::util::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// A hold that a majority granted.
#[derive(Clone)]
pub(super) struct Held {
    /// Its holder id at the nodes.
    pub(super) holder: HolderId,
    pub(super) count: u32,
    pub(super) ttl: Duration,
    /// When it has expired at every node unless it is renewed.
    pub(super) until: Instant,
    /// Whether its release was begun. Then its holder id must not be sent again to make a key.
    pub(super) releasing: bool,
    pub(super) key_nodes: KeyNodes,
    pub(super) mode: Mode,
    /// Its first fencing token.
    pub(super) fence: Option<u64>,
    /// What is known of each node, once the mode was changed.
    pub(super) node_modes: Option<NodeModes>,
}

impl Held {
    /// Returns whether a node that has it counts.
    pub(super) fn counts(&self, node: usize) -> bool {
        self.mode != Mode::Write || self.node_modes.is_none_or(|node_modes| node_modes.writes(node))
    }

    /// Returns whether a node may have it in another mode, and can be set right.
    pub(super) fn strays(&self, node: usize) -> bool {
        self.node_modes.is_some_and(|node_modes| node_modes.strays(node, self.mode))
    }
}

/// The nodes that may have the key of a hold, or may still get it.
#[derive(Clone, Default)]
pub(super) struct KeyNodes(Arc<AtomicU16>);

impl KeyNodes {
    pub(super) fn all() -> Self {
        Self(Arc::new(AtomicU16::new(u16::MAX)))
    }

    pub(super) fn add(&self, node: usize) {
        self.0.fetch_or(1 << node, Ordering::Relaxed);
    }

    pub(super) fn contain(&self, node: usize) -> bool {
        self.0.load(Ordering::Relaxed) & (1 << node) != 0
    }
}

#[derive(Default)]
pub(super) struct Holds {
    map: Mutex<Map>,
    attempts: AtomicU32,
}

#[derive(Default)]
struct Map {
    holds: HashMap<HolderId, Held>,
    /// The highest number of each manager's holder ids that was used; managers draw them in order.
    used: HashMap<Uuid, u64>,
    /// The number of holds at which expired ones are removed next.
    sweep_at: usize,
}

impl Holds {
    /// Returns the holder id for an acquire: that of the living hold, or one that was never used.
    ///
    /// So a release of an earlier attempt that is still in flight cannot undo a later attempt.
    pub(super) fn holder_for(&self, holder: HolderId) -> HolderId {
        let mut map = self.lock();
        if let Some(held) = map.holds.get(&holder).filter(|held| !held.releasing) {
            return held.holder;
        }
        let used = map.used.entry(holder.manager()).or_insert(0);
        if holder.number() > *used {
            *used = holder.number();
            return holder;
        }
        holder.in_attempt(self.attempts.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1))
    }

    /// Returns the holder id of a hold at the nodes, also of one that is being released.
    pub(super) fn holder_of(&self, holder: HolderId) -> HolderId {
        self.lock().holds.get(&holder).map_or(holder, |held| held.holder)
    }

    pub(super) fn find(&self, holder: HolderId) -> Option<Held> {
        self.lock().holds.get(&holder).cloned()
    }

    /// Returns a hold of which no release was begun.
    pub(super) fn living(&self, holder: HolderId) -> Option<Held> {
        self.lock().holds.get(&holder).filter(|held| !held.releasing).cloned()
    }

    pub(super) fn insert(&self, holder: HolderId, held: Held, now: Instant) {
        let mut map = self.lock();
        if map.holds.len() >= map.sweep_at.max(1024) {
            map.holds.retain(|_, held| held.until > now);
            map.sweep_at = 2 * map.holds.len();
        }
        map.holds.insert(holder, held);
    }

    /// Changes the record of a hold, if there is one. Returns it.
    pub(super) fn update(&self, holder: HolderId, change: impl FnOnce(&mut Held)) -> Option<Held> {
        let mut map = self.lock();
        let held = map.holds.get_mut(&holder)?;
        change(held);
        Some(held.clone())
    }

    pub(super) fn remove(&self, holder: HolderId) {
        self.lock().holds.remove(&holder);
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        self.map.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    fn held(holder: HolderId, until: Instant) -> Held {
        let (ttl, key_nodes) = (Duration::from_secs(1), KeyNodes::default());
        let (mode, node_modes) = (Mode::Exclusive, None);
        Held {
            holder,
            count: 1,
            ttl,
            until,
            releasing: false,
            key_nodes,
            mode,
            fence: None,
            node_modes,
        }
    }

    #[test]
    fn token_makes_keys_for_one_attempt_only() {
        let (holds, now) = (Holds::default(), Clock::system().now());
        let manager = Uuid::new_v4();
        let (first, second) = (HolderId::new(manager, 1), HolderId::new(manager, 2));
        assert_eq!(holds.holder_for(second), second, "never used");
        let again = holds.holder_for(second);
        assert!(again != second && again.in_attempt(0) == second, "{again:?}");
        let third = holds.holder_for(second);
        assert!(third != second && third != again, "{third:?}");
        // Drawn before the other, and perhaps used.
        assert_ne!(holds.holder_for(first), first);
        let other = HolderId::new(Uuid::new_v4(), 1);
        assert_eq!(holds.holder_for(other), other);

        holds.insert(second, held(again, now), now);
        assert_eq!((holds.holder_for(second), holds.holder_of(second)), (again, again));
        holds.update(second, |held| held.releasing = true);
        assert_ne!(holds.holder_for(second), again, "its release is on the way");
        assert_eq!(holds.holder_of(second), again);
        assert!(holds.living(second).is_none());
        holds.remove(second);
        assert_eq!(holds.holder_of(second), second);
    }

    #[test]
    fn expired_holds_are_removed_when_the_number_has_doubled() {
        let (holds, now) = (Holds::default(), Clock::system().now());
        let (dead, alive) = (now, now + Duration::from_nanos(1));
        let manager = Uuid::new_v4();
        let mut number = 0;
        let mut add = |count: usize, until: Instant| {
            for _ in 0..count {
                number += 1;
                let holder = HolderId::new(manager, number);
                holds.insert(holder, held(holder, until), now);
            }
            holds.lock().holds.len()
        };
        assert_eq!(add(1023, dead), 1023);
        assert_eq!(add(1, alive), 1024);
        assert_eq!(add(1, alive), 2, "a hold that expires at this moment is expired");
        assert_eq!(add(1022, alive), 1024);
        assert_eq!(add(1, alive), 1025, "none was expired");
        assert_eq!(add(1023, dead), 2048);
        assert_eq!(add(1, alive), 1026);
    }
}
