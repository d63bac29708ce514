//! Rounds of figures, printed as a table and written as JSON lines.

use crate::aligned::print_aligned;
use crate::peers::{AGAIN, TWICE};
use crate::stats;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Where the JSON lines go.
pub enum Sink {
    None,
    Stdout,
    File(File),
}

impl Sink {
    pub fn open(path: Option<&Path>) -> Result<Self, String> {
        match path {
            None => Ok(Self::None),
            Some(path) if path == Path::new("-") => Ok(Self::Stdout),
            Some(path) => File::create(path)
                .map(Self::File)
                .map_err(|error| format!("cannot write {}: {error}", path.display())),
        }
    }

    /// Writes the lines that another process has written into a file.
    pub fn append(&mut self, file: &Path) -> Result<(), String> {
        let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
        for line in text.lines() {
            self.write(&serde_json::from_str(line).map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    fn write(&mut self, line: &Value) {
        match self {
            Self::None => {}
            Self::Stdout => println!("{line}"),
            Self::File(file) => writeln!(file, "{line}").expect("the JSON file can be written"),
        }
    }
}

/// All figures of one scenario.
pub struct Board {
    scenario: String,
    title: String,
    rows: Vec<Row>,
}

struct Row {
    contender: String,
    metrics: Vec<(&'static str, Vec<f64>)>,
    rounds: usize,
    failure: Option<String>,
}

/// One column: its metric, its head, its decimals, and whether to show the spread over the rounds.
pub struct Column(pub &'static str, pub &'static str, pub usize, pub bool);

impl Board {
    pub fn new(scenario: impl Into<String>, title: impl Into<String>) -> Self {
        Self { scenario: scenario.into(), title: title.into(), rows: Vec::new() }
    }

    fn row(&mut self, contender: &str) -> &mut Row {
        let index = self.rows.iter().position(|row| row.contender == contender);
        let index = index.unwrap_or_else(|| {
            self.rows.push(Row {
                contender: contender.to_owned(),
                metrics: Vec::new(),
                rounds: 0,
                failure: None,
            });
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }

    /// Has a row for a contender, in the order in which they are expected.
    pub fn expect(&mut self, contender: &str) {
        self.row(contender);
    }

    /// The figures of one round.
    pub fn add(&mut self, sink: &mut Sink, contender: &str, figures: &[(&'static str, f64)]) {
        let scenario = self.scenario.clone();
        let row = self.row(contender);
        row.rounds += 1;
        let mut line = Map::new();
        line.insert("scenario".into(), scenario.into());
        line.insert("contender".into(), contender.into());
        line.insert("round".into(), row.rounds.into());
        for &(metric, value) in figures {
            line.insert(metric.into(), json!(value));
            match row.metrics.iter_mut().find(|(name, _)| *name == metric) {
                Some((_, values)) => values.push(value),
                None => row.metrics.push((metric, vec![value])),
            }
        }
        sink.write(&Value::Object(line));
    }

    /// A round that came to nothing; the contender is not asked again.
    pub fn fail(&mut self, sink: &mut Sink, contender: &str, error: &str) {
        let scenario = &self.scenario;
        sink.write(&json!({ "scenario": scenario, "contender": contender, "error": error }));
        self.row(contender).failure = Some(error.to_owned());
    }

    pub fn failed(&self, contender: &str) -> bool {
        self.rows.iter().any(|row| row.contender == contender && row.failure.is_some())
    }

    /// None if it was not measured.
    pub fn median(&self, contender: &str, metric: &str) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.contender == contender)?;
        Some(stats::median(row.values(metric)?))
    }

    /// The worst over the rounds.
    pub fn largest(&self, contender: &str, metric: &str) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.contender == contender)?;
        Some(stats::spread(row.values(metric)?).1)
    }

    /// Prints how a contender that was measured twice compares with itself, from round to round.
    pub fn print_against_itself(&self, metric: &str) {
        let values = |contender: &str| {
            let row = self.rows.iter().find(|row| row.contender == contender)?;
            row.values(metric)
        };
        let (Some(first), Some(second)) = (values(TWICE), values(AGAIN)) else { return };
        let ratios: Vec<f64> = first.iter().zip(second).map(|(one, other)| other / one).collect();
        let (low, high) = stats::spread(&ratios);
        println!(
            "    {TWICE} against itself, {metric}: {:.2} ({low:.2}..{high:.2}) in {} rounds",
            stats::median(&ratios),
            ratios.len()
        );
    }

    pub fn print(&self, columns: &[Column]) {
        println!("\n{}. {}", self.scenario, self.title);
        let mut lines = vec![vec!["".to_owned(), "n".to_owned()]];
        lines[0].extend(columns.iter().map(|column| column.1.to_owned()));
        for row in &self.rows {
            let mut line = vec![row.contender.clone(), row.rounds.to_string()];
            line.extend(columns.iter().map(|column| row.cell(column)));
            lines.push(line);
        }
        print_aligned(&lines);
        for row in &self.rows {
            if let Some(failure) = &row.failure {
                println!("    {} failed: {failure:.160}", row.contender);
            }
        }
    }
}

impl Row {
    fn values(&self, metric: &str) -> Option<&[f64]> {
        let (_, values) = self.metrics.iter().find(|(name, _)| *name == metric)?;
        Some(values)
    }

    fn cell(&self, &Column(metric, _, decimals, spread): &Column) -> String {
        let Some(values) = self.values(metric) else {
            return "-".to_owned();
        };
        let median = stats::median(values);
        if median.is_nan() {
            return "-".to_owned();
        }
        if spread && values.len() > 1 {
            let (low, high) = stats::spread(values);
            format!("{median:.decimals$} ({low:.decimals$}..{high:.decimals$})")
        } else {
            format!("{median:.decimals$}")
        }
    }
}
