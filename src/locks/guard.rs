//! Makes the resource itself refuse a write when the lease is no longer the newest.
//!
//! A process can be paused between a [check](crate::Lease::check) and the write that follows it, for longer than its lease
//! lasts. Only the resource can refuse the write then. For data on Redis, [`Script`] puts the guard into the script that
//! writes, so that nothing comes between. It is text with keys and arguments, and runs through any client:
//! `fred`, `redis`, or a file of Lua. [`guarded_writes`](crate::guide::guarded_writes) has the same for SQL and HTTP.
//!
//! There are two guards, for the same script:
//!
//! - [`Lease::guard`](crate::Lease::guard): the store has the name for this hold *now*. It is exact. The data must be
//!   on the same server as the lock, in a cluster in the same slot.
//! - [`Lease::fence_guard`](crate::Lease::fence_guard): no lease with a larger fencing token has written, or for a
//!   [reader](crate::ReadLease), no such writer. The data can be on any server.
//!
//! ```no_run
//! use leasehold::guard::Script;
//!
//! # async fn run(client: (), leases: leasehold::LeaseManager) -> leasehold::Result<()> {
//! // KEYS and ARGV are those of the caller; the guard takes its own away.
//! let script = Script::new("return redis.call('SET', KEYS[1], ARGV[1])")?;
//!
//! let lease = leases.lock("stock:{42}").lock().await?;
//! let (keys, args) = lease.guard()?.with(["level:{42}"], ["7"]);
//! // client.eval(script.text(), keys, args).await: an error that begins with LEASEHOLD_STALE if the lease is lost.
//! # let _ = (script, keys, args, client);
//! # Ok(())
//! # }
//! ```
//!
//! # Reads
//!
//! A script that only reads is guarded like one that writes, and its fence guard records the token, too. Let the first
//! read of a holder be such a script. Otherwise the late write of an older holder can come between that read and the first
//! guarded write: see [`guarded_writes`](crate::guide::guarded_writes#read-through-the-guard-first).
//!
//! # What a guard cannot do
//!
//! A guard puts no order between two writes of one holder, because both have the same fencing token. A fence guard
//! protects from the moment of the first guarded read or write of the newer holder, not from its grant. And it forgets a
//! resource that no guarded script came to for 24 hours, or the [retention](crate::Builder::fence_retention) of fencing tokens if that
//! is longer, and two TTLs.
//!
//! # Readers
//!
//! Readers of one name have tokens of their own and work at the same time, so one may write after another with a larger
//! token. The guard of a [`ReadLease`](crate::ReadLease) is refused only once a writer with a larger token has come to the
//! resource. The guard of a writer is refused once any holder with a larger token has, also a reader. That is so for guarded
//! reads and writes alike.

use crate::error::{Error, Result};
use crate::store::HolderId;
use std::time::Duration;

/// The word with which the error of a refused write begins. The larger fencing token that was seen follows, or the holder.
pub const STALE: &str = "LEASEHOLD_STALE";

/// The shortest time for which a resource remembers its largest token. It is as long as processes may stand still, which has
/// nothing to do with how far the store's clock may be set back.
const SHORTEST_MEMORY: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest name of a resource in bytes.
const LONGEST_RESOURCE: usize = 512;

/// The guard, before the body. `KEYS[1]` is the lock, a hash or in [`Layout::Plain`](crate::Layout::Plain) a string, or the key of the largest fencing token that was seen. `ARGV[1]`
/// is the holder id or the fencing token, which `r` precedes if it is that of a reader. `ARGV[2]` is for how many
/// milliseconds the token is remembered: 0 means forever, empty for a holder id. Tokens are compared as text, because a
/// number of Lua is exact up to 2^53 only.
///
/// The key has the largest token of all, and behind a space the largest of those that were not readers', if that is
/// smaller. A reader is compared with the second, because readers come in any order, and any other holder with the first.
const PROLOGUE: &str = r"local leasehold_guard = redis.pcall
if ARGV[2] == '' then
  local held = leasehold_guard('HEXISTS', KEYS[1], ARGV[1])
  if type(held) == 'table' then
    local plain = leasehold_guard('GET', KEYS[1])
    if type(plain) ~= 'string' then
      return held
    end
    if plain ~= ARGV[1] then
      return redis.error_reply('LEASEHOLD_STALE ' .. plain)
    end
  elseif held == 0 then
    local holder = leasehold_guard('HKEYS', KEYS[1])
    return redis.error_reply('LEASEHOLD_STALE ' .. (holder[1] or ''))
  end
