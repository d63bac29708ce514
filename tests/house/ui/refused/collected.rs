use leasehold::LeaseManager;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let leases = LeaseManager::in_memory();
    let mut holder = leases.holder();
    let mut waiting = Vec::new();
    for name in ["n", "m"] {
        waiting.push(holder.lock(name));
    }
    for lease in waiting {
        drop(lease.await);
    }
}
