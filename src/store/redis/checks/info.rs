//! Judges a server by its reply to `INFO`: when connecting, and in an examination.

use crate::error::{Error, Fate, Result};
use crate::store::connect::finding::{Check, Finding, Severity};
use crate::store::redis::link::health::field;
use crate::store::redis::scripts::reply;

/// The first version with the permissions and scripts that leasehold relies on.
const OLDEST: u32 = 7;

/// Returns whether the server refuses a command, to this user or to all, in words of Redis or of a proxy. Without a password
/// it refuses everything, and so does a server that accepts no more clients.
pub(super) fn is_refusal(error: &Error) -> bool {
    let words = reply::words_of(error).unwrap_or_default();
    let is_passing = error.is_unavailable() && error.fate() == Fate::NotExecuted;
    words.starts_with("NOPERM ") || (words.starts_with("ERR ") && !is_passing)
}

/// What a server is a part of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deployment {
    /// It is the only one.
    Alone,
    /// A quorum relies on no single node.
    Quorum,
    /// Sentinel, or a cluster: one of its replicas may be promoted.
    Fleet,
}

/// Returns how a server stands, by its reply to `INFO`: for each check one finding, which is fine or not. `replicas` of its
/// replicas must confirm a grant.
pub(super) fn judge(
    name: &str,
    info: Result<String>,
    replicas: u32,
    deployment: Deployment,
) -> Result<Vec<Finding>> {
    match info {
        Ok(info) => Ok(judge_settings(name, &info, replicas, deployment)),
        Err(error) if is_refusal(&error) && deployment == Deployment::Quorum => {
            let advice = "does not let this user run INFO, by which a quorum knows how long a server runs, so that none connects; \
                 grant +info";
            Ok(vec![Finding::new(Check::Info, Severity::Failure, name, advice)])
        }
        Err(error) if is_refusal(&error) => {
            let refused = Finding::new(
                Check::Info,
                Severity::NotChecked,
                name,
                "does not let this user run INFO, so its settings are not checked; grant +info, or allow Check::Info",
            );
            // This one is known without an answer.
            let mut others = judge_settings(name, "", replicas, deployment);
            others.retain(|finding| finding.check == Check::Failover);
            Ok([vec![refused], others].concat())
        }
        Err(error) => Err(error),
    }
}

