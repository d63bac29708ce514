//! Processes in the line of a fair lock are killed or stopped.
#![cfg(target_os = "linux")]

use kit::Server;
use kit::fault::{boottime, connect, exists, millis, undisturbed};
use kit::holder::Holder;
use rustix::process::Signal;
use std::time::Duration;

const T: Duration = millis(3_000);
/// The time for which a place is kept after its last refresh: three poll intervals of a second.
const W: Duration = millis(3_000);
const ROOM: Duration = millis(700);

/// Two processes wait in line behind this one, and this one waits behind them. Returns them in their order.
async fn in_line(server: &Server) -> [Holder; 2] {
    let mut holders = [Holder::start(), Holder::start()];
    let leases = connect(&server.url(), T).await;
    for (place, holder) in holders.iter_mut().enumerate() {
        holder.send(&format!("connect {} {}", server.url(), T.as_millis()));
        holder.send("fair job");
        let placed = async || leases.waiters("job").await.expect("an answer").len() > place;
        while !placed().await {
            tokio::time::sleep(millis(5)).await;
        }
    }
    holders
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_process_delays_the_line_by_its_place_at_most() {
    for dead in [0, 1] {
        undisturbed(move || async move {
            let server = Server::start();
            let leases = connect(&server.url(), T).await;
            let lease = leases.fair_lock("job").lock().await.expect("a lease");
            let mut holders = in_line(&server).await;
            let last = connect(&server.url(), T).await;
            let waits = tokio::spawn(async move {
                let lease = last.fair_lock("job").lock().await.expect("a lease");
                (lease, boottime())
            });
            holders[dead].signal(Signal::KILL);
            assert!(!holders[dead].ended().await.success());
            let released = boottime();
            lease.unlock().await.expect("a release");
            let alive = &mut holders[1 - dead];
            let granted = alive.event(&["granted", "job"]).await.at;
            let limit = if dead == 0 { W + ROOM } else { ROOM };
            assert!(granted - released < limit, "{:?}", granted - released);
            alive.send("unlock job");
            let freed = alive.event(&["unlocked", "job"]).await.at;
            let (lease, entered) = waits.await.expect("no panic");
            assert!(entered < freed.max(released + W) + ROOM, "{:?}", entered - freed);
            assert!(entered > granted, "in the order of arrival");
            lease.unlock().await.expect("a release");
            assert!(!exists(&server, "leasehold_line:{job}"), "nothing stays");
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_process_loses_its_turn_and_keeps_its_age() {
    undisturbed(|| async {
        let server = Server::start();
        let leases = connect(&server.url(), T).await;
        let lease = leases.fair_lock("job").lock().await.expect("a lease");
        let mut holders = in_line(&server).await;
        holders[0].stop();
        let released = boottime();
        lease.unlock().await.expect("a release");
        let granted = holders[1].event(&["granted", "job"]).await.at;
        assert!(granted - released < W + ROOM, "{:?}", granted - released);
        // A later one comes before the first is back.
        let later = connect(&server.url(), T).await;
        let waits = tokio::spawn(async move {
            let lease = later.fair_lock("job").lock().await.expect("a lease");
            (lease, boottime())
        });
        while leases.waiters("job").await.expect("an answer").is_empty() {
            tokio::time::sleep(millis(5)).await;
        }
        holders[0].signal(Signal::CONT);
        while leases.waiters("job").await.expect("an answer").len() < 2 {
            tokio::time::sleep(millis(5)).await;
        }
        holders[1].send("unlock job");
        let first = holders[0].event(&["granted", "job"]).await.at;
        holders[0].send("unlock job");
        let (lease, entered) = waits.await.expect("no panic");
        assert!(first < entered, "it has waited longer");
        lease.unlock().await.expect("a release");
    })
    .await;
}