else
  local reads, fence = string.match(ARGV[1], '^(r?)([1-9]%d*)$')
  local kept = ARGV[2]
  if not fence or not string.find(kept, '^%d+$') then
    return redis.error_reply('LEASEHOLD bad argument: the guard wants a fencing token and a time in ms')
  end
  local seen = leasehold_guard('GET', KEYS[1])
  if type(seen) == 'table' then
    return seen
  end
  local function newer(one, other)
    return #one > #other or #one == #other and one > other
  end
  local all, writers = string.match(seen or '', '^(%d+) ?(%d*)$')
  all = all or '0'
  if not writers or writers == '' then
    writers = all
  end
  local limit = reads == 'r' and writers or all
  if newer(limit, fence) then
    return redis.error_reply('LEASEHOLD_STALE ' .. limit)
  end
  if reads == 'r' then
    fence = (newer(all, fence) and all or fence) .. ' ' .. writers
  end
  -- Before the write: Redis does not roll back, and what is remembered too early refuses only what is late.
  local stored
  if kept == '0' then
    stored = leasehold_guard('SET', KEYS[1], fence)
  else
    stored = leasehold_guard('SET', KEYS[1], fence, 'PX', kept)
  end
  if stored.err then
    return stored
  end
end
local function leasehold_rest(list, from)
  local rest = {}
  for i = from, #list do
    rest[i - from + 1] = list[i]
  end
  return rest
end
return (function(KEYS, ARGV)
";

/// A script for Redis that writes, or reads, only for the newest holder of a name.
///
/// Its text does not depend on the lease, so servers cache it like any other script. Run it with the keys and arguments of a
/// [`Guard`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    text: String,
}

impl Script {
    /// Puts the guard before a script. In `body`, `KEYS` and `ARGV` begin with its own, as without the guard.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if `body` is empty, or begins with a line `#!`: the guard comes first, so
    /// flags of a script have no place.
    ///
    /// ```
    /// use leasehold::guard::Script;
    ///
    /// let script = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])")?;
    /// assert!(script.text().contains("INCRBY"));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn new(body: impl AsRef<str>) -> Result<Self> {
        let body = body.as_ref();
        if body.trim().is_empty() {
            return Err(Error::invalid(
                "the script is empty; give the guard a read or a write to guard",
            ));
        }
        if body.starts_with("#!") {
            return Err(Error::invalid(
                "the script begins with `#!`, which must be the first line of the whole; leave that line out",
            ));
        }
        // The body may end with a comment.
        Ok(Self {
            text: format!(
                "{PROLOGUE}{body}\nend)(leasehold_rest(KEYS, 2), leasehold_rest(ARGV, 3))\n"
            ),
        })
    }

    /// Returns the text to send with `EVAL`, or to load with `SCRIPT LOAD`.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The proof of a lease, as the first key and the first two arguments of a [`Script`].
///
/// [`Lease::guard`](crate::Lease::guard) and [`Lease::fence_guard`](crate::Lease::fence_guard) make it. It does not
/// change when the lease is lost: the script refuses it then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    key: String,
    args: [String; 2],
}

/// What a fence guard is made of.
pub(crate) struct Token {
    pub(crate) fence: Option<u64>,
    /// Whether it is that of a reader.
    pub(crate) reads: bool,
    /// For how long the store remembers tokens; `None`: forever.
    pub(crate) retention: Option<Duration>,
    pub(crate) ttl: Duration,
}

impl Guard {
    pub(crate) fn of_owner(key: String, holder: HolderId) -> Self {
        Self { key, args: [holder.to_string(), String::new()] }
    }

    pub(crate) fn of_fence(resource: &str, token: Token) -> Result<Self> {
        let Some(fence) = token.fence.filter(|fence| *fence > 0) else {
            return Err(Error::invalid(
                "this lease has no fencing token: fencing is off, or the store has none; guard the write with `guard`, or \
                 use a store with fencing tokens",
            ));
        };
        if resource.is_empty() || resource.len() > LONGEST_RESOURCE {
            return Err(Error::invalid(format!(
                "the name of a resource has {} bytes; 1 to {LONGEST_RESOURCE} are allowed",
                resource.len()
            )));
        }
        let key = key_of(resource);
        let kept = token.retention.map_or(0, |retention| {
            (retention.max(SHORTEST_MEMORY) + token.ttl * 2).as_millis().max(1)
        });
        let reads = if token.reads { "r" } else { "" };
        Ok(Self { key, args: [format!("{reads}{fence}"), kept.to_string()] })
    }

