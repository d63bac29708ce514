//! Reads the replies of a server. Knows no client: only numbers, texts, and the codes of the scripts.

use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Absence, Acquired, Closed, HolderInfo, Inspection, Mark};
use crate::util::trace;
use std::time::Duration;
use tracing::Level;

pub(in crate::store::redis) const WRONG_USER: &str = "the server refuses this user or password; check those of the URL, or what the credentials provider returns";

/// One element of a script's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Element {
    Int(i64),
    Text(String),
    /// Anything else; no script returns it.
    Other,
}

/// The answer of a script for an item that it did not refuse.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Code {
    /// Done, with a result of 0 or more.
    Done(u64),
    Absent(Absence),
    /// -3 or less; the value is the distance from -3.
    Other(u64),
}

impl Element {
    pub(in crate::store::redis) fn code(&self) -> Result<Code> {
        match self {
            Element::Int(-1) => Ok(Code::Absent(Absence::Gone)),
            Element::Int(-2) => Ok(Code::Absent(Absence::Taken)),
            Element::Int(done @ 0..) => Ok(Code::Done(done.unsigned_abs())),
            Element::Int(other) => Ok(Code::Other(other.abs_diff(-3))),
            Element::Text(text) => Err(classify(text)),
            Element::Other => Err(malformed_reply()),
        }
    }

    pub(super) fn int(&self) -> Result<i64> {
        match self {
            Element::Int(value) => Ok(*value),
            Element::Text(_) | Element::Other => Err(malformed_reply()),
        }
    }
}

/// Converts a time to live as Redis reports it; `None` when there is none.
pub(super) fn remaining(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// By how much `acquire.lua` lowers its reply if the mark of work that is done keeps the lock closed.
const DONE: u64 = 1 << 52;
/// By how much it lowers its reply if the holder's manager lingers.
const LINGERS: u64 = 1 << 51;
/// The longest time to live in ms, as in `common.lua`.
const LONGEST_TTL: u64 = 31_536_000_000;

/// Reads the code of an acquire of a lock. Of a grant it is the first fencing token that is reserved, or 0 without them.
pub(super) fn acquired(
    reply: &Element,
    fenced: bool,
    sent: Instant,
    oldest: Option<Duration>,
) -> Result<Acquired> {
    match reply.code()? {
        Code::Done(first) if (first > 0) == fenced => {
            // By `acquire.lua` and `fence.lua`.
            let fence = fenced.then_some(first);
            let reached = first % 2 == 0;
            Ok(Acquired::Granted { sent, fence, reached, oldest })
        }
        Code::Done(_) => Err(malformed_reply()),
        Code::Absent(absence) => Ok(Acquired::NotYours(absence)),
        Code::Other(left) => {
            // A time that is really so long can only be one that another client has set.
            let lowered_by = |by| left.checked_sub(by).filter(|left| *left <= LONGEST_TTL + 1);
            let of_mark = lowered_by(DONE);
            let of_lingering = lowered_by(LINGERS);
            let left = of_mark.or(of_lingering).unwrap_or(left);
            Ok(Acquired::held(left.checked_sub(1).map(Duration::from_millis))
                .with_closed(of_mark.map(|_| Mark::Done))
                .with_lingering(of_lingering.is_some()))
        }
    }
}

/// Returns whether `acquire_all.lua` left a lock as it is, because another one was not granted.
pub(super) fn is_spared(reply: &Element) -> bool {
    matches!(reply, Element::Text(text) if text == "SPARED")
}

/// The error of a request after its connection was closed.
pub(in crate::store::redis) fn connection_closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection to the server has been closed")
}

/// The error of a reply that a Redis server would not send.
pub(in crate::store::redis) fn malformed_reply() -> Error {
    Error::protocol(
        "unexpected reply; leasehold needs Redis 7.0 or later, and no proxy that rewrites replies",
    )
}

/// Warns that a release woke no waiter.
pub(super) fn warn_of_no_wakeup() {
    trace::later(Level::WARN, || {
        || {
            tracing::warn!(
                "the server refused to wake waiters; leasehold::guide::redis lists the permissions"
            )
        }
    });
}

