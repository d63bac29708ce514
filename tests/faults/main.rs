//! Faults around leases on one Redis server: of processes, networks, servers, connections and replies. The tests check what the
//! holder sees, what a waiter gets, and by when; `tests/FAULTS.md` has the table.

mod broken;
mod dropped;
mod leaders;
mod limits;
mod line;
mod link;
mod names;
mod network;
mod overrun;
mod phases;
mod process;
mod refusals;
mod replies;
mod roles;
mod server;
mod stalls;
mod wire;

use leasehold::{Builder, LeaseManager};
use std::time::Duration;

fn ttl(ttl: Duration) -> Builder {
    LeaseManager::builder().ttl(ttl)
}

async fn connect(builder: Builder, url: &str) -> LeaseManager {
    builder.connect(url).await.expect("a manager")
}

/// Not a test: the tests start it as a holder in a process of its own.
#[cfg(target_os = "linux")]
#[test]
fn holder_process() {
    kit::holder::serve();
}
