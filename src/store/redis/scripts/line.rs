//! The arrivals of waiters: the line of a lock has the managers that wait for it in the order of arrival, and a read-write lock
//! has the oldest reader and the oldest writer. Acquires and releases are in `lock.rs` and `rw.rs`.

use super::lock::{call_in_line, write_arrival};
use super::reply::{self, Element};
use super::{LINE_INSPECT, rw};
use crate::error::Result;
use crate::store::redis::RedisStore;
use crate::store::{Inspect, Mode, Release, Released, StoreFuture, WaitingManager};
use std::future::ready;
use std::time::Duration;

/// Gives up an arrival.
pub(in crate::store::redis) fn release_arrival(
    store: &RedisStore,
    request: Release,
) -> StoreFuture<Released> {
    let (script, call) = match request.target.mode {
        Mode::Exclusive => {
            let mut call = call_in_line(&store.keys, &request.target.name);
            call.holder(request.holder);
            write_arrival(&mut call, request.arrival.unwrap_or_default());
            (&store.scripts.line_leave, call)
        }
        Mode::Read | Mode::Write => (&store.scripts.rw_leave, rw::leave(&store.keys, &request)),
        Mode::Permits { .. } => return Box::pin(ready(Ok(Released::done(0)))),
    };
    let reply = store.caller.run(script, call, request.timeout);
    Box::pin(async move { rw::code(&reply.await?).map(|_| Released::done(0)) })
}

/// Returns the managers that wait, the oldest first.
pub(in crate::store::redis) async fn waiting(
    store: &RedisStore,
    request: Inspect,
) -> Result<Vec<WaitingManager>> {
    request.target.require_exclusive()?;
    let call = call_in_line(&store.keys, &request.target.name);
    let reply = store.caller.run(&LINE_INSPECT, call, request.timeout).await?;
    let (waiters, rest) = reply.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(reply::malformed_reply());
    }
    let waiter = |words: &[Element; 2]| {
        let [Element::Text(manager), Element::Int(waited)] = words else {
            return Err(reply::malformed_reply());
        };
        let waited = Duration::from_micros(u64::try_from(*waited).unwrap_or_default());
        Ok(WaitingManager::new(manager.clone(), waited))
    };
    waiters.iter().map(waiter).collect()
}
