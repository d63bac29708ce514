#![deny(unused_must_use)]

use leasehold::LeaseManager;

fn main() {
    let leases = LeaseManager::in_memory();
    leases.lock("n");
    leases.fair_lock("n");
    leases.rw_lock("n");
    leases.semaphore("n", 2);
    leases.slots("n", 2);
    leases.holder();
    leases.election("n");
    leases.election("n").candidate("a");
    leases.once("n");
}
