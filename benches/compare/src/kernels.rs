//! The measurements themselves, the same code for every contender.

use crate::contender::{Contender, Lock, Result};
use crate::grants::{Grant, Tenure, now};
use crate::peers::Pulse;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a measurement may go on after its end before it counts as hung.
const HUNG: Duration = Duration::from_secs(20);

/// Acquire + release, one after the other; nanoseconds of each pair.
pub async fn sequential<C: Contender>(this: &C, name: String, count: usize) -> Result<Vec<u64>> {
    let mut lock = this.lock(&name);
    let mut times = Vec::with_capacity(count);
    let pairs = async {
        for _ in 0..count {
            let start = Instant::now();
            lock.acquire().await?;
            lock.release().await?;
            times.push(start.elapsed().as_nanos() as u64);
        }
        Ok::<(), String>(())
    };
    timeout(HUNG, pairs).await.map_err(|_| hung())??;
    Ok(times)
}

/// What many tasks at names of their own got done.
pub struct Spread {
    pub pairs: u64,
    pub elapsed: Duration,
    /// Nanoseconds of each pair, sorted.
    pub times: Vec<u64>,
}

/// Each task goes round its own share of the names: no contention.
pub async fn spread<C: Contender>(
    this: &C,
    tasks: usize,
    names: usize,
    window: Duration,
) -> Result<Spread> {
    let barrier = Arc::new(Barrier::new(tasks));
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let mut locks: Vec<_> = (task..names)
            .step_by(tasks)
            .map(|number| this.lock(&format!("spread:{number}")))
            .collect();
        let barrier = Arc::clone(&barrier);
        set.spawn(async move {
            let mut times = Vec::with_capacity(4096);
            barrier.wait().await;
            let first = Instant::now();
            'all: loop {
                for lock in &mut locks {
                    let start = Instant::now();
                    lock.acquire().await?;
                    lock.release().await?;
                    let end = Instant::now();
                    if end - first > window {
                        break 'all;
                    }
                    times.push((end - start).as_nanos() as u64);
                }
            }
            Ok::<_, String>(times)
        });
    }
    let mut times = Vec::new();
    let all = async {
        while let Some(task) = set.join_next().await {
            times.extend(task.map_err(|error| error.to_string())??);
        }
        Ok::<(), String>(())
    };
    timeout(window + HUNG, all).await.map_err(|_| hung())??;
    times.sort_unstable();
    Ok(Spread { pairs: times.len() as u64, elapsed: window, times })
}

/// All tasks want one name, again and again, from `start` to `end`.
pub async fn contend<C: Contender>(
    this: &C,
    name: String,
    tasks: usize,
    start: u64,
    end: u64,
) -> Result<Tenure> {
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let mut lock = this.lock(&name);
        set.spawn(async move {
            let mut tenure = Tenure::default();
            let mut grants = Vec::with_capacity(1 << 16);
            tokio::time::sleep(Duration::from_nanos(start.saturating_sub(now()))).await;
            while now() < end {
                match hold(&mut lock, async || {}).await {
                    Ok(grant) => grants.push(grant),
                    Err(error) => {
                        tenure.errors += 1;
                        tenure.first_error.get_or_insert(error);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
            tenure.tasks.push(grants);
            (task, tenure)
        });
    }
    gather(set, Duration::from_nanos(end.saturating_sub(now())) + HUNG).await
}

/// All tasks want one name once, at the same moment, and hold it for a while.
pub async fn herd<C: Contender>(
    this: &C,
    name: String,
    tasks: usize,
    keep: Duration,
) -> Result<Tenure> {
    let barrier = Arc::new(Barrier::new(tasks));
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let mut lock = this.lock(&name);
        let barrier = Arc::clone(&barrier);
        set.spawn(async move {
            let mut tenure = Tenure::default();
            barrier.wait().await;
            // tokio's timer is coarse; what is measured is how long each hold really was.
            match hold(&mut lock, async || tokio::time::sleep(keep).await).await {
                Ok(grant) => tenure.tasks.push(vec![grant]),
                Err(error) => {
                    tenure.errors += 1;
                    tenure.first_error = Some(error);
                }
            }
            (task, tenure)
        });
    }
    gather(set, HUNG).await
}

/// Holds a name in turn with another process, which waits meanwhile; one round trip in each hold.
pub async fn turns<C: Contender>(
    this: &C,
    name: String,
    start: u64,
    end: u64,
    pulse: Arc<Pulse>,
) -> Result<Tenure> {
    let mut lock = this.lock(&name);
    let mut set = JoinSet::new();
    set.spawn(async move {
        let mut tenure = Tenure::default();
        let mut grants = Vec::new();
        tokio::time::sleep(Duration::from_nanos(start.saturating_sub(now()))).await;
        while now() < end {
            let pause = Duration::from_millis(2);
            // The round trip, too, starts from rest.
            let work = async || {
                tokio::time::sleep(pause).await;
                pulse.beat().await;
                tokio::time::sleep(pause).await;
            };
            match hold(&mut lock, work).await {
                Ok(grant) => grants.push(grant),
                Err(error) => {
                    tenure.errors += 1;
                    tenure.first_error.get_or_insert(error);
                }
            }
            // Whoever barges would take every turn.
            tokio::time::sleep(pause / 2).await;
        }
        tenure.tasks.push(grants);
        (0, tenure)
    });
    gather(set, Duration::from_nanos(end.saturating_sub(now())) + HUNG).await
}

async fn hold(lock: &mut impl Lock, work: impl AsyncFnOnce()) -> Result<Grant> {
    let asked = now();
    lock.acquire().await?;
    let granted = now();
    work().await;
    let ended = now();
    lock.release().await?;
    Ok(Grant { asked, granted, ended })
}

async fn gather(mut set: JoinSet<(usize, Tenure)>, limit: Duration) -> Result<Tenure> {
    let mut parts = Vec::new();
    let all = async {
        while let Some(task) = set.join_next().await {
            parts.push(task.map_err(|error| error.to_string())?);
        }
        Ok::<(), String>(())
    };
    timeout(limit, all).await.map_err(|_| hung())??;
    parts.sort_unstable_by_key(|(task, _)| *task);
    let mut tenure = Tenure::default();
    for (_, part) in parts {
        tenure.merge(part);
    }
    Ok(tenure)
}

fn hung() -> String {
    format!("hung: not done {HUNG:?} after the end")
}
