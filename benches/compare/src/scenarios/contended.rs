//! 3: one name, 32 tasks of one process.

use super::{Bench, choose, in_order_of};
use crate::grants::now;
use crate::table::{Board, Column};
use std::time::Duration;

const TASKS: usize = 32;

pub async fn run(bench: &mut Bench) {
    let Bench { arguments, server, contenders, sink, targets, .. } = bench;
    let title = format!("one name, {TASKS} tasks of one process, again and again");
    let mut board = Board::new("3", title);
    let chosen = choose(contenders, &mut board, sink, |entry| entry.role.waits());
    let window = Duration::from_millis(arguments.pick(1500, 800));

    for round in 0..arguments.rounds(3, 1) {
        for (entry, runner) in in_order_of(round, &chosen) {
            // Where tasks starve, they hold up the end for seconds; two rounds tell enough of that.
            let starving = board.median(entry.id, "max_wait_ms").is_some_and(|ms| ms > 1000.0);
            if board.failed(entry.id) || (round > 1 && starving) {
                continue;
            }
            server.keyspace_events(entry.events);
            if round == 0 {
                let soon = now() + 200_000_000;
                let _ = runner.contend(format!("warm:{}", entry.id), TASKS, now(), soon).await;
            }
            let name = format!("one:{}:{round}", entry.id);
            let before = server.calls();
            let start = now() + 20_000_000;
            let end = start + window.as_nanos() as u64;
            let result = runner.contend(name, TASKS, start, end).await;
            let calls = server.calls().since(&before);
            server.keyspace_events(false);
            match result {
                Ok(tenure) if tenure.tasks.iter().all(Vec::is_empty) => {
                    let error = tenure.first_error.unwrap_or_else(|| "no grant".to_owned());
                    board.fail(sink, entry.id, &error);
                }
                Ok(tenure) => {
                    let found = tenure.contention(start, end);
                    // The commands of all grants, also of those after the end, by the share of changes.
                    let all: usize = tenure.tasks.iter().map(Vec::len).sum();
                    let changes = found.changes as f64 * all as f64 / found.grants as f64;
                    let figures = [
                        ("changes_per_s", found.changes_per_s),
                        ("grants", found.grants as f64),
                        ("mean_wait_ms", found.mean_wait_ms),
                        ("p99_wait_ms", found.p99_wait_ms),
                        ("max_wait_ms", found.max_wait_ms),
                        ("jain", found.jain),
                        ("commands", calls.total() as f64 / changes),
                        ("sent", calls.of(entry.sends) as f64 / changes),
                        ("overlaps", found.overlaps as f64),
                        ("errors", tenure.errors as f64),
                    ];
                    board.add(sink, entry.id, &figures);
                }
                Err(error) => board.fail(sink, entry.id, &error),
            }
        }
    }
    board.print(&[
        Column("changes_per_s", "changes/s", 0, true),
        Column("grants", "grants", 0, false),
        Column("mean_wait_ms", "mean wait ms", 2, false),
        Column("p99_wait_ms", "p99 ms", 2, false),
        Column("max_wait_ms", "worst ms", 1, false),
        Column("jain", "Jain", 3, false),
        Column("commands", "commands/change", 3, false),
        Column("sent", "sent/change", 3, false),
        Column("overlaps", "overlaps", 0, false),
        Column("errors", "errors", 0, false),
    ]);
    let median = |metric| board.median("leasehold", metric);
    targets.at_least("3: changes of holder/s, 32 tasks", 100_000.0, median("changes_per_s"));
    targets.at_most("3: commands per change, inside scripts too", 0.09, median("commands"));
    targets.at_least("3: Jain's index", 0.99, median("jain"));
    targets.at_most("3: p99 wait, ms", 0.5, median("p99_wait_ms"));
    targets.at_most("3: overlaps", 0.0, board.largest("leasehold", "overlaps"));
    targets.at_most("3: errors", 0.0, board.largest("leasehold", "errors"));
}
