//! The keys of a server, their times to live, and the clock by which they end.

use std::collections::BTreeMap;

pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The keys, by a clock that stands still until it is set.
#[derive(Clone, Default)]
pub struct Keyspace {
    entries: BTreeMap<Vec<u8>, Entry>,
    /// In microseconds.
    pub now: u64,
}

#[derive(Clone)]
struct Entry {
    data: Data,
    /// When it ends, in milliseconds.
    ends: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    Text(Vec<u8>),
    /// In the order in which fields were written first, as servers keep small ones.
    Hash(Vec<Field>),
    /// By score, and then by element.
    Sorted(Vec<Scored>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub name: Vec<u8>,
    pub text: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    pub score: f64,
    pub element: Vec<u8>,
}

impl Keyspace {
    pub fn millis(&self) -> i64 {
        (self.now / 1000) as i64
    }

    /// The data under a key, which ends when its time is over: in the millisecond after its last one.
    pub fn get(&mut self, key: &[u8]) -> Option<&mut Data> {
        let now = self.millis();
        if self.entries.get(key)?.ends.is_some_and(|ends| now > ends) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key).map(|entry| &mut entry.data)
    }

    pub fn text(&mut self, key: &[u8]) -> Result<Option<&mut Vec<u8>>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Data::Text(text)) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    pub fn hash(&mut self, key: &[u8]) -> Result<Option<&mut Vec<Field>>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Data::Hash(fields)) => Ok(Some(fields)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    pub fn sorted(&mut self, key: &[u8]) -> Result<Option<&mut Vec<Scored>>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Data::Sorted(elements)) => Ok(Some(elements)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// Writes the data of a key, which keeps its time to live if it has one.
    pub fn put(&mut self, key: &[u8], data: Data) {
        match self.get(key) {
            Some(before) => *before = data,
            None => {
                self.entries.insert(key.to_vec(), Entry { data, ends: None });
            }
        }
    }

    /// Deletes a key. Returns whether it was there.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        self.get(key).is_some() && self.entries.remove(key).is_some()
    }

    /// Deletes a key that has no field or element left.
    pub fn tidy(&mut self, key: &[u8]) {
        let empty = match self.get(key) {
            Some(Data::Hash(fields)) => fields.is_empty(),
            Some(Data::Sorted(elements)) => elements.is_empty(),
            _ => false,
        };
        if empty {
            self.entries.remove(key);
        }
    }

    /// When a key ends, in milliseconds; `None` without a time to live.
    pub fn ends(&mut self, key: &[u8]) -> Option<i64> {
        self.get(key)?;
        self.entries.get(key)?.ends
    }

    /// Sets when a key that is there ends.
    pub fn set_end(&mut self, key: &[u8], ends: Option<i64>) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.ends = ends;
        }
    }

    /// All keys that are there, in their order.
    pub fn names(&mut self) -> Vec<Vec<u8>> {
        let names: Vec<_> = self.entries.keys().cloned().collect();
        names.into_iter().filter(|name| self.get(name).is_some()).collect()
    }

    /// Forgets all keys.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}
