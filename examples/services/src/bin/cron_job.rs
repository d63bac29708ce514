//! A job of tokio-cron-scheduler in two processes: each tick runs in one of them, and they take turns.
//!
//! ```sh
//! cargo run -p leasehold-services --bin cron_job
//! ```
//!
//! The key of a run is the job and the second for which it was scheduled, so both processes agree on it although their
//! clocks and their delays differ. tokio-cron-scheduler does not tell that second, and looks for work twice a second: rounded
//! down to the period of the schedule, the time is the one that was scheduled.
//!
//! The process that asks first runs the job, and without more that is mostly the same one. Here the one that ran the last job
//! asks a little later, so the other one goes first; if that one is gone, nothing is left out.

use leasehold::{ErrorKind, LeaseManager, Once};
use leasehold_services::{Result, exit_code, two_workers};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};

/// How long each process runs.
const FOR: Duration = Duration::from_secs(4);

/// How much later the process asks that ran the last job.
const LATER: Duration = Duration::from_millis(200);

/// Runs one process.
async fn work() -> Result {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let leases = LeaseManager::builder()
        .ttl(Duration::from_secs(10))
        .prefix("leasehold-example:")
        .connect(url)
        .await?;
    let mut scheduler = JobScheduler::new().await?;
    let scheduled = (leases.clone(), Arc::new(AtomicBool::new(false)));
    let job = Job::new_async("* * * * * *", move |_id, _scheduler| {
        let (leases, ran_last) = scheduled.clone();
        Box::pin(async move {
            let second =
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
            if ran_last.load(Relaxed) {
                sleep(LATER).await;
            }
            match report(&leases, second).await {
                Ok(ran) => ran_last.store(ran, Relaxed),
                // The key is free, and the next tick has another one.
                Err(error) if error.kind() != ErrorKind::Closed => {
                    println!("failed {second}: {error}");
                }
                Err(_) => {}
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

/// Runs the report of a second, unless another process does, or has done it. Returns whether it ran here.
async fn report(leases: &LeaseManager, second: u64) -> leasehold::Result<bool> {
    // Kept for longer than a process can be late with a tick.
    let job = leases.once(format!("report@{second}")).keep(Duration::from_secs(3600));
    let outcome = job
        .run(async |_lease| {
            sleep(Duration::from_millis(30)).await; // the work
            Ok::<_, std::io::Error>(())
        })
        .await?;
    let ran = matches!(outcome, Once::Ran(()));
    match outcome {
        Once::Ran(()) => println!("ran {second}"),
        Once::Running(_) | Once::AlreadyDone(_) => println!("left {second}"),
        // The key is free, and the next process that asks runs it.
        failed => println!("failed {second}: {failed:?}"),
    }
    Ok(ran)
}

/// Runs two processes, and checks that both had a turn.
async fn demo() -> Result {
    let each = two_workers().await?;
    println!("the first ran {} of them, the second {}", each[0], each[1]);
    if each.contains(&0) {
        return Err("one process ran all the jobs".into());
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("work") => work().await,
        None => demo().await,
        _ => Err("no arguments".into()),
    };
    exit_code("cron_job", done)
}
