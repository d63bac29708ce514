//! What the oracle has to know of each store.

#[derive(Clone, Copy)]
pub struct Rules {
    /// Whether a grant has a fencing token.
    pub fenced: bool,
    /// Whether a lease is handed on in memory, and it can be seen by its fencing token.
    pub handed_on: bool,
    pub sent_twice: bool,
    pub behind_proxies: bool,
    /// For so long after a fault of the servers, beyond the time to live, they may still be held up.
    pub recovery: u64,
    /// A run of so many seconds must have met everything; a shorter one need not.
    pub whole_run: u64,
    /// Faults that such a run must have had: what they are, and their kind.
    pub must_strike: &'static [(&'static str, &'static str)],
}

const SECOND: u64 = 1_000_000_000;

const REDIS: Rules = Rules {
    fenced: true,
    handed_on: true,
    sent_twice: true,
    behind_proxies: true,
    recovery: SECOND / 2,
    whole_run: 60,
    must_strike: &[],
};

impl Rules {
    /// For the store of a run.
    pub fn of(store: &str) -> Self {
        match store {
            "quorum" => Self {
                fenced: false,
                handed_on: false,
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
                ..REDIS
            },
            // A primary that comes back waits for two seconds before it serves.
            "cluster" => Self {
                sent_twice: false,
                behind_proxies: false,
                recovery: 3 * SECOND,
                must_strike: &[("slots moved", "MoveSlot"), ("failovers", "Failover")],
                ..REDIS
            },
            // The members find a leader, and the clients a member.
            "zookeeper" => Self {
                // A grant has one token, so with tokens nothing is handed on.
                handed_on: false,
                sent_twice: false,
                recovery: 3 * SECOND,
                must_strike: &[
                    ("leaders that crashed", "CrashPrimary"),
                    ("leaders that froze", "FreezePrimary"),
                ],
                ..REDIS
            },
            _ => REDIS,
        }
    }
}
