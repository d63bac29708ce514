//! Checks at the start that the server permits all that locks need.

use crate::error::{Error, Result};
use crate::store::redis::RedisStore;
use crate::store::redis::scripts::lock::{Batch, Request};
use crate::store::redis::scripts::{BY_TEXT, reply};
use crate::store::{
    Acquire, Fencing, ForceRelease, HolderId, Name, Release, RenewBatch, RenewCall, Renewal, Store,
    Target,
};
use crate::util::trace;
use std::time::Duration;
use tracing::Level;
use uuid::Uuid;

/// What the try-out has shown, where it has not failed.
pub(in crate::store::redis) enum Tried {
    All,
    /// The user may not touch the probe's key. It may be meant for other names.
    KeyOutOfReach(Error),
}

impl Tried {
    /// Writes a line to the log if nothing could be tried out.
    pub(in crate::store::redis) fn warn(self, prefix: &str) {
        let Self::KeyOutOfReach(error) = self else { return };
        let prefix = prefix.to_owned();
        trace::later(Level::WARN, || {
            move || {
                tracing::warn!(
                    prefix,
                    %error,
                    "this user may not touch the prefix followed by leasehold-probe:, so its permissions were \
                     not checked; if all locks are denied, the prefix does not fit the user"
                );
            }
        });
    }
}

/// Runs each operation once, with a lock of a probe name, so that a missing permission is found at the start. A user
/// without access to this key, but to others, passes.
///
/// In a cluster one server is enough: some of the others may be away, which must affect only their names.
pub(in crate::store::redis) async fn check(store: &RedisStore) -> Result<Tried> {
    let mut result = Ok(Tried::All);
    for name in probe_names(store)? {
        result = check_with(store, name).await;
        if !result.as_ref().is_err_and(Error::is_unavailable) {
            break;
        }
    }
    result
}

/// Returns a name for a probe.
pub(super) fn probe_name() -> Result<Name> {
    Name::new(&format!("leasehold-probe:{}", Uuid::new_v4()))
}

/// Returns probe names, one for each server.
pub(super) fn probe_names(store: &RedisStore) -> Result<Vec<Name>> {
    let servers = match &store.routes {
        Some(routes) if routes.is_cluster() => routes.servers().len(),
        _ => 1,
    };
    let mut names = Vec::new();
    let mut seen = Vec::new();
    // A server with few slots may get no name.
    for _ in 0..servers * 16 {
        let name = probe_name()?;
        let server = store.shard(&name);
        if !seen.contains(&server) {
            seen.push(server);
            names.push(name);
        }
    }
    Ok(names)
}

async fn check_with(store: &RedisStore, name: Name) -> Result<Tried> {
    let target = Target::exclusive(name.clone());
    let timeout = store.attempt;
    let holder = HolderId::new(Uuid::new_v4(), 0);
    let ttl = Duration::from_secs(5);
    // The shortest retention: the fence's key expires a millisecond later.
    let fencing = Some(Fencing::new(1, Some(Duration::from_millis(1))));
    let acquire = Acquire::new(target.clone(), holder, ttl, timeout).with_fencing(fencing);
    match probe_batch(store, &acquire).await {
        Err(error) if reply::is_key_out_of_reach(&error) => {
            return Ok(Tried::KeyOutOfReach(error));
        }
        result => drop(result?),
    }
    let alone = store.acquire(acquire).await;
    let by_text = store.run_on(&BY_TEXT, &name, timeout).await;
    let renewal = Renewal::new(target.clone(), holder);
    let renewed = RenewCall::join(store.renew(RenewBatch::new(vec![renewal], ttl, timeout))).await;
    let release = Release::new(target.clone(), holder, 0, timeout);
    let released = store.release(release).await;
    let forced = store.force_release(ForceRelease::new(target, timeout)).await;
    alone?;
    by_text?;
    renewed?.verdicts.into_iter().collect::<Result<Vec<_>>>()?;
    released?;
    forced.map(|_| Tried::All)
}

/// Runs all that acquires and releases do, in one call of the batch's script: Redis 7.0 does not name the command that
/// it refuses inside a script, but this script does.
async fn probe_batch(store: &RedisStore, acquire: &Acquire) -> Result<()> {
    let Acquire { target, holder, timeout, .. } = acquire;
    let mut batch = Batch::of(5);
    // A later acquire of the same holder id, and a release of a lock that is not there, use other commands than the
    // first.
    for _ in 0..2 {
        acquire.write(&store.keys, &mut batch);
    }
    for count in [2, 0, 0] {
        let release = Release::new(target.clone(), *holder, count, *timeout);
        release.write(&store.keys, &mut batch);
    }
    let reply = store.caller.run(&store.scripts.batch, batch.finish(None), *timeout).await?;
    reply.iter().try_for_each(|element| element.code().map(drop))
}

/// Returns the rule that a refused user lacks, if the words of the server name it.
pub(super) fn missing_rule(words: &str, prefix: &str) -> Option<String> {
    if words.contains("channel") {
        return Some(format!("&redisson_lock__channel:{{{prefix}* &leasehold_inbox:{prefix}*"));
    }
    if words.contains(" key") {
        let keys = ["", "redisson_lock_token:{", "leasehold_note:{"];
        return Some(keys.map(|key| format!("~{key}{prefix}*")).join(" "));
    }
    // The words end with the command: run the 'get' command, or ('get').
    let at = words.find("run the '").map(|at| at + "run the '".len());
    let at = at.or_else(|| words.find("('").map(|at| at + "('".len()))?;
    let command = words[at..].split('\'').next()?;
    let is_command = |c: char| c.is_ascii_alphanumeric() || "|._-".contains(c);
    (!command.is_empty() && command.chars().all(is_command))
        .then(|| format!("+{}", command.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rule_is_spelled_out() {
        for (words, expected) in [
            ("NOPERM this user has no permissions to run the 'evalsha' command", Some("+evalsha")),
            (
                "NOPERM User lease has no permissions to run the 'config|get' command",
                Some("+config|get"),
            ),
            (
                "ERR The user executing the script can't run this command or subcommand ('HSET')",
                Some("+hset"),
            ),
            (
                "NOPERM this user has no permissions to access one of the channels used as arguments",
                Some("&redisson_lock__channel:{app:* &leasehold_inbox:app:*"),
            ),
            (
                "NOPERM No permissions to access a key",
                Some("~app:* ~redisson_lock_token:{app:* ~leasehold_note:{app:*"),
            ),
            ("WRONGPASS invalid username-password pair or user is disabled.", None),
        ] {
            assert_eq!(missing_rule(words, "app:").as_deref(), expected, "{words}");
        }
    }
}
