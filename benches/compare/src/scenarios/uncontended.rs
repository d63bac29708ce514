//! 1: the latency of acquire + release when nobody else is there.

use super::{Bench, choose, in_order_of, ratio};
use crate::alloc;
use crate::contender::Role;
use crate::stats::percentile;
use crate::table::{Board, Column};
use std::collections::BTreeMap;

const BLOCK: usize = 50;

/// What a pair may cost at most.
struct Limits {
    /// As a multiple of rslock's time.
    peer: f64,
    /// The server's time, as a multiple of that for SET and compare-and-delete.
    set: f64,
    /// The server's time, as a multiple of that for the bare scripts.
    scripts: f64,
}

pub async fn run(bench: &mut Bench) {
    let Bench { arguments, server, contenders, sink, targets, .. } = bench;
    let mut board =
        Board::new(arguments.label("1"), "acquire + release, one task, nobody else there");
    let chosen = choose(contenders, &mut board, sink, |entry| entry.alone());
    // Short blocks in turn, for the machine's mood changes over seconds.
    let blocks = arguments.pick(30, 12);
    // Allocations of the whole process, over so many cycles that nothing else counts.
    let cycles = arguments.pick(10_000, 2_000);

    for round in 0..=arguments.rounds(5, 2) {
        let mut times: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        let mut commands: BTreeMap<&str, u64> = BTreeMap::new();
        let mut micros: BTreeMap<&str, u64> = BTreeMap::new();
        for block in 0..blocks {
            for (entry, runner) in in_order_of(round * blocks + block, &chosen) {
                if board.failed(entry.id) {
                    continue;
                }
                let name = format!("alone:{}", entry.id);
                if entry.events {
                    server.keyspace_events(true);
                }
                let before = server.calls();
                match runner.sequential(name, BLOCK).await {
                    Ok(block) => times.entry(entry.id).or_default().extend(block),
                    Err(error) => board.fail(sink, entry.id, &error),
                }
                let calls = server.calls().since(&before);
                *commands.entry(entry.id).or_default() += calls.total();
                *micros.entry(entry.id).or_default() += calls.micros_in(entry.sends);
                if entry.events {
                    server.keyspace_events(false);
                }
            }
        }
        // The first round warms up: the server, all clients and the processor.
        if round == 0 {
            continue;
        }
        for sorted in times.values_mut() {
            sorted.sort_unstable();
        }
        let p50 = |id: &str| times.get(id).map_or(f64::NAN, |sorted| percentile(sorted, 0.5));
        for (entry, _) in &chosen {
            let Some(sorted) = times.get(entry.id).filter(|_| !board.failed(entry.id)) else {
                continue;
            };
            let server = |id: &str| {
                let time = micros.get(id).map_or(f64::NAN, |&micros| micros as f64);
                time / times.get(id).map_or(f64::NAN, |times| times.len() as f64)
            };
            let figures = [
                ("p50_us", p50(entry.id) / 1e3),
                ("p99_us", percentile(sorted, 0.99) / 1e3),
                ("x_floor", p50(entry.id) / p50("floor-fred")),
                ("x_floor_plain", p50(entry.id) / p50("floor-fred-plain")),
                ("x_rslock", p50(entry.id) / p50("rslock")),
                ("server_us", server(entry.id)),
                ("server_x_set", server(entry.id) / server("set-fred")),
                ("commands", commands[entry.id] as f64 / sorted.len() as f64),
            ];
            board.add(sink, entry.id, &figures);
        }
    }

    let columns = [
        Column("p50_us", "p50 us", 1, true),
        Column("p99_us", "p99 us", 0, false),
        Column("x_floor", "x floor-fred", 2, true),
        Column("x_floor_plain", "x floor-fred-plain", 2, true),
        Column("x_rslock", "x rslock", 2, true),
        Column("server_us", "server us", 1, false),
        Column("server_x_set", "server x set-fred", 2, false),
        Column("commands", "commands", 2, false),
    ];
    board.print(&columns);
    board.print_against_itself("p50_us");
    // The cores change nothing in the rest.
    if arguments.pinned {
        return;
    }

    let mut memory = Board::new("1a", format!("allocations in {cycles} such pairs, each"));
    for (entry, runner) in &chosen {
        if board.failed(entry.id) || entry.role.is_peer() || entry.role == Role::Again {
            continue;
        }
        let count = alloc::Count::start();
        let result = runner.sequential(format!("alone:{}", entry.id), cycles).await;
        let (calls, bytes) = count.end();
        match result {
            Ok(_) => {
                let each = |value: u64| value as f64 / cycles as f64;
                memory.add(sink, entry.id, &[("calls", each(calls)), ("bytes", each(bytes))]);
            }
            Err(error) => memory.fail(sink, entry.id, &error),
        }
    }

    memory.print(&[Column("calls", "allocations", 1, false), Column("bytes", "bytes", 0, false)]);
    let judged = [
        ("with", "leasehold", "floor-fred", Limits { peer: 1.35, set: 5.0, scripts: 1.25 }),
        (
            "without",
            "leasehold-plain",
            "floor-fred-plain",
            Limits { peer: 1.28, set: 2.8, scripts: 1.15 },
        ),
    ];
    for (what, id, floor, limits) in judged {
        let figure = |figure: &str| board.median(id, figure);
        targets.at_most(
            &format!("1: p50 alone, x rslock, {what} fences"),
            limits.peer,
            figure("x_rslock"),
        );
        let name = format!("1: server's time, x SET and compare-and-delete, {what} fences");
        targets.at_most(&name, limits.set, figure("server_x_set"));
        let name = format!("1: server's time, x the bare scripts', {what} fences");
        let server = ratio(figure("server_us"), board.median(floor, "server_us"));
        targets.at_most(&name, limits.scripts, server);
    }
    let beside_bare =
        |figure| ratio(memory.median("leasehold", figure), memory.median("floor-fred", figure));
    targets.at_most("1a: allocations a pair, x two bare calls", 0.85, beside_bare("calls"));
    // Two futures of the client, of five kilobytes each, are on the stack of a bare program.
    targets.at_most("1a: bytes a pair, x two bare calls", 1.9, beside_bare("bytes"));
    let with = board.median("leasehold", "x_floor");
    targets.at_most("1: p50 alone, x floor, with fences", 1.1, with);
    let without = board.median("leasehold-plain", "x_floor_plain");
    targets.at_most("1: p50 alone, x floor, without fences", 1.1, without);
}
