//! Moves money between accounts, and neither loses any nor deadlocks.
//!
//! ```sh
//! cargo run --example transfer                                        # in memory
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example transfer
//! ```
//!
//! Each transfer needs two accounts. Transfers from A to B and from B to A run at the same time: if each of them locked its
//! two names one after the other, two of them could wait for each other forever. A multi-lock takes both or none.

use leasehold::LeaseManager;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use tokio::task::JoinSet;

const ACCOUNTS: usize = 6;
const BALANCE: i64 = 100;

/// The balances. Each access is atomic, but a read and a write together are not.
type Bank = Arc<Vec<AtomicI64>>;

/// Moves an amount, unless the first account has less. Returns whether it did.
async fn transfer(
    leases: &LeaseManager,
    bank: &Bank,
    (from, to): (usize, usize),
    amount: i64,
) -> leasehold::Result<bool> {
    let names = [from, to].map(|account| format!("leasehold-example:account:{account}"));
    let lease = leases.multi_lock(names)?.lock().await?;

    let (left, there) = (bank[from].load(Relaxed), bank[to].load(Relaxed));
    tokio::task::yield_now().await; // the others run here
    let enough = left >= amount;
    if enough {
        bank[from].store(left - amount, Relaxed);
        bank[to].store(there + amount, Relaxed);
    }

    // An error here means that the lease was lost: both accounts must be looked at.
    lease.unlock().await?;
    Ok(enough)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "memory:".into());
    let leases = LeaseManager::connect(&url).await?;
    let bank: Bank = Arc::new((0..ACCOUNTS).map(|_| AtomicI64::new(BALANCE)).collect());

    let mut clerks = JoinSet::new();
    for clerk in 0..20 {
        let (leases, bank) = (leases.clone(), Arc::clone(&bank));
        clerks.spawn(async move {
            let (mut done, mut refused) = (0, 0);
            for round in 0..25 {
                // Every two accounts meet, in both directions.
                let from = (clerk + round) % ACCOUNTS;
                let to = (from + 1 + (clerk + round / ACCOUNTS) % (ACCOUNTS - 1)) % ACCOUNTS;
                let amount = ((clerk * 7 + round * 13) % 60) as i64;
                match transfer(&leases, &bank, (from, to), amount).await? {
                    true => done += 1,
                    false => refused += 1,
                }
            }
            Ok::<_, leasehold::Error>((done, refused))
        });
    }
    let (mut done, mut refused) = (0, 0);
    while let Some(clerk) = clerks.join_next().await {
        let (more, less) = clerk??;
        (done, refused) = (done + more, refused + less);
    }

    let balances: Vec<i64> = bank.iter().map(|account| account.load(Relaxed)).collect();
    println!("{done} transfers by 20 clerks, {refused} refused: not enough money");
    println!("balances: {balances:?}");
    let total: i64 = balances.iter().sum();
    if total != BALANCE * ACCOUNTS as i64 || balances.iter().any(|balance| *balance < 0) {
        return Err(format!("{total} in all, {} expected", BALANCE * ACCOUNTS as i64).into());
    }
    println!("{total} in all, as before");
    leases.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transfer: {error}");
            ExitCode::FAILURE
        }
    }
}
