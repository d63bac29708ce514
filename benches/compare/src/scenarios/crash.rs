//! 6b: how long a waiter waits for a holder that was killed.

use super::Bench;
use crate::contender::Result;
use crate::grants::now;
use crate::process::{Parent, Worker};
use crate::server::Server;
use crate::table::{Board, Column};
use leasehold::{LeaseManager, Result as Leased};
use serde_json::{Value, json};
use std::time::Duration;

const T: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn run(bench: &mut Bench) {
    let Bench { arguments, server, sink, targets, .. } = bench;
    let title = format!("from the kill of a holder's process to the grant in another, T = {T:?}");
    let mut board = Board::new("6b", title);
    for round in 0..arguments.rounds(6, 2) {
        match measure(server, round as u32).await {
            Ok(ms) => board.add(sink, "leasehold", &[("take_over_ms", ms)]),
            Err(error) => board.fail(sink, "leasehold", &error),
        }
    }
    board.print(&[Column("take_over_ms", "ms", 1, true)]);
    let limit = T.as_secs_f64() * 1e3 + 50.0;
    let longest = board.largest("leasehold", "take_over_ms");
    targets.at_most("6b: take-over after a crash, longest, ms", limit, longest);
}

async fn measure(server: &Server, round: u32) -> Result<f64> {
    let name = format!("crash:{round}");
    let job = json!({ "job": "crash", "url": server.url(), "name": name });
    let mut worker = Worker::start(&job)?;
    worker.next(PATIENCE).await?;
    let manager = connect(&server.url()).await.map_err(|error| error.to_string())?;
    let mut lock = manager.lock(&name);
    let waiter = tokio::spawn(async move {
        let lease = lock.lock().await?;
        let granted = now();
        lease.unlock().await.map(|()| granted)
    });
    // At another phase of the renewals each time.
    tokio::time::sleep(T / 2 + T / 10 * round).await;
    let killed = now();
    worker.kill()?;
    let granted = tokio::time::timeout(PATIENCE, waiter).await;
    let granted = granted.map_err(|_| "never granted")?.map_err(|error| error.to_string())?;
    let granted = granted.map_err(|error: leasehold::Error| error.to_string())?;
    manager.close().await.map_err(|error| error.to_string())?;
    Ok((granted as f64 - killed as f64) / 1e6)
}

async fn connect(url: &str) -> Leased<LeaseManager> {
    LeaseManager::builder().ttl(T).connect(url).await
}

/// The process that is killed.
pub async fn work(job: Value, mut parent: Parent) -> Result<()> {
    let text = |key: &str| job[key].as_str().unwrap_or_default();
    let manager = connect(text("url")).await.map_err(|error| error.to_string())?;
    let lease = manager.lock(text("name")).lock().await.map_err(|error| error.to_string())?;
    parent.send(&json!({ "held": true }));
    parent.next().await;
    drop(lease);
    Ok(())
}