    /// Returns the key that comes before those of the script.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the arguments that come before those of the script.
    #[must_use]
    pub fn args(&self) -> &[String; 2] {
        &self.args
    }

    /// Returns all keys and all arguments of a call.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("stock:42").lock().await?;
    /// let (keys, args) = lease.fence_guard("level:42")?.with(["level:42"], ["7"]);
    /// assert_eq!(keys, ["leasehold_seen:{level:42}", "level:42"]);
    /// assert_eq!(args.len(), 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with<K: Into<String>, A: Into<String>>(
        self,
        keys: impl IntoIterator<Item = K>,
        args: impl IntoIterator<Item = A>,
    ) -> (Vec<String>, Vec<String>) {
        let keys = std::iter::once(self.key).chain(keys.into_iter().map(Into::into)).collect();
        let args = self.args.into_iter().chain(args.into_iter().map(Into::into)).collect();
        (keys, args)
    }
}

/// Returns the key of the largest fencing token that a resource has seen. No two resources share one, and in a cluster it is
/// in the slot of the key `resource`.
fn key_of(resource: &str) -> String {
    match resource.split_once('{') {
        None => format!("leasehold_seen:{{{resource}}}"),
        // `{x}` has the hash tag of `x`, so it needs another key.
        Some(("", rest)) if rest.ends_with('}') && !rest.contains('{') => {
            format!("leasehold_seen_tag:{resource}")
        }
        Some(_) => format!("leasehold_seen:{resource}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::collections::HashMap;

    fn token(fence: Option<u64>, retention: Option<u64>) -> Token {
        let retention = retention.map(Duration::from_secs);
        Token { fence, reads: false, retention, ttl: Duration::from_secs(2) }
    }

    /// What a cluster hashes of a key.
    fn hashed(key: &str) -> &str {
        let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
    }

    #[test]
    fn resources_share_no_key_and_keys_have_their_slots() {
        let mut resources = vec![String::new()];
        for length in 1..=6 {
            let longer = resources.iter().filter(|shorter| shorter.len() == length - 1);
            let longer =
                longer.flat_map(|shorter| ["{", "}", "x", ":"].map(|end| shorter.clone() + end));
            resources.extend(longer.collect::<Vec<_>>());
        }
        let mut keys = HashMap::new();
        for resource in &resources[1..] {
            let key = key_of(resource);
            let tagged = !resource.contains(['{', '}']) || hashed(resource) != resource;
            assert!(!tagged || hashed(&key) == hashed(resource), "{resource}: {key}");
            if let Some(other) = keys.insert(key, resource) {
                panic!("{other} and {resource} share a key");
            }
        }
    }

    #[test]
    fn script_without_a_write_or_with_flags_is_invalid() {
        for body in ["", " \n\t", "#!lua flags=allow-oom\nreturn 1"] {
            assert_eq!(Script::new(body).unwrap_err().kind(), ErrorKind::Invalid, "{body}");
        }
    }

    #[test]
    fn fence_guard_needs_a_token_and_a_resource() {
        let guard = |resource: &str, fence| Guard::of_fence(resource, token(fence, Some(1)));
        let long = "x".repeat(LONGEST_RESOURCE + 1);
        for (resource, fence) in [("a", None), ("a", Some(0)), ("", Some(1)), (&*long, Some(1))] {
            assert_eq!(guard(resource, fence).unwrap_err().kind(), ErrorKind::Invalid);
        }
        let guard = guard("a{t}", Some(7)).unwrap();
        assert_eq!(
            (guard.key(), guard.args()),
            ("leasehold_seen:a{t}", &["7".into(), "86404000".into()])
        );
        let longer = Guard::of_fence("a", token(Some(7), Some(100_000))).unwrap();
        assert_eq!(longer.args()[1], "100004000");
        let reader = Guard::of_fence("a", Token { reads: true, ..token(Some(7), None) }).unwrap();
        assert_eq!(reader.args()[0], "r7");
    }

    #[test]
    fn fence_is_remembered_forever_if_the_store_does() {
        let guard = Guard::of_fence("a", token(Some(7), None)).unwrap();
        assert_eq!(guard.args()[1], "0");
    }
}
