//! `leasehold doctor`: finds out what is wrong with a store, or may go wrong.

use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::output;
use clap::{Args, ValueHint};
use leasehold::{Finding, Severity};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Examine the servers: whether locks work there, and what may cost leases
///
/// Prints a line for each check and server, the worst last: what was seen, what it costs, and what to change. A check that this
/// user may not make is not-checked, with the rule that would allow it.
///
/// It takes about 11 seconds, in which the clocks of the servers are watched, and at most a minute and a half, whatever the servers
/// do. It only reads, besides the try-out of permissions that each connection of a program does as well. On ZooKeeper that creates
/// the path of the URL where it is missing, and leaves it there. Give it the --prefix and the --ttl of your programs.
///
/// Exits with 0 if all is fine, 1 with a warning or something that was not checked, 2 with a failure, and 125 if it cannot run.
#[derive(Clone, Debug, Args)]
pub(crate) struct Doctor {
    /// The store, in place of --url. A password belongs into the file that LEASEHOLD_PASSWORD_FILE names
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    store: Option<String>,
    /// Print an object a line, with check, severity, server and message
    #[arg(long)]
    json: bool,
}

/// Warnings, or checks that were not made.
const WARNED: Exit = Exit(1);
const FOUND_FAILURES: Exit = Exit(2);
/// The usual time, for the progress.
const USUAL: Duration = Duration::from_secs(11);

impl Doctor {
    pub(crate) async fn run(self, mut connection: Connection) -> Result<Exit, Failure> {
        if self.store.is_some() {
            connection.url.clone_from(&self.store);
        }
        let examination = connection.builder()?.examine(connection.url()?);
        let mut findings = with_progress(examination).await;
        if self.json {
            findings.iter().try_for_each(|finding| output::object(&object(finding)))?;
        } else {
            // Stable, so the servers keep their order.
            findings.sort_by_key(|finding| finding.severity);
            print(&findings)?;
            output::say(&summary(&findings));
        }
        Ok(match findings.iter().map(|finding| finding.severity).max() {
            Some(Severity::Failure) => FOUND_FAILURES,
            Some(Severity::Fine) | None => Exit::SUCCESS,
            _ => WARNED,
        })
    }
}

/// Waits, and on a terminal shows for how long.
async fn with_progress<T>(work: impl Future<Output = T>) -> T {
    let mut stderr = io::stderr();
    if !stderr.is_terminal() {
        return work.await;
    }
    let start = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => {
                let _ = write!(stderr, "\r\x1b[K").and_then(|()| stderr.flush());
                return done;
            }
            _ = tick.tick() => {
                let seconds = start.elapsed().as_secs();
                let usual = USUAL.as_secs();
                let text = format!("asking the servers and watching their clocks: {seconds} s of about {usual} s");
                let _ = write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush());
            }
        }
    }
}

fn object(finding: &Finding) -> Value {
    json!({
        "check": finding.check.to_string(),
        "severity": finding.severity.to_string(),
        "server": finding.server,
        "message": finding.message(),
    })
}

fn summary(findings: &[Finding]) -> String {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    format!(
        "{} fine, {} not checked, {} warnings, {} failures",
        count(Severity::Fine),
        count(Severity::NotChecked),
        count(Severity::Warning),
        count(Severity::Failure)
    )
}

/// Prints a table. On a terminal, messages are wrapped, and severities have colours.
fn print(findings: &[Finding]) -> Result<(), Failure> {
    let is_terminal = io::stdout().is_terminal();
    let width = output::terminal_width();
    let colours = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let rows: Vec<Row> = findings.iter().map(Row::of).collect();
    let longest = |cell: fn(&Row) -> &str| rows.iter().map(|row| cell(row).chars().count()).max();
    let checks = longest(|row| &row.check).unwrap_or_default();
    let servers = longest(|row| &row.server).unwrap_or_default();
    for row in &rows {
        let Row { severity, check, server, message } = row;
        let name = format!("{severity:<11}");
        let name = if colours { format!("\x1b[{}m{name}\x1b[0m", colour(*severity)) } else { name };
        let before = 11 + 2 + checks + 2 + servers + 2;
        let mut lines =
            wrapped(message, width.map(|width| width.saturating_sub(before))).into_iter();
        let first = lines.next().unwrap_or_default();
        output::line(format!("{name}  {check:<checks$}  {server:<servers$}  {first}").trim_end())?;
        for more in lines {
            output::line(&format!("{:before$}{more}", ""))?;
        }
    }
    Ok(())
}

struct Row {
    severity: Severity,
    check: String,
    server: String,
    message: String,
}

impl Row {
    fn of(finding: &Finding) -> Self {
        // Both have words of the servers.
        let server = output::printable(&finding.server);
        let message = output::printable(finding.message());
        Self { severity: finding.severity, check: finding.check.to_string(), server, message }
    }
}

/// Returns the number of the colour of a severity.
fn colour(severity: Severity) -> u8 {
    match severity {
        Severity::Fine => 32,
        Severity::Failure => 31,
        _ => 33,
    }
}

/// Breaks a text into lines of so many characters; one that is narrower than a word or two is left to the terminal.
fn wrapped(text: &str, width: Option<usize>) -> Vec<String> {
    let Some(width) = width.filter(|width| *width >= 20) else { return vec![text.to_owned()] };
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_wrapped_between_words() {
        let text = "one two three four five six seven";
        assert_eq!(wrapped(text, Some(20)), ["one two three four", "five six seven"]);
        assert_eq!(wrapped(text, None), [text]);
        assert_eq!(wrapped(text, Some(5)), [text], "too narrow");
        let long = "a-word-that-is-longer-than-the-line";
        assert_eq!(wrapped(&format!("a {long} b"), Some(20)), ["a", long, "b"]);
    }
}