fn judge_settings(name: &str, info: &str, replicas: u32, deployment: Deployment) -> Vec<Finding> {
    use Severity::{Failure, Fine, Warning};
    let mut findings = Vec::new();
    let mut find = |check, severity, advice: String| {
        findings.push(Finding::new(check, severity, name, advice));
    };
    let field = |name: &str| field(info, name);

    let version = field("redis_version").unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    let valkey = field("valkey_version");
    let other = field("dragonfly_version");
    if major.is_some_and(|major| major < OLDEST) && valkey.is_none() {
        let advice = format!("is Redis {version}; leasehold needs Redis 7.0 or later, or Valkey");
        find(Check::Version, Failure, advice);
    } else {
        let kind = match (valkey, other, major) {
            (Some(valkey), ..) => format!("is Valkey {valkey}"),
            (_, Some(other), _) => {
                format!("is Dragonfly {other}, on which leasehold is not tested")
            }
            (_, _, Some(_)) => format!("is Redis {version}"),
            (_, _, None) => "does not say which version of Redis or Valkey it is".to_owned(),
        };
        find(Check::Version, Fine, kind);
    }
    let role = field("role");
    if role == Some("slave") {
        let advice = "is a replica, whose writes are refused or lost; connect to its primary, or by redis-sentinel:// or \
             redis-cluster://";
        find(Check::Role, Failure, advice.to_owned());
    } else if role.is_some() {
        find(Check::Role, Fine, "is a primary".to_owned());
    }
    let policy = field("maxmemory_policy").unwrap_or("noeviction");
    match field("maxmemory") {
        Some(limit) if limit != "0" && policy != "noeviction" => find(
            Check::Eviction,
            Failure,
            format!(
                "may evict the key of a lease that is held, by its maxmemory-policy {policy}; set maxmemory-policy \
                 noeviction"
            ),
        ),
        Some("0") => {
            find(Check::Eviction, Fine, "has no maxmemory, so it evicts no key".to_owned())
        }
        Some(_) => find(Check::Eviction, Fine, "evicts no key: noeviction".to_owned()),
        None => {}
    }
    match field("aof_enabled") {
        Some("0") if deployment != Deployment::Quorum => find(
            Check::Persistence,
            Warning,
            "has no append-only file, so a restart forgets all leases and others are granted their names; set \
             appendonly yes, or use a quorum of servers"
                .to_owned(),
        ),
        Some("0") => {
            let advice = "has no append-only file; after a restart the quorum does not count it for one time to live";
            find(Check::Persistence, Fine, advice.to_owned());
        }
        Some(_) => find(Check::Persistence, Fine, "has an append-only file".to_owned()),
        None => {}
    }
    let connected = field("connected_slaves").and_then(|count| count.parse::<u32>().ok());
    if let Some(connected) = connected
        && connected < replicas
    {
        let advice = format!(
            "has too few replicas ({connected}) for replicas({replicas}, ..), so that no grant counts; add replicas, or \
             demand fewer"
        );
        find(Check::Replicas, Failure, advice);
    } else if let Some(connected) = connected {
        let least = field("min_slaves_good_slaves");
        let least = least.map(|good| format!(", {good} of them in time for min-replicas-to-write"));
        let advice = format!("has {connected} replicas{}", least.unwrap_or_default());
        find(Check::Replicas, Fine, advice);
    }
    // As Redis and as Valkey 9 name it.
    let mode = field("redis_mode").or_else(|| field("server_mode"));
    if deployment != Deployment::Fleet && mode == Some("cluster") {
        find(
            Check::ClusterMode,
            Failure,
            "is in cluster mode, where requests for names of several slots cannot share a call, so they and their \
             renewals are refused; write redis-cluster:// in the URL, or give all names one hash tag by prefix(\"{app}:\") \
             and allow Check::ClusterMode"
                .to_owned(),
        );
    }
    // Nothing replaces a server without a replica.
    if deployment == Deployment::Fleet && connected != Some(0) {
        if replicas == 0 {
            find(
                Check::Failover,
                Warning,
                "may be replaced by a replica that lacks the last grants, and others are granted their names; set \
                 replicas(1, ..), or allow Check::Failover"
                    .to_owned(),
            );
        } else {
            let advice = format!("counts a grant only when {replicas} of its replicas have it");
            find(Check::Failover, Fine, advice);
        }
    }
    findings
}

