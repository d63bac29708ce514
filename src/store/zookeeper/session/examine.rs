//! Examines each server of an ensemble: whether it answers, as what, how fast, and which session it gives.

use super::check_timeout;
use super::errors::unreachable;
use super::link::{Link, hosts, opening};
use super::session_check::{self, SURELY_LONG};
use super::url::Address;
use crate::clock::Clock;
use crate::store::connect::examination::{ALL, Examination};
use crate::store::connect::finding::{Check, Finding, Severity};
use crate::store::{Store, zookeeper::ZooKeeperStore};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a server may take for a word of four letters.
const WORD: Duration = Duration::from_secs(2);
/// How long connecting may take.
const LONGEST: Duration = Duration::from_secs(40);
/// The port of a server without one.
const PORT: &str = ":2181";
/// No answer is longer.
const LONGEST_ANSWER: u64 = 64 * 1024;

/// Examines the servers of an address. While a majority is there, one that is away is a warning.
pub(crate) async fn examine(address: Address) -> Examination {
    let mut asking = JoinSet::new();
    let names: Vec<String> = hosts(&address, None).into_iter().map(str::to_owned).collect();
    let count = names.len();
    for name in names {
        let address = address.clone();
        asking.spawn(async move { examine_one(&name, &address).await });
    }
    let mut examined: Vec<Vec<Finding>> = Vec::new();
    while let Some(one) = asking.join_next().await {
        examined.extend(one);
    }
    examined.sort_by(|one, other| one[0].server.cmp(&other[0].server));
    let mut findings = judge_majority(count, examined);
    let opened = Box::pin(ZooKeeperStore::open(address, Clock::system()));
    let opened = timeout(LONGEST, opened).await;
    match opened {
        Ok(Ok(store)) => {
            store.close(WORD).await;
            let advice = "give a session, and let this user make nodes below the path of the URL";
            findings.push(Finding::new(Check::Permissions, Severity::Fine, ALL, advice));
        }
        Ok(Err(error)) => {
            let advice = format!("give no session for locks: {}", error.message());
            findings.push(Finding::new(Check::Permissions, Severity::Failure, ALL, advice));
        }
        Err(_) => {
            let advice = "give no session in time";
            findings.push(Finding::new(Check::Permissions, Severity::Failure, ALL, advice));
        }
    }
    Examination { findings, servers: Vec::new() }
}

async fn examine_one(host: &str, address: &Address) -> Vec<Finding> {
    let mut findings = Vec::new();
    match Link::open(host, address).await {
        Err(error) => {
            let error = unreachable(error, host).await;
            let advice = error.message().to_owned();
            return vec![Finding::new(Check::Reachable, Severity::Failure, host, advice)];
        }
        Ok(link) => {
            findings.push(Finding::new(Check::Reachable, Severity::Fine, host, "gives a session"));
            let given = link.client.session_timeout();
            // If this fails, the session ends by its timeout.
            let _ = timeout(opening(address.session), std::sync::Arc::new(link).close()).await;
            let shortest = match address.session < SURELY_LONG {
                true => session_check::shortest(host, address).await,
                false => None,
            };
            findings.push(judge_session(host, address.session, given, shortest));
        }
    }
    let ask = async |asked| {
        let answer = timeout(WORD, word(host, asked)).await;
        answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).ok()
    };
    findings.extend(judge_server(host, ask(b"srvr").await.as_deref(), address.session));
    findings.push(judge_disk(host, ask(b"mntr").await.as_deref(), address.session));
    findings
}

/// Asks a server by a word of four letters.
async fn word(host: &str, word: &[u8]) -> io::Result<String> {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let at = if has_port { host.to_owned() } else { format!("{host}{PORT}") };
    let mut stream = TcpStream::connect(at).await?;
    stream.write_all(word).await?;
    let mut answer = String::new();
    stream.take(LONGEST_ANSWER).read_to_string(&mut answer).await?;
    Ok(answer)
}

