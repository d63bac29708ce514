//! The list of what still breaks a rule of the house: `debts.txt`, a section for each rule.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

const HEAD: &str = "\
# What still breaks the rules of the house (CONTRIBUTING.md, \"Rules of the house\"). A change takes lines off, and puts none on. To
# write the lists again: LEASEHOLD_DEBTS=write cargo test --test house debts
";

/// The sections, in their order.
const RULES: &[&str] = &[
    "circles of rooms",
    "the outside named in engine/machine",
    "fred named outside of link and topology",
    "methods outside the file of their type",
    "tuples as parameters",
    "several variables in one let",
    "traits with one implementor",
    "identifiers",
];

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Debt {
    /// Its line in the list.
    pub line: String,
    /// What else helps to find it. The list does not have it.
    pub help: String,
}

impl Debt {
    pub fn new(line: impl Into<String>) -> Self {
        Self { line: line.into(), help: String::new() }
    }
}

/// One test after the other reads and writes the file.
static FILE: Mutex<()> = Mutex::new(());

/// Fails if a place breaks the rule that is not in its list, or if one in the list keeps it by now.
pub fn settle(rule: &str, found: Vec<Debt>) {
    assert!(RULES.contains(&rule), "{rule:?} is not in RULES");
    let _file = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut lists = parse(&fs::read_to_string(path()).unwrap_or_default());
    if env::var_os("LEASEHOLD_DEBTS").is_some_and(|value| value == "write") {
        let mut lines: Vec<_> = found.iter().map(|debt| debt.line.clone()).collect();
        lines.sort();
        lists.insert(rule.to_owned(), lines);
        fs::write(path(), print(&lists)).expect("the file can be written");
    }
    let listed = lists.remove(rule).unwrap_or_default();
    if let Err(changes) = compare(&listed, found) {
        panic!(
            "{rule}:\n{changes}What is new (+) has to keep the rule of the house. What is no longer true (-) leaves the list \
             with\n    LEASEHOLD_DEBTS=write cargo test --test house debts"
        );
    }
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/house/debts.txt")
}

/// Compares the list with what was found. A line can be in both more than once.
fn compare(listed: &[String], mut found: Vec<Debt>) -> Result<(), String> {
    found.sort();
    let mut changes = String::new();
    let mut rest = listed.to_vec();
    if !rest.is_sorted() {
        changes += "the list is not sorted\n";
    }
    for debt in found {
        match rest.iter().position(|line| *line == debt.line) {
            Some(at) => _ = rest.remove(at),
            None if debt.help.is_empty() => changes += &format!("+ {}\n", debt.line),
            None => changes += &format!("+ {}\n      {}\n", debt.line, debt.help),
        }
    }
    for line in rest {
        changes += &format!("- {line}\n");
    }
    if changes.is_empty() { Ok(()) } else { Err(changes) }
}

fn parse(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut lists: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut rule = String::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => name.clone_into(&mut rule),
            None => lists.entry(rule.clone()).or_default().push(line.to_owned()),
        }
    }
    lists
}

fn print(lists: &BTreeMap<String, Vec<String>>) -> String {
    let mut text = HEAD.to_owned();
    for rule in RULES {
        let Some(lines) = lists.get(*rule).filter(|lines| !lines.is_empty()) else { continue };
        text += &format!("\n[{rule}]\n");
        for line in lines {
            text += &format!("{line}\n");
        }
    }
    text
}

#[test]
fn debts_fail_when_one_is_new_or_paid() {
    let listed = ["a", "b", "b"].map(str::to_owned);
    let found = |lines: &[&str]| lines.iter().map(|line| Debt::new(*line)).collect();
    assert_eq!(compare(&listed, found(&["b", "a", "b"])), Ok(()));
    assert_eq!(compare(&listed, found(&["b", "a", "b", "b"])), Err("+ b\n".to_owned()));
    assert_eq!(compare(&listed, found(&["a", "b"])), Err("- b\n".to_owned()));
    assert_eq!(compare(&listed, found(&["a", "b", "c"])), Err("+ c\n- b\n".to_owned()));
    let unsorted = ["b", "a"].map(str::to_owned);
    assert!(compare(&unsorted, found(&["a", "b"])).is_err());
}

/// Another section would be read by no test.
#[test]
fn debts_are_those_of_the_rules() {
    let _file = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let text = fs::read_to_string(path()).expect("readable");
    assert_eq!(print(&parse(&text)), text, "write the list again");
}

#[test]
fn debts_are_read_as_they_are_written() {
    let lists = BTreeMap::from([
        ("circles of rooms".to_owned(), vec!["a: b -> c".to_owned()]),
        ("tuples as parameters".to_owned(), vec!["d".to_owned(), "d".to_owned()]),
    ]);
    assert_eq!(parse(&print(&lists)), lists);
}
