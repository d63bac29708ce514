//! A long job that stops by itself when its lease is taken away.
//!
//! ```sh
//! cargo run --example long_task                                       # in memory
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example long_task
//! ```
//!
//! The job would run for a minute. After half a second an operator takes its lease away, as a crashed
//! server or a lost network would. Only the lease reports this to the job.

use leasehold::{CancellationToken, ErrorKind, LeaseManager, Loss};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::sleep;

const NAME: &str = "leasehold-example:nightly-report";

/// Does the job. It knows nothing of leases: `run` drops it at one of its awaits.
async fn write_report(pages: &AtomicU32) {
    for page in 1..=1200 {
        sleep(Duration::from_millis(50)).await;
        pages.store(page, Relaxed);
    }
}

/// Runs beside the job. What a job spawns is not dropped with it, so it gets the token.
async fn upload(uploads: Arc<AtomicU32>, token: CancellationToken) {
    loop {
        tokio::select! {
            // Check the token first: when both are ready, nothing more may be done.
            biased;
            () = token.cancelled() => break,
            () = sleep(Duration::from_millis(50)) => {}
        }
        uploads.fetch_add(1, Relaxed);
    }
    println!("  uploads: stopped by the token after {}", uploads.load(Relaxed));
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "memory:".into());
    let leases = LeaseManager::connect(&url).await?;
    let (pages, uploads) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));

    let lease = leases.lock(NAME).lock().await?;
    println!("The job begins; its lease lasts for {:.1?} without a renewal", lease.remaining());
    let helper = tokio::spawn(upload(Arc::clone(&uploads), lease.cancellation_token()));

    let operator = leases.clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(500)).await;
        println!("  operator: takes the lease away");
        operator.force_unlock(NAME, "it hangs").await
    });

    match lease.run(write_report(&pages)).await {
        Ok(()) => return Err("the job was not stopped".into()),
        Err(error) => {
            println!("  job: stopped after {} pages: {error}", pages.load(Relaxed));
            // The cause decides what to do: after `MaxHold`, for example, an operator should look at the job.
            if error.loss() != Some(Loss::Revoked) {
                return Err(error.into());
            }
        }
    }
    helper.await?;

    // Nothing goes on in the background.
    let written = (pages.load(Relaxed), uploads.load(Relaxed));
    sleep(Duration::from_millis(200)).await;
    if written != (pages.load(Relaxed), uploads.load(Relaxed)) {
        return Err("the job went on without its lease".into());
    }

    // A lost lease never comes back, and `unlock` returns the cause again.
    match lease.unlock().await {
        Err(error) if error.kind() == ErrorKind::Lost => println!("  unlock: {error}"),
        other => return Err(format!("unlock after the loss: {other:?}").into()),
    }
    let again = leases.lock(NAME).try_lock().await?;
    println!("The next job can begin: {}", again.is_some());
    if again.is_none() {
        return Err("the name is not free".into());
    }
    drop(again);

    leases.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("long_task: {error}");
            ExitCode::FAILURE
        }
    }
}
