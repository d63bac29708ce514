//! The description of a holder, beside the lock.

use super::mode::Mode;
use super::name::HolderId;
use super::target::Target;
use crate::error::{Error, ErrorKind, Result};
use std::fmt;
use std::time::{Duration, SystemTime};
use uuid::Uuid;

/// The longest text of an owner, and the longest label, in bytes.
const LONGEST_WORD: usize = 256;
/// The longest value, in bytes.
const LONGEST_VALUE: usize = 4096;

/// The process of a manager, as it describes itself.
///
/// [`Builder::describe`](crate::Builder::describe) has it written to the store, where everyone who may read the locks can
/// read it: it is as public as the names. Host and process id are there by default.
///
/// ```
/// use leasehold::store::Owner;
///
/// let owner = Owner::new("billing").version("1.4.2");
/// assert_eq!(owner.pid, std::process::id());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owner {
    /// The name of the service; empty if it has none.
    pub service: String,
    /// The version of the service; empty if it has none.
    pub version: String,
    /// The name of the host; empty if it is not known.
    pub host: String,
    /// The process id; 0 if it is not known.
    pub pid: u32,
}

impl Owner {
    /// Creates the description of this process, with its host and process id.
    #[must_use]
    pub fn new(service: impl Into<String>) -> Self {
        let host = host();
        let pid = std::process::id();
        Self { service: service.into(), version: String::new(), host, pid }
    }

    /// Sets the [`version`](Self::version).
    #[must_use]
    pub fn version(self, version: impl Into<String>) -> Self {
        Self { version: version.into(), ..self }
    }

    /// Sets the [`host`](Self::host).
    #[must_use]
    pub fn host(self, host: impl Into<String>) -> Self {
        Self { host: host.into(), ..self }
    }

    /// Refuses a text that is too long.
    pub(crate) fn check(&self) -> Result<()> {
        check_word("service", &self.service)?;
        check_word("version", &self.version)?;
        check_word("host", &self.host)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, version, host, pid } = self;
        let words = [service, version].map(String::as_str);
        for word in words.into_iter().filter(|word| !word.is_empty()) {
            write!(f, "{word} ")?;
        }
        write!(f, "{host}:{pid}")
    }
}

fn host() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let known = [kernel.trim().to_owned()].into_iter();
    let named =
        ["HOSTNAME", "COMPUTERNAME"].into_iter().filter_map(|name| std::env::var(name).ok());
    let mut host = known.chain(named).find(|host| !host.is_empty()).unwrap_or_default();
    host.truncate(floor_char_boundary(&host, LONGEST_WORD));
    host
}

/// `str::floor_char_boundary` is newer than the oldest compiler that is supported.
fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default()
}

/// Refuses a text of an owner, or a label, that is too long.
pub(crate) fn check_word(what: &str, text: &str) -> Result<()> {
    check_length(what, text, LONGEST_WORD)
}

/// Refuses a value that is too long.
pub(crate) fn check_value(value: &str) -> Result<()> {
    check_length("value of a candidate", value, LONGEST_VALUE)
}

fn check_length(what: &str, text: &str, longest: usize) -> Result<()> {
    if text.len() <= longest {
        return Ok(());
    }
    let message = format!(
        "the {what} has {} bytes, but {longest} at most are kept beside a lock; shorten it, or write an address of it",
        text.len()
    );
    Err(Error::invalid(message))
}

/// Describes a holder and its hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// The process that holds the name.
    pub owner: Owner,
    /// What the hold is for, as [`Lock::label`](crate::Lock::label) says.
    pub label: Option<String>,
    /// The value of a [leader](crate::Election), such as its address.
    pub value: Option<String>,
    /// The fencing token of the hold; `None` where there are none.
    pub fence: Option<u64>,
    /// When the hold began, by the clock of its process: for people, not for decisions.
    pub since: Option<SystemTime>,
    /// A number that grows with each write of one manager. A store ignores a late copy of an earlier write.
    pub revision: u64,
}

