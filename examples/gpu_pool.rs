//! Renders frames on a pool of GPUs that many hosts share.
//!
//! ```sh
//! cargo run --example gpu_pool                                      # in memory
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example gpu_pool
//! ```
//!
//! At most four frames are rendered at one time. A large frame takes two GPUs at once, so two large frames cannot each have
//! one and wait for the other. The permits of a host that crashed come back one TTL later. Two more GPUs are
//! added while the others work. Run it once at a time on a server: it begins by taking the GPUs from an earlier run.

use leasehold::{LeaseManager, Permit, Semaphore};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

const NAME: &str = "leasehold-example:gpu";
const TTL: Duration = Duration::from_millis(600);

/// The GPUs that work, and the most that worked at one time.
#[derive(Default)]
struct Pool {
    busy: AtomicU32,
    most: AtomicU32,
}

/// Renders a frame on the GPUs of a permit. The work ends early if the permit is lost: its GPUs may then be given to others.
async fn render(pool: &Pool, permit: Permit) -> leasehold::Result<()> {
    let gpus = permit.count();
    let busy = pool.busy.fetch_add(gpus, Ordering::SeqCst) + gpus;
    pool.most.fetch_max(busy, Ordering::SeqCst);
    let rendered = permit.run(sleep(Duration::from_millis(20))).await;
    pool.busy.fetch_sub(gpus, Ordering::SeqCst);
    rendered?;
    permit.unlock().await
}

/// Renders so many frames, of which every third takes two GPUs. Returns the most GPUs that worked at one time.
async fn render_all(gpus: &Semaphore, frames: u32) -> Result<u32, Box<dyn Error>> {
    let pool = Arc::new(Pool::default());
    let mut tasks = JoinSet::new();
    for frame in 0..frames {
        let (gpus, pool) = (gpus.clone(), Arc::clone(&pool));
        tasks.spawn(async move {
            let permit = gpus.acquire_many(if frame % 3 == 0 { 2 } else { 1 }).await?;
            render(&pool, permit).await
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(pool.most.load(Ordering::SeqCst))
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "memory:".into());
    let leases = LeaseManager::builder().ttl(TTL).connect(&url).await?;
    leases.force_unlock(NAME, "it hangs").await?; // what an earlier run has left, with its size
    let gpus = leases.semaphore(NAME, 4);

    let most = render_all(&gpus, 24).await?;
    println!("24 frames were rendered on {most} GPUs");
    if most != 4 {
        return Err(format!("{most} GPUs worked at one time, of 4").into());
    }

    // As after a crash: nothing renews these any more, and nothing releases them.
    gpus.acquire_many(3).await?.into_lease().forget();
    let crashed = Instant::now();
    gpus.acquire_many(4).await?.unlock().await?;
    println!(
        "the permits of a crashed host came back after {:.1} s",
        crashed.elapsed().as_secs_f64()
    );

    gpus.resize(6).await?;
    let most = render_all(&gpus, 24).await?;
    println!("then 24 frames were rendered on {most} GPUs");
    if most != 6 {
        return Err(format!("{most} GPUs worked at one time, of 6").into());
    }
    leases.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_pool: {error}");
            ExitCode::FAILURE
        }
    }
}
