//! 7: a multi-lock of 8 free names beside a lock of one; leasehold only.

use super::Bench;
use crate::contender::Result;
use crate::stats::percentile;
use crate::table::{Board, Column};
use leasehold::LeaseManager;
use std::time::Instant;

const NAMES: usize = 8;
const BLOCK: usize = 100;

pub async fn run(bench: &mut Bench) {
    let Bench { arguments, server, sink, targets, .. } = bench;
    let mut board = Board::new("7", format!("lock + unlock of {NAMES} names at once, one task"));
    let blocks = arguments.pick(30, 6);
    for round in 0..=arguments.rounds(5, 2) {
        match measure(&server.url(), blocks).await {
            // The first round warms up.
            Ok(_) if round == 0 => {}
            Ok((one, many)) => {
                let figures =
                    [("one_us", one / 1e3), ("many_us", many / 1e3), ("x_one", many / one)];
                board.add(sink, "leasehold", &figures);
            }
            Err(error) => board.fail(sink, "leasehold", &error),
        }
    }
    board.print(&[
        Column("one_us", "one, p50 us", 1, false),
        Column("many_us", "8 names, p50 us", 1, false),
        Column("x_one", "x one", 2, true),
    ]);
    targets.at_most("7: 8 names x one name, p50", 1.6, board.median("leasehold", "x_one"));
}

/// Returns the medians of both, in nanoseconds. Their blocks take turns.
async fn measure(url: &str, blocks: usize) -> Result<(f64, f64)> {
    let text = |error: leasehold::Error| error.to_string();
    let leases = LeaseManager::connect(url).await.map_err(text)?;
    let mut single = leases.lock("multi:one");
    let mut several =
        leases.multi_lock((0..NAMES).map(|name| format!("multi:{name}"))).map_err(text)?;
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for _ in 0..blocks {
        for _ in 0..BLOCK {
            let start = Instant::now();
            single.lock().await.map_err(text)?.unlock().await.map_err(text)?;
            one.push(start.elapsed().as_nanos() as u64);
        }
        for _ in 0..BLOCK {
            let start = Instant::now();
            several.lock().await.map_err(text)?.unlock().await.map_err(text)?;
            many.push(start.elapsed().as_nanos() as u64);
        }
    }
    one.sort_unstable();
    many.sort_unstable();
    leases.close().await.map_err(|error| error.to_string())?;
    Ok((percentile(&one, 0.5), percentile(&many, 0.5)))
}
