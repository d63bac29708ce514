//! The Lua scripts, and how they are called.
//!
//! - [`lock`] writes the calls for exclusive locks, alone and in batches; [`set`], [`rw`], [`permits`], [`line`] and [`tokens`] those
//!   of sets, read-write locks, semaphores, fair locks and the tokens of a quorum. [`reply`] reads all replies.
//! - `acquire_alone.lua` is the script of a lone request, `batch.lua` that of several; `x_function.lua` is a part of others, as a
//!   function; `plain_x.lua` takes the place of `x.lua` in the layout of plain locks.
//! - A new argument is written in the Rust file, and read in the script; `CONTRIBUTING.md` says what else a script needs.

pub(super) mod keys;
pub(super) mod line;
pub(super) mod lock;
pub(super) mod managers;
pub(super) mod metadata;
pub(super) mod modes;
pub(super) mod notes;
pub(super) mod permits;
pub(super) mod reply;
pub(super) mod rw;
pub(super) mod set;
pub(super) mod tokens;

use crate::store::HolderId;
use crate::store::connect::layout::Layout;
use crate::store::connect::remote::Replicas;
use std::fmt;
use std::ops::Range;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;
use uuid::Uuid;

/// A script.
pub(super) struct Script {
    /// Composed when it is first needed.
    pub(super) source: LazyLock<String>,
    /// The name under which servers cache it, once it was needed.
    pub(super) sha: OnceLock<String>,
}

include!("compose.rs");

static FILES: &[LuaFile] = &lua_files!("./");

/// Makes the script of a Lua file.
macro_rules! script {
    ($name:literal) => {
        script!($name, Form { layout: "", publish: "publish" })
    };
    ($name:literal, $form:expr) => {
        Script { source: LazyLock::new(|| compose(FILES, $name, $form)), sha: OnceLock::new() }
    };
}

/// The scripts that depend on the layout of locks, or wake waiters. All forms of a script have the same arguments and replies, so
/// nothing else knows of layouts.
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) acquire_all: Script,
    pub(super) reserve: Script,
    pub(super) renew: Script,
    pub(super) inspect: Script,
    pub(super) release: Script,
    pub(super) batch: Script,
    pub(super) force: Script,
    pub(super) rw_acquire: Script,
    pub(super) rw_release: Script,
    pub(super) rw_force: Script,
    pub(super) rw_leave: Script,
    pub(super) permits_acquire: Script,
    pub(super) permits_release: Script,
    pub(super) permits_renew: Script,
    pub(super) permits_force: Script,
    pub(super) permits_resize: Script,
    pub(super) release_keep: Script,
    pub(super) line_acquire: Script,
    pub(super) line_release: Script,
    pub(super) line_leave: Script,
    pub(super) annotate: Script,
    /// Whether messages stay among the servers of their slot.
    pub(super) sharded: bool,
    /// Whether `SET NX PX` acquires a free name without a fencing token as [`acquire`](Self::acquire) does. It costs the server
    /// a third of the script.
    pub(super) acquires_by_set: bool,
    pub(super) steal: Script,
    pub(super) want: Script,
    pub(super) rest_yield: Script,
}

impl Scripts {
    /// Returns the subcommand of `PUBSUB` that counts the subscribers of a channel.
    pub(super) fn numsub(&self) -> &'static str {
        if self.sharded { "SHARDNUMSUB" } else { "NUMSUB" }
    }
}

/// Makes the scripts of a form.
macro_rules! scripts {
    ($form:expr) => {{
        const FORM: Form = $form;
        Scripts {
            sharded: matches!(FORM.publish.as_bytes(), b"publish_shard"),
            acquires_by_set: !FORM.layout.is_empty(),
            acquire: script!("acquire_alone", FORM),
            acquire_all: script!("acquire_all", FORM),
            reserve: script!("reserve", FORM),
            renew: script!("renew", FORM),
            inspect: script!("inspect", FORM),
            annotate: script!("annotate", FORM),
            release: script!("release_alone", FORM),
            batch: script!("batch", FORM),
            force: script!("force", FORM),
            rw_acquire: script!("rw_acquire", FORM),
            rw_release: script!("rw_release", FORM),
            rw_force: script!("rw_force", FORM),
            rw_leave: script!("rw_leave", FORM),
            permits_acquire: script!("permits_acquire", FORM),
            permits_release: script!("permits_release", FORM),
            permits_renew: script!("permits_renew", FORM),
            permits_force: script!("permits_force", FORM),
            permits_resize: script!("permits_resize", FORM),
            release_keep: script!("release_keep", FORM),
            line_acquire: script!("line_acquire", FORM),
            line_release: script!("line_release", FORM),
            line_leave: script!("line_leave", FORM),
            steal: script!("steal", FORM),
            want: script!("want", FORM),
            rest_yield: script!("rest_yield", FORM),
        }
    }};
}

