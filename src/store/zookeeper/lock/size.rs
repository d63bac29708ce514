//! Keeps the number of permits of a semaphore that is idle: in the data of its directory.
//!
//! The nodes of a semaphore that is in use say its size themselves. The data only decides for the first of them, so it may
//! be late, or lost with the directory.

use crate::error::{Error, Result};
use crate::store::zookeeper::session::errors::{Found, classify, find};
use crate::store::zookeeper::session::{Session, nodes};
use zookeeper_client::Error as ZkError;

/// Sets the size of a semaphore, or returns an error if it has another one.
pub(super) async fn claim_size(session: &Session, directory: &str, size: u32) -> Result<()> {
    let text = format!("permits {size}");
    loop {
        let link = session.link().await?;
        let Found::Yes((data, stat)) = find(link.client.get_data(directory)).await? else {
            if nodes::make(session, directory, &text).await? {
                return Ok(());
            }
            continue;
        };
        match parse(&data) {
            Some(has) if has == size => return Ok(()),
            Some(has) => return Err(Error::other_size(has.into(), size)),
            None => {}
        }
        let write = link.client.set_data(directory, text.as_bytes(), Some(stat.version));
        match write.await {
            Ok(_) => return Ok(()),
            // Another was faster, or the directory was deleted.
            Err(ZkError::BadVersion | ZkError::NoNode) => {}
            Err(error) => return Err(classify(error)),
        }
    }
}

/// Returns the size of an idle semaphore.
pub(super) async fn size_of(session: &Session, directory: &str) -> Result<Option<u32>> {
    let link = session.link().await?;
    match find(link.client.get_data(directory)).await? {
        Found::Yes((data, _)) => Ok(parse(&data)),
        Found::NoNode => Ok(None),
    }
}

/// Forgets the size of a semaphore, if there is one.
pub(super) async fn forget_size(session: &Session, directory: &str) -> Result<()> {
    if size_of(session, directory).await?.is_some() {
        nodes::write(session, directory, "").await?;
    }
    Ok(())
}

fn parse(data: &[u8]) -> Option<u32> {
    std::str::from_utf8(data).ok()?.strip_prefix("permits ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_read_as_it_was_written() {
        assert_eq!(parse(b"permits 12"), Some(12));
        for other in ["", "12", "permits ", "permits -1"] {
            assert_eq!(parse(other.as_bytes()), None, "{other:?}");
        }
    }
}
