//! Ten thousand leases held for three times T = 30 s: is each renewed, with how many commands, and at what cost?
//!
//! Not a sampling bench: it runs once, for about 100 s, and prints what it counted. A smaller run:
//! `cargo bench --bench watchdog -- --leases 1000 --ttl 3`.

use kit::Server;
use leasehold::{Lease, LeaseManager, LeaseState};
use std::time::Duration;

#[tokio::main]
async fn main() {
    let leases: usize = argument("--leases").unwrap_or(10_000);
    let ttl = Duration::from_secs(argument("--ttl").unwrap_or(30));
    let server = Server::start();
    let manager = LeaseManager::builder().ttl(ttl).connect(&server.url()).await.expect("connected");
    let mut locks: Vec<_> = (0..leases).map(|i| manager.lock(format!("lease:{i}"))).collect();

    let before = resident_bytes();
    let held = acquire_all(&mut locks).await;
    let after = resident_bytes();

    let (cpu, commands) = (cpu_time(), commands(&server));
    tokio::time::sleep(ttl * 3).await;
    let (cpu, commands) = (cpu_time() - cpu, self::commands(&server) - commands);

    let lost = held.iter().filter(|lease| lease.check().is_err()).count();
    let at_risk = held.iter().filter(|lease| lease.state() == LeaseState::AtRisk).count();
    let keys = held.iter().filter(|lease| server_has(&server, lease)).count();
    // A lease is renewed every T/3 or a little earlier.
    let renewals = leases as f64 * 9.0;
    println!("{leases} leases held for 3 T, T = {ttl:?}");
    println!("  lost {lost}, at risk {at_risk}, keys on the server {keys}");
    println!(
        "  renewal commands {commands}, {:.1} per period of T/3, leases / 100 = {}",
        commands as f64 / 9.0,
        leases / 100
    );
    println!("  client CPU {:.2} ms per 1000 renewals", cpu.as_secs_f64() * 1e6 / renewals);
    println!("  resident bytes per lease {}", after.saturating_sub(before) / leases);
    assert_eq!((lost, keys), (0, leases), "every lease must be renewed");
    drop(held);
    manager.close().await.expect("all released");
}

async fn acquire_all(locks: &mut [leasehold::Lock]) -> Vec<Lease> {
    let mut held = Vec::with_capacity(locks.len());
    for lock in locks {
        held.push(lock.lock().await.expect("granted"));
    }
    held
}

fn server_has(server: &Server, lease: &Lease) -> bool {
    use std::cell::RefCell;
    thread_local!(static CONNECTION: RefCell<Option<kit::Resp>> = const { RefCell::new(None) });
    CONNECTION.with_borrow_mut(|connection| {
        let connection = connection.get_or_insert_with(|| server.connection());
        connection.command(&["EXISTS", lease.name()]).int() == 1
    })
}

/// How often the server has run a script.
fn commands(server: &Server) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).text();
    let calls = |command: &str| {
        let line = stats.lines().find(|line| line.starts_with(command))?;
        line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok()
    };
    calls("cmdstat_evalsha:").unwrap_or(0) + calls("cmdstat_eval:").unwrap_or(0)
}

fn argument<T: std::str::FromStr>(name: &str) -> Option<T> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)?.parse().ok()
}

/// User and system time of this process; Linux counts in hundredths of a second.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<u64>().expect("a number");
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages")
        * 4096
}
