use leasehold::LeaseManager;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let leases = LeaseManager::in_memory();
    let mut lock = leases.lock("n");
    let task = tokio::spawn(async move { lock.lock().await.map(drop) });
    drop(lock.lock().await);
    task.await.unwrap().unwrap();
}
