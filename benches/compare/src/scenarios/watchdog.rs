//! 5: what it costs to hold many leases, and how late renewals are; leasehold only.

use super::Bench;
use crate::aligned::print_aligned;
use crate::contender::Result;
use crate::grants::now;
use crate::process::{Parent, Worker};
use crate::server::Server;
use crate::stats::percentile;
use crate::table::{Board, Column};
use leasehold::{Lease, LeaseManager, Lock};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
/// How many tasks take the leases.
const TAKERS: usize = 64;
/// How many leases are watched for late renewals.
const WATCHED: usize = 1000;

pub async fn run(bench: &mut Bench) {
    let Bench { arguments, server, sink, targets, .. } = bench;
    let (sizes, ttl) = arguments.pick(
        (&[1_000, 10_000, 100_000][..], Duration::from_secs(30)),
        (&[1_000, 10_000][..], Duration::from_secs(3)),
    );
    let title = format!("leases held for one T of {ttl:?}, which is three periods");
    let mut board = Board::new("5", title);
    for &leases in sizes {
        let id = format!("leasehold, {leases} leases");
        match measure(server, leases, ttl).await {
            Ok(figures) => board.add(sink, &id, &figures),
            Err(error) => board.fail(sink, &id, &error),
        }
        let _: () = server.command(&["FLUSHALL"]);
    }
    board.print(&[
        Column("commands", "calls/period", 0, false),
        Column("client_ms", "client ms/1000", 2, false),
        Column("server_ms", "server ms/1000", 2, false),
        Column("bytes", "bytes/lease", 0, false),
        Column("late_p99_ms", "late p99 ms", 1, false),
        Column("late_max_ms", "latest ms", 1, false),
        Column("seen", "renewals seen", 0, false),
        Column("lost", "lost", 0, false),
    ]);
    print_aligned(&[vec![
        "ms/1000: CPU per 1000 renewals; late: against T/3 after the confirmation before, \
         negative is early"
            .to_owned(),
    ]]);
    let most = "leasehold, 100000 leases";
    let median = |metric| board.median(most, metric);
    targets.at_most("5: 100 000 leases, renewal commands per T/3", 1100.0, median("commands"));
    targets.at_most("5: client CPU per 1000 renewals, ms", 1.6, median("client_ms"));
    targets.at_most("5: resident bytes per lease", 700.0, median("bytes"));
    let limit = ttl.as_secs_f64() * 1e3 / 60.0;
    targets.at_most("5: p99 lateness, ms", limit, median("late_p99_ms"));
    targets.at_most("5: leases lost", 0.0, median("lost"));
}

async fn measure(
    server: &Server,
    leases: usize,
    ttl: Duration,
) -> Result<Vec<(&'static str, f64)>> {
    // A process of its own, so that its CPU time and memory are those of the leases.
    let mut worker = Worker::start(&json!({
        "job": "watchdog",
        "url": server.url(),
        "leases": leases,
        "ttl_ms": ttl.as_millis() as u64,
    }))?;
    let held = worker.next(PATIENCE).await?;
    let (calls, cpu) = (server.calls(), server.cpu());
    worker.send(&json!("go")).await?;
    let end = worker.next(ttl + PATIENCE).await?;
    let (calls, cpu) = (server.calls().since(&calls), server.cpu() - cpu);
    let number = |said: &Value, key: &str| said[key].as_f64().unwrap_or(f64::NAN);
    let thousands = leases as f64 * 3.0 / 1000.0;
    Ok(vec![
        ("commands", calls.of(&["evalsha", "eval"]) as f64 / 3.0),
        ("client_ms", number(&end, "cpu_ms") / thousands),
        ("server_ms", cpu.as_secs_f64() * 1e3 / thousands),
        ("bytes", number(&held, "bytes")),
        ("late_p99_ms", number(&end, "late_p99_ms")),
        ("late_max_ms", number(&end, "late_max_ms")),
        ("seen", number(&end, "seen")),
        ("lost", number(&end, "lost")),
    ])
}

