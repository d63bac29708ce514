//! A method that holds a name calls another one that locks the same name.
//!
//! ```sh
//! cargo run --example reentrant                                       # in memory
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example reentrant
//! ```
//!
//! Each public method of `Warehouse` is safe by itself: it locks. The methods can call each other, because
//! each is given the caller's handle, `&mut Lock`. With the same handle a nested call re-enters at once;
//! with a handle of its own it would wait for its caller forever.

use leasehold::{LeaseManager, Lock, Result};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const NAME: &str = "leasehold-example:warehouse";

#[derive(Default)]
struct Warehouse {
    boxes: AtomicU32,
}

impl Warehouse {
    /// Removes boxes. Orders more if there are too few.
    async fn ship(&self, lock: &mut Lock, wanted: u32) -> Result<()> {
        let lease = lock.lock().await?;
        println!("  ship:    in,  hold count {}", lease.hold_count());
        let outside = lease.hold_count();

        let here = self.boxes.load(Relaxed);
        if here < wanted {
            self.restock(lock, wanted - here).await?;
        }
        // Still held: the nested call released its own lease only.
        assert_eq!(lease.hold_count(), outside);
        lease.check()?;
        self.boxes.fetch_sub(wanted, Relaxed);

        println!("  ship:    out, hold count {}", lease.hold_count());
        lease.unlock().await
    }

    async fn restock(&self, lock: &mut Lock, more: u32) -> Result<()> {
        let lease = lock.lock().await?;
        println!("  restock: in,  hold count {}", lease.hold_count());
        self.boxes.fetch_add(more, Relaxed);
        lease.unlock().await
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "memory:".into());
    let leases = LeaseManager::connect(&url).await?;
    let warehouse = Warehouse::default();

    let mut lock = leases.lock(NAME);
    println!("One flow of control, one handle:");
    warehouse.ship(&mut lock, 5).await?;

    println!("The same inside a lease of our own:");
    let lease = lock.lock().await?;
    println!("  main:    in,  hold count {}", lease.hold_count());
    warehouse.ship(&mut lock, 3).await?;
    let holding = leases.inspect(NAME).await?.ok_or("no flow of control holds it")?;
    println!("  main:    the store has hold count {}", holding.hold_count);
    if (lease.hold_count(), holding.hold_count) != (1, 1) {
        return Err("the nested calls did not release what they acquired".into());
    }

    // Another handle has to wait, even here in the same task.
    let mut other = leases.lock(NAME);
    let acquired = other.try_lock().await?;
    println!("  another tries meanwhile:  {}", outcome(&acquired));
    if acquired.is_some() {
        return Err("two holders at once".into());
    }

    lease.unlock().await?;
    let acquired = other.try_lock().await?;
    println!("  another tries afterwards: {}", outcome(&acquired));
    if acquired.is_none() {
        return Err("the name was not released".into());
    }
    drop(acquired);
    // A dropped lease is released in the background; `close` waits for that.
    leases.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reentrant: {error}");
            ExitCode::FAILURE
        }
    }
}

fn outcome(acquired: &Option<leasehold::Lease>) -> &'static str {
    match acquired {
        Some(_) => "it gets the lock",
        None => "refused",
    }
}
