//! Keeps a price list that many replicas read and one at a time refreshes, and a partner that serves few calls at once.
//!
//! ```sh
//! cargo run --example price_list                                      # in memory
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example price_list
//! ```
//!
//! The list is under a read-write lock. A replica that finds it old becomes the writer, if no other replica is reading;
//! otherwise it waits for its turn, and looks again, because another one may have refreshed the list in the meantime. A
//! refresh calls a partner that serves two calls at once, over all replicas: each call has a permit.

use leasehold::{LeaseManager, Upgraded};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The list as it is in a database: its version, and how many are in it.
#[derive(Default)]
struct List {
    version: AtomicU32,
    readers: AtomicU32,
    writers: AtomicU32,
    calls: AtomicU32,
}

/// Asks the partner for new prices.
async fn ask_partner(leases: &LeaseManager, list: &List) -> leasehold::Result<()> {
    let permit = leases.semaphore("leasehold-example:partner", 2).acquire().await?;
    let calls = list.calls.fetch_add(1, Ordering::SeqCst) + 1;
    assert!(calls <= 2, "{calls} calls at once");
    sleep(Duration::from_millis(5)).await;
    list.calls.fetch_sub(1, Ordering::SeqCst);
    permit.unlock().await
}

/// Serves one request, which needs a list of at least this version. Returns whether it had to refresh the list.
async fn serve(leases: &LeaseManager, list: &List, wanted: u32) -> leasehold::Result<bool> {
    let mut lock = leases.rw_lock("leasehold-example:prices");
    let page = lock.read().await?;
    list.readers.fetch_add(1, Ordering::SeqCst);
    assert_eq!(list.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
    sleep(Duration::from_millis(2)).await;
    list.readers.fetch_sub(1, Ordering::SeqCst);
    if list.version.load(Ordering::SeqCst) >= wanted {
        page.unlock().await?;
        return Ok(false);
    }
    let edit = match page.try_upgrade().await? {
        Upgraded::Write(edit) => edit,
        Upgraded::Read(page) => {
            page.unlock().await?;
            lock.write().await?
        }
    };
    // Another replica may have been the writer in between.
    let refresh = list.version.load(Ordering::SeqCst) < wanted;
    if refresh {
        assert_eq!(list.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
        assert_eq!(list.readers.load(Ordering::SeqCst), 0, "a writer beside a reader");
        ask_partner(leases, list).await?;
        list.version.store(wanted, Ordering::SeqCst);
        list.writers.fetch_sub(1, Ordering::SeqCst);
    }
    let page = edit.downgrade().await?; // others may read, and nothing has been written since
    assert!(list.version.load(Ordering::SeqCst) >= wanted);
    page.unlock().await?;
    Ok(refresh)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "memory:".into());
    let leases = LeaseManager::connect(&url).await?;
    let list = Arc::new(List::default());
    let mut replicas = JoinSet::new();
    for _ in 0..12 {
        let (leases, list) = (leases.clone(), Arc::clone(&list));
        replicas.spawn(async move {
            let mut refreshed = 0;
            for request in 0..20 {
                refreshed += u32::from(serve(&leases, &list, request / 5).await?);
            }
            Ok::<_, leasehold::Error>(refreshed)
        });
    }
    let mut refreshed = 0;
    while let Some(replica) = replicas.join_next().await {
        refreshed += replica??;
    }
    println!("240 requests were served, and the list was refreshed {refreshed} times");
    if refreshed != 3 {
        return Err(format!("3 versions were refreshed {refreshed} times").into());
    }
    leases.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("price_list: {error}");
            ExitCode::FAILURE
        }
    }
}
