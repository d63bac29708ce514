//! What all stores behind a URL share: their settings, and the checks when they connect.

pub(crate) mod credentials;
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for the servers of Redis"))]
pub(super) mod examination;
pub(super) mod finding;
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for locks on Redis"))]
pub(crate) mod layout;
pub(crate) mod options;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
pub(super) mod outage;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
pub(super) mod percent;
pub(super) mod preflight;
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for the connections to Redis"))]
pub(crate) mod provider;
pub(crate) mod remote;
#[cfg_attr(
    not(any(feature = "rustls", feature = "rustls-aws-lc", feature = "native-tls")),
    allow(dead_code, reason = "for connections with TLS")
)]
pub(crate) mod tls;
