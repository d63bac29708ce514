//! What happened, as events by one clock for all processes of the machine, and the file they are kept in.
//!
//! A line is an event: when, in nanoseconds of the clock; who says so (`soak`, or a holder process as
//! `p<slot>.<life>`); what; and its fields in the order of [`What`].

use rustix::time::{ClockId, clock_gettime};
use std::fmt::{self, Display};
use std::str::{FromStr, SplitWhitespace};
use std::time::Duration;

/// The clock of the leases: it goes on in a suspend.
pub fn now() -> u64 {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let time = clock_gettime(CLOCK);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub at: u64,
    pub who: String,
    pub what: What,
}

/// Declares the events with their fields, and how they are written and read.
macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident = $word:literal { $($field:ident: $type:ty),* $(,)? })*) => {
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum What {
            $($(#[$doc])* $variant { $($field: $type),* },)*
        }

        impl Display for What {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant { $($field),* } => {
                        f.write_str($word)?;
                        $(write!(f, " {}", $field)?;)*
                        Ok(())
                    })*
                }
            }
        }

        impl What {
            fn read(words: &mut SplitWhitespace<'_>) -> Option<Self> {
                match words.next()? {
                    $($word => Some(Self::$variant { $($field: field(words)?),* }),)*
                    _ => None,
                }
            }
        }
    };
}

events! {
    /// The first event of a run.
    Run = "run" { seed: u64, seconds: u64, store: String }
    /// A name, the server it is kept on, and the time to live that its leases count with.
    Name = "name" { name: String, server: String, ttl_ms: u64 }

    /// The id that a manager of this process puts before its tokens in the store.
    Manager = "manager" { id: String }

    /// A flow of control asks; the number is for this lease in its process. `limit_ms` is 0 for no limit.
    Wanted = "wanted" { ask: u64, name: String, how: String, limit_ms: u64 }
    /// In which mode of a name that several share it asks, and for how many permits.
    Shares = "shares" { ask: u64, mode: String, permits: u32 }
    /// The call returned without a lease, or was dropped.
    GaveUp = "gave-up" { ask: u64, why: String }
    /// The call returned with a lease. `by` says what its holder goes by: `check`, or the `token` alone.
    Granted = "granted" { ask: u64, fence: u64, by: String }
    /// The number of the token that it has in the store.
    Token = "token" { ask: u64, number: u64 }
    /// The holder entered again.
    Nested = "nested" { ask: u64, fence: u64, count: u32 }
    /// `check()` was Ok, and had not been called yet at `last_ok`.
    Checked = "checked" { ask: u64, last_ok: u64 }
    AtRisk = "at-risk" { ask: u64 }
    /// It was at risk, and is held again.
    Safe = "safe" { ask: u64 }
    /// The loss was told: by `check()`, or by the token.
    Fired = "fired" { ask: u64, last_ok: u64, cause: String }
    /// About to unlock, drop or forget the lease: nothing was sent yet.
    Released = "released" { ask: u64, last_ok: u64 }
    /// To unlock it failed.
    Unreleased = "unreleased" { ask: u64, why: String }
    /// The future of the call is not polled from now on.
    Unpolled = "unpolled" { ask: u64 }
    /// About to be left to expire, or to a future that nobody polls.
    Forgot = "forgot" { ask: u64 }
    /// About to call `force_unlock`, and it has succeeded. Without the second it may still come.
    Forcing = "forcing" { ask: u64, name: String }
    Forced = "forced" { ask: u64 }
    /// About to steal the name, and the call has returned. Without the second it may still come.
    Stealing = "stealing" { ask: u64, name: String }
    Stolen = "stolen" { ask: u64 }
    /// The body of a job is about to fail, so the key stays open.
    Failed = "failed" { ask: u64 }
    /// The job is done, and its key was closed for so long.
    Ran = "ran" { ask: u64, keep_ms: u64 }
    /// A view shows this leader now: its term or 0, its holder and its value or `none`.
    Observed = "observed" { name: String, term: u64, holder: String, value: String }
    /// The process stood still until now, as a thread that only sleeps saw.
    Stalled = "stalled" { ms: u64 }
    /// A thread of this process, or of the servers and proxies if the soak says so, has waited for a processor until now.
    Starved = "starved" { ms: u64 }
    /// The resource refused a fencing token.
    Refused = "refused" { name: String, fence: u64 }
    /// A contradiction that a process saw by itself.
    Broken = "broken" { text: Words }

    /// From `at` on something is broken; `until` it was mended. `on` is a holder process or a server.
    Fault = "fault" { until: u64, on: String, kind: String }
    /// A connection of a slot's process to this server, with subscriptions, said nothing more, until it was closed.
    Silent = "silent" { until: u64, on: String, server: String }
    /// How much memory the process takes.
    Memory = "memory" { kib: u64 }
    /// The name may be taken away from whoever holds it, between `at` and `until`.
    Wiped = "wiped" { until: u64, name: String }
    /// Another primary serves the name since `until`, and may not have been told what was granted before.
    Replaced = "replaced" { until: u64, name: String }
    /// The same, and until then all holders that were awake have been told, though the one before goes on.
    Succeeded = "succeeded" { until: u64, name: String }
    /// The server had no key of this name, as often as it was looked at.
    Free = "free" { until: u64, name: String }
    /// The server had this token of this manager under the name, as often as it was looked at.
    Kept = "kept" { until: u64, name: String, id: String, number: u64 }
    /// A key without a time to live.
    Undying = "undying" { key: Words }
    /// The resource accepted a write; these are in its order.
    Wrote = "wrote" { name: String, value: u64, fence: u64 }
    /// Hold counts at rest: as the holder believes, and the value and number of fields in the store.
    Counted = "counted" { name: String, believed: u64, stored: u64, fields: u64 }
    /// Something that the run left behind.
    Left = "left" { text: Words }
    /// How often something happened that only the one who did it can know.
    Seen = "seen" { count: u64, text: Words }
}

/// The rest of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words(pub String);

impl Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.replace('\n', " "))
    }
}

trait Field: Sized {
    fn take(words: &mut SplitWhitespace<'_>) -> Option<Self>;
}

impl<T: FromStr> Field for T {
    fn take(words: &mut SplitWhitespace<'_>) -> Option<Self> {
        words.next()?.parse().ok()
    }
}

impl FromStr for Words {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Ok(Self(text.to_owned()))
    }
}

fn field<T: Field>(words: &mut SplitWhitespace<'_>) -> Option<T> {
    T::take(words)
}

impl Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.at, self.who, self.what)
    }
}

impl Event {
    /// Reads a line; a last one that was cut off by a kill is none.
    pub fn read(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (at, who) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        let mut what = What::read(&mut words)?;
        if let What::Broken { text }
        | What::Left { text }
        | What::Seen { text, .. }
        | What::Undying { key: text } = &mut what
        {
            for word in words {
                text.0.push(' ');
                text.0.push_str(word);
            }
        }
        Some(Self { at, who, what })
    }
}

/// Reads a file of events. Only a line that ends counts: a process can be killed in the middle of one.
pub fn read(text: &str) -> Vec<Event> {
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).filter_map(Event::read).collect()
}