/// Returns the text of a server without the arguments of a command that it does not know, because a password may be among
/// them, and without the place in a script, which means nothing to a user.
pub(in crate::store::redis) fn without_arguments(text: &str) -> &str {
    let text = text.split(", with args").next().unwrap_or_default();
    match text.rsplit_once(" script: ") {
        Some((text, rest)) if rest.contains(", on @") => text,
        _ => text,
    }
}

/// Returns whether the server refused a whole call because the user has no access to one of its keys. Redis 7.0 reports
/// "to access one of the keys", later versions "to access a key".
pub(in crate::store::redis) fn is_key_out_of_reach(error: &Error) -> bool {
    error.kind() == ErrorKind::Denied
        && error.fate() == Fate::NotExecuted
        && error.to_string().contains(" to access ")
}

/// Returns whether a cluster refused a call because only some of its keys have moved to another server.
pub(in crate::store::redis) fn is_split(error: &Error) -> bool {
    error.is_unavailable()
        && error.fate() == Fate::NotExecuted
        && error.to_string().contains("(TRYAGAIN ")
}

/// The texts by which Redis, Valkey and proxies refuse a command that they do not know, or that was renamed away.
const UNKNOWN: [&str; 3] = ["unknown command", "unknown subcommand", "unsupported command"];
/// The same inside a script, by Redis, by Valkey and by `acl_check_cmd`. None of them names the command.
const UNKNOWN_IN_SCRIPT: [&str; 3] = [
    "Unknown Redis command called from script",
    "Unknown command called from script",
    "Invalid command passed",
];

/// Returns the error of a server that does not know a command, if these are its words for that.
fn unknown_command(text: &str) -> Option<Error> {
    let within = |words: &[&str]| words.iter().any(|words| text.contains(words));
    let fate = if within(&UNKNOWN_IN_SCRIPT) {
        // The script may have written before.
        Fate::Unknown
    } else if text.starts_with("ERR ") && within(&UNKNOWN) {
        Fate::NotExecuted
    } else {
        return None;
    };
    let name = quoted(text).map(|name| format!("the command {}", name.to_ascii_uppercase()));
    let message = format!(
        "the server does not know {}, which leasehold needs; use Redis 7.0 or later, or Valkey, without a renamed \
         command, and no proxy that lacks one ({text})",
        name.as_deref().unwrap_or("a command")
    );
    let source = ServerError(text.to_owned());
    Some(Error::new(ErrorKind::Unsupported, message).with_fate(fate).with_source(source))
}

/// Returns the first words in quotes.
fn quoted(text: &str) -> Option<&str> {
    const QUOTES: [char; 2] = ['\'', '`'];
    let (_, rest) = text.split_once(QUOTES)?;
    rest.split_once(QUOTES).map(|(words, _)| words)
}

/// Adds the command to the words of a server that has refused one inside a script without naming it, by the line of the
/// script that these words name: the command that is called there, or else the one that is set as current before.
pub(in crate::store::redis) fn with_command(text: &str, script: &str) -> Option<String> {
    let nameless = UNKNOWN_IN_SCRIPT.iter().chain(&DENIED_IN_SCRIPT[..1]);
    nameless.clone().find(|words| text.contains(**words))?;
    let (_, line) = text.rsplit_once("user_script:")?;
    let line: usize = line.trim_end_matches(|last: char| !last.is_ascii_digit()).parse().ok()?;
    let after = |line: &str, words: &str| {
        line.find(words).and_then(|at| quoted(&line[at..])).map(ToOwned::to_owned)
    };
    let lines: Vec<&str> = script.lines().take(line).collect();
    let called = lines.last().and_then(|line| after(line, "call('"));
    let command =
        called.or_else(|| lines.iter().rev().find_map(|line| after(line, "doing = '")))?;
    Some(format!("{} ('{command}')", without_arguments(text)))
}

/// Returns the server's own words, if it has answered with an error.
pub(in crate::store::redis) fn words_of(error: &Error) -> Option<&str> {
    let source = std::error::Error::source(error)?.downcast_ref::<ServerError>()?;
    Some(&source.0)
}

