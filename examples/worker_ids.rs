//! Gives each worker a number of its own, for ids that never repeat.
//!
//! ```sh
//! cargo run --example worker_ids                                      # in memory
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example worker_ids
//! ```
//!
//! Snowflake ids are a time, the number of the worker and a counter. Two workers with one number make the same id. Here a
//! worker holds its number as a slot. The fencing token goes into the id too: each holder of a number has a larger one, so
//! that not even a worker that was paused for long repeats an id of the next holder.

use leasehold::{LeaseManager, Slot};
use std::collections::HashSet;
use std::error::Error;
use std::process::ExitCode;
use tokio::task::JoinSet;

/// The number of the worker, the fencing token of its slot, a counter.
type Id = (u32, u64, u32);

/// Makes ids while the slot is held.
async fn make_ids(slot: &Slot, count: u32) -> leasehold::Result<Vec<Id>> {
    let mut ids = Vec::new();
    for counter in 0..count {
        slot.check()?; // no I/O
        ids.push((slot.index(), slot.fence().unwrap_or_default(), counter));
        tokio::task::yield_now().await;
    }
    Ok(ids)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "memory:".into());
    let leases = LeaseManager::builder().require_fencing(true).connect(&url).await?;
    // Twelve workers for four numbers: the others wait for their turn.
    let workers = leases.slots("leasehold-example:worker", 4);

    let mut tasks = JoinSet::new();
    for worker in 0..12 {
        let workers = workers.clone();
        tasks.spawn(async move {
            let slot = workers.take().await?;
            let ids = make_ids(&slot, 100).await?;
            let index = slot.index();
            slot.unlock().await?;
            Ok::<_, leasehold::Error>((worker, index, ids))
        });
    }
    let mut seen: HashSet<Id> = HashSet::new();
    while let Some(task) = tasks.join_next().await {
        let (worker, index, ids) = task??;
        println!("worker {worker:2} was number {index} and made {} ids", ids.len());
        for id in ids {
            if !seen.insert(id) {
                return Err(format!("the id {id:?} was made twice").into());
            }
        }
    }
    println!("{} ids, none of them twice", seen.len());
    leases.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker_ids: {error}");
            ExitCode::FAILURE
        }
    }
}
