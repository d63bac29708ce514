//! 6: from a release to the grant in another process that waits for it.

use super::{Bench, Connected, Post, by_processes, choose, post, ratio};
use crate::arguments::Arguments;
use crate::contender::{Entry, Result};
use crate::grants::{Tenure, now};
use crate::peers::Pulse;
use crate::process::{Parent, Worker};
use crate::server::Server;
use crate::stats::percentile;
use crate::table::{Board, Column, Sink};
use leasehold::LeaseManager;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

pub async fn run(bench: &mut Bench) {
    let Bench { arguments, server, contenders, sink, targets, .. } = bench;
    let board = Board::new(
        arguments.label("6"),
        "two processes in turn: from the release to the grant in the other",
    );
    let scene = Scene { arguments, server, contenders, sink };
    let board = scene.measure(board, Entry::takes_turns).await;
    // The rest waits most of the time, and the tokens are for information.
    if arguments.pinned {
        return;
    }
    // It differs by a half from itself from round to round. Beside the same scripts through the same client: two trips and a message take that long in a program that has slept.
    let floor = board.median("floor-fred-waits", "p50_us");
    let grant = ratio(board.median("leasehold", "p50_us"), floor);
    targets.at_most("6: release to grant elsewhere, p50, x floor", 2.0, grant);

    let mut deletions =
        Board::new("6a", "from DEL of the key to the holder's token, T = 3 s (for information)");
    match deleted(server, arguments.pick(40, 20)).await {
        Ok(times) => {
            let ms = |part| percentile(&times, part) / 1e6;
            deletions.add(sink, "leasehold", &[("p50_ms", ms(0.5)), ("max_ms", ms(1.0))]);
        }
        Err(error) => deletions.fail(sink, "leasehold", &error),
    }
    deletions
        .print(&[Column("p50_ms", "p50 ms", 0, false), Column("max_ms", "longest ms", 0, false)]);
}

/// The same on a cluster of one node.
pub async fn run_on_a_cluster(bench: &mut Bench) {
    let Bench { arguments, cluster: Some(cluster), contenders, sink, targets, .. } = bench else {
        return;
    };
    let board = Board::new(
        "6c",
        "two processes in turn on a cluster: from the release to the grant in the other",
    );
    let scene = Scene { arguments, server: cluster, contenders, sink };
    let board = scene.measure(board, Entry::takes_turns_on_a_cluster).await;
    let floor = board.median("floor-fred-waits", "p50_us");
    let grant = ratio(board.median("leasehold", "p50_us"), floor);
    targets.at_most("6c: release to grant elsewhere on a cluster, p50, x floor", 1.6, grant);
}

/// Two processes that take turns on one server.
struct Scene<'a> {
    arguments: &'a Arguments,
    server: &'a Server,
    contenders: &'a [Connected],
    sink: &'a mut Sink,
}

impl Scene<'_> {
    /// Measures those that are wanted, and prints the table.
    async fn measure(self, mut board: Board, wanted: fn(&Entry) -> bool) -> Board {
        let Self { arguments, server, contenders, sink } = self;
        let chosen = choose(contenders, &mut board, sink, wanted);
        let window = Duration::from_millis(arguments.pick(1000, 600));
        let rounds = (arguments.rounds(5, 2), window);
        by_processes(
            (server, sink, &mut board),
            &chosen,
            rounds,
            |server, entry, round, window| Box::pin(measure(server, entry, round, window)),
        )
        .await;
        board.print(&[
            Column("p50_us", "p50 us", 0, true),
            Column("p99_us", "p99 us", 0, false),
            Column("trip_us", "bare acquire us", 0, false),
            Column("trips", "x bare acquire", 2, true),
            Column("empty_us", "empty call us", 0, false),
            Column("empties", "x empty call", 2, true),
            Column("turns", "turns", 0, false),
        ]);
        board.print_against_itself("p50_us");
        board
    }
}

