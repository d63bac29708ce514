//! Reads and writes nodes of a session.

use super::Session;
use super::errors::{Found, classify, find};
use crate::error::Result;
use crate::store::zookeeper::tree::names::{NodeOwner, Role};
use crate::store::zookeeper::tree::queue::Queue;
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError};

/// Returns the nodes in a directory; none if there is no directory.
pub(in crate::store::zookeeper) async fn children(
    session: &Session,
    directory: &str,
) -> Result<Queue> {
    let link = session.link().await?;
    in_order(find(link.client.list_children(directory)).await)
}

/// As [`children`], including all writes that were confirmed before, at whichever server.
pub(in crate::store::zookeeper) async fn synced_children(
    session: &Session,
    directory: &str,
) -> Result<Queue> {
    let link = session.link().await?;
    let sync = link.client.sync(directory);
    // Both are sent together and answered in this order.
    let list = find(link.client.list_children(directory));
    let (sync, list) = tokio::join!(sync, list);
    match sync {
        Ok(()) | Err(ZkError::NoNode) => in_order(list),
        Err(error) => Err(classify(error)),
    }
}

/// Puts a node at the end of a queue. Returns its path and the transaction of its creation.
pub(in crate::store::zookeeper) async fn enqueue(
    session: &Session,
    directory: &str,
    role: Role,
    owner: NodeOwner,
    data: &str,
) -> Result<(String, u64)> {
    let prefix = format!("{directory}/{}", role.prefix(owner));
    let mode = CreateMode::EphemeralSequential.with_acls(session.acls);
    loop {
        let link = session.link().await?;
        match find(link.client.create(&prefix, data.as_bytes(), &mode)).await? {
            Found::Yes((stat, sequence)) => {
                return Ok((format!("{prefix}{sequence}"), czxid(stat.czxid)));
            }
            Found::NoNode => drop(make(session, directory, "").await?),
        }
    }
}

/// Returns the transaction of a node's creation, if the node exists and belongs to this session.
///
/// This process may give a session up before the servers end it and delete its nodes.
pub(in crate::store::zookeeper) async fn has_made(
    session: &Session,
    path: &str,
) -> Result<Option<u64>> {
    let link = session.link().await?;
    let stat = link.client.check_stat(path).await.map_err(classify)?;
    let stat = stat.filter(|stat| stat.ephemeral_owner == session.info.id().0);
    Ok(stat.map(|stat| czxid(stat.czxid)))
}

/// Returns the transaction of a node's creation, if the node exists.
pub(in crate::store::zookeeper) async fn made_at(
    session: &Session,
    path: &str,
) -> Result<Option<u64>> {
    let link = session.link().await?;
    let stat = link.client.check_stat(path).await.map_err(classify)?;
    Ok(stat.map(|stat| czxid(stat.czxid)))
}

/// Puts a node into the place of another one, in one step. Returns whether that was there.
pub(in crate::store::zookeeper) async fn replace(
    session: &Session,
    path: &str,
    by: &str,
    data: &str,
) -> Result<bool> {
    let link = session.link().await?;
    let mode = CreateMode::Ephemeral.with_acls(session.acls);
    let mut writer = link.client.new_multi_writer();
    writer.add_delete(path, None).map_err(classify)?;
    writer.add_create(by, data.as_bytes(), &mode).map_err(classify)?;
    match writer.commit().await {
        Ok(_) => Ok(true),
        Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => Ok(false),
        Err(error) => Err(classify(error.into())),
    }
}

/// Makes the directory of a name. Returns whether it did not exist.
pub(in crate::store::zookeeper) async fn make(
    session: &Session,
    directory: &str,
    data: &str,
) -> Result<bool> {
    let while_used = CreateMode::Container.with_acls(session.acls);
    let link = session.link().await?;
    // The servers only delete directories that have had a node, and this one may never get one.
    session.directories.mark_unused(directory);
    match link.client.create(directory, data.as_bytes(), &while_used).await {
        Ok(_) => Ok(true),
        Err(ZkError::NodeExists) => Ok(false),
        // Another client has deleted the tree.
        Err(ZkError::NoNode) => {
            link.client.mkdir(directory, &while_used).await.map_err(classify)?;
            Ok(false)
        }
        Err(error) => Err(classify(error)),
    }
}

/// Deletes a node. Returns whether it existed.
pub(in crate::store::zookeeper) async fn delete(session: &Session, path: &str) -> Result<bool> {
    let link = session.link().await?;
    Ok(matches!(find(link.client.delete(path, None)).await?, Found::Yes(())))
}

/// Writes the data of a node. Returns whether it exists.
pub(in crate::store::zookeeper) async fn write(
    session: &Session,
    path: &str,
    data: &str,
) -> Result<bool> {
    let link = session.link().await?;
    let write = link.client.set_data(path, data.as_bytes(), None);
    Ok(matches!(find(write).await?, Found::Yes(_)))
}

/// Deletes all nodes of one owner, also those whose creation was never answered. Returns whether there were any.
pub(in crate::store::zookeeper) async fn sweep(
    session: &Session,
    directory: &str,
    owner: NodeOwner,
) -> Result<bool> {
    let mut found = false;
    for child in synced_children(session, directory).await?.of(owner) {
        found |= delete(session, &format!("{directory}/{}", child.name)).await?;
    }
    Ok(found)
}

fn in_order(children: Result<Found<Vec<String>>>) -> Result<Queue> {
    match children? {
        Found::Yes(children) => Ok(Queue::new(children)),
        Found::NoNode => Ok(Queue::default()),
    }
}

/// Transaction numbers are positive.
fn czxid(czxid: i64) -> u64 {
    u64::try_from(czxid).unwrap_or_default()
}
