use leasehold::LeaseManager;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let leases = LeaseManager::in_memory();
    let mut lock = leases.lock("n");
    let (_first, _second) = tokio::join!(lock.lock(), lock.lock());
}
