//! What `list` and `inspect` show of a name: a row for each holder, or an object.

use crate::duration;
use crate::exit::Failure;
use crate::output::{self, Table, UNKNOWN, millis};
use leasehold::store::Owner;
use leasehold::{HolderInfo, Kind, Mode};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

/// The digits of a holder id that tell holders apart.
const BEGINNING: usize = 8;
/// The longest text of another client that stands in the place of a holder id.
const LONGEST: usize = 40;

const HEADER: [&str; 8] = ["NAME", "AS", "HOLDER", "LABEL", "AGE", "LEFT", "TOKEN", "WAITING"];

/// The longest error in a table.
const LONGEST_ERROR: usize = 80;

/// A name and its holders.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) holders: Vec<HolderInfo>,
    /// Why the holders are not known.
    pub(crate) error: Option<String>,
}

impl Entry {
    pub(crate) fn new(name: String, holders: Vec<HolderInfo>) -> Self {
        Self { name, holders, error: None }
    }

    pub(crate) fn unknown(name: String, error: String) -> Self {
        Self { name, holders: Vec::new(), error: Some(error) }
    }

    /// Returns the object that `--json` prints.
    pub(crate) fn object(&self) -> Value {
        let is_closed = |holder: &&HolderInfo| holder.closed.is_some();
        let holders = self.holders.iter().filter(|holder| !is_closed(holder));
        json!({
            "name": self.name,
            "kind": self.kind(),
            "waiting": self.holders.iter().find_map(|holder| holder.waiting),
            "holders": holders.map(holder).collect::<Value>(),
            "closed": self.holders.iter().find(is_closed).map_or(Value::Null, closed_by),
            "error": self.error,
        })
    }

    fn kind(&self) -> Option<&'static str> {
        self.holders.first().map(|holder| match holder.mode {
            Mode::Read | Mode::Write => word(Kind::ReadWrite),
            Mode::Permits { .. } => word(Kind::Semaphore),
            _ => word(Kind::Lock),
        })
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let unknown = self.error.iter().map(|error| unknown_row(&self.name, error));
        unknown.chain(self.holders.iter().map(|holder| row(&self.name, holder))).collect()
    }
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::ReadWrite => "read-write",
        Kind::Semaphore => "semaphore",
        _ => "lock",
    }
}

/// Prints names and their holders.
pub(crate) fn print(entries: &[Entry]) -> Result<(), Failure> {
    Table::new(&HEADER, entries.iter().flat_map(Entry::rows).collect()).print()
}

/// Returns the row of a name whose holders are not known, with the reason in the place of the holder.
fn unknown_row(name: &str, error: &str) -> Vec<String> {
    let mut cells = vec![UNKNOWN.to_owned(); HEADER.len()];
    cells[0] = output::printable(name);
    cells[2] = output::printable(error);
    if cells[2].chars().count() > LONGEST_ERROR {
        cells[2] = format!("{}..", cells[2].chars().take(LONGEST_ERROR).collect::<String>());
    }
    cells
}

fn row(name: &str, info: &HolderInfo) -> Vec<String> {
    let unknown = || UNKNOWN.to_owned();
    let metadata = info.metadata.as_deref();
    let role = match (&info.closed, info.mode) {
        (Some(_), _) => "closed".to_owned(),
        (None, Mode::Read) => "read".to_owned(),
        (None, Mode::Write) => "write".to_owned(),
        (None, Mode::Permits { .. }) => format!("permits: {}", info.hold_count),
        (None, _) => "lock".to_owned(),
    };
    let label = metadata.and_then(|data| data.label.clone().or_else(|| data.value.clone()));
    vec![
        output::printable(name),
        role,
        output::printable(&holder_text(info)),
        label.map_or_else(unknown, |label| output::printable(&label)),
        age(info).map_or_else(unknown, duration::text),
        info.remaining.map_or_else(unknown, duration::text),
        metadata.and_then(|data| data.fence).map_or_else(unknown, |fence| fence.to_string()),
        info.waiting.map_or_else(unknown, |waiting| waiting.to_string()),
    ]
}

/// Returns the process, or what else is known of a holder.
fn holder_text(info: &HolderInfo) -> String {
    let id = info.closed.as_ref().map_or(&info.holder, |closed| &closed.by);
    owner_of(info).map_or_else(|| short(id), ToString::to_string)
}

fn owner_of(info: &HolderInfo) -> Option<&Owner> {
    info.owner.as_ref().or(info.metadata.as_ref().map(|data| &data.owner))
}

/// Returns the beginning of an id, which differs from those of others, and its number.
pub(crate) fn short(id: &str) -> String {
    match id.split_once(':') {
        Some((manager, number)) if manager.chars().count() > BEGINNING => {
            format!("{}..:{number}", manager.chars().take(BEGINNING).collect::<String>())
        }
        _ if id.chars().count() > LONGEST => {
            format!("{}..", id.chars().take(LONGEST).collect::<String>())
        }
        _ => id.to_owned(),
    }
}

/// Returns for how long the name is held or closed, by the clock of the holder.
fn age(info: &HolderInfo) -> Option<Duration> {
    match &info.closed {
        Some(closed) => Some(closed.ago),
        None => SystemTime::now().duration_since(info.metadata.as_ref()?.since?).ok(),
    }
}

fn holder(info: &HolderInfo) -> Value {
    let metadata = info.metadata.as_deref();
    json!({
        "holder": info.holder,
        "mode": match info.mode {
            Mode::Read => "read",
            Mode::Write => "write",
            Mode::Permits { .. } => "permits",
            _ => "exclusive",
        },
        "count": info.hold_count,
        "owner": owner_of(info).map(owner),
        "label": metadata.and_then(|data| data.label.as_ref()),
        "value": metadata.and_then(|data| data.value.as_ref()),
        "age_ms": age(info).map(millis),
        "left_ms": info.remaining.map(millis),
        "fence": metadata.and_then(|data| data.fence),
    })
}

fn closed_by(info: &HolderInfo) -> Value {
    let Some(closed) = &info.closed else { return Value::Null };
    json!({
        "mark": info.holder,
        "by": closed.by,
        "owner": owner_of(info).map(owner),
        "age_ms": millis(closed.ago),
        "left_ms": info.remaining.map(millis),
    })
}

pub(crate) fn owner(owner: &Owner) -> Value {
    let Owner { service, version, host, pid, .. } = owner;
    json!({ "service": service, "version": version, "host": host, "pid": pid })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> HolderInfo {
        let id = "0f0e0d0c-9abc-4def-8123-456789abcdef:7".to_owned();
        HolderInfo::new(id, 1, Some(Duration::from_secs(12)))
    }

    #[test]
    fn row_has_what_is_known_and_no_control_character() {
        let row = row("a\x1b[2Jb", &info());
        let expected = [r"a\u{1b}[2Jb", "lock", "0f0e0d0c..:7", "-", "-", "12.0s", "-", "-"];
        assert_eq!(row, expected);
        let foreign = HolderInfo::new("x".repeat(100), 1, None);
        assert_eq!(super::row("n", &foreign)[2].len(), LONGEST + 2);
    }

    #[test]
    fn object_has_all_holders() {
        let entry = Entry::new("n".to_owned(), vec![info().with_mode(Mode::Read); 2]);
        let object = entry.object();
        assert_eq!((&object["name"], &object["kind"]), (&json!("n"), &json!("read-write")));
        let holders = object["holders"].as_array().unwrap();
        assert_eq!(holders.len(), 2);
        assert_eq!((&holders[0]["mode"], &holders[0]["left_ms"]), (&json!("read"), &json!(12_000)));
    }
}
