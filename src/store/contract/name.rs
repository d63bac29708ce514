//! What is locked, and who holds it.

use crate::error::{Error, Result};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use tokio::task::coop::consume_budget;
use uuid::Uuid;

/// The longest name in bytes, so that keys stay cheap to compare and to log.
const LONGEST_NAME: usize = 512;

/// A checked name of a lock.
///
/// 1 to 512 bytes; braces balanced and never empty, because Redis Cluster and Redisson derive
/// the slot from them.
#[derive(Clone, Eq)]
pub struct Name {
    /// The hash of the text, computed once: a lock and its release look the name up a dozen times.
    hash: u64,
    text: Arc<str>,
}

/// The keys of the hash, drawn once in a process, so that no user can choose names that collide.
static HASH_KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A map whose keys are names.
pub(crate) type NameMap<V> = HashMap<Name, V, BuildHasherDefault<NameHasher>>;

/// Returns the hash that a name has.
#[derive(Default)]
pub(crate) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// A name writes its hash only.
    fn write(&mut self, bytes: &[u8]) {
        self.0 = HASH_KEYS.hash_one(bytes);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        // Most are clones of one name.
        self.hash == other.hash && (Arc::ptr_eq(&self.text, &other.text) || self.text == other.text)
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) says which rule is broken.
    ///
    /// ```
    /// use leasehold::store::Name;
    ///
    /// assert!(Name::new("orders:{42}").is_ok());
    /// assert!(Name::new("orders:{42").is_err());
    /// ```
    pub fn new(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Err(Error::invalid("a lock's name is empty; give it at least one byte"));
        }
        if name.len() > LONGEST_NAME {
            return Err(Error::invalid(format!(
                "a lock's name has {} bytes; at most {LONGEST_NAME} are allowed, so use a digest of it",
                name.len()
            )));
        }
        check_braces("name", name)?;
        Ok(Self { hash: HASH_KEYS.hash_one(name), text: name.into() })
    }

    /// Returns the name as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the name that a handle was made with. If it is invalid, this takes part in the budget of the task: a loop
    /// that makes the call again starves no other task.
    pub(crate) async fn of_handle(name: &Result<Self>) -> Result<&Self> {
        match name {
            Ok(name) => Ok(name),
            Err(error) => {
                consume_budget().await;
                Err(error.clone())
            }
        }
    }

    /// Returns the text of a name that a handle was made with; empty if it is invalid.
    pub(crate) fn text_of(name: &Result<Self>) -> &str {
        name.as_ref().map(Self::as_str).unwrap_or_default()
    }
}

/// The longest prefix of names in bytes.
const LONGEST_PREFIX: usize = 256;

/// Checks what is to precede all names.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    if prefix.len() > LONGEST_PREFIX {
        return Err(Error::invalid(format!(
            "the prefix has {} bytes; at most {LONGEST_PREFIX} are allowed",
            prefix.len()
        )));
    }
    check_braces("prefix", prefix)
}

/// Refuses braces from which Redis Cluster would derive different slots for one lock's keys.
fn check_braces(what: &str, name: &str) -> Result<()> {
    let mut open = 0usize;
    let mut previous = b' ';
    for byte in name.bytes() {
        match byte {
            b'{' => open += 1,
            b'}' if open == 0 => return Err(braces(what, name, "a '}' without its '{'")),
            b'}' if previous == b'{' => return Err(braces(what, name, "an empty '{}'")),
            b'}' => open -= 1,
            _ => {}
        }
        previous = byte;
    }
    if open > 0 {
        return Err(braces(what, name, "a '{' without its '}'"));
    }
    Ok(())
}

fn braces(what: &str, name: &str, fault: &str) -> Error {
    Error::invalid(format!(
        "the {what} {name:?} has {fault}; braces must be balanced and not empty, for they choose the cluster slot"
    ))
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

/// The identity of one grant: `<uuid v4 of the manager>:<number>`. The holders to which the grant is handed off share it,
/// and it is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HolderId {
    manager: Uuid,
    number: u64,
    /// At which node of a quorum, counted from 1; 0 elsewhere.
    node: u8,
    /// Which attempt of a quorum's; 0 for the first, and elsewhere.
    attempt: u32,
}

