//! Finds two bugs in a service that pays out orders, by the seeds of `testing::World`, and shows that the third form has none.
//!
//! ```sh
//! cargo run --example loss_handling
//! ```
//!
//! Each seed is a world of three processes on one store, in virtual time, in which networks are cut, processes freeze and the
//! store forgets. All three forms of the service work while nothing goes wrong:
//!
//! 1. The hasty one locks, and works. It goes on when its lease is lost.
//! 2. The careful one works in `lease.run`, which stops it. But its ledger accepts each write, also a late one.
//! 3. The right one is careful, and its ledger refuses a write with an older fencing token than it has seen.

use leasehold::testing::{Breach, Failure, Seeds, World};
use leasehold::{Error, ErrorKind, Lease, LeaseManager, Result};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::sleep;

const NAME: &str = "payouts";

/// The fake of a ledger, which takes its time. All processes share it.
struct Ledger {
    world: World,
    /// The largest fencing token that it has seen, if it looks at them.
    seen: Option<AtomicU64>,
}

impl Ledger {
    fn new(world: &World, looks: bool) -> Arc<Self> {
        Arc::new(Self { world: world.clone(), seen: looks.then(AtomicU64::default) })
    }

    /// Writes one payout, after the network has had its time.
    async fn write(&self, fence: u64) -> Result<()> {
        sleep(Duration::from_millis(300)).await;
        if let Some(seen) = &self.seen
            && seen.fetch_max(fence, Ordering::SeqCst) > fence
        {
            return Err(Error::new(ErrorKind::Rejected, "the ledger has seen a larger token"));
        }
        self.world.write(NAME, fence);
        Ok(())
    }
}

/// Pays out some orders: this is the work.
async fn pay_out(lease: &Lease, ledger: &Ledger) -> Result<()> {
    let fence = lease.fence().expect("this store has fencing tokens");
    let _work = ledger.world.enter(NAME, fence);
    for _ in 0..10 {
        sleep(Duration::from_secs(2)).await; // the bank
        ledger.write(fence).await?;
    }
    Ok(())
}

async fn hasty(leases: LeaseManager, ledger: Arc<Ledger>) -> Result<()> {
    for _ in 0..3 {
        let lease = leases.lock(NAME).lock().await?;
        pay_out(&lease, &ledger).await?;
        lease.unlock().await?;
    }
    Ok(())
}

async fn careful(leases: LeaseManager, ledger: Arc<Ledger>) -> Result<()> {
    for _ in 0..3 {
        let lease = leases.lock(NAME).lock().await?;
        lease.run(pay_out(&lease, &ledger)).await??;
        lease.unlock().await?;
    }
    Ok(())
}

/// The same worlds for each of them.
fn worlds() -> Seeds {
    World::seeds(0..200).managers(3)
}

fn try_hasty() -> Result<(), Failure> {
    worlds().run(|world| async move {
        let ledger = Ledger::new(&world, true);
        world.in_each_process(|leases| hasty(leases, Arc::clone(&ledger))).await;
        Ok(())
    })
}

fn try_careful() -> Result<(), Failure> {
    worlds().run(|world| async move {
        let ledger = Ledger::new(&world, false);
        world.in_each_process(|leases| careful(leases, Arc::clone(&ledger))).await;
        Ok(())
    })
}

fn try_right() -> Result<(), Failure> {
    worlds().run(|world| async move {
        let ledger = Ledger::new(&world, true);
        world.in_each_process(|leases| careful(leases, Arc::clone(&ledger))).await;
        Ok(())
    })
}

/// Shows what was found, and returns whether it is what was to be found.
fn show(form: &str, found: &Result<(), Failure>, expected: Option<Breach>) -> bool {
    println!("== the {form} one ==");
    match found {
        Ok(()) => println!("200 seeds, and no rule is broken"),
        Err(failure) => println!("{failure}"),
    }
    println!();
    found.as_ref().err().map(Failure::breach) == expected
}

fn main() -> ExitCode {
    let as_expected = [
        show("hasty", &try_hasty(), Some(Breach::AfterLoss)),
        show("careful", &try_careful(), Some(Breach::Order)),
        show("right", &try_right(), None),
    ];
    if as_expected.iter().all(|is_right| *is_right) {
        ExitCode::SUCCESS
    } else {
        eprintln!("not what was to be found");
        ExitCode::FAILURE
    }
}
