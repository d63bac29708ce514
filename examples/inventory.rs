//! Sells what is in stock, and nothing twice.
//!
//! ```sh
//! cargo run --example inventory                                       # in memory
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example inventory
//! ```
//!
//! Each buyer reads the stock, waits (as for a database) and writes what is left. Two buyers that read
//! the same number sell the same unit. Only the lease keeps them apart: remove its two lines from `buy`,
//! and this program fails.

use leasehold::LeaseManager;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;
use tokio::task::JoinSet;

/// A cell that all buyers share. Each access is atomic, but a read and a write together are not.
type Stock = Arc<AtomicU32>;

/// Buys one unit and returns its number; `None` if nothing is left.
async fn buy(leases: &LeaseManager, stock: &Stock) -> leasehold::Result<Option<u32>> {
    // Every call is a flow of control of its own, so it makes its own handle.
    let lease = leases.lock("leasehold-example:inventory").lock().await?;

    let left = stock.load(Relaxed);
    tokio::task::yield_now().await; // the others run here
    if left > 0 {
        stock.store(left - 1, Relaxed);
    }

    // An error here means that the lease was lost: the unit may be sold twice.
    lease.unlock().await?;
    Ok((left > 0).then_some(left))
}

/// Lets all buyers buy at once. Returns the units that each of them got.
async fn sale(
    leases: &LeaseManager,
    stock: u32,
    buyers: impl IntoIterator<Item = String>,
    units_each: u32,
) -> Result<Vec<(String, Vec<u32>)>, Box<dyn Error>> {
    let stock: Stock = Arc::new(AtomicU32::new(stock));
    let mut tasks = JoinSet::new();
    for buyer in buyers {
        let (leases, stock) = (leases.clone(), Arc::clone(&stock));
        tasks.spawn(async move {
            let mut units = Vec::new();
            for _ in 0..units_each {
                units.extend(buy(&leases, &stock).await?);
            }
            Ok::<_, leasehold::Error>((buyer, units))
        });
    }
    let mut bought = Vec::new();
    while let Some(buyer) = tasks.join_next().await {
        bought.push(buyer??);
    }
    bought.sort();
    Ok(bought)
}

/// Returns an error unless each unit from 1 to `stock` was sold once.
fn audit(stock: u32, bought: &[(String, Vec<u32>)]) -> Result<(), String> {
    let mut units: Vec<u32> = bought.iter().flat_map(|(_, units)| units).copied().collect();
    units.sort_unstable();
    if units.iter().copied().eq(1..=stock) {
        return Ok(());
    }
    let sold = units.len();
    units.dedup();
    let twice = sold - units.len();
    Err(format!("{sold} units sold of {stock} in stock, {twice} of them twice"))
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "memory:".into());
    let leases = LeaseManager::connect(&url).await?;

    println!("One item, three buyers at once:");
    let buyers = ["Alice", "Bob", "Carol"].map(String::from);
    let bought = sale(&leases, 1, buyers, 1).await?;
    for (buyer, units) in &bought {
        match units.is_empty() {
            false => println!("  {buyer} buys it"),
            true => println!("  {buyer} is too late"),
        }
    }
    audit(1, &bought)?;

    println!("1000 units, 50 buyers at once, each for 25 if they can get them:");
    let start = Instant::now();
    let buyers = (1..=50).map(|number| format!("buyer {number:02}"));
    let bought = sale(&leases, 1000, buyers, 25).await?;
    for row in bought.chunks(5) {
        let row = row.iter().map(|(buyer, units)| format!("{buyer}: {:2}", units.len()));
        println!("  {}", row.collect::<Vec<_>>().join("   "));
    }
    audit(1000, &bought)?;
    println!("1000 units sold, none of them twice, in {:.1?}", start.elapsed());

    leases.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("inventory: {error}");
            ExitCode::FAILURE
        }
    }
}
