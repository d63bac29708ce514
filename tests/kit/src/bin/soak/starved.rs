//! Watches for threads that wait for a processor, so that a busy machine can be told from a fault of the library.
//!
//! A thread that only sleeps is no measure of that: the kernel lets it run soon when it wakes, while one that has work to do may
//! wait for ten times as long as it runs. Linux counts the time for which each thread was ready and did not run.
//!
//! A thread that runs for more than a tenth of the time is no witness: one that spins waits for long, too, and would excuse itself.

use std::collections::HashMap;
use std::fs;
use std::process;
use std::time::Duration;

/// Between two looks.
pub const INTERVAL: Duration = Duration::from_millis(50);
/// A shorter wait is of no interest.
const WORTH_TELLING: u64 = 5_000_000;
/// So many looks pass before servers are looked for again.
const SERVERS_EVERY: u64 = 10;

/// The waits of a process and, if it has some, of its servers.
pub struct Waits {
    has_servers: bool,
    servers: Vec<u32>,
    looks: u64,
    /// By process and thread, since each was started.
    times: HashMap<(u32, u32), Times>,
}

impl Waits {
    /// Of this process alone.
    pub fn of_process() -> Self {
        Self { has_servers: false, servers: Vec::new(), looks: 0, times: HashMap::new() }
    }

    /// Of this process and the servers that it has started.
    pub fn with_servers() -> Self {
        Self { has_servers: true, ..Self::of_process() }
    }

    /// Returns for how many milliseconds a thread has waited for a processor since the last look, of the one that has waited
    /// for longest. Returns `None` if that is not worth telling.
    pub fn look(&mut self) -> Option<u64> {
        let own = process::id();
        if self.has_servers && self.looks.is_multiple_of(SERVERS_EVERY) {
            self.servers = servers_of(own);
        }
        self.looks += 1;
        let mut times = HashMap::new();
        for pid in [own].iter().chain(&self.servers) {
            times.extend(times_of(*pid).map(|(thread, nanos)| ((*pid, thread), nanos)));
        }
        let before = std::mem::replace(&mut self.times, times);
        let longest = self
            .times
            .iter()
            .filter_map(|(thread, times)| Some(times.since(before.get(thread)?)))
            .filter(|times| u128::from(times.ran) < INTERVAL.as_nanos() / 10)
            .map(|times| times.waited)
            .max()?;
        (longest > WORTH_TELLING).then_some(longest / 1_000_000)
    }
}

/// For how many nanoseconds a thread had a processor, and waited for one.
#[derive(Clone, Copy)]
struct Times {
    ran: u64,
    waited: u64,
}

impl Times {
    fn since(self, before: &Self) -> Self {
        Self {
            ran: self.ran.saturating_sub(before.ran),
            waited: self.waited.saturating_sub(before.waited),
        }
    }
}

/// Returns the times of each thread of a process so far; nothing where the system does not count them.
fn times_of(pid: u32) -> impl Iterator<Item = (u32, Times)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| {
        let number = thread.file_name().to_str()?.parse().ok()?;
        let counted = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let mut nanos = counted.split(' ').map(|field| field.parse().ok());
        Some((number, Times { ran: nanos.next()??, waited: nanos.next()?? }))
    })
}

/// Returns the processes that this one has started, but for those of its own program, which watch themselves.
fn servers_of(own: u32) -> Vec<u32> {
    let name = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let program = name(own);
    let threads = fs::read_dir(format!("/proc/{own}/task")).into_iter().flatten().flatten();
    let children =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|pids| {
            pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect();
    children.into_iter().filter(|pid| name(*pid) != program).collect()
}
