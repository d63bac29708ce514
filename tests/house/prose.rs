//! Checks the words of the prose and of the identifiers, and that links lead to files.

use crate::debts::{Debt, settle};
use crate::layers::below;
use crate::source::{self, Source};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that the vocabulary replaces, each with the word to write.
const REPLACED: &[(&[&str], &str)] = &[
    (&["time-out", "time-outs"], "timeout"),
    (&["anew"], "again"),
    (&["at home"], "in process"),
    (&["for ever"], "forever"),
    (&["in vain"], "for nothing"),
    (&["give back", "gives back", "given back", "giving back", "gave back"], "release"),
    (&["give it back", "gives it back", "give them back", "gives nothing back"], "release"),
    (&["pass on", "passed on", "passes on", "hand over", "handed over", "hand-over"], "hand off"),
    (&["handed on", "from hand to hand"], "hand off"),
    (&["prolong", "prolongs", "prolonged"], "renew"),
    (&["nobody", "somebody", "anybody", "someone", "whoever", "no one"], "a waiter, a holder"),
    (&["he", "his", "him", "himself"], "it, they"),
    (&["tells", "told"], "report, return"),
    (&["rights"], "permissions"),
    (&["makes no sense", "make no sense"], "is invalid"),
];

/// Words that the vocabulary replaces in identifiers, each with the word to write. Words that are right in another meaning
/// are not here, such as `due` for a renewal.
const RENAMED: &[(&[&str], &str)] = &[
    (&["aside"], "unpolled"),
    (&["anew"], "again"),
    (&["asker", "askers", "flow", "flows"], "call, caller"),
    (&["at home"], "in process"),
    (&["census"], "class counts"),
    (&["check in", "checkin", "heartbeat", "heartbeats"], "pulse"),
    (&["cohort", "cohorts"], "readers"),
    (&["crew", "crews"], "workers"),
    (&["crowd", "crowds", "rival", "rivals"], "contention, waiters"),
    (&["describer", "describers"], "describe"),
    (&["diary", "diaries"], "log, record"),
    (&["give back", "given back", "prolong", "prolongs", "prolonged"], "release, renew"),
    (&["give way", "gives way"], "yield"),
    (&["guest", "guests"], "visitor, client"),
    (&["heir", "heirs"], "handoff scope"),
    (&["member", "members"], "occupant"),
    (&["pass on", "passed on", "hand over", "handed over", "handed on"], "hand off"),
    (&["reaper"], "jobs"),
    (&["rights"], "permissions"),
    (&["seat", "seats", "seated", "reseat"], "holder slot"),
    (&["spare"], "fallback"),
    (&["tell", "tells", "told", "teller", "tellers"], "report, record"),
    (&["ticket", "tickets"], "waiter guard"),
    (&["time out"], "timeout"),
];

/// Words that the identifiers of src/ do not have either. In the name of a test they are plain English.
const RENAMED_IN_SRC: &[(&[&str], &str)] = &[
    (&["hold id"], "holder and fence; holder id"),
    (&["kind", "kinds"], "mode"),
    (&["place", "places", "placed"], "arrival; location of a call"),
    (&["poll bound", "handoff bound"], "max poll interval, max local handoffs"),
    (&["reporter", "reporters"], "progress handle"),
    (&["take"], "acquire"),
];