/// The prefix of the files of [`Layout::Plain`].
const PLAIN: &str = "plain_";

static REDISSON: Scripts = scripts!(Form { layout: "", publish: "publish" });
/// For a cluster, where a message stays among the servers of its slot.
static REDISSON_SHARDED: Scripts = scripts!(Form { layout: "", publish: "publish_shard" });
static STRINGS: Scripts = scripts!(Form { layout: PLAIN, publish: "publish" });
static STRINGS_SHARDED: Scripts = scripts!(Form { layout: PLAIN, publish: "publish_shard" });

impl Scripts {
    /// Returns the scripts of a layout. `sharded`: whether messages stay among the servers of their slot.
    pub(super) fn of(layout: Layout, sharded: bool) -> &'static Self {
        match (layout, sharded) {
            (Layout::Redisson, false) => &REDISSON,
            (Layout::Redisson, true) => &REDISSON_SHARDED,
            (Layout::Plain, false) => &STRINGS,
            (Layout::Plain, true) => &STRINGS_SHARDED,
        }
    }
}

pub(super) static METADATA: Script = script!("metadata");
pub(super) static DESCRIBE: Script = script!("describe");
pub(super) static OWNER: Script = script!("owner");
pub(super) static RW_RENEW: Script = script!("rw_renew");
pub(super) static RW_INSPECT: Script = script!("rw_inspect");
pub(super) static PERMITS_INSPECT: Script = script!("permits_inspect");
pub(super) static NOTE_READ: Script = script!("note_read");
pub(super) static HINT: Script = script!("hint");
pub(super) static LINE_INSPECT: Script = script!("line_inspect");
/// Does nothing. No server knows its name, so its text is sent, which tests the permission: scripts in the cache of a
/// server do not need it until the server drops them.
pub(super) static BY_TEXT: LazyLock<Script> = LazyLock::new(|| Script {
    source: LazyLock::new(|| "return {}".to_owned()),
    sha: OnceLock::from("0".repeat(40)),
});
pub(super) static UPTIME: Script = script!("uptime");

/// The keys and arguments of one call, in one buffer: an allocation for each would cost more than
/// the rest of the call.
#[derive(Debug, Default)]
pub(super) struct ScriptCall {
    pub(super) text: Vec<u8>,
    /// The keys and then the arguments.
    pub(super) words: Vec<Word>,
    pub(super) keys: usize,
    /// The replicas that must confirm it. The reply ends with the number of those that did.
    pub(super) wait: Option<Replicas>,
    /// Whether `SET NX PX` is tried first, with the key and the two arguments of the call: if it says OK, the reply of the script
    /// would be 0. Not with replicas.
    pub(super) set_first: bool,
    /// Whether the caller retries with fewer keys if they are on two servers for a while.
    pub(super) divisible: bool,
}

#[derive(Debug)]
pub(super) enum Word {
    /// A part of the buffer.
    Text(Range<usize>),
    Number(i64),
}

/// The usual length of the keys of an item, and of a single holder id.
const ITEM_SIZE: usize = 160;

impl ScriptCall {
    /// Creates an empty call with room for so many items.
    pub(super) fn of(items: usize) -> Self {
        Self {
            text: Vec::with_capacity(items * ITEM_SIZE),
            // Two keys for each item; and settings, holder ids and steps, which most calls have once.
            words: Vec::with_capacity(items * 2 + 6),
            keys: 0,
            wait: None,
            set_first: false,
            divisible: false,
        }
    }

