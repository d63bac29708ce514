//! Finds the names that are in use, by the shape of their keys.
//!
//! | key | shape | kind |
//! |---|---|---|
//! | `<prefix><name>` | a hash whose fields are holder ids, or a mark | lock |
//! | `<prefix><name>` | such a hash with a field `mode`, or with several holders | read-write |
//! | `{<prefix><name>}:timeout` | a sorted set of the ids of permits | semaphore |
//! | `<prefix><name>` | in the layout of plain locks: a string with a time to live | lock |
//!
//! The keys that stand beside a lock have other fields or another type, so that no name of theirs needs to be known here.

use super::link::command::{Command, Reply};
use super::link::errors::{Failure, classify};
use super::link::node::Node;
use super::scripts::keys::{Keys, behind_manager, pattern_of};
use super::scripts::reply;
use super::topology::Connection;
use super::topology::walk::{Found, Query, Walk};
use crate::error::{Error, ErrorKind, Result};
use crate::store::connect::layout::Layout;
use crate::store::{Kind, List, Listed, Mark, Name, Pages};
use async_trait::async_trait;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

/// About how many fields of a hash are looked at: enough to see what it is, however many it has.
const FIELDS: &str = "8";
/// How often the server is asked for more fields of a hash of which none was seen yet, and about how many then. The table of
/// a hash that has shrunk is sparse while a child of the server runs: 16 000 of its entries are looked at, or more.
const MORE: usize = 16;
const MORE_FIELDS: &str = "1000";
/// The most entries of a key that is not [large](Listed::is_large).
const MOST_ENTRIES: i64 = 10_000;
/// The digits of a permit's id of Redisson, and the bytes of one of leasehold.
const PERMIT_LENGTHS: [usize; 2] = [32, 16];
/// What the permissions of the user lack.
const NEEDED: &str = "listing needs `+scan +hscan +hlen +zrange` in the ACL of the user, and for semaphores the \
     pattern `~{PREFIX*` for their keys";

/// The pages of a listing.
pub(super) struct RedisPages {
    walk: Arc<Mutex<Walk>>,
    looks: Arc<Looks>,
    /// The runtime of the connections.
    runtime: Handle,
}

/// What is looked for.
struct Looks {
    keys: Keys,
    layout: Layout,
    /// The beginning of the names.
    prefix: String,
    timeout: Duration,
    /// The first refusal to look at a key. The others are returned before it.
    refused: OnceLock<Error>,
}

/// What a key is.
struct Shape {
    kind: Kind,
    /// Whether all its entries were seen.
    is_whole: bool,
}

/// A name in use, and its key.
struct Seen<'a> {
    key: &'a str,
    name: Name,
    shape: Shape,
}

impl Seen<'_> {
    /// Returns the command that shows whether the key is large: how many fields there are, or the first member too many.
    fn size(&self) -> Command {
        let key = self.key.to_owned();
        let last = MOST_ENTRIES.to_string();
        match self.shape.kind {
            Kind::Semaphore => Command::new("ZRANGE", [key, last.clone(), last]),
            _ => Command::new("HLEN", [key]),
        }
    }
}

impl RedisPages {
    pub(super) fn new(
        connection: Connection,
        keys: Keys,
        layout: Layout,
        runtime: Handle,
        request: List,
    ) -> Self {
        let List { prefix, page_size, timeout, .. } = request;
        let queries = queries(keys.prefix(), &prefix, layout);
        let walk = Walk::new(connection, queries, page_size, timeout);
        let looks = Looks { keys, layout, prefix, timeout, refused: OnceLock::new() };
        Self { walk: Arc::new(Mutex::new(walk)), looks: Arc::new(looks), runtime }
    }
}

#[async_trait]
impl Pages for RedisPages {
    async fn next(&mut self) -> Result<Option<Vec<Listed>>> {
        let walk = Arc::clone(&self.walk);
        let looks = Arc::clone(&self.looks);
        // If this is dropped, the page is read to its end, and then once more.
        let reading = self.runtime.spawn(async move {
            let Some(found) = walk.lock().await.page().await.map_err(explain)? else {
                return looks.refused.get().cloned().map_or(Ok(None), Err);
            };
            let listed = looks.listed(&found).await.map_err(explain)?;
            Ok(Some((found, listed)))
        });
        let page = reading.await.unwrap_or_else(|_| Err(reply::connection_closed()))?;
        let Some((found, listed)) = page else { return Ok(None) };
        self.walk.lock().await.advance(&found);
        Ok(Some(listed))
    }
}

/// Adds to a refusal what is missing.
fn explain(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Denied
            if ["scan'", "hlen'", "zrange'"].iter().any(|word| error.message().contains(word)) =>
        {
            let message = format!("{}; {NEEDED}", error.message());
            error.with_message(message)
        }
        _ => error,
    }
}