/// Identifiers with one of these words that the vocabulary has: the kinds of errors, events and locks, and `Slots::take`.
/// The standard library takes a value out of its place.
const KEPT: &[&str] = &[
    "ErrorKind",
    "EventKind",
    "Kind",
    "kind",
    "kind_of_lock",
    "in_place",
    "kinds_of_locks_do_not_mix",
    "batch_of_several_kinds_is_answered_in_order",
    "take",
    "take_index",
    "try_take_index",
    "take_timeout",
    "try_take",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(dir: &str, extension: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(root().join(dir))
        .expect("the directory is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    found.sort();
    found
}

/// Returns the comments of a source as they are, and an empty line for each other one.
fn comments(text: &str, mark: &str) -> String {
    let comment = |line: &str| match line.trim_start().strip_prefix(mark) {
        Some(comment) => format!("{comment}\n"),
        None => "\n".to_owned(),
    };
    text.lines().map(comment).collect()
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files(".", "md");
    pages.extend(files("src/guide", "md"));
    pages.extend(["README.md", "FAULTS.md"].map(|page| root().join("tests").join(page)));
    pages
}

/// The text without its code: identifiers and names of tests have words of their own.
fn prose(text: &str) -> String {
    let mut prose = String::new();
    let mut code = false;
    for line in text.lines() {
        let fence = line.trim_start_matches(['/', '!', ' ']).starts_with("```");
        code ^= fence;
        if !code && !fence {
            let outside = line.split('`').step_by(2).collect::<Vec<_>>();
            prose += &outside.join(" ");
        }
        prose.push('\n');
    }
    prose
}

/// The words, with single spaces between and around them. A hyphen is part of a word.
fn words(text: &str) -> String {
    let split = |c: char| !c.is_alphanumeric() && c != '-';
    let words = text.split(split).filter(|word| !word.is_empty());
    format!(" {} ", words.map(str::to_lowercase).collect::<Vec<_>>().join(" "))
}

#[test]
fn prose_uses_the_words_of_the_vocabulary() {
    let mut texts: Vec<_> = pages();
    texts.extend(files("examples", "rs"));
    texts.extend(
        ["rs", "lua"].into_iter().flat_map(|extension| below(&root().join("src"), extension)),
    );
    let mut found = Vec::new();
    for path in texts {
        let text = fs::read_to_string(&path).expect("readable");
        let text = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") if path.starts_with(root().join("src")) => comments(&text, "//"),
            Some("lua") => comments(&text, "--"),
            _ => text,
        };
        let lines: Vec<_> = prose(&text).lines().map(words).collect();
        for (at, line) in lines.iter().enumerate() {
            // A phrase may go on in the next line.
            let next = lines.get(at + 1).map_or("", |next| next.trim_start());
            let both = format!("{line}{next}");
            for (replaced, instead) in REPLACED {
                for word in *replaced {
                    let start = both.find(&format!(" {word} "));
                    if start.is_some_and(|start| start + 1 < line.len()) {
                        let (path, at) = (path.strip_prefix(root()).unwrap_or(&path), at + 1);
                        found.push(format!("{}:{at}: {word:?}; write {instead}", path.display()));
                    }
                }
            }
        }
    }
    assert!(found.is_empty(), "{} places:\n{}", found.len(), found.join("\n"));
}

/// The words of an identifier, with single spaces between and around them.
fn parts(identifier: &str) -> String {
    let mut parts = String::from(" ");
    let mut was_lower = false;
    for c in identifier.chars() {
        if (c == '_' || c.is_uppercase() && was_lower) && !parts.ends_with(' ') {
            parts.push(' ');
        }
        was_lower = !c.is_uppercase();
        parts.extend(c.to_lowercase().filter(|c| *c != '_'));
    }
    parts + " "
}

/// Returns the words of the vocabulary for an identifier that has others.
fn replacement(identifier: &str, is_src: bool) -> Option<&'static str> {
    let parts = parts(identifier);
    let has = |words: &&[&str]| words.iter().any(|word| parts.contains(&format!(" {word} ")));
    let lists = if is_src { [RENAMED, RENAMED_IN_SRC] } else { [RENAMED, &[]] };
    let mut all = lists.into_iter().flatten();
    let found = all.find(|(words, _)| has(words)).map(|(_, instead)| *instead);
    found.filter(|_| !KEPT.contains(&identifier))
}

/// One vocabulary is that of the prose, of the public names and of the identifiers.
#[test]
fn debts_of_identifiers() {
    let mut debts = Vec::new();
    for dir in ["src", "tests", "examples", "benches"] {
        let read = source::read(&root().join(dir), Source::lex);
        assert!(!read.is_empty(), "no file is in {dir}; mend this test");
        for file in read {
            let name = file.module.last().filter(|_| !file.path.ends_with("mod.rs"));
            let names: BTreeSet<_> =
                file.names().into_iter().chain(name.map(String::as_str)).collect();
            for name in names {
                if let Some(instead) = replacement(name, dir == "src") {
                    let line = format!("{dir}/{}: {name}", file.path);
                    debts.push(Debt { line, help: format!("write {instead}") });
                }
            }
        }
    }
    settle("identifiers", debts);
}

#[test]
fn identifiers_with_replaced_words_are_found() {
    assert_eq!(parts("OpenPlace"), " open place ");
    assert_eq!(parts("__told_TWICE_TTLs"), " told twice ttls ");
    for wrong in ["Told", "is_told", "HEIRS", "give_way", "check_in", "AsideCall", "of_any_kind"] {
        assert!(replacement(wrong, true).is_some(), "{wrong}");
    }
    assert_eq!(replacement("of_any_kind", false), None);
    assert!(replacement("is_told", false).is_some());
    for right in ["ErrorKind", "take", "replaced", "reheated", "check", "in_place", "untold"] {
        assert_eq!(replacement(right, true), None, "{right}");
    }
}

#[test]
fn links_between_pages_lead_to_files() {
    for page in pages() {
        let text = fs::read_to_string(&page).expect("readable");
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap_or_default();
            let link = link.split('#').next().unwrap_or_default();
            if link.is_empty() || link.contains("://") || link.contains("::") {
                continue;
            }
            let target = page.parent().expect("a directory").join(link);
            assert!(target.exists(), "{} links to {link}, which is not there", page.display());
        }
    }
}

#[test]
fn readme_names_every_example() {
    let readme = fs::read_to_string(root().join("README.md")).expect("readable");
    for dir in ["examples", "examples/services/src/bin"] {
        for example in files(dir, "rs") {
            let name = example.file_stem().expect("a name").to_string_lossy().into_owned();
            let named = [
                format!("`{dir}/{name}.rs`"),
                format!("`{name}.rs`"),
                format!("--example {name} "),
            ];
            assert!(
                named.iter().any(|named| readme.contains(named)),
                "{dir}/{name}.rs is not named"
            );
        }
    }
}
