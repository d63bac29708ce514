//! 4: one name, four processes of eight tasks each.

use super::{Bench, Post, best_peer, by_processes, choose, post};
use crate::contender::{Entry, Result};
use crate::grants::{Tenure, now};
use crate::process::{Parent, Worker};
use crate::server::Server;
use crate::table::{Board, Column};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

const PROCESSES: usize = 4;
const TASKS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn run(bench: &mut Bench) {
    let Bench { arguments, server, contenders, sink, targets, .. } = bench;
    let title = format!("one name, {PROCESSES} processes of {TASKS} tasks each, again and again");
    let mut board = Board::new("4", title);
    let chosen = choose(contenders, &mut board, sink, |entry| entry.role.waits());
    let window = Duration::from_millis(arguments.pick(2000, 1000));

    let rounds = (arguments.rounds(3, 1), window);
    by_processes((server, sink, &mut board), &chosen, rounds, |server, entry, round, window| {
        Box::pin(measure(server, entry, round, window))
    })
    .await;
    board.print(&[
        Column("changes_per_s", "changes/s", 0, true),
        Column("across_per_s", "between processes/s", 0, false),
        Column("mean_wait_ms", "mean wait ms", 2, false),
        Column("p99_wait_ms", "p99 ms", 1, false),
        Column("max_wait_ms", "worst ms", 0, true),
        Column("jain", "Jain", 3, true),
        Column("commands", "commands/change", 2, false),
        Column("overlaps", "overlaps", 0, false),
        Column("errors", "errors", 0, false),
    ]);
    let ours = board.median("leasehold", "changes_per_s");
    let fair = |id: &str| board.median(id, "jain").is_some_and(|jain| jain >= 0.95);
    let best = best_peer(&chosen, &board, "changes_per_s", fair);
    targets.at_least("4: changes/s, x best fair peer", 40.0, super::ratio(ours, best));
    targets.at_least("4: Jain's index", 0.95, board.median("leasehold", "jain"));
    targets.at_most("4: worst wait, ms", 100.0, board.largest("leasehold", "max_wait_ms"));
    targets.at_most("4: overlaps", 0.0, board.largest("leasehold", "overlaps"));
    targets.at_most("4: errors", 0.0, board.largest("leasehold", "errors"));
}

async fn measure(
    server: &Server,
    entry: &Entry,
    round: usize,
    window: Duration,
) -> Result<Vec<(&'static str, f64)>> {
    let files: Vec<_> =
        (0..PROCESSES).map(|number| server.dir().join(format!("grants-{number}"))).collect();
    let name = format!("four:{}:{round}", entry.id);
    let job = |file: &PathBuf| post("contend", server, entry, name.clone(), file);
    let jobs: Vec<Value> = files.iter().map(job).collect();
    let mut workers = Worker::start_all(&jobs, PATIENCE).await?;
    let before = server.calls();
    let start = now() + 50_000_000;
    let end = start + window.as_nanos() as u64;
    for worker in &mut workers {
        worker.send(&json!({ "start": start, "end": end })).await?;
    }
    let mut all = Tenure::default();
    for (worker, file) in workers.iter_mut().zip(&files) {
        let said = worker.next(window + PATIENCE).await?;
        let mut part = Tenure::load(file).map_err(|error| error.to_string())?;
        part.errors = said["errors"].as_u64().unwrap_or(0);
        part.first_error = said["first_error"].as_str().map(str::to_owned);
        all.merge(part);
    }
    let calls = server.calls().since(&before);
    let order = all.in_order();
    if order.is_empty() {
        return Err(all.first_error.unwrap_or_else(|| "no grant".to_owned()));
    }
    let found = all.contention(start, end);
    let inside = order.iter().filter(|(_, one)| (start..end).contains(&one.granted));
    let processes: Vec<usize> = inside.map(|(task, _)| task / TASKS).collect();
    let across = processes.windows(2).filter(|two| two[0] != two[1]).count();
    let share = order.len() as f64 / found.grants as f64;
    Ok(vec![
        ("changes_per_s", found.changes_per_s),
        ("across_per_s", across as f64 / window.as_secs_f64()),
        ("grants", found.grants as f64),
        ("mean_wait_ms", found.mean_wait_ms),
        ("p99_wait_ms", found.p99_wait_ms),
        ("max_wait_ms", found.max_wait_ms),
        ("jain", found.jain),
        ("commands", calls.total() as f64 / (found.changes as f64 * share)),
        ("overlaps", found.overlaps as f64),
        ("errors", all.errors as f64),
    ])
}

/// One of the processes.
pub async fn work(job: Value, mut parent: Parent) -> Result<()> {
    let post = Post::take(&job, &mut parent).await?;
    let tenure = post.runner.contend(post.name, TASKS, post.start, post.end).await?;
    tenure.save(&post.file).map_err(|error| error.to_string())?;
    parent.send(&json!({ "errors": tenure.errors, "first_error": tenure.first_error }));
    Ok(())
}
