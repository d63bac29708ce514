//! Maps the slots of a fleet to its servers.

use fred::types::config::Server;

const NO_SERVER: u16 = u16::MAX;

/// The servers of a fleet and their slots, as the fleet last reported them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotMap {
    /// The primaries.
    pub(in crate::store::redis) servers: Vec<Server>,
    /// An index into `servers` for each slot; empty if one serves all.
    slots: Vec<u16>,
    /// The replicas, which can be asked for the map, too.
    pub(in crate::store::redis) replicas: Vec<Server>,
}

impl SlotMap {
    /// The number of slots of a cluster.
    pub(super) const SLOTS: u16 = 16384;

    pub(super) fn of_one(server: Server) -> Self {
        Self { servers: vec![server], ..Self::default() }
    }

    pub(super) fn of_cluster() -> Self {
        Self { slots: vec![NO_SERVER; Self::SLOTS.into()], ..Self::default() }
    }

    /// Assigns slots to a server.
    pub(super) fn assign(&mut self, slots: std::ops::RangeInclusive<usize>, server: &Server) {
        let known = self.servers.iter().position(|known| known == server);
        let index = known.unwrap_or_else(|| {
            self.servers.push(server.clone());
            self.servers.len() - 1
        });
        if let Some(slots) = self.slots.get_mut(slots) {
            slots.fill(u16::try_from(index).unwrap_or(NO_SERVER));
        }
    }

    pub(in crate::store::redis) fn owner(&self, slot: u16) -> Option<&Server> {
        self.servers.get(self.index(slot))
    }

    /// Returns the index of the slot's server among all.
    pub(super) fn index(&self, slot: u16) -> usize {
        self.slots.get(usize::from(slot)).copied().unwrap_or_default().into()
    }

    /// Returns whether it names a primary that `other` does not.
    pub(super) fn has_new_primary(&self, other: &Self) -> bool {
        self.servers.iter().any(|server| !other.servers.contains(server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_has_the_owner_of_each_slot() {
        let (a, b) = (Server::new("a", 1), Server::new("b", 2));
        let mut map = SlotMap::of_cluster();
        map.assign(0..=9, &a);
        map.assign(10..=16383, &b);
        assert_eq!((map.owner(9), map.owner(10)), (Some(&a), Some(&b)));
        map.assign(10..=10, &a);
        assert_eq!((map.owner(10), map.owner(11)), (Some(&a), Some(&b)));
        assert_eq!(SlotMap::of_cluster().owner(5), None);
        assert_eq!(SlotMap::of_one(b.clone()).owner(16383), Some(&b));
    }

    #[test]
    fn only_a_new_primary_is_a_failover() {
        let (a, b) = (Server::new("a", 1), Server::new("b", 2));
        let mut before = SlotMap::of_cluster();
        before.assign(0..=9, &a);
        before.assign(10..=19, &b);
        let mut moved = before.clone();
        moved.assign(5..=5, &b);
        assert!(!moved.has_new_primary(&before));
        let mut failed_over = before.clone();
        failed_over.assign(0..=9, &Server::new("c", 3));
        assert!(failed_over.has_new_primary(&before));
    }
}
