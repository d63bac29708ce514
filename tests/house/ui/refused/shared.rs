use leasehold::LeaseManager;
use std::sync::Arc;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let leases = LeaseManager::in_memory();
    let lock = Arc::new(leases.lock("n"));
    for _ in 0..2 {
        let lock = Arc::clone(&lock);
        tokio::spawn(async move { drop(lock.lock().await) }).await.unwrap();
    }
}
