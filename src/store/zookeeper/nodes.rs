//! What a session asks of its servers: nodes and their lines.

use super::errors::{Found, find, sorted};
use super::names::{Child, Who, line};
use super::session::Session;
use crate::error::Result;
use zookeeper_client::{CreateMode, Error as ZkError};

impl Session {
    /// The nodes in a directory, in their order; none if there is no directory.
    pub(super) async fn line(&self, directory: &str) -> Result<Vec<Child>> {
        let link = self.link().await?;
        in_order(find(link.client.list_children(directory)).await)
    }

    /// As [`Session::line`], with all that was written before, wherever.
    pub(super) async fn line_now(&self, directory: &str) -> Result<Vec<Child>> {
        let link = self.link().await?;
        let sync = link.client.sync(directory);
        // Both leave together, and are answered in this order.
        let list = find(link.client.list_children(directory));
        let (sync, list) = tokio::join!(sync, list);
        match sync {
            Ok(()) | Err(ZkError::NoNode) => in_order(list),
            Err(error) => Err(sorted(error)),
        }
    }

    /// Puts a node at the end of a line; returns its path and its creation's transaction.
    pub(super) async fn enqueue(
        &self,
        directory: &str,
        who: Who,
        data: &str,
    ) -> Result<(String, u64)> {
        let prefix = who.path(directory);
        let in_line = CreateMode::EphemeralSequential.with_acls(self.acls);
        loop {
            let link = self.link().await?;
            match find(link.client.create(&prefix, data.as_bytes(), &in_line)).await? {
                Found::Yes((stat, sequence)) => {
                    return Ok((format!("{prefix}{sequence}"), czxid(stat.czxid)));
                }
                Found::NoNode => self.make(directory).await?,
            }
        }
    }

    /// The creation's transaction of a node, if it is there and of this session.
    ///
    /// A session may be given up here before the servers end it, and with it its nodes.
    pub(super) async fn has_made(&self, path: &str) -> Result<Option<u64>> {
        let link = self.link().await?;
        let stat = link.client.check_stat(path).await.map_err(sorted)?;
        let stat = stat.filter(|stat| stat.ephemeral_owner == self.info.id().0);
        Ok(stat.map(|stat| czxid(stat.czxid)))
    }

    /// Makes the directory of a lock.
    pub(super) async fn make(&self, directory: &str) -> Result<()> {
        let while_used = CreateMode::Container.with_acls(self.acls);
        let link = self.link().await?;
        // The servers clear away what has had a node, and that may never come.
        self.directories.left(directory);
        match link.client.create(directory, b"", &while_used).await {
            Ok(_) | Err(ZkError::NodeExists) => Ok(()),
            // Somebody has emptied the tree.
            Err(ZkError::NoNode) => link.client.mkdir(directory, &while_used).await.map_err(sorted),
            Err(error) => Err(sorted(error)),
        }
    }

    /// Whether it was there.
    pub(super) async fn delete(&self, path: &str) -> Result<bool> {
        let link = self.link().await?;
        Ok(matches!(find(link.client.delete(path, None)).await?, Found::Yes(())))
    }

    /// Whether it was there.
    pub(super) async fn write(&self, path: &str, data: &str) -> Result<bool> {
        let link = self.link().await?;
        let write = link.client.set_data(path, data.as_bytes(), None);
        Ok(matches!(find(write).await?, Found::Yes(_)))
    }

    /// Deletes all nodes of one owner, wherever the answers to their creation went; whether there were any.
    pub(super) async fn sweep(&self, directory: &str, who: Who) -> Result<bool> {
        let mut found = false;
        for child in self.line_now(directory).await?.iter().filter(|child| child.is_of(who)) {
            found |= self.delete(&format!("{directory}/{}", child.name)).await?;
        }
        Ok(found)
    }
}

fn in_order(children: Result<Found<Vec<String>>>) -> Result<Vec<Child>> {
    match children? {
        Found::Yes(children) => Ok(line(children)),
        Found::NoNode => Ok(Vec::new()),
    }
}

/// Transaction numbers are positive.
fn czxid(czxid: i64) -> u64 {
    u64::try_from(czxid).unwrap_or_default()
}
