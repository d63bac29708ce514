//! The run as a picture: the holders of each name over time, and the faults.

use kit::soak::history::{Event, What};
use kit::soak::leases::{Lease, settings, slot};
use kit::soak::oracle::{Finding, Verdict, wiped};
use std::collections::BTreeSet;
use std::fmt::Write;

const SECOND: u64 = 1_000_000_000;
/// A row of the picture; of a long run, those rows are shown in which most was lost.
const ROW: u64 = 10 * SECOND;
const ROWS: usize = 6;

const WIDTH: f64 = 1500.0;
const LEFT: f64 = 84.0;
const FAULT: f64 = 14.0;
const NAME: f64 = 20.0;
const AXIS: f64 = 44.0;
/// Colours that people with any kind of sight can tell apart (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442"];
const LOSS: &str = "#d00000";

struct Picture<'a> {
    history: &'a [Event],
    verdict: &'a Verdict,
    start: u64,
    end: u64,
    names: Vec<String>,
    slots: Vec<String>,
    servers: Vec<String>,
    wipes: Vec<(String, (u64, u64))>,
    svg: String,
}

/// Draws a run as SVG.
pub fn draw(history: &[Event], verdict: &Verdict) -> String {
    let settings = settings(history);
    let mut names: Vec<String> = settings.keys().cloned().collect();
    names.sort();
    let servers: BTreeSet<_> = settings.values().map(|setting| setting.server.clone()).collect();
    let slots: BTreeSet<_> = verdict.leases.iter().map(|lease| lease.slot().to_owned()).collect();
    let run = history.iter().find_map(|event| match event.what {
        What::Run { seed, seconds, ref store } => Some((event.at, seed, seconds, store.as_str())),
        _ => None,
    });
    let (start, seed, seconds, store) = run.unwrap_or_default();
    let mut picture = Picture {
        history,
        verdict,
        start,
        end: start + (seconds + 1) * SECOND,
        names,
        slots: slots.into_iter().collect(),
        servers: servers.into_iter().collect(),
        wipes: wiped(history),
        svg: String::new(),
    };
    picture.draw(store, seed, seconds);
    picture.svg
}

