//! Asks which names are in use, page by page.

use super::mode::Kind;
use super::name::Name;
use crate::error::{Error, ErrorKind, Result};
use async_trait::async_trait;
use std::fmt;
use std::time::Duration;

/// Asks for the names that are in use and begin with a text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct List {
    /// The beginning of the names, without the prefix of the manager. An empty text asks for all names.
    pub prefix: String,
    /// How many keys of the store one [page](Pages::next) looks at, about.
    pub page_size: usize,
    /// The time that one page may take.
    pub timeout: Duration,
}

impl List {
    /// How many keys a page looks at, unless it is said: a millisecond of a server, or less.
    pub(crate) const PAGE_SIZE: usize = 500;
    /// The most keys of a page: ten milliseconds of a server.
    const LARGEST_PAGE: usize = 10_000;

    /// Creates a request for the names that begin with `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<String>, timeout: Duration) -> Self {
        Self { prefix: prefix.into(), page_size: Self::PAGE_SIZE, timeout }
    }

    /// Sets the [`page_size`](Self::page_size), from 1 to 10 000.
    #[must_use]
    pub fn with_page_size(self, page_size: usize) -> Self {
        Self { page_size: page_size.clamp(1, Self::LARGEST_PAGE), ..self }
    }

    /// Returns the pages of a store that knows all its names at once: those that begin with the [prefix](Self::prefix).
    #[must_use]
    pub fn pages(&self, names: impl IntoIterator<Item = Listed>) -> Box<dyn Pages> {
        let begins = |listed: &Listed| listed.name.as_str().starts_with(&self.prefix);
        let names: Vec<_> = names.into_iter().filter(begins).collect();
        Box::new(Prepared { names: names.into_iter(), size: self.page_size })
    }

    /// Returns the error of a store that does not know which names are in use. Nothing was executed.
    #[must_use]
    pub fn unsupported() -> Error {
        let message =
            "the store does not know which names are in use; ask about each name by `inspect`";
        Error::new(ErrorKind::Unsupported, message)
    }
}

/// A name that is in use, or was a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The name, without the prefix of the manager.
    pub name: Name,
    /// What the name is used as.
    pub kind: Kind,
    /// Whether its key has more than 10 000 entries, on Redis. To ask for its holders reads all of them in one step, during
    /// which the server serves no other request: some milliseconds for each 10 000. It may be no lock at all.
    pub is_large: bool,
}

impl Listed {
    /// Creates an entry, for authors of a [`Store`](crate::store::Store).
    #[must_use]
    pub fn new(name: Name, kind: Kind) -> Self {
        Self { name, kind, is_large: false }
    }

    /// Sets [`is_large`](Self::is_large).
    #[must_use]
    pub fn with_large(self, is_large: bool) -> Self {
        Self { is_large, ..self }
    }
}

/// The answer to a [`List`], page by page.
#[async_trait]
pub trait Pages: Send {
    /// Returns the names of the next page, `None` after the last one. A page can be empty.
    ///
    /// # Errors
    ///
    /// After any error the next call tries the same page again.
    ///
    /// # Cancel safety
    ///
    /// Safe: the next call returns what this one would have returned, or more.
    async fn next(&mut self) -> Result<Option<Vec<Listed>>>;
}

impl fmt::Debug for dyn Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pages")
    }
}

/// Names that are known already.
struct Prepared {
    names: std::vec::IntoIter<Listed>,
    size: usize,
}

#[async_trait]
impl Pages for Prepared {
    async fn next(&mut self) -> Result<Option<Vec<Listed>>> {
        let page: Vec<_> = self.names.by_ref().take(self.size).collect();
        Ok((!page.is_empty()).then_some(page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pages_have_the_names_with_the_prefix() {
        let listed = |name: &str| Listed::new(Name::new(name).unwrap(), Kind::Lock);
        let all = ["a:1", "b:1", "a:2", "a", "a:3"].map(listed);
        let request = List::new("a:", Duration::from_secs(1)).with_page_size(2);
        let mut pages = request.pages(all);
        assert_eq!(pages.next().await.unwrap(), Some(vec![listed("a:1"), listed("a:2")]));
        assert_eq!(pages.next().await.unwrap(), Some(vec![listed("a:3")]));
        assert_eq!(pages.next().await.unwrap(), None);
    }

    #[test]
    fn page_has_a_size_that_blocks_no_server() {
        let size = |size| List::new("", Duration::ZERO).with_page_size(size).page_size;
        assert_eq!([size(0), size(7), size(usize::MAX)], [1, 7, 10_000]);
    }
}
