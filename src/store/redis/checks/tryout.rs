//! Tries out what locks do, as a manager would that connects to the same servers.

use super::dry_run;
use super::permissions::{self, Tried, missing_rule, probe_names};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::connect::finding::{Check, Finding, Severity};
use crate::store::redis::RedisStore;
use crate::store::redis::link::address::Address;
use crate::store::redis::scripts::reply;
use crate::store::{Acquire, Acquired, HolderId, Release, Store, Target, Wait};
use std::time::Duration;
use tokio::time::timeout;
use uuid::Uuid;

/// How long connecting and trying out may take.
const LONGEST: Duration = Duration::from_secs(30);
/// How often a message is waited for: the subscription may be on its way still.
const TRIES: u32 = 3;

/// Connects, tries the permissions out, and waits for a wake-up. `name`: what findings call the server or the servers.
pub(super) async fn try_out(address: &Address, name: &str) -> Vec<Finding> {
    let asked = dry_run::try_out(address).await;
    let address = address.clone().without_preflight();
    let prefix = address.prefix.clone();
    let attempt = address.attempt;
    let opened = Box::pin(RedisStore::open_untried(address, Clock::system()));
    let opened = timeout(LONGEST, opened).await;
    let store = match opened.unwrap_or_else(|_| Err(Error::silent())) {
        Ok(store) => store,
        Err(error) => return vec![failed(name, &error, &prefix)],
    };
    let tried = timeout(LONGEST, permissions::check(&store)).await;
    let mut findings = vec![match tried.unwrap_or_else(|_| Err(Error::silent())) {
        Ok(Tried::All) => dry_run::judge(name, &prefix, asked),
        Ok(Tried::KeyOutOfReach(_)) => {
            let rule = missing_rule("NOPERM No permissions to access a key", &prefix);
            let advice = format!(
                "does not let this user touch the key {prefix}leasehold-probe:.., so its permissions were not tried out; grant \
                 {}, or give the prefix that the user has",
                rule.unwrap_or_default()
            );
            Finding::new(Check::Permissions, Severity::NotChecked, name, advice)
        }
        Err(error) => failed(name, &error, &prefix),
    }];
    if findings[0].severity != Severity::Failure && findings[0].severity != Severity::NotChecked {
        let heard = timeout(LONGEST, is_heard(&store, attempt)).await;
        findings.push(judge_wake_up(name, heard.unwrap_or(Ok(false)), &prefix));
    }
    store.close(attempt).await;
    findings
}

/// Returns what follows from an error of connecting, or of the try-out.
pub(super) fn failed(name: &str, error: &Error, prefix: &str) -> Finding {
    let rule = reply::words_of(error).and_then(|words| missing_rule(words, prefix));
    let check = match error.kind() {
        ErrorKind::Denied => Check::Permissions,
        ErrorKind::Rejected => refused_by(error),
        ErrorKind::Invalid | ErrorKind::Unsupported => Check::Settings,
        _ => Check::Reachable,
    };
    let advice = match rule {
        Some(rule) => {
            format!("denies what locks need: {}; grant {rule}", error.message())
        }
        None => format!("cannot be used: {}", error.message()),
    };
    Finding::new(check, Severity::Failure, name, advice)
}

/// Returns what keeps a server from writes that it refuses.
fn refused_by(error: &Error) -> Check {
    match reply::words_of(error).and_then(|words| words.split(' ').next()) {
        Some("OOM") => Check::Limits,
        Some("MISCONF") => Check::Persistence,
        Some("NOREPLICAS") => Check::Replicas,
        _ => Check::Role,
    }
}

/// Returns whether a release wakes a waiter.
async fn is_heard(store: &RedisStore, attempt: Duration) -> Result<bool> {
    let Some(name) = probe_names(store)?.pop() else { return Ok(false) };
    let target = Target::exclusive(name);
    let wait = Wait::new(target.clone(), None, attempt);
    let Some(mut wakeups) = store.subscribe(wait).await? else { return Ok(false) };
    for number in 0..TRIES {
        let holder = HolderId::new(Uuid::new_v4(), number.into());
        let ttl = Duration::from_secs(5);
        let acquired = store.acquire(Acquire::new(target.clone(), holder, ttl, attempt)).await?;
        if !matches!(acquired, Acquired::Granted { .. }) {
            return Ok(false);
        }
        store.release(Release::new(target.clone(), holder, 0, attempt)).await?;
        if timeout(attempt / TRIES, wakeups.recv()).await.is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn judge_wake_up(name: &str, heard: Result<bool>, prefix: &str) -> Finding {
    let cost =
        "so those that wait ask by the clock, up to 2 s late, and the server gets more requests";
    let (severity, advice) = match heard {
        Ok(true) => (Severity::Fine, "wakes those that wait for a release".to_owned()),
        Ok(false) => {
            let advice = format!(
                "runs releases, but none of their messages arrives, {cost}; see that the user has +publish and \
                 &redisson_lock__channel:{{{prefix}*, and look at what is between: a proxy without pub/sub, or a service address \
                 that leads to several servers"
            );
            (Severity::Warning, advice)
        }
        Err(error) => {
            let rule = reply::words_of(&error).and_then(|words| missing_rule(words, prefix));
            let rule = rule.map(|rule| format!("; grant {rule}")).unwrap_or_default();
            let advice = format!("refuses a subscription, {cost}: {}{rule}", error.message());
            (Severity::Warning, advice)
        }
    };
    Finding::new(Check::Wakeups, severity, name, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_to_connect_is_a_finding_of_what_has_failed() {
        for (words, check, says) in [
            ("WRONGPASS invalid username-password pair", Check::Permissions, "cannot be used"),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                Check::Permissions,
                "grant +evalsha",
            ),
            ("READONLY You can't write against a read only replica.", Check::Role, "read-only"),
            ("OOM command not allowed when used memory", Check::Limits, "out of memory"),
            ("MISCONF Redis is configured to save", Check::Persistence, "cannot save"),
            ("NOREPLICAS Not enough good replicas", Check::Replicas, "too few replicas"),
            ("LOADING Redis is loading the dataset in memory", Check::Reachable, "loading"),
            ("ERR unknown command 'EVALSHA'", Check::Settings, "cannot be used"),
        ] {
            let finding = failed("it", &reply::classify(words), "app:");
            assert_eq!((finding.check, finding.severity), (check, Severity::Failure), "{words}");
            assert!(finding.message().contains(says), "{finding}");
        }
    }

    #[test]
    fn wake_up_that_does_not_arrive_is_a_warning() {
        let judged = |heard| judge_wake_up("it", heard, "app:");
        assert_eq!(judged(Ok(true)).severity, Severity::Fine);
        let silent = judged(Ok(false));
        assert_eq!(silent.severity, Severity::Warning);
        assert!(
            silent.message().contains("+publish and &redisson_lock__channel:{app:*"),
            "{silent}"
        );
        let words =
            "NOPERM this user has no permissions to access one of the channels used as arguments";
        let refused = judged(Err(reply::classify(words)));
        assert_eq!(refused.severity, Severity::Warning);
        assert!(refused.message().contains("grant &redisson_lock__channel:{app:*"), "{refused}");
    }
}
