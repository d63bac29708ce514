//! Judges what makes a server stand still.

use super::commands::Asked;
use crate::store::connect::finding::{Check, Finding, Severity};
use crate::store::redis::link::command::Reply;
use crate::store::redis::link::health::field;
use std::time::Duration;

/// What a server says of its stalls.
pub(super) struct Stalls<'a> {
    pub(super) info: Option<&'a str>,
    /// The reply to `LATENCY LATEST`.
    pub(super) latency: &'a Asked,
    /// The reply to `SLOWLOG GET`.
    pub(super) slow_log: &'a Asked,
    /// The reply to `CONFIG GET` of `busy-reply-threshold`, and of what is recorded.
    pub(super) config: &'a Asked,
}

/// Judges stalls of a server, for a time to live.
pub(super) fn judge_stalls(name: &str, stalls: &Stalls<'_>, ttl: Duration) -> Vec<Finding> {
    let limit = ttl / 20;
    let find = |severity, advice: String| Finding::new(Check::Stalls, severity, name, advice);
    let mut found = Vec::new();
    let mut seen = Vec::new();
    let setting = |name: &str| stalls.config.answer()?.value_of(name)?.parse::<i64>().ok();
    let is_within = |value: i64, unit: Duration| {
        u32::try_from(value).is_ok_and(|value| unit.saturating_mul(value) <= limit)
    };
    let events_are_recorded = setting("latency-monitor-threshold")
        .is_none_or(|millis| millis > 0 && is_within(millis, Duration::from_millis(1)));
    let commands_are_recorded = setting("slowlog-log-slower-than")
        .is_none_or(|micros| is_within(micros, Duration::from_micros(1)));
    if let Some(fork) = stalls.info.and_then(|info| field(info, "latest_fork_usec")?.parse().ok()) {
        let fork = Duration::from_micros(fork);
        if fork > limit {
            found.push(find(
                Severity::Warning,
                format!(
                    "stood still for {fork:.1?} in its last fork, more than a twentieth of the time to live; renewals wait \
                     for so long; save less often, turn transparent huge pages off, or keep less data on this server"
                ),
            ));
        }
        seen.push(match fork.is_zero() {
            true => "no fork yet".to_owned(),
            false => format!("{fork:.1?} in its last fork"),
        });
    }
    match stalls.latency {
        Asked::Answered(answer) => match worst_event(answer) {
            Some((event, worst)) if worst > limit => found.push(find(
                Severity::Warning,
                format!(
                    "stood still for {worst:.1?} by LATENCY LATEST ({event}), more than a twentieth of the time to live; \
                     LATENCY DOCTOR says why"
                ),
            )),
            Some((event, worst)) => seen.push(format!("{worst:.1?} by LATENCY LATEST ({event})")),
            None if !events_are_recorded => seen.push(
                "events are not recorded for LATENCY LATEST, by its latency-monitor-threshold".to_owned(),
            ),
            None => seen.push("no event in LATENCY LATEST".to_owned()),
        },
        unknown => found.extend(unknown.not_checked(Check::Stalls, name, "its latency events", "+latency|latest")),
    }
    match stalls.slow_log {
        Asked::Answered(answer) => {
            let slowest = slowest_command(answer);
            match slowest {
                Some((command, took)) if took > limit => found.push(find(
                    Severity::Warning,
                    format!(
                        "took {took:.1?} for one {command}, by its slow log, more than a twentieth of the time to live; \
                         all locks wait meanwhile; keep slow commands off this server"
                    ),
                )),
                Some((command, took)) => seen.push(format!("{took:.1?} for a {command} in its slow log")),
                None if !commands_are_recorded => {}
                None => seen.push("an empty slow log".to_owned()),
            }
        }
        unknown => {
            found.extend(unknown.not_checked(Check::Stalls, name, "its slow log", "+slowlog|get"))
        }
    }
    if !commands_are_recorded {
        let advice = "does not record commands that take a twentieth of the time to live, so it is not known whether some did; \
             set slowlog-log-slower-than to 10000";
        found.push(find(Severity::NotChecked, advice.to_owned()));
    }
    match stalls.config {
        Asked::Answered(answer) => {
            if let Some(busy) = busy_threshold(answer)
                && (busy.is_zero() || busy > ttl / 3)
            {
                let silent =
                    if busy.is_zero() { "without end".to_owned() } else { format!("for {busy:?}") };
                found.push(find(
                    Severity::Warning,
                    format!(
                        "is silent {silent} while a script or a module of any client runs, by its busy-reply-threshold, so \
                         that nothing says why renewals fail; set it to less than a third of the time to live"
                    ),
                ));
            }
        }
        unknown => found.extend(unknown.not_checked(
            Check::Stalls,
            name,
            "its busy-reply-threshold",
            "+config|get",
        )),
    }
    if found.is_empty() {
        found.push(find(Severity::Fine, format!("shows no long stall: {}", seen.join(", "))));
    }
    found
}

/// Returns the event that took longest, of `LATENCY LATEST`: lists of a name, a time, and the last and longest milliseconds.
fn worst_event(answer: &Reply) -> Option<(String, Duration)> {
    let events = answer.list().iter().filter_map(|event| {
        let [event, _, _, longest, ..] = event.list() else { return None };
        Some((event.text(), Duration::from_millis(longest.number()?.try_into().ok()?)))
    });
    events.max_by_key(|(_, longest)| *longest)
}

