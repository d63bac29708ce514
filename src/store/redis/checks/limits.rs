//! Judges limits by which a server refuses or closes connections.

use super::commands::Asked;
use crate::store::connect::finding::{Check, Finding, Severity};
use crate::store::redis::link::health::field;
use std::time::Duration;

/// The least buffer of a subscriber: some thousand messages.
const LEAST_BUFFER: u64 = 1 << 20;

/// What a server says of its limits.
pub(super) struct Limits<'a> {
    pub(super) info: Option<&'a str>,
    /// The reply to `CONFIG GET` of `timeout` and `client-output-buffer-limit`.
    pub(super) config: &'a Asked,
}

/// Judges the limits of a server, for a time to live.
pub(super) fn judge_limits(name: &str, limits: &Limits<'_>, ttl: Duration) -> Vec<Finding> {
    let find = |severity, advice: String| Finding::new(Check::Limits, severity, name, advice);
    let mut found = Vec::new();
    let mut seen = Vec::new();
    let number = |name: &str| field(limits.info?, name)?.parse::<u64>().ok();
    if let (Some(clients), Some(most)) = (number("connected_clients"), number("maxclients")) {
        seen.push(format!("{clients} of {most} clients"));
        if clients * 5 > most * 4 {
            found.push(find(
                Severity::Warning,
                format!(
                    "has {clients} of {most} clients, and refuses more than that, so that a lost connection may not come \
                     back; raise maxclients, or close idle clients"
                ),
            ));
        }
    }
    let memory = [number("used_memory"), number("maxmemory")];
    if let [Some(used), Some(most @ 1..)] = memory {
        let percent = u128::from(used) * 100 / u128::from(most);
        seen.push(format!("{percent} % of its maxmemory"));
        let refuses =
            limits.info.and_then(|info| field(info, "maxmemory_policy")) == Some("noeviction");
        if percent > 90 && refuses {
            found.push(find(
                Severity::Warning,
                format!(
                    "uses {percent} % of its maxmemory, and refuses all writes without memory, so that no lock can be acquired; \
                     raise maxmemory, or keep less data on this server"
                ),
            ));
        }
    }
    let Some(config) = limits.config.answer() else {
        let what = "its timeout of idle connections, and its output buffers";
        found.extend(limits.config.not_checked(Check::Limits, name, what, "+config|get"));
        return found;
    };
    let seconds = config.value_of("timeout").and_then(|text| text.parse().ok());
    let idle = Duration::from_secs(seconds.unwrap_or(0));
    // The connection for renewals is used each third of the time to live, and all are idle without leases.
    if !idle.is_zero() && idle <= ttl {
        found.push(find(
            Severity::Warning,
            format!(
                "closes connections that are idle for {idle:?}, by its timeout; the next request waits for another one, and \
                 all leases are verified then; set timeout 0, or more than the time to live"
            ),
        ));
    }
    seen.push(match idle.is_zero() {
        true => "no timeout of idle connections".to_owned(),
        false => format!("a timeout of idle connections of {idle:?}"),
    });
    let buffers = config.value_of("client-output-buffer-limit").unwrap_or_default();
    if let Some(hard) = hard_limit(&buffers)
        && hard > 0
        && hard < LEAST_BUFFER
    {
        found.push(find(
            Severity::Warning,
            format!(
                "closes a subscriber that is {hard} bytes behind, so that waiters miss wake-ups in a burst and poll; set \
                 client-output-buffer-limit pubsub 32mb 8mb 60"
            ),
        ));
    }
    if found.is_empty() {
        found.push(find(Severity::Fine, format!("has {}", seen.join(", "))));
    }
    found
}

/// Returns the hard limit of subscribers, in bytes, of words as `normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60`.
fn hard_limit(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == "pubsub")?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::checks::commands::tests::{list, refused, text};

    #[test]
    fn limits_are_judged_by_what_is_left_of_them() {
        for (clients, idle, hard, says) in [
            (80, "0", "33554432", None),
            (80, "31", "0", None),
            (81, "0", "33554432", Some("81 of 100 clients")),
            (1, "30", "33554432", Some("idle for 30s")),
            (1, "0", "32768", Some("32768 bytes behind")),
        ] {
            let info = format!("connected_clients:{clients}\r\nmaxclients:100\r\n");
            let buffers =
                format!("normal 0 0 0 slave 268435456 67108864 60 pubsub {hard} 8388608 60");
            let words = ["timeout", idle, "client-output-buffer-limit", &buffers];
            let config = Asked::Answered(list(words.map(text).to_vec()));
            let limits = Limits { info: Some(&info), config: &config };
            let findings = judge_limits("it", &limits, Duration::from_secs(30));
            let [finding] = &findings[..] else { panic!("{findings:?}") };
            let expected = if says.is_some() { Severity::Warning } else { Severity::Fine };
            assert_eq!(finding.severity, expected, "{finding}");
            assert!(finding.message().contains(says.unwrap_or("of 100 clients")), "{finding}");
        }
    }

    #[test]
    fn memory_that_is_used_up_is_a_warning() {
        let config = Asked::Answered(list(Vec::new()));
        let judged = |used: u32, most: u32, policy: &str| {
            let info =
                format!("used_memory:{used}\r\nmaxmemory:{most}\r\nmaxmemory_policy:{policy}\r\n");
            let limits = Limits { info: Some(&info), config: &config };
            judge_limits("it", &limits, Duration::from_secs(30)).remove(0)
        };
        assert_eq!(judged(91, 100, "noeviction").severity, Severity::Warning);
        assert!(judged(200, 100, "noeviction").message().contains("uses 200 % of its maxmemory"));
        assert!(judged(90, 100, "noeviction").message().contains("90 % of its maxmemory"));
        for (used, most, policy) in
            [(90, 100, "noeviction"), (99, 100, "allkeys-lru"), (99, 0, "noeviction")]
        {
            assert_eq!(
                judged(used, most, policy).severity,
                Severity::Fine,
                "{used} {most} {policy}"
            );
        }
    }

    #[test]
    fn what_may_not_be_asked_is_not_fine() {
        let limits = Limits { info: None, config: &refused() };
        let findings = judge_limits("it", &limits, Duration::from_secs(30));
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(finding.severity, Severity::NotChecked);
        assert!(finding.message().contains("+config|get"), "{finding}");
    }
}
