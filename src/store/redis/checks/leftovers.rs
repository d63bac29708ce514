//! Looks for keys of locks that have no time to live, in a sample of the keys.

use super::commands::{Asked, ask};
use crate::error::Result;
use crate::store::connect::finding::{Check, Finding, Severity};
use crate::store::connect::layout::Layout;
use crate::store::redis::link::command::Reply;
use crate::store::redis::link::inquiry::Inquiry;
use crate::store::redis::scripts::keys::{behind_manager, pattern_of};
use tokio::time::Instant;

/// How many keys a server looks at for a call, and how many calls there are at most.
const COUNT: usize = 500;
const CALLS: usize = 20;
/// How many keys are asked for their time to live.
const MOST: usize = 2000;
/// How many keys a finding names, and how many characters of each.
const NAMED: usize = 5;
const LONGEST: usize = 80;

/// What a look through the keys has found.
#[derive(Debug, Default)]
struct Sample {
    /// The keys that were looked at.
    seen: usize,
    /// About how many keys of the server were gone through for them.
    passed: usize,
    is_complete: bool,
    /// Those of locks that have no time to live.
    left: Vec<String>,
}

/// Looks through the keys of a server that begin with a prefix, until `until`.
pub(super) async fn look(
    name: &str,
    inquiry: &Inquiry,
    prefix: &str,
    layout: Layout,
    until: Instant,
) -> Result<Finding> {
    let pattern = pattern_of(prefix) + "*";
    let kind = if layout == Layout::Plain { "string" } else { "hash" };
    let count = COUNT.to_string();
    let mut cursor = "0".to_owned();
    let mut sample = Sample::default();
    for _ in 0..CALLS {
        let words = ["SCAN", &cursor, "MATCH", &pattern, "COUNT", &count, "TYPE", kind];
        let asked = ask(inquiry, &words).await?;
        let Some([next, keys]) = asked.answer().map(Reply::list) else {
            return Ok(not_checked(name, &asked, "+scan +pttl +hscan +getrange"));
        };
        sample.passed += COUNT;
        for key in keys.list().iter().map(Reply::text) {
            if sample.seen >= MOST || Instant::now() >= until {
                return Ok(judge(name, &sample));
            }
            sample.seen += 1;
            let left = ask(inquiry, &["PTTL", &key]).await?;
            let Some(left) = left.answer() else { return Ok(not_checked(name, &left, "+pttl")) };
            if left.number() != Some(-1) {
                continue;
            }
            let asked = match layout {
                Layout::Plain => ask(inquiry, &["GETRANGE", &key, "0", "80"]).await?,
                _ => ask(inquiry, &["HSCAN", &key, "0", "COUNT", "10"]).await?,
            };
            let Some(answer) = asked.answer() else {
                return Ok(not_checked(name, &asked, "+hscan +getrange"));
            };
            if is_of_a_lock(answer) {
                sample.left.push(key);
            }
        }
        cursor = next.text();
        if cursor == "0" {
            sample.is_complete = true;
            break;
        }
        if sample.seen >= MOST || Instant::now() >= until {
            break;
        }
    }
    Ok(judge(name, &sample))
}

fn not_checked(name: &str, asked: &Asked, rule: &str) -> Finding {
    let finding = asked.not_checked(Check::Leftovers, name, "keys without a time to live", rule);
    let odd = || {
        let advice =
            "answers SCAN in an unknown way, so keys without a time to live were not looked for";
        Finding::new(Check::Leftovers, Severity::NotChecked, name, advice)
    };
    finding.unwrap_or_else(odd)
}

