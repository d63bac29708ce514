//! Whether a session is long enough for the servers' tick.
//!
//! A tick is not told to clients. But the shortest timeout is, which is 2 ticks unless an operator has set it
//! otherwise: to whoever asks for less.

use super::address::Address;
use super::link::{Link, hosts, opening};
use crate::trace;
use std::sync::Arc;
use std::time::Duration;
use tracing::Level;
use zookeeper_client::Error as ZkError;

/// To look costs a session. From here on it is three ticks of any that is in use.
const SURELY_LONG: Duration = Duration::from_secs(10);

/// Warns of a session that is shorter than 3 ticks, as far as can be known.
pub(super) async fn check(address: &Address) {
    let session = address.session;
    if session >= SURELY_LONG {
        return;
    }
    let two_thirds = Address { session: session * 2 / 3, ..address.clone() };
    for host in hosts(&two_thirds, None) {
        match given(host, &two_thirds).await {
            Ok(shortest) if shortest > two_thirds.session => {
                return trace::later(Level::WARN, || {
                    move || {
                        tracing::warn!(
                            "a time to live of {session:?} is near the shortest that the servers give, {shortest:?}: if \
                             that is 2 of their ticks, as by default, a lease may be believed for too long; choose \
                             at least 3 ticks"
                        );
                    }
                });
            }
            Ok(_) => return,
            Err(error) => trace::later(Level::DEBUG, || {
                let host = host.to_owned();
                move || tracing::debug!(%error, host, "the shortest timeout is not known")
            }),
        }
    }
}

/// What a server gives to a session that ends at once.
async fn given(host: &str, address: &Address) -> Result<Duration, ZkError> {
    let link = Arc::new(Link::open(host, address).await?);
    let given = link.client.session_timeout();
    // Else it ends by itself.
    let _ = tokio::time::timeout(opening(address.session), link.close()).await;
    Ok(given)
}