impl Metadata {
    /// Creates the metadata of a hold, without a label and a value.
    #[must_use]
    pub fn new(owner: Owner, revision: u64) -> Self {
        Self { owner, revision, ..Self::default() }
    }

    /// Returns the error of a store that keeps no metadata. Nothing was executed.
    #[must_use]
    pub fn unsupported() -> Error {
        let message = "the store keeps no metadata beside a lock of this kind; use an exclusive lock on Redis, a quorum, ZooKeeper or memory";
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Sets the [`label`](Self::label).
    #[must_use]
    pub fn with_label(self, label: Option<String>) -> Self {
        Self { label, ..self }
    }

    /// Sets the [`value`](Self::value).
    #[must_use]
    pub fn with_value(self, value: Option<String>) -> Self {
        Self { value, ..self }
    }

    /// Sets the [`fence`](Self::fence).
    #[must_use]
    pub fn with_fence(self, fence: Option<u64>) -> Self {
        Self { fence, ..self }
    }

    /// Sets the time at which the hold [began](Self::since).
    #[must_use]
    pub fn with_since(self, since: Option<SystemTime>) -> Self {
        Self { since, ..self }
    }

    /// Returns the parts that it has, each with its name, for a store that keeps texts.
    #[cfg(any(feature = "redis", feature = "zookeeper"))]
    pub(crate) fn words(&self) -> Vec<(&'static str, String)> {
        let since = self.since.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        let parts = [
            ("service", Some(self.owner.service.clone()).filter(|text| !text.is_empty())),
            ("version", Some(self.owner.version.clone()).filter(|text| !text.is_empty())),
            ("host", Some(self.owner.host.clone()).filter(|text| !text.is_empty())),
            ("pid", Some(self.owner.pid).filter(|pid| *pid > 0).map(|pid| pid.to_string())),
            ("label", self.label.clone()),
            ("value", self.value.clone()),
            ("fence", self.fence.map(|fence| fence.to_string())),
            ("since", since.map(|since| since.as_millis().to_string())),
            ("rev", Some(self.revision.to_string())),
        ];
        parts.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
    }

    /// Reads one of the [`words`](Self::words). What a later version has added is left out.
    #[cfg(any(feature = "redis", feature = "zookeeper"))]
    pub(crate) fn read(&mut self, name: &str, text: &str) {
        match name {
            "service" => self.owner.service = text.to_owned(),
            "version" => self.owner.version = text.to_owned(),
            "host" => self.owner.host = text.to_owned(),
            "pid" => self.owner.pid = text.parse().unwrap_or_default(),
            "label" => self.label = Some(text.to_owned()),
            "value" => self.value = Some(text.to_owned()),
            "fence" => self.fence = text.parse().ok(),
            "since" => {
                let since = text.parse().ok().map(Duration::from_millis);
                self.since = since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
            }
            "rev" => self.revision = text.parse().unwrap_or_default(),
            _ => {}
        }
    }
}

/// A request to write the description of a holder beside its lock, or to delete it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Annotate {
    /// The name and the mode of the hold.
    pub target: Target,
    /// The holder.
    pub holder: HolderId,
    /// What to write; `None` deletes what this holder has written.
    pub metadata: Option<Metadata>,
    /// For how long the store keeps it without another write. It counts only while the holder has the name.
    pub ttl: Duration,
    /// The time that the attempt may take.
    pub timeout: Duration,
}

impl Annotate {
    /// Creates a request that writes `metadata`, kept for `ttl`; with `None`, one that deletes it.
    #[must_use]
    pub fn new(
        target: Target,
        holder: HolderId,
        metadata: Option<Metadata>,
        ttl: Duration,
        timeout: Duration,
    ) -> Self {
        Self { target, holder, metadata, ttl, timeout }
    }

    /// Refuses a mode that several holders share.
    pub(crate) fn require_exclusive(&self) -> Result<()> {
        if self.target.mode == Mode::Exclusive { Ok(()) } else { Err(Metadata::unsupported()) }
    }
}