/// Returns the command that took longest, of `SLOWLOG GET`: lists of a number, a time, microseconds and words. Only the verb
/// is kept: the words may be secrets.
fn slowest_command(answer: &Reply) -> Option<(String, Duration)> {
    let commands = answer.list().iter().filter_map(|entry| {
        let [_, _, took, words, ..] = entry.list() else { return None };
        let verb = words.list().first()?.text().to_uppercase();
        Some((verb, Duration::from_micros(took.number()?.try_into().ok()?)))
    });
    commands.max_by_key(|(_, took)| *took)
}

/// Returns the setting, which is none of servers that do not know it.
fn busy_threshold(answer: &Reply) -> Option<Duration> {
    let millis: i64 = answer.value_of("busy-reply-threshold")?.parse().ok()?;
    Some(Duration::from_millis(millis.max(0).unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::checks::commands::tests::{list, number, refused, text};

    const TTL: Duration = Duration::from_secs(30);

    fn judged(info: &str, latency: &Asked, slow_log: &Asked, busy: &Asked) -> Vec<Finding> {
        judge_stalls("it", &Stalls { info: Some(info), latency, slow_log, config: busy }, TTL)
    }

    fn event(longest: i64) -> Asked {
        let event = list(vec![text("fork"), number(1), number(3), number(longest)]);
        Asked::Answered(list(vec![event]))
    }

    fn slow(micros: i64) -> Asked {
        let words = list(vec![text("keys"), text("hunter2")]);
        let entry = list(vec![number(1), number(2), number(micros), words, text("1.2.3.4:5")]);
        Asked::Answered(list(vec![entry]))
    }

    fn busy(millis: &str) -> Asked {
        Asked::Answered(list(vec![text("busy-reply-threshold"), text(millis)]))
    }

    #[test]
    fn stalls_are_judged_by_a_twentieth_of_the_time_to_live() {
        let calm = "latest_fork_usec:900\r\n";
        let none = Asked::Answered(list(Vec::new()));
        for (info, latency, slow_log, threshold, says) in [
            (calm, none.clone(), none.clone(), busy("5000"), None),
            (calm, event(1400), slow(1_400_000), busy("10000"), None),
            (
                "latest_fork_usec:1600000\r\n",
                none.clone(),
                none.clone(),
                busy("5000"),
                Some("fork"),
            ),
            (calm, event(1600), none.clone(), busy("5000"), Some("LATENCY LATEST (fork)")),
            (calm, none.clone(), slow(1_600_000), busy("5000"), Some("1.6s for one KEYS")),
            (calm, none.clone(), none.clone(), busy("10001"), Some("busy-reply-threshold")),
            (calm, none.clone(), none.clone(), busy("0"), Some("without end")),
            (calm, none.clone(), none.clone(), none.clone(), None),
        ] {
            let findings = judged(info, &latency, &slow_log, &threshold);
            let [finding] = &findings[..] else { panic!("{findings:?}") };
            let expected = if says.is_some() { Severity::Warning } else { Severity::Fine };
            assert_eq!(finding.severity, expected, "{finding}");
            assert!(finding.message().contains(says.unwrap_or("no long stall")), "{finding}");
            assert!(!finding.message().contains("hunter2"), "{finding}");
        }
    }

    #[test]
    fn what_is_not_recorded_is_said() {
        let none = Asked::Answered(list(Vec::new()));
        let recorded = |events: &str, commands: &str| {
            let names = ["latency-monitor-threshold", "slowlog-log-slower-than"];
            let pairs = names.into_iter().zip([events, commands]);
            let words = pairs.flat_map(|(name, value)| [text(name), text(value)]).collect();
            let findings =
                judged("latest_fork_usec:0\r\n", &none, &none, &Asked::Answered(list(words)));
            let [finding] = &findings[..] else { panic!("{findings:?}") };
            finding.clone()
        };
        for (events, commands, severity, says) in [
            ("100", "10000", Severity::Fine, "no fork yet, no event"),
            ("0", "10000", Severity::Fine, "events are not recorded"),
            ("2000", "0", Severity::Fine, "events are not recorded"),
            ("100", "-1", Severity::NotChecked, "slowlog-log-slower-than"),
            ("0", "2000000", Severity::NotChecked, "slowlog-log-slower-than"),
        ] {
            let finding = recorded(events, commands);
            assert_eq!(finding.severity, severity, "{events} {commands}: {finding}");
            assert!(finding.message().contains(says), "{events} {commands}: {finding}");
        }
    }

    #[test]
    fn what_may_not_be_asked_is_not_fine() {
        let findings = judged("", &refused(), &refused(), &refused());
        assert!(
            findings.iter().all(|finding| finding.severity == Severity::NotChecked),
            "{findings:?}"
        );
        let rules = ["+latency|latest", "+slowlog|get", "+config|get"];
        for (finding, rule) in findings.iter().zip(rules) {
            assert!(finding.message().contains(rule), "{finding}");
        }
        assert_eq!(findings.len(), 3);
    }
}
