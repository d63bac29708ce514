//! 2 and 2b: pairs per second over many names, without contention.

use super::{Bench, best_peer, choose, in_order_of, ratio};
use crate::server::Server;
use crate::stats::percentile;
use crate::table::{Board, Column, Sink};
use std::process::Command;
use std::time::Duration;

const NAMES: usize = 1000;

pub async fn run(bench: &mut Bench, scenario: &'static str, tasks: usize) {
    let Bench { arguments, server, contenders, sink, targets, .. } = bench;
    let title = format!("pairs/s over {NAMES} names, {tasks} tasks at names of their own");
    let mut board = Board::new(arguments.label(scenario), title);
    let chosen = choose(contenders, &mut board, sink, |entry| entry.alone());
    let window = Duration::from_millis(arguments.pick(500, 250));

    for round in 0..=arguments.rounds(5, 2) {
        for (entry, runner) in in_order_of(round, &chosen) {
            if board.failed(entry.id) {
                continue;
            }
            server.keyspace_events(entry.events);
            // The first round warms up; connection by connection, that needs no long time.
            let window = if round == 0 { window / 4 } else { window };
            let before = server.calls();
            let result = runner.spread(tasks, NAMES, window).await;
            let calls = server.calls().since(&before);
            server.keyspace_events(false);
            match result {
                Ok(_) if round == 0 => {}
                Ok(done) => {
                    let pairs = done.pairs as f64;
                    let figures = [
                        ("pairs_per_s", pairs / done.elapsed.as_secs_f64()),
                        ("p50_us", percentile(&done.times, 0.5) / 1e3),
                        ("p99_us", percentile(&done.times, 0.99) / 1e3),
                        ("commands", calls.total() as f64 / pairs),
                        ("sent", calls.of(entry.sends) as f64 / pairs),
                    ];
                    board.add(sink, entry.id, &figures);
                }
                Err(error) => board.fail(sink, entry.id, &error),
            }
        }
    }
    if scenario == "2" {
        server_limit(server, &mut board, sink, arguments.pick(100_000, 40_000));
    }
    board.print(&[
        Column("pairs_per_s", "pairs/s", 0, true),
        Column("p50_us", "p50 us", 0, false),
        Column("p99_us", "p99 us", 0, false),
        Column("commands", "commands", 2, false),
        Column("sent", "sent by clients", 2, false),
    ]);
    board.print_against_itself("pairs_per_s");
    if arguments.pinned {
        return;
    }

    let rate = |id: &str| board.median(id, "pairs_per_s");
    let (with, without) = (rate("leasehold"), rate("leasehold-plain"));
    let (floor, floor_plain) = (rate("floor-fred"), rate("floor-fred-plain"));
    let least = if tasks > 64 { (2.0, 2.3) } else { (1.7, 1.5) };
    let what = |what: &str| format!("{scenario}: {tasks} tasks, pairs/s, {what}");
    targets.at_least(&what("x floor, with fences"), least.0, ratio(with, floor));
    targets.at_least(&what("x floor, without fences"), least.1, ratio(without, floor_plain));
    let best = best_peer(&chosen, &board, "pairs_per_s", |_| true);
    // The same contender differs by a sixth from itself here, and by a factor of two from round to round.
    targets.at_least(&what("x best peer, with fences"), 0.8, ratio(with, best));
    targets.at_least(&what("x best peer, without fences"), 0.8, ratio(without, best));
}

/// How fast the server alone runs the pair: redis-benchmark, 64 commands under way over 4 connections, as
/// multiplexing clients have it. Both scripts in one command; and for two commands, which redis-benchmark cannot
/// pair, the time of that plus the time of a script that does nothing.
fn server_limit(server: &Server, board: &mut Board, sink: &mut Sink, requests: u32) {
    use crate::peers::{batch_script, pair_in_one};
    let sha: String = server.command(&["SCRIPT", "LOAD", &batch_script()]);
    let nothing: String = server.command(&["SCRIPT", "LOAD", "return 1"]);
    let idle = benchmark(server, requests, &["evalsha", &nothing, "0"]);
    for (id, fenced) in [("redis-benchmark", true), ("redis-benchmark-plain", false)] {
        let pair = pair_in_one("limit", fenced);
        let words = ["evalsha", &sha].into_iter().chain(pair.iter().map(String::as_str));
        let words: Vec<&str> = words.collect();
        // redis-benchmark does not look at replies.
        let reply: Vec<redis::Value> = server.command(&words);
        if !matches!(reply[..], [redis::Value::Int(0..), redis::Value::Int(0)]) {
            board.fail(sink, id, &format!("unexpected reply {reply:?}"));
            continue;
        }
        match (&idle, benchmark(server, requests, &words)) {
            (Ok(idle), Ok(one)) => {
                let pairs = 1.0 / (1.0 / one + 1.0 / idle);
                board.add(sink, id, &[("pairs_per_s", pairs)]);
                board.add(sink, &format!("{id}, one command"), &[("pairs_per_s", one)]);
            }
            (Err(error), _) => board.fail(sink, id, error),
            (_, Err(error)) => board.fail(sink, id, &error),
        }
    }
}

/// Requests per second.
fn benchmark(server: &Server, requests: u32, words: &[&str]) -> Result<f64, String> {
    let (port, requests) = (server.port().to_string(), requests.to_string());
    let output = Command::new("redis-benchmark")
        .args(["-p", &port, "-c", "4", "-P", "16", "-n", &requests, "--csv"])
        .args(words)
        .output()
        .map_err(|error| format!("redis-benchmark: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    // The words of the command come first, in quotes, and may contain anything.
    let mut cells = last.rsplit("\",\"");
    let rate = cells.nth(6).and_then(|cell| cell.trim_matches('"').parse().ok());
    rate.ok_or_else(|| format!("redis-benchmark says {text}"))
}