async fn measure(
    server: &Server,
    entry: &Entry,
    round: usize,
    window: Duration,
) -> Result<Vec<(&'static str, f64)>> {
    let files = [0, 1].map(|number| server.dir().join(format!("turns-{number}")));
    let name = format!("turns:{}:{round}", entry.id);
    let jobs = files.each_ref().map(|file| post("turns", server, entry, name.clone(), file));
    let mut workers = Worker::start_all(&jobs, PATIENCE).await?;
    let start = now() + 20_000_000;
    let end = start + window.as_nanos() as u64;
    for worker in &mut workers {
        worker.send(&json!({ "start": start, "end": end })).await?;
    }
    let (mut all, mut trips, mut empty) = (Tenure::default(), Vec::new(), Vec::new());
    for (worker, file) in workers.iter_mut().zip(&files) {
        let said = worker.next(window + PATIENCE).await?;
        all.merge(Tenure::load(file).map_err(|error| error.to_string())?);
        let times = |kind: &str| said[kind].as_array().cloned().unwrap_or_default();
        trips.extend(times("trips").iter().filter_map(Value::as_u64));
        empty.extend(times("empty").iter().filter_map(Value::as_u64));
    }
    trips.sort_unstable();
    empty.sort_unstable();
    let order = all.in_order();
    // Only where the next one had been waiting, and is the other.
    let turns = order.windows(2).filter(|two| two[0].0 != two[1].0);
    let turns = turns.filter(|two| two[1].1.asked < two[0].1.ended);
    let mut times: Vec<u64> =
        turns.map(|two| two[1].1.granted.saturating_sub(two[0].1.ended)).collect();
    times.sort_unstable();
    if times.is_empty() || trips.is_empty() || empty.is_empty() {
        return Err("no turn was taken".to_owned());
    }
    let (p50, trip) = (percentile(&times, 0.5), percentile(&trips, 0.5));
    let empty = percentile(&empty, 0.5);
    Ok(vec![
        ("p50_us", p50 / 1e3),
        ("p99_us", percentile(&times, 0.99) / 1e3),
        ("trip_us", trip / 1e3),
        ("trips", p50 / trip),
        ("empty_us", empty / 1e3),
        ("empties", p50 / empty),
        ("turns", times.len() as f64),
    ])
}

/// One of the two processes.
pub async fn work(job: Value, mut parent: Parent) -> Result<()> {
    let url = job["url"].as_str().unwrap_or_default();
    let pulse = Arc::new(Pulse::connect(url).await?);
    let Post { runner, name, file, start, end } = Post::take(&job, &mut parent).await?;
    let tenure = runner.turns(name, start, end, Arc::clone(&pulse)).await?;
    tenure.save(&file).map_err(|error| error.to_string())?;
    let times = pulse.times();
    parent.send(&json!({ "trips": times.acquire, "empty": times.empty }));
    Ok(())
}

/// Nanoseconds from the deletion of each key to its holder's token.
async fn deleted(server: &Server, leases: usize) -> Result<Vec<u64>> {
    let text = |error: leasehold::Error| error.to_string();
    let ttl = Duration::from_secs(3);
    let manager = LeaseManager::builder().ttl(ttl).connect(&server.url()).await.map_err(text)?;
    let mut watchers = Vec::new();
    for number in 0..leases {
        let lease = manager.lock(format!("deleted:{number}")).lock().await.map_err(text)?;
        let token = lease.cancellation_token();
        let watcher = tokio::spawn(async move {
            token.cancelled().await;
            (now(), lease)
        });
        watchers.push(watcher);
    }
    let mut times = Vec::new();
    let mut deletions = Vec::new();
    for number in 0..leases {
        // At all phases of the renewals.
        tokio::time::sleep(ttl / 3 / leases as u32).await;
        deletions.push(now());
        let _: i64 = server.command(&["DEL", &format!("deleted:{number}")]);
    }
    for (watcher, deletion) in watchers.into_iter().zip(deletions) {
        let fired = tokio::time::timeout(ttl * 2, watcher).await;
        let (fired, _) = fired.map_err(|_| "a token never fired")?.map_err(|e| e.to_string())?;
        times.push(fired.saturating_sub(deletion));
    }
    times.sort_unstable();
    manager.close().await.map_err(|error| error.to_string())?;
    Ok(times)
}