    pub(super) fn key(&mut self, parts: &[&str]) {
        let word =
            self.word(|text| parts.iter().for_each(|part| text.extend_from_slice(part.as_bytes())));
        // Few arguments are there before the last key.
        self.words.insert(self.keys, word);
        self.keys += 1;
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let word = self.word(|buffer| buffer.extend_from_slice(bytes));
        self.words.push(word);
    }

    /// Adds a holder id. This is done for each request, and `{}` costs twice as much.
    pub(super) fn holder(&mut self, holder: HolderId) {
        let word = self.word(|text| {
            write_manager(holder, text);
            // A Vec takes whatever is written to it.
            let _ = holder.write_rest(&mut Text(text));
        });
        self.words.push(word);
    }

    /// Adds what the holder ids of a manager begin with.
    pub(super) fn manager_of(&mut self, holder: HolderId) {
        let word = self.word(|text| write_manager(holder, text));
        self.words.push(word);
    }

    pub(super) fn number(&mut self, number: u64) {
        // fred has no unsigned integers; none of ours reaches 2^63.
        self.words.push(Word::Number(i64::try_from(number).unwrap_or(i64::MAX)));
    }

    fn word(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Word {
        let start = self.text.len();
        write(&mut self.text);
        Word::Text(start..self.text.len())
    }
}

fn write_manager(holder: HolderId, text: &mut Vec<u8>) {
    let mut buffer = Uuid::encode_buffer();
    let manager = holder.manager().as_hyphenated().encode_lower(&mut buffer);
    text.extend_from_slice(manager.as_bytes());
    text.push(b':');
}

/// Takes text for a call.
struct Text<'a>(&'a mut Vec<u8>);

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Returns a time as scripts take it.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
impl ScriptCall {
    /// Returns the arguments after the keys.
    pub(super) fn arguments(&self) -> Vec<String> {
        let text = |word: &Word| match word {
            Word::Text(range) => String::from_utf8_lossy(&self.text[range.clone()]).into_owned(),
            Word::Number(number) => number.to_string(),
        };
        self.words[self.keys..].iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn each_file_is_composed_of_parts_that_exist() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis/scripts");
        let found: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| {
                Some(entry.unwrap().file_name().to_str()?.strip_suffix(".lua")?.to_owned())
            })
            .collect();
        let known: BTreeSet<String> = FILES.iter().map(|file| file.name.to_owned()).collect();
        assert_eq!(found, known);
        for (name, layout) in known.iter().flat_map(|name| [(name, ""), (name, PLAIN)]) {
            let text = compose(FILES, name, Form { layout, publish: "publish_shard" });
            assert!(
                !text.contains("error('there is no ") && !text.contains("@include"),
                "{name}: {text}"
            );
        }
        let form = Form { layout: PLAIN, publish: "publish" };
        assert!(compose(FILES, "nothing", form).contains("there is no nothing.lua"));
    }

    #[test]
    fn message_stays_among_the_servers_of_its_slot_in_a_cluster() {
        for layout in [Layout::Redisson, Layout::Plain] {
            for (sharded, verb) in [(false, "'PUBLISH'"), (true, "'SPUBLISH'")] {
                let text: &str = &Scripts::of(layout, sharded).release.source;
                assert_eq!(text.matches("local publish = ").count(), 1);
                assert!(text.contains(&format!("local publish = {verb}")), "{text}");
            }
        }
    }

    /// A plain lock is a string: no script of one uses a command of hashes on it.
    #[test]
    fn layout_chooses_the_files_of_its_parts() {
        let scripts = Scripts::of(Layout::Plain, false);
        let all = [
            &scripts.acquire,
            &scripts.acquire_all,
            &scripts.batch,
            &scripts.release,
            &scripts.renew,
        ];
        for script in all {
            assert!(
                !script.source.contains("('H") || script.source.contains("note_of"),
                "{}",
                *script.source
            );
            assert!(!script.source.contains("HEXISTS"), "{}", *script.source);
        }
        assert!(Scripts::of(Layout::Redisson, false).release.source.contains("HDEL"));
    }
}