/// The texts by which Redis 7.0, and later versions, refuse a command inside a script.
const DENIED_IN_SCRIPT: [&str; 2] =
    ["The user executing the script can't", "ACL failure in script"];

/// Classifies an error reply by its first word, as Redis documents them.
pub(in crate::store::redis) fn classify(text: &str) -> Error {
    use ErrorKind::{Denied, Invalid, Rejected, Unavailable, WrongType};

    let text = without_arguments(text);

    // Inside a script a missing permission has no word of its own.
    if DENIED_IN_SCRIPT.iter().any(|words| text.contains(words)) {
        let message = "the user lacks a permission that the lock scripts need; leasehold::guide::redis lists them";
        return error(Denied, message, text, Fate::Unknown);
    }
    if let Some(error) = unknown_command(text) {
        return error;
    }
    // A script created a key whose slot is being moved.
    if text.contains("access a non local key") {
        let message = "the server is part of a cluster that sends us elsewhere";
        return error(Unavailable, message, text, Fate::Unknown);
    }
    let word = text.split([' ', ':']).next().unwrap_or_default();
    let (kind, message) = match word {
        "MOVED" | "ASK" | "TRYAGAIN" => {
            (Unavailable, "the server is part of a cluster that sends us elsewhere")
        }
        // fred fails all commands in flight on the connection with this, and closes it.
        "CLUSTERDOWN" => {
            return error(Unavailable, "the server's cluster is down", text, Fate::Unknown);
        }
        "LOADING" => (Unavailable, "the server is still loading its data"),
        "MASTERDOWN" => (Unavailable, "the server is a replica that lost its master"),
        "BUSY" => (Unavailable, "the server is busy with a long script"),
        "READONLY" => (Rejected, "the server is a read-only replica"),
        "OOM" => (Rejected, "the server is out of memory"),
        "NOREPLICAS" => (Rejected, "the server has too few replicas to accept writes"),
        "MISCONF" => (Rejected, "the server cannot save to disk and refuses writes"),
        "DENIED" => (Denied, "the server is in protected mode: it takes local clients only"),
        "NOAUTH" => (
            Denied,
            "the server wants a password; have the credentials provider return one, or put it into the URL after a colon, as \
             in redis://:password@host, but not on a command line, which others can read: there LEASEHOLD_PASSWORD_FILE \
             names a file with it",
        ),
        "WRONGPASS" => (Denied, WRONG_USER),
        "NOPERM" if text.contains(" key") => (
            Denied,
            "the user may not use a key; leasehold::guide::redis lists the key patterns of each kind of lock, which must have the prefix",
        ),
        "NOPERM" => (Denied, "the user lacks a permission; leasehold::guide::redis lists them"),
        // The scripts name a key beside the lock; the server names none.
        "WRONGTYPE" if text.starts_with("WRONGTYPE the key ") => {
            (WrongType, "a key beside the lock is no key of leasehold; it was left untouched")
        }
        // The server's own words name no key.
        "WRONGTYPE" if text.starts_with("WRONGTYPE Operation") => (
            WrongType,
            "the key under this name, or one beside it, has another type; it was left untouched",
        ),
        "WRONGTYPE" => (
            WrongType,
            "the name is in use as another kind of lock, or its key holds something else; it was left untouched",
        ),
        "CROSSSLOT" => (Invalid, "the name's keys fall into different cluster slots"),
        "LEASEHOLD" => (Invalid, "the lock script refused its arguments"),
        "ERR" if text.contains("unauthenticated") => {
            (Invalid, "the user or password is longer than the server reads before a login (16 kB)")
        }
        "ERR" if text.contains("max number of clients") => {
            (Unavailable, "the server accepts no more clients")
        }
        "ERR"
            if text.contains("without any password configured")
                || text.contains("invalid password") =>
        {
            (Denied, WRONG_USER)
        }
        "ERR" if text.contains("DB index is out of range") => {
            (Invalid, "the server has no database of this number")
        }
        "ERR" if text.contains("SELECT is not allowed in cluster mode") => {
            (Invalid, "this cluster has one database only; leave the database out of the URL")
        }
        _ => {
            return error(Unavailable, "the server answered with an error", text, Fate::Unknown);
        }
    };
    let error = error(kind, message, text, Fate::NotExecuted);
    if kind == Denied && word != "NOPERM" { error.for_all_names() } else { error }
}

