//! Checks the words of the prose, and that its links lead to files.

use crate::layers::below;
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
