//! Examines the servers behind an address: asks each of them, watches its clock, and tries out what locks do.
//!
//! It only reads, besides the try-out that connecting does as well. No question takes longer than an attempt, and all of them
//! together end in [`LONGEST`], whatever the servers do.

use super::commands::{Asked, ask};
use super::fleet::{judge_cluster, judge_node_timeout, judge_replica, judge_sentinel, replicas_of};
use super::info::{Deployment, judge, judge_fsync};
use super::leftovers;
use super::limits::{Limits, judge_limits};
use super::permissions::{missing_rule, probe_name};
use super::stalls::{Stalls, judge_stalls};
use super::times::{judge_clock, judge_round_trips};
use super::tryout::{failed, try_out};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::store::connect::examination::{ALL, Examination, Examined, WallClock};
use crate::store::connect::finding::{Check, Finding, Severity};
use crate::store::redis::link::address::{Address, Server};
use crate::store::redis::link::command::Reply;
use crate::store::redis::link::health::field;
use crate::store::redis::link::inquiry::Inquiry;
use crate::store::redis::link::script::slot;
use crate::store::redis::link::url::{Sentinels, Topology};
use crate::store::redis::scripts::{ScriptCall, Scripts, reply};
use crate::store::redis::topology::AllServers;
use crate::util::join::{BoxedCall, all};
use crate::util::panics::caught;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// No question is asked after that.
const LONGEST: Duration = Duration::from_secs(40);
/// How long it may take to find the servers of a fleet.
const SEARCH: Duration = Duration::from_secs(15);
/// The time between two readings of a clock.
const SPAN: Duration = Duration::from_secs(5);
/// How often a clock is read at once, of which the quickest counts.
const READINGS: usize = 5;
/// The number of requests of which the times are judged; of a slow server, as many as it answers in [`SPAN`].
const REQUESTS: usize = 50;
/// The least number of them.
const LEAST_REQUESTS: usize = 5;
/// The settings that are asked for.
const CONFIG: [&str; 9] = [
    "CONFIG",
    "GET",
    "timeout",
    "client-output-buffer-limit",
    "busy-reply-threshold",
    "appendfsync",
    "cluster-node-timeout",
    "latency-monitor-threshold",
    "slowlog-log-slower-than",
];

/// A server that is examined.
struct Subject {
    name: String,
    address: Address,
    part: Part,
    /// The key of a probe, which the server serves. `None` for a replica.
    probe: Option<String>,
}

/// What a server is in its deployment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Alone,
    /// Of a quorum.
    Node,
    Primary {
        in_cluster: bool,
    },
    Replica,
}

/// Examines the servers of an address.
pub(crate) async fn examine(address: Address) -> Examination {
    let until = Instant::now() + LONGEST;
    let mut done = Examination::default();
    let subjects = match find_subjects(&address, until, &mut done.findings).await {
        Ok(subjects) => subjects,
        Err(error) => {
            done.findings.push(failed(ALL, &error, &address.prefix));
            Vec::new()
        }
    };
    let name = match &subjects[..] {
        [one] if address.is_one_server() => one.name.clone(),
        _ => ALL.to_owned(),
    };
    let is_found = !subjects.is_empty();
    let examine = |subject: Subject| {
        let name = subject.name.clone();
        let examined = caught("examination", examine_one(subject, until));
        Box::pin(async move {
            let panicked = || {
                let advice = "could not be examined: an answer of it was not understood";
                let check = Check::Reachable;
                Examination::of(Finding::new(check, Severity::Failure, &name, advice))
            };
            examined.await.unwrap_or_else(panicked)
        }) as BoxedCall<'_, _>
    };
    let all_asked = all(subjects.into_iter().map(examine).collect());
    let trying = async {
        match is_found {
            // Boxed: connecting is a large future.
            true => Box::pin(try_out(&address, &name)).await,
            false => Vec::new(),
        }
    };
    let (examined, tried) = tokio::join!(all_asked, trying);
    examined.into_iter().for_each(|one| done.join(one));
    add_tried(&mut done.findings, tried);
    done
}