impl Picture<'_> {
    fn draw(&mut self, store: &str, seed: u64, seconds: u64) {
        let rows = self.rows();
        let lanes = (self.slots.len() + self.servers.len()) as f64 * FAULT;
        let row_height = lanes + 6.0 + self.names.len() as f64 * NAME + AXIS;
        let top = 78.0;
        let height = top + rows.len() as f64 * row_height;
        let _ = writeln!(
            self.svg,
            "<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' \
             font-family='sans-serif' font-size='11'>\
             <defs><pattern id='risk' width='5' height='5' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>\
             <rect width='2.2' height='5' fill='#000' fill-opacity='0.65'/></pattern></defs>\
             <rect width='{WIDTH}' height='{height}' fill='#fff'/>"
        );
        let all = self.verdict.leases.iter().filter(|lease| lease.granted.is_some()).count();
        let findings = self.verdict.findings.len();
        let verdict = match findings {
            0 => "the oracle found nothing".to_owned(),
            1 => "1 FINDING".to_owned(),
            _ => format!("{findings} FINDINGS"),
        };
        let shown = if self.end - self.start > ROW * ROWS as u64 + SECOND {
            ", the rows with most losses"
        } else {
            ""
        };
        self.text(
            12.0,
            22.0,
            17,
            &format!(
                "leasehold: {seconds} s of faults on {store}, seed {seed}: {all} leases, {verdict}{shown}"
            ),
        );
        self.legend();
        for (at, from) in rows.into_iter().enumerate() {
            self.row(from, top + at as f64 * row_height, lanes);
        }
        self.svg.push_str("</svg>\n");
    }

    fn rows(&self) -> Vec<u64> {
        let count = (self.end - self.start).div_ceil(ROW);
        let mut rows: Vec<u64> = (0..count).map(|row| self.start + row * ROW).collect();
        // The last second alone is no row.
        if rows.len() > 1 && self.end - rows[rows.len() - 1] <= SECOND {
            rows.pop();
        }
        rows.sort_by_key(|from| {
            let inner_faults = |at: u64| (*from..from + ROW).contains(&at);
            let lost = self
                .verdict
                .leases
                .iter()
                .filter(|lease| lease.fired.as_ref().is_some_and(|(at, _)| inner_faults(*at)));
            let found = self.verdict.findings.iter().filter(|finding| inner_faults(finding.at));
            std::cmp::Reverse(lost.count() + 1000 * found.count())
        });
        rows.truncate(ROWS);
        rows.sort_unstable();
        rows
    }

    fn legend(&mut self) {
        let mut x = 12.0;
        let y = 40.0;
        for at in 0..self.slots.len() {
            self.rect(x, y, 16.0, 12.0, colour(at), "");
            let text = format!("held by process {}", self.slots[at]);
            self.text(x + 21.0, y + 10.0, 12, &text);
            x += 140.0;
        }
        self.rect(x, y, 16.0, 12.0, COLOURS[0], "");
        self.rect(x, y, 16.0, 12.0, "url(#risk)", "");
        self.text(x + 21.0, y + 10.0, 12, "at risk: a renewal failed");
        x += 182.0;
        self.mark(x + 8.0, y + 2.0);
        self.text(x + 21.0, y + 10.0, 12, "loss told to the holder");
        x += 168.0;
        self.rect(x, y + 5.0, 16.0, 2.0, LOSS, "");
        self.text(x + 21.0, y + 10.0, 12, "lost while frozen");
        x += 136.0;
        self.line(x + 8.0, y - 2.0, y + 14.0);
        self.text(x + 21.0, y + 10.0, 12, "key wiped from the server");
        x += 192.0;
        self.rect(x, y, 16.0, 12.0, "#c8c8c8", "");
        self.text(x + 21.0, y + 10.0, 12, "fault");
        x += 66.0;
        self.rect(x, y, 16.0, 12.0, "none", " stroke='#d00000' stroke-width='3'");
        self.text(x + 21.0, y + 10.0, 12, "finding of the oracle");
    }

    fn row(&mut self, from: u64, top: f64, lanes: f64) {
        let parties: Vec<String> = self.slots.iter().chain(&self.servers).cloned().collect();
        for (at, party) in parties.iter().enumerate() {
            let y = top + at as f64 * FAULT;
            let is_server = at >= self.slots.len();
            self.text(
                12.0,
                y + 10.0,
                10,
                &if is_server { party.clone() } else { format!("process {party}") },
            );
            if !is_server {
                self.rect(LEFT - 12.0, y + 2.0, 8.0, FAULT - 4.0, colour(at), "");
            }
            self.faults(party, from, y);
        }
        let names_top = top + lanes + 6.0;
        for (at, name) in self.names.clone().iter().enumerate() {
            let y = names_top + at as f64 * NAME;
            self.text(12.0, y + 14.0, 13, name);
            self.rect(LEFT, y + 2.0, WIDTH - LEFT - 12.0, NAME - 4.0, "#f4f4f4", "");
            self.name(name, from, y + 2.0);
        }
        let bottom = names_top + self.names.len() as f64 * NAME;
        self.findings(from, top, bottom);
        for second in 0..=ROW / SECOND {
            let x = self.x(from, from + second * SECOND);
            let _ = write!(
                self.svg,
                "<path d='M{x:.1} {top:.1}V{:.1}' stroke='#000' stroke-opacity='0.12'/>",
                bottom + 4.0
            );
            let label = format!("{} s", (from - self.start) / SECOND + second);
            let _ = writeln!(
                self.svg,
                "<text x='{x:.1}' y='{:.1}' font-size='11' text-anchor='middle' fill='#444'>{label}</text>",
                bottom + 16.0
            );
        }
    }

    /// What was broken about a process or server.
    fn faults(&mut self, party: &str, from: u64, y: f64) {
        let mut shown = Vec::new();
        for event in self.history {
            if let What::Fault { until, on, kind } = &event.what
                && slot(on) == party
                && event.at < from + ROW
                && *until > from
            {
                shown.push((self.x(from, event.at), self.x(from, *until), kind.clone()));
            }
        }
        shown.sort_by(|one, other| one.0.total_cmp(&other.0));
        for at in 0..shown.len() {
            let (left, right, kind) = shown[at].clone();
            let kind = kind.split('(').next().unwrap_or_default();
            self.rect(left, y + 1.0, (right - left).max(3.0), FAULT - 2.0, "#c8c8c8", "");
            let room = shown.get(at + 1).map_or(WIDTH - 8.0, |next| next.0) - left;
            let words = spaced(kind);
            if words.len() as f64 * 5.6 < room {
                self.text(left + 3.0, y + 10.5, 9, &words);
            }
        }
    }

    /// Who had a name.
    fn name(&mut self, name: &str, from: u64, y: f64) {
        let until = from + ROW;
        let height = NAME - 4.0;
        let mut blocks: Vec<(f64, f64, usize)> = Vec::new();
        let mut risks = Vec::new();
        let mut losses = Vec::new();
        for lease in self.verdict.leases.iter().filter(|lease| lease.name == name) {
            let Some(granted) = lease.granted else { continue };
            let end = end(lease, granted);
            if lease.fired.as_ref().map_or(end, |(fired, _)| *fired) < from || granted > until {
                continue;
            }
            let at = self.slots.iter().position(|slot| slot == lease.slot()).unwrap_or_default();
            let (left, right) = (self.x(from, granted), self.x(from, end));
            match blocks.last_mut() {
                Some((_, last, who)) if *who == at && left - *last < 1.0 => {
                    *last = right.max(*last)
                }
                _ => blocks.push((left, right, at)),
            }
            for (risk, safe) in &lease.at_risk {
                risks.push((self.x(from, *risk), self.x(from, safe.unwrap_or(end))));
            }
            if let Some((fired, _)) = lease.fired
                && (from..until).contains(&fired)
            {
                losses.push((right, self.x(from, fired)));
            }
        }
        for (left, right, at) in blocks {
            self.rect(left, y, (right - left).max(0.7), height, colour(at), "");
        }
        for (left, right) in risks {
            self.rect(left, y, (right - left).max(2.0), height, "url(#risk)", "");
        }
        let wipes: Vec<u64> =
            self.wipes.iter().filter(|(wiped, _)| wiped == name).map(|(_, span)| span.0).collect();
        for at in wipes.into_iter().filter(|at| (from..until).contains(at)) {
            self.line(self.x(from, at), y - 2.0, y + height + 2.0);
        }
        for (ended, reported) in losses {
            self.rect(ended, y + 1.0, (reported - ended).max(0.0), 2.0, LOSS, "");
            self.mark(reported, y - 1.0);
        }
    }

    fn findings(&mut self, from: u64, top: f64, bottom: f64) {
        let found =
            self.verdict.findings.iter().filter(|finding| (from..from + ROW).contains(&finding.at));
        let found: Vec<Finding> = found.cloned().collect();
        for finding in found {
            let x = self.x(from, finding.at);
            self.rect(
                x - 4.0,
                top,
                8.0,
                bottom - top,
                "none",
                " stroke='#d00000' stroke-width='2'",
            );
            self.text(x + 6.0, bottom - 3.0, 11, &finding.text);
        }
    }

    fn x(&self, from: u64, at: u64) -> f64 {
        let part = (at as f64 - from as f64) / ROW as f64;
        LEFT + part.clamp(0.0, 1.0) * (WIDTH - LEFT - 24.0)
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str, more: &str) {
        let _ = writeln!(
            self.svg,
            "<rect x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height:.1}' fill='{fill}'{more}/>"
        );
    }

    fn text(&mut self, x: f64, y: f64, size: u32, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(self.svg, "<text x='{x:.1}' y='{y:.1}' font-size='{size}'>{text}</text>");
    }

    fn mark(&mut self, x: f64, y: f64) {
        let _ = writeln!(
            self.svg,
            "<path d='M{:.1} {y:.1}h9l-4.5 9z' fill='{LOSS}' stroke='#fff' stroke-width='0.8'/>",
            x - 4.5
        );
    }

    fn line(&mut self, x: f64, top: f64, bottom: f64) {
        let _ = writeln!(
            self.svg,
            "<path d='M{x:.1} {top:.1}V{bottom:.1}' stroke='{LOSS}' stroke-width='2' stroke-dasharray='3 2'/>"
        );
    }
}

fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

/// Until when a lease is drawn: as long as somebody believed in it, or had it without a look.
fn end(lease: &Lease, granted: u64) -> u64 {
    let looked = lease.believed.map_or(granted, |(_, until)| until);
    lease.released.map_or(looked, |released| if lease.by_token { released } else { looked })
}

/// `BlackHole` as `black hole`.
fn spaced(kind: &str) -> String {
    let mut words = String::new();
    for letter in kind.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}
