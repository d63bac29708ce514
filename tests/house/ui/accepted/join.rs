use leasehold::LeaseManager;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let leases = LeaseManager::in_memory();
    let (mut lock, mut other) = (leases.lock("n"), leases.lock("m"));
    let (_first, _second) = tokio::join!(lock.lock(), other.lock());
}