/// Judges how often a server with an append-only file writes it to the disk, by its setting `appendfsync`. A quorum relies on
/// no file.
pub(super) fn judge_fsync(
    name: &str,
    appendfsync: &str,
    deployment: Deployment,
) -> Option<Finding> {
    if deployment == Deployment::Quorum {
        return None;
    }
    let (severity, advice) = match appendfsync {
        "always" => (Severity::Fine, "has each lease on the disk before it is granted"),
        "everysec" => (
            Severity::Fine,
            "writes to the disk each second: when its machine dies, others are granted the names of the last second; \
             appendfsync always, replicas or a quorum prevent that",
        ),
        "no" => (
            Severity::Warning,
            "leaves it to the system when the append-only file reaches the disk (appendfsync no), often half a minute \
             later: when its machine dies, others are granted the names of that time; set appendfsync everysec or always",
        ),
        _ => return None,
    };
    Some(Finding::new(Check::Persistence, severity, name, advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIT: &str = "redis_version:7.0.15\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n\
                       role:master\r\nconnected_slaves:0\r\n";

    fn checks(info: &str, replicas: u32, deployment: Deployment) -> Vec<Check> {
        let findings = judge("it", Ok(info.to_owned()), replicas, deployment).unwrap();
        let wrong = findings.iter().filter(|finding| !finding.is_fine());
        wrong.map(|finding| finding.check).collect()
    }

    #[test]
    fn each_setting_is_judged_by_what_follows_from_it() {
        let limit = ("maxmemory:0", "maxmemory:1048576");
        let policy = |policy: &str| FIT.replace("noeviction", policy);
        for (info, expected) in [
            (FIT.to_owned(), None),
            (String::new(), None),
            (FIT.replace("7.0.15", "8.1.0"), None),
            (FIT.replace("7.0.15", "6.2.7"), Some(Check::Version)),
            (FIT.replace("7.0.15", "6.2.7\r\nvalkey_version:8.0.1"), None),
            (FIT.replace("7.0.15", "unknown"), None),
            (FIT.replace("master", "slave"), Some(Check::Role)),
            (FIT.replace("aof_enabled:1", "aof_enabled:0"), Some(Check::Persistence)),
            (FIT.replace(limit.0, limit.1), None),
            (policy("allkeys-lru"), None),
            (policy("allkeys-lru").replace(limit.0, limit.1), Some(Check::Eviction)),
            (policy("volatile-ttl").replace(limit.0, limit.1), Some(Check::Eviction)),
        ] {
            assert_eq!(checks(&info, 0, Deployment::Alone), Vec::from_iter(expected), "{info}");
        }
        let all = "redis_version:5.0\nrole:slave\nmaxmemory:1\nmaxmemory_policy:allkeys-lfu\naof_enabled:0";
        assert_eq!(checks(all, 0, Deployment::Alone).len(), 4);
        assert_eq!(checks(all, 0, Deployment::Quorum).len(), 3, "a quorum relies on no file");
    }

    #[test]
    fn replicas_count_only_where_they_are_demanded() {
        let one = FIT.replace("connected_slaves:0", "connected_slaves:1");
        assert_eq!(checks(FIT, 0, Deployment::Alone), []);
        assert_eq!(checks(FIT, 1, Deployment::Alone), [Check::Replicas]);
        assert_eq!(checks(&one, 0, Deployment::Fleet), [Check::Failover]);
        assert_eq!(checks(FIT, 0, Deployment::Fleet), [], "nothing replaces it");
        let cluster = format!("server_mode:cluster\r\n{FIT}");
        assert_eq!(checks(&cluster, 0, Deployment::Alone), [Check::ClusterMode]);
        assert_eq!(checks(&cluster, 1, Deployment::Fleet), [Check::Replicas]);
        assert_eq!(checks(&one, 1, Deployment::Fleet), []);
        assert_eq!(checks(&one, 2, Deployment::Fleet), [Check::Replicas]);
    }

    #[test]
    fn refusal_of_info_is_a_finding_and_an_outage_an_error() {
        let judged_in = |text: &str, deployment| {
            let error = crate::store::redis::scripts::reply::classify(text);
            judge("it", Err(error), 0, deployment)
        };
        let judged = |text: &str| judged_in(text, Deployment::Alone);
        let words = "NOPERM this user has no permissions to run the 'info' command";
        let of_a_node = judged_in(words, Deployment::Quorum).unwrap();
        assert_eq!(of_a_node[0].severity, Severity::Failure);
        assert_eq!(judged(words).unwrap()[0].severity, Severity::NotChecked);
        for text in [
            "NOPERM this user has no permissions to run the 'info' command",
            "NOPERM User lease has no permissions to run the 'info' command",
            "ERR unknown command 'INFO', with args beginning with: ",
            "ERR unsupported command 'info'",
            "ERR not here",
        ] {
            assert_eq!(judged(text).unwrap()[0].check, Check::Info, "{text}");
        }
        for text in [
            "NOAUTH Authentication required.",
            "BUSY Redis is busy",
            "ERR max number of clients reached",
            "timeout",
        ] {
            assert!(judged(text).is_err(), "{text}");
        }
    }

    #[test]
    fn append_only_file_is_judged_by_when_it_reaches_the_disk() {
        let severity =
            |word, deployment| judge_fsync("it", word, deployment).map(|finding| finding.severity);
        for (word, expected) in [
            ("always", Some(Severity::Fine)),
            ("everysec", Some(Severity::Fine)),
            ("no", Some(Severity::Warning)),
            ("", None),
        ] {
            assert_eq!(severity(word, Deployment::Alone), expected, "{word}");
            assert_eq!(severity(word, Deployment::Quorum), None, "{word}");
        }
    }

    #[test]
    fn each_check_has_one_finding_that_says_what_was_seen() {
        let findings = judge("it", Ok(FIT.to_owned()), 0, Deployment::Alone).unwrap();
        let said: Vec<_> = findings.iter().map(ToString::to_string).collect();
        let expected = [
            "it is Redis 7.0.15",
            "it is a primary",
            "it has no maxmemory, so it evicts no key",
            "it has an append-only file",
            "it has 0 replicas",
        ];
        assert_eq!(said, expected);
        for (field, says) in [
            ("valkey_version:9.0.1", "is Valkey 9.0.1"),
            ("dragonfly_version:df-v1.2", "Dragonfly df-v1.2"),
        ] {
            let info = format!("{FIT}{field}\r\n");
            let findings = judge("it", Ok(info), 0, Deployment::Alone).unwrap();
            assert!(findings[0].is_fine() && findings[0].message().contains(says), "{findings:?}");
        }
    }
}
