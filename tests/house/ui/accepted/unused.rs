#![deny(unused_must_use)]

use leasehold::LeaseManager;

fn main() {
    let leases = LeaseManager::in_memory();
    let _lock = leases.lock("n");
    let _fair = leases.fair_lock("n");
    let _rw = leases.rw_lock("n");
    let _semaphore = leases.semaphore("n", 2);
    let _slots = leases.slots("n", 2);
    let _holder = leases.holder();
    let _election = leases.election("n");
    let _candidate = leases.election("n").candidate("a");
    let _job = leases.once("n");
}
