//! The rules that differ between stores.

#[derive(Clone, Copy)]
pub struct Rules {
    /// Whether a writer that becomes a reader keeps its token, and shares it.
    pub kept_by_downgrade: bool,
    /// Whether a lease is handed on in memory, and it can be seen by its fencing token.
    pub handed_off: bool,
    /// Whether a loss that the store tells, and not the clock, comes without a wipe: then without a grace, too.
    pub reported_without_grace: bool,
    /// Whether the old holder is told by which means it has lost a name that was stolen.
    pub thefts_are_reported: bool,
    pub sent_twice: bool,
    pub behind_proxies: bool,
    /// Whether no lease expires but for a fault.
    pub keeps_leases: bool,
    /// For so long after a fault of the servers, beyond the time to live, they may still be held up.
    pub recovery: u64,
    /// A run of so many seconds must have met everything; a shorter one need not.
    pub whole_run: u64,
    /// Faults that such a run must have had: what they are, and their kind.
    pub must_strike: &'static [(&'static str, &'static str)],
    /// What may be rare beyond that, and is not asked for.
    pub rare: &'static [&'static str],
}

const SECOND: u64 = 1_000_000_000;
/// In a run of so many seconds [`OF_LONG_RUNS`] must have happened, where they are not rare.
pub const LONG_RUN: u64 = 300;

const REDIS: Rules = Rules {
    kept_by_downgrade: false,
    handed_off: true,
    reported_without_grace: false,
    thefts_are_reported: true,
    sent_twice: true,
    behind_proxies: true,
    keeps_leases: false,
    recovery: SECOND / 2,
    whole_run: 60,
    must_strike: &[],
    rare: &[],
};

/// It takes a holder who is late between his check and his write, by more than the grace. In a minute on a busy
/// machine there may be none.
pub const LATE_WRITES: &[&str] = &["smaller fences refused"];
/// A shorter run may also miss these: of three kills in a minute none may strike a holder, and of eight freezes none may
/// keep one for longer than its lease lasts.
pub const OF_LONG_RUNS: &[&str] =
    &["smaller fences refused", "takeovers after a kill", "freezes noticed"];

impl Rules {
    /// For the store of a run.
    pub fn of(store: &str) -> Self {
        match store {
            "quorum" => Self {
                rare: LATE_WRITES,
                // The node that forgot was one of the two that had it: the rest is given back at once.
                reported_without_grace: true,
                // A node that was restarted counts again when it is as old as the time to live, in whole seconds.
                recovery: 3 * SECOND,
                must_strike: &[
                    ("nodes that forgot in a restart", "Crash"),
                    ("frozen nodes", "Freeze"),
                ],
                ..REDIS
            },
            // A replacement takes half a minute until all servers are in their places again.
            "sentinel" => Self {
                sent_twice: false,
                behind_proxies: false,
                recovery: 2 * SECOND,
                whole_run: 240,
                must_strike: &[
                    ("failovers that were asked for", "Failover"),
                    ("primaries that crashed", "CrashPrimary"),
                    ("primaries that froze", "FreezePrimary"),
                ],
                rare: LATE_WRITES,
                ..REDIS
            },
            // A primary that comes back waits for two seconds before it serves.
            "cluster" => Self {
                keeps_leases: true,
                sent_twice: false,
                behind_proxies: false,
                recovery: 3 * SECOND,
                must_strike: &[
                    ("slots moved", "MoveSlot"),
                    ("slots half moved", "HalfMoveSlot"),
                    ("failovers", "Failover"),
                ],
                rare: LATE_WRITES,
                ..REDIS
            },
            // The members find a leader, and the clients a member.
            "zookeeper" => Self {
                // A grant has one token, so with tokens nothing is handed on.
                handed_off: false,
                kept_by_downgrade: true,
                thefts_are_reported: false,
                sent_twice: false,
                recovery: 3 * SECOND,
                must_strike: &[
                    ("leaders that crashed", "CrashPrimary"),
                    ("leaders that froze", "FreezePrimary"),
                ],
                rare: LATE_WRITES,
                ..REDIS
            },
            "redis" => Self { keeps_leases: true, ..REDIS },
            _ => REDIS,
        }
    }
}
