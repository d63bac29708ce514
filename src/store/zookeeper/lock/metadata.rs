//! The description of a holder: it follows the record in the data of the holder's node, and ends with the node.

use super::holds::OwnNode;
use super::recipe::Recipe;
use crate::error::Result;
use crate::store::zookeeper::session::errors::{Found, classify, find, in_time};
use crate::store::zookeeper::session::nodes;
use crate::store::zookeeper::tree::names::parse_record;
use crate::store::{Annotate, Describe, Metadata, Name, Owner, Owners, Signal};
use std::sync::Arc;
use std::time::Duration;
use zookeeper_client::{AddWatchMode, CreateMode, Error as ZkError};

/// Writes the description of a holder, or deletes it, if the holder has the name.
pub(in crate::store::zookeeper) async fn annotate(
    recipe: &Recipe,
    request: Annotate,
) -> Result<bool> {
    request.require_exclusive()?;
    let Annotate { target, holder, metadata, .. } = request;
    let name = &target.name;
    let own = recipe
        .holds
        .find(name, holder)
        .filter(|own| own.granted && !own.session.is_over() && own.expires > recipe.clock.now());
    let Some(own) = own else { return Ok(false) };
    let Some(path) = &own.path else { return Ok(false) };
    loop {
        let link = own.session.link().await?;
        let Found::Yes((data, stat)) = find(link.client.get_data(path)).await? else {
            return Ok(false);
        };
        let Some((_, count)) = parse_record(&data) else { return Ok(false) };
        let known = read(&data);
        let description = match (&metadata, &known) {
            // A late copy.
            (Some(new), Some(known)) if known.revision >= new.revision => return Ok(true),
            (Some(new), _) => Some(Arc::from(text(new))),
            (None, Some(_)) => None,
            (None, None) => return Ok(false),
        };
        // A new hold count is written with what is here.
        if !recipe.holds.update(name, holder, |own| own.description.clone_from(&description)) {
            return Ok(false);
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let data = OwnNode { description, ..own.clone() }.data(holder, count);
        match link.client.set_data(path, data.as_bytes(), Some(stat.version)).await {
            Ok(_) => return Ok(true),
            Err(ZkError::NoNode) => return Ok(false),
            // Another hold count was written meanwhile.
            Err(ZkError::BadVersion) => {}
            Err(error) => return Err(classify(error)),
        }
    }
}

/// Keeps the description of a manager in a node that ends with the session, or deletes it.
pub(in crate::store::zookeeper) async fn describe(
    recipe: &Recipe,
    request: &Describe,
) -> Result<()> {
    let session = recipe.sessions.current()?;
    let path = format!("{}/{}", recipe.names.managers(), request.key());
    let Some(owner) = &request.owner else { return nodes::delete(&session, &path).await.map(drop) };
    let data = text(&Metadata::new(owner.clone(), 0));
    let link = session.link().await?;
    if let Found::Yes(_) = find(link.client.set_data(&path, data.as_bytes(), None)).await? {
        return Ok(());
    }
    let forever = CreateMode::Persistent.with_acls(session.acls);
    link.client.mkdir(&recipe.names.managers(), &forever).await.map_err(classify)?;
    let while_alive = CreateMode::Ephemeral.with_acls(session.acls);
    match link.client.create(&path, data.as_bytes(), &while_alive).await {
        // A copy of this request.
        Ok(_) | Err(ZkError::NodeExists) => Ok(()),
        Err(error) => Err(classify(error)),
    }
}

/// Returns the descriptions of managers.
pub(in crate::store::zookeeper) async fn owners(
    recipe: &Recipe,
    request: &Owners,
) -> Result<Vec<Option<Owner>>> {
    let link = recipe.sessions.current()?.link().await?;
    let path = |manager: &String| format!("{}/{manager}", recipe.names.managers());
    let paths: Vec<_> = request.managers.iter().map(path).collect();
    // All are sent together.
    let reads: Vec<_> = paths.iter().map(|path| link.client.get_data(path)).collect();
    let mut owners = Vec::with_capacity(reads.len());
    for data in reads {
        owners.push(match find(data).await? {
            Found::Yes((data, _)) => read(&data).map(|metadata| metadata.owner),
            Found::NoNode => None,
        });
    }
    Ok(owners)
}

/// Sets a signal at each change below the directory of a name, forever.
pub(in crate::store::zookeeper) async fn observe(
    recipe: &Recipe,
    name: &Name,
    signal: &Signal,
    attempt: Duration,
) {
    let directory = recipe.names.lock(name);
    loop {
        let watched = async {
            let link = recipe.sessions.current()?.link().await?;
            let watch = link.client.watch(&directory, AddWatchMode::PersistentRecursive);
            let watch = in_time(attempt, async { watch.await.map_err(classify) }).await?;
            Ok::<_, crate::error::Error>((link, watch))
        };
        if let Ok((link, mut watch)) = watched.await {
            // A change until now came before the watch.
            signal.set();
            loop {
                tokio::select! {
                    biased;
                    // The next link does not have this watch.
                    () = link.gone() => break,
                    _ = watch.changed() => signal.set(),
                }
            }
        }
        tokio::time::sleep(attempt).await;
    }
}

/// Returns the lines that follow the record of a hold: each text with its name and length before it, because it can have
/// several lines.
fn text(metadata: &Metadata) -> String {
    let words = metadata.words().into_iter();
    words.map(|(name, text)| format!("\n{name} {}\n{text}", text.len())).collect()
}

/// Reads what follows the record in the data of a node.
pub(super) fn read(data: &[u8]) -> Option<Metadata> {
    let (_, mut rest) = std::str::from_utf8(data).ok()?.split_once('\n')?;
    let mut metadata = Metadata::default();
    loop {
        let (head, after) = rest.split_once('\n')?;
        let (name, length) = head.split_once(' ')?;
        let (text, next) = after.split_at_checked(length.parse().ok()?)?;
        metadata.read(name, text);
        match next.strip_prefix('\n') {
            Some(next) => rest = next,
            None => return Some(metadata),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HolderId;

    #[test]
    fn metadata_is_read_beside_the_record() {
        let holder = HolderId::new(uuid::Uuid::nil(), 7);
        let metadata = Metadata::new(Owner::new("billing"), 3)
            .with_label(Some("two\nlines\n".into()))
            .with_value(Some(String::new()));
        let data = crate::store::zookeeper::tree::names::record(holder, 2) + &text(&metadata);
        assert_eq!(parse_record(data.as_bytes()), Some((holder.to_string(), 2)));
        assert_eq!(read(data.as_bytes()), Some(metadata));
        for other in ["a 1", "", "a 1\nx", "a 1\nlabel 9\nx"] {
            assert_eq!(read(other.as_bytes()), None, "{other:?}");
        }
    }
}
