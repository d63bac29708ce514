//! A service that works on the same few shopping carts again and again, without asking the server each time.
//!
//! ```sh
//! cargo run --release --example carts                                 # in memory
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --release --example carts
//! ```
//!
//! A router sends all messages of a cart to one process, as long as that lives: so each process locks the same names again and
//! again, and hardly any other one wants them. With `Builder::linger` only the first message of a while costs requests. When the
//! router changes its mind, the other process asks, and the cart is given up at once. The store of the carts checks the fencing
//! token of each write, as always.

use leasehold::{Builder, LeaseManager};
use std::collections::HashMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const CARTS: usize = 8;
const MESSAGES: usize = 4_000;

/// A cart: what is in it, and the fencing token of its last write.
#[derive(Default)]
struct Cart {
    items: usize,
    fence: u64,
}

/// The store of the carts, which all processes share.
type Carts = Arc<Mutex<HashMap<String, Cart>>>;

/// Adds an item to a cart, under its lease.
async fn add(
    leases: &LeaseManager,
    carts: &Carts,
    name: &str,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let lease = leases.lock(name).lock().await?;
    let fence = lease.fence().ok_or("no fencing token")?;
    let items = carts.lock().map_err(|_| "a panic")?.entry(name.to_owned()).or_default().items;
    // Here a real service would wait for its database.
    tokio::task::yield_now().await;
    {
        let mut carts = carts.lock().map_err(|_| "a panic")?;
        let cart = carts.entry(name.to_owned()).or_default();
        if fence < cart.fence {
            return Err("a late write".into());
        }
        (cart.items, cart.fence) = (items + 1, fence);
    }
    lease.unlock().await?;
    Ok(())
}

/// Returns the time for a message.
async fn serve(
    leases: &LeaseManager,
    carts: &Carts,
) -> Result<Duration, Box<dyn Error + Send + Sync>> {
    let start = Instant::now();
    for message in 0..MESSAGES {
        add(leases, carts, &format!("leasehold-example:cart:{}", message % CARTS)).await?;
    }
    Ok(start.elapsed() / MESSAGES as u32)
}

async fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let url = std::env::var("REDIS_URL").ok();
    let memory = leasehold::store::MemoryStore::new();
    let manager = async |builder: Builder| match &url {
        Some(url) => builder.connect(url).await,
        None => builder.build(memory.clone()),
    };
    let carts = Carts::default();
    let plain = manager(LeaseManager::builder()).await?;
    let lingering = manager(LeaseManager::builder().linger(Duration::from_millis(50))).await?;
    println!("a message without linger: {:?}", serve(&plain, &carts).await?);
    println!("a message with linger:    {:?}", serve(&lingering, &carts).await?);
    let stats = lingering.stats();
    println!("{} of {} locks asked the store", stats.granted, stats.granted + stats.handed_off);

    // The router sends the next message of a cart to the other process.
    add(&lingering, &carts, "leasehold-example:cart:0").await?;
    let start = Instant::now();
    add(&plain, &carts, "leasehold-example:cart:0").await?;
    println!("the other process had a cart after {:?}", start.elapsed());

    let items: usize = carts.lock().map_err(|_| "a panic")?.values().map(|cart| cart.items).sum();
    if items != 2 * MESSAGES + 2 {
        return Err(format!("{items} items of {}: an update is lost", 2 * MESSAGES + 2).into());
    }
    plain.close().await?;
    lingering.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