/// A request to keep the description of a manager, or to delete it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Describe {
    /// The id of the manager.
    pub manager: Uuid,
    /// Its process; `None` deletes the description.
    pub owner: Option<Owner>,
    /// For how long the store keeps it without another write.
    pub ttl: Duration,
    /// The time that the attempt may take.
    pub timeout: Duration,
}

impl Describe {
    /// Creates a request that keeps the description for `ttl`; with `None`, one that deletes it.
    #[must_use]
    pub fn new(manager: Uuid, owner: Option<Owner>, ttl: Duration, timeout: Duration) -> Self {
        Self { manager, owner, ttl, timeout }
    }

    /// Returns the error of a store that keeps no descriptions of managers. Nothing was executed.
    #[must_use]
    pub fn unsupported() -> Error {
        Error::new(ErrorKind::Unsupported, "the store keeps no descriptions of managers")
    }

    /// Returns what the store knows the manager by.
    pub(crate) fn key(&self) -> String {
        let mut key = self.manager.to_string();
        key.truncate(BEGINNING);
        key
    }
}

/// A request for the descriptions of managers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Owners {
    /// The first 18 characters of the uuid of each manager, as it is written: the id of a permit on Redis has no more.
    pub managers: Vec<String>,
    /// The time that the attempt may take.
    pub timeout: Duration,
}

impl Owners {
    /// Creates a request for the descriptions of managers.
    #[must_use]
    pub fn new(managers: Vec<String>, timeout: Duration) -> Self {
        Self { managers, timeout }
    }
}

/// The number of characters of the uuid of a manager by which a store knows it.
pub(crate) const BEGINNING: usize = 18;

/// Returns what a store knows the manager by, to which the id of a holder or a manager belongs. `None` for other ids, such as
/// those of Redisson's permits.
pub(crate) fn manager_of(id: &str) -> Option<&str> {
    let is_uuids = |(at, byte): (usize, u8)| match at {
        8 | 13 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    id.get(..BEGINNING).filter(|beginning| beginning.bytes().enumerate().all(is_uuids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(feature = "redis", feature = "zookeeper"))]
    #[test]
    fn metadata_is_read_as_it_was_written() {
        let full = Metadata::new(Owner::new("billing").version("1.4"), 7)
            .with_label(Some("import of a.csv\n".into()))
            .with_value(Some(String::new()))
            .with_fence(Some(12))
            .with_since(Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)));
        for metadata in [full, Metadata::new(Owner::default(), 1)] {
            let mut read = Metadata::default();
            metadata.words().iter().for_each(|(name, text)| read.read(name, text));
            read.read("a later version's", "text");
            assert_eq!(read, metadata);
        }
    }

    #[test]
    fn manager_is_known_by_the_ids_of_its_holders() {
        let uuid = "12345678-9abc-4def-8123-456789abcdef";
        let manager = Some("12345678-9abc-4def");
        for id in [uuid, &format!("{uuid}:7"), &format!("{uuid}:7.1.2"), "12345678-9abc-4def-..:7"]
        {
            assert_eq!(manager_of(id), manager, "{id}");
        }
        for other in ["", "leasehold:done", "00112233445566778899aabbccddeeff", "12345678-9abc-4de"]
        {
            assert_eq!(manager_of(other), None, "{other}");
        }
        let request = Describe::new(uuid.parse().unwrap(), None, Duration::ZERO, Duration::ZERO);
        assert_eq!(Some(&*request.key()), manager);
    }

    #[test]
    fn owner_has_the_host_and_the_process() {
        let owner = Owner::new("billing").version("1.4").host("a1");
        assert_eq!(owner.to_string(), format!("billing 1.4 a1:{}", std::process::id()));
        assert!(!Owner::new("").host.is_empty());
        let long = "x".repeat(LONGEST_WORD + 1);
        assert!(owner.check().is_ok() && owner.host(long).check().is_err());
        assert_eq!(floor_char_boundary("aé", 2), 1);
    }
}