/// Adds what the try-out has found, unless it has only failed for a reason that is known already.
fn add_tried(findings: &mut Vec<Finding>, tried: Vec<Finding>) {
    let explains = |finding: &Finding| {
        let causes = [Check::Reachable, Check::Role, Check::Permissions];
        finding.severity == Severity::Failure && causes.contains(&finding.check)
    };
    let is_explained = findings.iter().any(explains);
    let follows = |finding: &Finding| {
        let is_same = |known: &Finding| {
            known.check == finding.check
                && known.server == finding.server
                && known.severity == Severity::Failure
        };
        let is_effect = matches!(finding.check, Check::Reachable | Check::Role);
        is_explained && is_effect || findings.iter().any(is_same)
    };
    let tried: Vec<Finding> = tried.into_iter().filter(|finding| !follows(finding)).collect();
    findings.extend(tried);
}

/// Finds the servers. What sentinels say goes into `findings`.
async fn find_subjects(
    address: &Address,
    until: Instant,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Subject>> {
    let silent = |_| Err(Error::silent());
    match &address.topology {
        Topology::Single => {
            let part = if address.node.is_some() { Part::Node } else { Part::Alone };
            let probe = Some(format!("{}{}", address.prefix, probe_name()?.as_str()));
            let name = address.server_name();
            Ok(vec![Subject { name, address: address.clone(), part, probe }])
        }
        Topology::Sentinel(sentinels) => {
            findings.extend(ask_sentinels(address, sentinels, until).await);
            let all = timeout(SEARCH, AllServers::find(address)).await.unwrap_or_else(silent)?;
            let mut subjects = primaries(address, &all, false)?;
            if let Some(primary) = subjects.first() {
                let replicas = timeout(SEARCH, replicas_of_primary(&primary.address, until)).await;
                let replicas = replicas.ok().and_then(Result::ok).unwrap_or_default();
                subjects.extend(replicas.iter().map(|server| replica(address, server)));
            }
            Ok(subjects)
        }
        Topology::Cluster(seeds) => {
            let all = timeout(SEARCH, AllServers::find(address)).await.unwrap_or_else(silent);
            let all = match all {
                Ok(all) => all,
                Err(error) => {
                    findings.extend(ask_seeds(address, seeds, until).await);
                    return Err(error);
                }
            };
            let mut subjects = primaries(address, &all, true)?;
            subjects.extend(all.replicas().iter().map(|server| replica(address, server)));
            Ok(subjects)
        }
    }
}

fn primaries(address: &Address, all: &AllServers, in_cluster: bool) -> Result<Vec<Subject>> {
    let mut subjects = Vec::new();
    for server in all.primaries() {
        let mut probe = None;
        // A server with few slots may get none.
        for _ in 0..all.primaries().len() * 16 {
            let key = format!("{}{}", address.prefix, probe_name()?.as_str());
            if !in_cluster || all.has_slot(server, slot(key.as_bytes())) {
                probe = Some(key);
                break;
            }
        }
        let part = Part::Primary { in_cluster };
        let name = server.to_string();
        subjects.push(Subject { name, address: address.of(server), part, probe });
    }
    Ok(subjects)
}

fn replica(address: &Address, server: &Server) -> Subject {
    let name = server.to_string();
    Subject { name, address: address.of(server), part: Part::Replica, probe: None }
}

/// Returns the replicas of the primary under sentinels, as it reports them itself.
async fn replicas_of_primary(primary: &Address, until: Instant) -> Result<Vec<Server>> {
    let inquiry = Inquiry::open(primary, until).await?;
    let info = inquiry.ask(&["INFO", "replication"]).await;
    inquiry.close().await;
    let server = |[host, port]: [String; 2]| Some(Server::new(host, port.parse().ok()?));
    Ok(replicas_of(&info?.text()).into_iter().filter_map(server).collect())
}

/// Returns what the sentinels say. One that is away is a warning while most are there.
async fn ask_sentinels(address: &Address, sentinels: &Sentinels, until: Instant) -> Vec<Finding> {
    let mut asking = JoinSet::new();
    for sentinel in sentinels.servers.clone() {
        let at = address.of_sentinel(sentinels, &sentinel);
        let service = sentinels.service.clone();
        asking.spawn(async move {
            let inquiry = Inquiry::open(&at, until).await?;
            let asked = ask(&inquiry, &["SENTINEL", "MASTER", &service]).await;
            inquiry.close().await;
            Ok::<_, Error>((sentinel, asked?))
        });
    }
    let named = sentinels.servers.len();
    let mut findings = Vec::new();
    let mut missing: Vec<String> = sentinels.servers.iter().map(ToString::to_string).collect();
    let mut errors = Vec::new();
    while let Some(asked) = asking.join_next().await {
        match asked {
            Ok(Ok((sentinel, asked))) => {
                let name = sentinel.to_string();
                missing.retain(|missing| *missing != name);
                match &asked {
                    Asked::Answered(answer) => {
                        findings.extend(judge_sentinel(&name, answer, named, address.ttl));
                    }
                    // That it knows no such primary is an error of the search for it.
                    Asked::Unknown => {}
                    unknown => {
                        let what =
                            "what it knows of the primary by the name of sentinelServiceName";
                        let rule = "+sentinel|master";
                        findings.extend(unknown.not_checked(Check::Fleet, &name, what, rule));
                    }
                }
            }
            Ok(Err(error)) => errors.push(error.message().to_owned()),
            Err(_) => {}
        }
    }
    if !missing.is_empty() {
        let are_most = missing.len() * 2 >= named;
        let severity = if are_most { Severity::Failure } else { Severity::Warning };
        let advice = format!(
            "{} of {named} sentinels do not answer ({}), and without most of them none replaces a dead primary: {}",
            missing.len(),
            missing.join(", "),
            errors.join("; ")
        );
        findings.push(Finding::new(Check::Fleet, severity, ALL, advice));
    }
    findings.sort_by(|one, other| one.server.cmp(&other.server));
    findings
}

/// Returns what is wrong with the nodes of a cluster that the URL names, when none of them has a map.
async fn ask_seeds(address: &Address, seeds: &[Server], until: Instant) -> Vec<Finding> {
    let mut findings = Vec::new();
    for seed in seeds {
        match timeout(SEARCH / 3, Inquiry::open(&address.of(seed), until)).await {
            Ok(Ok(inquiry)) => inquiry.close().await,
            Ok(Err(error)) => findings.push(failed(&seed.to_string(), &error, &address.prefix)),
            Err(_) => {
                findings.push(failed(&seed.to_string(), &Error::silent(), &address.prefix));
            }
        }
    }
    findings
}

async fn examine_one(subject: Subject, until: Instant) -> Examination {
    let Subject { name, address, part, .. } = &subject;
    let away = |error: &Error| {
        let mut finding = failed(name, error, &address.prefix);
        if *part == Part::Replica {
            // The primary serves without it, until it is needed.
            finding.severity = Severity::Warning;
        }
        finding
    };
    let inquiry = match Inquiry::open(address, until).await {
        Ok(inquiry) => inquiry,
        Err(error) => return Examination::of(away(&error)),
    };
    let mut seen = Seen::default();
    let mut findings = Vec::new();
    let start = Instant::now();
    match ask_all(&subject, &inquiry, &mut seen, &mut findings).await {
        Ok(()) => {
            findings.insert(0, Finding::new(Check::Reachable, Severity::Fine, name, "answers"));
            if let Some(role) = &seen.role
                && let Ok(info) = inquiry.ask(&["INFO", "replication"]).await
            {
                findings.extend(judge_change(name, *part, role, &info.text()));
            }
        }
        Err(error) => {
            let asked = start.elapsed();
            findings.push(away(&error.at(&format!("after {asked:.1?} of the examination"))));
        }
    }
    inquiry.close().await;
    let examined = Examined { name: name.clone(), run_id: seen.run_id, clock: seen.clock };
    Examination { findings, servers: vec![examined] }
}

/// What is compared with other servers.
#[derive(Default)]
struct Seen {
    run_id: Option<String>,
    clock: Option<WallClock>,
    /// That of the beginning.
    role: Option<String>,
}

/// Asks a server for all that is judged. An error is one of the connection.
async fn ask_all(
    subject: &Subject,
    inquiry: &Inquiry,
    seen: &mut Seen,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let Subject { name, address, part, .. } = subject;
    let ttl = address.ttl;
    let start = Instant::now();
    let first = read_clock(inquiry).await?;
    if let Ok(clock) = &first {
        seen.clock = Some(*clock);
    }
    let info = inquiry.ask(&["INFO"]).await.map(|info| info.text());
    let text = info.as_ref().ok().cloned();
    seen.run_id = text.as_deref().and_then(|info| field(info, "run_id")).map(str::to_owned);
    seen.role = text.as_deref().and_then(|info| field(info, "role")).map(str::to_owned);
    findings.extend(judge_part(subject, info)?);
    let config = ask(inquiry, &CONFIG).await?;
    let aof = text.as_deref().and_then(|info| field(info, "aof_enabled"));
    if let Some(answer) = config.answer()
        && aof == Some("1")
    {
        let appendfsync = answer.value_of("appendfsync").unwrap_or_default();
        findings.extend(judge_fsync(name, &appendfsync, part.deployment()));
    }
    let latency = ask(inquiry, &["LATENCY", "LATEST"]).await?;
    let slow_log = ask(inquiry, &["SLOWLOG", "GET", "128"]).await?;
    let stalls =
        Stalls { info: text.as_deref(), latency: &latency, slow_log: &slow_log, config: &config };
    findings.extend(judge_stalls(name, &stalls, ttl));
    let limits = Limits { info: text.as_deref(), config: &config };
    findings.extend(judge_limits(name, &limits, ttl));
    if *part == (Part::Primary { in_cluster: true }) {
        let judged = judge_cluster(name, &ask(inquiry, &["CLUSTER", "INFO"]).await?);
        let is_down = judged.iter().any(|finding| finding.severity == Severity::Failure);
        findings.extend(judged);
        findings.extend(judge_node_timeout(name, &config, ttl));
        if is_down {
            // A question for a key would end the connection.
            let unasked = [Check::RoundTrip, Check::Leftovers].map(|check| {
                let advice = "was not asked for keys, since its cluster is down";
                Finding::new(check, Severity::NotChecked, name, advice)
            });
            findings.extend(unasked);
            return watch_clock(subject, inquiry, Watch { start, first, keys: false }, findings)
                .await;
        }
    }
    watch_clock(subject, inquiry, Watch { start, first, keys: true }, findings).await
}

/// How a clock is watched.
struct Watch {
    start: Instant,
    /// The first reading.
    first: Result<WallClock, Asked>,
    /// Whether the server is asked for keys meanwhile.
    keys: bool,
}

/// Watches the clock, and meanwhile asks for keys, which a cluster may refuse.
async fn watch_clock(
    subject: &Subject,
    inquiry: &Inquiry,
    watch: Watch,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let Watch { start, first, keys } = watch;
    let name = &subject.name;
    let first = match first {
        Ok(first) => first,
        Err(asked) => {
            findings.extend(asked.not_checked(Check::Clock, name, "its clock", "+time"));
            return match keys {
                true => ask_for_keys(subject, inquiry, start, findings).await,
                false => Ok(()),
            };
        }
    };
    sleep_until(start + SPAN).await;
    let second = read_clock(inquiry).await?;
    if keys {
        ask_for_keys(subject, inquiry, start, findings).await?;
    }
    sleep_until(start + SPAN * 2).await;
    let third = read_clock(inquiry).await?;
    if let (Ok(second), Ok(third)) = (second, third) {
        findings.push(judge_clock(name, [first, second, third]));
    }
    Ok(())
}

async fn ask_for_keys(
    subject: &Subject,
    inquiry: &Inquiry,
    start: Instant,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let name = &subject.name;
    if let Some(probe) = &subject.probe {
        let took = round_trips(subject, inquiry, probe).await;
        findings.extend(unless_elsewhere(name, Check::RoundTrip, took)?);
    }
    let left = leftovers_of(subject, inquiry, start).await;
    findings.extend(unless_elsewhere(name, Check::Leftovers, left)?);
    Ok(())
}

/// Makes a finding of the error by which a server of a cluster refuses a key that it does not serve.
fn unless_elsewhere(
    name: &str,
    check: Check,
    found: Result<Option<Finding>>,
) -> Result<Option<Finding>> {
    let Err(error) = &found else { return found };
    let words = reply::words_of(error).unwrap_or_default();
    if !["MOVED ", "ASK ", "TRYAGAIN ", "CLUSTERDOWN "].iter().any(|word| words.starts_with(word)) {
        return found;
    }
    let advice = format!("refuses a key: {}", error.message());
    Ok(Some(Finding::new(check, Severity::NotChecked, name, advice)))
}

async fn leftovers_of(
    subject: &Subject,
    inquiry: &Inquiry,
    start: Instant,
) -> Result<Option<Finding>> {
    let Subject { name, address, part, .. } = subject;
    if *part == Part::Replica {
        return Ok(None);
    }
    let until = start + SPAN * 2;
    leftovers::look(name, inquiry, &address.prefix, address.layout, until).await.map(Some)
}

impl Part {
    fn deployment(self) -> Deployment {
        match self {
            Self::Alone => Deployment::Alone,
            Self::Node => Deployment::Quorum,
            Self::Primary { .. } | Self::Replica => Deployment::Fleet,
        }
    }
}

/// Judges `INFO` as connecting does; of a replica what counts once it is promoted.
fn judge_part(subject: &Subject, info: Result<String>) -> Result<Vec<Finding>> {
    let Subject { name, address, part, .. } = subject;
    let replicas = address.replicas.map_or(0, |replicas| replicas.count);
    if *part != Part::Replica {
        return judge(name, info, replicas, part.deployment());
    }
    let of_replica = info.as_ref().ok().and_then(|info| judge_replica(name, info));
    let mut findings = judge(name, info, 0, part.deployment())?;
    let settings = [Check::Version, Check::Eviction, Check::Persistence, Check::Info];
    findings.retain(|finding| settings.contains(&finding.check));
    findings.extend(of_replica);
    Ok(findings)
}

/// Judges the role that a server has at the end, if it is another one than `before`.
fn judge_change(name: &str, part: Part, before: &str, info: &str) -> Option<Finding> {
    let after = field(info, "role").filter(|after| *after != before)?;
    let (severity, advice) = match (after, part) {
        ("slave", Part::Alone | Part::Node) => (
            Severity::Failure,
            "became a replica while it was examined, so that no lock can be acquired here; name the new primary in the URL, or \
             its sentinels, and look at why it was replaced",
        ),
        ("slave", _) => (
            Severity::Warning,
            "became a replica while it was examined: a failover is under way, which may cost leases; look at why it was \
             replaced, and run this again",
        ),
        _ => (
            Severity::Warning,
            "became a primary while it was examined: a failover is under way, which may cost leases; run this again",
        ),
    };
    Some(Finding::new(Check::Role, severity, name, advice))
}

/// Reads the clock of a server, some times in a row, of which the quickest counts; or returns why it cannot.
async fn read_clock(inquiry: &Inquiry) -> Result<Result<WallClock, Asked>> {
    let clock = Clock::system();
    let mut best: Option<WallClock> = None;
    for _ in 0..READINGS {
        let before = clock.now().since_origin();
        let asked = ask(inquiry, &["TIME"]).await?;
        let took = clock.now().since_origin().saturating_sub(before);
        let Some([seconds, micros]) = asked.answer().map(Reply::list) else {
            return Ok(Err(asked));
        };
        let part = |answer: &Reply| answer.number().unwrap_or_default().unsigned_abs();
        let shows = Duration::from_secs(part(seconds)) + Duration::from_micros(part(micros));
        let reading = WallClock { at: before + took / 2, shows, took };
        if best.is_none_or(|best| reading.took < best.took) {
            best = Some(reading);
        }
    }
    best.map(Ok).ok_or_else(Error::silent)
}

/// Runs a script that reads, and judges its times.
async fn round_trips(subject: &Subject, inquiry: &Inquiry, probe: &str) -> Result<Option<Finding>> {
    let Subject { name, address, .. } = subject;
    let script = &Scripts::of(address.layout, false).inspect;
    let call = || {
        let mut call = ScriptCall::default();
        call.key(&[probe]);
        call
    };
    // The first call may have to send the text of the script.
    if let Err(error) = inquiry.run(script, call()).await {
        let is_answer = !error.is_unavailable();
        let rule = reply::words_of(&error).and_then(|words| missing_rule(words, &address.prefix));
        let rule = rule.map(|rule| format!("; grant {rule}")).unwrap_or_default();
        let advice = format!(
            "does not let this user run the script of which the time is taken: {}{rule}",
            error.message()
        );
        let finding = Finding::new(Check::RoundTrip, Severity::NotChecked, name, advice);
        return if is_answer { Ok(Some(finding)) } else { Err(error) };
    }
    let clock = Clock::system();
    let end = Instant::now() + SPAN;
    let mut times = Vec::with_capacity(REQUESTS);
    while times.len() < REQUESTS && (times.len() < LEAST_REQUESTS || Instant::now() < end) {
        let before = clock.now();
        inquiry.run(script, call()).await?;
        times.push(clock.now().saturating_duration_since(before));
    }
    Ok(judge_round_trips(name, times, address.ttl, address.attempt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_that_is_served_elsewhere_ends_no_examination() {
        let judged =
            |words: &str| unless_elsewhere("it", Check::RoundTrip, Err(reply::classify(words)));
        for words in ["MOVED 5 127.0.0.1:7001", "CLUSTERDOWN Hash slot not served"] {
            let finding = judged(words).unwrap().unwrap();
            assert_eq!(finding.severity, Severity::NotChecked, "{finding}");
        }
        for words in ["LOADING Redis is loading the dataset in memory", "BUSY Redis is busy"] {
            assert!(judged(words).is_err(), "{words}");
        }
    }

    #[test]
    fn change_of_the_role_is_found() {
        let judged = |part, before, info| judge_change("it", part, before, info);
        assert_eq!(judged(Part::Alone, "master", "role:master\r\n"), None);
        assert_eq!(judged(Part::Alone, "master", ""), None);
        let in_fleet = Part::Primary { in_cluster: false };
        for (part, before, after, severity) in [
            (Part::Alone, "master", "role:slave\r\n", Severity::Failure),
            (in_fleet, "master", "role:slave\r\n", Severity::Warning),
            (Part::Replica, "slave", "role:master\r\n", Severity::Warning),
        ] {
            let finding = judged(part, before, after).unwrap();
            assert_eq!((finding.check, finding.severity), (Check::Role, severity), "{finding}");
        }
    }

    #[test]
    fn failure_of_the_try_out_that_is_explained_is_left_out() {
        let finding = |check, severity| Finding::new(check, severity, "it", "is");
        let add = |known: Finding, tried: Finding| {
            let mut findings = vec![known];
            add_tried(&mut findings, vec![tried]);
            findings.len() == 2
        };
        use Check::{Eviction, Permissions, Reachable, Role};
        use Severity::{Failure, Fine};
        for (known, tried, is_added) in [
            (finding(Reachable, Failure), finding(Reachable, Failure), false),
            (finding(Role, Failure), finding(Role, Failure), false),
            (finding(Permissions, Failure), finding(Permissions, Failure), false),
            (finding(Eviction, Failure), finding(Role, Failure), true),
            (finding(Reachable, Fine), finding(Permissions, Failure), true),
            (finding(Reachable, Fine), finding(Permissions, Fine), true),
        ] {
            let what = format!("{known:?} {tried:?}");
            assert_eq!(add(known, tried), is_added, "{what}");
        }
    }
}
