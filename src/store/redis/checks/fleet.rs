//! Judges a cluster, and sentinels: whether they are complete, and how soon they replace a server.

use super::commands::Asked;
use crate::store::connect::finding::{Check, Finding, Severity};
use crate::store::redis::link::command::Reply;
use crate::store::redis::link::health::field;
use std::time::Duration;

/// How long the election of a replica takes, once the others hold its primary for dead.
const ELECTION: Duration = Duration::from_secs(2);

/// The shares of a time to live within which a failover must end: a lease is renewed after a third, and its token fires a tenth
/// before its end. With a short time to live, the shortest pauses count for more.
const SHARE: f64 = 0.4;

fn find(name: &str, severity: Severity, advice: String) -> Finding {
    Finding::new(Check::Fleet, severity, name, advice)
}

/// Returns what a failover that takes so long costs.
fn judge_failover(name: &str, setting: &str, detection: Duration, ttl: Duration) -> Finding {
    let failover = detection + ELECTION;
    let least = Duration::from_secs_f64(failover.as_secs_f64() / SHARE);
    let seen = format!(
        "replaces a dead primary in about {failover:.1?}, by its {setting} of {detection:?}"
    );
    if ttl < least {
        let advice = format!(
            "{seen}: a lease outlives that with a time to live of {least:.0?} or more, and not surely with {ttl:?}; choose a \
             longer time to live, or a smaller {setting}"
        );
        find(name, Severity::Warning, advice)
    } else {
        find(name, Severity::Fine, seen)
    }
}

/// Judges a node of a cluster, by its reply to `CLUSTER INFO`.
pub(super) fn judge_cluster(name: &str, cluster: &Asked) -> Vec<Finding> {
    let Some(answer) = cluster.answer() else {
        let rule = "+cluster|info";
        return Vec::from_iter(cluster.not_checked(
            Check::Fleet,
            name,
            "the state of the cluster",
            rule,
        ));
    };
    let info = answer.text();
    let number = |name: &str| field(&info, name).and_then(|text| text.parse::<u32>().ok());
    let state = field(&info, "cluster_state").unwrap_or("unknown");
    let assigned = number("cluster_slots_assigned").unwrap_or_default();
    let failing = number("cluster_slots_fail").unwrap_or_default();
    let suspected = number("cluster_slots_pfail").unwrap_or_default();
    let finding = if state != "ok" || failing > 0 {
        let advice = format!(
            "says that the state of the cluster is {state}, with {assigned} of 16384 slots assigned and {failing} failed: names \
             of these slots cannot be locked; look at CLUSTER NODES, and assign or repair them"
        );
        find(name, Severity::Failure, advice)
    } else if assigned < 16384 || suspected > 0 {
        let advice = format!(
            "says that {assigned} of 16384 slots are assigned and {suspected} are perhaps failing: names of the others cannot be \
             locked; look at CLUSTER NODES"
        );
        find(name, Severity::Warning, advice)
    } else {
        let size = number("cluster_size").unwrap_or_default();
        find(name, Severity::Fine, format!("sees a whole cluster of {size} primaries"))
    };
    vec![finding]
}

/// Judges the time to replace a node of a cluster, by the reply to `CONFIG GET cluster-node-timeout`.
pub(super) fn judge_node_timeout(name: &str, config: &Asked, ttl: Duration) -> Option<Finding> {
    let setting = "cluster-node-timeout";
    let Some(answer) = config.answer() else {
        return config.not_checked(Check::Fleet, name, "its cluster-node-timeout", "+config|get");
    };
    let millis = answer.value_of(setting)?.parse().ok()?;
    Some(judge_failover(name, setting, Duration::from_millis(millis), ttl))
}

/// Judges the replication of a replica, by its reply to `INFO`.
pub(super) fn judge_replica(name: &str, info: &str) -> Option<Finding> {
    let finding =
        |severity, advice: &str| Some(Finding::new(Check::Replicas, severity, name, advice));
    match (field(info, "role")?, field(info, "master_link_status")) {
        ("slave", Some("up")) => finding(Severity::Fine, "is a replica that follows its primary"),
        ("slave", _) => finding(
            Severity::Warning,
            "is a replica without a link to its primary: promoted now, it would have forgotten all later grants; look at its \
             log, masterauth and the network",
        ),
        _ => finding(
            Severity::Warning,
            "is no replica, though the fleet calls it one: a failover may be under way; run this again",
        ),
    }
}

