//! What the command prints: a table for people, or with `--json` one object a line, on the standard output; its own words on
//! the standard error.

use crate::exit::Failure;
use serde_json::{Map, Value};
use std::io::{self, ErrorKind, Write};

/// Says something on the standard error. An error of it is of no interest: there is nowhere else to say it.
pub(crate) fn say(message: &str) {
    let _ = writeln!(io::stderr(), "leasehold: {message}");
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
    line(&Value::Object(object).to_string())
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

/// Asks on the standard error, without a line break.
pub(crate) fn ask(question: &str) {
    let mut stderr = io::stderr();
    let _ = write!(stderr, "leasehold: {question}").and_then(|()| stderr.flush());
}

/// Returns a text of the store, which anyone may have written there, without the control characters that a terminal obeys.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Returns whether a character changes the direction of text, or is not seen.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb\n\u{202e}c é"), "a\\u{1b}[2Jb\\n\\u{202e}c é");
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_entry() {
        let mut table = Table::new(&["NAME", "AGE"]);
        table.row(vec!["orders:42".to_owned(), "1.0s".to_owned()]);
        table.row(vec!["x".to_owned(), String::new()]);
        assert_eq!(table.lines(), ["NAME       AGE", "orders:42  1.0s", "x"]);
    }
}