fn judge(name: &str, sample: &Sample) -> Finding {
    let Sample { seen, passed, is_complete, left } = sample;
    let (severity, advice) = if *seen == 0 && !*is_complete {
        let advice = format!(
            "has no key of a lock with the prefix among the first {passed} of its keys, and the others were not looked at"
        );
        (Severity::NotChecked, advice)
    } else if left.is_empty() {
        let of = if *is_complete { "all" } else { "a sample of" };
        let advice = format!(
            "has no lock without a time to live among {of} {seen} keys of their type with the prefix"
        );
        (Severity::Fine, advice)
    } else {
        let named: Vec<String> = left.iter().take(NAMED).map(|key| shortened(key)).collect();
        let more = if left.len() > NAMED { ", .." } else { "" };
        let advice = format!(
            "has {} keys of locks without a time to live: {}{more}; these names stay taken until a person deletes the keys: see \
             which client writes them (PERSIST, or SET without PX), then DEL them",
            left.len(),
            named.join(", ")
        );
        (Severity::Warning, advice)
    };
    Finding::new(Check::Leftovers, severity, name, advice)
}

/// Returns a key in quotes, or of a long one the beginning.
fn shortened(key: &str) -> String {
    let beginning: String = key.chars().take(LONGEST).collect();
    let more = if beginning.len() < key.len() { ".." } else { "" };
    format!("{beginning:?}{more}")
}

/// Returns whether a string, or the fields of a hash as `HSCAN` returns them, are those of a lock: one is a holder id.
fn is_of_a_lock(answer: &Reply) -> bool {
    match answer {
        Reply::List(parts) => {
            let fields = parts.get(1).map(Reply::list).unwrap_or_default();
            fields.iter().step_by(2).any(|field| is_holder(&field.text()))
        }
        one => is_holder(&one.text()),
    }
}

/// Returns whether a text begins with the uuid of a manager, and a number: also that of a reader, a writer or a node.
fn is_holder(text: &str) -> bool {
    let number = behind_manager(text).map(|rest| rest.strip_prefix('-').unwrap_or(rest));
    number.is_some_and(|number| number.starts_with(|first: char| first.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::checks::commands::tests::{list, refused, text};

    const HOLDER: &str = "00000000-0000-4000-8000-000000000000:7";

    #[test]
    fn keys_of_locks_are_known_by_their_holders() {
        let hash = |fields: &[&str]| {
            let words = fields.iter().flat_map(|field| [text(field), text("1")]);
            list(vec![text("0"), list(words.collect())])
        };
        assert!(is_of_a_lock(&hash(&[HOLDER])));
        assert!(is_of_a_lock(&hash(&["mode", &format!("{HOLDER}:write")])));
        assert!(is_of_a_lock(&text(HOLDER)));
        assert!(is_of_a_lock(&text("00000000-0000-4000-8000-000000000000:-7")), "of Redisson");
        for other in ["name", "a:7", "00000000-0000-4000-8000-000000000000", &HOLDER[1..]] {
            assert!(!is_of_a_lock(&hash(&[other])), "{other}");
            assert!(!is_of_a_lock(&text(other)), "{other}");
        }
        assert!(!is_of_a_lock(&hash(&[])) && !is_of_a_lock(&Reply::Other));
    }

    #[test]
    fn some_of_the_keys_are_named() {
        let sample = |count: usize| Sample {
            seen: 100,
            passed: 500,
            is_complete: true,
            left: (0..count).map(|number| format!("job{number}")).collect(),
        };
        assert_eq!(judge("it", &sample(0)).severity, Severity::Fine);
        let two = judge("it", &sample(2));
        assert_eq!(two.severity, Severity::Warning);
        assert!(two.message().contains("\"job0\", \"job1\"; these"), "{two}");
        let many = judge("it", &sample(9));
        assert!(
            many.message().contains("9 keys") && many.message().contains("\"job4\", .."),
            "{many}"
        );
        let none = judge("it", &Sample { passed: 10_000, ..Sample::default() });
        assert_eq!(none.severity, Severity::NotChecked, "{none}");
        assert!(none.message().contains("first 10000"), "{none}");
        let all = Sample { passed: 500, is_complete: true, ..Sample::default() };
        assert_eq!(judge("it", &all).severity, Severity::Fine);
        assert_eq!(shortened(&"é".repeat(90)), format!("\"{}\"..", "é".repeat(80)));
        assert_eq!(shortened("a\n"), "\"a\\n\"");
        let finding = not_checked("it", &refused(), "+scan");
        assert_eq!(finding.severity, Severity::NotChecked);
        assert!(finding.message().contains("+scan"), "{finding}");
    }
}
