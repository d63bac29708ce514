//! The client's errors, sorted by what is known.

use crate::error::{Error, ErrorKind, Fate, Result};
use std::future::Future;
use std::time::Duration;
use zookeeper_client::Error as ZkError;

/// What became of a request that should find a node.
pub(super) enum Found<T> {
    Yes(T),
    NoNode,
}

/// The fate of what fails on the way is unknown, whatever the client calls it: a connection that is reset
/// shows as [`ZkError::Custom`].
pub(super) fn sorted(error: ZkError) -> Error {
    let (kind, message) = match error {
        ZkError::NoAuth | ZkError::AuthFailed => (
            ErrorKind::Denied,
            "ZooKeeper refuses access: these nodes are another user's. Check user and password in the URL, \
                 have the right given to them, or choose another path or name",
        ),
        ZkError::NotReadOnly | ZkError::QuotaExceeded | ZkError::Throttled => {
            (ErrorKind::Rejected, "ZooKeeper refuses to write: read-only, over quota or overloaded")
        }
        ZkError::BadArguments(_) | ZkError::InvalidAcl | ZkError::MarshallingError => {
            (ErrorKind::Invalid, "ZooKeeper does not understand the request")
        }
        ZkError::SessionExpired | ZkError::ClientClosed => (
            ErrorKind::Unavailable,
            "the session with ZooKeeper has ended; a new one is being made",
        ),
        _ => (ErrorKind::Unavailable, "the connection to ZooKeeper failed"),
    };
    Error::new(kind, message).with_source(error)
}

/// Awaits a request that needs a node.
pub(super) async fn find<T>(request: impl Future<Output = Result<T, ZkError>>) -> Result<Found<T>> {
    match request.await {
        Ok(found) => Ok(Found::Yes(found)),
        Err(ZkError::NoNode) => Ok(Found::NoNode),
        Err(error) => Err(sorted(error)),
    }
}

/// Bounds what the client would keep waiting for 1.4 sessions.
pub(super) async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let silent = || Error::new(ErrorKind::Unavailable, "ZooKeeper did not answer in time");
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(silent()))
}

pub(super) fn no_session() -> Error {
    Error::new(ErrorKind::Unavailable, "there is no session with ZooKeeper at the moment")
        .with_fate(Fate::NotExecuted)
}
