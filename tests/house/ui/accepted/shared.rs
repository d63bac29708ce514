use leasehold::LeaseManager;
use std::sync::Arc;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let leases = Arc::new(LeaseManager::in_memory());
    for _ in 0..2 {
        let mut lock = Arc::clone(&leases).lock("n");
        tokio::spawn(async move { drop(lock.lock().await) }).await.unwrap();
    }
}