/// Judges what a sentinel says of the primary, by its reply to `SENTINEL MASTER`, where the URL names so many sentinels.
pub(super) fn judge_sentinel(
    name: &str,
    answer: &Reply,
    named: usize,
    ttl: Duration,
) -> Vec<Finding> {
    let number = |name: &str| answer.value_of(name)?.parse::<u64>().ok();
    let flags = answer.value_of("flags").unwrap_or_default();
    let mut found = Vec::new();
    if flags.contains("_down") || flags.contains("disconnected") {
        let advice = format!(
            "holds the primary for down ({flags}); a failover is due, or waits for a majority"
        );
        found.push(find(name, Severity::Failure, advice));
    }
    let all = number("num-other-sentinels").map_or(0, |others| others + 1);
    let quorum = number("quorum").unwrap_or_default();
    if quorum > all {
        let advice = format!(
            "knows {all} sentinels, and needs {quorum}: no failover can begin; start the missing"
        );
        found.push(find(name, Severity::Failure, advice));
    } else if all < 3 {
        let advice = format!(
            "knows {all} sentinels: where one of two is away no majority is left, and none replaces the primary; run three"
        );
        found.push(find(name, Severity::Warning, advice));
    } else if all > named as u64 {
        let advice = format!(
            "knows {all} sentinels, of which the URL names {named}; name all, for the day when those are away"
        );
        found.push(find(name, Severity::Warning, advice));
    }
    if number("num-slaves") == Some(0) {
        let advice = "knows no replica of the primary, so that none replaces it";
        found.push(find(name, Severity::Warning, advice.to_owned()));
    }
    if let Some(millis) = number("down-after-milliseconds") {
        let down = Duration::from_millis(millis);
        found.push(judge_failover(name, "down-after-milliseconds", down, ttl));
    }
    found
}

/// Returns the replicas of a primary, each as a host and a port, by its reply to `INFO`.
pub(super) fn replicas_of(info: &str) -> Vec<[String; 2]> {
    let lines = info.lines().filter(|line| line.starts_with("slave"));
    lines
        .filter_map(|line| {
            let fields = line.split_once(':')?.1.trim();
            let field = |name: &str| {
                let value =
                    |field: &str| Some(field.strip_prefix(name)?.strip_prefix('=')?.to_owned());
                fields.split(',').find_map(value)
            };
            Some([field("ip")?, field("port")?])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::checks::commands::tests::{list, refused, text};
    use Severity::{Failure, Fine, NotChecked, Warning};

    const TTL: Duration = Duration::from_secs(30);

    #[test]
    fn cluster_is_judged_by_its_slots() {
        let whole = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_pfail:0\r\n\
                     cluster_slots_fail:0\r\ncluster_size:3\r\n";
        for (info, expected) in [
            (whole.to_owned(), Fine),
            (whole.replace(":ok", ":fail"), Failure),
            (whole.replace("slots_fail:0", "slots_fail:7"), Failure),
            (whole.replace("pfail:0", "pfail:7"), Warning),
            (whole.replace("16384", "16383"), Warning),
            (String::new(), Failure),
        ] {
            let found = judge_cluster("it", &Asked::Answered(text(&info)));
            assert_eq!((found.len(), found[0].severity), (1, expected), "{info}");
        }
        let found = judge_cluster("it", &refused());
        assert_eq!(found[0].severity, NotChecked);
        assert!(found[0].message().contains("+cluster|info"));
    }

    #[test]
    fn time_to_live_must_outlast_a_failover() {
        let severity = |millis: &str| {
            let config = Asked::Answered(list(vec![text("cluster-node-timeout"), text(millis)]));
            judge_node_timeout("it", &config, TTL).unwrap().severity
        };
        assert_eq!(
            (severity("10000"), severity("10001"), severity("15000")),
            (Fine, Warning, Warning)
        );
        assert_eq!(judge_node_timeout("it", &refused(), TTL).unwrap().severity, NotChecked);
        assert_eq!(judge_node_timeout("it", &Asked::Answered(list(Vec::new())), TTL), None);
    }

    #[test]
    fn sentinels_are_judged_by_what_they_know() {
        let fit = [
            ("flags", "master"),
            ("num-slaves", "2"),
            ("num-other-sentinels", "2"),
            ("quorum", "2"),
            ("down-after-milliseconds", "5000"),
        ];
        let judged = |name: &str, value: &str, named| {
            let words = fit.iter().flat_map(|(known, fit)| {
                [text(known), text(if *known == name { value } else { fit })]
            });
            judge_sentinel("it", &list(words.collect()), named, TTL)
        };
        for (name, value, named, expected) in [
            ("", "", 3, Fine),
            ("", "", 2, Warning),
            ("flags", "master,s_down", 3, Failure),
            ("num-slaves", "0", 3, Warning),
            ("num-other-sentinels", "1", 2, Warning),
            ("quorum", "4", 3, Failure),
            ("down-after-milliseconds", "30000", 3, Warning),
        ] {
            let worst = judged(name, value, named).iter().map(|finding| finding.severity).max();
            assert_eq!(worst, Some(expected), "{name} {value}");
        }
    }

    #[test]
    fn replicas_are_read_from_the_reply_of_the_primary() {
        let info = "role:master\r\nconnected_slaves:2\r\nslave0:ip=10.0.0.2,port=6380,state=online,offset=1,lag=0\r\n\
                    slave1:ip=::1,port=6381,state=wait_bgsave,offset=0,lag=0\r\nslave_repl_offset:3\r\n";
        let expected = [["10.0.0.2", "6380"], ["::1", "6381"]];
        assert_eq!(replicas_of(info), expected.map(|one| one.map(str::to_owned)));
        let judged = |info: &str| judge_replica("it", info).map(|finding| finding.severity);
        assert_eq!(judged("role:slave\r\nmaster_link_status:up\r\n"), Some(Fine));
        assert_eq!(judged("role:slave\r\nmaster_link_status:down\r\n"), Some(Warning));
        assert_eq!(judged("role:master\r\n"), Some(Warning));
        assert_eq!(judged(""), None);
    }
}
