//! Who may import whom: reads the `use` lines of src/, so that the layers stay layers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("src is there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a file before its tests, without comments.
fn code(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).expect("readable");
    text.lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"))
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_room_knows_only_what_is_below_it() {
    let rules: &[(&str, &[&str])] = &[
        ("error.rs", &["crate::"]),
        ("clock.rs", &["crate::"]),
        (
            "store/",
            &["crate::hold", "crate::lease", "crate::lock", "crate::manager", "crate::seek"],
        ),
        (
            "hold/",
            &[
                "store::memory",
                "MemoryStore",
                "store::redis",
                "fred",
                "store::zookeeper",
                "crate::lease",
                "crate::lock",
                "crate::manager",
                "crate::seek",
            ],
        ),
        (
            "lease.rs",
            &[
                "store::memory",
                "MemoryStore",
                "store::redis",
                "fred",
                "store::zookeeper",
                "crate::lock",
                "crate::manager",
                "crate::seek",
            ],
        ),
        (
            "seek",
            &[
                "store::memory",
                "MemoryStore",
                "store::redis",
                "fred",
                "store::zookeeper",
                "crate::lock",
                "crate::manager",
            ],
        ),
        ("lock.rs", &["store::memory", "MemoryStore", "store::redis", "fred", "crate::manager"]),
        ("manager.rs", &["fred"]),
        ("store/memory.rs", &["redis", "fred"]),
        ("store/redis/", &["store::memory", "MemoryStore", "store::zookeeper"]),
        ("store/zookeeper/", &["store::memory", "MemoryStore", "redis", "fred"]),
        ("store/zookeeper/proof.rs", &["zookeeper_client"]),
        ("store/zookeeper/names.rs", &["zookeeper_client"]),
        ("store/zookeeper/recipe.rs", &["zookeeper_client"]),
        ("store/zookeeper/holds.rs", &["zookeeper_client"]),
        ("store/redis/mod.rs", &["fred::"]),
        ("store/redis/keys.rs", &["fred"]),
        ("store/redis/lane.rs", &["fred"]),
        ("store/redis/lanes.rs", &["fred"]),
        ("store/redis/lines.rs", &["fred", "redis::lane"]),
        ("store/redis/slots.rs", &["fred"]),
        ("store/redis/replies.rs", &["fred::"]),
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = vec![false; rules.len()];
    for path in sources(&root) {
        let place =
            path.strip_prefix(&root).expect("under src").to_string_lossy().replace('\\', "/");
        for ((room, forbidden), seen) in rules.iter().zip(&mut seen) {
            if !place.starts_with(room) {
                continue;
            }
            *seen = true;
            for line in code(&path) {
                for word in *forbidden {
                    assert!(!line.contains(word), "{place} must not know {word}: {line}");
                }
            }
        }
    }
    for ((room, _), seen) in rules.iter().zip(seen) {
        assert!(seen, "no file is in {room}; mend this test");
    }
}

#[test]
fn files_stay_short_before_their_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in sources(&root) {
        let lines = code(&path).len();
        assert!(lines <= 400, "{} has {lines} lines of code; split it", path.display());
    }
}

#[test]
fn only_scripts_rs_includes_the_scripts_and_each_has_its_header() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in sources(&root) {
        let includes = code(&path)
            .iter()
            .any(|line| line.contains("include_str!") && line.contains("scripts"));
        assert!(!includes || path.ends_with("store/redis/scripts.rs"), "{}", path.display());
    }
    for entry in fs::read_dir(root.join("store/redis/scripts")).expect("scripts") {
        let path = entry.expect("readable").path();
        // Parts of other scripts.
        if ["common.lua", "publish.lua", "publish_shard.lua", "wake.lua"]
            .iter()
            .any(|part| path.ends_with(part))
        {
            continue;
        }
        let text = fs::read_to_string(&path).expect("readable");
        for part in ["-- KEYS", "-- ARGV", "-- Reply", "-- Twice is harmless"] {
            assert!(text.contains(part), "{} lacks {part:?}", path.display());
        }
    }
}

/// The promise of `tests/README.md`.
#[test]
fn test_names_are_at_most_sixty_characters_long() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = sources(&root.join("tests"));
    files.extend(sources(&root.join("src")));
    let mut seen = 0;
    let mut long = String::new();
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
            if name.chars().count() > 60 {
                long += &format!("{}: {name}\n", file.display());
            }
        }
    }
    assert!(long.is_empty(), "these names are too long:\n{long}");
    assert!(seen > 900, "{seen}: tests have another form now; mend this test");
}

/// The table of faults names its tests; a test that was renamed must not leave a claim behind.
#[test]
fn every_test_that_the_table_of_faults_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = sources(&root.join("tests"));
    files.extend(sources(&root.join("src")));
    let texts: BTreeMap<String, String> = files
        .iter()
        .map(|file| (module(root, file), fs::read_to_string(file).expect("readable")))
        .collect();
    let table = fs::read_to_string(root.join("src/faults.md")).expect("readable");
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
        let of_program =
            texts.get(&format!("tests::{path}")).is_some_and(|text| text.contains(test));
        let of_src = || {
            let at_end = format!("::{path}");
            texts.iter().any(|(module, text)| {
                module.starts_with("src::") && module.ends_with(&at_end) && text.contains(test)
            })
        };
        assert!(of_program || of_src(), "src/faults.md names {word}, which is not there");
    }
    assert!(named > 150, "{named}: the table has another form now; mend this test");
}

/// The path of a file's module, such as `tests::redis::wire`.
fn module(root: &Path, file: &Path) -> String {
    let path = file.strip_prefix(root).expect("under the root").with_extension("");
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    let path = parts.join("::");
    let path = path.strip_suffix("::main").or_else(|| path.strip_suffix("::mod")).unwrap_or(&path);
    path.to_owned()
}
