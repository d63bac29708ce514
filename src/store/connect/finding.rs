//! What is found about the servers of a store, when connecting or by an examination.

use std::fmt;

/// What a check has found about a server.
///
/// It displays as a sentence: the server, what was seen there, what follows from it, and what to change.
/// [`Builder::preflight`](crate::Builder::preflight) finds only what is wrong; [`Builder::examine`](crate::Builder::examine) also
/// reports what is fine, and what could not be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was checked.
    pub check: Check,
    /// How it stands.
    pub severity: Severity,
    /// Which server it is: `host:port` or the path of its socket, `node 2` of a quorum, or `all` for what concerns them together.
    pub server: String,
    advice: String,
}

/// How a [`Check`] has ended. The worst is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Nothing is to be done.
    Fine,
    /// The server does not let this user ask, so it is not known.
    NotChecked,
    /// It may cost leases, or time.
    Warning,
    /// Locks do not work, or leases will be lost.
    Failure,
}

/// What a [`Finding`] is about.
///
/// Connecting checks those up to `Info`; the others are those of [`Builder::examine`](crate::Builder::examine).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// The server may evict the key of a lease that is held.
    Eviction,
    /// The server is a replica.
    Role,
    /// The server is too old.
    Version,
    /// The server forgets all leases when it restarts.
    Persistence,
    /// The server has fewer replicas than [`replicas`](crate::Builder::replicas) demands.
    Replicas,
    /// The server is in cluster mode, and the URL is that of a single server.
    ClusterMode,
    /// A failover may lose a grant that was returned, because no replica must confirm it.
    Failover,
    /// The user may not run `INFO`, so nothing is known.
    Info,
    /// The URL, or a setting of the builder, is invalid.
    Settings,
    /// The server does not answer, or refuses the connection.
    Reachable,
    /// A request takes so long that renewals may come too late.
    RoundTrip,
    /// The user lacks a permission that locks need.
    Permissions,
    /// A release does not wake those that wait.
    Wakeups,
    /// The clock of the server is stepped, runs at another rate, or differs from that of another server.
    Clock,
    /// The server stands still for too long, as in a fork or a slow command.
    Stalls,
    /// The server may close or refuse connections, or it refuses writes since its memory is used up.
    Limits,
    /// A cluster, sentinels or a quorum is incomplete, or takes too long to replace a server.
    Fleet,
    /// A key of a lock has no time to live, so that its name stays taken.
    Leftovers,
    /// The servers of ZooKeeper give a session that does not fit the time to live.
    Session,
}

impl Check {
    pub(super) const ALL: [Self; 19] = [
        Self::Eviction,
        Self::Role,
        Self::Version,
        Self::Persistence,
        Self::Replicas,
        Self::ClusterMode,
        Self::Failover,
        Self::Info,
        Self::Settings,
        Self::Reachable,
        Self::RoundTrip,
        Self::Permissions,
        Self::Wakeups,
        Self::Clock,
        Self::Stalls,
        Self::Limits,
        Self::Fleet,
        Self::Leftovers,
        Self::Session,
    ];

    pub(super) const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Is one word in small letters, or two with a hyphen.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Eviction => "eviction",
            Self::Role => "role",
            Self::Version => "version",
            Self::Persistence => "persistence",
            Self::Replicas => "replicas",
            Self::ClusterMode => "cluster-mode",
            Self::Failover => "failover",
            Self::Info => "info",
            Self::Settings => "settings",
            Self::Reachable => "reachable",
            Self::RoundTrip => "round-trip",
            Self::Permissions => "permissions",
            Self::Wakeups => "wake-ups",
            Self::Clock => "clock",
            Self::Stalls => "stalls",
            Self::Limits => "limits",
            Self::Fleet => "fleet",
            Self::Leftovers => "leftovers",
            Self::Session => "session",
        })
    }
}

/// Is one word in small letters, or two with a hyphen.
impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fine => "fine",
            Self::NotChecked => "not-checked",
            Self::Warning => "warning",
            Self::Failure => "failure",
        })
    }
}

impl Finding {
    pub(crate) fn new(
        check: Check,
        severity: Severity,
        server: &str,
        advice: impl Into<String>,
    ) -> Self {
        Self { check, severity, server: server.to_owned(), advice: advice.into() }
    }

    /// Returns what was seen, what follows from it, and what to change: the sentence without the server.
    pub fn message(&self) -> &str {
        &self.advice
    }

    /// Returns whether there is anything to report when connecting.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn is_fine(&self) -> bool {
        self.severity == Severity::Fine
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.server, self.advice)
    }
}
