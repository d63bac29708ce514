//! Asks the server for permissions that an exclusive lock does not use, but forced releases and the end of a manager do: whether
//! this user has them.

use crate::store::connect::finding::{Check, Finding, Severity};
use crate::store::redis::link::address::Address;
use crate::store::redis::link::command::Reply;
use crate::store::redis::link::inquiry::Inquiry;
use std::time::Duration;
use tokio::time::Instant;

/// How long it may take.
const LONGEST: Duration = Duration::from_secs(10);

/// A rule of the ACL, and a command that needs it.
struct Permission {
    rule: String,
    command: [String; 3],
}

/// What the server has said of the permissions.
pub(super) enum DryRun {
    /// It was not asked: the user may not ask, or it is older than Redis 7.
    NotTried,
    /// Those that the user lacks.
    Missing(Vec<String>),
}

/// Returns the permissions that are asked for.
fn all(prefix: &str) -> Vec<Permission> {
    let channel = format!("leasehold_inbox:{prefix}leasehold-probe");
    let note = format!("leasehold_note:{{{prefix}leasehold-probe}}");
    let permission =
        |rule: String, command: [&str; 3]| Permission { rule, command: command.map(str::to_owned) };
    vec![
        permission(format!("~leasehold_note:{{{prefix}*"), ["PEXPIRE", &note, "1"]),
        permission(format!("&leasehold_inbox:{prefix}*"), ["PUBLISH", &channel, "1"]),
        permission("+unsubscribe".to_owned(), ["UNSUBSCRIBE", "", ""]),
    ]
}

/// Asks for each of them, by `ACL DRYRUN`, which runs nothing. In a fleet and a cluster it does not.
pub(super) async fn try_out(address: &Address) -> DryRun {
    if !address.is_one_server() {
        return DryRun::NotTried;
    }
    let until = Instant::now() + LONGEST;
    let Ok(inquiry) = Inquiry::open(address, until).await else { return DryRun::NotTried };
    let missing = ask(&inquiry, &address.prefix).await;
    inquiry.close().await;
    missing.map_or(DryRun::NotTried, DryRun::Missing)
}

async fn ask(inquiry: &Inquiry, prefix: &str) -> Option<Vec<String>> {
    let user = inquiry.ask(&["ACL", "WHOAMI"]).await.ok()?.text();
    let mut missing = Vec::new();
    for Permission { rule, command } in all(prefix) {
        let mut words = vec!["ACL", "DRYRUN", &user];
        words.extend(command.iter().map(String::as_str).filter(|word| !word.is_empty()));
        let answer: Reply = inquiry.ask(&words).await.ok()?;
        // Otherwise it says what is not permitted.
        if answer.text() != "OK" {
            missing.push(rule);
        }
    }
    Some(missing)
}

/// Judges them, for a user who can hold exclusive locks.
pub(super) fn judge(name: &str, prefix: &str, asked: DryRun) -> Finding {
    let can = format!("lets this user hold exclusive locks with the prefix {prefix:?}");
    let others = "what other kinds of locks need";
    let (severity, advice) = match asked {
        DryRun::NotTried => {
            let rules: Vec<_> = all(prefix).into_iter().map(|permission| permission.rule).collect();
            (Severity::Fine, format!("{can}; not tried: {}, and {others}", rules.join(", ")))
        }
        DryRun::Missing(missing) if missing.is_empty() => {
            (Severity::Fine, format!("{can}, and hear of forced releases; not tried: {others}"))
        }
        DryRun::Missing(missing) => {
            let advice = format!(
                "{can}, but not all else: no lock can be stolen, or holders learn of a forced release at their next renewal, \
                 without the reason; grant {}",
                missing.join(" ")
            );
            (Severity::Warning, advice)
        }
    };
    Finding::new(Check::Permissions, severity, name, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_named_whether_tried_or_not() {
        let judged = |asked| judge("it", "app:", asked);
        let not_tried = judged(DryRun::NotTried);
        assert_eq!(not_tried.severity, Severity::Fine);
        let rules = "not tried: ~leasehold_note:{app:*, &leasehold_inbox:app:*, +unsubscribe, and";
        assert!(not_tried.message().contains(rules), "{not_tried}");
        let all = judged(DryRun::Missing(Vec::new()));
        assert_eq!(all.severity, Severity::Fine);
        assert!(!all.message().contains("+unsubscribe"), "{all}");
        let missing = judged(DryRun::Missing(vec!["+unsubscribe".to_owned()]));
        assert_eq!(missing.severity, Severity::Warning);
        assert!(missing.message().contains("grant +unsubscribe"), "{missing}");
    }
}
