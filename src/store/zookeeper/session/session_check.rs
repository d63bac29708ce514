//! Checks whether a session is long enough for the servers' tick.
//!
//! Servers do not report their tick to clients. But a client that asks for a shorter session than the servers allow gets
//! the shortest one, which is 2 ticks unless an operator has set it otherwise.

use super::link::{Link, hosts, opening};
use super::url::Address;
use crate::util::trace;
use std::sync::Arc;
use std::time::Duration;
use tracing::Level;
use zookeeper_client::Error as ZkError;

/// From this length on, a session has three ticks of any length in use, and the check, which costs a session, is
/// skipped.
pub(super) const SURELY_LONG: Duration = Duration::from_secs(10);

/// Warns if the session is shorter than 3 ticks, as far as can be known.
pub(super) async fn check(address: &Address) {
    let session = address.session;
    if session >= SURELY_LONG {
        return;
    }
    for host in hosts(address, None) {
        if let Some(shortest) = shortest(host, address).await {
            if is_near(session, shortest) {
                let advice = advice(session, shortest);
                trace::later(Level::WARN, || move || tracing::warn!("{advice}"));
            }
            return;
        }
    }
}

/// Returns the shortest timeout that a server gives, or two thirds of that of the session, if it gives so short a one.
pub(super) async fn shortest(host: &str, address: &Address) -> Option<Duration> {
    let two_thirds = Address { session: address.session * 2 / 3, ..address.clone() };
    let given = given(host, &two_thirds).await;
    let report = |error: &ZkError| {
        let text = error.to_string();
        let host = host.to_owned();
        trace::later(Level::DEBUG, || {
            move || tracing::debug!(error = text, host, "the shortest timeout is not known")
        });
    };
    given.inspect_err(report).ok()
}

/// Returns whether a session is shorter than 3 ticks, if the shortest has 2.
pub(super) fn is_near(session: Duration, shortest: Duration) -> bool {
    shortest > session * 2 / 3
}

/// Says what follows from that.
pub(super) fn advice(session: Duration, shortest: Duration) -> String {
    format!(
        "a time to live of {session:?} is near the shortest that the servers give, {shortest:?}: if that is 2 of their \
         ticks, as by default, a lease may be believed for too long; choose at least 3 ticks"
    )
}

/// Returns the timeout that a server gives to a session. The session ends at once.
async fn given(host: &str, address: &Address) -> Result<Duration, ZkError> {
    let link = Arc::new(Link::open(host, address).await?);
    let given = link.client.session_timeout();
    // If this fails, the session ends by its timeout.
    let _ = tokio::time::timeout(opening(address.session), link.close()).await;
    Ok(given)
}