fn judge_majority(count: usize, mut examined: Vec<Vec<Finding>>) -> Vec<Finding> {
    let is_away = |findings: &Vec<Finding>| {
        findings
            .iter()
            .any(|one| one.check == Check::Reachable && one.severity == Severity::Failure)
    };
    let away = examined.iter().filter(|findings| is_away(findings)).count();
    let majority = count / 2 + 1;
    let here = count - away;
    if here >= majority && away > 0 {
        for finding in examined.iter_mut().flatten().filter(|one| one.check == Check::Reachable) {
            finding.severity = finding.severity.min(Severity::Warning);
        }
    }
    let (severity, advice) = match count {
        1 => (
            Severity::Warning,
            "are one server: while it is away, no lock works; run three or five, and name all in the URL".to_owned(),
        ),
        _ if away == 0 => (Severity::Fine, format!("are {count} servers, which all answer")),
        _ if here >= majority => (
            Severity::Warning,
            format!("are {count} servers, of which {away} do not answer: with {} more away no lock works", here + 1 - majority),
        ),
        _ => (
            Severity::Failure,
            format!("are {count} servers, of which {away} do not answer, so that no majority is left and no lock works"),
        ),
    };
    let mut findings: Vec<Finding> = examined.into_iter().flatten().collect();
    findings.push(Finding::new(Check::Fleet, severity, ALL, advice));
    findings
}

/// Judges the timeout of a session: that which was given, and the shortest that the server gives, if it matters.
fn judge_session(
    host: &str,
    asked: Duration,
    given: Duration,
    shortest: Option<Duration>,
) -> Finding {
    let (severity, advice) = match check_timeout(asked, given) {
        Err(error) => (Severity::Failure, error.message().to_owned()),
        Ok(()) => match shortest.filter(|shortest| session_check::is_near(asked, *shortest)) {
            Some(shortest) => (Severity::Warning, session_check::advice(asked, shortest)),
            None => (Severity::Fine, format!("gives a session of {given:?}, as asked for")),
        },
    };
    Finding::new(Check::Session, severity, host, advice)
}

/// Judges a server by its answer to `srvr`; `None` if it gives none.
fn judge_server(host: &str, answer: Option<&str>, session: Duration) -> Vec<Finding> {
    let field = |name: &str| {
        answer?.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::trim)
    };
    let find = |check, severity, advice: String| Finding::new(check, severity, host, advice);
    let Some(mode) = field("Mode") else {
        let advice = "does not answer srvr, so its version, role and latency are not known; set 4lw.commands.whitelist=srvr";
        return vec![find(Check::Version, Severity::NotChecked, advice.to_owned())];
    };
    let version = field("Zookeeper version").and_then(|text| text.split(['-', ',']).next());
    let mut findings = vec![
        find(
            Check::Version,
            Severity::Fine,
            format!("is ZooKeeper {}", version.unwrap_or("of an unknown version")),
        ),
        match mode {
            "read-only" => find(
                Check::Role,
                Severity::Failure,
                "is cut off from the majority, and only reads; look at its network".to_owned(),
            ),
            mode => find(Check::Role, Severity::Fine, format!("is a {mode}")),
        },
    ];
    let latency = field("Latency min/avg/max").and_then(|text| {
        let mut parts = text.split('/').map(|part| part.parse::<f64>().ok());
        let [_, mean, most] = [parts.next()??, parts.next()??, parts.next()??];
        Some((mean, most))
    });
    if let Some((mean, most)) = latency {
        let limit = session / 60;
        let seen =
            format!("takes {mean} ms for a request, and took {most} ms at most since its start");
        findings.push(if mean > limit.as_millis() as f64 {
            let advice = format!(
                "{seen}: more than a sixtieth of the session ({limit:?}), so that few proofs of it are left in an outage; look at \
                 the disk of its transaction log"
            );
            find(Check::RoundTrip, Severity::Warning, advice)
        } else if most > (session / 20).as_millis() as f64 {
            let advice = format!(
                "{seen}: more than a twentieth of the session; look at its garbage collection and its disk (srst begins to count \
                 again)"
            );
            find(Check::Stalls, Severity::Warning, advice)
        } else {
            find(Check::RoundTrip, Severity::Fine, seen)
        });
    }
    findings
}

