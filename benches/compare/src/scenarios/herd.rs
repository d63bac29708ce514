//! 3b: 32 tasks want one name once, at the same moment.

use super::{Bench, choose, in_order_of};
use crate::table::{Board, Column};
use std::time::Duration;

const TASKS: usize = 32;
const HOLD: Duration = Duration::from_millis(5);

pub async fn run(bench: &mut Bench) {
    let Bench { arguments, server, contenders, sink, targets, .. } = bench;
    let title =
        format!("{TASKS} tasks want one name once, at the same moment, and hold it {HOLD:?}");
    let mut board = Board::new("3b", title);
    let chosen = choose(contenders, &mut board, sink, |entry| entry.role.waits());

    for round in 0..arguments.rounds(3, 1) {
        for (entry, runner) in in_order_of(round, &chosen) {
            // Some take seconds for each; two rounds tell enough of them.
            if board.failed(entry.id) || (round > 1 && slow(&board, entry.id)) {
                continue;
            }
            server.keyspace_events(entry.events);
            let name = format!("herd:{}:{round}", entry.id);
            let before = server.calls();
            let result = runner.herd(name, TASKS, HOLD).await;
            let calls = server.calls().since(&before);
            server.keyspace_events(false);
            let tenure = match result {
                Ok(tenure) if tenure.errors == 0 => tenure,
                Ok(tenure) => {
                    let error = tenure.first_error.unwrap_or_default();
                    board.fail(sink, entry.id, &format!("{} tasks: {error}", tenure.errors));
                    continue;
                }
                Err(error) => {
                    board.fail(sink, entry.id, &error);
                    continue;
                }
            };
            let order = tenure.in_order();
            let hand_offs = (order.len() - 1) as f64;
            let span = order[order.len() - 1].1.ended - order[0].1.granted;
            let held: u64 = order.iter().map(|(_, one)| one.ended - one.granted).sum();
            let longest = order.iter().map(|(_, one)| one.granted - one.asked).max();
            let figures = [
                ("lost_ms", (span as f64 - held as f64) / 1e6 / hand_offs),
                ("span_ms", span as f64 / 1e6),
                ("held_ms", held as f64 / 1e6 / order.len() as f64),
                ("max_wait_ms", longest.unwrap_or(0) as f64 / 1e6),
                ("commands", calls.total() as f64 / order.len() as f64),
                ("sent", calls.of(entry.sends) as f64 / order.len() as f64),
            ];
            board.add(sink, entry.id, &figures);
        }
    }
    board.print(&[
        Column("lost_ms", "lost ms/hand-off", 3, true),
        Column("span_ms", "span ms", 0, false),
        Column("held_ms", "each held ms", 2, false),
        Column("max_wait_ms", "last wait ms", 0, false),
        Column("commands", "commands/grant", 1, false),
        Column("sent", "sent/grant", 2, false),
    ]);
    let lost = board.median("leasehold", "lost_ms");
    targets.at_most("3b: time lost per hand-off, ms", 0.1, lost);
}

fn slow(board: &Board, id: &str) -> bool {
    board.median(id, "span_ms").is_some_and(|span| span > 1000.0)
}
