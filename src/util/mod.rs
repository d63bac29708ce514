//! Small helpers without any knowledge of locks: a mutex without poison, traces on a thread of their own, a bound in time,
//! several calls that begin together, futures on the heap, rare states that tests count.

#[cfg(any(feature = "redis", feature = "zookeeper"))]
pub(crate) mod backoff;
pub(crate) mod bound;
#[cfg(feature = "redis")]
pub(crate) mod in_place;
pub(crate) mod join;
pub(crate) mod panics;
pub(crate) mod reached;
pub(crate) mod runtime;
pub(crate) mod sync;
pub(crate) mod trace;
