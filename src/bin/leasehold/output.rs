//! What the command prints: a table for people, or with `--json` one object a line, on the standard output; its own words on
//! the standard error.

use crate::exit::Failure;
use serde_json::Value;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::Duration;

/// Says something in a line of the standard error, in which words of a server may not act on the terminal. An error of it is
/// of no interest: there is nowhere else to say it.
pub(crate) fn say(message: &str) {
    let _ = writeln!(io::stderr(), "leasehold: {}", printable(message));
}

/// Prints a line on the standard output.
///
/// Fails if it cannot be written, as on a full disk. A reader that has closed the pipe has seen enough: the failure at the
/// next line ends the command without a word.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    write(text).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::unread(),
        _ => unwritten(&error),
    })
}

/// Prints an object in a line, for a reader that must have it. The wait for a reader that is slow blocks no other task.
pub(crate) async fn object_to_reader(object: &Value) -> Result<(), Failure> {
    let text = without_controls(&object.to_string());
    let written = tokio::task::spawn_blocking(move || write(&text)).await;
    written.map_err(io::Error::other).flatten().map_err(|error| unwritten(&error))
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush())
}

fn unwritten(error: &io::Error) -> Failure {
    Failure::new(format!("the standard output cannot be written: {error}"))
}

/// Prints an object in a line.
pub(crate) fn object(object: &Value) -> Result<(), Failure> {
    line(&without_controls(&object.to_string()))
}

/// Returns whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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
    let _ = write!(stderr, "leasehold: {}", printable(question)).and_then(|()| stderr.flush());
}

/// What is written where something is not known.
pub(crate) const UNKNOWN: &str = "-";

/// A table whose columns are as wide as their longest entry.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: &[&'static str], rows: Vec<Vec<String>>) -> Self {
        Self { header: header.to_vec(), rows }
    }

    /// Prints it, or where the terminal is too narrow for it, a line for each thing that is known.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        let table = self.lines();
        let widest = table.iter().map(|text| text.chars().count()).max().unwrap_or_default();
        let is_fitting = terminal_width().is_none_or(|width| widest <= width);
        let lines = if is_fitting { table } else { self.blocks() };
        lines.iter().try_for_each(|text| line(text))
    }

    /// Returns the lines of rows that are too long: the first cell, and below it those that say something.
    fn blocks(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for row in &self.rows {
            let mut cells = self.header.iter().zip(row);
            lines.extend(cells.next().map(|(_, first)| first.clone()));
            let known = cells.filter(|(_, cell)| *cell != UNKNOWN);
            lines.extend(known.map(|(word, cell)| format!("  {}: {cell}", word.to_lowercase())));
        }
        lines
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

/// Returns the width of the terminal; `None` if the standard output is none, or does not know it.
pub(crate) fn terminal_width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    #[cfg(target_os = "linux")]
    let known = rustix::termios::tcgetwinsize(io::stdout()).map(|size| size.ws_col.into()).ok();
    #[cfg(not(target_os = "linux"))]
    let known = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    known.filter(|width: &usize| *width > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_rows_have_a_line_for_each_thing_that_is_known() {
        let row = ["n", "lock", "0f0e0d0c..:7", "-", "12.0s"].map(str::to_owned).to_vec();
        let table = Table::new(&["NAME", "AS", "HOLDER", "AGE", "LEFT"], vec![row]);
        let lines = table.blocks();
        assert_eq!(lines, ["n", "  as: lock", "  holder: 0f0e0d0c..:7", "  left: 12.0s"]);
    }

    #[test]
    fn no_character_acts_on_a_terminal() {
        assert_eq!(printable("a\u{9b}2J\n\u{202e}é☕"), "a\\u{9b}2J\\u{a}\\u{202e}é☕");
        let json = without_controls(&Value::from("a\u{9b}\x1b\"\u{202e}é").to_string());
        assert_eq!(json, r#""a\u009b\u001b\"\u202eé""#);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), "a\u{9b}\x1b\"\u{202e}é");
    }
}