/// Returns what to scan for. The order is that of [`Looks::command`].
fn queries(of_keys: &str, of_names: &str, layout: Layout) -> Vec<Query> {
    let beginning = pattern_of(&format!("{of_keys}{of_names}"));
    let query = |pattern, of_type| Query { pattern, of_type };
    match layout {
        Layout::Redisson => vec![
            query(format!("{beginning}*"), "hash"),
            // With a brace in front, unless the name has one.
            query(format!("*{beginning}*:timeout"), "zset"),
        ],
        Layout::Plain => vec![query(format!("{beginning}*"), "string")],
    }
}

impl Looks {
    /// Returns the locks among the keys of a page.
    async fn listed(&self, found: &Found) -> Result<Vec<Listed>> {
        let named = found.keys.iter().filter_map(|key| Some((key, self.name(key, found.query)?)));
        let named: Vec<_> = named.collect();
        if named.is_empty() {
            return Ok(Vec::new());
        }
        let commands: Vec<_> =
            named.iter().map(|(key, _)| self.command(key, found.query)).collect();
        let replies = found.node.commands(&commands, self.timeout).await;
        let replies = replies.map_err(|failure| found.node.at(classify(&failure)))?;
        let mut seen = Vec::new();
        for ((key, name), reply) in named.into_iter().zip(replies) {
            match reply {
                Ok(reply) => {
                    let shape = self.shape(&found.node, key, reply, found.query).await?;
                    seen.extend(shape.map(|shape| Seen { key, name, shape }));
                }
                Err(failure) if is_gone(&failure) => {}
                // The server that has it now may have been walked over before.
                Err(failure) if has_moved(&failure) => {
                    let kind = if found.query == 0 { Kind::Lock } else { Kind::Semaphore };
                    seen.push(Seen { key, name, shape: Shape { kind, is_whole: true } });
                }
                Err(failure) => self.refused(found.node.at(classify(&failure)), key)?,
            }
        }
        self.with_sizes(&found.node, seen).await
    }

    /// Finds out which keys are large. Only those that were not seen as a whole are asked for.
    async fn with_sizes(&self, node: &Node, seen: Vec<Seen<'_>>) -> Result<Vec<Listed>> {
        let is_open = |seen: &&Seen<'_>| !seen.shape.is_whole;
        let commands: Vec<_> = seen.iter().filter(is_open).map(Seen::size).collect();
        let mut replies = Vec::new();
        if !commands.is_empty() {
            let asked = node.commands(&commands, self.timeout).await;
            replies = asked.map_err(|failure| node.at(classify(&failure)))?;
        }
        let mut replies = replies.into_iter();
        let mut listed = Vec::new();
        for Seen { key, name, shape } in seen {
            let size = if shape.is_whole { None } else { replies.next() };
            let is_large = match size {
                Some(Ok(Reply::Int(fields))) => fields > MOST_ENTRIES,
                Some(Ok(Reply::List(members))) => !members.is_empty(),
                Some(Err(failure)) if !is_gone(&failure) && !has_moved(&failure) => {
                    self.refused(node.at(classify(&failure)), key)?;
                    true
                }
                _ => false,
            };
            listed.push(Listed::new(name, shape.kind).with_large(is_large));
        }
        Ok(listed)
    }

    /// Keeps the refusal of a key until all names are returned. Returns any other error.
    fn refused(&self, error: Error, key: &str) -> Result<()> {
        if error.kind() != ErrorKind::Denied {
            return Err(error);
        }
        let message = format!(
            "some names may be missing, since the user may not look at the key {key:?}: {}; {NEEDED}",
            error.message()
        );
        let _ = self.refused.set(error.with_message(message));
        Ok(())
    }

    /// Returns the name that a key belongs to.
    fn name(&self, key: &str, query: usize) -> Option<Name> {
        let text = match query {
            0 => key,
            _ => {
                let key = key.strip_suffix(":timeout")?;
                let tagged = key.strip_prefix('{').and_then(|key| key.strip_suffix('}'));
                tagged.filter(|key| !key.contains('{')).unwrap_or(key)
            }
        };
        let name = Name::new(text.strip_prefix(self.keys.prefix())?).ok()?;
        let is_its = query == 0 || self.keys.permits(&name) == key;
        (is_its && name.as_str().starts_with(&self.prefix)).then_some(name)
    }

    /// Returns the command that looks at a key, in a time that does not depend on its size.
    fn command(&self, key: &str, query: usize) -> Command {
        let words =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match (self.layout, query) {
            (Layout::Plain, _) => Command::new("PTTL", words(&[key])),
            (Layout::Redisson, 0) => fields_of(key, "0", FIELDS),
            (Layout::Redisson, _) => Command::new("ZRANGE", words(&[key, "0", "0"])),
        }
    }