impl HolderId {
    /// Creates the `number`-th holder id of a manager.
    pub fn new(manager: Uuid, number: u64) -> Self {
        Self { manager, number, node: 0, attempt: 0 }
    }

    /// Returns the same holder's id for one attempt at the nodes of a quorum.
    pub(crate) fn in_attempt(self, attempt: u32) -> Self {
        Self { attempt, ..self }
    }

    /// Returns the same holder's id at one node of a quorum, counted from 1.
    pub(crate) fn at_node(self, node: u8) -> Self {
        Self { node, ..self }
    }

    /// Returns the id of the manager.
    #[must_use]
    pub fn manager(self) -> Uuid {
        self.manager
    }

    /// Returns whether its manager [lingers](crate::Builder::linger), so that a hold without a holder may rest. The id of such a
    /// manager is a UUID of version 8; that of any other one, as of Redisson, is of version 4.
    #[must_use]
    pub fn lingers(self) -> bool {
        self.manager.get_version_num() == 8
    }

    /// Returns the number. A manager draws larger ones for later requests.
    #[must_use]
    pub fn number(self) -> u64 {
        self.number
    }

    /// Writes what comes behind `<manager>:`, without spaces.
    pub(crate) fn write_rest(self, to: &mut impl fmt::Write) -> fmt::Result {
        to.write_str(digits(self.number, &mut [0; 20]))?;
        if self.node > 0 {
            to.write_str(".")?;
            to.write_str(digits(self.node.into(), &mut [0; 20]))?;
        }
        if self.attempt > 0 { write!(to, ".{}", self.attempt) } else { Ok(()) }
    }
}

impl FromStr for HolderId {
    type Err = Error;

    /// Reads an id as it is written: `<uuid of the manager>:<number>`, at a node of a quorum with `.<node>` and
    /// `.<attempt>` behind it.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): the text is the id of no leasehold holder, such as that of a Redisson client
    /// or of a permit on Redis, which has not the whole uuid.
    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let (manager, rest) = text.split_once(':')?;
            let mut parts = rest.split('.');
            let mut id = Self::new(Uuid::try_parse(manager).ok()?, parts.next()?.parse().ok()?);
            if let Some(node) = parts.next() {
                id = id.at_node(node.parse().ok()?);
            }
            if let Some(attempt) = parts.next() {
                id = id.in_attempt(attempt.parse().ok()?);
            }
            // One text for each id, so that equal texts and equal ids are the same.
            (id.to_string() == text).then_some(id)
        };
        read().ok_or_else(|| {
            Error::invalid(format!(
                "{text:?} is no holder id; expected <uuid of a manager>:<number>"
            ))
        })
    }
}

/// A number in decimal digits. `{}` costs as much as half of what else a lease adds to a call.
fn digits(mut number: u64, buffer: &mut [u8; 20]) -> &str {
    let mut start = buffer.len();
    loop {
        start -= 1;
        buffer[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return str::from_utf8(&buffer[start..]).unwrap_or_default();
        }
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One layer of formatting less than `{}`: this is written for each request.
        f.write_str(self.manager.as_hyphenated().encode_lower(&mut Uuid::encode_buffer()))?;
        f.write_str(":")?;
        self.write_rest(f)
    }
}

