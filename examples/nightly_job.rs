//! Runs a nightly job on one of three replicas: once for each night, whichever of them is first, and once more after a
//! failure or a crash.
//!
//! ```sh
//! cargo run --example nightly_job                                      # in memory
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example nightly_job
//! ```
//!
//! Each replica has a manager of its own, as a process would have, and a clock that is off by some milliseconds. All of
//! them wake for each night and ask with the same key: the night, not the time at which they woke. In the second night the
//! first replica that runs the job fails, and in the third it "crashes": its future is dropped. Both times the
//! replica that asks next runs it again. At the end each night has one report.

use leasehold::store::MemoryStore;
use leasehold::{LeaseManager, Once};
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

const NIGHTS: usize = 4;
const REPLICAS: usize = 3;

/// The reports: the night and the replica that wrote it.
#[derive(Clone, Default)]
struct Archive {
    reports: Arc<Mutex<Vec<(usize, usize)>>>,
    attempts: Arc<Mutex<[usize; NIGHTS]>>,
}

/// The work. The first attempt of the second night fails, and that of the third never ends.
async fn report(
    night: usize,
    replica: usize,
    archive: &Archive,
    crash: &Notify,
) -> Result<(), &'static str> {
    let first = {
        let mut attempts = archive.attempts.lock().expect("no panic");
        attempts[night] += 1;
        attempts[night] == 1
    };
    sleep(Duration::from_millis(5)).await;
    match (night, first) {
        (1, true) => return Err("the disk is full"),
        (2, true) => {
            crash.notify_one();
            std::future::pending::<()>().await;
        }
        _ => {}
    }
    archive.reports.lock().expect("no panic").push((night, replica));
    Ok(())
}

async fn replica(
    leases: LeaseManager,
    (run, number): (u128, usize),
    archive: Archive,
) -> leasehold::Result<()> {
    // Its clock is late.
    sleep(Duration::from_millis(number as u64 * 3)).await;
    for night in 0..NIGHTS {
        let key = format!("leasehold-example:report-{run}@night-{night}");
        let crash = Notify::new();
        loop {
            let job = leases.once(&key).keep(Duration::from_secs(60)).wait(Duration::from_secs(10));
            let work = job.run(async |_lease| report(night, number, &archive, &crash).await);
            tokio::select! {
                () = crash.notified() => println!("night {night}: replica {number} is gone"),
                outcome = work => match outcome? {
                    Once::Ran(()) => println!("night {night}: replica {number} has the report"),
                    Once::AlreadyDone(_) => {}
                    Once::Failed(error) => {
                        println!("night {night}: replica {number} failed: {error}");
                        continue;
                    }
                    other => println!("night {night}: replica {number}: {other:?}"),
                },
            }
            break;
        }
    }
    Ok(())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let (memory, archive) = (MemoryStore::new(), Archive::default());
    // So that the next run of this example has keys of its own.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis();
    let mut replicas = JoinSet::new();
    let mut managers = Vec::new();
    for number in 0..REPLICAS {
        let leases = match std::env::var("REDIS_URL") {
            Ok(url) => LeaseManager::connect(&url).await?,
            Err(_) => LeaseManager::builder().build(memory.clone())?,
        };
        managers.push(leases.clone());
        replicas.spawn(replica(leases, (run, number), archive.clone()));
    }
    while let Some(ended) = replicas.join_next().await {
        ended??;
    }
    let mut nights: Vec<_> =
        archive.reports.lock().expect("no panic").iter().map(|(night, _)| *night).collect();
    nights.sort_unstable();
    println!("reports of the nights {nights:?}");
    if !nights.iter().copied().eq(0..NIGHTS) {
        return Err(format!("not one report for each night: {nights:?}").into());
    }
    for leases in managers {
        leases.close().await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nightly_job: {error}");
            ExitCode::FAILURE
        }
    }
}
