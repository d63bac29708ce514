//! A job of tokio-cron-scheduler in two processes: each tick runs in one of them.
//!
//! ```sh
//! cargo run -p leasehold-services --bin cron_job
//! ```
//!
//! The key of a run is the job and the second for which it was scheduled, so both processes agree on it although their
//! clocks and their delays differ. tokio-cron-scheduler does not tell that second, and looks for work twice a second: rounded
//! down to the period of the schedule, the time is the one that was scheduled.

use leasehold::{ErrorKind, LeaseManager, Once};
use leasehold_services::{Result, exit_code, two_workers};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};

/// How long each process runs.
const FOR: Duration = Duration::from_secs(4);

/// Runs one process.
async fn work() -> Result {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let leases = LeaseManager::builder()
        .ttl(Duration::from_secs(10))
        .prefix("leasehold-example:")
        .connect(url)
        .await?;
    let mut scheduler = JobScheduler::new().await?;
    let scheduled = leases.clone();
    let job = Job::new_async("* * * * * *", move |_id, _scheduler| {
        let leases = scheduled.clone();
        Box::pin(async move {
            let second =
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
            match report(&leases, second).await {
                // The key is free, and the next tick has another one.
                Err(error) if error.kind() != ErrorKind::Closed => eprintln!("{second}: {error}"),
                _ => {}
            }
        })
    })?;
    scheduler.add(job).await?;
    scheduler.start().await?;
    println!("ready");
    sleep(FOR).await;
    scheduler.shutdown().await?;
    leases.close().await?;
    Ok(())
}

/// Runs the report of a second, unless another process does, or has done it.
async fn report(leases: &LeaseManager, second: u64) -> leasehold::Result<()> {
    // Kept for longer than a process can be late with a tick.
    let job = leases.once(format!("report@{second}")).keep(Duration::from_secs(3600));
    let outcome = job
        .run(async |_lease| {
            sleep(Duration::from_millis(30)).await; // the work
            Ok::<_, std::io::Error>(())
        })
        .await?;
    match outcome {
        Once::Ran(()) => println!("ran {second}"),
        Once::Elsewhere(_) | Once::Before(_) => println!("left {second}"),
        // The key is free, and the next process that asks runs it.
        failed => println!("failed {second}: {failed:?}"),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("work") => work().await,
        None => two_workers().await,
        _ => Err("no arguments".into()),
    };
    exit_code("cron_job", done)
}