    /// Returns what a key is, by the reply to that command; `None` if it is no lock.
    async fn shape(
        &self,
        node: &Node,
        key: &str,
        reply: Reply,
        query: usize,
    ) -> Result<Option<Shape>> {
        Ok(match (self.layout, query) {
            (Layout::Plain, _) => matches!(reply, Reply::Int(1..))
                .then_some(Shape { kind: Kind::Lock, is_whole: true }),
            (Layout::Redisson, 0) => self.of_hash(node, key, reply).await?,
            (Layout::Redisson, _) => of_set(reply),
        })
    }

    /// Returns what a hash is. Asks for more of its fields until that is clear.
    async fn of_hash(&self, node: &Node, key: &str, first: Reply) -> Result<Option<Shape>> {
        let mut fields = Fields::default();
        let mut reply = first;
        for _ in 0..MORE {
            let Some(cursor) = fields.add(reply) else { return Ok(None) };
            let is_whole = cursor == "0";
            if is_whole || fields.are_enough() {
                return Ok(fields.kind().map(|kind| Shape { kind, is_whole }));
            }
            let command = fields_of(key, &cursor, MORE_FIELDS);
            let asked = node.commands(&[command], self.timeout).await;
            reply = match asked.and_then(|mut replies| replies.remove(0)) {
                Ok(reply) => reply,
                Err(failure) if is_gone(&failure) => return Ok(None),
                Err(failure) if has_moved(&failure) => break,
                Err(failure) => return Err(node.at(classify(&failure))),
            };
        }
        // A name too many is better than a holder that is not seen.
        let kind = fields.kind().unwrap_or(Kind::Lock);
        Ok(Some(Shape { kind, is_whole: false }))
    }
}

/// Returns the command that reads about so many fields of a hash.
fn fields_of(key: &str, cursor: &str, count: &str) -> Command {
    Command::new("HSCAN", [key, cursor, "COUNT", count].map(str::to_owned))
}

/// Returns what a sorted set is, by its first member.
fn of_set(reply: Reply) -> Option<Shape> {
    let is_permit = match reply.into_list()?.into_iter().next()? {
        Reply::Text(id) => PERMIT_LENGTHS.contains(&id.len()),
        // As leasehold writes them.
        Reply::Bytes(_) => true,
        _ => false,
    };
    is_permit.then_some(Shape { kind: Kind::Semaphore, is_whole: false })
}

/// What was seen of the fields of a hash.
#[derive(Debug, Default)]
struct Fields {
    holders: usize,
    has_mode: bool,
}

impl Fields {
    /// Adds those of a reply. Returns the cursor behind them; `None` if one of them is no field of a lock.
    fn add(&mut self, reply: Reply) -> Option<String> {
        let [cursor, words] = <[Reply; 2]>::try_from(reply.into_list()?).ok()?;
        for field in words.into_list()?.into_iter().step_by(2) {
            let field = field.into_text()?;
            if field == "mode" {
                self.has_mode = true;
            } else if is_holder(&field) || is_mark(&field) {
                self.holders += 1;
            } else {
                return None;
            }
        }
        cursor.into_text()
    }

    /// Returns whether the others say no more.
    fn are_enough(&self) -> bool {
        self.holders > 1 || (self.holders > 0 && self.has_mode)
    }

    fn kind(&self) -> Option<Kind> {
        match self.holders {
            0 => None,
            1 if !self.has_mode => Some(Kind::Lock),
            _ => Some(Kind::ReadWrite),
        }
    }
}

/// Returns whether a field is a holder id of leasehold or of Redisson: `<uuid>:<number>`, of a writer with `:write` behind it.
fn is_holder(field: &str) -> bool {
    let digits = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let number = behind_manager(field.strip_suffix(":write").unwrap_or(field));
    // Redisson has negative ids for its calls that are not bound to a thread.
    let number = number.map(|number| number.strip_prefix('-').unwrap_or(number));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(digits))
}

/// Returns whether a field has the place of a holder of a closed name.
fn is_mark(field: &str) -> bool {
    [Mark::Done, Mark::Kept].iter().any(|mark| mark.holder() == field)
}

/// Returns whether a key has become something else meanwhile.
fn is_gone(failure: &Failure) -> bool {
    failure.details().starts_with("WRONGTYPE")
}

/// Returns whether a key has moved to another server since it was found.
fn has_moved(failure: &Failure) -> bool {
    let text = failure.details();
    ["MOVED ", "ASK ", "TRYAGAIN"].iter().any(|word| text.starts_with(word))
}
