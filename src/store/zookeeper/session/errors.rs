//! Classifies the errors of the client library.

use crate::error::{Error, ErrorKind, Fate, Result};
use std::future::Future;
use std::time::Duration;
use zookeeper_client::Error as ZkError;

/// How long a name may take to be resolved.
const RESOLVING: Duration = Duration::from_secs(1);

/// The outcome of a request that needs a node.
pub(in crate::store::zookeeper) enum Found<T> {
    Yes(T),
    NoNode,
}

/// Classifies an error. The fate of a request that fails on the way is unknown, whatever the client calls the error: a
/// connection that is reset shows as [`ZkError::Custom`].
pub(in crate::store::zookeeper) fn classify(error: ZkError) -> Error {
    let (kind, message) = match error {
        ZkError::AuthFailed => (
            ErrorKind::Denied,
            "ZooKeeper refuses the session: it requires authentication. Put a user and a password into the URL \
                 (scheme digest); other schemes, such as SASL, are not supported",
        ),
        ZkError::NoAuth => (
            ErrorKind::Denied,
            "ZooKeeper refuses access: these nodes belong to another user. Check the user and the password in the \
                 URL, ask for permission, or choose another path or name",
        ),
        ZkError::NotReadOnly | ZkError::QuotaExceeded | ZkError::Throttled => {
            (ErrorKind::Rejected, "ZooKeeper refuses to write: read-only, over quota or overloaded")
        }
        ZkError::BadArguments(_) | ZkError::InvalidAcl | ZkError::MarshallingError => {
            (ErrorKind::Invalid, "ZooKeeper does not understand the request")
        }
        ZkError::NoChildrenForEphemerals => (
            ErrorKind::Invalid,
            "the URL's path leads below an ephemeral node, which has none; choose another path",
        ),
        ZkError::SessionExpired | ZkError::ClientClosed => (
            ErrorKind::Unavailable,
            "the session with ZooKeeper has ended; a new one is being made",
        ),
        ZkError::NoHosts => (
            ErrorKind::Unavailable,
            "no ZooKeeper server opens a session: it cannot be reached, does not serve, or takes no more connections \
                 from this address (maxClientCnxns)",
        ),
        ZkError::Timeout => (
            ErrorKind::Unavailable,
            "ZooKeeper did not answer in time; is it up, and the port that of a ZooKeeper server?",
        ),
        _ => (ErrorKind::Unavailable, "the connection to ZooKeeper failed"),
    };
    let is_login = error == ZkError::AuthFailed;
    let error = Error::new(kind, message).with_source(error);
    if is_login { error.for_all_names() } else { error }
}

/// Explains why no connection to a server was made. The client reports a name that cannot be resolved as a server that
/// cannot be reached.
pub(super) async fn unreachable(error: ZkError, host: &str) -> Error {
    let explained = if matches!(error, ZkError::NoHosts) && !is_resolved(host).await {
        let message = "the name of the host cannot be resolved; check its spelling, and the DNS of this machine";
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    } else {
        classify(error)
    };
    explained.at(&format!("cannot connect to {host}"))
}

/// Returns whether a host is an address, or a name that can be resolved, or that takes long.
async fn is_resolved(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        // An address in brackets.
        _ if host.starts_with('[') => return true,
        Some((name, _)) => name,
        None => host,
    };
    if name.parse::<std::net::IpAddr>().is_ok() {
        return true;
    }
    let lookup = tokio::net::lookup_host((name, 0));
    !matches!(tokio::time::timeout(RESOLVING, lookup).await, Ok(Err(_)))
}

/// Awaits a request that needs a node, and separates the answer that there is none.
pub(in crate::store::zookeeper) async fn find<T>(
    request: impl Future<Output = Result<T, ZkError>>,
) -> Result<Found<T>> {
    match request.await {
        Ok(found) => Ok(Found::Yes(found)),
        Err(ZkError::NoNode) => Ok(Found::NoNode),
        Err(error) => Err(classify(error)),
    }
}

/// Bounds the time of work that would otherwise wait for as long as there is no link.
pub(in crate::store::zookeeper) async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let timed_out = || Error::new(ErrorKind::Unavailable, "ZooKeeper did not answer in time");
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(timed_out()))
}

pub(in crate::store::zookeeper) fn no_session() -> Error {
    Error::new(ErrorKind::Unavailable, "there is no session with ZooKeeper at the moment")
        .with_fate(Fate::NotExecuted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn errors_of_the_client_are_sorted_with_their_fate() {
        for (error, kind, hint) in [
            (ZkError::NoAuth, ErrorKind::Denied, "Check the user and the password"),
            (ZkError::AuthFailed, ErrorKind::Denied, "requires authentication"),
            (ZkError::NotReadOnly, ErrorKind::Rejected, "refuses to write"),
            (ZkError::QuotaExceeded, ErrorKind::Rejected, "refuses to write"),
            (ZkError::Throttled, ErrorKind::Rejected, "refuses to write"),
            (ZkError::BadArguments(&"path"), ErrorKind::Invalid, "does not understand"),
            (ZkError::InvalidAcl, ErrorKind::Invalid, "does not understand"),
            (ZkError::MarshallingError, ErrorKind::Invalid, "does not understand"),
            (ZkError::NoChildrenForEphemerals, ErrorKind::Invalid, "choose another path"),
            (ZkError::SessionExpired, ErrorKind::Unavailable, "session with ZooKeeper has ended"),
            (ZkError::ClientClosed, ErrorKind::Unavailable, "session with ZooKeeper has ended"),
            (ZkError::NoHosts, ErrorKind::Unavailable, "maxClientCnxns"),
            (ZkError::ConnectionLoss, ErrorKind::Unavailable, "connection to ZooKeeper failed"),
            (ZkError::Timeout, ErrorKind::Unavailable, "that of a ZooKeeper server"),
        ] {
            let underneath = error.to_string();
            let error = classify(error);
            assert_eq!(error.kind(), kind, "{underneath}");
            // A write whose connection breaks may have been made.
            let unknown = kind == ErrorKind::Unavailable;
            let fate = if unknown { Fate::Unknown } else { Fate::NotExecuted };
            assert_eq!(error.fate(), fate, "{underneath}");
            assert!(error.to_string().contains(hint), "{underneath}: {error}");
            assert_eq!(error.source().map(ToString::to_string), Some(underneath));
        }
    }
}
