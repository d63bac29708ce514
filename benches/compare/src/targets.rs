//! What leasehold is to reach, and whether it does.

use crate::aligned::print_aligned;

#[derive(Default)]
pub struct Targets {
    /// Whether what was not measured is missed.
    strict: bool,
    lines: Vec<Vec<String>>,
    missed: usize,
}

impl Targets {
    /// Counts what was not measured as missed.
    #[allow(dead_code, reason = "the benches beside other crates have a table for that")]
    pub fn strict(self, strict: bool) -> Self {
        Self { strict, ..self }
    }

    pub fn at_most(&mut self, what: &str, limit: f64, measured: Option<f64>) {
        self.judge(what, "<=", limit, measured, |value| value <= limit);
    }

    pub fn at_least(&mut self, what: &str, limit: f64, measured: Option<f64>) {
        self.judge(what, ">=", limit, measured, |value| value >= limit);
    }

    /// A figure without a target.
    #[allow(dead_code, reason = "the benches beside other crates have a table for that")]
    pub fn record(&mut self, what: &str, measured: f64) {
        self.lines.push(vec![what.to_owned(), String::new(), number(measured), String::new()]);
    }

    /// Says what the last figure is to be compared with.
    #[allow(dead_code, reason = "the benches beside other crates have a table for that")]
    pub fn beside(&mut self, what: impl Into<String>) {
        if let Some(line) = self.lines.last_mut() {
            line.push(what.into());
        }
    }

    fn judge(
        &mut self,
        what: &str,
        sign: &str,
        limit: f64,
        measured: Option<f64>,
        holds: impl Fn(f64) -> bool,
    ) {
        let (value, verdict) = match measured.filter(|value| !value.is_nan()) {
            None => {
                self.missed += usize::from(self.strict);
                ("not measured".to_owned(), if self.strict { "NO" } else { "" })
            }
            Some(value) if holds(value) => (number(value), "yes"),
            Some(value) => {
                self.missed += 1;
                (number(value), "NO")
            }
        };
        let target = format!("{sign} {}", number(limit));
        self.lines.push(vec![what.to_owned(), target, value, verdict.to_owned()]);
    }

    /// Whether none was missed.
    pub fn print(&self) -> bool {
        let mut head = ["leasehold", "target", "measured", "met?"].map(String::from).to_vec();
        if self.lines.iter().any(|line| line.len() > head.len()) {
            head.push("beside".to_owned());
        }
        println!("\nTargets");
        print_aligned(&[vec![head], self.lines.clone()].concat());
        self.missed == 0
    }
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}