/// The server's own words, kept as the source.
#[derive(Debug)]
struct ServerError(String);

impl std::fmt::Display for ServerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ServerError {}

fn error(kind: ErrorKind, message: &'static str, text: &str, fate: Fate) -> Error {
    Error::new(kind, format!("{message} ({text})"))
        .with_fate(fate)
        .with_source(ServerError(text.to_owned()))
}

/// Reads the reply of the inspect script.
pub(super) fn inspection(reply: &[Element]) -> Result<Inspection> {
    let [left, fields @ ..] = reply else {
        return Err(malformed_reply());
    };
    match fields {
        [] => Ok(Inspection::default()),
        [Element::Text(holder), Element::Text(count)] => {
            let left = remaining(left.int()?);
            if let Some(closed) = closed(holder, count, left) {
                return Ok(Inspection::new([HolderInfo::closed(closed, left)]));
            }
            let count = count.parse().map_err(|_| not_a_lock())?;
            Ok(Inspection::new([HolderInfo::new(holder.clone(), count, left)]))
        }
        _ => Err(not_a_lock()),
    }
}

/// Reads a mark: the time in ms for which it is kept, a space, and the holder id.
fn closed(holder: &str, text: &str, left: Option<Duration>) -> Option<Closed> {
    let mark = [Mark::Done, Mark::Kept].into_iter().find(|mark| mark.holder() == holder)?;
    let (time, by) = text.split_once(' ')?;
    let time = Duration::from_millis(time.parse().ok()?);
    Some(Closed::new(mark, time.saturating_sub(left?), by.to_owned()))
}

