//! What the command prints: a table for people, or with `--json` one object a line, on the standard output; its own words on
//! the standard error.

use crate::exit::Failure;
use serde_json::{Map, Value};
use std::io::{self, ErrorKind, Write};

/// Says something in a line of the standard error, in which words of a server may not act on the terminal. An error of it is
/// of no interest: there is nowhere else to say it.
pub(crate) fn say(message: &str) {
    let _ = writeln!(io::stderr(), "leasehold: {}", printable(message));
}

/// Prints a line on the standard output.
///
/// Fails if it cannot be written, as on a full disk. A reader that has closed the pipe has seen enough: the command ends at
/// the next line, without a word.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::new(format!("the standard output cannot be written: {error}"))),
    }
}

/// Prints an object in a line.
pub(crate) fn object(object: Map<String, Value>) -> Result<(), Failure> {
    line(&without_controls(&Value::Object(object).to_string()))
}

/// Writes the control characters that JSON leaves as they are as JSON writes the others. They stand in texts alone.
fn without_controls(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        if acts_on_terminal(char) {
            text.push_str(&format!("\\u{:04x}", u32::from(char)));
        } else {
            text.push(char);
        }
    }
    text
}

/// Returns a text that a terminal shows as it is, in one line: control characters are escaped.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if acts_on_terminal(char) {
            shown.extend(char.escape_unicode());
        } else {
            shown.push(char);
        }
    }
    shown
}

/// Returns whether a character does something other than to show itself: control characters, breaks of lines, and those that
/// change the direction of what follows, by which a name could look like another one.
fn acts_on_terminal(char: char) -> bool {
    let directs =
        matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || directs || matches!(char, '\u{2028}' | '\u{2029}')
}

/// Asks on the standard error, without a line break.
pub(crate) fn ask(question: &str) {
    let mut stderr = io::stderr();
    let _ = write!(stderr, "leasehold: {question}").and_then(|()| stderr.flush());
}

/// A table whose columns are as wide as their longest entry.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    pub(crate) fn print(&self) -> Result<(), Failure> {
        self.lines().iter().try_for_each(|text| line(text))
    }

    /// Returns how many columns of a terminal it takes, for characters that take one.
    pub(crate) fn width(&self) -> usize {
        self.lines().iter().map(|line| line.chars().count()).max().unwrap_or_default()
    }

    fn lines(&self) -> Vec<String> {
        let header = self.header.iter().map(|word| (*word).to_owned()).collect();
        let rows: Vec<&Vec<String>> = std::iter::once(&header).chain(&self.rows).collect();
        let width = |column: usize| {
            rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let text = |row: &&Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        rows.iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_acts_on_a_terminal() {
        assert_eq!(printable("a\u{9b}2J\n\u{202e}é☕"), "a\\u{9b}2J\\u{a}\\u{202e}é☕");
        let json = without_controls(&Value::from("a\u{9b}\x1b\"\u{202e}é").to_string());
        assert_eq!(json, r#""a\u009b\u001b\"\u202eé""#);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), "a\u{9b}\x1b\"\u{202e}é");
    }
}