/// Judges the disk of a server by its answer to `mntr`. Only `srvr` is allowed by default, so its lack is no warning.
fn judge_disk(host: &str, answer: Option<&str>, session: Duration) -> Finding {
    let number = |name: &str| {
        answer?.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    let waits = number("zk_cnt_fsynctime\t");
    let writes = number("zk_cnt_sync_processor_queue_and_flush_time_ms\t").unwrap_or_default();
    let longest = Duration::from_millis(number("zk_max_fsynctime\t").unwrap_or_default());
    let find = |check, severity, advice: String| Finding::new(check, severity, host, advice);
    match waits {
        None => {
            let advice = "does not show how its disk does; not tried: mntr, which 4lw.commands.whitelist can allow";
            find(Check::Persistence, Severity::Fine, advice.to_owned())
        }
        Some(0) if writes > 0 => {
            let advice = "writes its transaction log without a wait for the disk, so a loss of power can forget leases; remove forceSync=no";
            find(Check::Persistence, Severity::Warning, advice.to_owned())
        }
        Some(_) if longest > session / 20 => {
            let advice = format!(
                "has waited for its disk for up to {} ms, more than a twentieth of the session; all requests wait meanwhile; \
                 give the transaction log a disk of its own",
                longest.as_millis()
            );
            find(Check::Stalls, Severity::Warning, advice)
        }
        Some(_) => {
            let advice = format!(
                "waits for the disk that has its transaction log, for {} ms at most",
                longest.as_millis()
            );
            find(Check::Persistence, Severity::Fine, advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Severity::{Failure, Fine, NotChecked, Warning};

    const SESSION: Duration = Duration::from_secs(30);

    #[test]
    fn server_is_judged_by_what_it_says() {
        let answer = "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022\n\
                      Latency min/avg/max: 0/0.5/7\nMode: follower\nNode count: 5\n";
        let worst = |answer: &str| {
            let findings = judge_server("zk", Some(answer), SESSION);
            findings.iter().map(|finding| finding.severity).max()
        };
        for (answer, expected) in [
            (answer.to_owned(), Fine),
            (answer.replace("follower", "standalone"), Fine),
            (answer.replace("follower", "read-only"), Failure),
            (answer.replace("0.5/7", "600.2/700"), Warning),
            (answer.replace("0.5/7", "0.5/1600"), Warning),
            ("srvr is not executed because it is not in the whitelist.\n".to_owned(), NotChecked),
        ] {
            assert_eq!(worst(&answer), Some(expected), "{answer}");
        }
        assert_eq!(judge_server("zk", None, SESSION)[0].severity, NotChecked);
        let said = judge_server("zk", Some(answer), SESSION)[0].to_string();
        assert_eq!(said, "zk is ZooKeeper 3.8.0");
    }

    #[test]
    fn disk_is_judged_by_the_waits_for_it() {
        let judged = |answer: Option<&str>| judge_disk("zk", answer, SESSION);
        assert!(judged(None).is_fine());
        let refused = judged(Some("mntr is not executed because it is not in the whitelist.\n"));
        assert!(refused.is_fine() && refused.message().contains("not tried: mntr"), "{refused}");
        for (waits, longest, writes, check, severity) in [
            (17, 1500, 17, Check::Persistence, Fine),
            (17, 1501, 17, Check::Stalls, Warning),
            (0, 0, 0, Check::Persistence, Fine),
            (0, 0, 17, Check::Persistence, Warning),
        ] {
            let finding = judged(Some(&format!(
                "zk_version\t3.8.0\nzk_max_fsynctime\t{longest}\nzk_cnt_fsynctime\t{waits}\n\
                 zk_cnt_sync_processor_queue_and_flush_time_ms\t{writes}\n"
            )));
            assert_eq!((finding.check, finding.severity), (check, severity), "{finding}");
        }
    }

    #[test]
    fn session_is_judged_by_what_is_given() {
        let ms = Duration::from_millis;
        let severity =
            |given, shortest| judge_session("zk", ms(6000), ms(given), shortest).severity;
        assert_eq!(severity(6000, None), Fine);
        assert_eq!(severity(6000, Some(ms(4000))), Fine);
        assert_eq!(severity(6000, Some(ms(4001))), Warning);
        assert_eq!(severity(4000, None), Failure);
    }

    #[test]
    fn ensemble_is_judged_by_its_majority() {
        let server = |is_away| {
            let severity = if is_away { Failure } else { Fine };
            vec![Finding::new(Check::Reachable, severity, "zk", "is")]
        };
        for (count, away, expected) in
            [(1, 0, Warning), (1, 1, Failure), (3, 0, Fine), (3, 1, Warning), (3, 2, Failure)]
        {
            let servers = (0..count).map(|at| server(at < away)).collect();
            let worst = judge_majority(count, servers).iter().map(|one| one.severity).max();
            assert_eq!(worst, Some(expected), "{count} {away}");
        }
    }
}