fn not_a_lock() -> Error {
    Error::new(
        ErrorKind::WrongType,
        "what is under this name is not a lock of one holder; it was left untouched",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_replies_are_sorted_with_their_fate() {
        use ErrorKind::*;
        use Fate::*;
        let table = [
            ("MOVED 3999 127.0.0.1:6381", Unavailable, NotExecuted),
            ("ASK 3999 127.0.0.1:6381", Unavailable, NotExecuted),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable, NotExecuted),
            (
                "ERR Script attempted to access a non local key in a cluster node",
                Unavailable,
                Unknown,
            ),
            ("CLUSTERDOWN The cluster is down", Unavailable, Unknown),
            ("LOADING Redis is loading the dataset in memory", Unavailable, NotExecuted),
            ("BUSY Redis is busy running a script.", Unavailable, NotExecuted),
            ("MASTERDOWN Connection with MASTER is down", Unavailable, NotExecuted),
            ("ERR max number of clients reached", Unavailable, NotExecuted),
            ("Too many failed write attempts.", Unavailable, Unknown),
            ("READONLY You can't write against a read only replica.", Rejected, NotExecuted),
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: 1f, on @user_script:3.",
                Rejected,
                NotExecuted,
            ),
            ("NOREPLICAS Not enough good replicas to write.", Rejected, NotExecuted),
            ("MISCONF Redis is configured to save RDB snapshots", Rejected, NotExecuted),
            ("DENIED Redis is running in protected mode because", Denied, NotExecuted),
            ("NOAUTH Authentication required.", Denied, NotExecuted),
            ("WRONGPASS invalid username-password pair or user is disabled.", Denied, NotExecuted),
            ("NOPERM this user has no permissions to run the 'eval' command", Denied, NotExecuted),
            (
                "ERR The user executing the script can't run this command or subcommand",
                Denied,
                Unknown,
            ),
            (
                "ERR ACL failure in script: User u has no permissions to run the 'hset' command",
                Denied,
                Unknown,
            ),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                WrongType,
                NotExecuted,
            ),
            ("CROSSSLOT Keys in request don't hash to the same slot", Invalid, NotExecuted),
            ("LEASEHOLD bad argument x", Invalid, NotExecuted),
            (
                "ERR AUTH <password> called without any password configured for the default user.",
                Denied,
                NotExecuted,
            ),
            ("ERR invalid password", Denied, NotExecuted),
            ("ERR Protocol error: unauthenticated bulk length", Invalid, NotExecuted),
            ("ERR DB index is out of range", Invalid, NotExecuted),
            ("ERR SELECT is not allowed in cluster mode", Invalid, NotExecuted),
            (
                "ERR unknown command 'ZADD', with args beginning with: 'a' ",
                Unsupported,
                NotExecuted,
            ),
            ("ERR unknown command `ZADD`, with args beginning with: ", Unsupported, NotExecuted),
            ("ERR unknown subcommand 'SHARDNUMSUB'. Try PUBSUB HELP.", Unsupported, NotExecuted),
            ("ERR unsupported command 'zadd'", Unsupported, NotExecuted),
            ("ERR Unknown Redis command called from script ('ZADD')", Unsupported, Unknown),
            (
                "ERR Unknown command called from script script: 1f, on @user_script:3.",
                Unsupported,
                Unknown,
            ),
            ("ERR Invalid command passed to redis.acl_check_cmd() ('ZADD')", Unsupported, Unknown),
            ("ERR something new", Unavailable, Unknown),
            ("", Unavailable, Unknown),
        ];
        for (text, kind, fate) in table {
            let error = classify(text);
            assert_eq!((error.kind(), error.fate()), (kind, fate), "{text}");
            let text = without_arguments(text);
            assert!(error.to_string().contains(text), "{error}");
            let source = std::error::Error::source(&error).map(ToString::to_string);
            assert_eq!(source.as_deref(), Some(text), "the server's own words");
        }
    }

    #[test]
    fn unknown_command_is_named_by_the_server_or_by_the_script() {
        for (text, says) in [
            (
                "ERR unknown command 'zadd', with args beginning with: 'a' ",
                "the command ZADD, which",
            ),
            ("ERR unknown command `ZADD`, with args beginning with: ", "the command ZADD, which"),
            ("ERR Unknown command called from script ('ZADD')", "the command ZADD, which"),
            ("ERR Unknown command called from script", "a command, which"),
        ] {
            assert!(classify(text).to_string().contains(says), "{}", classify(text));
        }
        let script =
            "local a = call('PTTL', lock)\ndoing = 'TIME'\nlocal t = call(TIME)\nerror(t)\n";
        let refused = "ERR Unknown Redis command called from script script: 1f, on @user_script";
        for (line, command) in [(1, "PTTL"), (3, "TIME"), (4, "TIME")] {
            let named = with_command(&format!("{refused}:{line}."), script).unwrap();
            assert_eq!(
                named,
                format!("ERR Unknown Redis command called from script ('{command}')")
            );
        }
        for other in ["ERR what script: 1f, on @user_script:1.", refused] {
            assert_eq!(with_command(other, script), None, "{other}");
        }
    }

    #[test]
    fn key_out_of_reach_is_not_taken_for_a_missing_command() {
        for text in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM No permissions to access a key",
        ] {
            assert!(is_key_out_of_reach(&classify(text)), "{text}");
        }
        for text in [
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "NOAUTH Authentication required.",
            "ERR The user executing the script can't access at least one of the keys",
            "ERR ACL failure in script: No permissions to access a key",
        ] {
            assert!(!is_key_out_of_reach(&classify(text)), "{text}");
        }
    }

    #[test]
    fn password_instead_of_the_user_is_pointed_out() {
        let error = classify("NOAUTH Authentication required.");
        assert!(error.to_string().contains("redis://:password@host"), "{error}");
    }

    #[test]
    fn servers_text_never_repeats_a_password() {
        let error =
            classify("ERR unknown command 'AUTH', with args beginning with: 'app' 'hunter2'");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }

    #[test]
    fn malformed_replies_are_refused() {
        assert!(Element::Text("12".into()).int().is_err());
        assert!(inspection(&[]).is_err());
        assert!(inspection(&[Element::Int(5), Element::Text("mode".into())]).is_err());
        let text = |s: &str| Element::Text(s.into());
        let error = inspection(&[Element::Int(5), text("a"), text("x")]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType);
    }
}
