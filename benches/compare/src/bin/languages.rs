//! leasehold beside locks of other languages, as `benches/languages/run` calls it. Arguments: URL, scenario, seconds.

use leasehold::LeaseManager;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn work(
    leases: LeaseManager,
    name: String,
    until: Instant,
) -> Result<Vec<Duration>, Failure> {
    let mut lock = leases.lock(name);
    let mut times = Vec::new();
    while Instant::now() < until {
        let start = Instant::now();
        lock.lock().await?.unlock().await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, scenario, seconds] = &arguments[..] else {
        return Err("the arguments are a URL, a scenario and a number of seconds".into());
    };
    let seconds: f64 = seconds.parse()?;
    let names: Vec<String> = match scenario.as_str() {
        "alone" => vec!["alone".to_owned()],
        "names" => (0..64).map(|task| format!("name-{task}")).collect(),
        "one" => vec!["one".to_owned(); 32],
        _ => return Err("the scenarios are alone, names and one".into()),
    };
    let leases = LeaseManager::connect(url).await?;
    let mut times = Vec::new();
    // The first round warms up.
    for limit in [1.0, seconds] {
        times.clear();
        let until = Instant::now() + Duration::from_secs_f64(limit);
        let start = |name: &String| tokio::spawn(work(leases.clone(), name.clone(), until));
        let tasks: Vec<_> = names.iter().map(start).collect();
        for task in tasks {
            times.extend(task.await??);
        }
    }
    leases.close().await?;
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    println!("{:.1} {:.0}", median.as_secs_f64() * 1e6, times.len() as f64 / seconds);
    Ok(())
}
