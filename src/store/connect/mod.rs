//! From a URL to a store: its settings, and the checks when it connects.

pub(crate) mod options;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
pub(super) mod outage;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
pub(super) mod percent;
pub(super) mod preflight;
pub(crate) mod remote;
pub(crate) mod url;
