//! Finds all servers of a fleet once, for an examination.

use super::discover::Discovery;
use super::slot_map::SlotMap;
use crate::error::Result;
use crate::store::redis::link::address::{Address, Server};

/// The servers of a fleet.
pub(in crate::store::redis) struct AllServers {
    map: SlotMap,
}

impl AllServers {
    /// Asks the fleet for its servers.
    pub(in crate::store::redis) async fn find(address: &Address) -> Result<Self> {
        let (map, _) = Discovery::default().discover(address, &SlotMap::default()).await?;
        Ok(Self { map })
    }

    pub(in crate::store::redis) fn primaries(&self) -> &[Server] {
        &self.map.servers
    }

    /// Returns the replicas of a cluster. Sentinels report those of a primary elsewhere.
    pub(in crate::store::redis) fn replicas(&self) -> &[Server] {
        &self.map.replicas
    }

    /// Returns whether a primary has this slot.
    pub(in crate::store::redis) fn has_slot(&self, server: &Server, slot: u16) -> bool {
        self.map.owner(slot) == Some(server)
    }
}
