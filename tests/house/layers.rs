//! Checks src/ against the layers, and the maps and tables of the pages against the files.

use crate::source::{self, Source};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(dir: &str) -> Vec<PathBuf> {
    below(&root().join(dir), "rs")
}

/// The code of src/, files that are only for tests included.
fn code() -> &'static [Source] {
    static CODE: OnceLock<Vec<Source>> = OnceLock::new();
    CODE.get_or_init(|| source::read(&root().join("src"), Source::parse))
}

/// Returns the files with this extension below a directory.
pub fn below(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("src is there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(below(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

/// The rooms of src/, from the lowest to the highest. A file knows its own room and those on the lines before it.
const ROOMS: &[&[&str]] = &[
    &["error"],
    &["clock"],
    &["util"],
    &["store"],
    &["observe"],
    &["engine"],
    &["locks"],
    &["manager"],
    &["tower", "testing"],
];

#[test]
fn rooms_know_only_what_is_below_them() {
    let rank = |room: &str| ROOMS.iter().position(|rooms| rooms.contains(&room));
    let mut seen = BTreeSet::new();
    for source in code() {
        let file = &source.path;
        let room = file.split(['/', '.']).next().unwrap_or_default();
        // The command is a crate of its own.
        if ["lib", "guide", "bin"].contains(&room) {
            continue;
        }
        let own = rank(room).unwrap_or_else(|| panic!("{room} is in no line of ROOMS"));
        // These are built on all that lib.rs re-exports.
        let is_on_top = ["tower", "testing"].contains(&room);
        for path in source.paths(0..source.tokens.len()) {
            let [first, named, ..] = &path[..] else { continue };
            let is_below = rank(named).is_some_and(|rank| rank < own);
            let is_reexport = is_on_top && named.starts_with(|c: char| c.is_uppercase());
            let may_know = named == room || is_below || is_reexport;
            assert!(first != "crate" || may_know, "{file} must not know {}", path.join("::"));
        }
        seen.insert(room);
    }
    for room in ROOMS.iter().copied().flatten() {
        assert!(seen.contains(room), "no file is in {room}; mend this test");
    }
}

/// What the machine of a name leaves to the shell around it.
const SHELL: &[&str] = &[
    "tokio",
    "std::sync",
    "util::",
    "engine::shared",
    "engine::acquire",
    "engine::hold",
    "Clock",
    "Waker",
];

/// The engine and what is built on it know stores only by their trait.
const STORES: &[&str] =
    &["store::memory", "store::redis", "store::quorum", "store::zookeeper", "MemoryStore", "fred"];

#[test]
fn files_do_not_name_what_others_hide() {
    let rules: &[(&str, &[&str])] = &[
        ("observe", STORES),
        ("engine/", STORES),
        ("engine/machine/name.rs", SHELL),
        ("engine/machine/effects.rs", SHELL),
        ("engine/machine/contention.rs", SHELL),
        ("engine/machine/chain.rs", SHELL),
        ("locks/", STORES),
        ("manager/", &["fred"]),
        // How a manager is made stands in `connect.rs` alone.
        ("manager/mod.rs", &["Backend", "MemoryStore"]),
        ("manager/builder.rs", &["Backend", "Engine"]),
        ("store/memory/mod.rs", &["redis", "fred"]),
        ("store/redis/", &["store::memory", "MemoryStore", "store::zookeeper"]),
        ("store/quorum/", &["store::redis", "fred", "store::zookeeper"]),
        ("store/zookeeper/", &["store::memory", "MemoryStore", "redis", "fred"]),
        ("store/zookeeper/session/liveness.rs", &["zookeeper_client"]),
        ("store/zookeeper/tree/names.rs", &["zookeeper_client"]),
        ("store/zookeeper/lock/recipe.rs", &["zookeeper_client"]),
        ("store/zookeeper/lock/holds.rs", &["zookeeper_client"]),
        ("store/redis/mod.rs", &["fred::"]),
        ("store/redis/scripts/keys.rs", &["fred"]),
        ("store/redis/send/batch.rs", &["fred"]),
        ("store/redis/send/mod.rs", &["fred"]),
        ("store/redis/scripts/reply.rs", &["fred::"]),
    ];
    let mut seen = vec![false; rules.len()];
    for source in code() {
        let code = source.joined(0..source.tokens.len());
        // A count for the tests is no effect.
        let code = code.replace("crate::util::reached::", "");
        for ((room, forbidden), seen) in rules.iter().zip(&mut seen) {
            if !source.path.starts_with(room) {
                continue;
            }
            *seen = true;
            for word in *forbidden {
                assert!(!code.contains(word), "{} must not know {word}", source.path);
            }
        }
    }
    for ((room, _), seen) in rules.iter().zip(seen) {
        assert!(seen, "no file is in {room}; mend this test");
    }
}

#[test]
fn only_scripts_rs_includes_the_scripts_and_each_has_its_header() {
    for source in code() {
        let includes = (0..source.tokens.len())
            .any(|at| source.word(at) == "include_str" && source.word(at + 3).contains("scripts"));
        assert!(!includes || source.path == "store/redis/scripts/mod.rs", "{}", source.path);
    }
    for path in below(&root().join("src/store/redis/scripts"), "lua") {
        // These are parts of other scripts.
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let parts = [
            "common",
            "wake",
            "publish",
            "publish_shard",
            "arguments",
            "protected_call",
            "note",
            "noted",
            "fence_keep",
        ];
        if parts
            .iter()
            .any(|part| name.strip_suffix(".lua").is_some_and(|name| name.ends_with(part)))
        {
            continue;
        }
        let text = fs::read_to_string(&path).expect("readable");
        // These are bodies of functions, too. Their arguments come from the scripts that include them.
        let bodies = [
            "acquire.lua",
            "acquire_function.lua",
            "release.lua",
            "release_function.lua",
            "wake_function.lua",
            "propose.lua",
            "fence.lua",
            "grant.lua",
            "rw_grant.lua",
            "steal_grant.lua",
            "acquire_one.lua",
            "fence_again.lua",
            "holder_of.lua",
            "holds.lua",
            "look.lua",
            "mine.lua",
            "record.lua",
        ];
        // A file of another layout is what the one is whose place it takes.
        let is_body = bodies.contains(&name.strip_prefix("plain_").unwrap_or(&name));
        let arguments = ["-- KEYS", "-- ARGV"].into_iter().filter(|_| !is_body);
        for part in arguments.chain(["-- Reply", "-- Twice is harmless"]) {
            assert!(text.contains(part), "{} lacks {part:?}", path.display());
        }
    }
}

/// The promise of `tests/README.md`.
#[test]
fn test_names_are_short_and_begin_with_the_thing_tested() {
    let mut files = sources("tests");
    files.extend(sources("src"));
    let mut seen = 0;
    let mut wrong = String::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("readable");
        let mut is_test = false;
        for line in text.lines().map(str::trim_start) {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let code = line.strip_prefix("async ").unwrap_or(line);
            let Some(rest) = code.strip_prefix("fn ").filter(|_| is_test) else { continue };
            is_test = false;
            seen += 1;
            let name = rest.split('(').next().unwrap_or(rest);
            let article = ["a_", "an_", "the_"].iter().any(|article| name.starts_with(article));
            if article || name.chars().count() > 60 {
                wrong += &format!("{}: {name}\n", file.display());
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "these names begin with an article, or have more than 60 characters:\n{wrong}"
    );
    assert!(seen > 900, "{seen}: tests have another form now; mend this test");
}

/// A panic elsewhere must not end what a lock protects; `trace` waits on a condition variable as well.
#[test]
fn poison_is_dealt_with_in_one_place() {
    let other = |file: &&PathBuf| {
        !file.ends_with("src/util/sync.rs") && !file.ends_with("src/util/trace.rs")
    };
    for file in sources("src").iter().filter(other) {
        let text = fs::read_to_string(file).expect("readable");
        assert!(!text.contains("PoisonError"), "{}: use crate::util::sync::Mutex", file.display());
    }
}

/// `.ci/long shuttle` runs the tests whose path has that word.
#[test]
fn tests_by_shuttle_are_in_modules_that_the_long_form_runs() {
    let long = fs::read_to_string(root().join(".ci/long")).expect("readable");
    assert!(long.contains("cargo test --release --lib --no-default-features interleavings"));
    let mut seen = 0;
    for file in sources("src") {
        let text = fs::read_to_string(&file).expect("readable");
        if text.contains("use shuttle::thread") {
            seen += 1;
            let is_run = file.ends_with("interleavings.rs") || text.contains("mod interleavings {");
            assert!(
                is_run,
                "{}: put its tests by shuttle into `mod interleavings`",
                file.display()
            );
        }
    }
    assert!(seen >= 2, "{seen}: these tests have another form now; mend this test");
}

/// The table of faults names its tests; a test that was renamed must not leave a claim behind.
#[test]
fn every_test_that_the_table_of_faults_names_is_there() {
    let mut files = sources("tests");
    files.extend(sources("src"));
    let texts: BTreeMap<String, String> = files
        .iter()
        .map(|file| (module(file), fs::read_to_string(file).expect("readable")))
        .collect();
    let table = fs::read_to_string(root().join("tests/FAULTS.md")).expect("readable");
    let mut named = 0;
    for word in table.split('`') {
        let Some((path, test)) = word.rsplit_once("::") else { continue };
        let plain = |text: &str| {
            text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c))
        };
        if path.is_empty() || !plain(path) || !plain(test) {
            continue;
        }
        named += 1;
        // A test's path begins with its program, as `cargo test --test` takes it.
        let is_in = |text: &String| defines(text, test);
        let of_program = texts.get(&format!("tests::{path}")).is_some_and(is_in);
        let of_src = || {
            let at_end = format!("::{path}");
            texts.iter().any(|(module, text)| {
                module.starts_with("src::") && module.ends_with(&at_end) && is_in(text)
            })
        };
        assert!(of_program || of_src(), "tests/FAULTS.md names {word}, which is not there");
    }
    assert!(named > 150, "{named}: the table has another form now; mend this test");
}

/// A newcomer looks for the room of a change in this map, and reads it at one sitting.
#[test]
fn map_of_the_architecture_has_every_room() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("readable");
    assert!(map.lines().count() <= 200, "ARCHITECTURE.md has more than 200 lines");
    let named: BTreeSet<&str> =
        map.split('`').filter(|word| word.ends_with('/') && !word.contains(' ')).collect();
    let source = root().join("src");
    let rooms: BTreeSet<String> = sources("src")
        .iter()
        .filter_map(|file| file.parent()?.strip_prefix(&source).ok())
        .map(|room| format!("{}/", room.to_string_lossy().replace('\\', "/")))
        .filter(|room| room != "/")
        .collect();
    for room in &rooms {
        assert!(named.contains(room.as_str()), "ARCHITECTURE.md does not name the room {room}");
    }
    for room in named.iter().filter(|room| !room.starts_with("tests") && !room.starts_with("src")) {
        assert!(source.join(room).is_dir(), "ARCHITECTURE.md names {room}, which is not there");
    }
}

/// Returns whether the text defines a test of this name: a function with an attribute above it, or a line of a macro
/// that makes tests.
fn defines(text: &str, test: &str) -> bool {
    let function = format!("fn {test}(");
    let in_macro = |line: &str| {
        line.strip_prefix(test)
            .is_some_and(|rest| ["", ","].contains(&rest) || rest.starts_with(": "))
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
        let is_test = |line: &&str| line.contains("test");
        (line.contains(&function) && attributes.clone().any(is_test)) || in_macro(line)
    })
}

/// The path of a file's module, such as `tests::redis::wire`.
fn module(file: &Path) -> String {
    let path = file.strip_prefix(root()).expect("under the root").with_extension("");
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    let path = parts.join("::");
    let path = path.strip_suffix("::main").or_else(|| path.strip_suffix("::mod")).unwrap_or(&path);
    path.to_owned()
}