/// The process that holds the leases.
pub async fn work(job: Value, mut parent: Parent) -> Result<()> {
    let leases = job["leases"].as_u64().unwrap_or_default() as usize;
    let ttl = Duration::from_millis(job["ttl_ms"].as_u64().unwrap_or_default());
    let url = job["url"].as_str().unwrap_or_default();
    let text = |error: leasehold::Error| error.to_string();
    let manager = LeaseManager::builder().ttl(ttl).connect(url).await.map_err(text)?;
    // What grows once and not with each lease should be there before.
    drop(take(&manager, "warm", TAKERS * 4).await.map_err(text)?);
    tokio::time::sleep(Duration::from_millis(200)).await;

    let before = resident_bytes();
    let held = take(&manager, "lease", leases).await.map_err(text)?;
    let bytes = resident_bytes().saturating_sub(before) / leases;
    parent.send(&json!({ "bytes": bytes }));
    parent.next().await;

    let cpu = cpu_time();
    let mut watch = Watch::new(&held, ttl);
    let end = now() + ttl.as_nanos() as u64;
    while now() < end {
        watch.look();
        // Often enough to see every confirmation, seldom enough to cost nothing.
        tokio::time::sleep(ttl / 12).await;
    }
    let cpu = cpu_time() - cpu;
    let late = watch.end();
    let lost = held.iter().filter(|(_, lease)| lease.check().is_err()).count();
    parent.send(&json!({
        "cpu_ms": cpu.as_secs_f64() * 1e3,
        "late_p99_ms": late_ms(&late, 0.99),
        "late_max_ms": late_ms(&late, 1.0),
        "seen": late.len(),
        "lost": lost,
    }));
    Ok(())
}

async fn take(
    manager: &LeaseManager,
    name: &'static str,
    count: usize,
) -> leasehold::Result<Vec<(Lock, Lease)>> {
    let takers = (0..TAKERS).map(|taker| {
        let manager = manager.clone();
        tokio::spawn(async move {
            let mut held = Vec::with_capacity(count.div_ceil(TAKERS));
            for number in (taker..count).step_by(TAKERS) {
                let mut lock = manager.lock(format!("{name}:{number}"));
                let lease = lock.lock().await?;
                held.push((lock, lease));
            }
            Ok::<_, leasehold::Error>(held)
        })
    });
    let mut all = Vec::with_capacity(count);
    for taker in takers.collect::<Vec<_>>() {
        all.extend(taker.await.expect("no panic")?);
    }
    Ok(all)
}

/// Learns from `remaining()` when each lease was last confirmed: at `sent`, which sets it to
/// 0.99 T - 2 ms - grace. Two confirmations more than T/3 apart mean that the second one was late.
struct Watch<'a> {
    leases: Vec<(&'a Lease, i64)>,
    full: i64,
    period: i64,
    late: Vec<i64>,
}

impl<'a> Watch<'a> {
    fn new(held: &'a [(Lock, Lease)], ttl: Duration) -> Self {
        let grace = (ttl / 10).clamp(Duration::from_millis(10), Duration::from_secs(2));
        let full = ttl.mul_f64(0.99) - Duration::from_millis(2) - grace;
        let step = held.len().div_ceil(WATCHED);
        let mut this = Self {
            leases: held.iter().step_by(step).map(|(_, lease)| (lease, 0)).collect(),
            full: full.as_nanos() as i64,
            period: (ttl / 3).as_nanos() as i64,
            late: Vec::new(),
        };
        for (lease, sent) in &mut this.leases {
            *sent = confirmed(lease, this.full);
        }
        this
    }

    fn look(&mut self) {
        for (lease, sent) in &mut self.leases {
            let latest = confirmed(lease, self.full);
            // Reading two clocks one after the other takes a moment.
            if latest - *sent > 1_000_000 {
                self.late.push(latest - *sent - self.period);
                *sent = latest;
            }
        }
    }

    /// How late each renewal was, sorted; those that are overdue now are late as well.
    fn end(mut self) -> Vec<i64> {
        self.look();
        let now = now() as i64;
        let overdue = self.leases.iter().map(|(_, sent)| now - sent - self.period);
        self.late.extend(overdue.filter(|&late| late > 0));
        self.late.sort_unstable();
        self.late
    }
}

/// When the request that last confirmed the lease was sent.
fn confirmed(lease: &Lease, full: i64) -> i64 {
    now() as i64 + lease.remaining().as_nanos() as i64 - full
}

fn late_ms(sorted: &[i64], part: f64) -> f64 {
    // Percentiles are of unsigned numbers; early ones are below zero.
    let shift = sorted.first().copied().unwrap_or(0);
    let shifted: Vec<u64> = sorted.iter().map(|late| (late - shift) as u64).collect();
    (percentile(&shifted, part) + shift as f64) / 1e6
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}