impl fmt::Debug for HolderId {
    /// Four digits tell holder ids apart in a log without giving them away.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}…:{}", self.manager.as_fields().1, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn name_shows_itself() {
        let name = Name::new("a b").unwrap();
        assert_eq!((name.to_string(), format!("{name:?}")), ("a b".into(), "\"a b\"".into()));
    }

    #[test]
    fn names_are_compared_and_sorted_by_their_text() {
        let name = |text: &str| Name::new(text).unwrap();
        assert!(name("a") == name("a") && name("a") != name("b"));
        let mut names = ["b", "c", "a"].map(name);
        names.sort();
        assert_eq!(names, ["a", "b", "c"].map(name));
        let map: NameMap<usize> = (0..1000).map(|i| (name(&format!("n{i}")), i)).collect();
        assert!((0..1000).all(|i| map.get(&name(&format!("n{i}"))) == Some(&i)));
        assert_eq!(map.get(&name("n")), None);
    }

    #[test]
    fn names_are_checked() {
        for good in ["a", "orders:42", "{a}b", "x{a}y", "a{b}{c}", "{{a}}", "naïve ☕", "a\nb\0"]
        {
            assert!(Name::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", "a{b", "{a", "{", "a}b", "}", "x{}y", "{}", "a}b{c", "}{"] {
            let error = Name::new(bad).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{bad:?}");
        }
        assert!(Name::new(&"x".repeat(512)).is_ok());
        let error = Name::new(&"x".repeat(513)).unwrap_err();
        assert!(error.to_string().contains("513 bytes"), "{error}");
    }

    #[test]
    fn prefixes_are_checked() {
        for good in ["", "app:", "{app}:", &"p".repeat(256)] {
            assert!(check_prefix(good).is_ok(), "{good:?}");
        }
        for (bad, hint) in [("a{", "the prefix \"a{\""), (&"p".repeat(257), "257 bytes")] {
            let error = check_prefix(bad).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{bad:?}");
            assert!(error.to_string().contains(hint), "{error}");
        }
    }

    #[test]
    fn holder_id_shows_four_digits_in_debug_and_all_on_the_wire() {
        let holder = HolderId::new(Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef), 7);
        assert_eq!(holder.to_string(), "12345678-9abc-4def-8123-456789abcdef:7");
        assert_eq!(format!("{holder:?}"), "9abc…:7");
        let rest = |holder: HolderId| holder.to_string().split_off(37);
        assert_eq!(rest(holder.at_node(15)), "7.15");
        assert_eq!(rest(holder.at_node(2).in_attempt(3)), "7.2.3");
    }

    #[test]
    fn holder_id_is_read_as_it_is_written() {
        let holder = HolderId::new(Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef), 7);
        for id in [holder, holder.at_node(15), holder.at_node(2).in_attempt(3)] {
            assert_eq!(id.to_string().parse::<HolderId>().unwrap(), id);
        }
        for other in [
            "",
            "7",
            "leasehold:done",
            "12345678-9abc-4def-..:7",
            "12345678-9abc-4def-8123-456789abcdef:07",
            "12345678-9ABC-4DEF-8123-456789ABCDEF:7",
            "12345678-9abc-4def-8123-456789abcdef:7.1.2.3",
        ] {
            assert_eq!(other.parse::<HolderId>().unwrap_err().kind(), crate::ErrorKind::Invalid);
        }
    }

    proptest! {
        #[test]
        fn digits_are_those_that_are_shown(number: u64, shift in 0..64u32) {
            let number = number >> shift;
            prop_assert_eq!(digits(number, &mut [0; 20]).to_owned(), number.to_string());
        }

        /// Redis takes the text between the first '{' and the next '}' for the slot, unless empty.
        #[test]
        fn every_accepted_name_and_its_fence_key_share_a_slot_tag(name in "[ab{}:]{1,12}") {
            fn tag(key: &str) -> &str {
                key.split_once('{')
                    .and_then(|(_, rest)| rest.split_once('}'))
                    .map(|(tag, _)| tag)
                    .filter(|tag| !tag.is_empty())
                    .unwrap_or(key)
            }
            if Name::new(&name).is_ok() {
                let derived = if name.contains('{') {
                    format!("redisson_lock_token:{name}")
                } else {
                    format!("redisson_lock_token:{{{name}}}")
                };
                prop_assert_eq!(tag(&name), tag(&derived));
            }
        }
    }
}
